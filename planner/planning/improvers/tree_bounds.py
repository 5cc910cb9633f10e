"""The bound of stages and devices that are given, raised by trees over their orders."""

from collections.abc import Iterator

from planner.bounds.cases import given_orders
from planner.evidence.certificate import Bound, refute
from planner.planning.improvers.improver import Improver
from planner.planning.improvers.tree_proposals import TreeProposals
from planner.planning.search_state import SearchState
from solver_models.local_search.search import Searcher

_FIRST_ROUNDS = 2
"""Rounds of order search before its first step."""
_NODES = 2_000
"""Nodes of a tree in the first step, at most; in each further one twice as many."""
_VALUES = 6
"""Values that a step tries: half way to the incumbent, then the incumbent or less, by halves of what is open."""
_SHARE = 0.3
"""Of the time left, what a step takes at most for its trees, and once more, about, for its certificate."""
_SEARCHED = 4
"""Nodes looked at per node that a certificate may hold: searches begin again, and shaving tries more than it keeps."""
_MOST_SHARE = 0.5
"""Of the time left, what the certificate takes at most where the machine is busy."""
_UNITS_PER_S = 60_000
"""Units of work of a certificate in a second, roughly."""
_MOST_EFFORT = 1_200_000
"""Units of work of a certificate, at most."""


class OrderTrees(Improver):
    """Asks whether any order ends half way to the incumbent, and then further up, or if that takes too long, less."""

    name = "order trees"

    def __init__(self, run: SearchState, searcher: Searcher) -> None:
        self.run, self.searcher, self.steps = run, searcher, 0
        self.is_open = given_orders.applies_to(run.problem)

    def is_due(self, rounds: int) -> bool:
        """After 2, 4, 8, 16 rounds and so on."""
        return self.is_open and rounds == _FIRST_ROUNDS << self.steps

    def take_step(self) -> Iterator[None]:
        """Start it, beside the search."""
        nodes, self.steps = _NODES << self.steps, self.steps + 1
        self.run.window.make_room(1)
        if self.run.threshold_ns is not None and self.run.lower_bound is not None:
            low, high = self.run.lower_bound.value_ns, self.run.threshold_ns
            self.run.window.start([lambda: self._raise(nodes, low=low, high=high)], lambda found, _: self._take(found))
        yield

    def _raise(self, most_nodes: int, *, low: int, high: int) -> Bound | None:
        """The largest bound that so many nodes show, of those tried from `low` to `high`."""
        run, orders, effort = self.run, given_orders.GivenOrders(self.run.costs), _MOST_EFFORT
        if run.limits.max_rounds is None:
            effort = min(effort, int(_SHARE * run.seconds_left * _UNITS_PER_S))
        has_time, found = run.time_until(_SHARE), list[int]()
        room = _SEARCHED * effort // orders.units
        for number in range(_VALUES):
            value = high if number == 1 and found else (low + high) // 2
            if value <= low or not has_time():
                break
            trees = TreeProposals(
                run.problem, self.searcher, value=value, has_time=has_time, most_nodes=min(most_nodes, room)
            )
            tree = trees.propose(orders.stages, orders.codes)
            if tree is None or len(tree) * orders.units > effort:
                high = value
            else:
                low, found = value, tree
        if not found:
            self.is_open = most_nodes < room  # no certificate could hold the nodes of a further step
            return None
        has_time = run.time_until(_MOST_SHARE)
        return refute(run.problem, run.costs, value=low, effort=effort, has_time=has_time, propose=lambda _, __: found)

    def _take(self, found: Bound | None) -> None:
        run = self.run
        if found is not None and (run.lower_bound is None or found.value_ns > run.lower_bound.value_ns):
            run.lower_bound = found
            run.report("bound")
