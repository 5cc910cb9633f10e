"""The search on words: what it computes is what playing says, and what it returns is legal and no worse."""

from random import Random

import numpy as np
import pytest

from solver_models.local_search.critical_path_search import TabuSearch, follows_orders, improve
from solver_models.local_search.list_policies import Tuning, play_filled, tune
from solver_models.local_search.order_search import OrderSearch
from solver_models.local_search.search import encode
from solver_models.moves.annealing import longest_order
from solver_models.simulation.evaluator import FAR, Policy, peak_excess, play
from tests.long_runs import shortened
from tests.solver_models.kernel_doors import longest_paths
from tests.solver_models.nets import Case, random_case, random_policy_params, with_occupancy

NONE = Policy(*(np.zeros(1, np.int64) for _ in range(3)), None)


@pytest.fixture(params=range(shortened(20, whole=40)))
def case(request: pytest.FixtureRequest) -> Case:
    """A small net, with links of its own for every pair of devices or shared ones, with little memory or much."""
    rng = Random(request.param)
    return random_case(rng, is_tight=rng.random() < 0.5, num_microbatches=5)


def played(case: Case, seed: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Words of a random policy, their lengths, and what they are worth; FAR if they do not fit."""
    candidate = case.candidate(policy_params=random_policy_params(Random(seed)))
    words, value = case.searcher.device_orders(candidate)
    codes, lengths = (
        np.zeros((len(case.net.devices), longest_order(case.net)), np.int32),
        np.zeros(len(case.net.devices), np.int64),
    )
    encode(case.net, words, device_orders=codes, lengths=lengths, first=case.searcher.first_member)
    return codes, lengths, FAR if value is None else value


@pytest.mark.parametrize("seed", range(3))
def test_heads_are_what_playing_says(case: Case, seed: int):
    """Tests that the pass over the words finds the makespan and span of the event by event game, where it applies."""
    words, lengths, value = played(case, seed)
    if value >= FAR or not follows_orders(case.net):
        return
    makespan, span, total = play(case.net, NONE, words, lengths, True, FAR, None)
    value, _, apart = longest_paths(case.net, words, lengths)
    assert value == (makespan, total)
    assert apart == span


@pytest.mark.parametrize("seed", range(3))
def test_no_path_is_longer_than_the_makespan(case: Case, seed: int):
    """Tests that no action's head and tail exceed the makespan, and that some path is that long unless links queue.

    What devices lose to reductions is on no path.
    """
    case = Case(with_occupancy(case.problem, 0), case.stages)
    words, lengths, value = played(case, seed)
    if value >= FAR or not follows_orders(case.net):
        return
    (makespan, _), paths, _ = longest_paths(case.net, words, lengths)
    assert max(paths[d, :n].max() for d, n in enumerate(lengths) if n) == makespan


@pytest.mark.parametrize("by_span", [False, True])
def test_improved_words_are_legal_and_no_worse(case: Case, by_span: bool):
    """Tests that tabu search keeps memory, completeness and order of words, and tells their true value."""
    words, lengths, value = played(case, 1)
    if value >= FAR or not follows_orders(case.net):
        return
    before = play(case.net, NONE, words, lengths, True, FAR, None)
    search = TabuSearch(steps=100, samples=20, patience=30, lower_bound=0, seed=5)
    value, total = improve(case.net, words, lengths, search, by_span, np.zeros(1, np.int64))
    after = play(case.net, NONE, words, lengths, True, FAR, None)
    assert peak_excess(case.net, words, lengths) == 0
    assert (value, total) == (after[1] if by_span else after[0], after[2])
    assert value <= (before[1] if by_span else before[0])


@pytest.mark.parametrize("by_span", [False, True])
def test_words_that_end_too_early_are_worth_nothing(case: Case, by_span: bool):
    """Tests that tabu search says of half of all words what playing says, and leaves them as they are."""
    words, lengths, value = played(case, 1)
    if value >= FAR or not follows_orders(case.net):
        return
    half, before = lengths // 2, words.copy()
    assert play(case.net, NONE, words.copy(), half.copy(), True, FAR, None)[0] == FAR
    search = TabuSearch(steps=10, samples=20, patience=30, lower_bound=0, seed=5)
    assert improve(case.net, words, half, search, by_span, np.zeros(1, np.int64))[0] == FAR
    assert (words == before).all()


def test_tuned_words_fit(case: Case):
    """Tests that annealed policies write words that play to what they claim."""
    words, lengths, _ = played(case, 2)
    value, total = tune(
        case.net, words, lengths, Tuning(slope=4, steps=20, temperature=0.02, lower_bound=0, seed=3), False
    )
    if value < FAR:
        assert play(case.net, NONE, words, lengths, True, FAR, None)[0] == value
        assert play(case.net, NONE, words, lengths, True, FAR, None)[2] == total


@pytest.mark.parametrize("extra", [0, 2])
def test_filled_words_fit(case: Case, extra: int):
    """Tests that filling up to the first gradient writes words that play to what it claims, within the memory."""
    words, lengths, _ = played(case, 2)
    value, total = play_filled(case.net, words, lengths, extra, False)
    if value < FAR:
        makespan, _, last_ends = play(case.net, NONE, words, lengths, True, FAR, None)
        assert (makespan, last_ends) == (value, total)
        assert peak_excess(case.net, words, lengths) == 0


def test_everything_is_improved_somewhere():
    """Tests that the cases above hold nets on which tabu search applies and others on which it does not."""
    nets = [random_case(Random(seed), num_microbatches=5).net for seed in range(40)]
    assert {bool(follows_orders(net)) for net in nets} == {True, False}


def chain_search(seed: int, *, rounds: int) -> OrderSearch:
    """An order search that has run some rounds from nothing."""
    case = random_case(Random(11), num_microbatches=5)
    search = OrderSearch(case.searcher, case.candidate(), seed=seed)
    for _ in range(rounds):
        search.run_round()
    search.window.drain()
    return search


def test_rounds_are_deterministic():
    """Tests that the same seed and number of rounds give the same orders, words and all."""
    first, second = chain_search(3, rounds=3), chain_search(3, rounds=3)
    assert [order.objective for order in first.pool] == [order.objective for order in second.pool]
    assert all(np.array_equal(a.device_orders, b.device_orders) for a, b in zip(first.pool, second.pool, strict=True))
    assert first.pool
