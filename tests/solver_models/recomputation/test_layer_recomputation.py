"""The kinds chosen for the layers of a plan are those of least time with which its orders fit."""

from dataclasses import replace
from itertools import product
from random import Random

import pytest

from planner.layout.costs import CostModel
from planner.lowering import (
    choice_of,
    make_candidate_arrays,
    make_instance,
    make_plan_from_orders,
    make_stages,
    modes_of,
)
from planner.plan import Plan, Stage
from planner.planning.starts.conversions import candidate_of
from planner.problem import Problem
from planner.simulation.simulate import simulate
from planner.verify import verify
from solver_models.recomputation.layer_recomputation import LayerRecomputation
from tests.long_runs import shortened
from tests.planner.layer_kinds import random_mapped_plan, with_kinds
from tests.strategies import random_problem, with_memory


def fitting_case(seed: int) -> tuple[Problem, Plan] | None:
    """A random plan whose stages say which layers recompute, in hardly more memory than it needs."""
    rng = Random(seed)
    problem = random_problem(rng)
    options = replace(problem.options, split_placement=False, max_width=1)
    layers = tuple(
        replace(layer, costs=tuple(cost for cost in layer.costs if cost.width == 1), wider=())
        for layer in problem.profile.layers
    )
    problem = replace(problem, options=options, profile=replace(problem.profile, layers=layers))
    problem = with_kinds(rng, problem)
    plan = random_mapped_plan(rng, problem)
    peaks = simulate(problem, plan).peak_bytes
    memory = {d.name: peaks.get(d.name, 1) + rng.choice([0, 0, 3, 10]) for d in problem.cluster.devices}
    problem = with_memory(problem, memory)
    return problem, replace(plan, problem=problem.reference())


def every_map(problem: Problem, stages: tuple[Stage, ...]) -> list[tuple[Stage, ...]]:
    """The stages with every choice of kinds."""
    names = [name for stage in stages for name in stage.layers]
    kinds = [["", "full", *(k.kind for k in problem.profile.by_name[name].recompute_kinds)] for name in names]
    found = []
    for chosen in product(*kinds):
        kind_of = dict(zip(names, chosen, strict=True))
        maps = [tuple((n, kind_of[n]) for n in stage.layers if kind_of[n]) for stage in stages]
        found.append(tuple(replace(stage, recompute=own) for stage, own in zip(stages, maps, strict=True)))
    return found


def extra_ns(problem: Problem, stages: tuple[Stage, ...]) -> int:
    """What recomputation takes in all stages, on the slowest device of each."""
    costs, total = CostModel(problem), 0
    for stage in stages:
        types = {costs.group_type(group) for group in stage.replicas}
        count = len(stage.replicas)
        for name, kind in stage.recomputed.items():
            works = [costs.layer_work(name, kind_, width=1, replicas=count) for kind_ in types]
            total += -(-max(work.recomputation_ns(kind) for work in works) // count)
    return total


@pytest.mark.slow
def test_chosen_kinds_take_the_least_time_that_fits():
    """Tests that no other choice of kinds with which the same orders fit takes less, and that the choice fits."""
    looked_at = 0
    for seed in range(shortened(20, whole=600)):
        problem, plan = fitting_case(seed)
        if len(problem.profile.layers) > 5:
            continue
        costs = CostModel(problem)
        recomputation = LayerRecomputation(make_instance(problem, costs), work=10.0)
        searcher = recomputation.searcher(choice_of(problem, plan.stages))
        candidate = candidate_of(problem, searcher, plan=plan)
        if not candidate.is_feasible:  # microbatches in another order, or groups that the search does not list
            continue
        chosen = recomputation.realise(searcher, candidate, seed=0)
        assert chosen is not None, seed
        stages = make_stages(
            problem, candidate.stage_of, groups=candidate.groups, modes=chosen.candidate.modes, choice=chosen.choice
        )
        words, _ = recomputation.searcher(chosen.choice).device_orders(chosen.candidate)
        found = make_plan_from_orders(problem, stages, device_orders=words)
        assert verify(problem, found).passed, seed
        fitting = [
            extra_ns(problem, each)
            for each in every_map(problem, plan.stages)
            if verify(problem, replace(plan, stages=each)).passed
        ]
        assert extra_ns(problem, stages) == min(fitting), seed
        looked_at += 1
    assert looked_at >= shortened(4, whole=150)


def test_a_choice_costs_in_the_search_what_it_costs_in_a_plan():
    """Tests that lanes of the search with a choice of kinds take and hold what the plan's stages do."""
    for seed in range(shortened(60, whole=1000)):
        rng = Random(seed)
        problem = with_kinds(rng, random_problem(rng))
        stages = random_mapped_plan(rng, problem).stages
        if any(len(group) > 1 for stage in stages for group in stage.replicas):
            continue
        costs = CostModel(problem)
        searcher = LayerRecomputation(make_instance(problem, costs), work=1.0).searcher(choice_of(problem, stages))
        stage_of, groups = make_candidate_arrays(problem, stages)
        net = searcher.net_of(searcher.make_candidate(stage_of, groups, modes=modes_of(stages)))
        expected = [costs.stage_cost(stage, replica) for stage in stages for replica in range(len(stage.replicas))]
        for lane, cost in enumerate(expected):
            kinds = "FIWB" if cost.has_weight_grad else "FI"
            assert [int(net.duration[lane, "FIWB".index(k)]) for k in kinds] == [cost.duration_ns(k) for k in kinds]
            assert (net.held[lane], net.stash[lane]) == (cost.held_bytes, cost.stash_bytes), seed
