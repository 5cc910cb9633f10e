"""The recomputation bound: what does not fit while a microbatch turns round is recomputed, and that takes time."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import pairwise

from planner.bounds.first_backward import FirstBackward
from planner.bounds.minimum_costs import Least
from planner.bounds.work import require_weights
from planner.layout.costs import checkpoint_bytes
from planner.plan import FULL_RECOMPUTATION
from profiles.model_profile import Layer, WidthBytes

Choice = tuple[int, int]
"""Weighted time of all microbatches in a layer, and the bytes that F of one leaves of it."""


def applies_to(least: Least) -> bool:
    """Whether anything may be recomputed, under the makespan."""
    options = least.problem.options
    return options.recompute and options.objective == "makespan" and not options.has_few_bounds


def recomputations(entry: Layer | WidthBytes, *, by_layer: bool) -> list[str | None]:
    """None, and the kinds of recomputation that a layer may have; `by_layer`: where it may choose its own."""
    return [None, FULL_RECOMPUTATION, *(kind.kind for kind in entry.recompute_kinds if by_layer)]


class PricedRecomputation:
    """What all devices hold, and what they do, at prices on device time (`weights`, by type) and memory."""

    def __init__(self, least: Least, weights: dict[str, int]) -> None:
        self.least, self.weights = least, weights
        self.first_backward = FirstBackward(least)
        waits = set(self.first_backward.waiting)
        self.choices = [
            _corners(self._choices(number, is_waiting=number in waits)) for number in range(len(least.layers))
        ]
        """Per layer those that are the least at some price, the quickest first; one that does not wait leaves nothing.
        """
        usable = sum(device.usable_bytes for device in least.problem.cluster.devices)
        last = self.first_backward.waiting[-1]
        self.room = usable - sum(self.first_backward.states) - least.least_bytes("workspace_bytes")[last]
        """Bytes that the states leave on all devices together, while the last layer runs."""

    def _choices(self, number: int, *, is_waiting: bool) -> Iterator[Choice]:
        """Types, widths, replicas and kinds of recomputation that a layer may have."""
        least, sizes = self.least, dict(self.least.entries(number))
        count, options = least.problem.num_microbatches, least.problem.options
        for name, width, work in least.choices(number):
            entry, step = sizes[width], least.steps_per_type[name][number]
            for kind in recomputations(entry, by_layer=options.recompute_layers):
                extra = 0 if kind is None else work.recomputation_ns(kind)
                time = width * (work.forward_ns + work.backward_ns + extra)
                left = self.first_backward.held(number, checkpoint_bytes(entry, kind)) if is_waiting else 0
                yield self.weights[name] * (count * time + step), left

    def value(self, price: int) -> int:
        """What no plan is below, in nanoseconds, without the profile's `optimizer_ns`.

        `price`: of a byte, in weighted nanoseconds. Proof. Weighted loads of devices add up to at most sum of y_d x T.
        When a last layer runs a microbatch, what it has left of every layer behind is held, beside the states
        (`FirstBackward`): all of it is no more than what the devices have. Priced, the latter may be added to the
        former, and every layer's part of both is at least its least choice. That holds for every microbatch, so where
        each may recompute or not, a part of the price for each gives the same sum.
        """
        least = self.least
        share = sum(self.weights[name] * number for name, number in least.types.items())
        bound = Fraction(self._weighted(price), share)
        return -(-bound.numerator // bound.denominator) + least.problem.num_microbatches * sum(least.overhead)

    def _weighted(self, price: int) -> int:
        """The least weighted time of all layers, with what they leave beyond what there is room for, priced."""
        least = sum(min(time + price * left for time, left in choices) for choices in self.choices)
        return least - price * self.room

    def find_price(self) -> int:
        """The price of the largest value, which is concave in it: where some layer changes its choice."""
        prices = {0}
        for choices in self.choices:
            for (first, most), (second, fewer) in pairwise(choices):
                price = (second - first) // (most - fewer)
                prices |= {price, price + 1}
        ascending = sorted(prices)
        rises = [*pairwise(ascending)]
        return ascending[bisect_left(rises, 1, key=lambda rise: self._weighted(rise[0]) >= self._weighted(rise[1]))]


def _corners(choices: Iterable[Choice]) -> list[Choice]:
    """Those that are the least at some price, by ascending time."""
    corners: list[Choice] = []
    for time, left in sorted(set(choices)):
        if corners and left >= corners[-1][1]:
            continue
        while len(corners) > 1:
            (first, most), (second, fewer) = corners[-2:]
            if (second - first) * (fewer - left) < (time - second) * (most - fewer):
                break
            corners.pop()
        corners.append((time, left))
    return corners


def recompute_bound(least: Least, weights: dict[str, int], *, price: int) -> int:
    """The value at given prices. Raises ValueError unless there is a weight for every type, not all of them 0."""
    require_weights(least, weights)
    return PricedRecomputation(least, weights).value(price)
