"""Which layers recompute, and by which kind: documents, the three evaluations, bounds, and the search."""

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from api.formatting import render_recomputation, render_recomputed
from planner.document import parse_plan, render_plan
from planner.evidence.certificate import check_certificate, make_bound, prove_infeasible, schedule_bound
from planner.layout.costs import CostModel
from planner.planning import Limits
from planner.problem import Options, Problem
from planner.verify import verify
from profiles.model_profile import Layer, LayerCost, RecomputeBytes, RecomputeTime
from tests.long_runs import shortened
from tests.planner.brute_force import brute_force
from tests.planner.builders import make_link, make_problem, make_stage
from tests.planner.hasty import make_plan
from tests.planner.judged import judged
from tests.planner.layer_kinds import random_mapped_plan, with_kinds
from tests.strategies import random_problem, tiny_problem


def two_kinds(
    name: str, *, stash: int = 100, full: tuple[int, int] = (10, 10), some: tuple[int, int] = (1, 60)
) -> Layer:
    """A layer whose recomputation takes so long and leaves so much: the full one, and a selective one."""
    kinds = (RecomputeTime(kind="selective", recompute_ns=some[0]),)
    cost = LayerCost(
        device_type="gpu", forward_ns=10, input_grad_ns=10, weight_grad_ns=10, recompute_ns=full[0],
        recompute_kinds=kinds,
    )  # fmt: skip
    left = (RecomputeBytes(kind="selective", checkpoint_bytes=some[1]),)
    return Layer(
        name=name, costs=(cost,), parameter_bytes=1, stash_bytes=100, checkpoint_bytes=full[1], recompute_kinds=left
    )


def test_a_map_is_paid_layer_by_layer():
    """Tests that I and B take what the kinds of their layers take, and that F leaves what these leave."""
    layers = [two_kinds(name) for name in "xyz"]
    problem = make_problem(layers, [make_link("a b")], recompute=True, recompute_layers=True)
    stage = replace(make_stage("x y z @ a"), recompute=(("x", "full"), ("z", "selective")))
    cost = CostModel(problem).stage_cost(stage, 0)
    assert (cost.input_grad_ns, cost.weight_grad_ns, cost.backward_ns) == (30 + 10 + 1, 30, 60 + 10 + 1)
    assert (cost.held_bytes, cost.stash_bytes) == (10 + 100 + 60, 300)


def test_core_and_judge_agree_on_maps():
    """Tests that random plans in which any layers recompute by any kinds take and hold the same by core and judge."""
    for seed in range(shortened(80, whole=3000)):
        rng = Random(seed)
        problem = with_kinds(rng, random_problem(rng))
        plan = random_mapped_plan(rng, problem)
        played = judged(problem, plan)
        assert verify(problem, plan).violations == (), seed
        assert parse_plan(render_plan(plan)) == plan
        objective = played.span_ns if problem.options.objective == "span" else played.makespan_ns
        assert schedule_bound(problem, plan.stages, costs=CostModel(problem)) <= objective, seed


def small_problem(seed: int) -> Problem:
    """A tiny problem, often short of memory, in which layers state kinds."""
    rng = Random(seed)
    problem = with_kinds(rng, tiny_problem(rng))
    options = replace(problem.options, max_replicas=1 if rng.random() < 0.6 else 2)
    return replace(problem, options=options)


@pytest.mark.slow
def test_no_plan_is_below_bounds():
    """Tests that no bound is above the best of all partitions, mappings, orders and maps of layers to kinds."""
    for seed in range(shortened(40, whole=1200)):
        problem = small_problem(seed)
        best, costs = brute_force(problem), CostModel(problem)
        if best is None:
            continue
        assert prove_infeasible(problem, costs) is None, seed
        bound = make_bound(problem, costs)
        assert bound.value_ns <= best, seed
        assert check_certificate(problem, bound.certificate) == bound.value_ns


@pytest.mark.slow
def test_plans_are_not_below_the_best():
    """Tests that what the search finds is never below brute force over all maps, and claims no complete search."""
    found = reached = 0
    for seed in range(shortened(2, whole=40)):
        problem = small_problem(seed)
        best = brute_force(problem)
        if best is None:
            continue
        plan = make_plan(problem, limits=Limits(max_rounds=6))
        objective = plan.evidence.span_ns if problem.options.objective == "span" else plan.evidence.makespan_ns
        assert plan.evidence.lower_bound_ns <= best <= objective, seed
        assert plan.evidence.proved_by in (None, "certificate"), seed
        found, reached = found + 1, reached + (objective == best)
    assert reached >= 0.8 * found


def tight_chain(**options: object) -> Problem:
    """Eight equal layers on four devices, where the first stage has too little memory for its microbatches."""
    layers = [two_kinds(f"l{i}", full=(10, 40), some=(2, 70)) for i in range(8)]
    links = [make_link(f"{a} {b}") for a, b in pairwise("abcd")]
    return make_problem(
        layers, links, num_microbatches=8, memory_bytes=620, split_backward=False, receive_buffers=0, max_replicas=1,
        max_stages_per_device=1, **options,
    )  # fmt: skip


@pytest.mark.slow
def test_layers_of_a_stage_recompute_by_what_is_cheapest():
    """Tests that a plan whose layers may choose is faster than one whose stages do, and says which layers recompute."""
    stages = make_plan(tight_chain(recompute=True), limits=Limits(max_rounds=1))
    layers = make_plan(tight_chain(recompute=True, recompute_layers=True), limits=Limits(max_rounds=2))
    assert layers.evidence.makespan_ns < stages.evidence.makespan_ns
    assert any(isinstance(stage.recompute, tuple) for stage in layers.stages)
    assert '"recompute": {"' in render_plan(layers)
    assert parse_plan(render_plan(layers)) == layers


def test_what_a_stage_recomputes_is_told():
    """Tests that words and sign of a stage say whether all of its layers recompute, which of them, or none."""
    stage = make_stage("x y z @ a", recompute=True)
    some = replace(stage, recompute=(("x", "full"), ("z", "selective")))
    none = replace(stage, recompute=())
    assert [render_recomputed(each) for each in (stage, some, none)] == ["↻ ", "↻2/3 ", ""]
    texts = ["recomputed", "2 of 3 recomputed (1 full, 1 selective)", ""]
    assert [render_recomputation(each) for each in (stage, some, none)] == texts


def test_kinds_are_stated_everywhere_or_nowhere():
    """Tests that a kind of which a cost or the layer says nothing, or that says too much, is refused with its name."""
    layer = two_kinds("x")
    with pytest.raises(ValueError, match="recompute_kinds has 'selective' either"):
        replace(layer, recompute_kinds=())
    with pytest.raises(ValueError, match="checkpoint_bytes of 'selective' = 101 exceeds stash_bytes = 100"):
        replace(layer, recompute_kinds=(RecomputeBytes(kind="selective", checkpoint_bytes=101),))
    with pytest.raises(ValueError, match="kind = 'full'"):
        RecomputeTime(kind="full", recompute_ns=1)


def test_layers_choose_only_where_stages_may_recompute():
    """Tests that the option without the one that it needs is refused with the remedy."""
    with pytest.raises(ValueError, match="set recompute to true"):
        Options(recompute_layers=True)
