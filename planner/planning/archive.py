"""The best plans of different kinds that a run comes by, for `make_plans`; the search itself knows nothing of it.

Kept are baselines that fit, every plan that the verifier passed, and at the end the candidates of the joint search: its
starts are cuts of all numbers of stages and replicas, its pool holds the best of every shape.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from planner.clock import HasTime, always, while_time
from planner.errors import PlanError
from planner.plan import Plan
from planner.plan_kind import PlanKind, kind_of
from planner.planning.evidence import Conclusion, make_evidence
from planner.planning.search_state import SearchState
from planner.planning.starts.conversions import plan_of
from planner.simulation.timeline import Timeline
from planner.verify import Verdict, verify
from solver_models.local_search.search import Candidate, Searcher

OVERTIME_SHARE = 0.1
"""Part of the time limit that the last look at them may take beyond it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """The best plan of a kind so far."""

    rating: int
    plan: Plan
    source: str
    verdict: Verdict | None
    """None: the verifier has not been asked yet."""


class Archive:
    """What `SearchState` shows its plans to."""

    def __init__(self, run: SearchState, *, top: int, rate: Callable[[Plan, int], int]) -> None:
        self.run, self.top, self.objective = run, top, run.problem.options.objective
        """The run, how many plans are asked for, and what it minimises."""
        self.rate = rate
        """What a plan with that objective takes in all; the least is best."""
        self.most_kinds = run.params.archive.kinds_per_plan * top
        self.kept: dict[PlanKind, _Kept] = {}
        """The best of every kind, of the best kinds."""
        self.candidates: list[tuple[str, Plan]] = []
        """What the joint search had at its end, and who found it."""

    def see(self, plan: Plan, timeline: Timeline, *, source: str, verdict: Verdict | None = None) -> None:
        """Keep a plan if it is the best of its kind, and its kind one of the best; of equals the first stays."""
        rating = self.rate(plan, timeline.objective_ns(self.objective))
        found = _Kept(rating=rating, plan=plan, source=source, verdict=verdict)
        kind = kind_of(plan)
        if kind in self.kept and self.kept[kind].rating <= found.rating:
            return
        self.kept[kind] = found
        if len(self.kept) > self.most_kinds:
            del self.kept[max(self.kept, key=lambda each: self.kept[each].rating)]

    def take(self, searcher: Searcher, candidates: Sequence[Candidate]) -> None:
        """Note the best candidates of the joint search, one of each number of stages, replicas and chunks."""
        best: dict[tuple[object, ...], Candidate] = {}
        feasible = (candidate for candidate in candidates if candidate.is_feasible)
        for candidate in sorted(feasible, key=lambda each: each.objective):
            best.setdefault(_shape(candidate), candidate)
        for candidate in list(best.values())[: self.most_kinds]:
            plan = plan_of(self.run.problem, searcher, candidate=candidate)
            origin = "joint search" if candidate.device_orders is None else "order search"
            self.candidates.append((origin, plan))

    def others(self, best: Plan, *, conclude: Callable[[int], Conclusion], share: float) -> list[tuple[int, Plan]]:
        """Verified plans of other kinds than the best's and each other's, the fastest first, after what they take.

        `conclude`: what is shown of all plans, beside one with that objective, for its evidence. `share`: the part of
        the time limit that this may take.
        """
        run, has_time = self.run, _time_for(self.run, share=share)
        found: dict[PlanKind, tuple[int, Plan]] = {}
        for kept in sorted(self.kept.values(), key=lambda each: each.rating):
            if len(found) >= self.top - 1 or not has_time():
                break
            judged = judged_plan(run, kept.plan) if kept.verdict is None else (kept.plan, kept.verdict)
            if judged is None or judged[1].timeline is None or kind_of(judged[0]) in (kind_of(best), *found):
                continue
            objective_ns = judged[1].timeline.objective_ns(self.objective)
            conclusion = conclude(objective_ns)
            plan = finished_plan(run, judged[0], verdict=judged[1], source=kept.source, conclusion=conclusion)
            found[kind_of(plan)] = self.rate(plan, objective_ns), plan
        # what a target makes of a plan may take longer
        return sorted(found.values(), key=lambda each: each[0])

    def look_at_candidates(self, *, share: float) -> None:
        """See what the joint search had at its end, within a part of the time limit.

        What the verifier's clock says is better than the incumbent takes its place: the search's own is an estimate.
        """
        for source, plan in while_time(self.candidates, has_time=_time_for(self.run, share=share)):
            found = judged_plan(self.run, plan)
            if found is not None and found[1].timeline is not None:
                self.see(found[0], found[1].timeline, source=source, verdict=found[1])
                self.run.offer(found[0], found[1].timeline, source=source)


def _shape(candidate: Candidate) -> tuple[object, ...]:
    """What of a candidate decides the kind of its plan, but for the order."""
    sizes = [len(group) for group in candidate.groups]
    devices = [device for group in candidate.groups for device in group]
    chunks = max(map(devices.count, set(devices)))
    return len(sizes), min(sizes), max(sizes), chunks, frozenset(candidate.modes.tolist())


def _time_for(run: SearchState, *, share: float) -> HasTime:
    """Whether less than this part of the time limit has passed since now; where rounds are counted, always."""
    if run.limits.max_rounds is not None:
        return always
    until = run.elapsed_s + share * run.limits.time_limit_s
    return lambda: run.elapsed_s < until


def judged_plan(run: SearchState, plan: Plan) -> tuple[Plan, Verdict] | None:
    """A plan as its target runs it, and what the verifier says; None if it cannot run or breaks a rule."""
    fitted = run.fitted(plan)
    if fitted is None:
        return None
    verdict = verify(run.problem, fitted)
    return (fitted, verdict) if verdict.passed else None


def finished_plan(run: SearchState, plan: Plan, *, verdict: Verdict, source: str, conclusion: Conclusion) -> Plan:
    """With evidence of its own: the bound is that of the question."""
    assert verdict.timeline is not None
    finished = replace(
        plan, evidence=make_evidence(run, conclusion, timeline=verdict.timeline, plan=plan, source=source)
    )
    whole = verify(run.problem, finished, earlier=verdict)
    if not whole.passed:
        raise PlanError(f"the verifier rejected a plan of another kind: {whole.violations[0].message}")
    return finished
