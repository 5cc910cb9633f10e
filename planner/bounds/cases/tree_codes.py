"""What the nodes of a refutation's trees decide, as the codes of a certificate, and what follows for their children.

A code names two actions of a device, one of which comes first; or a backward pass, which is one piece or split; or an
action, which starts in some part of its room or does not. One of both holds in every order, whatever is known.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy

from planner.bounds.cases.backward_passes import ONE, SPLIT, settle
from planner.bounds.cases.order_windows import Bits, Cases, OrderNodes
from planner.bounds.minimum_costs import Integers
from planner.errors import refused_certificate

STARTS_EARLY, ENDS_LATE = 0, 1
"""What the first child supposes of an action: it starts in the first part of its room, or ends in the last."""

ROOM_PARTS = 8
"""Parts of the room of an action."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeCodes:
    """Codes of cases with `D` devices, `C` places on each and `M` microbatches; `Y = 3 C M` actions per device.

    From 0: pairs of actions, (device Y + a) Y + b. From D Y^2: backward passes, replica M + microbatch. From there, D C
    M codes on, 2 (device Y + a) + what is supposed of a.
    """

    devices: int
    """D."""
    places: int
    """C."""
    count: int
    """M."""

    @staticmethod
    def of(orders: OrderNodes) -> "TreeCodes":
        """Codes that fit the devices, places and microbatches of these nodes."""
        devices, count = orders.start.shape[1], orders.is_open.shape[2]
        return TreeCodes(devices=devices, places=orders.is_open.shape[1] // devices, count=count)

    @property
    def actions(self) -> int:
        """Y."""
        return 3 * self.places * self.count

    @property
    def first_pass(self) -> int:
        """The first code that names a backward pass."""
        return self.devices * self.actions * self.actions

    @property
    def first_start(self) -> int:
        """The first code that names where an action starts."""
        return self.first_pass + self.devices * self.places * self.count

    @property
    def end(self) -> int:
        """No code is as large."""
        return self.first_start + 2 * self.devices * self.actions

    def action(self, place: int, kind: int, *, microbatch: int) -> int:
        """The number of an action on its device."""
        return (3 * place + kind) * self.count + microbatch

    def pair(self, device: int, a: int, *, b: int) -> int:
        """Action a of a device comes first, or b does."""
        return (device * self.actions + a) * self.actions + b

    def one_piece(self, device: int, place: int, *, microbatch: int) -> int:
        """A backward pass is one piece, or split."""
        return self.first_pass + (device * self.places + place) * self.count + microbatch

    def start(self, device: int, a: int, *, what: int) -> int:
        """`STARTS_EARLY` or `ENDS_LATE` holds for action a of a device, or it does not."""
        return self.first_start + 2 * (device * self.actions + a) + what


def are_sound(codes: Integers, orders: OrderNodes) -> Bits:
    """[N] whether a code names two actions of a device, a backward pass that is open, or an action that is not."""
    known, num, actions = TreeCodes.of(orders), len(codes), orders.start.shape[2]
    is_known = (codes >= 0) & (codes < known.end)
    codes = numpy.where(is_known, codes, 0)
    rows, is_open = numpy.arange(num), orders.is_open.reshape(num, known.places * known.devices * known.count)
    is_pair, is_start = codes < known.first_pass, codes >= known.first_start
    is_pass = ~is_pair & ~is_start
    are_two = codes // actions % actions != codes % actions
    place = numpy.where(is_start, (codes - known.first_start) // 2, 0)
    replica, kind, microbatch = place // known.count // 3, place // known.count % 3, place % known.count
    own = numpy.where(is_pass, codes - known.first_pass, replica * known.count + microbatch)
    is_open_pass = is_open[rows, numpy.where(is_pair, 0, own)]
    is_decided = (kind == 0) | ~is_open_pass
    return numpy.asarray(is_known & (is_pair & are_two | is_pass & is_open_pass | is_start & is_decided))


def choose(orders: OrderNodes) -> Integers:
    """[N] code of the pair of least room in either order, then of an open backward pass; -1 where nothing is open."""
    time = orders.time
    room = orders.end[..., None, :] - (orders.start + time)[..., :, None] - time[..., None, :]
    other = room.swapaxes(2, 3)
    size, num = room.shape[-1], len(room)
    is_open = ~(orders.before | orders.before.swapaxes(2, 3)) & ~numpy.eye(size, dtype=bool)
    is_open &= (time[..., :, None] > 0) & (time[..., None, :] > 0)
    score = numpy.where(is_open, room.astype(float) * other + room + other, numpy.inf).reshape(num, room[:1].size)
    best = score.argmin(axis=1)
    passes = orders.is_open.reshape(num, orders.is_open.shape[1] * orders.is_open.shape[2])
    either = numpy.where(passes.any(axis=1), score.shape[1] + passes.argmax(axis=1), -1)
    return numpy.where(numpy.isinf(score[numpy.arange(num), best]), either, best)


def decide(orders: OrderNodes, codes: Integers, *, nodes: tuple[Integers, Integers], cases: Cases) -> OrderNodes:
    """Two nodes for each, in turns: what its code says holds, and it does not."""
    num, actions, known = len(codes), orders.start.shape[2], TreeCodes.of(orders)
    both = orders.take(numpy.repeat(numpy.arange(num), 2))
    both.node[::2], both.node[1::2] = nodes
    rows = numpy.flatnonzero(codes < known.first_pass)
    pairs = codes[rows]
    device, a, b = pairs // (actions * actions), pairs // actions % actions, pairs % actions
    both.before[2 * rows, device, a, b] = True
    both.before[2 * rows + 1, device, b, a] = True
    rows = numpy.flatnonzero((codes >= known.first_pass) & (codes < known.first_start))
    place = codes[rows] - known.first_pass
    own = cases.take(both.case)
    for what in (ONE, SPLIT):
        settle(both, own, rows=(2 * rows + what, place // cases.count, place % cases.count), what=what)
    _bound_starts(both, codes, known=known)
    return both


def _bound_starts(both: OrderNodes, codes: Integers, *, known: TreeCodes) -> None:
    """Where codes name a part of an action's room: it starts there, or not; it ends there, or not."""
    rows = numpy.flatnonzero(codes >= known.first_start)
    place, what = numpy.divmod(codes[rows] - known.first_start, 2)
    device, action = place // known.actions, place % known.actions
    for number in (STARTS_EARLY, ENDS_LATE):
        own = numpy.flatnonzero(what == number)
        where = device[own], action[own]
        first, second = (2 * rows[own], *where), (2 * rows[own] + 1, *where)
        start, end, time = both.start[first], both.end[first], both.time[first]
        part = numpy.maximum(end - start - time, 0) // ROOM_PARTS
        if number == STARTS_EARLY:
            both.end[first] = numpy.minimum(end, start + time + part)
            both.start[second] = start + part + 1
        else:
            both.start[first] = numpy.maximum(start, end - time - part)
            both.end[second] = end - part - 1


def subtree_sizes(tree: Sequence[int]) -> list[int]:
    """Nodes of the subtree that begins at every place, 0 in a leaf; raises ValueError if the tree is none."""
    sizes, done = [0] * len(tree), list[int]()
    for place in range(len(tree) - 1, -1, -1):
        if not tree[place]:
            sizes[place] = 1
        elif len(done) < 2:
            raise refused_certificate("one of its trees ends too soon")
        else:
            sizes[place] = 1 + done.pop() + done.pop()
        done.append(sizes[place])
    if len(done) != 1:
        raise refused_certificate("one of its trees has nodes that lead nowhere")
    return sizes
