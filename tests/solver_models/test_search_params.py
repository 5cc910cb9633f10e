"""The parameters of the solvers' floor: validated, named after their groups, and changing what is done."""

import ast
import re
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import pytest

from solver_models import search_params
from solver_models.local_search.multistart import JointSearch
from solver_models.local_search.order_search import OrderSearch
from solver_models.local_search.search import Searcher
from solver_models.local_search.task_window import TaskWindow
from solver_models.search_params import (
    AnnealParams,
    BalancedSeedParams,
    BestFitParams,
    LargeSeedParams,
    MultistartParams,
    OrderSearchParams,
    ParamGroup,
    PolishParams,
    RepetendParams,
    SolverParams,
    TaskWindowParams,
    group_name,
)
from solver_models.starts.best_fit import best_fits
from solver_models.starts.first_candidates import make_seeds
from tests.solver_models.nets import Case, random_exact_problem

FEW_GROUPS_FIELDS = 12
"""Parameters that a group has at most, so that its class can be read."""


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (MultistartParams, {"round_ticks": 0}, "multistart.round_ticks = 0 is out of range; give a whole number"),
        (MultistartParams, {"round_ticks": 4e6}, "multistart.round_ticks = 4000000.0 is not a whole number; give"),
        (MultistartParams, {"tasks_per_round": True}, "multistart.tasks_per_round = True is not a whole number"),
        (MultistartParams, {"rank_weight": 1.5}, "multistart.rank_weight = 1.5 is out of range; give a number from"),
        (MultistartParams, {"rank_weight": float("nan")}, "multistart.rank_weight = nan is out of range"),
        (MultistartParams, {"rank_weight": "0.7"}, "multistart.rank_weight = '0.7' is not a number"),
        (OrderSearchParams, {"slopes": ()}, r"order_search.slopes = \(\) is no list of one or more items"),
        (OrderSearchParams, {"slopes": 4}, "order_search.slopes = 4 is no list of one or more items"),
        (OrderSearchParams, {"slopes": (4, -1)}, r"order_search.slopes\[1\] = -1 is out of range"),
        (AnnealParams, {"heats": ((0.1, 0.2, 0.3),)}, r"anneal.heats\[0\] = .* is no list of 2 items; give 2 items"),
        (RepetendParams, {"stretches": (99,)}, r"repetend.stretches\[0\] = 99 is out of range"),
    ],
)  # fmt: skip
def test_values_are_checked(kind: type[ParamGroup], values: dict[str, Any], message: str):
    """Tests that what a parameter cannot be is refused with its name, its value and what to give instead."""
    with pytest.raises(ValueError, match=f"search parameter {message}"):
        kind(**values)


def test_groups_are_what_they_should_be():
    """Tests that a group of another kind is refused."""
    with pytest.raises(ValueError, match="polish are of type MultistartParams; give PolishParams"):
        SolverParams(polish=MultistartParams())  # type: ignore[arg-type]


def test_groups_are_small_and_named_after_their_classes():
    """Tests that the name in `group.field` follows from the class, and that a group has a dozen fields at most."""
    for group in fields(SolverParams):
        own = getattr(SolverParams(), group.name)
        assert group.name == group_name(type(own))
        assert len(fields(own)) <= FEW_GROUPS_FIELDS, group.name


def test_what_is_compiled_in_is_listed():
    """Tests that the numbers said to be compiled into kernels are there, and that kernels read them."""
    assert search_params.__doc__ is not None
    listed = re.findall(r"^\* `([\w.]+)`: ([A-Z_, ]+),", search_params.__doc__, re.MULTILINE)
    assert len(listed) == 7
    for module, names in listed:
        found = import_module(module)
        kernels = read_by_kernels(found.__file__)
        for name in names.split(", "):
            assert isinstance(getattr(found, name), int | float), f"{module}.{name}"
            assert name in kernels, f"{module}.{name} is read by no kernel: make it a parameter"


