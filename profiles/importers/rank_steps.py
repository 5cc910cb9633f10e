"""Iterations of a job, action by action and on one clock, from whatever traces its ranks have left."""

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import cast

from profiles.importers.profiler_events import OWN
from profiles.importers.rank_clocks import Entry
from profiles.importers.rank_messages import Transfer
from profiles.importers.rank_traces import RankTraces, read_ranks
from profiles.importers.straggler import (
    ActionKind,
    Key,
    ReplicaKey,
    RunAction,
    RunStep,
    last_stages,
    needed_by,
    product_of,
    read_straggler_trace,
)
from profiles.importers.trace_files import LOGS, PARQUET, find_traces

WAITED = 0.25
"""An action waited for its input if its device idled for more than this part of the time since that was made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Which device holds which stage of which pipeline."""

    replicas: Mapping[str, ReplicaKey]
    """Pipeline and place of every device."""
    stages: Mapping[int, int]
    """By the traces' number of a stage: its own, counted from 0."""


def read_run_steps(paths: Sequence[Path]) -> tuple[RunStep, ...]:
    """Of one parquet file, or of one document per rank; in order, without the first iteration of the latter.

    Raises ValueError with one message if there is nothing in them, something broken, or not what whole pipelines leave.
    """
    files = find_traces(paths)
    if files[0].suffix == PARQUET:
        return read_straggler_trace(files[0])
    if files[0].suffix in LOGS:
        raise ValueError(
            f"{files[0]}: a log states neither order nor transfers; give a .parquet file with all operations, or the "
            "traces of all ranks"
        )
    job = read_ranks(files)
    if job.is_rebuilt:
        raise ValueError(
            f"{files[0]}: is a Chakra protobuf without start times and dependencies; give the linked JSON traces (of "
            "chakra_trace_link), or the profiler's"
        )
    _require_all_ranks(job)
    places, messages = _find_places(job), _Messages()
    for one in job.transfers():
        messages.add(one)
    return tuple(
        _make_step(job, number, places=places, messages=messages)
        for number in range(min(1, job.num_iterations - 1), job.num_iterations)
    )


def _require_all_ranks(job: RankTraces) -> None:
    """ValueError where documents state more ranks, or a last device exchanges with ranks that were not given."""
    if job.form == OWN and job.world_size not in (None, len(job.ranks)):
        raise ValueError(
            f"{job.files[0]}: is of {job.world_size} ranks, but {len(job.ranks)} were given; give the traces of all"
        )
    if job.world_size == len(job.ranks) or any(len(held) > 1 for held in job.stages.values()):
        return
    last = max(set[int]().union(*job.stages.values()))
    given = {rank.rank for rank in job.ranks.values()}
    for device, rank in job.ranks.items():
        peers = {each.peer for each in rank.messages if each.peer >= 0}
        if last in job.stages[device] and len(peers) > min(1, last) and (gone := peers - given):
            raise ValueError(
                f"{rank.source}: ran stage {last}, the last that was given, but exchanges with ranks "
                f"{', '.join(map(str, sorted(gone)))}, which were not; give the traces of all ranks"
            )


class _Messages:
    """What messages take, by iteration and pair of devices."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, str, str], list[Transfer]] = defaultdict(list)

    def add(self, one: Transfer) -> None:
        if one.iteration >= 0:
            self._found[one.iteration, one.source, one.target].append(one)

    def of(
        self, number: int, actions: Mapping[ReplicaKey, Sequence[RunAction]], *, replicas: Mapping[str, ReplicaKey]
    ) -> dict[Key, int]:
        """Of pairs of devices with as many messages as one makes for the other: the n-th is for the n-th of these."""
        devices = {replica: device for device, replica in replicas.items()}
        made: dict[tuple[str, str], list[Key]] = defaultdict(list)
        found: dict[Key, int] = {}
        used = _uses(actions)
        for replica, row in actions.items():
            for action in row:
                product = product_of((replica[0], action.stage, action.kind, action.microbatch))
                if product in used:
                    made[devices[replica], devices[used[product][0]]].append(product)
        for pair, products in made.items():
            for one in self._found.get((number, *pair), ()):
                if one.num_in_iteration == len(products):
                    product = products[one.number]
                    found[*product[:3], used[product][1]] = one.duration_ns
        return found


def _uses(actions: Mapping[ReplicaKey, Sequence[RunAction]]) -> dict[Key, tuple[ReplicaKey, int]]:
    """By product that another device makes: who uses it, and which one of its way it is there."""
    devices = {(replica[0], action.stage): replica for replica, row in actions.items() for action in row}
    last = last_stages(actions)
    counts: dict[tuple[int, int, str], int] = defaultdict(int)
    found: dict[Key, tuple[ReplicaKey, int]] = {}
    for replica, row in actions.items():
        for action in row:
            product = needed_by((replica[0], action.stage, action.kind, action.microbatch), last=last[replica[0]])
            if product is not None and devices[product[:2]] != replica:
                found[product] = replica, counts[product[:3]]
                counts[product[:3]] += 1
    return found


def _find_places(job: RankTraces) -> Places:
    """Pipeline, place and stages of every device.

    Raises ValueError where devices share only some of their stages, or where what belongs together is not told.
    """
    source = job.files[0]
    held = sorted({tuple(sorted(each)) for each in job.stages.values()})
    names = sorted(stage for each in held for stage in each)
    if len(set(names)) != len(names):
        a, b = next((a, b) for a, b in combinations(held, 2) if set(a) & set(b))
        raise ValueError(
            f"{source}: a device ran stages {', '.join(map(str, a))}, another {', '.join(map(str, b))}; replay needs "
            "devices that share all their stages or none; use pipeplan import trace for durations"
        )
    places = {device: held.index(tuple(sorted(each))) for device, each in job.stages.items()}
    pipelines = _find_pipelines(job, places)
    if any(sorted(places[device] for device in devices) != list(range(len(held))) for devices in pipelines):
        raise ValueError(
            f"{source}: the traces do not show which of {len(places)} ranks form a pipeline of {len(names)} stages; "
            "give all ranks, with messages that name their peers"
        )
    return Places(
        replicas={device: (number, places[device]) for number, devices in enumerate(pipelines) for device in devices},
        stages={name: number for number, name in enumerate(names)},
    )


def _find_pipelines(job: RankTraces, places: Mapping[str, int]) -> list[list[str]]:
    """By who sends to whom; our executor's ranks of a pipeline follow one another."""
    devices, count = list(places), len(set(places.values()))
    if len(devices) == count:
        return [devices]
    if job.form == OWN:
        devices.sort(key=lambda device: -1 if (number := job.ranks[device].rank) is None else number)
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
    names = {rank.rank: device for device, rank in job.ranks.items() if rank.rank is not None}
    for device, rank in job.ranks.items():
        for peer in {each.peer for each in rank.messages} & names.keys():
            yield device, names[peer]


