"""Plans for tests that ask whether plans are right, not how good: in `make test` a round has a tenth of its work."""

from functools import partial

from planner import planning
from planner.planning.named_params import params_with
from planner.planning.planning_params import SearchParams
from tests.long_runs import shortened

HASTY = shortened(
    params_with({"multistart.round_ticks": 200_000, "multistart.max_iterations": 2_000}), whole=SearchParams()
)
"""Anneals of a round take a fifth of a second otherwise, most of what small problems take."""

make_plan = partial(planning.make_plan, params=HASTY)
make_plans = partial(planning.make_plans, params=HASTY)
"""As the planner's, but for these parameters where none are given."""
