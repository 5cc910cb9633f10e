"""Branch and bound over the orders of a case finds what the enumeration of all orders finds, and claims no more."""

from random import Random

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from solver_models.exact_order.branch_and_bound import best_sequence
from solver_models.exact_order.lower_bounds import schedule_lower_bound
from solver_models.exact_order.order_trees import find_tree, make_sets
from solver_models.simulation.evaluator import FAR
from tests.long_runs import examples
from tests.planner.builders import make_layer, make_link, make_problem, make_stage
from tests.solver_models.every_order import enumerate_orders
from tests.solver_models.nets import Case, random_case

MANY = 100_000
"""More nodes than any of these cases needs."""

randoms = st.randoms(use_true_random=False)


def small_case(rng: Random) -> Case:
    """At most three layers on two devices, or two on three, with replicas, chunks, tight memory, shared links and B."""
    num_layers, num_devices = rng.choice([(3, 2), (2, 3)])
    case = random_case(
        rng,
        is_tight=rng.random() < 0.6,
        num_layers=num_layers,
        num_devices=num_devices,
        num_microbatches=rng.choice([1, 2, 2, 3]),
    )
    assume(case.problem.options.objective == "makespan")
    return case


def optimum_of(case: Case) -> int | None:
    """The least makespan of all orders; None if none fits."""
    is_done, best = enumerate_orders(
        case.searcher, case.candidate(), threshold=FAR, most_orders=2_000, most_plays=40_000
    )
    assume(is_done)
    return None if best is None else best.objective


@pytest.mark.slow
@settings(max_examples=examples(150))
@given(randoms)
def test_the_best_order_is_found_and_proved(rng: Random):
    """Tests that the search ends with the best of all orders, and finds none where none is below the threshold."""
    case = small_case(rng)
    optimum = optimum_of(case)
    for threshold in [FAR] if optimum is None else [FAR, optimum + 1, optimum, optimum - 1]:
        for first_run in (1, MANY):
            is_closed, best = case.searcher.sequence(
                case.candidate(), threshold=threshold, most_nodes=MANY, first_run=first_run
            )
            assert is_closed
            assert (best is None) == (optimum is None or optimum >= threshold)
            if best is not None:
                assert best.objective == optimum == case.searcher.play(best).objective


@pytest.mark.slow
@settings(max_examples=examples(50))
@given(randoms)
def test_a_search_that_is_cut_short_claims_nothing_false(rng: Random):
    """Tests that with few nodes, orders that are found are played right, and what is called closed is closed."""
    case = small_case(rng)
    optimum = optimum_of(case)
    assume(optimum is not None)
    assert optimum is not None
    for most_nodes in (1, 2, 5):
        is_closed, best = case.searcher.sequence(case.candidate(), threshold=optimum + 3, most_nodes=most_nodes)
        assert not is_closed or (best is not None and best.objective == optimum)
        assert best is None or case.searcher.play(best).objective == best.objective >= optimum


def chain_in_turns(num_microbatches: int) -> Case:
    """Four stages, two on each of two devices in turns: no lane's own work tells how long the whole takes."""
    layers = [
        make_layer("p", (7, 7, 7)),
        make_layer("q", (9, 9, 9)),
        make_layer("r", (8, 8, 8)),
        make_layer("s", (5, 5, 5)),
    ]
    problem = make_problem(layers, [make_link("a b")], num_microbatches=num_microbatches)
    return Case(problem, tuple(make_stage(text) for text in ("p @ a", "q @ b", "r @ a", "s @ b")))


def test_it_ends_when_told_to():
    """Tests that a search whose flag is set stops at its first node and leaves the case open."""
    case, stop = chain_in_turns(6), np.ones(1, np.int64)
    floor = case.searcher.exact_lower_bound(case.candidate())
    assert floor is not None
    open_ones = [
        threshold
        for threshold in range(floor + 1, floor + 12)
        if not case.searcher.sequence(case.candidate(), threshold=threshold, most_nodes=1)[0]
    ]
    assert open_ones
    for threshold in open_ones:
        assert case.searcher.sequence(case.candidate(), threshold=threshold, most_nodes=MANY)[0]
        assert not case.searcher.sequence(case.candidate(), threshold=threshold, most_nodes=MANY, stop=stop)[0]


def test_devices_with_too_many_actions_are_left_open():
    """Tests that nothing is claimed where the actions of a device do not fit into bits."""
    case = chain_in_turns(11)
    assert case.searcher.sequence(case.candidate(), threshold=FAR, most_nodes=MANY) == (False, None)


def test_sets_of_several_words_hold_the_same():
    """Tests that trees are the same whether sets have one word or more, and that none is made beyond their room."""
    case, stop = chain_in_turns(5), np.zeros(1, np.int64)
    net, floor = case.net, case.searcher.exact_lower_bound(case.candidate())
    assert floor is not None
    sets = make_sets(net)
    assert sets.ndim == 1
    for threshold in range(floor, floor + 8):
        one, *found = find_tree(net, sets.copy(), threshold, MANY, MANY, stop)
        more, *same = find_tree(net, np.zeros((len(sets), 2), np.int64), threshold, MANY, MANY, stop)
        assert (found, one.nodes.tolist()) == (same, more.nodes.tolist())
    long = chain_in_turns(30).net
    assert make_sets(long).ndim == 2
    assert find_tree(long, sets.copy(), 10**9, MANY, MANY, stop)[1:] == (0, False)


def test_more_stage_replicas_than_bits():
    """Tests that of more stage replicas than fit into bits only bounds are claimed that plans keep to."""
    names, layers = (
        [f"d{number:02}" for number in range(73)],
        [make_layer("p", (72, 72, 72)), make_layer("q", (8, 8, 8))],
    )
    links = [make_link(f"{name} {names[-1]}") for name in names[:-1]]
    problem = make_problem(layers, links, num_microbatches=4, microbatch_size=72, scaling="linear", memory_bytes=10**6)
    case = Case(problem, (make_stage(f"p @ {' | '.join(names[:-1])}"), make_stage(f"q @ {names[-1]}")))
    played = case.searcher.play(case.candidate())
    floor = case.searcher.exact_lower_bound(played)
    assert floor is not None
    assert 0 < floor <= played.objective
    net, stop, threshold = case.searcher.net_of(played), np.zeros(1, np.int64), played.objective + 1
    assert schedule_lower_bound(net, FAR) == 0
    assert best_sequence(net, threshold, MANY, MANY, stop)[-1] is False
    assert find_tree(net, make_sets(net), threshold, MANY, MANY, stop)[1:] == (0, False)
    assert case.searcher.sequence(played, threshold=threshold, most_nodes=MANY) == (False, None)
