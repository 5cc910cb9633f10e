"""Whole backwards in the place of I and W where these take longer, and running them apart gains nothing."""

from collections.abc import Collection, Iterator
from dataclasses import replace

from planner.actions import Action
from planner.errors import OutOfRangeError, PlanError
from planner.layout.costs import StageCost
from planner.plan import Plan
from planner.planning.search_state import SearchState
from planner.simulation.simulate import simulate
from planner.simulation.timeline import Timeline
from planner.verify import verify

_MOST_ACTIONS = 400_000
"""Actions that are played to look for them, in all."""


def fuse_backwards(run: SearchState) -> None:
    """Run B instead of I and W in the incumbent: first in whole stages, then for single microbatches, wherever the
    profile's B is the shorter and neither objective nor makespan grows.
    """
    if run.plan is None or run.timeline is None or run.fit is not None:
        return
    plan, timeline = run.plan, run.timeline
    tries = _MOST_ACTIONS // max(1, sum(map(len, plan.schedule.values())))
    for stage, microbatches in _candidates(run, plan):
        tries -= 1
        if tries < 0:
            break
        other = _fused(plan, stage, microbatches=microbatches)
        if other != plan and (played := _play(run, other, most=timeline)) is not None:
            plan, timeline = other, played
    verdict = verify(run.problem, plan) if plan is not run.plan else None
    if verdict is not None and verdict.passed and verdict.timeline is not None:
        run.plan, run.timeline, run.verdict = plan, verdict.timeline, verdict


def _candidates(run: SearchState, plan: Plan) -> Iterator[tuple[int, frozenset[int]]]:
    """Stages with all microbatches, then with each."""
    split: dict[int, set[int]] = {}
    for action in (action for order in plan.schedule.values() for action in order if action.kind == "W"):
        split.setdefault(action.stage, set()).add(action.microbatch)
    found = [number for number in sorted(split) if _is_shorter(run, plan, number=number)]
    yield from ((number, frozenset(split[number])) for number in found)
    yield from ((number, frozenset([microbatch])) for number in found for microbatch in sorted(split[number]))


def _is_shorter(run: SearchState, plan: Plan, *, number: int) -> bool:
    stage = plan.stages[number]
    costs = [run.costs.stage_cost(stage, replica) for replica in range(len(stage.replicas))]
    return not stage.is_split and all(map(_is_fusing_shorter, costs))


def _is_fusing_shorter(cost: StageCost) -> bool:
    """Whether B is shorter than I and W on the card, or for the host that asks for it, and longer for neither."""
    saved_ns = [cost.input_grad_ns + cost.weight_grad_ns - cost.backward_ns]
    if cost.clocks:
        _, first, second, whole = (each.host_ns for each in cost.clocks)
        saved_ns.append(first + second - whole)
    return min(saved_ns) >= 0 and max(saved_ns) > 0


def _fused(plan: Plan, stage: int, *, microbatches: Collection[int]) -> Plan:
    """The same orders with B where I was."""
    schedule = {}
    for device, order in plan.schedule.items():
        kept = []
        for action in order:
            if action.stage != stage or action.microbatch not in microbatches or action.kind not in "IW":
                kept.append(action)
            elif action.kind == "I":
                kept.append(Action("B", stage, action.microbatch))
        schedule[device] = tuple(kept)
    return replace(plan, schedule=schedule)


def _play(run: SearchState, plan: Plan, *, most: Timeline) -> Timeline | None:
    """None where it takes longer, or more memory than there is."""
    try:
        found = simulate(run.problem, plan, costs=run.costs)
    except (PlanError, OutOfRangeError):
        return None
    objective = run.problem.options.objective
    is_slower = found.objective_ns(objective) > most.objective_ns(objective) or found.makespan_ns > most.makespan_ns
    limits = {device.name: device.usable_bytes for device in run.problem.cluster.devices}
    is_larger = any(held > limits[name] for name, held in found.peak_bytes.items())
    return None if is_slower or is_larger else found
