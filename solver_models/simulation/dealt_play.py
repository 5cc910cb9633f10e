"""One pipeline plays its assignment: microbatches of different sizes, in order, on stages whose devices never wait in
vain.

Every device takes the action that can start first; of several a backward before a forward before a W. So an order
comes about that fits these sizes. Links are taken to be free.
"""

from typing import NamedTuple

import numpy as np

from solver_models.compiled import int64, kernel
from solver_models.instance import BACKWARD, FORWARD, INPUT_GRAD, WEIGHT_GRAD, Integers

STUCK = 1 << 61
"""When an assignment ends that does not fit into memory."""

MISSING, READY = 0, 1
"""What is known of arrivals: how many have not been sent yet, and when the last of the others is there."""

FROM, TO, RETURNS = 0, 1, 2
"""Columns of a transfer."""

DURING, AFTER = 0, 1
"""Columns of an action's steps."""

THERE, BACK = 0, 1
"""Directions of a transfer."""


class ListedStages(NamedTuple):
    """S stages on P positions, with E transfers between them, for microbatches of C sizes."""

    position: Integers
    """[S] who runs the stage."""
    has_weight: Integers
    """[S] 1 if there is a W."""
    ticks: Integers
    """[C, S, 4] of F, I, W and B."""
    steps: Integers
    """[C, S, 4, 2] units that an action adds while it runs, and those that it adds for good."""
    transfers: Integers
    """[E, 3] sending stage, receiving stage, 1 if a gradient comes back."""
    delay: Integers
    """[C, E, 2] ticks there, and back."""
    budget: Integers
    """[P] units beside what is resident."""
    cap: Integers
    """[S] most microbatches between F and I."""
    fuses: Integers
    """[1] 1 if I and W run as B."""


@kernel
def play_assignment(stages: ListedStages, assignment: Integers, order: Integers) -> int:
    """When the pipeline ends; `assignment` [M] is the size of every microbatch, in order.

    `order` gets what is run, one after the other, as (place x S + stage) x 4 + kind, and -1 behind it; it has room for
    3 x S x M actions and one more.
    """
    num_stages, count = stages.position.shape[0], assignment.shape[0]
    done = np.zeros((num_stages, 3), np.int64)
    free, held = np.zeros(stages.budget.shape[0], np.int64), np.zeros(stages.budget.shape[0], np.int64)
    due = np.zeros((2, num_stages, 2, count), np.int64)
    for e in range(stages.transfers.shape[0]):
        due[MISSING, stages.transfers[e, TO], THERE, :] += 1
        due[MISSING, stages.transfers[e, FROM], BACK, :] += stages.transfers[e, RETURNS]
    number, left = 0, 0
    for s in range(num_stages):
        left += count * (3 if stages.has_weight[s] and not stages.fuses[0] else 2)
    while number < left:
        code, place, begin = _choose_next(stages, assignment, done, free, held, due)
        if code < 0:
            return STUCK
        s, kind, p = code >> 2, code & 3, stages.position[code >> 2]
        end = begin + stages.ticks[assignment[place], s, kind]
        free[p] = end
        held[p] += stages.steps[assignment[place], s, kind, AFTER]
        done[s, INPUT_GRAD if kind == BACKWARD else kind] += 1
        order[number] = (place * num_stages + s) * 4 + kind
        number += 1
        if kind != WEIGHT_GRAD:
            deliver(stages, s, THERE if kind == FORWARD else BACK, place, end + stages.delay[assignment[place]], due)
    order[number] = -1
    return int64(np.max(free))


@kernel
def deliver(stages: ListedStages, s: int, direction: int, place: int, arrival: Integers, due: Integers) -> None:
    """Let what stage s has made for a microbatch arrive: forward (direction  ), or back; `arrival` [E, 2] says when."""
    for e in range(stages.transfers.shape[0]):
        if stages.transfers[e, direction] == s and (direction == THERE or stages.transfers[e, RETURNS]):
            target = stages.transfers[e, 1 - direction]
            due[MISSING, target, direction, place] -= 1
            due[READY, target, direction, place] = max(due[READY, target, direction, place], arrival[e, direction])


@kernel
def _choose_next(
    stages: ListedStages, assignment: Integers, done: Integers, free: Integers, held: Integers, due: Integers
) -> tuple[int, int, int]:
    """Stage x 4 + kind, place and begin of what can start first; -1 if nothing can."""
    best, best_place, first, best_rank = -1, 0, STUCK, 0
    for s in range(stages.position.shape[0]):
        p = stages.position[s]
        for kind in range(3):
            place = done[s, kind]
            if kind == FORWARD:
                may = place < assignment.shape[0] and place - done[s, INPUT_GRAD] < stages.cap[s]
            elif kind == INPUT_GRAD:
                may = place < done[s, FORWARD]
            else:
                may = place < done[s, INPUT_GRAD] and stages.has_weight[s] and not stages.fuses[0]
            if not may or (kind != WEIGHT_GRAD and due[MISSING, s, kind, place] > 0):
                continue
            begin = free[p] if kind == WEIGHT_GRAD else max(free[p], due[READY, s, kind, place])
            run = BACKWARD if kind == INPUT_GRAD and stages.has_weight[s] and stages.fuses[0] else kind
            rank = (1 if kind == FORWARD else 0 if kind == INPUT_GRAD else 2) * 4096 - s
            if begin > first or (begin == first and rank >= best_rank and best >= 0):
                continue
            if held[p] + stages.steps[assignment[place], s, run, DURING] <= stages.budget[p]:
                best, best_place, first, best_rank = s * 4 + run, place, begin, rank
    return best, best_place, first
