"""Trees for a refutation, found by the compiled search: which pairs and passes to decide, case by case.

The refutation looks at every node by rules of its own; what is proposed here only spares it a search.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from planner.bounds.cases.tree_codes import TreeCodes, subtree_sizes
from planner.clock import HasTime, always
from planner.lowering import make_candidate_arrays, modes_of
from planner.plan import Stage
from planner.problem import Problem
from solver_models.exact_order.order_trees import LEAF, PASS, SHAVE
from solver_models.interruptible import run_stoppable
from solver_models.joint.case_trees import CaseTree, refute_case
from solver_models.local_search.search import Searcher

_REFUTED_NODES = 20_000
"""Nodes that the search for the tree of one case of a refutation looks at, at most."""


class TreeProposals:
    """Proposes how to show that no order of a case ends before a value."""

    def __init__(
        self,
        problem: Problem,
        searcher: Searcher,
        *,
        value: int,
        has_time: HasTime = always,
        most_nodes: int = _REFUTED_NODES,
    ) -> None:
        self.problem, self.searcher, self.value, self.has_time = problem, searcher, value, has_time
        self.most_nodes = most_nodes

    def propose(self, stages: tuple[Stage, ...], codes: TreeCodes) -> list[int] | None:
        """The tree of these stages as a certificate has it; None if the search finds none."""
        stage_of, groups = make_candidate_arrays(self.problem, stages)
        candidate = self.searcher.make_candidate(stage_of, groups, modes=modes_of(stages))
        stop, most_nodes = np.zeros(1, np.int64), self.most_nodes
        found = run_stoppable(
            lambda: refute_case(self.searcher, candidate, threshold=self.value, most_nodes=most_nodes, stop=stop),
            stop=lambda: stop.fill(1),
            should_stop=lambda: not self.has_time(),
        )
        return None if found is None else list(_encode(found, codes))


def _encode(found: CaseTree, codes: TreeCodes) -> Iterator[int]:
    """The nodes in preorder: 0 for a leaf, 1 + what it decides for another; of a pass, one piece comes first."""
    replicas = _places(found)
    nodes, is_one_first = found.tree.nodes.tolist(), found.tree.is_one_first.tolist()
    size = subtree_sizes([kind != LEAF for kind, *_ in nodes])
    ahead = [0]
    while ahead:
        place = ahead.pop()
        kind, a, b = nodes[place]
        if kind == LEAF:
            yield 0
            continue
        children = [place + 1, place + 1 + size[place + 1]]
        if kind == PASS:
            yield 1 + codes.one_piece(*replicas[a], microbatch=b)
            children = children if is_one_first[place] else children[::-1]
        elif kind == SHAVE:
            device, action = _action(replicas, a, codes=codes)
            yield 1 + codes.start(device, action, what=b)
        else:
            (device, first), (_, second) = (_action(replicas, job, codes=codes) for job in (a, b))
            yield 1 + codes.pair(device, first, b=second)
        ahead += reversed(children)


def _places(found: CaseTree) -> list[tuple[int, int]]:
    """Of every stage replica its device, and how many stages that device has before it."""
    pairs = list(zip(found.device.tolist(), found.stage.tolist(), strict=True))
    return [(device, sum(other == (device, s) for other in pairs for s in range(stage))) for device, stage in pairs]


def _action(replicas: Sequence[tuple[int, int]], job: int, *, codes: TreeCodes) -> tuple[int, int]:
    """The device of a job, and its number there."""
    replica, kind, microbatch = job // codes.count // 3, job // codes.count % 3, job % codes.count
    device, place = replicas[replica]
    return device, codes.action(place, kind, microbatch=microbatch)
