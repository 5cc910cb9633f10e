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

_LITTLE = {"multistart.round_ticks": 200_000, "multistart.max_iterations": 2_000, "bound.packing_per_s": 150_000}
HASTY_BOUND = shortened(params_with(_LITTLE), whole=SearchParams())
"""With a tenth of the packing bound's effort, too, a fifth of a small plan's time: where no test asks for proofs."""

make_plan = partial(planning.make_plan, params=HASTY)
make_plans = partial(planning.make_plans, params=HASTY)
"""As the planner's, but for these parameters where none are given."""

make_little_proved_plan = partial(planning.make_plan, params=HASTY_BOUND)
"""The same with little effort for the bound."""
