"""`pipeplan what-if`: tests of api/cli/what_if_command.py."""

from dataclasses import fields

import pytest

from api.reporting.what_if import parse_change
from planner.what_if.change import Change
from tests.api.reporting.test_what_if import ASK
from tests.api.worlds import Shell


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--change is missing; write FIELD=VALUE, e.g. --change devices=1"),
        (("--change", "gpus=1"), "--change gpus=1: write FIELD=VALUE; fields: devices, memory_bytes, link_speed"),
        (("--change", "devices"), "--change devices: write FIELD=VALUE"),
        (("--change", "devices=two"), "--change devices=two: 'two' is not a number; give a whole number"),
        (("--change", "memory_bytes=1TB"), "'1TB' is not a number; give bytes or a number of GiB"),
        (("--change", "memory_bytes=nanGiB"), "'nanGiB' is not a number; give bytes or a number of GiB"),
        (("--change", "memory_bytes=infGiB"), "'infGiB' is not a number; give bytes or a number of GiB"),
        (("--change", "link_speed=fast"), "'fast' is not a number; give a factor"),
        (("--change", "link_speed=nan"), "link_speed = nan is out of range"),
        (("--change", "devices=1", "--change", "devices=2"), "devices is given twice; leave one out"),
        (("--change", "devices=0"), "--change devices=0: changes nothing; give another value"),
        (("--change", "devices=-2"), "change: devices = -2 removes all 2 devices; keep at least one"),
        (("--change", "lost=gpu9"), "change: lost = gpu9: no device or host of the cluster"),
        (("--change", "devices=1", "-m", "4"), "write --change num_microbatches=N"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], said: str, shell: Shell):
    """Tests that every mistake ends with exit code 2 and one message that says how to mend it."""
    outcome = shell.run(*ASK, *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert said in outcome.err
    assert "Traceback" not in outcome.err


def test_a_workload_takes_no_second(shell: Shell):
    """Tests that two workloads are refused."""
    outcome = shell.run("what-if", "workload.json", "workload.json", "--change", "devices=1")
    assert outcome.code == 2
    assert "workload.json: is not a plan; give PLAN [WORKLOAD], or a workload alone" in outcome.err


def test_every_field_of_the_service_can_be_typed():
    """Tests that the command line takes each field of the service's change, and bytes in several units."""
    texts = ["devices=-1", "memory_bytes=1.5GiB", "link_speed=2", "num_microbatches=8", "lost=a", "lost=b"]
    change = parse_change(texts)
    assert change == Change(devices=-1, memory_bytes=3 * 2**29, link_speed=2.0, num_microbatches=8, lost=("a", "b"))
    cut = ["global_batch_size=32", "microbatch_size=4"]
    assert parse_change(cut) == Change(global_batch_size=32, microbatch_size=4)
    assert {text.partition("=")[0] for text in [*texts, *cut]} == {item.name for item in fields(Change)}
    assert parse_change(["memory_bytes=-12MiB"]).memory_bytes == -12 * 2**20
    assert parse_change(["memory_bytes=77"]).memory_bytes == 77
