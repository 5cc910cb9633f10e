"""What effort goes into looking for a bound: tests of planner/bounds/bound_params.py."""

from typing import Annotated, Any, get_args, get_origin

from planner.bounds.bound_params import BoundParams
from planner.evidence.certificate import make_bound
from planner.layout.costs import CostModel
from solver_models.covering import Covering
from tests.planner.planning.runs.test_dispatch import make_row


def test_effort_of_bounds():
    """Tests that less effort finds no larger bound, and that every bound found is proved."""
    problem = make_row(12, 4, num_microbatches=8)
    costs = CostModel(problem)
    hasty = BoundParams(packing_per_s=1, loop_actions_per_s=0)
    least, usual = (
        make_bound(problem, costs, make_covering=Covering, params=params).value_ns for params in (hasty, BoundParams())
    )
    assert 0 < least <= usual


def least(kind: Any) -> Any:
    """The least value of a parameter's type; of lists, the shortest one."""
    if get_origin(kind) is tuple:
        return [least(each) for each in get_args(kind) if each is not Ellipsis]
    inner = get_args(kind)[0]
    return least(inner) if get_origin(inner) is Annotated else get_args(kind)[1][0]
