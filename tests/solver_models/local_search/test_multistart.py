"""Tasks of the joint search that look for stages with low floors and polish their orders."""

from itertools import count, islice
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.layout.costs import CostModel
from planner.lowering import make_instance
from solver_models.local_search import multistart
from solver_models.local_search.multistart import JointSearch, _split_task
from solver_models.local_search.search import Candidate
from solver_models.starts.first_candidates import make_seeds
from tests.planner.builders import make_layer, make_link, make_problem
from tests.solver_models.local_search.test_search import assert_sound
from tests.solver_models.nets import Case, random_restrictions


def chain_search(*, num_layers: int = 12, num_devices: int = 3, batch: int = 4) -> JointSearch:
    """The joint search of a chain of unlike layers on devices in a row, with its first candidates."""
    layers = [make_layer(f"l{i}", (40 + 7 * (i % 5), 60, 30 + 5 * (i % 3))) for i in range(num_layers)]
    links = [make_link(f"d{i} d{i + 1}") for i in range(num_devices - 1)]
    problem = make_problem(
        layers, links, num_microbatches=6, microbatch_size=batch, scaling="linear", memory_bytes=10**9
    )
    search = JointSearch(make_instance(problem, CostModel(problem)))
    search.iterations = 60
    search.add(make_seeds(search.searcher))
    return search


@pytest.mark.parametrize("are_most_floors", [False, True])
def test_tasks_are_dealt_out(are_most_floors: bool):
    """Tests that both kinds of task are numbered without gaps, and have the parts of all that they should have."""
    dealt = [_split_task(number, are_most_by_lower_bound=are_most_floors) for number in range(24)]
    for kind in (False, True):
        numbers = [number for is_floor, number in dealt if is_floor == kind]
        assert numbers == list(range(len(numbers)))
    assert sum(is_floor for is_floor, _ in dealt) == (16 if are_most_floors else 6)


def test_starts_come_first():
    """Tests that what is offered after the first round is no start."""
    search = chain_search()
    early, (*_, late) = len(search.starts), search.pool
    search.round = 1
    search.add([late])
    assert len(search.starts) == early


def test_floor_tasks_give_polished_orders():
    """Tests that new stages, ones near good ones, and good ones come back with words that reach what they are worth."""
    search = chain_search()
    start = search._round_start()
    found: list[Candidate] = []
    for number in range(6):
        candidate = search._estimate_task(number, start, seed=number)
        assert search.searcher.is_allowed(candidate)
        if candidate.device_orders is not None:
            found.append(candidate)
            search.take([candidate])
            start = search._round_start()
    assert found
    for candidate in found:
        words, objective = search.searcher.device_orders(candidate)
        assert words
        assert objective == candidate.objective
        floor = search.searcher.exact_lower_bound(candidate)
        assert floor is not None
        assert floor <= candidate.objective


def test_stages_that_cannot_be_better_are_not_polished():
    """Tests that where the best plan takes no longer than any floor, what floors lead to comes back without words."""
    search = chain_search()
    best = min((each for each in search.pool if each.is_feasible), key=lambda each: each.sort_key)
    floors = [search.searcher.exact_lower_bound(each) for each in search.starts]
    least = min(floor for floor in floors if floor is not None)
    fast = best.with_orders(search.searcher.device_orders(best)[0], objective=least // 100)
    search.polished = [fast]
    for number in (0, 1, 3, 4):
        assert search._estimate_task(number, search._round_start(), seed=number).device_orders is None


def test_more_candidates_with_words_are_kept_than_polished_beside_annealing():
    """Tests that floor tasks draw from all candidates with words, and policies' polishing from the first few."""
    search = chain_search()
    for number in count():
        candidate = search._estimate_task(3 * number, search._round_start(), seed=number)
        if candidate.device_orders is not None:
            search.take([candidate])
        if len(search.polished) > multistart._MOST_POLISHED or number > 40:
            break
    assert multistart._MOST_POLISHED < len(search.polished) <= multistart._KEPT_POLISHED
    search.pool = []
    first = search.polished[: multistart._MOST_POLISHED]
    chosen = [search._choose_polish(number, search._round_start()) for number in range(12)]
    assert all(each is None or any(each is one for one in first) for each in chosen)


@given(st.randoms(use_true_random=False))
def test_rounds_with_floor_tasks_are_sound(rng: Random):
    """Tests that whatever rounds of every kind find on random problems is allowed and passes the verifier."""
    problem = random_restrictions(rng)
    case = Case(problem, ())
    search = JointSearch(case.instance, seed=rng.randrange(99))
    search.iterations = 20
    seeds = [each for each in make_seeds(search.searcher) if search.searcher.is_allowed(each)]
    search.add(seeds)
    if not search.pool:
        return
    search.epoch = rng.randrange(2)
    for _ in islice(count(), 3):
        search.run_round()
        search.window.drain()
    for candidate in [*search.polished, *search.pool[:2]]:
        assert search.searcher.is_allowed(candidate)
        assert int(np.max(candidate.stage_of)) + 1 == len(candidate.groups)
        if candidate.is_feasible:
            assert_sound(case, candidate)
