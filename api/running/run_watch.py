"""What a running plan is worth now: what has drifted and whose fault it is, and the certified limit of re-planning."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from api.formatting import render_bytes
from api.inputs import play, reading
from planner.evidence.certificate import make_bound
from planner.fidelity.memory_parts import DeviceMemory, compare_memory
from planner.layout.costs import CostModel
from planner.plan import Plan
from planner.problem import Problem
from planner.replanning.diagnosis import Culprit, Diagnosis, Suspect, diagnose, find_limit_ns
from planner.replanning.observations import Observations, read_observations
from profiles.importers.trace_files import find_traces

if TYPE_CHECKING:
    from api.running.replanning import Replanned

NOTABLE = 0.01
"""What changes the iteration by at least this part is told, however small its factor."""

_UNEXPLAINED = 0.05
"""So much of an iteration may stay unexplained, and pass between iterations, without a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What is known before anything is planned anew."""

    problem: Problem
    """The question as measured, by the likeliest explanation; as stated if nothing was measured."""
    plan: Plan
    """The present plan."""
    diagnosis: Diagnosis | None
    """What was measured; None if nothing was."""
    planned_ns: int
    """The plan's objective by its own figures."""
    limit_ns: int
    """No plan can be below this as measured, whichever explanation is true."""
    memory: tuple[DeviceMemory, ...] = ()
    """Per device whose process said what it held."""

    @property
    def present_ns(self) -> int:
        """The plan's objective at measured costs."""
        return self.planned_ns if self.diagnosis is None else self.diagnosis.present_ns

    @property
    def most_gain_ns(self) -> int:
        """What re-planning can gain at most, certified; time that nothing explains might be the plan's fault."""
        measured = None if self.diagnosis is None else self.diagnosis.measured_ns
        return max(self.present_ns, measured or 0) - self.limit_ns

    def culprits(self, tolerance: float) -> tuple[Culprit, ...]:
        """Those that matter: by their factor, or by what they do to the iteration."""
        if self.diagnosis is None:
            return ()
        return tuple(
            culprit
            for culprit in self.diagnosis.culprits
            if _deviation(culprit.largest_factor) > tolerance
            or abs(culprit.effect_ns) >= NOTABLE * max(1, self.present_ns)
        )

    def has_drifted(self, tolerance: float) -> bool:
        """Whether a device, layer or link, or the iteration, differs by more than this part of what was planned."""
        if self.diagnosis is None:
            return False
        taken = self.diagnosis.measured_ns or self.present_ns
        if abs(taken - self.planned_ns) > tolerance * self.planned_ns:
            return True
        return any(_deviation(culprit.largest_factor) > tolerance for culprit in self.diagnosis.culprits)


def _deviation(factor: float) -> float:
    return abs(factor - 1)


def read_timings(sources: Sequence[str], plan: Plan) -> Observations:
    """Of files, and of the documents in folders, as `import trace` finds them there."""
    with reading():
        files = [file for source in sources for file in sorted(find_traces([Path(source)]), key=_by_number)]
        return read_observations(files, plan)


def _by_number(path: Path) -> tuple[str, int]:
    """`rank10.json` after `rank9.json`."""
    stem = path.name.partition(".")[0]
    digits = "".join(letter for letter in stem if letter.isdigit())
    return stem.rstrip("0123456789"), int(digits or 0)


def look_at(
    problem: Problem, plan: Plan, *, seen: Observations | None, source: str, timings: Sequence[str] = ()
) -> Outlook:
    """What has become of the present plan, and the limit of another one; `timings`: where `seen` was read."""
    timeline = play(problem, plan, source=source)
    planned = timeline.objective_ns(problem.options.objective)
    if seen is None:
        limit = make_bound(problem, CostModel(problem)).value_ns
        return Outlook(problem=problem, plan=plan, diagnosis=None, planned_ns=planned, limit_ns=limit)
    with reading():
        found = diagnose(problem, plan, seen=seen)
        limit = find_limit_ns(problem, plan, found=found)
        folders = [Path(source) for source in timings if Path(source).is_dir()]
        memory = [row for folder in folders for row in compare_memory(problem, plan, folder=folder, timeline=timeline)]
    return Outlook(
        problem=found.likeliest,
        plan=plan,
        diagnosis=found,
        planned_ns=planned,
        limit_ns=limit,
        memory=tuple(memory),
    )


