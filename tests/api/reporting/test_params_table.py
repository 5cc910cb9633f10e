"""The search parameters for people: set on the command line, stated in the evidence, listed by a command."""

import json

import pytest

from api.reporting.params_table import render_params_table
from planner.document import parse_plan
from tests.api.worlds import Shell

PLAN = ("plan", "workload.json", "--time-limit", "30", "--max-rounds", "1")


def test_the_command_prints_the_table(shell: Shell):
    """Tests that `pipeplan search-params` prints it, and nothing else."""
    outcome = shell.run("search-params")
    assert (outcome.code, outcome.out, outcome.err) == (0, render_params_table(), "")


def test_parameters_are_stated_and_made_again(shell: Shell):
    """Tests that what is set is stated, what is not is not, and that the same parameters give the same document."""
    assert shell.run(*PLAN, "-o", "usual.json").code == 0
    given = ("--search-param", "multistart.round_ticks=4000", "--search-param", "listed.depths=[1, 2]")
    for name in ("one.json", "other.json"):
        outcome = shell.run(*PLAN, *given, "-o", name)
        assert outcome.code == 0, outcome.err
    texts = [(shell.folder / name).read_text() for name in ("usual.json", "one.json", "other.json")]
    stated = [json.loads(text)["evidence"].get("search_params") for text in texts]
    changed = {"multistart.round_ticks": 4000, "listed.depths": [1, 2]}
    assert stated == [None, changed, changed]
    assert texts[1] == texts[2]
    evidence = parse_plan(texts[1]).evidence
    assert evidence is not None
    assert evidence.search_params == changed
    assert shell.run("verify", "one.json", "workload.json").code == 0


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        (
            "pool_size=3",
            "--search-param: search parameter 'pool_size' is unknown; choose from the groups",
        ),
        (
            "multistart.pool=3",
            "'multistart.pool' is unknown; choose from multistart.tasks_per_round, multistart.round_ticks,",
        ),
        ("multistart.pool_size=many", "multistart.pool_size = 'many' is neither a number nor a list; write"),
        ("multistart.pool_size", "multistart.pool_size = '' is neither a number nor a list"),
        ("multistart.pool_size=0", "multistart.pool_size = 0 is out of range; give a whole number from 1"),
        ("bound.max_s=-1", "bound.max_s = -1 is not allowed; give a number from 0.0 to 1000000.0"),
        (
            "without.joint_search=1",
            "'without.joint_search' is unknown; choose from without.class_pipelines, without.dynamic_programme,",
        ),
        ("without.order_search=0", "without.order_search = 0 is not allowed; give 1, or leave it out"),
    ],
)
def test_what_will_not_do_is_refused(shell: Shell, assignment: str, message: str):
    """Tests that a wrong name or value is bad usage, and that the error says what to give instead."""
    outcome = shell.run(*PLAN, "--search-param", assignment)
    assert outcome.code == 2
    assert message in " ".join(outcome.err.split())


def test_a_service_has_its_own(shell: Shell):
    """Tests that nobody sets parameters of a service's search."""
    outcome = shell.run(*PLAN, "--server", "http://localhost:1", "--search-param", "multistart.pool_size=3")
    assert outcome.code == 2
    assert "--search-param: a service searches with its own parameters" in " ".join(outcome.err.split())
