"""Orders that repeat a building block (Qi et al., 2024, arXiv 2405.15362): one microbatch's actions, six slots apart.

A block lists, per device of a V, the unit slots of F and I of the upper chunk (stage d) and the lower one (stage
2 D - 1 - d). Repeating it every six slots leaves two free for W. What memory allows is then moved forward, and W of
the end make way for I.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate

import numpy as np

from planner.actions import Action, Kind
from planner.baselines.applicability import require_time
from planner.baselines.pipeline import DeviceOrders, Pipeline
from planner.baselines.zero_bubble.weight_grads import AS_GIVEN, Habit, best_filled
from solver_models.simulation.in_order import OrderedSteps, play_in_order

PERIOD = 6
"""Slots between two microbatches: F, I and W of two chunks, one slot each."""

FU, FL, IL, IU, WL, WU = range(6)
"""Kinds of a device's actions: F of the upper and the lower chunk, I and W of the lower and the upper one."""

Block = tuple[tuple[int, int, int, int], ...]
"""Per device, the slots of F upper, F lower, I lower and I upper of microbatch 0."""

_PASSED_ON, _WEIGHT_GRADS = (FU, FL, IL, IU), (WL, WU)

HABITS = tuple(
    Habit(quarters=quarters, at_once=at_once, evens_out=evens_out)
    for quarters in range(5)
    for at_once in (False, True)
    for evens_out in (False, True)
)
"""How W are put in once the times are known; each is tried."""


_MOST_SQUEEZED = 10_000
"""Devices x microbatches up to which the steady part is squeezed, too: within half a second."""


def order_by_block(pipeline: Pipeline, block: Block) -> DeviceOrders:
    """The repeated block, plain and squeezed, within its own memory; W stand as in the block or fill what waits."""
    count = pipeline.num_microbatches
    plain, most = repeat(block, count)
    require_time(pipeline.has_time)
    extents = (True, False) if count * len(block) <= _MOST_SQUEEZED else (True,)
    trials = (
        (orders, habit)
        for grids in (plain, *(squeeze(block, count, ends_only=ends_only) for ends_only in extents))
        for kinds, habits in ((_PASSED_ON, HABITS), (_PASSED_ON + _WEIGHT_GRADS, (AS_GIVEN, *HABITS)))
        for orders in [[_named(pipeline, grid, device=device, kinds=kinds) for device, grid in enumerate(grids)]]
        for habit in habits
    )
    return best_filled(pipeline, trials, limits=_limits(pipeline, most))


@dataclass(slots=True)
class _Grid:
    """What a device does in which slot."""

    slots: tuple[list[int], ...]
    """Per kind (`FU` ... `WU`) and microbatch, its slot."""
    taken: set[int] = field(default_factory=set)
    """Slots that are not free."""
    held: list[int] = field(default_factory=list)
    """Stashes held in every slot."""

    def move(self, kind: int, number: int, *, to: int) -> None:
        """Put an action into another slot, and its stash with it."""
        old = self.slots[kind][number]
        self.taken.discard(old)
        self.taken.add(to)
        self.slots[kind][number] = to
        change = {FU: 1, FL: 1, WL: -1, WU: -1}.get(kind, 0)
        for slot in range(to, old):
            self.held[slot] += change

    def earliest(self, kind: int, number: int, *, after: int, most: int) -> int:
        """The first free slot past `after` from which on the action keeps `most` stashes; at the latest its own."""
        found = slot = self.slots[kind][number]
        while slot - 1 > after:
            slot -= 1
            if kind in (FU, FL) and self.held[slot] >= most:
                break
            if slot not in self.taken:
                found = slot
        return found


