"""How long transfers really took, and which links that makes slow.

A transfer's end is seen where an action started the moment it arrived. Its begin is when it was ready, or when the
transfer before it on a link ended; where that was not seen either, the transfer says nothing.
"""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from planner.actions import Action
from planner.fidelity.executed_run import ExecutedIteration, ends_of
from planner.layout.costs import CostModel
from planner.plan import Plan
from planner.problem import Problem
from planner.replanning.observations import spread_of
from planner.replanning.slowdown_factors import LEAST_DRIFT
from planner.simulation.timeline import TimedTransfer, Timeline
from profiles.cluster import Cluster

_AGREE = 0.05
"""Factors of one link on several ways that differ by less are the same."""

WAITED = 0.25
"""An action started the moment a transfer arrived if it waited for more than this part of the transfer: a process that
found everything there starts a moment later, too.
"""

_MAX_FACTOR = 1e6
"""Slower links are not looked for."""


class _Channel(NamedTuple):
    """All transfers of one size between two devices; no sender: the all-reduce of the stage `receiver`."""

    sender: str
    receiver: str
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChannelTime:
    """One way, planned and measured."""

    channel: _Channel
    links: frozenset[int]
    """Indices of the cluster's links on it."""
    planned_ns: int
    """By the cluster."""
    measured_ns: float
    """Median of what was seen."""
    spread: float
    """Relative standard error."""

    @property
    def is_slower(self) -> bool:
        """By more than chance."""
        return self.measured_ns > self.planned_ns * (1 + max(LEAST_DRIFT, 3 * self.spread)) + 1


