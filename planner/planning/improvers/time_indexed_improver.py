"""The time-indexed bound of given stages: multipliers that the checker adds up."""

from collections.abc import Iterator, Sequence
from functools import partial

from planner.bounds.order import time_indexed_bound
from planner.bounds.order.cell_rows import CellRow
from planner.bounds.order.priced_rows import raise_by_prices
from planner.bounds.order.time_indexed_bound import ReplicaPaths
from planner.bounds.roomier import roomier
from planner.evidence.certificate import Bound
from planner.planning.improvers.improver import Improver
from planner.planning.search_state import SearchState

_LOOKS = ((100, False), (1_000, False), (100, True), (1_000, True))
"""Most cells of a first look and of a finer one, each without paths and with them, which takes longer."""
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
        """The bound from what is known up to the incumbent."""
        from solver_models.time_indexed import find_multipliers

        run, until = self.run, self.run.elapsed_s + seconds
        costs = roomier(run.costs)
        assert run.lower_bound is not None
        assert run.incumbent_ns is not None

        def solve(
            rows: Sequence[CellRow], shape: tuple[int, int], *, paths: Sequence[ReplicaPaths]
        ) -> tuple[float, list[tuple[int, int]]] | None:
            left = until - run.elapsed_s
            if left <= 0:
                return None
            return find_multipliers(rows, shape, paths=paths, time_limit_s=left, should_stop=run.should_stop)

        best = self._raise_by_prices(until)
        start_ns = run.lower_bound.value_ns if best is None else best[0]
        for most_cells, has_paths in _LOOKS:
            if best is not None and not has_paths:
                continue
            found = time_indexed_bound.raise_bound(
                costs.problem, costs, start_ns=start_ns, most_ns=run.incumbent_ns, solve=solve, most_cells=most_cells,
                has_paths=has_paths,
            )  # fmt: skip
            if found is not None:
                best, start_ns = found, found[0]
        return best

    def _raise_by_prices(self, until_s: float) -> tuple[int, dict[str, object]] | None:
        """The bound by prices of paths, for many cells."""
        from solver_models.recomputation.path_prices import PathPrices

        run = self.run
        assert run.lower_bound is not None
        assert run.incumbent_ns is not None

        def seconds_left() -> float:
            return 0.0 if run.should_stop is not None and run.should_stop() else until_s - run.elapsed_s

        costs = roomier(run.costs)
        return raise_by_prices(
            costs.problem, costs, start_ns=run.lower_bound.value_ns, most_ns=run.incumbent_ns, make=PathPrices,
            seconds_left=seconds_left,
        )  # fmt: skip

    def _take(self, found: tuple[int, dict[str, object]] | None) -> None:
        run = self.run
        if found is not None and (run.lower_bound is None or found[0] > run.lower_bound.value_ns):
            certificate = {"kind": self.name, "value_ns": found[0], **found[1]}
            run.lower_bound = Bound(kind=self.name, value_ns=found[0], certificate=certificate)
            run.report("bound")
