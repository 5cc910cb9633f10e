"""Out-of-order backprop on one device: beside which region of the main stream each weight gradient runs.

The main stream runs regions one after another: I of the last block down to the first, then F of the next iteration from
the first block on. A second stream (or thread) may run weight gradients beside a region; both meet at the region's end.
What that takes is measured in pairs, since side by side both are slower. Several weight gradients beside one region run
one after another, and each is taken to slow the region down as much as it did in its own pair.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CoRun:
    """A region and a weight gradient side by side, both from the region's start on."""

    main_ns: int
    """When the region ends."""
    own_ns: int
    """When the weight gradient ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightGrad:
    """W of a layer or a block."""

    alone_ns: int
    """On the main stream, at its plain place: right after its I."""
    first: int
    """The first region beside which it may run: the one after its I."""
    last: int
    """The last one: the one before its own next F. Below `first` it always runs alone."""
    beside: Mapping[int, CoRun]
    """Measured, per region; it may run only beside these."""

    @property
    def regions(self) -> tuple[int, ...]:
        """Where it may run, alone aside."""
        return tuple(sorted(region for region in self.beside if self.first <= region <= self.last))


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionProblem:
    """One iteration of one device."""

    lengths_ns: tuple[int, ...]
    """Of the regions, in the order of the main stream, with nothing beside them."""
    weight_grads: tuple[WeightGrad, ...]

    def __post_init__(self) -> None:
        for number, each in enumerate(self.weight_grads):
            if not all(0 <= region < len(self.lengths_ns) for region in each.beside):
                raise ValueError(f"weight gradient {number}: of {len(self.lengths_ns)} regions, {sorted(each.beside)}")

    @property
    def plain(self) -> "Choice":
        """Every weight gradient alone."""
        return (None,) * len(self.weight_grads)

    def slowdown_ns(self, number: int, region: int) -> int:
        """By how much a weight gradient makes a region longer; faster than alone is noise and counts as nothing."""
        return max(0, self.weight_grads[number].beside[region].main_ns - self.lengths_ns[region])


Choice = Sequence[int | None]
"""Per weight gradient, the region it runs beside; None: alone at its plain place."""


def find_mistakes(problem: RegionProblem, choice: Choice) -> list[str]:
    """Why a choice is none; empty if it is one."""
    if len(choice) != len(problem.weight_grads):
        return [f"{len(choice)} choices for {len(problem.weight_grads)} weight gradients"]
    return [
        f"weight gradient {number} beside region {region}, which is none of {each.regions}"
        for number, (each, region) in enumerate(zip(problem.weight_grads, choice, strict=True))
        if region is not None and region not in each.regions
    ]


def predicted_ns(problem: RegionProblem, choice: Choice) -> int:
    """What the iteration takes: every region until both streams have met, and all that runs alone."""
    alone = sum(each.alone_ns for each, region in zip(problem.weight_grads, choice, strict=True) if region is None)
    main, own = list(problem.lengths_ns), [0] * len(problem.lengths_ns)
    for number, region in enumerate(choice):
        if region is not None:
            main[region] += problem.slowdown_ns(number, region)
            own[region] += problem.weight_grads[number].beside[region].own_ns
    return alone + sum(map(max, main, own))


def choose_greedily(problem: RegionProblem) -> Choice:
    """From plain order on, always the one move off the main stream that saves most, until none saves anything."""
    choice = list(problem.plain)
    while True:
        moves = [
            [*choice[:number], region, *choice[number + 1 :]]
            for number, each in enumerate(problem.weight_grads)
            if choice[number] is None
            for region in each.regions
        ]
        best = min([choice, *moves], key=lambda each: predicted_ns(problem, each))
        if best is choice:
            return tuple(choice)
        choice = best
