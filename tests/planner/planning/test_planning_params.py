"""The parameters of a planning run: found by name, validated, carried to who reads them, stated in the evidence."""

import json
from dataclasses import fields, is_dataclass, replace
from random import Random
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest

from planner.bounds.bound_params import BoundParams
from planner.decisions.max_active_stages.move import GatherImprover
from planner.decisions.offload.move import OffloadImprover
from planner.decisions.recompute_layers.move import RecomputeImprover
from planner.decisions.recompute_microbatches.move import MicrobatchRecomputeImprover
from planner.decisions.split_placement.move import SplitPlacementImprover
from planner.decisions.unequal_shares.move import ShareImprover
from planner.document import parse_plan, render_plan
from planner.evidence.certificate import make_bound
from planner.evidence.check_evidence import rederive
from planner.layout.costs import CostModel
from planner.plan import Plan
from planner.planning import SearchParams, make_plan
from planner.planning.improvers.bound_improver import BoundImprover
from planner.planning.improvers.cp_sat_orders import SingleOrders
from planner.planning.improvers.exact_improver import ExactImprover
from planner.planning.improvers.order_sessions import Sessions
from planner.planning.improvers.overlap_improver import OverlapImprover
from planner.planning.named_params import changed_params, describe_params, params_with, parse_assignments
from planner.planning.planning_params import PARTS, ExactParams, LoopedParams
from planner.planning.search_state import SearchState
from planner.planning.starts.class_layouts import NEAR_BOUND
from planner.planning.starts.class_pipelines import CLASS_PIPELINES
from planner.planning.starts.looped_layouts import LoopedSearch
from planner.progress import Limits
from planner.verify import verify
from solver_models.covering import Covering
from solver_models.search_params import AnnealParams, MultistartParams, group_name
from tests.planner.test_planning import evidence_of, make_row
from tests.solver_models.nets import random_exact_problem

FEW = Limits(time_limit_s=600, max_rounds=2)
MOST_PARAMETERS = 40
QUICK = MultistartParams(round_ticks=3_000, pool_size=2)
"""Rounds that end at once."""

WITHOUT = SearchParams(multistart=QUICK, without=("interval programme",))
"""No solver that takes long."""


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


def test_every_group_has_its_name_and_every_parameter_says_what_it_does():
    """Tests that a parameter is named after its group, that its docstring is whole, and that there are 40 at most."""
    groups = [group.name for group in fields(SearchParams) if group.name != "without"]
    for name in groups:
        own = getattr(SearchParams(), name)
        assert is_dataclass(own)
        assert name == group_name(type(own))
    described = list(describe_params())
    assert len(described) == sum(len(fields(getattr(SearchParams(), name))) for name in groups) <= MOST_PARAMETERS
    for param in described:
        assert param.meaning.endswith("."), param.name
        assert " to " in param.allowed, param.name


def test_names_lead_to_values_and_back():
    """Tests that what is changed by name is what differs, as it was typed; the default differs in nothing."""
    assert changed_params(SearchParams()) == {}
    assert params_with({}) == SearchParams()
    assert parse_assignments(["multistart.pool_size=12"]) == SearchParams()
    typed = ["multistart.pool_size=3", "bound.max_s=0.5", "case.rounds=[[8, 300, null], [4, 0, 1]]"]
    params = parse_assignments([*typed, "without.cp_sat_order=1"])
    changed = {"multistart.pool_size": 3, "bound.max_s": 0.5, "case.rounds": [[8, 300, None], [4, 0, 1]]}
    assert changed_params(params) == {**changed, "without.cp_sat_order": 1}
    assert params_with(changed_params(params)) == params
    assert params.multistart == MultistartParams(pool_size=3)
    assert params.case.rounds == ((8, 300, None), (4, 0, 1))
    assert params.without == ("CP-SAT order",)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pool": 3}, "search parameter 'pool' is unknown; choose from the groups multistart, anneal"),
        ({"bound.pool": 3}, "search parameter 'bound.pool' is unknown; choose from bound.max_s, bound.packing_per_s"),
        ({"session.rounds": 3}, "search parameter 'session.rounds' is unknown; choose from the groups"),
        ({"without.everything": 1}, "'without.everything' is unknown; choose from without.class_pipelines"),
        ({"without.order_search": True}, "without.order_search = True is not allowed; give 1"),
        ({"bound.packing_per_s": 0}, "bound.packing_per_s = 0 is not allowed; give a whole number from 1 to"),
        ({"bound.packing_per_s": 3.0}, "bound.packing_per_s = 3.0 is not allowed; give a whole number from 1"),
        ({"bound.max_s": True}, "bound.max_s = True is not allowed; give a number from 0.0 to"),
        ({"listed.depths": [0.9]}, "listed.depths.0. = 0.9 is out of range; give a number from 1.0"),
        ({"case.rounds": [[8, 300]]}, "case.rounds.0. = .* is not a list of 3 items"),
        ({"exact.nodes": []}, "exact.nodes = .* is not a list of one or more items"),
    ],
)
def test_names_and_values_are_checked(changes: dict[str, object], message: str):
    """Tests that a name that does not exist, and a value that will not do, are refused with the remedy."""
    with pytest.raises(ValueError, match=message):
        params_with(changes)


