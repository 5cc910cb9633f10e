"""The local search: what it makes is legal, within the rules and the memory, never worse, and the same every time."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice, pairwise, product
from math import prod
from random import Random

import numba
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from planner.actions import KINDS, Action
from planner.layout.stage_replicas import memory_steps
from planner.lowering import make_stages
from planner.verify import verify
from solver_models.device_rows import MEMORY
from solver_models.instance import DeviceOrder
from solver_models.local_search.multistart import JointSearch
from solver_models.local_search.search import Candidate, Searcher, solution_of
from solver_models.local_search.task_window import TaskWindow
from solver_models.moves.neighbourhood import neighbour
from solver_models.search_params import MultistartParams, SolverParams
from solver_models.simulation.evaluator import FAR
from solver_models.starts.first_candidates import make_seeds
from tests.long_runs import examples
from tests.planner.builders import make_layer, make_link, make_problem, make_stage
from tests.solver_models import kernel_doors
from tests.solver_models.every_order import enumerate_orders
from tests.solver_models.kernel_doors import MOVES
from tests.solver_models.nets import (
    Case,
    flatten,
    in_order,
    is_ordered,
    keeps_options,
    random_case,
    random_exact_problem,
    random_policy_params,
    random_restrictions,
    tighten,
)

randoms = st.randoms(use_true_random=False)


@numba.njit
def set_seed(seed: int) -> None:
    """The moves draw from numba's own generator."""
    np.random.seed(seed)


def assert_sound(case: Case, candidate: Candidate) -> None:
    """The words of a feasible candidate pass the verifier and reach its objective."""
    words, objective = case.searcher.device_orders(candidate)
    assert objective == candidate.objective
    stages = make_stages(case.problem, candidate.stage_of, groups=candidate.groups, modes=candidate.modes)
    verdict = verify(case.problem, Case(case.problem, stages).plan(words))
    assert verdict.passed, verdict.violations[0].message
    assert verdict.timeline is not None
    assert verdict.timeline.objective_ns(case.problem.options.objective) == objective


@given(randoms)
def test_polishing_keeps_words_valid_and_never_worsens_them(rng: Random):
    """Tests that polished words pass the verifier and are at least as good as those polished."""
    case = random_case(rng, is_tight=True)
    candidate = case.candidate(policy_params=random_policy_params(rng))
    candidate = case.searcher.play(candidate)
    assume(candidate.is_feasible)
    polished = case.searcher.polish(
        candidate, iterations=200, temperature=rng.choice([0.0, 0.01, 0.3]), seed=rng.randrange(99)
    )
    assert polished.objective <= candidate.objective
    assert polished.device_orders is not None
    assert_sound(case, polished)
    stopped = case.searcher.polish(candidate, iterations=2**60, temperature=0.0, seed=0, stop=np.ones(1, np.int64))
    assert stopped.objective == candidate.objective


def allowed_candidates(searcher: Searcher) -> list[Candidate]:
    return [candidate for candidate in make_seeds(searcher) if searcher.is_allowed(candidate)]


@given(randoms)
def test_annealing_keeps_the_rules_and_never_worsens(rng: Random):
    """Tests that annealing gives an allowed, ordered and valid candidate that is at least as good as the first."""
    problem = random_restrictions(rng)
    case = Case(problem, ())
    seeds = allowed_candidates(case.searcher)
    assume(seeds)
    candidate = rng.choice(seeds)
    if candidate.is_feasible and rng.random() < 0.5:
        words, _ = case.searcher.device_orders(candidate)
        stages = make_stages(problem, candidate.stage_of, groups=candidate.groups, modes=candidate.modes)
        tight = tighten(rng, problem, Case(problem, stages).play(words))
        case = Case(tight, ())
        candidate = case.searcher.rate(candidate.stage_of, candidate.groups, modes=candidate.modes)
    found = case.searcher.anneal(candidate, iterations=300, temperature=(0.3, 0.001), seed=rng.randrange(99))
    assert found.sort_key <= candidate.sort_key
    assert case.searcher.is_allowed(found)
    assert is_ordered(case.instance, found.stage_of)
    assert len(found.groups) == len(found.modes) == found.stage_of.max() + 1
    if found.is_feasible:
        assert_sound(case, found)


Move = Callable[[Searcher, Candidate], Candidate]


