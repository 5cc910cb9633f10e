"""What a running plan is worth now: drift, the certified limit of re-planning, and a new plan where one is wanted."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from api.failures import InputError
from api.questions import play, reading
from planner.certificate import make_bound
from planner.costs import CostModel
from planner.plan import Plan
from planner.problem import Problem
from planner.replanning.drift import Drift, find_drifts, with_measured_costs
from planner.replanning.measurements import Measurements, parse_measurements


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What is known before anything is planned anew."""

    problem: Problem
    """The question with the measured costs."""
    drifts: tuple[Drift, ...]
    """Planned and measured, by stage and kind; empty if nothing was measured."""
    planned_ns: int
    """The plan's makespan by its own figures."""
    present_ns: int
    """Its makespan at the measured costs."""
    limit_ns: int
    """No plan can be below this at the measured costs."""

    @property
    def most_gain_ns(self) -> int:
        """What re-planning can gain at most, certified."""
        return self.present_ns - self.limit_ns

    def has_drifted(self, tolerance: float) -> bool:
        """Whether any measured cost differs by more than this part of the planned one."""
        return any(drift.is_beyond(tolerance) for drift in self.drifts)


def read_measurements(sources: Sequence[str]) -> Measurements:
    """Of files, and of all `rank*.json` in folders (or all other JSON there, if there are none)."""
    files: list[Path] = []
    for source in sources:
        path = Path(source)
        if path.is_dir():
            files += sorted(path.glob("rank*.json")) or sorted(path.glob("*.json"))
        else:
            files.append(path)
    if not files:
        raise InputError(f"{', '.join(sources)}: holds no timings; run with --trace FOLDER")
    with reading():
        return parse_measurements((str(file), file.read_bytes()) for file in files)


def look_at(problem: Problem, plan: Plan, *, measured: Measurements | None, source: str) -> Outlook:
    """Drift and limit of the present plan."""
    planned = play(problem, plan, source=source).makespan_ns
    drifts: tuple[Drift, ...] = ()
    if measured is not None:
        with reading():
            drifts = find_drifts(problem, plan, measured=measured)
            problem = with_measured_costs(problem, plan, measured=measured)
        plan = replace(plan, problem=problem.reference())
    return Outlook(
        problem=problem,
        drifts=drifts,
        planned_ns=planned,
        present_ns=play(problem, plan, source=source).makespan_ns,
        limit_ns=make_bound(problem, CostModel(problem)).value_ns,
    )


def summarise_outlook(outlook: Outlook, *, tolerance: float, best: Plan | None) -> dict[str, Any]:
    """For programs; `best` is what planning again found, if it was asked for."""
    evidence = None if best is None else best.evidence
    return {
        "best_ns": None if evidence is None else evidence.makespan_ns,
        "planned_ns": outlook.planned_ns,
        "present_ns": outlook.present_ns,
        "limit_ns": outlook.limit_ns,
        "most_gain_ns": outlook.most_gain_ns,
        "has_drifted": outlook.has_drifted(tolerance),
        "drifts": [
            {
                "stage": drift.stage,
                "kind": drift.kind,
                "planned_ns": drift.planned_ns,
                "measured_ns": drift.measured_ns,
                "is_beyond": drift.is_beyond(tolerance),
            }
            for drift in outlook.drifts
        ],
    }


def describe_outlook(outlook: Outlook, *, tolerance: float) -> list[str]:
    """For people, a line each."""
    lines = [
        f"stage {drift.stage} {drift.kind}: planned {drift.planned_ns / 1e6:,.3f} ms, measured "
        f"{drift.measured_ns / 1e6:,.3f} ms{' (drifted)' if drift.is_beyond(tolerance) else ''}"
        for drift in outlook.drifts
    ]
    if outlook.drifts:
        found = "drifted" if outlook.has_drifted(tolerance) else "not drifted"
        lines.append(
            f"costs have {found} by more than {tolerance:.0%}; the present plan, "
            f"planned at {outlook.planned_ns / 1e6:,.3f} ms, takes {outlook.present_ns / 1e6:,.3f} ms at measured costs"
        )
        lines.append(
            f"no plan can be below {outlook.limit_ns / 1e6:,.3f} ms there: re-planning gains at most "
            f"{outlook.most_gain_ns / 1e6:,.3f} ms ({outlook.most_gain_ns / max(1, outlook.present_ns):.1%})"
        )
    return lines
