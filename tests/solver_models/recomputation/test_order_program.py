"""Which microbatches recompute in given orders: the best choice where all can be tried, and it ends when told to."""

from dataclasses import replace
from itertools import product
from random import Random
from threading import active_count

import pytest

from planner.problem import Problem
from planner.simulation.simulate import simulate
from planner.verify import verify
from solver_models.recomputation.microbatch_recomputation import MicrobatchRecomputation, RecomputedOrders
from solver_models.recomputation.order_program import OrderProgram, ProgramEffort, choose_recomputed
from tests.long_runs import shortened
from tests.planner.builders import make_stage
from tests.planner.recomputed_chain import given_stages, recomputed_chain
from tests.solver_models.recomputation.test_cp_sat_recomputation import check
from tests.solver_models.recomputation.test_microbatch_recomputation import CASES, plan_of, searched

EFFORT = ProgramEffort(most_nodes=1_000, has_time=lambda: True)


def with_random_times(rng: Random, problem: Problem) -> Problem:
    """The same chain with actions of other lengths."""
    layers = tuple(
        replace(
            layer,
            costs=tuple(
                replace(
                    cost,
                    forward_ns=rng.randint(5, 15),
                    input_grad_ns=rng.randint(5, 15),
                    weight_grad_ns=rng.randint(0, 15),
                    recompute_ns=rng.randint(1, 15),
                )
                for cost in layer.costs
            ),
        )
        for layer in problem.profile.layers
    )
    return replace(problem, profile=replace(problem.profile, layers=layers))


def least_end(search: MicrobatchRecomputation, start: RecomputedOrders) -> int:
    """The best end of these orders, of all sets of microbatches that recompute."""
    orders, count = search.device_orders(start), search.num_microbatches
    sets = [[m for m in range(count) if bits >> m & 1] for bits in range(2**count)]
    found = (search.of_orders(orders, chosen) for chosen in product(sets, repeat=search.num_stages))
    return min(each.end for each in found if each is not None)


@pytest.mark.parametrize("options", [{}, {"split_backward": False}, {"keep_workspace": True}])
def test_the_best_choice_is_found(options: dict):
    """Tests that of all sets of microbatches none ends the orders sooner, and the relaxed programme is not above it."""
    rng, improved = Random(7), 0
    for _ in range(shortened(6, whole=100)):
        chain = recomputed_chain(3, num_microbatches=3, kept=rng.choice([1, 1.5, 2, 2.5]), **options)
        problem = with_random_times(rng, chain)
        search = searched(problem, given_stages(problem))
        lateness = 0.0 if "split_backward" in options else rng.choice([0.0, 0.5, 1.0])
        starts = [*search.greedy(), *search.alternating(lateness)]
        start = rng.choice(starts)
        best, found = least_end(search, start), choose_recomputed(search, [start], effort=EFFORT)
        assert OrderProgram(search, start).least(EFFORT) <= best + 1e-3
        assert min((each.end for each in found), default=start.end) == best
        improved += best < start.end
        for each in found:
            assert each.orders.tolist() == start.orders.tolist()
            check(problem, each)
    assert improved


@pytest.mark.parametrize("lateness", [0.0, 0.5, 1.0])
def test_another_choice_ends_sooner(lateness: float):
    """Tests that of eight devices with room for four, other microbatches recompute and the same order ends sooner."""
    problem = recomputed_chain(8, num_microbatches=10, kept=4)
    search = searched(problem, given_stages(problem))
    start = list(search.alternating(lateness))[-1]
    (found,) = choose_recomputed(search, [start], effort=EFFORT)
    assert found.end < start.end
    assert found.orders.tolist() == start.orders.tolist()
    check(problem, found)


def test_the_programme_ends_when_time_is_over():
    """Tests that a programme that would take minutes is stopped, and no thread of it is left behind."""
    problem = with_random_times(Random(1), recomputed_chain(12, num_microbatches=30, kept=6))
    search = searched(problem, given_stages(problem))
    starts, before, asked = list(search.alternating(0.5))[-1:], active_count(), [0]

    def has_time() -> bool:
        asked[0] += 1
        return asked[0] < 10

    effort = ProgramEffort(most_nodes=1_000_000, has_time=has_time)
    found = choose_recomputed(search, starts, effort=effort)
    assert asked[0] >= 10
    assert active_count() == before
    assert all(each.end < starts[0].end for each in found)


@pytest.mark.parametrize("name", CASES)
def test_any_stages_have_a_programme(name: str):
    """Tests that a V, replicas and whole backwards have programmes, whose choices fit and are no slower."""
    options, text = CASES[name]
    given = recomputed_chain(4, num_microbatches=5, kept=2)
    problem = recomputed_chain(4, num_microbatches=5, kept=2, partition=None, placement=None, **options)
    stages = tuple(map(make_stage, text.split("; "))) if text else given_stages(given)
    search = searched(problem, stages)
    starts = sorted(search.greedy(), key=lambda each: each.end)[-3:]
    found = choose_recomputed(search, starts, effort=EFFORT)
    assert OrderProgram(search, starts[0]).least(EFFORT) <= starts[0].end + 1e-3
    for each in found:
        assert each.end < starts[-1].end
        plan = plan_of(problem, stages, each)
        assert verify(problem, plan).passed
        assert simulate(problem, plan).makespan_ns == each.end
