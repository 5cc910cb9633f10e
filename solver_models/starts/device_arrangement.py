"""Orders of the devices in which well-linked ones stand together, by recursive cuts where the links are weakest.

The cut of a set of devices is the one with the least mean rate across it: of the cuts of two halves that is the least
one, and unlike a cut into exact halves it never has to go through a host. A set of at most `MOST_EXACT` devices is cut
exactly, a larger one as well as two growths by maximum adjacency and single moves find it.
"""

import numpy as np

from solver_models.instance import Instance, Integers
from solver_models.simulation.columns import FORWARD_SIZE

MOST_EXACT = 10
"""Devices up to which every cut is looked at."""

LEAST_SIDE = 8
"""Of a larger set, each side of a cut has at least one part in so many, which keeps the recursion shallow."""

RATE_SCALE = 1_000_000
"""What the rate of the fastest pair is rounded to: sums of integers are the same everywhere."""


def device_orders(instance: Instance, *, slowest_first: bool = False) -> list[Integers]:
    """Different orders [D]: as listed, by recursive cuts, and both once more with the fastest devices first.

    With `slowest_first` also the other way round. Equally fast devices keep their places among each other.
    """
    bases = [np.arange(instance.num_devices), cut_order(instance)]
    slowness = instance.work[0, :3].sum(axis=(0, 2))[instance.device_type]
    found = list(bases)
    for sign in (1, -1) if slowest_first else (1,):
        found += [base[np.argsort(sign * slowness[base], kind="stable")] for base in bases]
    return list({order.tobytes(): order for order in found}.values())


def cut_order(instance: Instance) -> Integers:
    """[D] devices by recursive cuts of least mean rate; the listed order where that is as good."""
    return np.array(_ordered(_rates(instance), list(range(instance.num_devices))), np.int64)


def _rates(instance: Instance) -> Integers:
    """[D, D] units per tick between two devices, to and fro, in transfers of the median size; scaled."""
    sizes = instance.layers.edges[:, FORWARD_SIZE]
    size = max(float(np.median(sizes)), 1.0) if len(sizes) else 1.0
    rate = size / np.maximum(instance.layers.latency + size * 1e9 / np.maximum(instance.layers.bandwidth, 1), 1e-9)
    both = rate + rate.T
    np.fill_diagonal(both, 0)
    return np.rint(both / max(float(both.max()), 1e-9) * RATE_SCALE).astype(np.int64)


def _ordered(rates: Integers, devices: list[int]) -> list[int]:
    """The devices, given as listed, side by side of their cut, turned so that a fast link joins the sides."""
    own = rates[np.ix_(devices, devices)]
    others = own[~np.eye(len(devices), dtype=bool)]
    if len(devices) < 3 or (others == others[0]).all():
        return devices
    side = least_cut(own)
    sides = [
        _ordered(rates, [device for device, is_in in zip(devices, side, strict=True) if is_in == s]) for s in (1, 0)
    ]
    turned = [(first, second) for second in (sides[1], sides[1][::-1]) for first in (sides[0], sides[0][::-1])]
    first, second = max(turned, key=lambda pair: rates[pair[0][-1], pair[1][0]])
    return [*first, *second]


def least_cut(rates: Integers) -> list[bool]:
    """Whether each device is on the side of the first, in the cut with the least mean rate across it.

    Of equal cuts the most even one, then the one whose first side has the devices listed first.
    """
    if len(rates) <= MOST_EXACT:
        return _exact_cut(rates)
    first = _grown_cut(rates, 0)
    second = _grown_cut(rates, first[1])
    _, _, side = min(first, second, key=lambda cut: cut[0])
    side = _moved(rates, side)
    flags: list[bool] = (side == side[0]).tolist()
    return flags


def _exact_cut(rates: Integers) -> list[bool]:
    """The best of all cuts."""
    count = len(rates)
    masks = np.arange(1, (1 << count) - 1, 2)
    sides = (masks[:, None] >> np.arange(count)) & 1
    cuts = ((sides @ rates) * (1 - sides)).sum(axis=1)
    sizes = sides.sum(axis=1)
    best = np.lexsort((masks, np.abs(count - 2 * sizes), cuts / (sizes * (count - sizes))))[0]
    flags: list[bool] = (sides[best] == 1).tolist()
    return flags


def _grown_cut(rates: Integers, start: int) -> tuple[tuple[float, int], int, Integers]:
    """The best cut between a device and the next, each the most tightly linked to those before it, from `start` on.

    Its mean rate and unevenness, the device that came last, and the flags [n] of the first side.
    """
    count = len(rates)
    order, savings = np.zeros(count, np.int64), np.zeros(count, np.int64)
    tied, far = rates[start].copy(), -(1 << 60)
    order[0], tied[start] = start, far
    for place in range(1, count):
        device = int(tied.argmax())
        order[place], savings[place] = device, tied[device]
        tied += rates[device]
        tied[device] = far
    cuts = np.cumsum(rates.sum(axis=1)[order] - 2 * savings)[:-1]
    sizes = np.arange(1, count)
    means, uneven = cuts / (sizes * (count - sizes)), np.abs(count - 2 * sizes)
    allowed = np.flatnonzero(np.minimum(sizes, count - sizes) >= max(1, count // LEAST_SIDE))
    best = allowed[np.lexsort((uneven[allowed], means[allowed]))[0]]
    side = np.zeros(count, np.int64)
    side[order[: best + 1]] = 1
    return (float(means[best]), int(uneven[best])), int(order[-1]), side


def _moved(rates: Integers, side: Integers) -> Integers:
    """Single devices change sides as long as that lowers the mean rate, at most as often as there are devices."""
    count, least = len(rates), max(1, len(rates) // LEAST_SIDE)
    side, total, tied = side.copy(), rates.sum(axis=1), rates @ side
    for _ in range(count):
        size, cut = int(side.sum()), int(tied[side == 0].sum())
        sizes = size + 1 - 2 * side
        cuts = cut + np.where(side == 1, 2 * tied - total, total - 2 * tied)
        means = np.where(np.minimum(sizes, count - sizes) >= least, cuts, np.inf) / np.maximum(
            sizes * (count - sizes), 1
        )
        device = int(means.argmin())
        if means[device] >= cut / (size * (count - size)):
            break
        tied = tied + rates[device] * (1 - 2 * side[device])
        side[device] = 1 - side[device]
    return side
