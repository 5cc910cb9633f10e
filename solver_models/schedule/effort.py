"""How long CP-SAT searches, and how."""

from collections.abc import Callable
from dataclasses import dataclass

from ortools.sat.python import cp_model

from solver_models.interruptible import run_stoppable
from solver_models.result import Status

STATUS: dict[cp_model.CpSolverStatus, Status] = {
    cp_model.OPTIMAL: "optimal",
    cp_model.FEASIBLE: "feasible",
    cp_model.INFEASIBLE: "infeasible",
}
"""What CP-SAT's answers mean; all others mean nothing."""

GRACE_S = 1.0
"""Seconds beyond its time limit after which the solver is told to stop; it does not keep its limit exactly."""

BRANCHING = "use_dynamic_precedence_in_disjunctive: true"
"""How disjunctive intervals are branched on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveEffort:
    """How long and how to search, on one thread."""

    time_limit_s: float = 10.0
    """Wall-clock seconds."""
    deterministic_limit: float | None = None
    """The solver's own measure of work, the same on every machine."""
    seed: int = 0
    """Seed of its random choices."""
    should_stop: Callable[[], bool] | None = None
    """Asked several times a second."""


def run_model(
    model: cp_model.CpModel, effort: SolveEffort, *, style: str = BRANCHING
) -> tuple[cp_model.CpSolver, cp_model.CpSolverStatus | None]:
    """The solver with its answer, on a thread that can be stopped; None if it was stopped and did not end.

    `style`: parameters as text.
    """
    solver = cp_model.CpSolver()
    solver.parameters.merge_text_format(style)
    solver.parameters.linearization_level = 0  # at this size the LP costs more than it prunes
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = effort.seed
    solver.parameters.max_time_in_seconds = effort.time_limit_s
    if effort.deterministic_limit is not None:
        solver.parameters.max_deterministic_time = effort.deterministic_limit
    status = run_stoppable(
        lambda: solver.solve(model),
        stop=solver.stop_search,
        should_stop=effort.should_stop,
        deadline_s=effort.time_limit_s + GRACE_S,
    )
    return solver, status
