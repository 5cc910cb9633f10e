"""The tree that refutes the orders of one case, or of a part of it."""

from collections.abc import Hashable
from typing import NamedTuple

from solver_models.exact_order.decomposition import likeness, split_net
from solver_models.exact_order.order_trees import FIRST_RUN, OrderTree, find_tree, make_sets
from solver_models.instance import Integers
from solver_models.local_search.search import Candidate, Searcher


class CaseTree(NamedTuple):
    """No order of some stage replicas of a case ends below a threshold."""

    tree: OrderTree
    """Why: its stage replicas are those below, its jobs (replica * 3 + kind) * microbatches + microbatch."""
    stage: Integers
    """[N] stage of every stage replica."""
    device: Integers
    """[N] device that holds it."""


def refute_case(
    searcher: Searcher, candidate: Candidate, *, threshold: int, most_nodes: int, stop: Integers
) -> CaseTree | None:
    """The tree of the first part of the case that is refuted, with at most so many nodes each; None if none is.

    A part is searched by itself: a tree that decides something here and something there multiplies what it could add.
    It ends early once `stop[0]` is set.
    """
    seen = set[Hashable]()
    for part in split_net(searcher.net_of(candidate)):
        key = likeness(part)
        if key in seen:
            continue
        seen.add(key)
        tree, _, is_closed = find_tree(part, make_sets(part), threshold, most_nodes, FIRST_RUN, stop)
        if is_closed:
            return CaseTree(tree=tree, stage=part.replica_stage, device=part.replica_device)
    return None
