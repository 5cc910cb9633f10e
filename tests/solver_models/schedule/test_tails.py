"""Tests of solver_models/schedule/tails.py."""

from solver_models.instance import (
    ScheduleInstance,
)
from solver_models.schedule.solve import solve_order
from tests.solver_models.schedule.test_solve import best_of, chain, instance, lane

UNEVEN = [(3, 4, 2), (5, 2, 6)]


TINY: dict[str, ScheduleInstance] = {
    "even": chain([(2, 2, 2), (2, 2, 2)], microbatches=3),
    "uneven": chain(UNEVEN, microbatches=3, transfer=1),
    "three devices": chain([(1, 4, 2), (3, 2, 2), (2, 3, 1)], transfer=1),
    "tight": chain(UNEVEN, microbatches=3, budget=1),
    "stash shrinks after I": chain(UNEVEN, microbatches=3, held=5, stash=5, weight_stash=2, budget=7),
    "stash ends with I": chain(UNEVEN, microbatches=3, weight_stash=0, budget=1),
    "recomputation": chain(UNEVEN, microbatches=3, held=2, stash=6, weight_stash=5, workspace=1, budget=8),
    "workspace": chain(UNEVEN, microbatches=3, workspace=3, budget=4),
    "workspace kept until W": chain(
        UNEVEN, microbatches=3, held=3, stash=3, weight_stash=1 + 2, workspace=2, weight_workspace=0, budget=8
    ),
    "workspace kept until W, more than was held": chain(
        UNEVEN, microbatches=3, held=2, stash=3, weight_stash=2 + 3, workspace=3, weight_workspace=0, budget=9
    ),
    "B or I and W, workspace kept until W": chain(
        [(2, 4, 4), (2, 4, 4)], backward=6, held=2, stash=2, weight_stash=1 + 3, workspace=3, weight_workspace=0,
        budget=7,
    ),
    "no weights": chain(UNEVEN, microbatches=3, has_weight_grad=False, weight_grad=0, weight_stash=0, budget=1),
    "only B": chain(UNEVEN, microbatches=3, backward=7, can_split=False, budget=2),
    "B or I and W": chain([(2, 4, 4), (2, 4, 4)], backward=6),
    "B or I and W, tight": chain(
        [(2, 4, 4), (2, 4, 4)], backward=6, held=3, stash=4, weight_stash=2, workspace=1, budget=7
    ),
    "synchronisation": chain(UNEVEN, microbatches=3, synchronisation=(9, 0), tail=4),
    "span": chain(UNEVEN, microbatches=3, transfer=3, objective="span"),
    "one device, two stages": instance(
        [lane(0, 0, (2, 3, 1), held=2, stash=2, weight_stash=1), lane(1, 0, (1, 1, 2), workspace=1)], budget=4
    ),
    "V": instance([lane(0, 0, (2, 1, 1)), lane(1, 1, (3, 1, 2)), lane(2, 1, (1, 2, 1)), lane(3, 0, (1, 1, 1))],
                  microbatches=1, transfer=1),
    "V, span": instance([lane(0, 0, (2, 1, 1)), lane(1, 1, (3, 1, 2)), lane(2, 1, (1, 2, 1)), lane(3, 0, (1, 1, 1))],
                        microbatches=1, transfer=1, objective="span"),
    "no time at all": chain([(0, 2, 0), (3, 0, 2)], microbatches=3, budget=2),
}  # fmt: skip
"""Small enough to enumerate; no transfer waits for another."""


def test_upper_bound_cuts():
    """Tests that asking for less than the optimum gives `infeasible` and a bound of one more than was asked."""
    problem = TINY["uneven"]
    best = best_of(problem)
    assert best is not None
    result = solve_order(problem, upper_bound=best - 1)
    assert (result.status, result.bound, result.device_orders) == ("infeasible", best, None)
    assert solve_order(problem, upper_bound=best).objective == best
