"""A production step whose microbatches are dealt anew: the same actions with their own durations, under 1F1B."""

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from planner.dealing import Dealing, Durations, balance_durations, pipeline_actions
from profiles.importers.straggler import Key, ReplicaKey, RunAction, RunStep


def rebalance(step: RunStep) -> tuple[RunStep, Dealing]:
    """The step as it would be run, without times of its own, and the dealing; transfers take the step's median.

    Raises ValueError if pipelines have other stages than the first.
    """
    stages = sorted({stage for _, stage in step.actions})
    pipelines = sorted({pipeline for pipeline, _ in step.actions})
    if len(step.actions) != len(stages) * len(pipelines):
        raise ValueError(f"step {step.number}: pipelines have different stages; give a trace of all ranks")
    microbatches = [each[number] for each in durations_of(step).values() for number in sorted(each)]
    transfer_ns = transfer_of(step)
    dealing = balance_durations(microbatches, len(pipelines), transfer_ns=transfer_ns)
    return as_step(step, dealing, microbatches=microbatches, transfer_ns=transfer_ns), dealing


def durations_of(step: RunStep) -> dict[int, dict[int, Durations]]:
    """By pipeline and microbatch, in the order in which its first stage runs them; halves of a backward are added."""
    devices = step.of_stages()
    stages = sorted({stage for _, stage in devices})
    times: dict[tuple[int, int, int], list[int]] = defaultdict(lambda: [0, 0])
    for (pipeline, stage, kind, number), action in step.keyed():
        times[pipeline, stage, number][kind != "F"] += action.duration_ns
    return {
        pipeline: {
            one.microbatch: Durations(
                forward_ns=tuple(times[pipeline, stage, one.microbatch][0] for stage in stages),
                backward_ns=tuple(times[pipeline, stage, one.microbatch][1] for stage in stages),
            )
            for one in step.actions[devices[pipeline, stages[0]]]
            if one.kind == "F" and one.stage == stages[0]
        }
        for pipeline in sorted({pipeline for pipeline, _ in step.actions})
    }


def transfer_of(step: RunStep) -> int:
    """What a transfer of the step takes: the median."""
    return round(statistics.median(step.transfers_ns.values())) if step.transfers_ns else 0


def as_step(step: RunStep, dealing: Dealing, *, microbatches: Sequence[Durations], transfer_ns: int) -> RunStep:
    """The step in which every pipeline runs what it was dealt, in 1F1B."""
    stages = sorted({stage for _, stage in step.actions})
    rows: dict[tuple[int, int], list[RunAction]] = {}
    transfers: dict[Key, int] = {}
    for pipeline, assignment in enumerate(dealing.pipelines):
        for stage, place, is_forward in pipeline_actions(len(stages), len(assignment)):
            each = microbatches[assignment[place]]
            times = each.forward_ns if is_forward else each.backward_ns
            kind: Literal["F", "B"] = "F" if is_forward else "B"
            rows.setdefault((pipeline, stages[stage]), []).append(
                RunAction(
                    kind=kind, stage=stages[stage], microbatch=assignment[place], start_ns=0, duration_ns=times[stage]
                )
            )
            transfers[pipeline, stages[stage], kind, place] = transfer_ns
    return replace(step, actions={replica: tuple(row) for replica, row in rows.items()}, transfers_ns=transfers)


def order_1f1b(step: RunStep) -> RunStep:
    """A step of one pipeline and plain stages in 1F1B, its microbatches in the best order found; transfers as above."""
    replicas, actions, transfer_ns = sorted(step.actions), dict(step.keyed()), transfer_of(step)
    (times,) = durations_of(step).values()
    numbers = sorted(times)
    (order,) = balance_durations([times[number] for number in numbers], 1, transfer_ns=transfer_ns).pipelines
    rows: dict[ReplicaKey, list[RunAction]] = {replica: [] for replica in replicas}
    transfers: dict[Key, int] = {}
    for place, count, is_forward in pipeline_actions(len(replicas), len(order)):
        kind: Literal["F", "B"] = "F" if is_forward else "B"
        rows[replicas[place]].append(actions[*replicas[place], kind, numbers[order[count]]])
        transfers[*replicas[place], kind, count] = transfer_ns
    return replace(step, actions={replica: tuple(row) for replica, row in rows.items()}, transfers_ns=transfers)
