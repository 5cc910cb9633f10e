"""Tests of planner/planning/named_params.py."""

import json
from dataclasses import fields, is_dataclass, replace
from typing import Any, get_type_hints

import pytest

from planner.document import parse_plan, render_plan
from planner.evidence.check_evidence import rederive
from planner.planning import SearchParams
from planner.planning.named_params import changed_params, describe_params, params_with, parse_assignments
from planner.verify import verify
from solver_models.search_params import AnnealParams, MultistartParams, group_name
from tests.planner.bounds.test_bound_params import least
from tests.planner.hasty import make_plan
from tests.planner.planning.runs.test_dispatch import evidence_of, make_row
from tests.planner.planning.test_planning_params import FEW, WITHOUT, make_run

MOST_PARAMETERS = 40


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


def test_a_plan_can_be_made_again():
    """Tests that the evidence states what was changed, and that this makes the same document, byte for byte."""
    problem = make_row()
    params = replace(WITHOUT, anneal=AnnealParams(parts=1), without=("exact search", "dynamic programme"))
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


def test_size_of_a_large_problem():
    """Tests that the parameter decides which problems are large."""
    assert not make_run().is_large
    assert make_run(first_plans=params_with({"first_plans.large_actions": 1}).first_plans).is_large


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
