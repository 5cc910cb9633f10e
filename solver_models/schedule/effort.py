"""How long CP-SAT searches, and how."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveEffort:
    """How long and how to search."""

    time_limit_s: float = 10.0
    """Wall-clock seconds."""
    deterministic_limit: float | None = None
    """The solver's own measure of work, the same on every machine."""
    seed: int = 0
    """Seed of its random choices."""
    num_workers: int = 1
    """Threads."""
    should_stop: Callable[[], bool] | None = None
    """Asked several times a second."""
