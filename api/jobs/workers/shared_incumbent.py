"""What the solver of one island hears of the others: their better plans, as they stand in the job's row."""

from api.jobs.job import Job
from api.jobs.stores.sql_store import SqlStore
from api.jobs.workers.solver_handle import Child


class IslandExchange:
    """Passes each better plan on once; the solver has it judged before it continues from it."""

    def __init__(self, store: SqlStore, child: Child) -> None:
        self._store, self._child = store, child
        self._known_ns: int | None = None
        """Objective of the best plan that the solver found or was told of."""

    def note(self, incumbent_ns: int | None) -> None:
        """The solver itself has a plan as good as that."""
        if incumbent_ns is not None and self._is_new(incumbent_ns):
            self._known_ns = incumbent_ns

    def pass_on(self, present: Job) -> None:
        """Tell the solver of the best plan stored, if it is better than what it knows."""
        best_ns = present.incumbent_ns
        if best_ns is None or not self._is_new(best_ns):
            return
        text = self._store.plan_text(present.id)
        if text is not None:
            self._known_ns = best_ns
            self._child.pass_on(text)

    def _is_new(self, incumbent_ns: int) -> bool:
        return self._known_ns is None or incumbent_ns < self._known_ns