_Clue = tuple[_ChannelTime, ...]
"""Ways on which transfers arrived for the same actions, and one of which arrived last; mostly a single one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowLinks:
    """Links of which one explains some clues; several: what was measured does not tell them apart."""

    links: tuple[tuple[int, float], ...]
    """Index of the cluster's link, and what latency and bytes take times their planned time; least factor first."""
    clues: tuple[_Clue, ...]
    """Late transfers that slow links explain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _SeenTransfers:
    """What was seen of the transfers of a run."""

    clues: tuple[_Clue, ...]
    """Slow or not."""
    most_ns: Mapping[_Channel, float]
    """What a way takes at most: from when a transfer was ready until it was used, the least of all."""


def time_transfers(
    problem: Problem, plan: Plan, *, timeline: Timeline, iterations: Sequence[ExecutedIteration]
) -> _SeenTransfers:
    """All transfers whose begin and end were seen; `timeline`: of the plan as it was played."""
    samples: dict[tuple[_Channel, ...], list[tuple[float, ...]]] = defaultdict(list)
    most: dict[_Channel, float] = {}
    links: dict[_Channel, frozenset[int]] = {}
    for iteration in iterations:
        seen = _Seen(problem, plan, timeline=timeline, iteration=iteration)
        for channels, durations in seen.durations():
            samples[channels].append(durations)
        for channel, least in seen.least.items():
            most[channel] = min(least, most.get(channel, least))
        links |= seen.links
        for stage, duration, used in _synchronisations(problem, plan, iteration=iteration):
            channel = _Channel("", str(stage), 0)
            samples[channel,].append((duration,))
            links[channel] = used
    clues = tuple(
        tuple(
            _ChannelTime(
                channel=channel,
                links=links[channel],
                planned_ns=_channel_ns(problem, plan, channel=channel),
                measured_ns=statistics.median(column),
                spread=spread_of(column),
            )
            for channel, column in zip(channels, zip(*found, strict=True), strict=True)
        )
        for channels, found in sorted(samples.items())
    )
    return _SeenTransfers(clues=clues, most_ns=most)


class _Seen:
    """The transfers of one iteration, in order of readiness."""

    def __init__(self, problem: Problem, plan: Plan, *, timeline: Timeline, iteration: ExecutedIteration) -> None:
        self.problem, self.plan = problem, plan
        self.duplex = [link.duplex for link in problem.cluster.links]
        self.start: dict[tuple[str, Action], int] = {}
        self.end: dict[tuple[str, Action], int] = {}
        self.free: dict[tuple[str, Action], int] = {}
        for device, row in iteration.rows.items():
            last = row.taken_up_ns[0] if row.taken_up_ns else 0
            for timed, taken_up in zip(row.actions, row.taken_up_ns, strict=True):
                self.start[device, timed.action], self.end[device, timed.action] = timed.start_ns, timed.end_ns
                self.free[device, timed.action] = max(taken_up, last)
                last = timed.end_ns
        ends = ((sent, *ends_of(sent, self.start)) for sent in timeline.transfers if sent.end_ns > sent.start_ns)
        self.transfers = sorted(
            ((self.end[made], sent, used) for sent, made, used in ends),
            key=lambda entry: entry[0],
        )
        self.least: dict[_Channel, float] = {}
        self.links = {self._channel(sent): frozenset(link // 2 for link in sent.links) for _, sent, _ in self.transfers}

    def _channel(self, sent: TimedTransfer) -> _Channel:
        return _Channel(sent.sender, sent.receiver, sent.num_bytes)

    def durations(self) -> list[tuple[tuple[_Channel, ...], tuple[float, ...]]]:
        """Per action that waited: the ways that may have arrived last, and how long each would have taken then."""
        for ready, sent, used in self.transfers:
            lag = self.start[used] - ready
            self.least[self._channel(sent)] = min(lag, self.least.get(self._channel(sent), lag))
        latest: dict[int, int] = {}
        known: dict[int, int | None] = {}
        inputs: dict[tuple[str, Action], list[tuple[TimedTransfer, int | None]]] = defaultdict(list)
        expected = Counter(used for _, _, used in self.transfers)
        found = []
        for ready, sent, key in self.transfers:
            use = self.start[key]
            begin = self._begin(sent.links, ready, latest=latest, known=known)
            inputs[key].append((sent, begin))
            waited = use - self.free[key] > WAITED * (use - ready)
            # It took no longer than the way ever took, wherever it had to wait for its links.
            end = max([ready, *(latest.get(link, 0) for link in sent.links)]) + round(self.least[self._channel(sent)])
            for link in sent.links:
                latest[link] = max(latest.get(link, 0), min(use, end))
                known[link] = use if waited and expected[key] == 1 else None
            if waited and len(inputs[key]) == expected[key]:
                found += self._clue(inputs[key], use)
        return found

    def _clue(
        self, inputs: Sequence[tuple[TimedTransfer, int | None]], use: int
    ) -> list[tuple[tuple[_Channel, ...], tuple[float, ...]]]:
        """Nothing where the begin of a transfer that may have been the last was not seen."""
        found = {}
        for sent, begin in inputs:
            channel = self._channel(sent)
            if begin is None:
                return []
            # A way that never takes longer than less than this did not take this long here.
            if use > begin and (len(inputs) == 1 or use - begin <= self.least[channel] * (1 + _AGREE)):
                found[channel] = float(use - begin)
        channels = tuple(sorted(found))
        return [(channels, tuple(found[channel] for channel in channels))] if found else []

    def _begin(
        self, links: Iterable[int], ready: int, *, latest: Mapping[int, int], known: Mapping[int, int | None]
    ) -> int | None:
        begin = ready
        for link in links:
            if latest.get(link, 0) > ready:
                end = known[link]
                if end is None:
                    return None
                begin = max(begin, end)
        return begin


def _synchronisations(
    problem: Problem, plan: Plan, *, iteration: ExecutedIteration
) -> list[tuple[int, float, frozenset[int]]]:
    """Stage, duration and links of every all-reduce whose devices hold no other replicated stage."""
    costs = CostModel(problem)
    held: dict[str, list[int]] = defaultdict(list)
    for number, stage in enumerate(plan.stages):
        for group in stage.replicas if costs.synchronisation_ns(stage) else ():
            held[group[0]].append(number)
    found = []
    for number, stage in enumerate(plan.stages):
        devices = [group[0] for group in stage.replicas]
        if problem.options.synchronisation == "after" and all(held[device] == [number] for device in devices):
            begin = max(
                timed.end_ns
                for device in devices
                for timed in iteration.rows[device].actions
                if timed.action.stage == number
            )
            last = max(iteration.rows[device].actions[-1].end_ns for device in devices)
            end = min(iteration.rows[device].reduced_ns for device in devices)
            if end > last:
                found.append(
                    (
                        number,
                        float(end - begin),
                        frozenset(link // 2 for link in CostModel(problem).ring_links(plan.stages[number])),
                    )
                )
    return found


def _channel_ns(problem: Problem, plan: Plan, *, channel: _Channel) -> int:
    if not channel.sender:
        return CostModel(problem).synchronisation_ns(plan.stages[int(channel.receiver)])
    return problem.cluster.route(channel.sender, channel.receiver, num_bytes=channel.num_bytes).duration_ns(
        channel.num_bytes
    )


def find_slow_links(problem: Problem, plan: Plan, *, seen: _SeenTransfers) -> tuple[SlowLinks, ...]:
    """The fewest links that explain every slow clue, the one that explains most first.

    A link on a way that would have been slow with it, and was not, is none of them. A clue is slow if all of its ways
    are: where one of them is as planned, that one arrived last.
    """
    left = [clue for clue in seen.clues if all(time.is_slower for time in clue)]
    found = []
    while left:
        options = []
        for link in sorted({link for clue in left for time in clue for link in time.links}):
            explained = _explained(problem, plan, link=link, slow=left)
            if explained is not None and not _is_refuted(problem, plan, link=link, factor=explained[0], seen=seen):
                options.append((link, *explained))
        if not options:
            break
        most = max(len(clues) for _, _, clues in options)
        clues = next(option[2] for option in options if len(option[2]) == most)
        same = sorted((factor, link) for link, factor, those in options if those == clues)
        found.append(SlowLinks(links=tuple((link, factor) for factor, link in same), clues=clues))
        left = [clue for clue in left if clue not in clues]
    return tuple(found)


def _explained(
    problem: Problem, plan: Plan, *, link: int, slow: Sequence[_Clue]
) -> tuple[float, tuple[_Clue, ...]] | None:
    """The factor of a link that most slow clues with it agree on, and these clues."""
    known = [
        (clue, factor)
        for clue in slow
        for time in clue
        if link in time.links and (factor := _factor(problem, plan, link=link, time=time)) is not None
    ]
    if not known:
        return None
    groups = [[(clue, other) for clue, other in known if abs(other / factor - 1) <= _AGREE] for _, factor in known]
    best = max(groups, key=len)
    return statistics.median(factor for _, factor in best), tuple(dict.fromkeys(clue for clue, _ in best))


def _factor(problem: Problem, plan: Plan, *, link: int, time: _ChannelTime) -> float | None:
    """What the link's times must be multiplied with for the way to take what was measured."""
    low, high = 1.0, 2.0
    while _slowed_ns(problem, plan, factors={link: high}, channel=time.channel) < time.measured_ns:
        low, high = high, 2 * high
        if high > _MAX_FACTOR:
            return None
    for _ in range(40):
        middle = (low + high) / 2
        is_below = _slowed_ns(problem, plan, factors={link: middle}, channel=time.channel) < time.measured_ns
        low, high = (middle, high) if is_below else (low, middle)
    return high


