"""What is known of a configuration once it is played and planned anew."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from api.auditing.audited_problem import AuditedProblem, audited_plan
from api.auditing.better_degrees import BetterDegrees, find_better_degrees
from planner.errors import InfeasibleProblemError, NoPlanFoundError
from planner.evidence.certificate import check_certificate
from planner.plan import Plan
from planner.planning import Limits, make_plan
from planner.simulation.explain import Explanation, explain
from planner.simulation.simulate import Timeline, simulate
from profiles.configurations.run_configuration import Recomputation


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedRun:
    """A configuration as it would run."""

    plan: Plan
    """Its stages and orders."""
    recompute: Recomputation | None
    timeline: Timeline
    """Starts and ends of all actions and transfers in ns, and peaks in bytes."""
    over_bytes: Mapping[str, int]
    """Devices that are asked for more than they have, by how much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The verdict on a configuration, how it plays, and the best plan found beside it."""

    audited: AuditedProblem
    refusals: tuple[str, ...]
    """Why the program does not start; empty: it does."""
    played: PlayedRun | None
    """The configuration; None: it does not start."""
    explanation: Explanation | None
    """Idle time by cause, and the critical chain; None where nothing was simulated."""
    fitting: PlayedRun | None
    """Where it does not fit: the same stages with the least recomputation that does."""
    better: Plan | None
    """The best plan found for the same degrees and batch; None: none was found."""
    lower_bound_ns: int | None
    """No plan of the program's is shorter, at these degrees; None: nothing was proved."""
    is_checked: bool
    """Whether the certificate of the bound was checked."""
    is_infeasible: bool
    """Whether it was proved that nothing fits at these degrees."""
    degrees: BetterDegrees | None = None
    """The best of other degrees; None: they were not asked for, or no plan was found."""

    @property
    def verdict(self) -> str:
        """`runs`, `does not fit` or `does not start`."""
        if self.played is None:
            return "does not start"
        return "does not fit" if self.played.over_bytes else "runs"

    @property
    def best_ns(self) -> int | None:
        """The shortest time known: the better plan's, or the configuration's own."""
        known = [self.better.evidence.makespan_ns] if self.better is not None and self.better.evidence else []
        if self.verdict == "runs" and self.played is not None:
            known.append(self.played.timeline.makespan_ns)
        return min(known, default=None)

    @property
    def at_least(self) -> float | None:
        """By which part of the best time known the configuration is slower; None: it does not run."""
        if self.verdict != "runs" or self.played is None or self.best_ns is None:
            return None
        return self.played.timeline.makespan_ns / self.best_ns - 1

    @property
    def at_most(self) -> float | None:
        """By which part of the lower bound it is slower."""
        if self.verdict != "runs" or self.played is None or not self.lower_bound_ns:
            return None
        return self.played.timeline.makespan_ns / self.lower_bound_ns - 1


def audit(audited: AuditedProblem, *, time_limit_s: float, others: bool = False) -> Audit:
    """Play the configuration, and look for a better plan as long as the limit says.

    With `others`, and as long again, at other degrees on as many GPUs.
    """
    degrees = find_better_degrees(audited, time_limit_s=time_limit_s) if others else None
    refusals = tuple(audited.run.notes.refusals)
    played = None if refusals else play_run(audited, recompute=audited.recompute)
    better, is_infeasible = _search(audited, played, time_limit_s=time_limit_s)
    evidence = None if better is None else better.evidence
    is_checked = evidence is not None and (
        check_certificate(audited.problem, evidence.certificate) == evidence.lower_bound_ns
    )
    return Audit(
        audited=audited,
        refusals=refusals,
        played=played,
        explanation=None if played is None else explain(audited.problem, played.plan, timeline=played.timeline),
        fitting=_fitting(audited) if played is not None and played.over_bytes else None,
        better=better,
        lower_bound_ns=None if evidence is None else evidence.lower_bound_ns,
        is_checked=is_checked,
        is_infeasible=is_infeasible,
        degrees=degrees,
    )


def play_run(audited: AuditedProblem, *, recompute: Recomputation | None) -> PlayedRun:
    """The configuration's stages with some recomputation, whether they fit or not."""
    plan = audited_plan(audited, recompute=recompute)
    timeline = simulate(audited.problem, plan)
    limits = audited.problem.cluster.by_name
    over = {name: peak - limits[name].usable_bytes for name, peak in timeline.peak_bytes.items()}
    return PlayedRun(
        plan=plan,
        recompute=recompute,
        timeline=timeline,
        over_bytes={name: bytes_ for name, bytes_ in over.items() if bytes_ > 0},
    )


def _search(audited: AuditedProblem, played: PlayedRun | None, *, time_limit_s: float) -> tuple[Plan | None, bool]:
    how: dict[str, Any] = {"limits": Limits(time_limit_s=time_limit_s), "target": audited.target}
    if played is not None and not played.over_bytes:
        how["start"] = replace(played.plan, evidence=None)
    try:
        return make_plan(audited.problem, **how), False
    except InfeasibleProblemError:
        return None, True
    except NoPlanFoundError:
        return None, False


def _fitting(audited: AuditedProblem) -> PlayedRun | None:
    """The fewest blocks per stage whose recomputation makes it fit; all, where the program knows all or none."""
    most = max(stage.count("t") + stage.count("m") for stage in audited.run.stages)
    if not audited.problem.options.recompute:
        return None
    counts = range(1, most if audited.problem.options.recompute_layers else 1)
    for recompute in (*(Recomputation(blocks=count) for count in counts), Recomputation()):
        played = play_run(audited, recompute=recompute)
        if not played.over_bytes:
            return played
    return None
