"""The time-indexed bound of given stages: multipliers that the checker adds up."""

from collections.abc import Iterator, Sequence
from functools import partial

from planner.bounds.order import time_indexed_bound
from planner.bounds.order.cell_rows import CellRow
from planner.bounds.order.priced_rows import raise_by_prices
from planner.bounds.roomier import roomier
from planner.evidence.certificate import Bound
from planner.planning.improvers.improver import Improver
from planner.planning.search_state import SearchState

_MOST_CELLS = 100
"""Of rows that a linear programme multiplies, where prices of paths show nothing: devices may have several stages."""
_SHARE = 0.4
"""Of the time left, what the bound takes at most."""
_MIN_S = 0.2


class TimeIndexedImprover(Improver):
    """The bound, once, as soon as there is a plan."""

    name = time_indexed_bound.KIND

    def __init__(self, run: SearchState) -> None:
        self.run = run
        self.is_open = run.lower_bound is not None and time_indexed_bound.applies_to(run.problem)

    def is_due(self, rounds: int) -> bool:
        """As soon as there is a plan; not where rounds are counted."""
        del rounds
        return self.is_open and self.run.incumbent_ns is not None and self.run.limits.max_rounds is None

    def take_step(self) -> Iterator[None]:
        """Start it, beside the search."""
        self.is_open = False
        self.run.window.make_room(1)
        seconds = max(_MIN_S, _SHARE * self.run.seconds_left)
        self.run.make_ready("microbatch-orders")
        self.run.window.start([partial(self._raise, seconds)], lambda found, _: self._take(found), expected_s=seconds)
        yield

    def _raise(self, seconds: float) -> tuple[int, dict[str, object]] | None:
        """The bound from what is known up to the incumbent: by prices of paths, or, where they show none, of rows."""
        from solver_models.recomputation.path_prices import PathPrices
        from solver_models.time_indexed import find_multipliers

        run, until, costs = self.run, self.run.elapsed_s + seconds, roomier(self.run.costs)
        assert run.lower_bound is not None
        assert run.incumbent_ns is not None
        start_ns, most_ns = run.lower_bound.value_ns, run.incumbent_ns

        def seconds_left() -> float:
            return 0.0 if run.should_stop() else until - run.elapsed_s

        def solve(rows: Sequence[CellRow], shape: tuple[int, int]) -> tuple[float, list[tuple[int, int]]] | None:
            left = seconds_left()
            return find_multipliers(rows, shape, time_limit_s=left, should_stop=run.should_stop) if left > 0 else None

        return raise_by_prices(
            costs.problem, costs, start_ns=start_ns, most_ns=most_ns, make=PathPrices, seconds_left=seconds_left
        ) or time_indexed_bound.raise_bound(
            costs.problem, costs, start_ns=start_ns, most_ns=most_ns, solve=solve, most_cells=_MOST_CELLS
        )

    def _take(self, found: tuple[int, dict[str, object]] | None) -> None:
        run = self.run
        if found is not None and (run.lower_bound is None or found[0] > run.lower_bound.value_ns):
            certificate = {"kind": self.name, "value_ns": found[0], **found[1]}
            run.lower_bound = Bound(kind=self.name, value_ns=found[0], certificate=certificate)
            run.report("bound")
