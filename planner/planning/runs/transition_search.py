"""The plan that takes over from a running one at the least cost: iterations that are left, and what moves for them.

Of every plan that a run comes by the sum is taken, so that none found is cheaper than the answer. In the last part of
the time partitions and mappings are searched for the sum itself, the one with the least bound on it first: iterations
no order is below, and what moves. That begins with the plan to start from, the same with one replica per stage, which
moves least where all state is read anew, and what the joint search ended with.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from planner.clock import HasTime
from planner.plan import Plan, Stage
from planner.planning.archive import finished_plan, judged_plan
from planner.planning.evidence import Conclusion, finish
from planner.planning.search_state import SearchState
from planner.planning.starts.conversions import plan_of, rate, stages_of
from planner.replanning.transition import Transition
from planner.simulation.timeline import Timeline
from planner.verify import Verdict
from profiles.cluster import Cluster
from solver_models.local_search.search import Candidate, Searcher
from solver_models.precompile import FIRST
from solver_models.starts.layout_neighbours import Layout, key_of, layout_of, neighbours

_STARTS = 8
"""Candidates of the joint search that it begins with."""
_MOST_LAYOUTS = 4_000
"""Layouts that are looked at, most of them by a bound alone."""
_POLISH_PLAYS = 200
"""Plays that go into the orders of a layout that could be cheapest."""
_MOST_SEQUENCED_ACTIONS = 100
"""Layouts with at most so many actions also get their best order by branch and bound."""
_SEQUENCE_NODES = 2_000
"""Nodes that it may look at."""

NAME = "search for the sum"
"""Who is said to have found what the search of layouts finds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """A verified plan, and what taking over with it costs."""

    total_ns: int
    moving_ns: int
    plan: Plan
    verdict: Verdict
    source: str


