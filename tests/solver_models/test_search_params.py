"""The parameters of the solvers' floor: validated, named after their groups, and changing what is done."""

from dataclasses import fields
from random import Random
from typing import Any

import pytest

from solver_models.local_search.multistart import JointSearch
from solver_models.local_search.order_search import OrderSearch
from solver_models.local_search.search import Searcher
from solver_models.local_search.task_window import TaskWindow
from solver_models.search_params import (
    AnnealParams,
    CpWindowParams,
    MultistartParams,
    OrderSearchParams,
    ParamGroup,
    SolverParams,
    group_name,
)
from solver_models.starts.best_fit import best_fits
from solver_models.starts.first_candidates import make_seeds
from tests.solver_models.nets import Case, random_exact_problem


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (MultistartParams, {"round_ticks": 0}, "multistart.round_ticks = 0 is out of range; give a whole number"),
        (MultistartParams, {"round_ticks": 4e6}, "multistart.round_ticks = 4000000.0 is not a whole number; give"),
        (MultistartParams, {"tasks_per_round": True}, "multistart.tasks_per_round = True is not a whole number"),
        (CpWindowParams, {"work": -0.5}, "cp_window.work = -0.5 is out of range; give a number from"),
        (CpWindowParams, {"work": float("nan")}, "cp_window.work = nan is out of range"),
        (CpWindowParams, {"work": "0.7"}, "cp_window.work = '0.7' is not a number"),
        (AnnealParams, {"heats": ()}, r"anneal.heats = \(\) is not a list of one or more items"),
        (AnnealParams, {"heats": 4}, "anneal.heats = 4 is not a list of one or more items"),
        (AnnealParams, {"heats": ((0.1, 0.2), (0.1, 11.0))}, r"anneal.heats\[1\]\[1\] = 11.0 is out of range"),
        (AnnealParams, {"heats": ((0.1, 0.2, 0.3),)}, r"anneal.heats\[0\] = .* is not a list of 2 items; give 2 items"),
    ],
)  # fmt: skip
def test_values_are_checked(kind: type[ParamGroup], values: dict[str, Any], message: str):
    """Tests that what a parameter cannot be is refused with its name, its value and what to give instead."""
    with pytest.raises(ValueError, match=f"search parameter {message}"):
        kind(**values)


def test_groups_are_what_they_should_be():
    """Tests that a group of another kind is refused."""
    with pytest.raises(ValueError, match="anneal are of type MultistartParams; give AnnealParams"):
        SolverParams(anneal=MultistartParams())  # type: ignore[arg-type]


def test_groups_are_named_after_their_classes():
    """Tests that the name in `group.field` follows from the class."""
    for group in fields(SolverParams):
        assert group.name == group_name(type(getattr(SolverParams(), group.name)))


def make_case() -> Case:
    """A small problem whose order is not settled by its seeds."""
    return Case(random_exact_problem(Random(3), num_microbatches=8), ())


@pytest.mark.parametrize("tasks", [1, 2, 5])
def test_tasks_of_a_round(tasks: int):
    """Tests that a round of the joint search starts as many tasks as are asked for, one of order search two."""
    params = SolverParams(
        multistart=MultistartParams(tasks_per_round=tasks, round_ticks=1_000),
        order_search=OrderSearchParams(first_actions=100),
    )
    search = JointSearch(make_case().instance, window=TaskWindow(1), params=params)
    search.add(make_seeds(search.searcher))
    search.run_round()
    search.run_round()
    assert search.window.num_started == 2 * tasks
    search.window.drain()
    assert search.best is not None
    order = OrderSearch(search.searcher, search.best, window=TaskWindow(1))
    order.add([search.searcher.device_orders(search.best)[0]])
    order.run_round()
    assert order.window.num_started == 2
    order.window.drain()
    assert order.num_ended == 2


def test_work_of_a_round():
    """Tests that an anneal has as many steps as the work of a task pays for, and no more than it may."""
    instance = make_case().instance
    usual = JointSearch(instance).iterations
    half = SolverParams(multistart=MultistartParams(round_ticks=1_000_000))
    assert JointSearch(instance, params=half).iterations == pytest.approx(usual / 2, abs=1)
    short = SolverParams(multistart=MultistartParams(max_iterations=7))
    assert JointSearch(instance, params=short).iterations == 7


def test_size_of_the_pool():
    """Tests that the pool keeps as many candidates as it may, the best ones."""
    small = SolverParams(multistart=MultistartParams(pool_size=2))
    searches = [JointSearch(make_case().instance, params=params) for params in (SolverParams(), small)]
    for search in searches:
        search.add(make_seeds(search.searcher))
    usual, few = searches
    assert len(few.pool) == 2 < len(usual.pool)
    assert few.pool[0].objective == usual.pool[0].objective


def test_width_of_the_window():
    """Tests that more tasks are under way once many were started, and never more than may be."""
    window = TaskWindow(1, first=3, tasks_per_width=1, most=4)
    assert window.width == 3
    window.start([lambda: 0] * 9, lambda *_: None)
    assert window.width == 4
    window.drain()


def test_first_candidates_end_with_the_time():
    """Tests that some seeds are rated without time, and that on too many devices none is fitted."""
    case = make_case()
    few = make_seeds(Searcher(case.instance), has_time=lambda: False)
    assert 1 < len(few) < len(make_seeds(Searcher(case.instance)))
    assert best_fits(case.instance, most_devices=1) == []
