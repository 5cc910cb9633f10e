"""The same work on the same devices at other places: what a job would gain if slow devices stood where they hurt least.

A device's factor is what it took over all steps, over the median of the devices of its place: that it is the device's
own and not its microbatches' is assumed where chance hardly explains it. Links are assumed to be alike. Pipelines run
their orders as run, or others where these end sooner.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, pi, sqrt
from statistics import fmean, median_low, variance

from planner.fidelity.any_order_bounds import bound_any_placement
from planner.fidelity.run_pipelines import PipelinePlayer, StepShape, one_pipeline, rows_of, with_rows
from planner.fidelity.run_replay import replay_ns
from profiles.importers.straggler import ReplicaKey, RunStep

NOTABLE = 1.02
"""A device that differs from its peers by more is slow or fast."""

_ERRORS = 3
"""So many standard errors of its total, as its microbatches scatter, it has to differ by: of 400 alike one does."""

MOST_ACTIONS = 3_000_000
"""Played at most to find places: about two seconds."""

Order = Callable[[RunStep], RunStep]
"""A step of one pipeline in another order, or as it is where none is found that ends sooner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Devices at other places."""

    device_of: Mapping[ReplicaKey, ReplicaKey]
    """By place: where the device stood that stands there now."""
    num_reordered: int
    """Pipelines whose order is another."""
    makespan_ns: int
    """By replay, every action at its own duration times the new device's factor over the old one's, rounded up."""
    lower_bound_ns: int
    """No placement ends earlier, in whatever order its pipelines run, if transfers take nothing."""

    @property
    def num_moved(self) -> int:
        """Devices that stand elsewhere."""
        return sum(replica != device for replica, device in self.device_of.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """What a change would bring in the median step."""

    what: str
    """The change, with what it assumes."""
    makespan_ns: int
    """Verified by replay with every action's own duration."""
    lower_bound_ns: int
    """Certified: no change of this kind ends earlier; transfers take nothing, or the step's median (other dealing, and
    other cut)."""


def place_anew(steps: Sequence[RunStep], step: RunStep, *, shape: StepShape, order: Order) -> Placement | None:
    """The best found for `step` with the factors of all `steps`; None with one pipeline, where no device has peers."""
    if len({pipeline for pipeline, _ in step.actions}) < 2:
        return None
    factors = device_factors(steps, step)
    search = _Search(step, shape, factors=factors, order=order)
    while search.order_slowest() or search.swap_for_slowest():
        pass
    assignments = rows_of(step, shape)
    makespan = search.replay()
    return Placement(
        device_of=search.device_of,
        num_reordered=len(search.reordered),
        makespan_ns=makespan,
        lower_bound_ns=bound_any_placement(assignments, shape, factors=factors, at_most_ns=makespan),
    )


def describe_placing(placed: Placement, *, orders: str) -> Remedy:
    """Devices at other places, in words; `orders`: how other orders are made."""
    moved = f"{placed.num_moved or 'none'} of {len(placed.device_of)} devices elsewhere"
    return Remedy(
        what=f"placed again: {moved} (orders as run, in {placed.num_reordered or 'no'} "
        f"pipeline{'' if placed.num_reordered == 1 else 's'} by {orders}; assumes that what a device takes longer "
        "than the others of its place over all steps is its own, where chance hardly explains it; links alike)",
        makespan_ns=placed.makespan_ns,
        lower_bound_ns=placed.lower_bound_ns,
    )


def device_factors(steps: Sequence[RunStep], step: RunStep) -> dict[ReplicaKey, Fraction]:
    """By place as run: what its device takes over the median of the devices of its place (of two the lesser).

    1 where they differ by no more than `NOTABLE`, or by no more than its microbatches make likely (`_ERRORS`): that may
    be noise, and nobody changes places for it.
    """
    spans: dict[ReplicaKey, dict[tuple[int, int], int]] = {replica: defaultdict(int) for replica in step.actions}
    for number, one in enumerate(steps):
        for replica in spans:
            for action in one.actions.get(replica, ()):
                spans[replica][number, action.microbatch] += action.duration_ns
    totals = {replica: sum(each.values()) for replica, each in spans.items()}
    errors = _errors({replica: list(each.values()) for replica, each in spans.items()})
    found = {}
    for replica, total in totals.items():
        usual = median_low([other for (_, place), other in totals.items() if place == replica[1]])
        is_alike = total <= NOTABLE * usual and usual <= NOTABLE * total
        is_chance = abs(total - usual) <= _ERRORS * errors[replica[1]] * usual
        found[replica] = Fraction(1) if is_alike or is_chance or not usual or not total else Fraction(total, usual)
    return found


def _errors(spans: Mapping[ReplicaKey, Sequence[int]]) -> dict[int, float]:
    """By place the standard error of a device's sum against the median of its peers', over the sum.

    As its devices' microbatches scatter around means; the median of n sums has pi / 2 n of a sum's variance.
    """
    found: dict[int, list[float]] = defaultdict(list)
    for (_, place), each in spans.items():
        total = sum(each)
        found[place].append(len(each) * variance(each) / total**2 if len(each) > 1 and total else 0.0)
    return {place: sqrt(fmean(each) * (1 + pi / (2 * len(each)))) for place, each in found.items()}