def _is_refuted(problem: Problem, plan: Plan, *, link: int, factor: float, seen: _SeenTransfers) -> bool:
    """Whether a way over the link was ever faster than it could be with such a link."""
    most = dict(seen.most_ns) | {
        clue[0].channel: clue[0].measured_ns for clue in seen.clues if len(clue) == 1 and not clue[0].is_slower
    }
    with_it = {time.channel for clue in seen.clues for time in clue if link in time.links}
    return any(
        channel in with_it
        and _slowed_ns(problem, plan, factors={link: factor}, channel=channel) > measured * (1 + 2 * _AGREE)
        for channel, measured in most.items()
    )


def _slowed_ns(problem: Problem, plan: Plan, *, factors: Mapping[int, float], channel: _Channel) -> float:
    """What the way takes with some links that many times slower, over the routes that it takes now."""
    if channel.sender:
        return sum(_transfer(problem, (channel.sender, channel.receiver, channel.num_bytes), factors=factors))
    stage = plan.stages[int(channel.receiver)]
    size, replicas = CostModel(problem).gradient_bytes(stage), len(stage.replicas)
    ring = zip(stage.replicas, (*stage.replicas[1:], stage.replicas[0]), strict=True)
    transfers = [_transfer(problem, (a[0], b[0], size), factors=factors, messages=replicas) for a, b in ring]
    return 2 * (replicas - 1) * (max(moving for _, moving in transfers) + max(latency for latency, _ in transfers))


def _transfer(
    problem: Problem, transfer: tuple[str, str, int], *, factors: Mapping[int, float], messages: int = 1
) -> tuple[float, float]:
    """Latency of a route, and what one of so many equal messages of a transfer takes on it beyond."""
    route = problem.cluster.route(transfer[0], transfer[1], num_bytes=transfer[2])
    used = [(problem.cluster.links[link // 2], factors.get(link // 2, 1.0)) for link in route.links]
    latency = sum(link.latency_ns * factor for link, factor in used)
    size = transfer[2] / messages
    moving = (
        factor * (link.moving_ns(math.ceil(size)) if link.message_times else size * 1e9 / link.bandwidth_bytes_per_s)
        for link, factor in used
    )
    return latency, max(moving, default=0.0)


def slow_down(cluster: Cluster, factors: Mapping[int, float]) -> Cluster:
    """The cluster with some links, by their indices, that many times slower in latency and in bytes per second."""
    links = tuple(
        link if factors.get(number, 1.0) == 1.0 else link.at_speed(1 / factors[number], latency=factors[number])
        for number, link in enumerate(cluster.links)
    )
    return replace(cluster, links=links)
