"""Orders that repeat a building block (Qi et al., 2024, arXiv 2405.15362): one microbatch's actions, six slots apart.

A block lists, per device of a V, the unit slots of F and I of the upper chunk (stage d) and the lower one (stage
2 D - 1 - d). Repeating it every six slots leaves two free for W; what memory allows is then moved forward in the
warm-up and in the cool-down, as the authors' code does.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

from planner.actions import Action, Kind
from planner.baselines.applicability import require_time
from planner.baselines.pipeline import DeviceOrders, Pipeline
from planner.baselines.zero_bubble.weight_grads import Habit, best_filled
from solver_models.simulation.in_order import OrderedSteps, play_in_order

PERIOD = 6
"""Slots between two microbatches: F, I and W of two chunks, one slot each."""

FU, FL, IL, IU, W = range(5)
"""Kinds of a device's actions in the order in which a microbatch needs them: F upper, F lower, I lower, I upper, W."""

Block = tuple[tuple[int, int, int, int], ...]
"""Per device, the slots of F upper, F lower, I lower and I upper of microbatch 0."""

HABITS = tuple(
    Habit(quarters=quarters, at_once=at_once, evens_out=evens_out)
    for quarters in range(5)
    for at_once in (False, True)
    for evens_out in (False, True)
)
"""How W are put in once the times are known; each is tried."""


def order_by_block(pipeline: Pipeline, block: Block) -> DeviceOrders:
    """The repeated block, squeezed, with W where the measured times leave room, within the block's own memory."""
    count = pipeline.num_microbatches
    plain, most = repeat(block, count)
    orders = [_named(pipeline, grid, device=device) for device, grid in enumerate(plain)]
    trials = [orders]
    require_time(pipeline.has_time)
    squeezed = squeeze(plain, most=most)
    trials.append([_named(pipeline, grid, device=device) for device, grid in enumerate(squeezed)])
    limits = _limits(pipeline, most)
    return best_filled(pipeline, ((orders, habit) for orders in trials for habit in HABITS), limits=limits)


@dataclass(slots=True)
class _Grid:
    """What a device does in which slot."""

    slots: tuple[list[int], ...]
    """Per kind (`FU` ... `W`) and occurrence, its slot."""
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
        change = {FU: 1, FL: 1, W: -1}.get(kind, 0)
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
    grids = [_repeat_row(row, count) for row in block]
    steady = [_repeat_row(row, 2 + max(row) // PERIOD) for row in block]
    return grids, max(max(grid.held) for grid in steady)


def _repeat_row(row: tuple[int, int, int, int], count: int) -> _Grid:
    """The block's F and I, and a W in the first free slot after each I."""
    slots = [[first + PERIOD * microbatch for microbatch in range(count)] for first in row]
    taken = {slot for kind in slots for slot in kind}
    weight_grads: list[int] = []
    for slot in sorted(slots[IL] + slots[IU]):
        free = max([slot, *weight_grads[-1:]]) + 1
        while free in taken:
            free += 1
        weight_grads.append(free)
    return _make_grid((*slots, weight_grads))


def _make_grid(slots: tuple[list[int], ...]) -> _Grid:
    """A stash is held from the slot of its F to the slot of its W."""
    change = [0] * (max(map(max, slots)) + 2)
    for kind in (FU, FL):
        for slot in slots[kind]:
            change[slot] += 1
    for slot in slots[W]:
        change[slot + 1] -= 1
    return _Grid(slots=slots, taken={slot for kind in slots for slot in kind}, held=list(accumulate(change)))


def squeeze(grids: list[_Grid], *, most: int) -> list[_Grid]:
    """Move actions of the warm-up and the cool-down forward; the W wait for `fill` to put them in again."""
    _sweep(grids, most=most, moves=(FU, FL, IL, IU, W), warm_up=True)
    grids = _replay(grids)
    for grid in grids:
        grid.taken.difference_update(grid.slots[W])
    _sweep(grids, most=most, moves=(IL, IU), warm_up=False)
    return grids


def _sweep(grids: list[_Grid], *, most: int, moves: tuple[int, ...], warm_up: bool) -> None:
    """One pass in order of slots: before the first I leaves the upper end, and after its last F."""
    first, last = grids[0].slots[IU][0], grids[0].slots[FU][-1]
    for slot, device, kind, number in list(_events(grids, moves)):
        if slot <= last and not (warm_up and slot < first):
            continue
        after = _ready(grids, device, kind=kind, number=number)
        grid = grids[device]
        grid.move(kind, number, to=grid.earliest(kind, number, after=after, most=most))


def _replay(grids: list[_Grid]) -> list[_Grid]:
    """The same orders, every action in the earliest slot."""
    actions = [action for _, *action in _events(grids, (FU, FL, IL, IU, W))]
    number_of = {tuple(action): number for number, action in enumerate(actions)}
    sources = [number_of.get((_neighbour(device, kind), kind, number), -1) for device, kind, number in actions]
    nothing = [0] * len(actions)
    steps = OrderedSteps([device for device, *_ in actions], sources, nothing, nothing)
    new = [_Grid(slots=tuple([0] * len(slots) for slots in grid.slots)) for grid in grids]
    for (device, kind, number), end in zip(actions, play_in_order(steps, [1] * len(actions)), strict=True):
        new[device].slots[kind][number] = end - 1
    return [_make_grid(grid.slots) for grid in new]


def _events(grids: list[_Grid], moves: tuple[int, ...]) -> Iterator[tuple[int, int, int, int]]:
    yield from sorted(
        (slot, device, kind, number)
        for device, grid in enumerate(grids)
        for kind in moves
        for number, slot in enumerate(grid.slots[kind])
    )


def _neighbour(device: int, kind: int) -> int:
    """The device whose action of this kind comes before; outside the V where none does."""
    return -1 if kind == W else device - 1 if kind in (FU, IL) else device + 1


def _ready(grids: list[_Grid], device: int, *, kind: int, number: int) -> int:
    """The last slot of what an action waits for."""
    own = grids[device].slots
    ready = [own[kind][number - 1]] if number else [-1]
    if kind == W:
        ready.append(sorted(own[IL] + own[IU])[number])
        return max(ready)
    neighbour = _neighbour(device, kind)
    if 0 <= neighbour < len(grids):
        ready.append(grids[neighbour].slots[kind][number])
    if kind != FU:
        ready.append(own[kind - 1][number])
    return max(ready)


def _named(pipeline: Pipeline, grid: _Grid, *, device: int) -> list[Action]:
    """F and I in order of their slots."""
    lower = 2 * pipeline.num_positions - 1 - device
    names: tuple[tuple[Kind, int], ...] = (("F", device), ("F", lower), ("I", lower), ("I", device))
    steps = [(slot, kind, number) for kind in (FU, FL, IL, IU) for number, slot in enumerate(grid.slots[kind])]
    return [Action(*names[kind], number) for _, kind, number in sorted(steps)]


def _limits(pipeline: Pipeline, most: int) -> list[int]:
    """Bytes of `most` stashes of the larger chunk, and no more than the memory holds."""
    larger = [0] * pipeline.num_positions
    for stage, cost in enumerate(pipeline.costs):
        position = pipeline.position_of[stage]
        larger[position] = max(larger[position], cost.held_bytes)
    return [min(budget, most * held) for budget, held in zip(pipeline.budgets, larger, strict=True)]