def make_move(name: str) -> Move:
    """One step as a function of candidates."""

    def move(searcher: Searcher, candidate: Candidate) -> Candidate:
        start, devices = flatten(candidate.groups)
        stage_of, modes, policy_params = candidate.stage_of, candidate.modes, candidate.policy_params
        if name == "neighbour":
            step = neighbour(searcher.layers, searcher.rules, solution_of(candidate))
            stage_of, start, devices, modes, policy_params = step
        else:
            stage_of, start, devices, modes = kernel_doors.move(
                MOVES.index(name),
                stage_of,
                start,
                devices,
                modes,
                searcher.instance.num_devices,
                searcher.layers.edges,
            )
        assert start[0] == 0
        assert start[-1] == len(devices)
        groups = tuple(tuple(devices[a:b].tolist()) for a, b in pairwise(start))
        return replace(candidate, stage_of=stage_of, groups=groups, modes=modes, policy_params=policy_params)

    return move


@pytest.mark.parametrize("name", ["neighbour", *MOVES])
@settings(max_examples=examples(30))
@given(rng=randoms)
def test_moves_keep_partitions_sound(name: str, rng: Random):
    """Tests that every move leaves no stage empty and no edge backward, or makes something that is not allowed."""
    searcher = Case(random_restrictions(rng), ()).searcher
    seeds = allowed_candidates(searcher)
    assume(seeds)
    candidate, move = rng.choice(seeds), make_move(name)
    set_seed(rng.randrange(10**6))
    for _ in range(30):
        moved = move(searcher, candidate)
        assert is_ordered(searcher.instance, moved.stage_of)
        assert len(moved.groups) == len(moved.modes) == moved.stage_of.max() + 1
        assert {device for group in moved.groups for device in group} <= set(range(searcher.instance.num_devices))
        if searcher.is_allowed(moved):
            assert all(group and len(set(group)) == len(group) for group in moved.groups)
            candidate = moved


@given(randoms)
def test_what_is_allowed(rng: Random):
    """Tests that candidates are allowed exactly when they keep the options."""
    problem = random_restrictions(rng)
    searcher = Case(problem, ()).searcher
    set_seed(rng.randrange(10**6))
    for candidate in make_seeds(searcher):
        moved = make_move("neighbour")(searcher, candidate)
        for either in (candidate, moved):
            assert searcher.is_allowed(either) == keeps_options(problem, either.stage_of, groups=either.groups)


def every_word(case: Case, device: int) -> Iterator[DeviceOrder]:
    """Every order of a device that keeps F before I before W (or B) and the memory, B wherever there are weights."""
    total, can_split = case.problem.num_microbatches, case.problem.options.split_backward
    costs = {
        number: case.costs.stage_cost(stage, group.index(device))
        for number, (stage, group) in enumerate(zip(case.stages, case.candidate().groups, strict=True))
        if device in group
    }
    room = int(case.net.devices[device, MEMORY])

    def extend(word: DeviceOrder, held: int) -> Iterator[DeviceOrder]:
        left = False
        for stage, cost in costs.items():
            done = {kind: sum(k == kind and s == stage for k, s, _ in word) for kind in range(4)}
            backward = done[1] + done[3]
            has_weight = cost.has_weight_grad
            offered = [
                ("F", done[0] < total),
                ("I", backward < done[0] and (can_split or not has_weight)),
                ("W", has_weight and done[2] < done[1]),
                ("B", has_weight and backward < done[0]),
            ]
            left = left or backward < total or (has_weight and done[2] < done[1])
            for kind, is_next in offered:
                during, after = memory_steps(cost, kind)
                if is_next and held + during <= room:
                    yield from extend([*word, ("FIWB".index(kind), stage, -1)], held + after)
        if not left:
            yield word

    yield from extend([], 0)


def numbered(word: DeviceOrder) -> DeviceOrder:
    """The word with its microbatches in order."""
    return in_order([Action(KINDS[kind], stage, 0) for kind, stage, _ in word])


@settings(max_examples=examples(40))
@given(randoms)
def test_enumeration_finds_the_best_order(rng: Random):
    """Tests that the best of all orders is what playing every combination of words in the simulator gives."""
    case = random_case(
        rng, is_tight=rng.random() < 0.5, num_layers=3, num_devices=2, num_microbatches=rng.choice([1, 2, 2, 3])
    )
    objective, used = case.problem.options.objective, sorted({d for group in case.candidate().groups for d in group})
    assume(len(case.net.replica_stage) * case.problem.num_microbatches <= 8)
    tables = [[numbered(word) for word in islice(every_word(case, device), 1001)] for device in used]
    assume(max(map(len, tables)) <= 1000 >= prod(map(len, tables)))
    values = [FAR]
    for words in product(*tables):
        orders = dict(zip(used, words, strict=True))
        _, value = case.searcher.device_orders(case.candidate(words=orders))
        if value is not None:
            values.append(case.play(orders).objective_ns(objective))
    threshold = rng.choice([FAR, min(values), min(min(values) + 1, FAR)])
    is_done, found = enumerate_orders(
        case.searcher, case.candidate(), threshold=threshold, most_orders=2000, most_plays=2000
    )
    assert is_done
    assert (found is None) == (min(values) >= threshold)
    if found is not None:
        assert found.objective == min(values)
        assert_sound(case, found)


