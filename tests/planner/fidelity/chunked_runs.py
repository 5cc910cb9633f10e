"""Steps of interleaved 1F1B as they would have run: several stages per device, backwards whole or in halves."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

from planner.fidelity.run_replay import replay_ends_ns
from profiles.importers.straggler import ActionKind, Key, RunAction, RunStep

Times = Callable[[Key], int]


def interleaved(
    times: Times,
    *,
    devices: int = 2,
    chunks: int = 2,
    microbatches: int = 4,
    pipelines: int = 1,
    is_split: bool = False,
    lag_ns: int = 0,
) -> RunStep:
    """Microbatches in rounds of `devices`, a chunk after the other; started as soon as inputs are there."""
    actions = {}
    transfers: dict[Key, int] = {}
    for pipeline in range(pipelines):
        for device in range(devices):
            row = []
            order = one_device(device, devices=devices, chunks=chunks, microbatches=microbatches, is_split=is_split)
            for stage, kind, number in order:
                time = times((pipeline, stage, kind, number))
                row.append(RunAction(kind=kind, stage=stage, microbatch=number, start_ns=0, duration_ns=time))
            actions[pipeline, device] = tuple(row)
        for stage in range(devices * chunks):
            for number in range(microbatches):
                transfers[pipeline, stage, "F", number] = transfers[pipeline, stage, "B", number] = lag_ns
    return started(RunStep(number=0, actions=actions, transfers_ns=transfers))


def started(step: RunStep) -> RunStep:
    """With the starts that its replay has."""
    ends = replay_ends_ns(step)
    return replace(
        step,
        actions={
            seat: tuple(
                replace(one, start_ns=ends[seat[0], one.stage, one.kind, one.microbatch] - one.duration_ns)
                for one in row
            )
            for seat, row in step.actions.items()
        },
    )


def one_device(
    device: int, *, devices: int, chunks: int, microbatches: int, is_split: bool
) -> Iterator[tuple[int, ActionKind, int]]:
    """Stage, kind and microbatch."""
    turns = [
        (chunk, number)
        for first in range(0, microbatches, devices)
        for chunk in range(chunks)
        for number in range(first, min(first + devices, microbatches))
    ]
    kinds: tuple[ActionKind, ...] = ("I", "W") if is_split else ("B",)
    forwards = [(chunk * devices + device, number) for chunk, number in turns]
    backwards = [((chunks - 1 - chunk) * devices + device, number) for chunk, number in turns]
    ahead = min((devices - device - 1) * 2 + (chunks - 1) * devices, len(turns))
    for place in range(len(turns) + ahead):
        if place < len(turns):
            yield forwards[place][0], "F", forwards[place][1]
        if place >= ahead:
            for kind in kinds:
                yield backwards[place - ahead][0], kind, backwards[place - ahead][1]


def uneven(rng: Random, *, stages: int, microbatches: int, pipelines: int, is_split: bool = False) -> Times:
    """Microbatches of one to four times the length, stages of other weights, devices that are all alike."""
    weights = [rng.randint(50, 200) for _ in range(stages)]
    lengths = {(p, m): rng.randint(10, 40) for p in range(pipelines) for m in range(microbatches)}
    parts = {"F": 1, "B": 2, "I": 1, "W": 1}
    return lambda key: weights[key[1]] * lengths[key[0], key[3]] * parts[key[2]] * (1 + is_split * (key[2] == "I"))


def slow_device(times: Times, *, pipeline: int, device: int, devices: int, factor: int) -> Times:
    """One device takes so many times as long."""
    return lambda key: times(key) * (factor if key[0] == pipeline and key[1] % devices == device else 1)


def pipelines_that_differ() -> RunStep:
    """Two chunks on two devices, and as many stages on four."""
    step, plain = interleaved(lambda _: 1000), interleaved(lambda _: 1000, devices=4, chunks=1)
    return replace(step, actions=step.actions | {(1, place): row for (_, place), row in plain.actions.items()})
