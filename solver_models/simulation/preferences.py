"""How published list schedules choose among what a device could start: `evaluator.play` asks.

Microbatches are taken in order everywhere, W in the order of their I. A transfer of no time from a stage replica to its
own gradients may say when its F has ended, so that what became ready first is known.
"""

from typing import NamedTuple

import numpy as np

from solver_models.compiled import kernel
from solver_models.instance import BACKWARD, FORWARD, INPUT_GRAD, WEIGHT_GRAD, Integers, ShortIntegers
from solver_models.simulation.columns import (
    ACTIVATIONS,
    GRADIENTS,
    REPLICA_HAS_WEIGHT,
    REPLICA_HELD,
    REPLICA_NUMBER,
    REPLICA_STASH,
)

DEEPEST, OLDEST, ROUND_ROBIN, FIRST_READY = range(4)
"""Which stage of a device comes first: the one nearest to the loss; the one whose microbatch is the oldest; of so many
microbatches as there are devices, first all in one stage, then all in the next; the one that has waited longest."""

BACKWARD_FIRST, FORWARD_FIRST, AS_READY = range(3)
"""Which kind comes first: I or B, F, or what has waited longer, then I or B."""

FIRST, COUNT = 0, 1
"""Columns of a queue of W."""


class Preference(NamedTuple):
    """A rule, and what it has seen of a play."""

    cap: Integers
    """[N] most microbatches between F and I."""
    stages: int
    """`DEEPEST` ... `FIRST_READY`."""
    kinds: int
    """`BACKWARD_FIRST` ... `AS_READY`."""
    splits: bool
    """I and W apart; otherwise B."""
    most_pending: int
    """So many W may wait before one is run in place of an F."""
    ready: Integers
    """[N, 2, M] when the last of what F, and I or B, wait for has arrived."""
    pending: Integers
    """[D, longest] stage replicas in the order of their I."""
    queue: Integers
    """[D, 2] where those begin that have yet to run W, and how many they are."""


NO_RULE, _NONE = -2, -1
"""Not asked, and no action."""


@kernel
def prefer(
    preference: Preference | None,
    replicas: Integers,
    device_start: Integers,
    free: Integers,
    d: int,
    count: Integers,
    missing: ShortIntegers,
) -> int:
    """The action (replica * 4 + kind) that the rule starts on the idle device d, -1 to wait, `NO_RULE` if there is
    none; arguments as for `evaluator.choose`.
    """
    if preference is None:
        return NO_RULE
    kinds, queue, room = preference.kinds, preference.queue[d], free[d]
    own = replicas[device_start[d] : device_start[d + 1]]
    backward, returned = _best_backward(preference, own, room, count, missing)
    forward, arrived = _NONE, returned
    if kinds != BACKWARD_FIRST or (backward < 0 and queue[COUNT] <= preference.most_pending):
        forward, arrived = _best_forward(preference, own, room, count, missing)
    if forward >= 0 and (backward < 0 or kinds == FORWARD_FIRST or (kinds == AS_READY and arrived < returned)):
        return forward
    if backward >= 0:
        if backward & 3 == INPUT_GRAD and preference.splits:
            _queue_weight(preference, own, d, backward >> 2)
        return backward
    if queue[COUNT] == 0:
        return _NONE
    n: int = preference.pending[d, queue[FIRST]]
    queue[FIRST] += 1
    queue[COUNT] -= 1
    return n * 4 + WEIGHT_GRAD


@kernel
def _queue_weight(preference: Preference, replicas: Integers, d: int, n: int) -> None:
    """Let the W of an I wait, if the stage replica has any."""
    queue = preference.queue[d]
    for k in range(replicas.shape[0]):
        if replicas[k, REPLICA_NUMBER] == n and replicas[k, REPLICA_HAS_WEIGHT]:
            preference.pending[d, queue[FIRST] + queue[COUNT]] = n
            queue[COUNT] += 1


@kernel
def _best_backward(
    preference: Preference, replicas: Integers, room: int, count: Integers, missing: ShortIntegers
) -> tuple[int, int]:
    """The I or B that comes next, if one is ready and has room, and since when it is ready; else -1."""
    best, best_ready, best_rank = _NONE, 0, (0, 0, 0)
    for k in range(replicas.shape[0]):
        n = replicas[k, REPLICA_NUMBER]
        m = count[n, INPUT_GRAD]
        if m >= count[n, FORWARD] or missing[n, GRADIENTS, m] > 0:
            continue
        if replicas[k, REPLICA_STASH] - replicas[k, REPLICA_HELD] > room:
            continue
        is_whole = replicas[k, REPLICA_HAS_WEIGHT] > 0 and not preference.splits
        rank = _rank(preference, n, m, GRADIENTS, 0 if is_whole else 1)
        if best < 0 or rank < best_rank:
            best, best_rank = n * 4 + (BACKWARD if is_whole else INPUT_GRAD), rank
            best_ready = preference.ready[n, GRADIENTS, m]
    return best, best_ready


@kernel
def _best_forward(
    preference: Preference, replicas: Integers, room: int, count: Integers, missing: ShortIntegers
) -> tuple[int, int]:
    """The next F that is ready, below its cap and leaves room for a later F, and since when it is; or -1."""
    best, best_ready, best_rank, reserved = _NONE, 0, (0, 0, 0), 0
    for k in range(replicas.shape[0] - 1, -1, -1):
        n, held = replicas[k, REPLICA_NUMBER], replicas[k, REPLICA_HELD]
        m, flight = count[n, FORWARD], count[n, FORWARD] - count[n, INPUT_GRAD]
        if m >= missing.shape[2]:
            continue
        if flight < preference.cap[n] and missing[n, ACTIVATIONS, m] == 0 and held + reserved <= room:
            rank = _rank(preference, n, m, ACTIVATIONS, 0)
            if best < 0 or rank < best_rank:
                best, best_ready, best_rank = n * 4 + FORWARD, preference.ready[n, ACTIVATIONS, m], rank
        if flight == 0:
            reserved += held
    return best, best_ready


@kernel
def _rank(preference: Preference, n: int, m: int, direction: int, is_half: int) -> tuple[int, int, int]:
    """The least comes first; stage replicas are stages here, and no two have the same."""
    from_loss = preference.cap.shape[0] - 1 - n
    if preference.stages == DEEPEST:
        return from_loss, 0, 0
    if preference.stages == OLDEST:
        return m, from_loss, 0
    if preference.stages == ROUND_ROBIN:
        return m // preference.queue.shape[0], from_loss if direction == GRADIENTS else n, 0
    ready = preference.ready[n, direction, m]
    return ready, is_half if preference.kinds == AS_READY else m, n


@kernel
def note_arrival(preference: Preference | None, n: int, direction: int, m: int, now: int) -> None:
    """Remember when the latest of what an action waits for has come."""
    if preference is not None:
        preference.ready[n, direction, m] = now


def make_preference(
    cap: Integers, shape: tuple[int, int, int], *, stages: int, kinds: int, splits: bool, most_pending: int
) -> Preference:
    """A rule that has seen nothing yet; `shape`: devices, actions of the longest order, microbatches."""
    num_devices, longest, count = shape
    return Preference(
        cap, stages, kinds, splits, most_pending, np.zeros((len(cap), GRADIENTS + 1, count), np.int64),
        np.zeros((num_devices, longest), np.int64), np.zeros((num_devices, 2), np.int64),
    )  # fmt: skip
