"""Sharded optimizer state, for programs that have one switch for all stages: tests of planner/export/shards.py."""

from itertools import combinations
from typing import get_args

from planner.export.shards import is_sharded
from planner.export.targets import TARGETS, restrict, restrict_problem
from planner.option_values import ShardChoice
from planner.problem import Options
from planner.progress import Limits
from tests.planner.builders import make_link, make_problem
from tests.planner.hasty import make_plan as find_plan
from tests.planner.layout.test_gathers import stepping


def test_megatron_shards_everywhere_or_nowhere():
    """Tests that the target narrows the option to all stages or none, and that the plan found has the flag."""
    target = TARGETS["megatron"]
    assert [restrict(Options(shard_optimizer=each), target).shard_optimizer for each in get_args(ShardChoice)] == [
        "never", "together", "together", "always",
    ]  # fmt: skip
    layers = [stepping(name, 40) for name in ("embedding", "l1", "l2", "head")]
    links = [make_link(f"{a} {b}") for a, b in combinations("abcd", 2)]
    sizes = {"num_microbatches": 4, "microbatch_size": 2, "scaling": "linear"}
    problem = make_problem(layers, links, **sizes, shard_optimizer="allow")
    plan = find_plan(restrict_problem(problem, target), limits=Limits(time_limit_s=10.0, max_rounds=2), target=target)
    assert is_sharded(plan, what="Megatron")
