"""Workers inside one process: threads that claim jobs and lead a solver process each."""

import logging
import os
import socket
import threading
import time
import uuid

from api.jobs.job_metrics import JobMetrics
from api.jobs.stores.sql_store import SqlStore
from api.jobs.workers.runner import JobRunner, Patience
from api.jobs.workers.solver_handle import Child, ProcessLimits

logger = logging.getLogger(__name__)

_IDLE_S = 1.0
"""How long an idle worker waits before it looks for work unasked."""


def make_worker_name() -> str:
    """Unique on all machines, and readable."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"


class Pool:
    """`num_workers` threads, each with a solver process of its own; `PostgresEngine` has the same four verbs."""

    def __init__(
        self, store: SqlStore, *, num_workers: int, limits: ProcessLimits, patience: Patience | None = None
    ) -> None:
        self.store, self.patience = store, patience or Patience()
        self.metrics = JobMetrics()
        self._draining = threading.Event()
        self._wake = threading.Condition()
        self.children = [Child(limits) for _ in range(num_workers)]
        self._threads = [
            threading.Thread(target=self._work, args=(child,), name=f"worker-{number}", daemon=True)
            for number, child in enumerate(self.children)
        ]

    def start(self) -> None:
        """Begin to claim."""
        for thread in self._threads:
            thread.start()

    def announce(self) -> None:
        """Wake an idle worker."""
        with self._wake:
            self._wake.notify()

    def is_draining(self) -> bool:
        """Whether nothing more is claimed."""
        return self._draining.is_set()

    def drain(self) -> None:
        """Claim nothing more; runners hear of it within a moment."""
        self._draining.set()
        with self._wake:
            self._wake.notify_all()

    def close(self) -> None:
        """Wait for the runners, then end their processes."""
        self.drain()
        until = time.monotonic() + self.patience.drain_s + 5.0
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.1, until - time.monotonic()))
        for child in self.children:
            child.kill()

    def _work(self, child: Child) -> None:
        name = make_worker_name()
        runner = JobRunner(
            self.store, child, patience=self.patience, is_draining=self.is_draining, metrics=self.metrics
        )
        while not self.is_draining():
            try:
                child.start()  # warm before the first job
                if self.is_draining() or not runner.run_next(name):
                    with self._wake:
                        self._wake.wait(_IDLE_S)
            except Exception:
                logger.exception("worker %s failed; it goes on", name)
                child.kill()
                time.sleep(_IDLE_S)
