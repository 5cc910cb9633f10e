"""Device orders that repeat a building block (Qi et al., 2024, arXiv 2405.15362), for two chunks per device in a V.

A block gives the unit slots of one microbatch's F and I on every device: `down` slots from device to device while F
goes down the V, `up` while it comes back, the same for I; three waits at the turns keep slots apart modulo six, and the
two that are left take the W. The sums of the four steps decide the memory: V-Min is (1, 1, 1, 1), V-Half (2, 1, 2, 1).
"""

from collections.abc import Iterator
from functools import cache
from itertools import product

from solver_models.instance import FORWARD, INPUT_GRAD, WEIGHT_GRAD, DeviceOrder

_STEPS = (1, 2, 3, 4)
"""Slots tried from device to device."""
_PER_STEPS = 10
"""Blocks of the same steps that are looked at: those of the shortest stay in memory."""

PERIOD = 6
"""Slots between two microbatches."""

Block = tuple[tuple[int, int, int, int], ...]
"""Per device, the slots of F upper, F lower, I lower and I upper of microbatch 0."""


@cache
def find_blocks(num_devices: int) -> tuple[tuple[int, Block], ...]:
    """(most stashes of a chunk on a device, block): for about every number of stashes the block that ends first."""
    best: dict[int, Block] = {}
    for steps in product(_STEPS, repeat=4):
        for block in sorted(_blocks(num_devices, steps), key=_lifetime)[:_PER_STEPS]:
            peak = max(_peak(block[0]), _peak(block[num_devices // 2]), _peak(block[-1]))
            if peak not in best or block[0][3] < best[peak][0][3]:
                best[peak] = block
    return tuple(sorted(best.items()))


def _lifetime(block: Block) -> int:
    """Slots from F to I of both chunks, on the device where they are most."""
    return max(upper[1] - upper[0] + lower[1] - lower[0] for upper, lower in _spans(block))


def _spans(block: Block) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    yield from (((row[0], row[3]), (row[1], row[2])) for row in block)


def _blocks(num_devices: int, steps: tuple[int, ...]) -> Iterator[Block]:
    """Blocks with these steps: all waits at the turns that keep the slots of every device apart."""
    last = num_devices - 1
    upper = [steps[0] * d for d in range(num_devices)]
    for first in _waits(upper[last], steps[1], taken=[(slot,) for slot in upper], is_down=False):
        lower = [first + steps[1] * (last - d) for d in range(num_devices)]
        for second in _waits(lower[0], steps[2], taken=list(zip(upper, lower, strict=True)), is_down=True):
            back = [second + steps[2] * d for d in range(num_devices)]
            for third in _waits(back[last], steps[3], taken=list(zip(upper, lower, back, strict=True)), is_down=False):
                end = [third + steps[3] * (last - d) for d in range(num_devices)]
                yield tuple(zip(upper, lower, back, end, strict=True))


def _waits(after: int, step: int, *, taken: list[tuple[int, ...]], is_down: bool) -> list[int]:
    """Slots soon after `after` from which a pass can be run without meeting what is taken."""
    found = []
    for wait in range(1, PERIOD + 1):
        slots = range(after + wait, after + wait + step * len(taken), step)
        rows = taken if is_down else taken[::-1]
        if all((slot - other) % PERIOD for slot, row in zip(slots, rows, strict=True) for other in row):
            found.append(after + wait)
    return found


def _peak(row: tuple[int, int, int, int]) -> int:
    """Most stashes held at once when the row is repeated without end."""
    count = 2 + max(row) // PERIOD
    held = most = 0
    for kind, _ in _repeat_row(row, count):
        held += (kind in (0, 1)) - (kind == 4)
        most = max(most, held)
    return most


def _repeat_row(row: tuple[int, int, int, int], count: int) -> list[tuple[int, int]]:
    """(kind, microbatch) in order of slots, 4 standing for W; a W takes the first free slot after its I."""
    slots = {slot + PERIOD * m: (kind, m) for kind, slot in enumerate(row) for m in range(count)}
    device_order, waiting = list[tuple[int, int]](), 0
    done = 0
    for slot in range(max(slots) + 1):
        if slot in slots:
            device_order.append(slots[slot])
            waiting += slots[slot][0] in (2, 3)
        elif waiting:
            device_order.append((4, done))
            waiting, done = waiting - 1, done + 1
    return device_order + [(4, done + k) for k in range(waiting)]


def make_block_orders(block: Block, *, num_microbatches: int) -> dict[int, DeviceOrder]:
    """Per position of the V, its device order; W of both chunks come in the order of their I."""
    num_stages = 2 * len(block)
    device_orders: dict[int, DeviceOrder] = {}
    for d, row in enumerate(block):
        stages = (d, num_stages - 1 - d, num_stages - 1 - d, d)
        waiting: list[tuple[int, int]] = []
        device_orders[d] = []
        for kind, m in _repeat_row(row, num_microbatches):
            if kind == 4:
                device_orders[d].append((WEIGHT_GRAD, *waiting.pop(0)))
            else:
                device_orders[d].append((FORWARD if kind < 2 else INPUT_GRAD, stages[kind], m))
                if kind > 1:
                    waiting.append((stages[kind], m))
    return device_orders
