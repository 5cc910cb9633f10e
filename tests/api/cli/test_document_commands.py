"""`pipeplan schema` and `pipeplan new`: what they print, and that a template can be planned as it stands."""

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from planner.documents.schema import KINDS, document_schema
from profiles.load import load_cluster, load_workload
from profiles.template import make_template
from tests.api.worlds import Shell

MADE = ("new", "workload", "-o", "mine.json")


@pytest.mark.parametrize("kind", KINDS)
def test_schemas_are_printed(shell: Shell, kind: str):
    """Tests that the schema of every document goes to standard output, or to a file."""
    outcome = shell.run("schema", kind)
    assert (outcome.code, outcome.err) == (0, "")
    assert json.loads(outcome.out) == document_schema(kind)  # type: ignore[arg-type]
    assert shell.run("schema", kind, "-o", "schema.json").code == 0
    assert (shell.folder / "schema.json").read_text() == outcome.out


@pytest.mark.parametrize(("layers", "devices", "microbatches"), [(4, 2, 8), (1, 1, 1), (3, 5, 2)])
def test_a_template_can_be_planned(shell: Shell, layers: int, devices: int, microbatches: int):
    """Tests that a template obeys the schema, is planned as it stands, and has what was asked for."""
    sizes = ("--layers", str(layers), "--devices", str(devices), "-m", str(microbatches))
    made = shell.run(*MADE, *sizes)
    assert (made.code, made.out) == (0, "")
    Draft202012Validator(document_schema("workload")).validate(json.loads((shell.folder / "mine.json").read_text()))
    workload = load_workload(shell.folder / "mine.json")
    assert workload == make_template(num_layers=layers, num_devices=devices, num_microbatches=microbatches)
    planned = shell.run("plan", "mine.json", "--max-rounds", "1", "-o", "plan.json", "--json")
    assert planned.code == 0, planned.err
    assert shell.run("verify", "plan.json", "mine.json").code == 0


def test_editors_find_the_schema(shell: Shell):
    """Tests that --schema writes the schema, and names it in the document as seen from the document's folder."""
    (shell.folder / "sub").mkdir()
    made = shell.run("new", "workload", "-o", "sub/mine.json", "--schema", "schema.json")
    assert made.code == 0, made.err
    tree = json.loads((shell.folder / "sub" / "mine.json").read_text())
    assert tree["$schema"] == "../schema.json"
    assert json.loads((shell.folder / "schema.json").read_text()) == document_schema("workload")
    assert load_workload(shell.folder / "sub" / "mine.json") == load_workload_of(shell)


def load_workload_of(shell: Shell) -> object:
    """The same template without a schema."""
    assert shell.run(*MADE).code == 0
    return load_workload(shell.folder / "mine.json")


def test_a_cluster_alone(shell: Shell):
    """Tests that a cluster to fill in is one, and obeys its schema."""
    made = shell.run("new", "cluster", "--devices", "3")
    assert (made.code, made.err) == (0, "")
    Draft202012Validator(document_schema("cluster")).validate(json.loads(made.out))
    (shell.folder / "cluster.json").write_text(made.out)
    assert len(load_cluster(shell.folder / "cluster.json").devices) == 3


def test_the_example_of_the_page(shell: Shell, repository_root: Path):
    """Tests that the workload of the page obeys the schema, and is planned as the page says."""
    page = (repository_root / "docs" / "how-to" / "write-a-workload.md").read_text(encoding="utf-8")
    document, screen = page.partition("```json\n")[2].split("```")[0], page.partition("```\n\n```\n")[2]
    Draft202012Validator(document_schema("workload")).validate(json.loads(document))
    shell.write("workload.json", document)
    planned = shell.run("plan", "workload.json", "--max-rounds", "1", "-o", "plan.json")
    assert planned.code == 0, planned.err
    said = [line.rstrip() for line in planned.err.splitlines()]
    shown = [line for line in screen.split("```")[0].splitlines() if line != "…"]
    assert len(shown) == 9
    assert set(shown) <= set(said)


def test_the_neutral_form_of_the_page(shell: Shell, repository_root: Path):
    """Tests that the page's shorter form becomes a workload with the types of devices that the page names."""
    page = (repository_root / "docs" / "how-to" / "write-a-workload.md").read_text(encoding="utf-8")
    shell.write("neutral.json", page.split("```json\n")[2].split("```")[0])
    assert shell.run("import", "neutral.json", "-o", "workload.json").code == 0
    cluster = load_workload(shell.folder / "workload.json").cluster
    assert cluster is not None
    assert [device.type for device in cluster.devices] == ["reference", "reference/0.5"]


@pytest.mark.parametrize("words", [("new", "plan"), ("schema", "gantt"), ("new", "workload", "--layers", "0")])
def test_what_there_is_not(shell: Shell, words: tuple[str, ...]):
    """Tests that other documents and sizes are bad usage."""
    assert shell.run(*words).code == 2
