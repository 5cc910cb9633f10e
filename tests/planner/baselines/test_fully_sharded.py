"""Fully sharded data parallelism: a plan like others, which the options have to allow."""

from itertools import pairwise

import pytest

from planner.baselines.applicability import DoesNotApplyError
from planner.baselines.fully_sharded import NAME, allowing_full_shards, make_fully_sharded_plan
from planner.baselines.registry import make_baselines, play_baseline
from planner.document import parse_plan, render_plan
from planner.evidence.check_evidence import rederive
from planner.layout.costs import CostModel
from planner.plan_kind import describe_kind, differences, kind_of
from planner.problem import Problem
from planner.progress import Limits
from tests.planner.builders import make_layer, make_link, make_problem
from tests.planner.hasty import make_plan as find_plan
from tests.planner.layout.test_gathers import stepping


def sharded_problem(num_microbatches: int = 2, **options: object) -> Problem:
    """Two layers on two devices, whose state is told apart."""
    layers = [stepping("x", 8, stash_bytes=10), stepping("y", 8, stash_bytes=4)]
    chosen = {"shard_optimizer": "allow", "fully_shard": True} | options
    return make_problem(layers, [make_link("a b", latency=1)], num_microbatches=num_microbatches, **chosen)


def rows_of(problem: Problem) -> dict[str, tuple[int | None, bool, str]]:
    costs = CostModel(problem)
    played = [play_baseline(problem, each, costs=costs)[0] for each in make_baselines(problem, costs)]
    return {row.name: (row.makespan_ns, row.fits_memory, row.note) for row in played}


def test_it_stands_where_the_options_allow_it():
    """Tests that the plan is among the baselines with the option only, also recomputing where it is too large."""
    assert NAME not in rows_of(sharded_problem(fully_shard=False))
    assert rows_of(sharded_problem())[NAME][1]
    small = rows_of(sharded_problem(memory_bytes=60, recompute=True))
    assert not small[NAME][1]
    assert f"{NAME}, recomputing" in small
    given = rows_of(sharded_problem(partition=(("x",), ("y",))))
    assert given[NAME] == (None, False, "the given partition has 2 stages, the method 1")


def test_it_needs_several_single_devices():
    """Tests that where there is nobody to share with, or groups are given, the reason is told."""
    alone = sharded_problem(microbatch_size=1, scaling="linear", max_replicas=2)
    with pytest.raises(DoesNotApplyError, match="cannot cut microbatch_size = 1"):
        make_fully_sharded_plan(CostModel(alone))
    grouped = sharded_problem(partition=(("x", "y"),), placement=((("a", "b"),),), max_width=2)
    with pytest.raises(DoesNotApplyError, match="shards over several devices, and has one"):
        make_fully_sharded_plan(CostModel(grouped))


def test_it_is_allowed_by_one_option_more():
    """Tests that a question that says nothing of shards is asked with them, and that others keep their choice."""
    assert allowing_full_shards(sharded_problem(shard_optimizer="never", fully_shard=False)) == sharded_problem()
    always = sharded_problem(shard_optimizer="always")
    assert allowing_full_shards(always) == always


def test_it_is_the_answer_where_copies_do_not_fit():
    """Tests that one microbatch, for which a pipeline idles and copies of the model need too much memory, is answered
    with such a plan, whose evidence is derived again.
    """
    parts = {"parameter_bytes": 6, "gradient_bytes": 8, "optimizer_bytes": 25, "state_bytes": 40, "stash_bytes": 4}
    layers = [make_layer(f"l{number}", (40, 40, 40), **parts) for number in range(6)]
    chosen = {"shard_optimizer": "allow", "fully_shard": True, "memory_bytes": 170}
    problem = make_problem(layers, [make_link("a b", latency=1)], num_microbatches=1, **chosen)
    plan = find_plan(problem, limits=Limits(time_limit_s=10.0, max_rounds=1))
    assert plan.evidence is not None
    assert [stage.shard for stage in plan.stages] == ["full"]
    assert plan.evidence.bound_kind in ("work", "layer", "path")
    assert rederive(problem, plan, with_baselines=True).differences == ()
    assert parse_plan(render_plan(plan)) == plan
    assert describe_kind(kind_of(plan)).startswith("1 stage, 2 replicas, fully sharded, whole backward")


def test_kinds_of_plans_tell_full_shards():
    """Tests that a plan that shards less differs in words."""
    costs = CostModel(sharded_problem())
    plans = [each.plan for each in make_baselines(costs.problem, costs) if each.name.startswith((NAME, "data par"))]
    kinds = [kind_of(plan) for plan in plans if plan is not None]
    assert [list(differences(a, b)) for a, b in pairwise(kinds)] == [["sharded optimizer"], ["fully sharded"]]
