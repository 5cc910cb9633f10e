"""Two plans side by side, as a document: what is at another place, in another order, larger or slower."""

from dataclasses import asdict, dataclass
from typing import Any

from planner.plan import Plan, ProblemReference, Stage
from planner.problem import Problem
from planner.simulation.simulate import Timeline
from profiles.model_profile import ModelProfile

_DRAWN_BY = {
    "profile_sha256": "with other layers or times",
    "cluster_sha256": "for another machine",
    "num_microbatches": "with another number of microbatches",
    "microbatch_size": "with microbatches of another size",
    "microbatches": "with microbatches of other sizes",
}
"""What a timeline is drawn from, in words."""


def why_not_on_one_scale(own: ProblemReference, other: ProblemReference) -> str | None:
    """Why a plan cannot be drawn by the times of a question: it was made for other ones."""
    if other.profile != own.profile:
        return f"B is a plan of {other.profile}, A of {own.profile}: plans of different models are not compared"
    differing = [
        device_orders for name, device_orders in _DRAWN_BY.items() if getattr(own, name) != getattr(other, name)
    ]
    if not differing:
        return None
    return f"B was made {differing[0]} and cannot be drawn on the scale of A"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedSide:
    """A plan on its own question, played."""

    problem: Problem
    plan: Plan
    timeline: Timeline


def compare_plans(before: PlayedSide, after: PlayedSide) -> dict[str, Any]:
    """Figures of both, and of stages and devices those that differ; times in ns, memory in bytes.

    Raises ValueError for plans of different models: of another name, or without a layer in common.
    """
    sides = (before, after)
    _require_one_model(before.problem.profile, after.problem.profile)
    evidence = [None if side.plan.evidence is None else side.plan.evidence for side in sides]
    profiles, clusters = (
        [getattr(side.problem, name) for side in sides] for name in ("profile_sha256", "cluster_sha256")
    )
    figures: dict[str, list[Any]] = {
        "makespan_ns": [side.timeline.makespan_ns for side in sides],
        "span_ns": [side.timeline.span_ns for side in sides],
        "bubble": [side.timeline.bubble for side in sides],
        "lower_bound_ns": [None if found is None else found.lower_bound_ns for found in evidence],
        "gap": [None if found is None else found.objective_gap for found in evidence],
        "num_microbatches": [side.problem.num_microbatches for side in sides],
        "num_stages": [len(side.plan.stages) for side in sides],
        "peak_bytes": [max(side.timeline.peak_bytes.values(), default=0) for side in sides],
    }
    return {
        "profile": {"before": profiles[0], "after": profiles[1], "is_same": profiles[0] == profiles[1]},
        "cluster": {"before": clusters[0], "after": clusters[1], "is_same": clusters[0] == clusters[1]},
        "figures": {name: _change(*values) for name, values in figures.items()},
        "layers": list(_moved_layers(before.plan, after.plan)),
        "stages": _stages(before.plan.stages, after.plan.stages),
        "devices": _devices(before, after),
    }


def _require_one_model(before: ModelProfile, after: ModelProfile) -> None:
    if before.name != after.name:
        reason = f"A is of {before.name}, B of {after.name}"
    elif set(before.by_name).isdisjoint(after.by_name):
        reason = f"both are of a {before.name}, but no layer is in both"
    else:
        return
    raise ValueError(f"body: the plans are of different models ({reason}); give two plans of one model")


def _change(before: Any, after: Any) -> dict[str, Any]:
    moved = None if before is None or after is None else after - before
    return {"before": before, "after": after, "moved": moved}


def _moved_layers(before: Plan, after: Plan) -> list[dict[str, Any]]:
    """Layers whose device groups are others; layers of one plan only have none on the other side."""
    homes = [
        {layer: [list(group) for group in stage.replicas] for stage in plan.stages for layer in stage.layers}
        for plan in (before, after)
    ]
    names = dict.fromkeys([*homes[0], *homes[1]])
    return [
        {"layer": name, "before": homes[0].get(name), "after": homes[1].get(name)}
        for name in names
        if homes[0].get(name) != homes[1].get(name)
    ]


def _stages(before: tuple[Stage, ...], after: tuple[Stage, ...]) -> list[dict[str, Any]]:
    """Stages that differ in anything, by their number."""
    found = []
    for number in range(max(len(before), len(after))):
        pair = [asdict(stages[number]) if number < len(stages) else None for stages in (before, after)]
        if pair[0] != pair[1]:
            found.append({"stage": number, "before": pair[0], "after": pair[1]})
    return found


def _devices(before: PlayedSide, after: PlayedSide) -> list[dict[str, Any]]:
    """Devices whose order or memory differs."""
    names = dict.fromkeys([*before.timeline.actions, *after.timeline.actions])
    rows = [_device(name, before, after=after) for name in names]
    return [row for row in rows if row["order"] is not None or row["peak_bytes"]["moved"] != 0]


def _device(name: str, before: PlayedSide, *, after: PlayedSide) -> dict[str, Any]:
    device_orders = [[str(action) for action in side.plan.schedule.get(name, ())] for side in (before, after)]
    peaks = [side.timeline.peak_bytes.get(name) for side in (before, after)]
    works = [_work_ns(side.timeline, name) for side in (before, after)]
    place = next(
        (at for at, (a, b) in enumerate(zip(*device_orders, strict=False)) if a != b), min(map(len, device_orders))
    )
    is_same = device_orders[0] == device_orders[1]
    order = (
        None
        if is_same
        else {"first_difference": place}
        | {
            side: device_order[place] if place < len(device_order) else None
            for side, device_order in zip(("before", "after"), device_orders, strict=True)
        }
    )
    return {"device": name, "peak_bytes": _change(*peaks), "work_ns": _change(*works), "order": order}


def _work_ns(timeline: Timeline, device: str) -> int | None:
    actions = timeline.actions.get(device)
    return None if actions is None else sum(timed.end_ns - timed.start_ns for timed in actions)