def read_by_kernels(path: str) -> set[str]:
    """The names that compiled functions of a module read."""
    kernels = (
        node
        for node in ast.parse(Path(path).read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and any("kernel" in ast.unparse(each) for each in node.decorator_list)
    )
    return {node.id for kernel in kernels for node in ast.walk(kernel) if isinstance(node, ast.Name)}


def make_case() -> Case:
    """A small problem whose order is not settled by its seeds."""
    return Case(random_exact_problem(Random(3), num_microbatches=8), ())


@pytest.mark.parametrize("tasks", [1, 2, 5])
def test_tasks_of_a_round(tasks: int):
    """Tests that a round of either search starts as many tasks as are asked for."""
    params = SolverParams(
        multistart=MultistartParams(tasks_per_round=tasks, round_ticks=1_000),
        order_search=OrderSearchParams(tasks_per_round=tasks, first_actions=100),
    )
    search = JointSearch(make_case().instance, window=TaskWindow(1), params=params)
    search.add(make_seeds(search.searcher))
    search.run_round()
    search.run_round()
    assert search.window.num_started == 2 * tasks
    search.window.drain()
    assert search.best is not None
    order = OrderSearch(search.searcher, search.best, window=TaskWindow(1))
    order.add([search.searcher.words(search.best)[0]])
    order.run_round()
    assert order.window.num_started == tasks
    order.window.drain()
    assert order.num_ended == tasks


def test_work_of_a_round():
    """Tests that an anneal has as many steps as the work of a task pays for, and no more than it may."""
    instance = make_case().instance
    usual = JointSearch(instance).iterations
    half = SolverParams(multistart=MultistartParams(round_ticks=1_000_000))
    assert JointSearch(instance, params=half).iterations == pytest.approx(usual / 2, abs=1)
    short = SolverParams(multistart=MultistartParams(max_iterations=7))
    assert JointSearch(instance, params=short).iterations == 7


def test_sizes_of_pools():
    """Tests that pools keep as many candidates as they may, the best ones, and never too many of a shape."""
    small = SolverParams(multistart=MultistartParams(pool_size=2, per_shape=1))
    searches = [JointSearch(make_case().instance, params=params) for params in (SolverParams(), small)]
    for search in searches:
        search.add(make_seeds(search.searcher))
    usual, few = searches
    assert len(few.pool) == 2 < len(usual.pool)
    assert len({tuple(map(len, candidate.groups)) for candidate in few.pool}) == 2
    assert few.pool[0].objective == usual.pool[0].objective


def test_window_and_polishing_follow_their_parameters():
    """Tests that the tasks under way, and the steps that polishing makes of plays, are those asked for."""
    window = TaskWindow(1, params=TaskWindowParams(first=3, tasks_per_width=1, most=4))
    assert window.width == 3
    window.start([lambda: 0] * 9, lambda *_: None)
    assert window.width == 4
    window.drain()
    case = make_case()
    start = make_seeds(Searcher(case.instance))[0]
    few, many = (
        Searcher(case.instance, params=SolverParams(polish=PolishParams(step_plays=plays))) for plays in (1_000_000, 1)
    )
    least, best = (searcher.polish(start, iterations=600, heat=0.0, seed=1) for searcher in (few, many))
    assert best.objective <= least.objective <= start.objective


def test_first_candidates_follow_their_parameters():
    """Tests that seeds have as many chunks, and fits as many devices, as their parameters allow."""
    case = make_case()
    hasty = Searcher(case.instance, params=SolverParams(balanced_seed=BalancedSeedParams(fewest_rated=1)))
    assert len(make_seeds(hasty, has_time=lambda: False)) == 1
    assert len(make_seeds(Searcher(case.instance), has_time=lambda: False)) > 1
    assert best_fits(case.instance, params=BestFitParams(most_devices=1)) == []
    assert LargeSeedParams(replicas=(1,)).replicas == (1,)
