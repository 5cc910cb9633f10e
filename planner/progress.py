"""When a run shall stop, and what its caller hears meanwhile."""

import os
from dataclasses import dataclass, replace
from typing import Annotated, Literal, get_args

from planner.plan import Plan
from profiles.documents.schema_rules import Stated, given
from profiles.documents.strict_record import StrictRecord
from profiles.field_rules import Whole, require_fields

DEFAULT_PATIENCE = 200
"""Rounds without a better plan after which a search ends by itself: about two minutes on two cores."""

MAX_THREADS = 1024
"""Largest `--threads`."""

COMPILING = "compiling kernels (once)"
"""The phase in which the clock of the limits stands still."""

Method = Literal["auto", "search", "cp-sat", "ilp"]
"""`auto`: everything there is; `search`: moves and orders, without a complete search; `cp-sat` and `ilp`: a solver on
one model with everything open, which is for small problems (docs/proofs/exact.md)."""


def usable_cores() -> int:
    """Cores that this process may use, which a container or `taskset` may have cut down."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MAX_THREADS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits(StrictRecord):
    """When to stop. If max_rounds ends it before time_limit_s, the answer is the same on every machine, to the byte."""

    __schema_rules__ = {  # noqa: RUF012
        "anyOf": [{"properties": {"solver": {"type": "null"}}}, given("method", {"const": "ilp"})]
    }

    time_limit_s: Annotated[float, Stated(exclusiveMinimum=0, maximum=10**6)] = 60.0
    """Wall-clock seconds from the call on; while kernels are compiled, which happens once, the clock stands still."""
    gap: Annotated[float, Stated(minimum=0, exclusiveMaximum=1)] = 0.0
    """Stop once (objective - lower bound) / objective is at most this."""
    seed: Annotated[int, Whole(most=2**31 - 1)] = 0
    """Seed of every random choice."""
    max_rounds: Annotated[int, Whole(most=10**9)] | None = None
    """Deterministic limit: rounds of the joint search; None: as many as the time allows."""
    patience: Annotated[int, Whole(least=1, most=10**9)] | None = None
    """Stop after so many rounds of the search without a better plan; None: `DEFAULT_PATIENCE`, unless `max_rounds` or
    `patience_s` is given."""
    patience_s: float | None = None
    """Stop after so many seconds of search without a better plan, but not before the end of a round; None: never."""
    threads: Annotated[int, Whole(least=1, most=MAX_THREADS)] | None = None
    """Threads that search at once; None: all cores that this process may use. It decides how soon a plan is found, and
    with `max_rounds` not which."""
    method: Method = "auto"
    """Who looks for plans, once the baselines are played; cp-sat and ilp are a solver on one model with everything
    open."""
    solver: str | None = None
    """PuLP's name of the solver of `ilp`; None: HiGHS, which comes along."""

    def __post_init__(self) -> None:
        if not 0 < self.time_limit_s <= 10**6:
            raise ValueError(
                f"limits: time_limit_s = {self.time_limit_s} is out of range; give seconds above 0, at most 1000000"
            )
        if not 0 <= self.gap < 1:
            raise ValueError(f"limits: gap = {self.gap} is not a fraction; give a number from 0 to below 1, e.g. 0.01")
        require_fields("limits", self)
        if self.method not in get_args(Method):
            raise ValueError(f"limits: method = {self.method!r} is unknown; give one of {', '.join(get_args(Method))}")
        if self.solver is not None and self.method != "ilp":
            raise ValueError(
                f"limits: solver = {self.solver!r} needs method = ilp, not {self.method}; set method to ilp, or drop "
                "solver"
            )

    def within(self, *, threads: int | None) -> "Limits":
        """The same limits with at most so many threads."""
        return self if threads is None else replace(self, threads=min(self.threads or threads, threads))

    @property
    def num_threads(self) -> int:
        """Threads that search at once."""
        return usable_cores() if self.threads is None else self.threads

    @property
    def patience_rounds(self) -> int | None:
        """Rounds without a better plan after which the search ends, if any number of them ends it."""
        if self.patience is not None or self.max_rounds is not None or self.patience_s is not None:
            return self.patience
        return DEFAULT_PATIENCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One step forward: a better verified plan, a better bound, or a new phase."""

    elapsed_s: float
    """Seconds since the call."""
    phase: str
    """What is running: `compiling kernels (once)`, `baselines`, `start`, `bound`, `search` or `exact`."""
    incumbent: Plan | None
    """The best verified plan so far (its evidence is filled in at the end only)."""
    incumbent_ns: int | None
    """Its objective."""
    lower_bound_ns: int | None
    """The certified bound so far."""
    gap: float | None
    """(incumbent - bound) / incumbent."""
    source: str
    """Part of the search, or baseline, that found the latest improvement."""
