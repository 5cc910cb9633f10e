"""Groups of several devices in the compiled search: the same times and bytes as the simulator, the same rules."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import InfeasibleProblemError, NoPlanFoundError
from planner.layout.costs import CostModel
from planner.layout.device_groups import list_groups
from planner.lowering import make_instance, make_stages
from planner.plan import Stage
from planner.problem import Problem
from planner.progress import Limits
from profiles.cluster import Device
from profiles.model_profile import ModelProfile
from solver_models.joint.search_space import automorphisms, make_space
from solver_models.joint.subproblems import open_cases
from solver_models.local_search.multistart import JointSearch
from solver_models.local_search.search import Searcher, candidate_of, solution_of
from solver_models.moves.annealing import FITS
from solver_models.moves.neighbourhood import neighbour
from solver_models.starts.first_candidates import make_seeds
from tests.long_runs import examples, long_only, shortened
from tests.planner.brute_force import brute_force
from tests.planner.hasty import make_plan
from tests.solver_models.nets import Case, random_exact_cluster, random_exact_problem
from tests.strategies import AMPLE, random_edges, random_layer

randoms = st.randoms(use_true_random=False)


def random_wide_problem(rng: Random, *, num_layers: int = 5, num_devices: int = 5) -> Problem:
    """A problem with measured widths, now and then with some left out; devices on hosts or on their own."""
    problem = random_exact_problem(rng, num_layers=1, num_devices=num_devices, num_microbatches=3)
    widths = rng.choice([(1, 2), (1, 2, 4), (1, 3), (1, 2, 3)])
    size = problem.profile.microbatch_size
    layers = tuple(
        random_layer(rng, f"l{i}", types=("fast", "slow"), widths=widths, size=size)
        for i in range(rng.randint(1, num_layers))
    )
    layers = tuple(
        replace(
            layer,
            costs=tuple(c for c in layer.costs if c.width == 1 or rng.random() < 0.95),
            wider=tuple(replace(w, parameter_bytes=rng.choice([None, 3])) for w in layer.wider),
        )
        for layer in layers
    )
    hosts = [rng.choice(["", "host0", "host1"]) for _ in problem.cluster.devices]
    devices = tuple(replace(d, host=host) for d, host in zip(problem.cluster.devices, hosts, strict=True))
    return replace(
        problem,
        profile=ModelProfile(
            name="profile", layers=layers, edges=random_edges(rng, [x.name for x in layers]), microbatch_size=size
        ),
        cluster=replace(problem.cluster, devices=devices),
        options=replace(problem.options, max_width=rng.choice([2, 3, 4]), max_stages_per_device=2),
    )


def is_simple(stages: tuple[Stage, ...]) -> bool:
    """Whether groups are equal or disjoint."""
    groups = {group for stage in stages for group in stage.replicas}
    return sum(map(len, groups)) == len({name for group in groups for name in group})


@settings(max_examples=examples(40))
@given(randoms)
def test_moves_change_widths(rng: Random):
    """Tests that moves from allowed candidates keep every layer on a holder, and that what they allow is sound."""
    problem = random_wide_problem(rng)
    searcher = Searcher(make_instance(problem, CostModel(problem)))
    case = Case(
        problem, (Stage(layers=problem.profile.topological_order, replicas=((problem.cluster.devices[0].name,),)),)
    )
    candidate = case.candidate()
    num_holders = len(problem.cluster.devices) + len(list_groups(problem))
    np.random.seed(rng.randrange(10**6))
    for _ in range(60):
        step = neighbour(searcher.layers, searcher.rules, solution_of(candidate))
        moved = candidate_of(step, objective=0, fit=FITS)
        groups = moved.groups
        assert {holder for group in groups for holder in group} <= set(range(num_holders))
        if searcher.is_allowed(moved):
            stages = make_stages(problem, moved.stage_of, groups=moved.groups, modes=moved.modes)
            assert is_simple(stages)
            candidate = moved


def tiny_wide_problem(rng: Random) -> Problem:
    """At most three layers, four alike devices and two microbatches; memory that binds where the seed says so."""
    layers = tuple(random_layer(rng, f"l{i}", types=("fast",), widths=(1, 2), size=1) for i in range(rng.randint(1, 3)))
    problem = random_exact_problem(rng, num_layers=1, num_microbatches=2)
    cluster = random_exact_cluster(rng, rng.randint(2, 3), is_shared=rng.random() < 0.3)
    needed = max(sum(layer.state_bytes + 2 * layer.stash_bytes for layer in layers), 1)
    memory = rng.randint(needed // 2 + 8, needed + 10)
    devices = tuple(Device(name=d.name, type="fast", memory_bytes=memory) for d in cluster.devices)
    return replace(
        problem,
        profile=ModelProfile(
            name="tiny", layers=layers, edges=random_edges(rng, [x.name for x in layers]), microbatch_size=1
        ),
        cluster=replace(cluster, devices=devices),
        options=replace(
            problem.options, max_width=2, max_replicas=1, max_stages_per_device=1, recompute=True, objective="makespan"
        ),
    )


@pytest.mark.parametrize("seed", range(shortened(6, whole=60)))
def test_nothing_is_better(seed: int):
    """Tests that no partition, groups, recomputation and order beat the plan of a tiny problem."""
    problem = tiny_wide_problem(Random(seed))
    expected = brute_force(problem)
    try:
        plan = make_plan(problem, limits=Limits(max_rounds=12, time_limit_s=60))
    except (InfeasibleProblemError, NoPlanFoundError):
        assert expected is None
        return
    assert plan.evidence is not None
    assert plan.evidence.makespan_ns == expected


def test_some_tiny_problems_need_widths_or_recomputation():
    """Tests that the problems above have plans that a search without widths or recomputation cannot find."""
    better = 0
    for seed in range(shortened(30, whole=60)):
        problem = tiny_wide_problem(Random(seed))
        plain = replace(problem, options=replace(problem.options, max_width=1, recompute=False))
        full, bare = brute_force(problem), brute_force(plain)
        better += full is not None and (bare is None or full < bare)
    assert better >= shortened(5, whole=10)


@settings(max_examples=examples(30))
@given(randoms)
def test_symmetries_take_groups_to_groups(rng: Random):
    """Tests that on alike devices a symmetry permutes groups by their members, first to first, and times stay."""
    problem = tiny_wide_problem(rng)
    links = tuple(replace(x, bandwidth_bytes_per_s=10**9, latency_ns=1, duplex=True) for x in problem.cluster.links)
    problem = replace(problem, cluster=replace(problem.cluster, links=links), num_microbatches=1)
    instance = make_instance(problem, CostModel(problem))
    searcher, space = Searcher(instance), make_space(instance)
    assert space is not None
    cases = open_cases(searcher, space)
    assert cases is not None
    for image in automorphisms(instance).tolist():
        assert sorted(image) == list(range(len(image)))
        for holder, target in enumerate(image):
            moved = [image[device] for device in instance.members_of(holder)]
            assert moved[0] == instance.members_of(target)[0]
            assert sorted(moved) == sorted(instance.members_of(target))
        for case in cases[:10]:
            groups = tuple(tuple(image[holder] for holder in group) for group in case.groups)
            before = searcher.rate(case.stage_of, case.groups, modes=case.modes).sort_key
            assert searcher.rate(case.stage_of, groups, modes=case.modes).sort_key == before


def test_alike_devices_have_symmetries():
    """Tests that three alike devices with alike links may change places in five ways, and groups with them."""
    rng, found = Random(0), set[int]()
    for _ in range(20):
        problem = tiny_wide_problem(rng)
        links = tuple(replace(x, bandwidth_bytes_per_s=10**9, latency_ns=1, duplex=True) for x in problem.cluster.links)
        problem = replace(problem, cluster=replace(problem.cluster, links=links))
        found.add(len(automorphisms(make_instance(problem, CostModel(problem)))))
    assert max(found) == 5


@long_only
def test_first_rounds_are_those_without_groups():
    """Tests that with widths open the search begins as it would without, and looks at groups afterwards."""
    problem = replace(tiny_wide_problem(Random(0)), num_microbatches=2)
    devices = tuple(replace(device, memory_bytes=AMPLE) for device in problem.cluster.devices)
    problem = replace(problem, cluster=replace(problem.cluster, devices=devices))
    instance = make_instance(problem, CostModel(problem))
    assert instance.wide is not None
    seeds = make_seeds(Searcher(replace(instance, wide=None)))
    found = []
    for own in (instance, replace(instance, wide=None)):
        search = JointSearch(own, seed=3)
        search.add(seeds)
        for _ in range(search.params.narrow_rounds):
            search.run_round()
        search.window.drain()
        found.append([(c.stage_of.tolist(), c.groups, c.objective) for c in (*search.pool, *search.polished)])
        params = search.params
        search.round = params.narrow_rounds + 1 if own.wide is None else params.wide_every_rounds * params.narrow_rounds
        assert search._scope(search._round_start())[0] is search.searcher
    assert found[0] == found[1]
