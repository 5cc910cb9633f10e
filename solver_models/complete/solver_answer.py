"""What a solver says of the complete programme."""

from dataclasses import dataclass

from solver_models.result import Status

DEFAULT_SOLVER = "HiGHS"
"""PuLP's name of the solver that comes along."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverAnswer:
    """Its claim, and the values of the variables if it found any."""

    status: Status
    """Claim of the solver."""
    bound: int | None
    """Ticks that it claims no solution can beat."""
    values: list[int] | None
    """By variable."""
    solver: str
    """Name and version."""
