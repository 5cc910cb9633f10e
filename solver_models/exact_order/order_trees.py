"""Trees that show that no order of a case ends below a threshold; compiled.

A tree decides, node by node, which of two actions of a device comes first, whether a backward pass is one action,
or in which part of its room an action starts. Each of its leaves is closed by the rules of `propagation` alone, from
windows that begin with the threshold and nothing else: no heads of the schedule bound, no order that was played. So
the one that knows the same rules can check it without this search. What it learns, as weighted degrees, only steers it.
"""

from typing import NamedTuple

import numpy as np

from solver_models.compiled import kernel
from solver_models.exact_order.action_sets import ONE_LIMB
from solver_models.exact_order.branch_and_bound import (
    MAX_DEPTH,
    RUN_GROWTH,
    any_pass,
    go_back,
    go_down,
    make_decisions,
    open_pair,
    take_back,
    tight_pass,
)
from solver_models.exact_order.lower_bounds import MAX_REPLICAS, RETURN_TAIL
from solver_models.exact_order.propagation import (
    NetActions,
    TimeWindows,
    job_of,
    make_jobs,
    make_windows,
    narrow,
)
from solver_models.exact_order.shaving import COMES_FIRST, shave
from solver_models.instance import Integers
from solver_models.moves.annealing import longest_order
from solver_models.simulation.evaluator import MICROBATCHES, Net

MAX_JOBS = 256
"""Most actions of a device."""

FIRST_RUN = 100
"""Nodes until the search starts again for the first time, with the weighted degrees learnt."""

SHAVE, PASS, LEAF = -3, -2, -1
"""First figures of a node: it decides where in its room an action starts, or a backward pass, or is closed."""

WHAT, ONE, OTHER = 0, 1, 2
"""Columns of nodes."""


class OrderTree(NamedTuple):
    """A tree in preorder."""

    nodes: Integers
    """[T, 3] `LEAF`; or a device and two of its jobs, the first of which comes first in the first child and second in
    the second; or `PASS`, stage replica and microbatch of a pass that is one action in the one child and two in the
    other."""
    is_one_first: Integers
    """[T] 1 where the first child of such a pass is the one in which it is one action."""


@kernel
def _make_free_windows(net: Net, jobs: NetActions, threshold: int) -> TimeWindows:
    """All that is known before a rule is applied: every action ends before the threshold, and its synchronisation."""
    num_replicas, total = net.replica_stage.shape[0], net.scalars[MICROBATCHES]
    windows = make_windows(net, jobs, np.zeros((RETURN_TAIL + 1, num_replicas, total), np.int64), threshold)
    windows.start[:] = 0
    for n in range(num_replicas):
        for kind in range(2):
            for k in range(total):
                windows.end[job_of(n, kind, k, total)] = windows.end[job_of(n, 2, k, total)]
    return windows


@kernel
def record(jobs: NetActions, tree: OrderTree, size: int, pair: Integers, is_one: int) -> None:
    """Write a decision to the end of a tree."""
    tree.nodes[size] = pair
    tree.is_one_first[size] = is_one
    if pair[0] < 0:
        tree.nodes[size, WHAT] = PASS
    else:
        tree.nodes[size, ONE], tree.nodes[size, OTHER] = jobs.own[pair[0], pair[1]], jobs.own[pair[0], pair[2]]


@kernel
def write(tree: OrderTree, size: int, first: int, second: int, third: int) -> None:
    """Write a node to the end of a tree."""
    tree.nodes[size, WHAT], tree.nodes[size, ONE], tree.nodes[size, OTHER] = first, second, third


@kernel
def _shave_tree(
    net: Net, jobs: NetActions, windows: TimeWindows, tree: OrderTree, size: int, stop: Integers
) -> tuple[int, int, bool]:
    """(nodes looked at, size of the tree, whether any order is left): shaving, written down.

    A supposition that is refuted is a node whose first child is closed; the windows are those of its second child.
    """
    refuted = np.zeros(((tree.nodes.shape[0] - 1 - size) // 2, 4), np.int64)
    if refuted.shape[0] == 0:
        return 0, size, True
    trials, count, alive = shave(net, jobs, windows, refuted, stop)
    for n in range(count):
        what, d, a, b = refuted[n]
        if what == COMES_FIRST:
            write(tree, size, d, jobs.own[d, a], jobs.own[d, b])
        else:
            write(tree, size, SHAVE, jobs.own[d, a], what)
        write(tree, size + 1, LEAF, LEAF, LEAF)
        size += 2
    return trials, size, alive


@kernel
def _most_actions(sets: Integers) -> int:
    """Actions that a set has room for."""
    return ONE_LIMB if sets.ndim == 1 else 64 * sets.shape[1]


def make_sets(net: Net) -> Integers:
    """Empty sets of the actions of every stage replica by kind, [3 N] or [3 N, W], for `find_tree`."""
    longest, size = min(longest_order(net), MAX_JOBS), 3 * len(net.replica_stage)
    return np.zeros(size if longest <= ONE_LIMB else (size, (longest + 63) // 64), np.int64)


@kernel
def find_tree(
    net: Net, kinds: Integers, threshold: int, most_nodes: int, first_run: int, stop: Integers
) -> tuple[OrderTree, int, bool]:
    """(tree, nodes looked at, whether the tree refutes every order below the threshold); `kinds`: `make_sets`.

    It starts again after `first_run` nodes, and now and then, with the weighted degrees learnt; what was decided at the
    top stays, and so does its part of the tree.
    """
    tree = OrderTree(np.full((most_nodes + 1, 3), LEAF), np.zeros(most_nodes + 1, np.int64))
    if longest_order(net) > _most_actions(kinds) or net.replica_stage.shape[0] > MAX_REPLICAS:
        return tree, 0, False
    jobs, most = make_jobs(net, kinds), min(MAX_DEPTH, most_nodes + 1)
    windows = _make_free_windows(net, jobs, threshold)
    decisions, pair, place = make_decisions(windows, most), np.zeros(3, np.int64), np.zeros(most, np.int64)
    alive, run, last, depth, size = True, first_run, first_run, 0, 0
    nodes = 0
    while nodes < most_nodes or not alive:
        nodes += 1
        if nodes >= last and depth > 0:
            take_back(windows, decisions, 0, threshold)
            depth, run = 0, run * RUN_GROWTH
            trials, size, alive = _shave_tree(net, jobs, windows, tree, place[0], stop)
            nodes += trials
            last = nodes + run
        if alive and narrow(net, jobs, windows):
            is_left = (
                tight_pass(net, jobs, windows, pair) or open_pair(net, jobs, windows, pair) or any_pass(windows, pair)
            )
            if not is_left or depth == most or size + 2 >= tree.nodes.shape[0] or stop[0] != 0:
                return tree, nodes, False
            alive = go_down(net, jobs, windows, decisions, depth, threshold, pair)
            record(jobs, tree, size, pair, decisions.is_one[depth])
            place[depth], depth, size = size, depth + 1, size + 1
            continue
        if size >= tree.nodes.shape[0]:  # what shaving wrote may leave no room
            return tree, nodes, False
        write(tree, size, LEAF, LEAF, LEAF)
        size += 1
        if depth == 0:
            return OrderTree(tree.nodes[:size], tree.is_one_first[:size]), nodes, True
        depth -= 1
        alive = go_back(net, jobs, windows, decisions, depth, threshold)
    return tree, nodes, False
