"""Layouts in a loop: the compiled order against the simulator, the search against every cut and hand-made layouts."""

from dataclasses import replace
from itertools import combinations, pairwise
from random import Random

import pytest

from benchmarks.layouts import RECIPES, hand_plan, import_partition, read_problem
from planner.export.looped_pipelines import as_looped
from planner.export.megatron import make_megatron_job
from planner.export.targets import TARGETS, restrict, with_chunks
from planner.plan import Plan, Stage
from planner.planning import Limits
from planner.planning.named_params import params_with
from planner.planning.planning_params import SearchParams
from planner.planning.search_state import SearchState
from planner.planning.starts.looped_layouts import LoopedSearch
from planner.problem import Options, Problem
from planner.simulation.simulate import simulate
from planner.verify import verify
from tests.long_runs import shortened
from tests.planner.evidence.test_certificate import make_chain
from tests.planner.hasty import make_plan

MEGATRON = TARGETS["megatron"]
HASTY = params_with({"looped.first_actions": 10_000_000, "looped.most_actions": 40_000_000})


def random_loop(rng: Random, *, num_layers: int, memory: int = 2**40) -> Problem:
    """Uneven layers for Megatron on two or three devices."""
    devices = rng.randint(2, 3)
    times = [tuple(rng.randint(1, 9) for _ in range(3)) for _ in range(num_layers)]
    options = replace(restrict(Options(max_stages_per_device=3), MEGATRON), max_replicas=1, receive_buffers=0)
    return make_chain(
        times,
        num_devices=devices,
        num_microbatches=devices * rng.randint(1, 3),
        stash=(2, 1),
        edge_bytes=rng.choice([0, 3]),
        memory=memory,
        options=options,
    )


def search_of(problem: Problem, *, max_rounds: int = 8, params: SearchParams = SearchParams()) -> LoopedSearch:
    limits = Limits(max_rounds=max_rounds)
    run = SearchState(problem, limits, on_progress=lambda _: None, should_stop=lambda: False, params=params)
    return LoopedSearch(run)


def plan_with(problem: Problem, cut: tuple[int, ...]) -> Plan:
    """The looped plan of given bounds."""
    names, devices = problem.profile.topological_order, [device.name for device in problem.cluster.devices]
    stages = tuple(
        Stage(layers=names[a:b], replicas=((devices[number % len(devices)],),))
        for number, (a, b) in enumerate(pairwise(cut))
    )
    return as_looped(problem, Plan(problem=problem.reference(), stages=stages, schedule={}))


def every_cut(size: int, stages: int):
    return [(0, *inner, size) for inner in combinations(range(1, size), stages - 1)]


@pytest.mark.parametrize("seed", range(4))
def test_judge_knows_the_order(seed: int):
    """Tests that the judge passes every shape's order, and none with two neighbouring actions exchanged."""
    rng = Random(seed)
    problem = random_loop(rng, num_layers=7)
    for shape in search_of(problem).shapes:
        plan = plan_with(problem, rng.choice(every_cut(7, len(shape.cut) - 1)))
        assert verify(problem, plan).passed
        device = rng.choice(list(plan.schedule))
        order = list(plan.schedule[device])
        place = rng.randrange(len(order) - 1)
        order[place : place + 2] = order[place + 1], order[place]
        other = replace(plan, schedule={**plan.schedule, device: tuple(order)})
        found = [violation for violation in verify(problem, other).violations if violation.rule == "loop-order"]
        assert [violation.subject for violation in found] == [f"{device}: action {place}"]


@pytest.mark.parametrize("seed", range(4))
def test_search_finds_the_best_layout(seed: int):
    """Tests that on small chains the search ends with the best of all chunks and all cuts."""
    problem = random_loop(Random(seed), num_layers=8)
    search = search_of(problem)
    best = min(
        simulate(problem, plan_with(problem, cut)).makespan_ns
        for shape in search.shapes
        for cut in every_cut(8, len(shape.cut) - 1)
    )
    found = [simulate(problem, plan).makespan_ns for plan in search.plans(share=1.0)]
    assert found[-1] == best
    assert found == sorted(found, reverse=True)


def test_hand_layouts_are_beaten():
    """Tests that plans for Megatron are never above layouts of public recipes, and are written as layouts of its own.

    `make test` anneals one of them, with a quarter of the work.
    """
    params, rounds = shortened((HASTY, 2), whole=(SearchParams(), 4))
    for recipe in shortened(RECIPES[:1], whole=RECIPES):
        problem = read_problem(recipe.problem, ranks=recipe.ranks, microbatches=recipe.microbatches)
        hand_ns = simulate(problem, hand_plan(problem, recipe.layout)).makespan_ns
        *_, plan = search_of(problem, max_rounds=rounds, params=params).plans(share=1.0)
        assert simulate(problem, plan).makespan_ns <= hand_ns
        layout = dict(pair[:2] for pair in make_megatron_job(problem, plan).arguments)[
            "--pipeline-model-parallel-layout"
        ]
        cut = import_partition(layout, problem.profile.topological_order)
        assert cut == tuple(stage.layers for stage in plan.stages)


def test_target_decides_the_chunks():
    """Tests that nobody has to say how many stages a device may hold, and that what is said or given stays."""
    assert with_chunks(Options(), MEGATRON).max_stages_per_device == 12
    assert with_chunks(Options(max_stages_per_device=3), MEGATRON).max_stages_per_device == 3
    assert with_chunks(Options(), TARGETS["torch"]).max_stages_per_device == 2
    problem = random_loop(Random(1), num_layers=9)
    plan = make_plan(problem, limits=Limits(time_limit_s=60, max_rounds=1), target=MEGATRON)
    assert plan.schedule == as_looped(problem, plan).schedule


def test_a_search_ends_where_no_time_is_left_for_its_tasks():
    """Tests that shapes whose anneals were left out for want of time end the search, instead of an empty choice."""
    search = search_of(random_loop(Random(1), num_layers=5))
    search.run.window._has_time = lambda _: False
    assert list(search.plans(share=1.0)) == []