def _make_step(job: RankTraces, number: int, *, places: Places, messages: _Messages) -> RunStep:
    rows = job.iteration(number)
    begin = min(entry[0] for row in rows.values() for entry in row)
    source = f"{job.files[0]}: iteration {number}"
    actions = {
        replica: tuple(
            _action(entry, begin=begin, gap_ns=gap, stages=places.stages)
            for entry, gap in sorted(zip(rows[device], job.gaps(number, device), strict=True))
        )
        for device, replica in sorted(places.replicas.items(), key=lambda item: item[1])
    }
    _require_whole(actions, source=source)
    told = messages.of(number, actions, replicas=places.replicas)
    lags = _seen_lags(actions, has_gaps=any(rank.taken_up for rank in job.ranks.values()))
    return RunStep(number=number, actions=actions, transfers_ns={**lags, **told})


def _action(entry: Entry, *, begin: int, gap_ns: int, stages: Mapping[int, int]) -> RunAction:
    start, end, kind, stage, microbatch = entry
    return RunAction(
        kind=cast(ActionKind, kind),
        stage=stages[stage],
        microbatch=microbatch,
        start_ns=start - begin,
        duration_ns=end - start,
        gap_ns=gap_ns,
    )


def _require_whole(actions: Mapping[ReplicaKey, Sequence[RunAction]], *, source: str) -> None:
    """ValueError where a stage has a forward without one backward, or other microbatches than the first."""
    ran: dict[tuple[int, int], dict[str, list[int]]] = {}
    for replica, row in actions.items():
        for action in row:
            kind = "B" if action.kind == "I" else action.kind
            ran.setdefault((replica[0], action.stage), {}).setdefault(kind, []).append(action.microbatch)
    for (pipeline, stage), kinds in sorted(ran.items()):
        wanted = sorted(ran[pipeline, min(other for p, other in ran if p == pipeline)].get("F", []))
        weights = kinds.get("W", [])
        is_whole = sorted(kinds.get("F", [])) == wanted == sorted(kinds.get("B", []))
        if not is_whole or len(set(weights)) != len(weights) or not set(weights) <= set(wanted):
            raise ValueError(
                f"{source}, pipeline {pipeline}: stage {stage} ran other microbatches than the first, or only a part; "
                "give a trace that is not cut off"
            )


def _seen_lags(actions: dict[ReplicaKey, tuple[RunAction, ...]], *, has_gaps: bool) -> dict[Key, int]:
    """From when an input was made until it was used, where its receiver waited for it; elsewhere what is usual there.

    Never more than was seen: nothing starts before its input is there. `has_gaps`: whether it is told when actions were
    taken up; who found everything there and starts a moment later, a pipeline's begin included, did not wait: the
    moment joins the gap.
    """
    ends = {
        product_of((replica[0], action.stage, action.kind, action.microbatch)): action.start_ns + action.duration_ns
        for replica, row in actions.items()
        for action in row
    }
    used, last = _uses(actions), last_stages(actions)
    lags: dict[Key, int] = {}
    waited: dict[tuple[int, int, str], dict[Key, int]] = defaultdict(dict)
    for replica, row in actions.items():
        told, before = list(row), 0
        for place, action in enumerate(row):
            idle = action.start_ns - before - action.gap_ns
            before = action.start_ns + action.duration_ns
            product = needed_by((replica[0], action.stage, action.kind, action.microbatch), last=last[replica[0]])
            if product is not None and product in used and used[product][0] == replica:
                channel = product[:3]
                key, lag = (*channel, used[product][1]), max(0, action.start_ns - ends[product])
                if place == 0 or idle > WAITED * lag:
                    waited[channel][key] = lag
                    continue
                lags[key] = lag
            if has_gaps and idle > 0:
                told[place] = replace(action, gap_ns=action.gap_ns + idle)
        actions[replica] = tuple(told)
    usual = {channel: round(statistics.median(found.values())) for channel, found in waited.items()}
    told_by_waits = {key: lag for found in waited.values() for key, lag in found.items()}
    return {key: min(lag, usual.get(key[:3], lag)) for key, lag in lags.items()} | told_by_waits
