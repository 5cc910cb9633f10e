"""Plan documents: written, read again, checked against their JSON schema, refused where they are broken."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from jsonschema import Draft202012Validator, ValidationError

from planner.document import parse_plan, plan_from_plain, plan_to_plain, render_plan
from planner.documents.schema import document_schema
from planner.plan import BaselineResult, Plan
from planner.problem import Problem
from tests.planner.builders import make_layer, make_link, make_plan, make_problem, with_evidence
from tests.strategies import cases


@pytest.fixture(scope="session")
def schema() -> Draft202012Validator:
    """The schema, itself checked."""
    document = document_schema("plan")
    Draft202012Validator.check_schema(document)
    return Draft202012Validator(document)


def make_example() -> Plan:
    problem = make_problem([make_layer("x"), make_layer("y")], [make_link("a b")], max_replicas=1)
    plan = make_plan(problem, ["x @ a", "y @ b"], {"a": "0F0 0I0 0W0", "b": "1F0 1B0"})
    baselines = (
        BaselineResult(name="1F1B (even layers)", makespan_ns=9, span_ns=9, bubble=0.5, peak_fraction=0.1),
        BaselineResult(name="ZB-V", makespan_ns=None, note="needs two stages per device"),
    )
    params = {"multistart.round_ticks": 4_000_000, "order_search.slopes": [4, 8]}
    figures = {"interpolated_costs": ("1 layer",), "schedule_bound_ns": 3, "bucket_bytes": 7, "search_params": params}
    return with_evidence(problem, plan, baselines=baselines, **figures)


def test_the_document_looks_like_this():
    """Tests that this is the text of a plan without evidence: a line per stage and per device."""
    plan = replace(make_example(), evidence=None)
    reference = json.dumps(plan_to_plain(plan)["problem"])
    assert render_plan(plan) == (
        '{"format": "pipeline-plan/1",\n'
        f' "problem": {reference},\n'
        ' "stages": [\n'
        '  {"layers": ["x"], "replicas": [["a"]], "recompute": false},\n'
        '  {"layers": ["y"], "replicas": [["b"]], "recompute": false}],\n'
        ' "schedule": {\n'
        '  "a": ["0F0", "0I0", "0W0"],\n'
        '  "b": ["1F0", "1B0"]},\n'
        ' "evidence": null}\n'
    )


def test_evidence_survives():
    """Tests that a plan with evidence and baselines is read as it was written."""
    plan = make_example()
    assert parse_plan(render_plan(plan)) == plan
    assert parse_plan(render_plan(plan).encode()) == plan
    assert plan_from_plain(plan_to_plain(plan)) == plan


def test_sharding_is_written_where_there_is_any(schema: Draft202012Validator):
    """Tests that `shard` survives, and that a stage without it has none in its document."""
    plan = make_example()
    stages = (replace(plan.stages[0], replicas=(("a",), ("b",)), shard="optimizer"), plan.stages[1])
    text = render_plan(replace(plan, stages=stages))
    schema.validate(json.loads(text))
    assert parse_plan(text).stages == stages
    assert text.count('"recompute": false, "shard": "optimizer"}') == text.count('"shard"') == 1
    stated = json.loads(text)
    stated["stages"][1]["shard"] = "none"
    assert plan_from_plain(stated).stages == stages


@given(case=cases())
def test_reading_is_the_inverse_of_writing(case: tuple[Problem, Plan]):
    """Tests that random plans, with evidence, are read as they were written, and written the same again."""
    problem, plan = case
    for some in (plan, with_evidence(problem, plan)):
        text = render_plan(some)
        assert parse_plan(text) == some
        assert render_plan(parse_plan(text)) == text


@given(case=cases())
def test_documents_obey_the_schema(schema: Draft202012Validator, case: tuple[Problem, Plan]):
    """Tests that whatever is written has the form that the schema publishes."""
    problem, plan = case
    for some in (plan, with_evidence(problem, plan)):
        schema.validate(json.loads(render_plan(some)))


Change = Callable[[dict[str, Any]], object]

TALLY = {"name": "x", "turns": 1, "improvements": 0, "gain_ns": 0}
SIZE = {"microbatch_size": 1, "num_microbatches": 2, "state": "open"}
RENTAL = {"devices": ["a"], "price_per_hour": 1.5, "cost": 1, "lower_bound": 0.5, "gap": 0.5, "certificate": {}}

BROKEN: dict[str, Change] = {
    "no format": lambda d: d.pop("format"),
    "another format": lambda d: d.update(format="pipeline-plan/2"),
    "no problem": lambda d: d.pop("problem"),
    "no hash": lambda d: d["problem"].pop("profile_sha256"),
    "a number as text": lambda d: d["problem"].update(num_microbatches="3"),
    "a fraction of a microbatch": lambda d: d["problem"].update(num_microbatches=1.5),
    "true for one": lambda d: d["problem"].update(num_microbatches=True),
    "options in a list": lambda d: d["problem"].update(options=[]),
    "no stages": lambda d: d.pop("stages"),
    "stages by name": lambda d: d.update(stages={"0": d["stages"][0]}),
    "a stage without layers": lambda d: d["stages"][0].pop("layers"),
    "a layer that is a number": lambda d: d["stages"][0].update(layers=[3]),
    "layers in one text": lambda d: d["stages"][0].update(layers="xy"),
    "a device instead of a group": lambda d: d["stages"][0].update(replicas=["a"]),
    "recompute as text": lambda d: d["stages"][0].update(recompute="no"),
    "a shard of something else": lambda d: d["stages"][0].update(shard="parameters"),
    "a shard that is not a text": lambda d: d["stages"][0].update(shard=True),
    "a shard of one replica": lambda d: d["stages"][0].update(shard="optimizer"),
    "no schedule": lambda d: d.pop("schedule"),
    "a word in one text": lambda d: d["schedule"].update(a="0F0 0B0"),
    "an unknown action": lambda d: d["schedule"].update(a=["0X0"]),
    "an action with leading zeros": lambda d: d["schedule"].update(a=["00F0"]),
    "an action that is a number": lambda d: d["schedule"].update(a=[0]),
    "search parameters in a list": lambda d: d["evidence"].update(search_params=[1]),
    "evidence in a list": lambda d: d.update(evidence=[]),
    "evidence without its makespan": lambda d: d["evidence"].pop("makespan_ns"),
    "a baseline that is a number": lambda d: d["evidence"].update(baselines=[1]),
    "a negative makespan": lambda d: d["evidence"].update(makespan_ns=-1),
    "a gap above one": lambda d: d["evidence"].update(gap=1.5),
    "a search parameter that is text": lambda d: d["evidence"].update(search_params={"multistart.pool_size": "12"}),
    "a search parameter without a group": lambda d: d["evidence"].update(search_params={"pool_size": 12}),
    "an unknown status": lambda d: d["evidence"].update(solution_status="perfect"),
    "a peak that is text": lambda d: d["evidence"].update(peak_bytes={"a": "1 GB"}),
    "a baseline without a name": lambda d: d["evidence"]["baselines"][0].pop("name"),
    "something unheard of": lambda d: d.update(comment="hello"),
    "a stage with something unheard of": lambda d: d["stages"][0].update(recomputed=True),
    "a share with something unheard of": lambda d: d["stages"][0].update(
        input_grad_replicas=[{"group": ["a"], "share": [1, 2], "unit": "half"}]
    ),
    "evidence of something unheard of": lambda d: d["evidence"].update(comment="hello"),
    "a baseline with something unheard of": lambda d: d["evidence"]["baselines"][0].update(comment="hello"),
    "a makespan that is a fraction": lambda d: d["evidence"].update(makespan_ns=8.5),
    "a makespan that is true": lambda d: d["evidence"].update(makespan_ns=True),
    "a makespan that is null": lambda d: d["evidence"].update(makespan_ns=None),
    "a bubble that is true": lambda d: d["evidence"].update(bubble=True),
    "a bubble that is text": lambda d: d["evidence"].update(bubble="10 %"),
    "a bubble of a baseline above one": lambda d: d["evidence"]["baselines"][0].update(bubble=2),
    "peaks in a list": lambda d: d["evidence"].update(peak_bytes=[1]),
    "a negative peak": lambda d: d["evidence"].update(peak_bytes={"a": -1}),
    "a certificate in a list": lambda d: d["evidence"].update(certificate=[]),
    "a solver bound that is text": lambda d: d["evidence"].update(solver_bound_ns="3"),
    "a proof of something else": lambda d: d["evidence"].update(proved_by="the author"),
    "an end for an unknown reason": lambda d: d["evidence"].update(stopped_by="boredom"),
    "a solver's version that is a number": lambda d: d["evidence"].update(solver_versions={"cp-sat": 9}),
    "a negative seed": lambda d: d["evidence"].update(seed=-1),
    "a verdict without violations": lambda d: d["evidence"].update(verdict={"passed": True}),
    "a verdict that is text": lambda d: d["evidence"].update(verdict={"passed": "yes", "violations": []}),
    "timings of something else": lambda d: d["evidence"].update(timings={"weather": "fine"}),
    "timings in other words": lambda d: d["evidence"].update(timings={"conditions": "quiet"}),
    "an improver that took its turns in halves": lambda d: d["evidence"].update(improvers=[{**TALLY, "turns": 0.5}]),
    "an improver without its gain": lambda d: d["evidence"].update(improvers=[{"name": "x", "turns": 1}]),
    "a size in an unknown state": lambda d: d["evidence"].update(sizes=[{**SIZE, "state": "good"}]),
    "a cost that is text": lambda d: d["evidence"].update(rental={**RENTAL, "cost": "cheap"}),
}

STRICTER: dict[str, Change] = {
    "a short hash": lambda d: d["problem"].update(profile_sha256="abc"),
    "no microbatches": lambda d: d["problem"].update(num_microbatches=0),
    "an empty stage": lambda d: d["stages"][0].update(layers=[]),
    "a group without devices": lambda d: d["stages"][0].update(replicas=[[]]),
    "no replica": lambda d: d["stages"][0].update(replicas=[]),
    "a device twice in a group": lambda d: d["stages"][0].update(replicas=[["a", "a"]]),
    "an action twice": lambda d: d["schedule"].update(a=["0F0", "0F0"]),
}
"""What the schema refuses and the reader leaves to the verifier."""


def changed(change: Change) -> dict[str, Any]:
    document = json.loads(render_plan(make_example()))
    change(document)
    return document


def test_the_example_obeys_the_schema(schema: Draft202012Validator):
    """Tests that nothing is wrong with the example before something is changed in it."""
    schema.validate(changed(lambda document: None))


@pytest.mark.parametrize("what", BROKEN | STRICTER)
def test_the_schema_refuses_broken_documents(what: str, schema: Draft202012Validator):
    """Tests that a document with one thing wrong does not obey the schema."""
    with pytest.raises(ValidationError):
        schema.validate(changed((BROKEN | STRICTER)[what]))


@pytest.mark.parametrize("what", BROKEN)
def test_the_reader_refuses_broken_documents(what: str):
    """Tests that a document with one thing wrong raises ValueError that begins with where it came from."""
    with pytest.raises(ValueError, match=r"^plan\.json: "):
        plan_from_plain(changed(BROKEN[what]), source="plan.json")


@pytest.mark.parametrize(
    ("what", "path"),
    [
        ("no hash", r"problem\.profile_sha256 is missing"),
        ("true for one", r"problem\.num_microbatches = True is not an integer"),
        ("a layer that is a number", r"stages\[0\]\.layers\[0\] = 3 is not a string"),
        ("a device instead of a group", r"stages\[0\]\.replicas\[0\] = 'a' is not an array"),
        (
            "a shard of something else",
            r"stages\[0\]\.shard = 'parameters' is none of none, optimizer, weights, full; see the plan",
        ),
        (
            "a shard of one replica",
            r"stages\[0\]\.shard = 'optimizer' needs several replicas, and the stage has one; le",
        ),
        ("an unknown action", r"schedule\.a\[0\]: '0X0' is not an action"),
        ("another format", r"format = 'pipeline-plan/2' is not 'pipeline-plan/1'"),
        ("something unheard of", r"the document = {.* has the unknown key 'comment'; remove it"),
        ("a stage with something unheard of", r"stages\[0\] = {.* has the unknown key 'recomputed'"),
        ("a share with something unheard of", r"input_grad_replicas\[0\] = {.* has the unknown key 'unit'"),
        ("evidence of something unheard of", r"evidence = {.* has the unknown key 'comment'; remove it"),
        ("a peak that is text", r"evidence\.peak_bytes\.a = '1 GB' is not an integer"),
        ("a gap above one", r"evidence\.gap = 1\.5 is not from 0 to 1"),
        ("an unknown status", r"evidence\.solution_status = 'perfect' is none of optimal, feasible"),
        ("a size in an unknown state", r"evidence\.sizes\[0\]\.state = 'good' is none of best, better, open"),
    ],
)
def test_the_reader_names_path_and_value(what: str, path: str):
    """Tests that an error says where in the document it is, and what stands there."""
    with pytest.raises(ValueError, match=path):
        plan_from_plain(changed(BROKEN[what]))


def test_every_form_of_evidence_is_read(schema: Draft202012Validator):
    """Tests that improvers, sizes, money and timings are read, whole numbers where fractions may stand included."""
    stated = changed(
        lambda d: d["evidence"].update(
            improvers=[TALLY, {**TALLY, "seconds": 2, "bounds_raised": 1, "bound_gain_ns": 5, "cases_closed": 3}],
            sizes=[{**SIZE, "objective_ns": None}],
            rental=RENTAL,
            timings={"conditions": "alone"},
            assumed_divisible=[0],
            search_params={"a.b": [4, None, [0.5]]},
        )
    )
    schema.validate(stated)
    evidence = plan_from_plain(stated).evidence
    assert evidence is not None
    assert [tally.seconds for tally in evidence.improvers] == [None, 2]
    assert [tally.cases_closed for tally in evidence.improvers] == [0, 3]
    assert plan_to_plain(plan_from_plain(stated))["evidence"]["improvers"] == stated["evidence"]["improvers"]
    assert (evidence.sizes[0].objective_ns, evidence.sizes[0].rounds) == (None, 0)
    assert evidence.rental is not None
    assert (evidence.rental.cost, evidence.assumed_divisible) == (1, (0,))


SINCE: tuple[str, ...] = (
    "proved_by", "assumed_divisible", "timings", "bucket_bytes", "threads", "search_params", "improvers", "sizes",
    "rental",
)  # fmt: skip
"""Keys of the evidence that documents of the first release did not have, in the order in which they came."""


@pytest.mark.parametrize("number", range(len(SINCE)))
def test_documents_of_older_releases_are_read(number: int):
    """Tests that evidence without what later releases added is read, and null where there is nothing counts as that."""
    without = changed(lambda d: [d["evidence"].pop(name, None) for name in SINCE[number:]])
    with_null = changed(lambda d: d["evidence"].update(dict.fromkeys(SINCE[number:])))
    old = plan_from_plain(without)
    assert old == plan_from_plain(with_null)
    assert old.evidence is not None
    assert (old.evidence.improvers, old.evidence.timings) == ((), {})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400])
def test_numbers_without_measure(value: float):
    """Tests that what is no finite number in its range is refused, not compared."""
    with pytest.raises(ValueError, match=r"evidence\.gap = .* is not"):
        plan_from_plain(changed(lambda d: d["evidence"].update(gap=value)))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "3",
        "null",
        '"plan"',
        b"\xff\xfe",
        '{"format": ' + "9" * 5000 + "}",
        '{"format": "\\ud800"}',
        "[" * 100_000,
        json.dumps(changed(lambda d: d["evidence"].update(baselines=[{}]))),
        json.dumps(changed(lambda d: d["evidence"].update(interpolated_costs=3))),
        '{"format": "pipeline-plan/1", "schedule": {"a": [], "a": []}}',
    ],
)
def test_text_that_is_no_plan(text: str | bytes):
    """Tests that whatever is read ends in ValueError, not in another exception."""
    with pytest.raises(ValueError, match=r"^plan: "):
        parse_plan(text)
