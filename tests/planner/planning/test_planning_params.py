"""The parameters of a planning run: found by name, validated, carried to who reads them, stated in the evidence."""

from dataclasses import fields, is_dataclass
from random import Random
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest

from planner.bounds.bound_params import BoundParams
from planner.document import render_plan
from planner.evidence.certificate import make_bound
from planner.layout.costs import CostModel
from planner.plan import Plan
from planner.planning import SearchParams, make_plan
from planner.planning.named_params import changed_params, describe_params, params_with, parse_assignments
from planner.planning.planning_params import CpOrderParams, LoopedParams, NearBoundParams
from planner.planning.search_state import SearchState
from planner.planning.starts.class_layouts import class_layouts
from planner.planning.starts.looped_layouts import LoopedSearch
from planner.progress import Limits
from solver_models.covering import Covering
from solver_models.search_params import MultistartParams, group_name
from tests.planner.test_planning import evidence_of, make_row
from tests.solver_models.nets import random_exact_problem

FEW = Limits(time_limit_s=600, max_rounds=2)
LARGEST_GROUP = 16


def make_run(**groups: Any) -> SearchState:
    """A run of a small problem with these parameters."""
    return SearchState(
        random_exact_problem(Random(1), num_microbatches=4),
        Limits(max_rounds=1),
        on_progress=lambda _: None,
        should_stop=lambda: False,
        params=SearchParams(**groups),
    )


def turns_of(plan: Plan, name: str) -> int:
    return sum(tally.turns for tally in evidence_of(plan).improvers if tally.name == name)


def test_every_group_has_its_name_and_says_what_was_measured():
    """Tests that a parameter is named after its group, which can be read at once, and that its docstring is whole."""
    for group in fields(SearchParams):
        own = getattr(SearchParams(), group.name)
        assert is_dataclass(own)
        assert group.name == group_name(type(own))
        assert len(fields(own)) <= LARGEST_GROUP, group.name
    described = list(describe_params())
    assert len(described) == sum(len(fields(getattr(SearchParams(), group.name))) for group in fields(SearchParams))
    for param in described:
        assert param.meaning.endswith("."), param.name
        assert param.measured, param.name
        assert " to " in param.allowed, param.name


def test_names_lead_to_values_and_back():
    """Tests that what is changed by name is what differs, as it was typed; the default differs in nothing."""
    assert changed_params(SearchParams()) == {}
    assert params_with({}) == SearchParams()
    assert parse_assignments(["multistart.pool_size=12"]) == SearchParams()
    params = parse_assignments(["multistart.pool_size=3", "bound.share=0.5", "case.rounds=[[8, 300, null], [4, 0, 1]]"])
    changed = {"multistart.pool_size": 3, "bound.share": 0.5, "case.rounds": [[8, 300, None], [4, 0, 1]]}
    assert changed_params(params) == changed
    assert params_with(changed) == params
    assert params.multistart == MultistartParams(pool_size=3)
    assert params.case.rounds == ((8, 300, None), (4, 0, 1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pool": 3}, "there is no search parameter 'pool'; choose from the groups task_window, multistart"),
        ({"bound.pool": 3}, "there is no search parameter 'bound.pool'; choose from bound.min_s, bound.max_s"),
        ({"bound.steps": 0}, "bound.steps = 0 will not do; give a whole number from 1 to 62"),
        ({"bound.steps": 3.0}, "bound.steps = 3.0 will not do; give a whole number from 1 to 62"),
        ({"bound.share": True}, "bound.share = True will not do; give a number from 0.0 to 1.0"),
        ({"session.hopeless": 0.9}, "session.hopeless = 0.9 is out of range; give a number from 1.0"),
        ({"case.rounds": [[8, 300]]}, "case.rounds.0. = .* is no list of 3 items"),
        ({"exact.nodes": []}, "exact.nodes = .* is no list of one or more items"),
    ],
)
def test_names_and_values_are_checked(changes: dict[str, object], message: str):
    """Tests that a name that does not exist, and a value that will not do, are refused with the remedy."""
    with pytest.raises(ValueError, match=message):
        params_with(changes)


