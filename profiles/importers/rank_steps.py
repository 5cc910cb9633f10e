"""Iterations of a job, action by action and on one clock, from whatever traces its ranks have left."""

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from profiles.importers.rank_clocks import Entry
from profiles.importers.rank_traces import OWN, RankTraces, read_ranks
from profiles.importers.straggler import Key, RunAction, RunStep, Seat, maker_of, read_straggler_trace
from profiles.importers.trace_files import LOGS, PARQUET, find_traces

WAITED = 0.25
"""An action waited for its input if its device idled for more than this part of the time since that was made."""


def read_run_steps(paths: Sequence[Path]) -> tuple[RunStep, ...]:
    """Of one parquet file, or of one document per rank; in order, without the first iteration of the latter.

    Raises ValueError with one message if there is nothing in them, something broken, or not what pipelines of one stage
    per device with whole backwards leave.
    """
    files = find_traces(paths)
    if files[0].suffix == PARQUET:
        return read_straggler_trace(files[0])
    if files[0].suffix in LOGS:
        raise ValueError(
            f"{files[0]}: a log tells neither order nor transfers; give a .parquet file with all operations, or the "
            "traces of all ranks"
        )
    job = read_ranks(files)
    seats, told = find_seats(job), _Transfers()
    for one in job.transfers():
        told.add(seats[one.source], seats[one.target], place=(one.iteration, one.number), duration_ns=one.duration_ns)
    return tuple(
        _make_step(job, number, seats=seats, told=told.of(number))
        for number in range(min(1, job.num_iterations - 1), job.num_iterations)
    )


class _Transfers:
    """What messages say of transfers between neighbours, by iteration."""

    def __init__(self) -> None:
        self._found: dict[int, dict[Key, int]] = defaultdict(dict)

    def add(self, source: Seat, target: Seat, *, place: tuple[int, int], duration_ns: int) -> None:
        if source[0] == target[0] and abs(target[1] - source[1]) == 1 and min(place) >= 0:
            direction: Literal["F", "B"] = "F" if target[1] > source[1] else "B"
            self._found[place[0]][*source, direction, place[1]] = duration_ns

    def of(self, number: int) -> Mapping[Key, int]:
        return self._found[number]


def find_seats(job: RankTraces) -> dict[str, Seat]:
    """Pipeline and stage of every device, stages counted from 0.

    Raises ValueError where a device has several stages, or where what belongs together is not told.
    """
    source = job.files[0]
    for device, held in job.stages.items():
        if len(held) != 1:
            raise ValueError(
                f"{source}: {device!r} ran {len(held)} stages; iterations are replayed of one stage per device. "
                "pipeplan import trace reads the durations"
            )
    names = sorted({min(held) for held in job.stages.values()})
    stages = {device: names.index(min(held)) for device, held in job.stages.items()}
    pipelines = _find_pipelines(job, stages)
    wanted = list(range(len(names)))
    if any(sorted(stages[device] for device in devices) != wanted for devices in pipelines):
        raise ValueError(
            f"{source}: which of {len(stages)} ranks make a pipeline of {len(names)} stages is not told; give the "
            "traces of all ranks, with messages that name their peers"
        )
    return {device: (number, stages[device]) for number, devices in enumerate(pipelines) for device in devices}


def _find_pipelines(job: RankTraces, stages: Mapping[str, int]) -> list[list[str]]:
    """By who sends to whom; our executor's ranks of a pipeline follow one another."""
    devices, count = list(stages), len(set(stages.values()))
    if len(devices) == count:
        return [devices]
    if job.form == OWN:
        devices.sort(key=lambda device: -1 if (number := job.ranks[device].number) is None else number)
        return [devices[place : place + count] for place in range(0, len(devices), count)]
    pipelines = [{device} for device in devices]
    for a, b in _neighbours(job):
        joined = [each for each in pipelines if each & {a, b}]
        pipelines = [each for each in pipelines if not each & {a, b}] + [set[str]().union(*joined)]
    order = {device: place for place, device in enumerate(devices)}
    return sorted((sorted(each, key=order.__getitem__) for each in pipelines), key=lambda each: order[each[0]])


