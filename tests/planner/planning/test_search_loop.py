"""How long the first round of the joint search is expected to take."""

import time

import pytest

from benchmarks.generate import parse_family
from planner.planning import search_loop
from planner.planning.search_loop import SearchLoop
from planner.planning.search_state import SearchState
from planner.progress import Limits
from solver_models.local_search.search import STANDARD_POLICY_PARAMS, Candidate, Searcher
from solver_models.starts.first_candidates import make_seeds
from tests.planner.generated_chains import make_one_by_one

SLOW_S = 0.01


@pytest.fixture
def loop() -> SearchLoop:
    """The search of a small chain, with first candidates and no round yet."""
    problem = make_one_by_one(parse_family("chain-12x4-m8-loose-homogeneous-equal"))
    run = SearchState(problem, Limits(time_limit_s=5), on_progress=lambda _: None, should_stop=lambda: False)
    found = SearchLoop(run)
    found.search.add(make_seeds(found.search.searcher))
    return found


def slow_plays(monkeypatch: pytest.MonkeyPatch, *pauses_s: float) -> list[float]:
    """Let plays take these times, and as long as the last from then on; returns what each took."""
    play, taken = Searcher.play, list[float]()

    def slow(searcher: Searcher, candidate: Candidate) -> Candidate:
        taken.append(pauses_s[min(len(taken), len(pauses_s) - 1)])
        time.sleep(taken[-1])
        return play(searcher, candidate)

    monkeypatch.setattr(Searcher, "play", slow)
    return taken


@pytest.mark.parametrize("first_s", [SLOW_S, 0.2])
def test_one_interrupted_play_says_nothing(loop: SearchLoop, monkeypatch: pytest.MonkeyPatch, first_s: float):
    """Tests that where plays are quick, one that another program interrupts, or that loads kernels, does not keep the
    search from beginning.
    """
    loop.search.searcher.play(loop.search.pool[0])
    slow_plays(monkeypatch, first_s, 0.0)
    loop._expect_first_round()
    assert loop.search.round_s == 0.0
    assert loop.run.has_time_for_round(loop.search.round_s)


def test_slow_plays_keep_a_round_from_beginning_that_would_end_late(loop: SearchLoop, monkeypatch: pytest.MonkeyPatch):
    """Tests that a round of slow plays is expected to take as long as its plays, those rating its starts included."""
    taken = slow_plays(monkeypatch, SLOW_S)
    loop._expect_first_round()
    assert len(taken) == search_loop._TIMED_PLAYS
    assert loop.search.round_s >= SLOW_S * (loop.search.iterations + len(STANDARD_POLICY_PARAMS))
    assert not loop.run.has_time_for_round(loop.search.round_s)


def test_very_slow_plays_are_timed_twice(loop: SearchLoop, monkeypatch: pytest.MonkeyPatch):
    """Tests that nobody waits for five plays of a second each."""
    taken = slow_plays(monkeypatch, 0.2)
    loop._expect_first_round()
    assert len(taken) == 2
    assert loop.search.round_s >= 0.2 * loop.search.iterations
