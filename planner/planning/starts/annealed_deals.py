"""Dealings annealed by compiled code: seconds, for questions that are asked once."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import numpy

from planner.dealing import Durations
from solver_models.moves.annealing import Cooling
from solver_models.moves.dealt_annealing import Assignments, BalancedTimes, anneal_assignments


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledAnnealing:
    """A dealer for `balance_durations`: how long it looks, and how boldly."""

    trials: int = 1_000_000
    """Exchanges and other orders tried; without a compiler a hundredth. Measured on three steps of SE: 0.7 s of a
    processor; four times as many, 2.5 s, gain 0.2 to 0.4 %."""
    steepness: int = 60
    """A pipeline costs exp(steepness x (time / mean time - 1)). Measured on SE, 20 million plays: 30 to 100 alike."""
    hottest: float = 0.05
    """Cost that is given up as likely as not at the start. Measured: as good as 0.01."""
    coldest: float = 1e-6
    """The same at the end. Measured on a step of SE: 1e-4 leaves plans 0.6 % slower, 5e-4 1.6 %."""
    seed: int = 0
    """Of the random numbers."""

    def __call__(
        self, assignments: Sequence[Sequence[int]], *, microbatches: Sequence[Durations], transfer_ns: int
    ) -> list[list[int]]:
        """Assignments whose slowest pipeline ends no later than that of `assignments`."""
        if not microbatches:
            return [list(assignment) for assignment in assignments]
        forward, backward = (
            numpy.array([getattr(one, name) for one in microbatches], dtype=numpy.int64)
            for name in ("forward_ns", "backward_ns")
        )
        held = numpy.zeros((len(assignments), len(microbatches)), dtype=numpy.int64)
        for row, assignment in zip(held, assignments, strict=True):
            row[: len(assignment)] = assignment
        table = Assignments(held, numpy.array([len(assignment) for assignment in assignments], dtype=numpy.int64))
        times = BalancedTimes(forward, backward, transfer_ns, self.steepness)
        steps = self.trials if find_spec("numba") else self.trials // 100
        anneal_assignments(times, table, Cooling(steps, self.hottest, self.coldest, self.seed))
        return [row[:count].tolist() for row, count in zip(table.held, table.counts, strict=True)]