def _neighbours(job: RankTraces) -> Iterator[tuple[str, str]]:
    if job.pairs is not None:
        yield from sorted(job.pairs)
        return
    names = {rank.number: device for device, rank in job.ranks.items() if rank.number is not None}
    for device, rank in job.ranks.items():
        for peer in {each.peer for each in rank.messages} & names.keys():
            yield device, names[peer]


def _make_step(job: RankTraces, number: int, *, seats: Mapping[str, Seat], told: Mapping[Key, int]) -> RunStep:
    rows = job.iteration(number)
    begin = min(entry[0] for row in rows.values() for entry in row)
    source = f"{job.files[0]}: iteration {number}"
    actions = {
        seat: tuple(
            _action(entry, begin=begin, gap_ns=gap, source=source)
            for entry, gap in sorted(zip(rows[device], job.gaps(number, device), strict=True))
        )
        for device, seat in sorted(seats.items(), key=lambda item: item[1])
    }
    ran = {seat: sorted((action.kind, action.microbatch) for action in row) for seat, row in actions.items()}
    for seat, those in ran.items():
        if those != ran[seat[0], 0]:
            raise ValueError(
                f"{source}, pipeline {seat[0]}: stage {seat[1]} ran other microbatches than the first; the trace is "
                "cut off"
            )
    lags = _seen_lags(actions, has_gaps=any(rank.taken_up for rank in job.ranks.values()))
    return RunStep(number=number, actions=actions, transfers_ns={**lags, **told})


def _action(entry: Entry, *, begin: int, gap_ns: int, source: str) -> RunAction:
    start, end, kind, _, microbatch = entry
    if kind not in ("F", "B"):
        raise ValueError(
            f"{source}: backwards are run in halves (I and W); iterations are replayed of whole backwards. "
            "pipeplan import trace reads the durations"
        )
    whole: Literal["F", "B"] = "F" if kind == "F" else "B"
    return RunAction(kind=whole, microbatch=microbatch, start_ns=start - begin, duration_ns=end - start, gap_ns=gap_ns)


def _seen_lags(actions: dict[Seat, tuple[RunAction, ...]], *, has_gaps: bool) -> dict[Key, int]:
    """From when an input was made until it was used, where its receiver waited for it; elsewhere what is usual there.

    Never more than was seen: nothing starts before its input is there. `has_gaps`: whether it is told when actions were
    taken up; who found everything there and starts a moment later, a pipeline's begin included, did not wait: the
    moment joins the gap.
    """
    last = dict(sorted(actions))
    ends = {
        (*seat, action.kind, action.microbatch): action.start_ns + action.duration_ns
        for seat, row in actions.items()
        for action in row
    }
    lags: dict[Key, int] = {}
    waited: dict[tuple[int, int, str], list[int]] = defaultdict(list)
    counts: dict[tuple[int, int, str], int] = defaultdict(int)
    for seat, row in actions.items():
        told, before = list(row), 0
        for place, action in enumerate(row):
            idle = action.start_ns - before - action.gap_ns
            before = action.start_ns + action.duration_ns
            maker = maker_of((*seat, action.kind, action.microbatch), last=last[seat[0]])
            if maker is not None and maker[1] != seat[1]:
                way = seat[0], maker[1], action.kind
                lag = lags[*way, counts[way]] = max(0, action.start_ns - ends[maker])
                counts[way] += 1
                if place == 0 or idle > WAITED * lag:
                    waited[way].append(lag)
                    continue
            if has_gaps and idle > 0:
                told[place] = replace(action, gap_ns=action.gap_ns + idle)
        actions[seat] = tuple(told)
    usual = {way: round(statistics.median(found)) for way, found in waited.items()}
    return {key: min(lag, usual.get(key[:3], lag)) for key, lag in lags.items()}