class _Search:
    """Who stands where, in which order pipelines run, and when each ends."""

    def __init__(
        self, step: RunStep, shape: StepShape, *, factors: Mapping[ReplicaKey, Fraction], order: Order
    ) -> None:
        self._shape, self._factors, self._order = shape, factors, order
        self._rows = rows_of(step, shape)
        self._cells = [
            [number for number, (stage, _) in enumerate(shape.cells) if stage in held] for held in shape.stages
        ]
        self._scaled: dict[tuple[ReplicaKey, Fraction], dict[int, int]] = {}
        self.device_of = {replica: replica for replica in step.actions}
        self.reordered = set[int]()
        self._ones = {pipeline: one_pipeline(step, pipeline) for pipeline in self._rows}
        self._players = {pipeline: PipelinePlayer(one, shape) for pipeline, one in self._ones.items()}
        self._tried = dict[int, tuple[Fraction, ...]]()
        self._left = MOST_ACTIONS
        self._times = {pipeline: self._play(pipeline, self.device_of) for pipeline in self._rows}

    def replay(self) -> int:
        """When all pipelines have ended."""
        return max(replay_ns(self._run_anew(pipeline)) for pipeline in self._rows)

    def order_slowest(self) -> bool:
        """The slowest pipeline in another order, if that ends sooner; asked once for the same devices."""
        worst = self._worst
        devices = tuple(self._factors[self.device_of[worst, place]] for place in self._shape.places)
        if self._tried.get(worst) == devices:
            return False
        self._tried[worst] = devices
        other = self._order(self._run_anew(worst))
        player = PipelinePlayer(other, self._shape)
        time = player.play(self._durations(worst, self.device_of))
        if time >= self._times[worst]:
            return False
        self._ones[worst], self._players[worst], self._times[worst] = other, player, time
        self.reordered.add(worst)
        return True

    def swap_for_slowest(self) -> bool:
        """A device of the slowest pipeline changes places with a faster one, as it ends both of them soonest."""
        worst, best, found = self._worst, self._times[self._worst], None
        for mine, other in self._pairs(worst):
            if self._left <= 0:
                return False
            swapped = {**self.device_of, mine: self.device_of[other], other: self.device_of[mine]}
            times = {worst: self._play(worst, swapped)}
            if times[worst] < best and other[0] != worst:
                times[other[0]] = self._play(other[0], swapped)
            if max(times.values()) < best:
                best, found = max(times.values()), (swapped, times)
        if found is None:
            return False
        self.device_of = found[0]
        self._times |= found[1]
        return True

    @property
    def _worst(self) -> int:
        return max(self._times, key=self._times.__getitem__)

    def _pairs(self, worst: int) -> Iterator[tuple[ReplicaKey, ReplicaKey]]:
        """A place of the slowest pipeline and one with a faster device; pipelines with most room first."""
        replicas = sorted(self.device_of, key=lambda replica: self._times[replica[0]])
        for mine in replicas:
            if mine[0] == worst:
                now = self._factors[self.device_of[mine]]
                yield from ((mine, other) for other in replicas if self._factors[self.device_of[other]] < now)

    def _play(self, pipeline: int, device_of: Mapping[ReplicaKey, ReplicaKey]) -> int:
        self._left -= len(self._players[pipeline])
        return self._players[pipeline].play(self._durations(pipeline, device_of))

    def _durations(self, pipeline: int, device_of: Mapping[ReplicaKey, ReplicaKey]) -> list[int]:
        """Of its microbatches' rows, one behind the other."""
        found = [0] * (len(self._rows[pipeline]) * len(self._shape.cells))
        for number, name in enumerate(self._shape.places):
            replica = pipeline, name
            for place, time in self._at(replica, number, factor=self._factors[device_of[replica]]).items():
                found[place] = time
        return found

    def _at(self, replica: ReplicaKey, number: int, *, factor: Fraction) -> dict[int, int]:
        """What is run at a place, by a device of some factor."""
        if (replica, factor) not in self._scaled:
            by, width = factor / self._factors[replica], len(self._shape.cells)
            self._scaled[replica, factor] = {
                slot * width + cell: ceil(row[cell] * by)
                for slot, row in enumerate(self._rows[replica[0]])
                for cell in self._cells[number]
            }
        return self._scaled[replica, factor]

    def _run_anew(self, pipeline: int) -> RunStep:
        """Its step, as its devices run it now."""
        durations, width = self._durations(pipeline, self.device_of), len(self._shape.cells)
        rows = [tuple(durations[begin : begin + width]) for begin in range(0, len(durations), width)]
        return with_rows(self._ones[pipeline], self._shape, assignments={pipeline: rows})
