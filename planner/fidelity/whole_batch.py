"""What the whole batch at once says, beside microbatches: layers in a row, the reduction of gradients, what is held.

Layers cost less in a row than one by one, and the more so the fewer samples they take: what is saved is what is done
once per call. So the ratio of small microbatches does not hold for large ones. The same goes for bytes: what one layer
saves as its output and the next as its input is one tensor, but counts with both.
"""

import statistics
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner.actions import parse_action
from planner.fidelity.calibration import Ratios, scaled_layer, with_held
from planner.fidelity.expected import expected, low
from planner.plan import Plan
from planner.problem import Problem
from planner.simulation.simulate import simulate
from profiles.microbatch_sizes import profile_at
from profiles.model_profile import Layer, LayerCost

_WHOLE, _MOST_HELD = 1000, 1200
"""Permille of the layers' stashes that a run may be found to hold; beyond the latter it is not the stash that differs.

Never less than all: what one plan leaves out another holds, and a device that is told too little runs out of memory.
"""

_ROOM = 0.5
"""The whole batch is not run where more than this part of a device's memory would be held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeBatchRun:
    """Replicas of the whole model that each take their part of the batch as one microbatch."""

    problem: Problem
    """The whole batch is its one microbatch."""
    plan: Plan
    """One stage, a replica per device."""
    entries: Sequence[Mapping[str, Any]]
    """Per iteration and process its actions, by the clock that layers were timed by."""
    peak_bytes: Mapping[str, int]
    """What each device held at most; empty: unknown."""


def batch_at_once(problem: Problem) -> Problem:
    """The problem with all its microbatches as one; costs beyond the sizes that were measured grow in proportion."""
    size = problem.profile.microbatch_size
    assert size is not None
    whole = replace(profile_at(problem.profile, size * problem.num_microbatches), scaling="linear")
    return Problem(profile=whole, cluster=problem.cluster, num_microbatches=1)


def plan_whole_batch(problem: Problem, replicated: Plan | None, *, memory_bytes: int | None) -> Plan | None:
    """The replicas of the plan, each with its part of the whole batch at once.

    None where there are none, where the batch is one microbatch anyway, and where it might not fit.
    """
    if replicated is None or problem.num_microbatches == 1:
        return None
    whole = batch_at_once(problem)
    schedule = {
        device: tuple(action for action in order if action.microbatch == 0)
        for device, order in replicated.schedule.items()
    }
    plan = replace(replicated, problem=whole.reference(), schedule=schedule)
    held = max(simulate(whole, plan).peak_bytes.values())
    return None if memory_bytes is not None and held > _ROOM * memory_bytes else plan


def with_whole_batch(
    problem: Problem,
    run: WholeBatchRun,
    *,
    device_type: str,
    planned: Mapping[str, int],
    beyond: Mapping[str, int],
    parts: int,
) -> tuple[Layer, ...]:
    """The layers of a problem, right for one of `parts` of its small microbatches, as they take in the run as well.

    `planned`: nanoseconds of each kind of the run's actions by the layers alone; `beyond`: those that each kind takes
    besides its layers. What a stage takes less (or more) lies on a
    line over the samples: the small part has none of it, the run's all.
    """
    own, count = problem.profile.microbatch_size, len(run.plan.stages[0].replicas)
    assert own is not None
    small, large = own / parts, own * problem.num_microbatches / count
    found = {
        kind: (expected(samples) - beyond.get(kind, 0)) / planned[kind]
        for kind, samples in lengths_by_kind(run.entries).items()
        if planned.get(kind)
    }
    layers = problem.profile.layers
    if large <= small or not found or min(found.values()) <= 0:
        return layers

    def ratios(cost: LayerCost) -> Ratios:
        samples = cost.microbatch_size or own
        share = large / samples * (samples - small) / (large - small) if small < samples < large else 1.0
        weight = 0.0 if samples <= small else share
        return {kind: (round(1e6 * (1 + weight * (ratio - 1))), 10**6) for kind, ratio in found.items()}

    return tuple(_scaled_by_size(layer, device_type, ratios=ratios) for layer in layers)


def _scaled_by_size(layer: Layer, device_type: str, *, ratios: Callable[[LayerCost], Ratios]) -> Layer:
    costs = (
        scaled_layer(replace(layer, costs=(cost,)), device_type, ratios=ratios(cost)).costs[0] for cost in layer.costs
    )
    return replace(layer, costs=tuple(costs))


def fully_sharded(plan: Plan) -> Plan:
    """The replicas of a plan of one stage, each with its part of all state."""
    return replace(plan, stages=(replace(plan.stages[0], shard="full"),))


def sharding_ns(problem: Problem, plan: Plan, *, entries: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """What F and the backward of a fully sharded stage take beyond layers and messages, by the host's clock.

    `entries`: iterations of all processes, whose actions wait for messages. The lower quartile: others only ever add.
    """
    taken = lengths_by_kind(entries)
    row = next(iter(simulate(problem, plan).actions.values()))
    beyond: dict[str, int] = {
        each.action.kind: round(low(taken[each.action.kind])) - (each.end_ns - each.start_ns) for each in row
    }
    forward, *backward = (max(0, beyond.get(kind, 0)) for kind in "FIB")
    return forward, max(backward)


def lengths_by_kind(entries: Iterable[Mapping[str, Any]]) -> dict[str, list[int]]:
    """How long the actions of iterations took."""
    taken = defaultdict[str, list[int]](list)
    for name, start, end in (action for entry in entries for action in entry["actions"]):
        taken[parse_action(name).kind].append(end - start)
    return taken


def reduction_ns(processes: Sequence[Sequence[Mapping[str, Any]]]) -> int | None:
    """From the last action of all until gradients are put together everywhere, the median; None: nothing was run.

    `processes`: the iterations of each, by the host's clock.
    """
    ends = [
        max(int(entry["times"]["reduced_ns"]) for entry in entries) - max(entry["actions"][-1][2] for entry in entries)
        for entries in zip(*processes, strict=True)
    ]
    return max(0, round(statistics.median(ends))) if ends else None


def waiting_ns(processes: Sequence[Sequence[Mapping[str, Any]]]) -> float:
    """How much longer the slowest process computes in an iteration than all do on average; 0: nothing was run.

    `processes`: the iterations of each, by the clock that layers were timed by.
    """
    lengths = [[sum(end - start for _, start, end in entry["actions"]) for entry in entries]
               for entries in zip(*processes, strict=True)]  # fmt: skip
    return expected([round(max(each) - statistics.fmean(each)) for each in lengths])


def held_permille(small: WholeBatchRun, large: WholeBatchRun) -> int:
    """How much of what the layers' stashes add up to is held, from how much more a larger microbatch takes on average.

    Workspaces go with them: both grow with the samples, and the run tells their sum.
    """
    if not small.peak_bytes or not large.peak_bytes:
        return _WHOLE
    grown = statistics.fmean(large.peak_bytes[device] - small.peak_bytes[device] for device in large.peak_bytes)

    def grows(permille: int) -> int:
        most = []
        for run in (small, large):
            layers = tuple(with_held(layer, permille) for layer in run.problem.profile.layers)
            problem = replace(run.problem, profile=replace(run.problem.profile, layers=layers))
            most.append(simulate(problem, run.plan).peak_bytes)
        return max(most[1][device] - most[0][device] for device in most[0])

    return _WHOLE + bisect_left(range(_WHOLE, _MOST_HELD), grown, key=grows)  # the least at which it grows by as much