def one_stage(num_microbatches: int, memory_bytes: int, *, weight_stash: int = 1) -> Case:
    """A stage that holds a byte from F to W (or I), on a device of its own."""
    layer = make_layer("x", stash_bytes=1, weight_stash_bytes=weight_stash, state_bytes=0)
    problem = make_problem([layer], [make_link("a b")], num_microbatches=num_microbatches, memory_bytes=memory_bytes)
    return Case(problem, (make_stage("x @ a"),))


def test_no_order_fits():
    """Tests that a stage without room for one microbatch has no order, and that this is certain."""
    case = one_stage(2, 0)
    assert enumerate_orders(case.searcher, case.candidate(), threshold=FAR, most_orders=42, most_plays=42) == (
        True,
        None,
    )


def test_rounds_are_reproducible():
    """Tests that rounds give the same candidates on any number of threads, and that they never lose the best."""
    problem = random_exact_problem(Random(3), num_microbatches=8)
    found = []
    for num_threads in (1, 1, 2, 16):
        search = JointSearch(
            Case(problem, ()).instance,
            seed=5,
            window=TaskWindow(num_threads, tasks_per_width=2),
        )
        search.iterations = 300
        search.add(make_seeds(search.searcher))
        best = []
        for _ in range(8):
            search.run_round()
            assert search.best is not None
            best.append(search.best.objective)
        search.window.drain()
        assert best == sorted(best, reverse=True)
        found.append([describe(candidate) for candidate in (*search.pool, *search.polished)])
    assert all(each == found[0] for each in found)


def test_a_pool_that_is_stuck_begins_afresh():
    """Tests that pools are left in turn for other starts and for the best of all, the same way again, losing none."""
    params = SolverParams(multistart=MultistartParams(stale_rounds=1))
    problem = random_exact_problem(Random(4), num_microbatches=6)
    found = []
    for _ in range(2):
        search = JointSearch(Case(problem, ()).instance, seed=2, window=TaskWindow(2), params=params)
        search.iterations = 50
        search.add(make_seeds(search.searcher))
        best, pools = [], []
        for _ in range(8):
            search.run_round()
            search.window.drain()
            assert search.best is not None
            best.append(search.best.sort_key)
            pools.append((search.epoch, [describe(candidate) for candidate in search.pool]))
        assert best == sorted(best, reverse=True)
        assert search.epoch >= 2
        assert best[-1] <= search.elite[0].sort_key <= min(candidate.sort_key for candidate in search.starts)
        found.append(pools)
    assert found[0] == found[1]


def test_closed_orders_are_not_polished():
    """Tests that only words are polished that the schedule bound leaves open, and that others are annealed from."""
    problem = random_exact_problem(Random(3), num_microbatches=8)
    problem = replace(problem, options=replace(problem.options, objective="makespan"))
    search = JointSearch(Case(problem, ()).instance)
    search.add(make_seeds(search.searcher))
    feasible = [candidate for candidate in search.pool if candidate.is_feasible]
    floors = [search.searcher.exact_lower_bound(candidate) for candidate in feasible]
    is_open = [floor is None or candidate.objective > floor for candidate, floor in zip(feasible, floors, strict=True)]
    assert [search.searcher.is_open(candidate) for candidate in feasible] == is_open
    search.pool = [candidate for candidate, flag in zip(feasible, is_open, strict=True) if flag]
    for number in range(12) if search.pool else ():
        chosen = search._choose_polish(number, search._round_start())
        assert any(candidate is chosen for candidate in search.pool)
    search.pool = [replace(feasible[0], objective=floor) for floor in floors[:1] if floor is not None]
    assert search.pool
    assert [search._choose_polish(number, search._round_start()) for number in range(12)] == [None] * 12


def describe(candidate: Candidate) -> tuple[object, ...]:
    """All of a candidate, comparable."""
    return (
        candidate.stage_of.tolist(),
        candidate.groups,
        candidate.modes.tolist(),
        candidate.policy_params.tolist(),
        candidate.sort_key,
        candidate.device_orders,
    )


@given(randoms)
def test_pools_hold_only_what_is_allowed(rng: Random):
    """Tests that candidates which break a rule are dropped and the best of the others comes first."""
    case = Case(random_restrictions(rng), ())
    search = JointSearch(case.instance)
    seeds = make_seeds(search.searcher)
    search.add(seeds)
    allowed = [candidate for candidate in seeds if search.searcher.is_allowed(candidate)]
    assert all(search.searcher.is_allowed(candidate) for candidate in search.pool)
    assert bool(search.pool) == bool(allowed)
    if allowed:
        assert search.pool[0].sort_key == min(candidate.sort_key for candidate in allowed)