def repeat(block: Block, count: int) -> tuple[list[_Grid], int]:
    """Every device's grid for `count` microbatches, and the stashes (of one chunk) that the fullest device holds."""
    steady = [_repeat_row(row, 2 + max(row) // PERIOD) for row in block]
    return [_repeat_row(row, count) for row in block], max(max(grid.held) for grid in steady)


def _repeat_row(row: tuple[int, int, int, int], count: int) -> _Grid:
    """The block's F and I, and a W in the first free slot after each I."""
    slots = [[first + PERIOD * microbatch for microbatch in range(count)] for first in row]
    taken = {slot for kind in slots for slot in kind}
    weight_grads: tuple[list[int], list[int]] = ([], [])
    free = 0
    for slot, lower in sorted([*((slot, True) for slot in slots[IL]), *((slot, False) for slot in slots[IU])]):
        free = max(slot, free) + 1
        while free in taken:
            free += 1
        weight_grads[0 if lower else 1].append(free)
    return _make_grid((*slots, *weight_grads))


def _make_grid(slots: tuple[list[int], ...]) -> _Grid:
    """A stash is held from the slot of its F to the slot before that of its W."""
    change = [0] * (max(map(max, slots)) + 1)
    for kind in (FU, FL):
        for slot in slots[kind]:
            change[slot] += 1
    for kind in _WEIGHT_GRADS:
        for slot in slots[kind]:
            change[slot] -= 1
    return _Grid(slots=slots, taken={slot for kind in slots for slot in kind}, held=list(accumulate(change)))


@lru_cache(maxsize=8)
def squeeze(block: Block, count: int, *, ends_only: bool) -> tuple[_Grid, ...]:
    """Actions of the repeated block as early as its memory allows; then I of the end before W, in its free slots.

    With `ends_only` the steady part stays: what lies between the first I and the last F of the upper end.
    """
    grids, most = repeat(block, count)
    first, last = (grids[0].slots[IU][0], 0), (grids[0].slots[FU][-1], 0)
    _sweep(grids, [event for event in _events(grids) if not (ends_only and first <= event[:2] <= last)], most=most)
    grids = _replay(grids)
    last = (grids[0].slots[FU][-1], 0)
    late = [event for event in _events(grids) if event[:2] > last and event[2] in _PASSED_ON]
    for _, device, kind, number in late:
        _move_before_weight_grads(grids, device, kind=kind, number=number, most=most)
    for grid in grids:
        _put_weight_grads(grid)
    return tuple(grids)


def _replay(grids: list[_Grid]) -> list[_Grid]:
    """The same orders, every action in the earliest slot."""
    actions = [action for _, *action in _events(grids)]
    number_of = {tuple(action): number for number, action in enumerate(actions)}
    sources = [number_of.get((_neighbour(device, kind), kind, number), -1) for device, kind, number in actions]
    nothing = [0] * len(actions)
    steps = OrderedSteps([device for device, *_ in actions], sources, nothing, nothing)
    new = [_Grid(slots=tuple([0] * len(slots) for slots in grid.slots)) for grid in grids]
    for (device, kind, number), end in zip(actions, play_in_order(steps, [1] * len(actions)), strict=True):
        new[device].slots[kind][number] = end - 1
    return [_make_grid(grid.slots) for grid in new]


def _move_before_weight_grads(grids: list[_Grid], device: int, *, kind: int, number: int, most: int) -> None:
    """Into the first slot without F and I in which W that run in every other slot leave no more than `most` stashes."""
    grid = grids[device]
    own = grid.slots[kind][number]
    taken = {slot for kind in _PASSED_ON for slot in grid.slots[kind]}
    for slot in range(_ready(grids, device, kind=kind, number=number) + 1, own):
        if slot not in taken:
            grid.slots[kind][number] = slot
            if _peak(grid) <= most:
                return
    grid.slots[kind][number] = own


def _peak(grid: _Grid) -> int:
    """Most stashes that are held where every slot without F and I runs a W, if one is due."""
    num_slots = 1 + max(slots[-1] for slots in grid.slots)
    begun, returned = np.zeros(num_slots, np.int64), np.zeros(num_slots, np.int64)
    begun[grid.slots[FU] + grid.slots[FL]] = 1
    returned[grid.slots[IL] + grid.slots[IU]] = 1
    surplus = np.cumsum(2 * returned + begun - 1)
    due = surplus - np.minimum(np.minimum.accumulate(surplus), 0)
    return int(np.max(np.cumsum(begun - returned) + due))


def _put_weight_grads(grid: _Grid) -> None:
    """The W that has been due for longest into every free slot."""
    taken = {slot for kind in _PASSED_ON for slot in grid.slots[kind]}
    due = sorted((slot, kind, number) for kind in (IL, IU) for number, slot in enumerate(grid.slots[kind]))
    slot = 0
    for begin, kind, number in due:
        slot = max(slot, begin) + 1
        while slot in taken:
            slot += 1
        grid.slots[kind + 2][number] = slot


def _sweep(grids: list[_Grid], events: Iterable[tuple[int, int, int, int]], *, most: int) -> None:
    """One pass over actions in order of their slots; each goes into the first free slot that it can have."""
    for _, device, kind, number in events:
        after = _ready(grids, device, kind=kind, number=number)
        grid = grids[device]
        grid.move(kind, number, to=grid.earliest(kind, number, after=after, most=most))


def _events(grids: list[_Grid]) -> list[tuple[int, int, int, int]]:
    """(slot, device, kind, number) of every action, in order of slots."""
    return sorted(
        (slot, device, kind, number)
        for device, grid in enumerate(grids)
        for kind in range(len(grid.slots))
        for number, slot in enumerate(grid.slots[kind])
    )


def _neighbour(device: int, kind: int) -> int:
    """The device whose action of this kind comes before; outside the V where none does."""
    return -1 if kind in _WEIGHT_GRADS else device - 1 if kind in (FU, IL) else device + 1


def _ready(grids: list[_Grid], device: int, *, kind: int, number: int) -> int:
    """The last slot of what an action waits for."""
    own = grids[device].slots
    ready = [own[kind][number - 1]] if number else [-1]
    if kind in _WEIGHT_GRADS:
        return max(*ready, own[kind - 2][number])
    neighbour = _neighbour(device, kind)
    if 0 <= neighbour < len(grids):
        ready.append(grids[neighbour].slots[kind][number])
    if kind != FU:
        ready.append(own[kind - 1][number])
    return max(ready)


def _named(pipeline: Pipeline, grid: _Grid, *, device: int, kinds: tuple[int, ...]) -> list[Action]:
    """Actions of these kinds in order of their slots."""
    lower = 2 * pipeline.num_positions - 1 - device
    names: tuple[tuple[Kind, int], ...] = (
        ("F", device), ("F", lower), ("I", lower), ("I", device), ("W", lower), ("W", device),
    )  # fmt: skip
    steps = [(slot, kind, number) for kind in kinds for number, slot in enumerate(grid.slots[kind])]
    return [Action(*names[kind], number) for _, kind, number in sorted(steps)]


def _limits(pipeline: Pipeline, most: int) -> list[int]:
    """Bytes of `most` stashes of the larger chunk, and no more than the memory holds."""
    larger = [0] * pipeline.num_positions
    for stage, cost in enumerate(pipeline.costs):
        position = pipeline.position_of[stage]
        larger[position] = max(larger[position], cost.held_bytes)
    return [min(device.memory, most * held) for device, held in zip(pipeline.devices, larger, strict=True)]
