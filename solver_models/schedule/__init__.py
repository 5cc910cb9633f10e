"""The CP-SAT order model: partition and mapping are fixed, the order of actions on every device is open."""

from solver_models.schedule.solve import estimate_size, solve_order

__all__ = ["estimate_size", "solve_order"]
