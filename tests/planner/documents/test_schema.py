"""JSON Schemas of the documents: complete, true of what comes along, never stricter than what reads questions."""

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError

from planner.documents.schema import KINDS, document_schema
from planner.option_values import DocumentKind
from planner.plan import Plan
from planner.problem import Options, Problem
from profiles.documents.canonical_json import to_plain
from profiles.documents.validation import validate
from profiles.load import parse_workload, workload_of
from profiles.template import make_template
from profiles.workload import CLUSTER_FORMAT, PROFILE_FORMAT, Workload, workload_to_plain
from tests.long_runs import shortened
from tests.strategies import random_problem

ROOT = Path(__file__).parents[3]
DOCUMENTS = sorted(
    path
    for folder in ("profiles/samples", "examples", "examples/tutorial", "benchmarks/workloads")
    for path in (ROOT / folder).glob("*.json")
)


def validator(kind: DocumentKind) -> Draft202012Validator:
    return Draft202012Validator(document_schema(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_schemas_are_schemas(kind: DocumentKind):
    """Tests that each is a JSON Schema, and that what it refers to stands in it."""
    schema = document_schema(kind)
    Draft202012Validator.check_schema(schema)
    text = json.dumps(schema)
    for name in schema["$defs"]:
        assert f'"#/$defs/{name}"' in text
    assert text.count('"$ref"') == sum(text.count(f'"$ref": "#/$defs/{name}"') for name in schema["$defs"])


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_what_comes_along_obeys(path: Path):
    """Tests that every demo, every example and every workload of the benchmarks obeys the schema of its form."""
    document = json.loads(path.read_text(encoding="utf-8"))
    kind: DocumentKind = "plan" if document["format"].startswith("pipeline-plan") else "workload"
    validator(kind).validate(document)


def test_there_are_documents():
    """Tests that the list above is not empty by mistake."""
    assert len(DOCUMENTS) >= 24


def properties(kind: DocumentKind) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every field of a document and of its parts, with its schema."""
    schema = document_schema(kind)
    for name, part in {kind: schema, **schema["$defs"]}.items():
        assert part["description"], name
        yield from ((f"{name}.{field}", each) for field, each in part["properties"].items())


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_is_described(kind: DocumentKind):
    """Tests that every field has a meaning, in JSON's words, and every number a unit and a range."""
    for field, schema in properties(kind):
        assert schema.get("description"), field
        assert "None" not in schema["description"], field
        for part in (schema, *schema.get("anyOf", ())):
            if part.get("type") in ("integer", "number"):
                assert "minimum" in part, field
                assert "Unit: " in schema["description"] or field == "Evidence.seed", field
                assert "maximum" in part or kind == "plan", field


def make_document() -> dict[str, Any]:
    """A question with something in most fields, as a document."""
    tree = workload_to_plain(make_template(num_layers=3, num_devices=2, num_microbatches=4))
    tree["options"] = {"max_replicas": 2, "pinned": [{"layer": "layer0", "device": "host0-0"}]}
    tree["profile"]["layers"][0]["wider"] = [{"width": 2, "state_bytes": 1, "stash_bytes": 1}]
    tree["profile"]["action_overhead_ns"] = [{"device_type": "GPU", "forward_ns": 1}]
    tree["cluster"]["switches"] = ["rack"]
    return tree


def read(tree: dict[str, Any]) -> Workload:
    """What the readers make of a question."""
    workload = parse_workload(json.dumps(tree).encode(), source="workload.json")
    validate(Options, workload.options, source="options")
    return workload


Change = Callable[[dict[str, Any]], object]

BROKEN: dict[str, Change] = {
    "another version": lambda d: d.update(format="pipeline-workload/9"),
    "no profile": lambda d: d.pop("profile"),
    "an unknown field": lambda d: d.update(comment="hello"),
    "no microbatches": lambda d: d.update(num_microbatches=0),
    "half a microbatch": lambda d: d.update(num_microbatches=1.5),
    "a profile without a size": lambda d: d["profile"].pop("microbatch_size"),
    "a profile without layers": lambda d: d["profile"].update(layers=[]),
    "an unknown scaling": lambda d: d["profile"].update(scaling="cubic"),
    "a layer without a name": lambda d: d["profile"]["layers"][0].update(name=""),
    "a name of two lines": lambda d: d["profile"]["layers"][0].update(name="a\nb"),
    "a long name": lambda d: d["profile"]["layers"][0].update(name="x" * 301),
    "a layer without costs": lambda d: d["profile"]["layers"][0].update(costs=[]),
    "milliseconds": lambda d: d["profile"]["layers"][0]["costs"][0].update(forward_ms=1),
    "no forward": lambda d: d["profile"]["layers"][0]["costs"][0].pop("forward_ns"),
    "a negative time": lambda d: d["profile"]["layers"][0]["costs"][0].update(forward_ns=-1),
    "a time of hours": lambda d: d["profile"]["layers"][0]["costs"][0].update(forward_ns=10**13 + 1),
    "a time as text": lambda d: d["profile"]["layers"][0]["costs"][0].update(forward_ns="1 ms"),
    "true for one": lambda d: d["profile"]["layers"][0].update(stash_bytes=True),
    "no width": lambda d: d["profile"]["layers"][0]["wider"][0].update(width=0),
    "a negative overhead": lambda d: d["profile"]["action_overhead_ns"][0].update(forward_ns=-1),
    "an edge without an end": lambda d: d["profile"]["edges"][0].pop("consumer"),
    "edges by name": lambda d: d["profile"].update(edges={"layer0": "layer1"}),
    "a cluster without devices": lambda d: d["cluster"].update(devices=[]),
    "a device without memory": lambda d: d["cluster"]["devices"][0].pop("memory_bytes"),
    "a device of 2 PiB": lambda d: d["cluster"]["devices"][0].update(memory_bytes=2**51),
    "a link of no bandwidth": lambda d: d["cluster"]["links"][0].update(bandwidth_bytes_per_s=0),
    "an unknown option": lambda d: d["options"].update(speed=9),
    "no replica": lambda d: d["options"].update(max_replicas=0),
    "an unknown objective": lambda d: d["options"].update(objective="fun"),
    "a pin without a device": lambda d: d["options"]["pinned"][0].pop("device"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_broken_documents_are_refused_by_both(what: str):
    """Tests that a document with one thing wrong is refused by its reader and does not obey the schema."""
    document = make_document()
    validator("workload").validate(document)
    read(document)
    BROKEN[what](document)
    with pytest.raises(ValueError, match=r"^(workload\.json|options): "):
        read(document)
    with pytest.raises(ValidationError):
        validator("workload").validate(document)


def test_what_no_schema_can_say():
    """Tests that what holds between fields is left to the reader: the schema takes a layer that feeds itself."""
    document = make_document()
    document["profile"]["edges"][0]["consumer"] = "layer0"
    validator("workload").validate(document)
    with pytest.raises(ValueError, match="cannot feed itself"):
        read(document)


STRANGE = [
    None,
    True,
    0,
    -1,
    1,
    2,
    3,
    1.0,
    1.5,
    2**50,
    2**50 + 1,
    "",
    "x",
    "a\nb",
    "linear",
    "busy",
    "span",
    [],
    {},
    [1],
]
"""What may stand where something else stood."""


def mutated(rng: Random, tree: dict[str, Any], *, fields: list[str]) -> dict[str, Any]:
    """The document with one value replaced, removed or added somewhere."""
    tree = deepcopy(tree)
    place: Any = tree
    while isinstance(place, dict | list) and place and rng.random() < 0.75:
        inner = list(place.values()) if isinstance(place, dict) else place
        inner = [each for each in inner if isinstance(each, dict | list)]
        if not inner:
            break
        place = rng.choice(inner)
    if isinstance(place, list):
        position = rng.randrange(len(place) + 1)
        place[position : position + rng.randint(0, 1)] = rng.choice([[], [rng.choice(STRANGE)], place[:1]])
    elif rng.random() < 0.2 and place:
        place.pop(rng.choice(list(place)))
    else:
        place[rng.choice([*place, *fields])] = rng.choice(STRANGE)
    return tree


def question_of(problem: Problem) -> dict[str, Any]:
    """The document of a problem."""
    options = to_plain(problem.options)
    workload = Workload(
        profile=problem.profile, cluster=problem.cluster, num_microbatches=problem.num_microbatches, options=options
    )
    return workload_to_plain(workload)


def test_what_is_read_obeys():
    """Tests that of random questions, with something odd in them, whatever the readers take obeys the schema."""
    schema = validator("workload")
    fields = sorted({field.rpartition(".")[2] for field, _ in properties("workload")})
    outcomes = {True: 0, False: 0}
    for seed in range(shortened(600, whole=100_000)):
        rng = Random(seed)
        tree = mutated(rng, make_document() if rng.random() < 0.5 else question_of(random_problem(rng)), fields=fields)
        try:
            read(tree)
        except ValueError:
            outcomes[False] += 1
            continue
        outcomes[True] += 1
        schema.validate(tree)
    assert min(outcomes.values()) > sum(outcomes.values()) // 20


def test_parts_alone():
    """Tests that a profile and a cluster alone, as they are read, obey the schemas of their forms."""
    tree = make_document()
    profile, cluster = {"format": PROFILE_FORMAT, **tree["profile"]}, {"format": CLUSTER_FORMAT, **tree["cluster"]}
    validator("profile").validate(profile)
    validator("cluster").validate(cluster)
    assert workload_of(profile, source="profile").cluster is None
    for kind, part, field in (("profile", profile, "microbatch_size"), ("cluster", cluster, "devices")):
        with pytest.raises(ValidationError):
            validator(kind).validate({name: value for name, value in part.items() if name != field})


def test_a_document_may_name_its_schema():
    """Tests that `$schema` is read over, as editors need it."""
    named = {"$schema": "workload.schema.json", **make_document()}
    validator("workload").validate(named)
    assert read(named) == read(make_document())


def test_plans_embed_the_same_options():
    """Tests that workload and plan refer to one definition of the options."""
    assert document_schema("plan")["$defs"]["Options"] == document_schema("workload")["$defs"]["Options"]
    assert set(document_schema("plan")["properties"]) - {"$schema", "format"} == set(Plan.__slots__)