def test_a_plan_can_be_made_again():
    """Tests that the evidence states what was changed, and that this makes the same document, byte for byte."""
    problem = make_row()
    usual = make_plan(problem, limits=FEW)
    assert evidence_of(usual).search_params == {}
    params = SearchParams(
        multistart=MultistartParams(round_ticks=3_000, pool_size=2), cp_order=CpOrderParams(every_rounds=1)
    )
    plan = make_plan(problem, limits=FEW, params=params)
    stated = evidence_of(plan).search_params
    assert stated == {"multistart.round_ticks": 3_000, "multistart.pool_size": 2, "cp_order.every_rounds": 1}
    again = make_plan(problem, limits=FEW, params=params_with(stated))
    assert render_plan(again) == render_plan(plan)


def test_turns_follow_their_parameters():
    """Tests that improvers have their turns as often as asked for."""
    problem = make_row()
    often, never = (
        make_plan(problem, limits=FEW, params=params_with({"session.every_rounds": every, "exact.after_rounds": 100}))
        for every in (1, 100)
    )
    assert turns_of(often, "order search") == FEW.max_rounds
    assert turns_of(never, "order search") == 0
    assert turns_of(often, "exact search") == 0
    assert turns_of(make_plan(problem, limits=FEW, params=params_with({"exact.after_rounds": 1})), "exact search") > 0


def test_size_of_a_large_problem():
    """Tests that the parameter decides which problems are large."""
    assert not make_run().is_large
    assert make_run(first_plans=params_with({"first_plans.large_actions": 1}).first_plans).is_large


def test_turns_of_looped_layouts():
    """Tests that a limit on rounds is so many anneals of every shape, and that a stale search ends."""
    for turns, stale in ((1, 1_000), (3, 1_000), (3, 1)):
        run = make_run(looped=LoopedParams(round_turns=turns, stale_turns=stale, min_steps=1, max_steps=2))
        layouts = LoopedSearch(run)
        assert layouts.shapes
        list(layouts.plans(share=1.0))
        assert layouts.num_turns == turns * len(layouts.shapes) or (stale == 1 and layouts.num_turns > 0)
        run.window.close()


def test_effort_of_bounds():
    """Tests that less effort finds no larger bound, and that every bound found is proved."""
    problem = make_row(12, 4, num_microbatches=8)
    costs = CostModel(problem)
    hasty = BoundParams(entries_per_s=1, packing_per_s=1, probes_per_s=1, steps=1, classes_steps=1, packing_steps=1)
    least, usual = (
        make_bound(problem, costs, make_covering=Covering, params=params).value_ns for params in (hasty, BoundParams())
    )
    assert 0 < least < usual


def test_layouts_near_the_bound():
    """Tests that no more ways are kept than asked for."""
    problem = make_row(12, 4)
    costs = CostModel(problem)
    value_ns = make_bound(problem, costs).value_ns
    params = NearBoundParams(slacks=(0.1,), layouts=2)
    assert len(class_layouts(problem, costs, value_ns=value_ns, seed=0, params=params)) <= 2


def least(kind: Any) -> Any:
    """The least value of a parameter's type; of lists, the shortest one."""
    if get_origin(kind) is tuple:
        return [least(each) for each in get_args(kind) if each is not Ellipsis]
    inner = get_args(kind)[0]
    return least(inner) if get_origin(inner) is Annotated else get_args(kind)[1][0]


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"max_stages_per_device": 2}, {"split_placement": True}])
def test_the_least_values_make_plans(options: dict[str, Any]):
    """Tests that a search whose parameters are all as small as may be ends by itself with a verified plan."""
    changes = {
        f"{group}.{name}": least(kind)
        for group, own in get_type_hints(SearchParams).items()
        for name, kind in get_type_hints(own, include_extras=True).items()
    }
    plan = make_plan(make_row(4, 2, num_microbatches=3, **options), limits=FEW, params=params_with(changes))
    evidence = evidence_of(plan)
    assert evidence.verdict["passed"]
    assert evidence.stopped_by != "internal_error"
    assert len(evidence.search_params) > 100