def summarise_outlook(outlook: Outlook, *, tolerance: float, again: "Replanned | None") -> dict[str, Any]:
    """For programs; `again` is what planning again found, if it was asked for."""
    evidence, found = None if again is None else again.plan.evidence, outlook.diagnosis
    return {
        "going_over": None if again is None else again.summarise_cost(),
        "best_ns": None if evidence is None else evidence.makespan_ns,
        "present_at_its_costs_ns": None if again is None else again.present_ns,
        "planned_ns": outlook.planned_ns,
        "present_ns": outlook.present_ns,
        "measured_ns": None if found is None else found.measured_ns,
        "unexplained_ns": 0 if found is None else found.unexplained_ns,
        "unexplained_parts_ns": {} if found is None else dict(found.parts_ns),
        "between_iterations_ns": 0 if found is None else found.between_ns,
        "missing_devices": [] if found is None else list(found.missing_devices),
        "limit_ns": outlook.limit_ns,
        "most_gain_ns": outlook.most_gain_ns,
        "has_drifted": outlook.has_drifted(tolerance),
        "measured": [
            {"device": device, "stage": stage, "kind": kind, "ratio": ratio}
            for (device, stage), ratios in (found.scales.pairs.items() if found else ())
            for kind, ratio in ratios.items()
        ],
        "memory": [
            {
                "device": row.device,
                "predicted_bytes": row.predicted_peak_bytes,
                "measured_bytes": row.measured_peak_bytes,
            }
            for row in outlook.memory
        ],
        "culprits": [
            {
                "effect_ns": culprit.effect_ns,
                "num_likely": culprit.num_likely,
                "alternatives": [
                    [{"kind": each.kind, "name": each.name, "factor": each.factor} for each in alternative]
                    for alternative in culprit.alternatives
                ],
            }
            for culprit in outlook.culprits(tolerance)
        ],
    }


def describe_outlook(outlook: Outlook, *, tolerance: float) -> list[str]:
    """For people, a line each; a single one where nothing has drifted, none where nothing was measured."""
    found = outlook.diagnosis
    if found is None:
        return []
    lines = [_sentence(culprit, outlook.plan) for culprit in outlook.culprits(tolerance)]
    lines += _describe_memory(outlook)
    lines += _describe_time(found)
    taken = outlook.present_ns if found.measured_ns is None else found.measured_ns
    if found.missing_devices:
        lines.append(f"no trace of {', '.join(found.missing_devices)}: nothing is said of them, nor of iterations")
    if not lines:
        return [f"nothing has drifted: an iteration takes {_ms(taken)}, planned {_ms(outlook.planned_ns)}"]
    lines.append(
        f"the present plan, planned at {_ms(outlook.planned_ns)}, takes {_ms(outlook.present_ns)} at measured costs"
    )
    whichever = ", under any of these explanations" if found.is_ambiguous else ""
    lines.append(
        f"no plan can be below {_ms(outlook.limit_ns)} at these costs{whichever}: another plan gains at most "
        f"{_ms(outlook.most_gain_ns)} ({outlook.most_gain_ns / max(1, taken):.1%})"
    )
    return lines


def _describe_memory(outlook: Outlook) -> Iterator[str]:
    """Devices that hold more than they have been promised to have."""
    for row in outlook.memory:
        device = outlook.problem.cluster.by_name[row.device]
        limit = device.memory_bytes if row.source == "resident set" else device.usable_bytes
        if row.measured_peak_bytes > limit:
            yield (
                f"{row.device} holds {render_bytes(row.measured_peak_bytes)} at its peak ({row.source}), more than the "
                f"{render_bytes(limit)} it may; planned {render_bytes(row.predicted_peak_bytes)}"
            )


def _describe_time(found: Diagnosis) -> Iterator[str]:
    """Time that no action and no transfer explains."""
    if found.measured_ns is not None and abs(found.unexplained_ns) > _UNEXPLAINED * found.measured_ns:
        parts = sorted(found.parts_ns.items(), key=lambda part: -abs(part[1]))
        shown = ", ".join(f"{name} {_ms(time)}" for name, time in parts if abs(time) >= NOTABLE * found.measured_ns)
        yield (
            f"an iteration takes {_ms(found.measured_ns)}; the measured actions and links explain "
            f"{_ms(found.present_ns)}, the other {_ms(found.unexplained_ns)} lie outside of actions"
            + (f": {shown}" if shown else "")
        )
    if found.between_ns > _UNEXPLAINED * max(1, found.measured_ns or found.present_ns):
        yield f"{_ms(found.between_ns)} pass between two iterations (data, saving, logging): no plan changes that"


def _sentence(culprit: Culprit, plan: Plan) -> str:
    alternatives = [
        " and ".join(_name(suspect, plan) for suspect in alternative) for alternative in culprit.alternatives
    ]
    text = ", or ".join(alternatives[: culprit.num_likely])
    if culprit.num_likely > 1:
        text += " (the measurements do not show which)"
    if len(alternatives) > culprit.num_likely:
        text += f" (or, less likely, {', or '.join(alternatives[culprit.num_likely :])})"
    return f"{text}: {_ms(culprit.effect_ns)} of the iteration"


def _name(suspect: Suspect, plan: Plan) -> str:
    takes = f"takes {suspect.factor:.2f} times its planned time"
    if suspect.kind == "stage":
        layers = plan.stages[int(suspect.name)].layers
        named = layers[0] if len(layers) == 1 else f"{layers[0]} … {layers[-1]}"
        return f"stage {suspect.name} ({named}) {takes} wherever it runs"
    if suspect.kind == "everything":
        return f"everything takes {suspect.factor:.2f} times its planned time"
    return f"{suspect.kind} {suspect.name} {takes}"


def _ms(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e6:,.3f} ms"
