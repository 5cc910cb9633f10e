"""What only kernels call, called by one kernel for Python: a door of its own would compile each of them once more."""

import numpy as np

from solver_models.exact_order.lower_bounds import find_colocated, most_in_flight, settle_times, split_backward
from solver_models.exact_order.propagation import make_jobs, make_windows, narrow
from solver_models.exact_order.shaving import shave
from solver_models.jit import kernel
from solver_models.local_search.critical_path_search import heads, make_heads_and_tails, tails
from solver_models.moves.neighbourhood import (
    merge_stages,
    move_layer,
    move_replica,
    recut,
    reorder_replicas,
    shift_boundary,
    split_stage,
    swap_devices,
)

MOVES = (
    "shift_boundary",
    "recut",
    "move_layer",
    "swap_devices",
    "move_replica",
    "reorder_replicas",
    "split_stage",
    "merge_stages",
)
"""By their numbers in `move`."""


@kernel
def shaved_windows(net, limit):
    """(actions, their windows below the limit, whether narrowing and then shaving leave an order)."""
    colocated = find_colocated(net)
    times, _ = settle_times(net, split_backward(net), colocated, most_in_flight(net, colocated), limit)
    jobs = make_jobs(net, np.zeros(3 * net.replica_stage.shape[0], np.int64))
    windows = make_windows(net, jobs, times, limit)
    leaves_any = narrow(net, jobs, windows)
    nobody, stop = np.zeros((0, 4), np.int64), np.zeros(1, np.int64)
    return jobs, windows, leaves_any, shave(net, jobs, windows, nobody, stop)[2]


@kernel
def longest_paths(net, words, lengths):
    """((makespan, sum of last ends), head and duration and tail of every action, span)."""
    book = make_heads_and_tails(net, words, lengths)
    value = heads(net, book, False)
    tails(net, book)
    paths = book.start + book.span + book.tail
    return value, paths, heads(net, book, True)[0]


@kernel
def move(number, stage_of, start, devices, modes, num_devices, edges):
    """(stage of every layer, where the devices of each stage begin, devices, modes) after one move."""
    num_stages = start.shape[0] - 1
    if num_stages > 1:
        if number == 0:
            return shift_boundary(stage_of, num_stages), start, devices, modes
        if number == 1:
            return recut(stage_of, num_stages), start, devices, modes
        if number == 7:
            return merge_stages(stage_of, start, devices, modes)
    if number == 2:
        return move_layer(stage_of, num_stages, edges), start, devices, modes
    if number == 3:
        return stage_of, start, swap_devices(devices, num_devices), modes
    if number == 4:
        new_start, new_devices = move_replica(start, devices, num_devices)
        return stage_of, new_start, new_devices, modes
    if number == 5:
        return stage_of, start, reorder_replicas(start, devices), modes
    if number == 6:
        return split_stage(stage_of, start, devices, modes, num_devices)
    return stage_of, start, devices, np.copy(modes)