class TransitionSearch:
    """What a run shows its plans to, and what searches on when the run has ended."""

    def __init__(self, run: SearchState, transition: Transition, *, cluster: Cluster) -> None:
        self.run, self.transition = run, transition
        self.whole = run.problem if cluster == run.problem.cluster else replace(run.problem, cluster=cluster)
        """The problem with all devices: state moves from those that are given up, too."""
        self.best: _Found | None = None
        """The plan with the least sum."""
        self.leanest: _Found | None = None
        """The plan for which least moves, the fastest of those."""
        self.starts: list[Candidate] = []
        """What the joint search had at its end, the least sums first."""
        self._moving: dict[tuple[Stage, ...], int] = {}

    @property
    def plan(self) -> Plan | None:
        """The plan with the least sum."""
        return None if self.best is None else self.best.plan

    @property
    def total_ns(self) -> int | None:
        """What taking over with it costs."""
        return None if self.best is None else self.best.total_ns

    @property
    def iteration_ns(self) -> int | None:
        """The objective of its iteration."""
        return None if self.best is None else self._iteration_of(self.best.verdict)

    def _iteration_of(self, verdict: Verdict) -> int:
        assert verdict.timeline is not None
        return verdict.timeline.objective_ns(self.run.problem.options.objective)

    def sum_of(self, stages: tuple[Stage, ...], iteration_ns: int) -> int:
        """What taking over with these stages costs, if their iterations take so long."""
        return self.transition.total_ns(iteration_ns=iteration_ns, moving_ns=self.moving_ns(stages))

    def moving_ns(self, stages: tuple[Stage, ...]) -> int:
        """How long it takes to move what these stages need."""
        known = self._moving.get(stages)
        if known is None:
            known = self._moving[stages] = self.transition.moving_ns(self.whole, stages)
        return known

    def see(self, plan: Plan, timeline: Timeline, *, source: str, verdict: Verdict | None = None) -> None:
        """Keep a plan that has the least sum so far, or for which least moves."""
        iteration_ns = timeline.objective_ns(self.run.problem.options.objective)
        moving_ns = self.moving_ns(plan.stages)
        total_ns = self.transition.total_ns(iteration_ns=iteration_ns, moving_ns=moving_ns)
        if not self._is_wanted(total_ns, moving_ns):
            return
        if verdict is None:
            judged = judged_plan(self.run, plan)  # which a target may have changed
            if judged is not None and judged[1].timeline is not None:
                self.see(judged[0], judged[1].timeline, source=source, verdict=judged[1])
            return
        found = _Found(total_ns=total_ns, moving_ns=moving_ns, plan=plan, verdict=verdict, source=source)
        if self.best is None or total_ns < self.best.total_ns:
            self.best = found
        if self.leanest is None or _lean(found) < _lean(self.leanest):
            self.leanest = found

    def _is_wanted(self, total_ns: int, moving_ns: int) -> bool:
        if self.best is None or self.leanest is None:
            return True
        return total_ns < self.best.total_ns or (moving_ns, total_ns) < _lean(self.leanest)

    def take(self, searcher: Searcher, candidates: Sequence[Candidate]) -> None:
        """Look at what the joint search had at its end; the best by their sums are where the search continues."""
        feasible = [each for each in candidates if each.is_feasible]
        sums = {id(each): self._sum_of(each) for each in feasible}
        self.starts = sorted(feasible, key=lambda each: sums[id(each)])[:_STARTS]
        for candidate in [*self.starts, *sorted(feasible, key=self._lean_of)[:1]]:
            self._offer(searcher, candidate, source="joint search")

    def _sum_of(self, candidate: Candidate) -> int:
        moving_ns = self._moving_of(layout_of(candidate))
        return self.transition.total_ns(iteration_ns=candidate.objective, moving_ns=moving_ns)

    def _lean_of(self, candidate: Candidate) -> tuple[int, int]:
        return self._moving_of(layout_of(candidate)), self._sum_of(candidate)

    def _moving_of(self, layout: Layout) -> int:
        stage_of, groups, modes = layout
        candidate = Candidate(stage_of=stage_of, groups=groups, modes=modes, policy_params=modes, objective=0)
        return self.moving_ns(stages_of(self.run.problem, candidate))

    def _offer(self, searcher: Searcher, candidate: Candidate, *, source: str) -> None:
        """Have a candidate judged if it promises to be wanted."""
        if not self._is_wanted(self._sum_of(candidate), self._moving_of(layout_of(candidate))):
            return
        judged = judged_plan(self.run, plan_of(self.run.problem, searcher, candidate=candidate))
        if judged is not None and judged[1].timeline is not None:
            self.see(judged[0], judged[1].timeline, source=source, verdict=judged[1])

    def search(self, has_time: HasTime) -> None:
        """Layouts by the least bound on their sums, until none is left below the best, or the time is over."""
        self.run.make_ready(*FIRST)
        searcher = Searcher(self.run.instance, params=self.run.params)
        queue, seen = list[tuple[int, int, Layout]](), set[object]()
        for layout in self._first_layouts(searcher):
            self._admit(searcher, layout, queue=queue, seen=seen)
        while queue and has_time():
            bound_ns, _, chosen = heappop(queue)
            if bound_ns >= self._limit_ns or len(seen) > _MOST_LAYOUTS:
                return
            self._improve(searcher, chosen)
            for other in neighbours(chosen, holders=range(self.run.instance.num_devices)):
                if not has_time():
                    return
                self._admit(searcher, other, queue=queue, seen=seen)

    @property
    def _limit_ns(self) -> int:
        """The least sum so far."""
        return self.best.total_ns if self.best is not None else 2**62

    def _first_layouts(self, searcher: Searcher) -> Iterator[Layout]:
        problem, start = self.run.problem, self.run.start
        if start is not None:
            thin = tuple(replace(stage, replicas=stage.replicas[:1], shard="none") for stage in start.stages)
            for stages in (start.stages, thin):
                yield layout_of(rate(problem, searcher, stages=stages))
        yield from map(layout_of, self.starts)

    def _admit(
        self, searcher: Searcher, layout: Layout, *, queue: list[tuple[int, int, Layout]], seen: set[object]
    ) -> None:
        """Queue a layout that is allowed, fits, and may be cheaper than the best: least bound first, then earliest."""
        key, (stage_of, groups, modes) = key_of(layout), layout
        if key in seen:
            return
        seen.add(key)
        if not searcher.is_allowed(searcher.make_candidate(stage_of, groups, modes=modes)):
            return
        lower_bound = searcher.lower_bound(stage_of, groups, modes=modes)
        if lower_bound is None:
            return
        bound_ns = self.transition.total_ns(iteration_ns=lower_bound, moving_ns=self._moving_of(layout))
        if bound_ns < self._limit_ns:
            heappush(queue, (bound_ns, len(seen), layout))

    def _improve(self, searcher: Searcher, layout: Layout) -> None:
        """The best orders of a layout: those of a policy, polished, and where there are few actions the best of all."""
        stage_of, groups, modes = layout
        best = searcher.rate(stage_of, groups, modes=modes)
        if best.is_feasible and searcher.is_open(best):
            plays, seed = _POLISH_PLAYS, self.run.limits.seed
            polished = searcher.polish(best, iterations=plays, temperature=0.0, seed=seed)
            best = min(best, polished, key=lambda candidate: candidate.sort_key)
        if best.is_feasible:
            self._offer(searcher, best, source=NAME)
        num_actions = 3 * self.run.instance.num_microbatches * sum(map(len, groups))
        if num_actions <= _MOST_SEQUENCED_ACTIONS and searcher.is_open(best):
            left_ns = self._limit_ns - self._moving_of(layout)
            below = -(-left_ns // self.transition.steps_left)
            _, found = searcher.sequence(best, threshold=below, most_nodes=_SEQUENCE_NODES)
            if found is not None:
                self._offer(searcher, found, source=NAME)

    def finish(self, conclude: Callable[[int], Conclusion]) -> tuple[Plan, ...]:
        """The plan with the least sum, and the one for which least moves if that is another; each with its evidence.

        `conclude`: what is shown of all plans, beside one with that objective. Without a plan there is nothing.
        """
        found = [each for each in (self.best, self.leanest) if each is not None]
        found = found[:1] if found and found[0].plan == found[-1].plan else found
        return tuple(self._finished(each, conclude(self._iteration_of(each.verdict))) for each in found)

    def _finished(self, found: _Found, conclusion: Conclusion) -> Plan:
        if found.plan == self.run.plan:
            return finish(self.run, conclusion)
        return finished_plan(self.run, found.plan, verdict=found.verdict, source=found.source, conclusion=conclusion)


def _lean(found: _Found) -> tuple[int, int]:
    return found.moving_ns, found.total_ns
