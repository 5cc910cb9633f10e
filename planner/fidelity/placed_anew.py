"""The same work on the same devices at other places: what a job would gain if slow devices stood where they hurt least.

A device's factor is what it took over all steps, over the median of the devices of its stage: that it is the device's
own and not its microbatches' is assumed. Links are assumed to be alike, and the order stays as run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import ceil, floor
from statistics import median_low

from planner.dealing import Durations, bound_dealings
from planner.fidelity.run_replay import replay_ns
from profiles.importers.straggler import Key, RunStep, Seat

NOTABLE = 1.02
"""A device that differs from its peers by more is slow or fast."""

MOST_TRIED = 8
"""So many of the slowest devices are tried on so many of the lightest places, one after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Devices at other places."""

    device_of: Mapping[Seat, Seat]
    """By place: where the device stood that stands there now."""
    makespan_ns: int
    """By replay, every action at its own duration times the new device's factor over the old one's, rounded up."""
    lower_bound_ns: int
    """No placement ends earlier, in whatever order its pipelines run, if transfers take nothing."""

    @property
    def num_moved(self) -> int:
        """Devices that stand elsewhere."""
        return sum(seat != device for seat, device in self.device_of.items())


def place_anew(
    steps: Sequence[RunStep], step: RunStep, *, hands: Mapping[int, Sequence[Durations]]
) -> Placement | None:
    """The best found for `step` with the factors of all `steps`; None with one pipeline, where no device has peers.

    `hands`: the microbatches of `step`'s pipelines as run.
    """
    if len(hands) < 2:
        return None
    factors = device_factors(steps, step)
    loads = {seat: sum(a.duration_ns for a in row) / factors[seat] for seat, row in step.actions.items()}
    best = {seat: seat for seat in factors}
    makespan = replay_ns(step)
    slowest = [seat for seat in sorted(factors, key=lambda seat: -factors[seat]) if factors[seat] > 1][:MOST_TRIED]
    lightest = sorted(loads, key=lambda seat: loads[seat])[:MOST_TRIED]
    for device, other in product(slowest, lightest):
        place = next(seat for seat, stands in best.items() if stands == device)
        swapped = {**best, place: best[other], other: device}
        found = replay_ns(step, durations_ns=_durations(step, factors, device_of=swapped))
        if found < makespan:
            best, makespan = swapped, found
    bound = bound_placements(factors, loads, hands=hands)
    return Placement(device_of=best, makespan_ns=makespan, lower_bound_ns=bound)


def device_factors(steps: Sequence[RunStep], step: RunStep) -> dict[Seat, Fraction]:
    """By place as run: what its device takes over the median of the devices of its stage (of two the lesser).

    1 where they differ by no more than `NOTABLE`: that may be noise, and nobody changes places for it.
    """
    totals = {seat: sum(a.duration_ns for one in steps for a in one.actions.get(seat, ())) for seat in step.actions}
    found = {}
    for seat, total in totals.items():
        same = [other for (_, stage), other in totals.items() if stage == seat[1]]
        usual = median_low(same)
        is_alike = total <= NOTABLE * usual and usual <= NOTABLE * total
        found[seat] = Fraction(1) if is_alike or not total or not usual else Fraction(total, usual)
    return found


def bound_placements(
    factors: Mapping[Seat, Fraction], loads: Mapping[Seat, Fraction], *, hands: Mapping[int, Sequence[Durations]]
) -> int:
    """No placement ends before, in whatever order; `loads`: the work at every place for a device of factor 1.

    Whichever device stands at a place computes load x factor there, one action at a time. The largest of these products
    is least where the heaviest place has the fastest device, and so on: exchanging two devices that stand otherwise
    leaves no product larger than the larger of the two before. And no device is faster than the fastest: a pipeline of
    nothing but such devices ends no later, and that is bounded as any dealing of its microbatches to one pipeline.
    """
    fast_first, heavy_first = sorted(factors.values()), sorted(loads.values(), reverse=True)
    bounds = [floor(max(load * factor for load, factor in zip(heavy_first, fast_first, strict=True)))]
    for pipeline, hand in hands.items():
        scale = [fast_first[0] / factors[pipeline, stage] for stage in range(len(hand[0].forward_ns))]
        fastest = [
            Durations(
                forward_ns=tuple(floor(value * by) for value, by in zip(one.forward_ns, scale, strict=True)),
                backward_ns=tuple(floor(value * by) for value, by in zip(one.backward_ns, scale, strict=True)),
            )
            for one in hand
        ]
        bounds.append(bound_dealings(fastest, 1))
    return max(bounds)


def _durations(step: RunStep, factors: Mapping[Seat, Fraction], *, device_of: Mapping[Seat, Seat]) -> dict[Key, int]:
    """Of actions whose device is another."""
    found: dict[Key, int] = {}
    for seat, device in device_of.items():
        by = factors[device] / factors[seat]
        if by != 1:
            found |= {(*seat, a.kind, a.microbatch): ceil(a.duration_ns * by) for a in step.actions[seat]}
    return found
