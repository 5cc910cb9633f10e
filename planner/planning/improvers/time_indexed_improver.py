"""The time-indexed bound of given stages, and what a solver claims of its rows in whole numbers.

Both ask whether a plan better than the incumbent can be: the bound by multipliers that the checker adds up,
the solver by its word. CP-SAT asks the same the other way round (`planner.decisions.recompute_microbatches.move`).
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from planner.bounds.order import time_indexed_bound
from planner.bounds.order.cell_rows import CellRow
from planner.bounds.order.priced_rows import raise_by_prices
from planner.bounds.order.time_indexed_bound import MOST_TERMS, ReplicaPaths, TimeIndexed
from planner.evidence.certificate import Bound
from planner.planning.improvers.improver import Improver
from planner.planning.search_state import COMPLETE, SearchState

_LOOKS = ((100, False), (1_000, False), (100, True), (1_000, True))
"""Most cells of a first look and of a finer one, each without paths and with them, which takes longer."""
_MOST_CELLS = 1_000
_SHARE = 0.4
"""Of the time left, what the bound takes at most, and then the claim."""
_CLAIMED_COLUMNS = 1_500
"""Of the largest question that is asked in whole numbers; larger ones rarely end."""
_MIN_S = 0.2


class TimeIndexedImprover(Improver):
    """First the bound, once; then a claim for every incumbent, until one holds."""

    name = time_indexed_bound.KIND

    def __init__(self, run: SearchState, *, is_closed: Callable[[], bool]) -> None:
        """`is_closed`: whether nothing better is expected."""
        self.run, self.is_closed = run, is_closed
        self.is_open = run.lower_bound is not None and time_indexed_bound.applies_to(run.problem)
        self.is_busy = self.is_bounded = False
        self.asked: int | None = None
        """The incumbent of the last claim that was asked for."""

    def is_due(self, rounds: int) -> bool:
        """As soon as there is a plan, and then once nothing better is expected; not where rounds are counted."""
        del rounds
        run = self.run
        if not self.is_open or self.is_busy or run.incumbent_ns is None or run.limits.max_rounds is not None:
            return False
        return not self.is_bounded or (self.is_closed() and self.asked != run.incumbent_ns and self._is_small())

    def take_step(self) -> Iterator[None]:
        """Start one of the two, beside the search."""
        self.run.window.make_room(1)
        seconds = max(_MIN_S, _SHARE * self.run.seconds_left)
        self.is_busy = True
        if not self.is_bounded:
            self.run.make_ready("microbatch-orders")
            self.run.window.start(
                [partial(self._raise, seconds)], lambda found, _: self._take(found), expected_s=seconds
            )
        else:
            self.asked = self.run.incumbent_ns
            assert self.asked is not None
            ask = partial(self._ask, self.asked, seconds)
            self.run.window.start([ask], lambda found, _: self._claim(found), expected_s=_MIN_S)
        yield

    def _raise(self, seconds: float) -> tuple[int, dict[str, object]] | None:
        """The bound from what is known up to the incumbent."""
        from solver_models.time_indexed import find_multipliers

        run, until = self.run, self.run.elapsed_s + seconds
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
                run.problem, run.costs, start_ns=start_ns, most_ns=run.incumbent_ns, solve=solve, most_cells=most_cells,
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

        return raise_by_prices(
            run.problem, run.costs, start_ns=run.lower_bound.value_ns, most_ns=run.incumbent_ns, make=PathPrices,
            seconds_left=seconds_left,
        )  # fmt: skip

    def _take(self, found: tuple[int, dict[str, object]] | None) -> None:
        run, self.is_busy, self.is_bounded = self.run, False, True
        if found is not None and (run.lower_bound is None or found[0] > run.lower_bound.value_ns):
            certificate = {"kind": self.name, "value_ns": found[0], **found[1]}
            run.lower_bound = Bound(kind=self.name, value_ns=found[0], certificate=certificate)
            run.report("bound")

    def _model(self, incumbent_ns: int) -> tuple[TimeIndexed, int] | None:
        """The rows of plans that are better than the incumbent, and their cells."""
        run = self.run
        lengths = time_indexed_bound.choose_cells(run.problem, run.costs, value_ns=incumbent_ns, most_cells=_MOST_CELLS)
        if not lengths:
            return None
        model = TimeIndexed(run.problem, run.costs, cell_ns=lengths[0])
        cells = model.cells(incumbent_ns - 1)
        return (model, cells) if cells >= 0 and model.size(cells) <= MOST_TERMS else None

    def _is_small(self) -> bool:
        found = None if self.run.incumbent_ns is None else self._model(self.run.incumbent_ns)
        return found is not None and found[0].num_columns(found[1]) <= _CLAIMED_COLUMNS

    def _ask(self, incumbent_ns: int, seconds: float) -> int | None:
        """The incumbent, if HiGHS claims that there is no better plan."""
        from solver_models.time_indexed import is_impossible

        found = self._model(incumbent_ns)
        if found is None:
            return None
        model, cells = found
        is_out = is_impossible(
            model.rows(cells), (model.num_columns(cells), model.count), time_limit_s=seconds,
            should_stop=self.run.should_stop,
        )  # fmt: skip
        return incumbent_ns if is_out else None

    def _claim(self, value_ns: int | None) -> None:
        from solver_models.time_indexed import SOLVER

        run, self.is_busy = self.run, False
        if value_ns is None:
            return
        run.solvers["highspy"] = SOLVER
        run.solver_bound_ns = max(value_ns, run.solver_bound_ns or 0)
        if run.incumbent_ns is not None and run.solver_bound_ns >= run.incumbent_ns:
            run.stopped_by = COMPLETE