def test_parts_are_checked():
    """Tests that a part that does not exist cannot be left out, and that those that exist are named like improvers."""
    with pytest.raises(ValueError, match="no part 'joint search' of the search; choose from class pipelines, dynamic"):
        SearchParams(without=("joint search",))
    improvers = (
        BoundImprover, SingleOrders, ExactImprover, GatherImprover, MicrobatchRecomputeImprover, OffloadImprover,
        Sessions, OverlapImprover, RecomputeImprover, ShareImprover, SplitPlacementImprover,
    )  # fmt: skip
    others = {CLASS_PIPELINES, NEAR_BOUND, "dynamic programme", "interval programme", "sequential planner"}
    assert {each.name for each in improvers} | others == set(PARTS)


def test_a_plan_can_be_made_again():
    """Tests that the evidence states what was changed, and that this makes the same document, byte for byte."""
    problem = make_row()
    params = replace(WITHOUT, anneal=AnnealParams(parts=1), without=("exact search", "interval programme"))
    plan = make_plan(problem, limits=FEW, params=params)
    stated = evidence_of(plan).search_params
    assert stated == changed_params(params)
    assert stated["multistart.round_ticks"] == 3_000
    again = make_plan(problem, limits=FEW, params=params_with(stated))
    assert render_plan(again) == render_plan(plan)


def test_plans_of_earlier_releases_are_read():
    """Tests that a plan may state parameters that this release has no more, and keeps them as they are."""
    problem = make_row()
    tree = json.loads(render_plan(make_plan(problem, limits=FEW, params=WITHOUT)))
    assert tree["evidence"]["search_params"] == changed_params(WITHOUT)
    tree["evidence"]["search_params"] = {"session.every_rounds": 2, "order_search.slopes": [4, 8]}
    plan = parse_plan(json.dumps(tree))
    assert evidence_of(plan).search_params == {"session.every_rounds": 2, "order_search.slopes": [4, 8]}
    assert verify(problem, plan).passed
    assert rederive(problem, plan).passed


def test_parts_that_are_left_out_have_no_turn():
    """Tests that a search without any part makes a plan, and that none of them has a turn."""
    params = SearchParams(multistart=QUICK, without=PARTS, exact=ExactParams(after_rounds=1))
    plan = make_plan(make_row(), limits=FEW, params=params)
    assert evidence_of(plan).verdict["passed"]
    assert {tally.name for tally in evidence_of(plan).improvers if tally.turns}.isdisjoint(PARTS)


def test_turns_follow_their_parameters():
    """Tests that the exact search begins after as many rounds as asked for."""
    problem = make_row()
    late, early = (
        make_plan(problem, limits=FEW, params=replace(WITHOUT, exact=ExactParams(after_rounds=rounds)))
        for rounds in (100, 1)
    )
    assert turns_of(late, "exact search") == 0
    assert turns_of(early, "exact search") > 0


def test_size_of_a_large_problem():
    """Tests that the parameter decides which problems are large."""
    assert not make_run().is_large
    assert make_run(first_plans=params_with({"first_plans.large_actions": 1}).first_plans).is_large


def test_turns_of_looped_layouts():
    """Tests that a limit on rounds is two anneals of every shape."""
    run = make_run(looped=LoopedParams(first_actions=1))
    layouts = LoopedSearch(run)
    assert layouts.shapes
    list(layouts.plans(share=1.0))
    assert layouts.num_steps == 2 * len(layouts.shapes)
    run.window.close()


def test_effort_of_bounds():
    """Tests that less effort finds no larger bound, and that every bound found is proved."""
    problem = make_row(12, 4, num_microbatches=8)
    costs = CostModel(problem)
    hasty = BoundParams(packing_per_s=1, loop_actions_per_s=0)
    least, usual = (
        make_bound(problem, costs, make_covering=Covering, params=params).value_ns for params in (hasty, BoundParams())
    )
    assert 0 < least <= usual


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
        if is_dataclass(own)
        for name, kind in get_type_hints(own, include_extras=True).items()
    }
    plan = make_plan(make_row(4, 2, num_microbatches=3, **options), limits=FEW, params=params_with(changes))
    evidence = evidence_of(plan)
    assert evidence.verdict["passed"]
    assert evidence.stopped_by != "internal_error"
    assert len(evidence.search_params) > 30
