"""Windows of the complete model around plans."""

from dataclasses import replace

import pytest

from planner.layout.costs import CostModel
from planner.planning.complete.complete_question import make_complete_instance
from planner.planning.complete.complete_search import longest
from planner.planning.complete.windows import GrowingWindow, cut_of, sets_near, window_around
from planner.problem import Options
from solver_models.complete.complete_instance import CompleteInstance
from solver_models.complete.complete_model import CompleteModel
from solver_models.complete.with_cp_sat import solve_with_cp_sat
from tests.planner.evidence.test_certificate import make_chain


@pytest.fixture(scope="module")
def instance() -> CompleteInstance:
    """Six layers in a chain, of which up to three stages are made."""
    problem = make_chain(
        [(3, 2, 1), (1, 2, 3), (2, 2, 2), (5, 1, 1), (1, 1, 4), (2, 3, 1)], num_devices=3, num_microbatches=2,
        memory=1000, stash=(10, 0), state=10, edge_bytes=5, options=Options(max_replicas=1),
    )  # fmt: skip
    return make_complete_instance(problem, CostModel(problem), horizon=longest(problem))


def test_stages_stay_near_the_cut(instance: CompleteInstance) -> None:
    """Tests that a slot keeps the sets that differ from its stage by so many layers, and there are no more slots."""
    window = window_around(instance, (frozenset({0, 1, 2}), frozenset({3, 4, 5})), moved=1)
    assert window.num_slots == len(window.slot_assignments) == 2
    first, second = ({instance.sets[k].layers for k in own} for own in window.slot_sets)
    assert first == {(0, 1, 2), (0, 1), (1, 2), (0, 1, 2, 3)}
    assert second == {(3, 4, 5), (3, 4), (4, 5), (2, 3, 4, 5)}


def test_windows_get_better_as_they_grow(instance: CompleteInstance) -> None:
    """Tests that the best plan of a larger window is never longer, and that the whole has that of the model."""
    cut = (frozenset({0}), frozenset({1, 2, 3, 4, 5}))
    best = []
    for moved in (0, 2, 6):
        model = CompleteModel(window_around(instance, cut, moved=moved))
        best.append(solve_with_cp_sat(model.programme, time_limit_s=60, seed=0, threads=1).bound)
    whole = CompleteModel(replace(instance, num_slots=2, slot_sets=instance.slot_sets[:2]))
    assert best == sorted(best, reverse=True)  # type: ignore[type-var]
    assert best[-1] == solve_with_cp_sat(whole.programme, time_limit_s=60, seed=0, threads=1).bound


def test_a_window_grows_until_it_is_whole() -> None:
    """Tests that a window doubles where nothing was found, and begins small again around a better plan."""
    window = GrowingWindow(12)
    seen = []
    for is_better in (False, False, True, False, False, False):
        seen.append(window.moved)
        window.note(is_better=is_better)
    assert seen == [2, 4, 8, 2, 4, 8]
    assert window.is_whole


def test_layers_by_number() -> None:
    """Tests that a plan's stages are read in the order of the profile."""
    assert cut_of((("b",), ("a", "c")), ("a", "b", "c")) == (frozenset({1}), frozenset({0, 2}))


def test_few_sets_are_near() -> None:
    """Tests that sets far from every stage are left out, and more of them where they would be too many."""
    sets = [tuple(range(a, b)) for a in range(6) for b in range(a + 1, 7)]
    cut = (frozenset({0, 1, 2}), frozenset({3, 4, 5}))
    assert sets_near(sets, cut, moved=0, most=9) == [(0, 1, 2), (3, 4, 5)]
    assert len(sets_near(sets, cut, moved=1, most=9)) == 8
    assert sets_near(sets, cut, moved=1, most=7) == [(0, 1, 2), (3, 4, 5)]
