"""How a solve went: an incumbent and a bound, each of which may be absent and neither of which is ever made up."""

from dataclasses import dataclass
from typing import Literal

from solver_models.instance import DeviceOrder

Status = Literal["optimal", "feasible", "infeasible", "unknown"]


class SolverFailedError(Exception):
    """A solver ended without an answer, or with one that its own problem contradicts; the message says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleResult:
    """Outcome of a search for the order of actions."""

    status: Status
    """Claim of the solver."""
    objective: int | None
    """Ticks of the incumbent as the solver counts them."""
    bound: int | None
    """Ticks that the solver claims no schedule can beat."""
    device_orders: dict[int, DeviceOrder] | None
    """Per device, the incumbent's order."""
    solver: str
    """Name and version."""
