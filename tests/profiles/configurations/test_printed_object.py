"""Tests of profiles.configurations.printed_object."""

import json

import pytest

from profiles.configurations.audit_question import AuditQuestion
from profiles.configurations.deepspeed_run import read_deepspeed
from profiles.configurations.printed_object import printed_object
from profiles.configurations.torchtitan_run import read_titan_document

TITAN = {"training": {"seq_len": 8192}, "parallelism": {"pipeline_parallel_degree": 4}, "comm": {"trace": None}}
DEEPSPEED = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True}}


def printed(value: object, *, marker: str, process: str = "", stamp: str = "2025-10-08 01:02:03 - INFO - ") -> str:
    """A log in which one process prints the value on many lines."""
    lines = f"starting\n{stamp}{marker}{json.dumps(value, indent=2)}\n{stamp}step: 1 {{".split("\n")
    return "\n".join(f"{process}{line}" for line in lines)


@pytest.mark.parametrize("process", ["", "[rank0]:", "node-1.cluster: "])
def test_a_log_says_what_ran(process: str) -> None:
    """Tests that the configuration is found behind its marker, whoever's name stands before the lines."""
    for marker in ("Running with args: ", "Running with configs: "):
        assert read_titan_document(printed(TITAN, marker=marker, process=process), source="run.log") == TITAN
    text = printed(DEEPSPEED, marker="  json = ", process=process)
    run = read_deepspeed(
        text, AuditQuestion(program="deepspeed", model="llama3-8b", pp=4, devices=16), source="run.log"
    )
    assert (run.micro_batch, run.global_batch, run.data) == (2, 64, 4)


def test_lines_of_other_processes_are_passed_over() -> None:
    """Tests that ananother process may write between an object's lines, and print the same one."""
    first, second = (printed(TITAN, marker="with args: ", process=f"[rank{rank}]:").split("\n") for rank in (0, 1))
    mixed = "\n".join(line for pair in zip(first, second, strict=True) for line in pair)
    assert json.loads(printed_object(mixed, "with args: ", source="run.log") or "") == TITAN


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('with args: {"a": 1,\n"b": ', "no whole JSON follows 'with args: '; give the log with all of it"),
        ("with args: {'a': 1}", "no whole JSON"),
        ('with args: {"a": 1} with args: {"a": 2}', "2 configurations"),
        ('with args: {"a": 1}\nwith args: {"a": 2}', "2 configurations follow 'with args: '; give the log of one run"),
    ],
)
def test_what_is_cut_off_or_stated_twice_is_refused(text: str, told: str) -> None:
    """Tests that a log is not read in part, nor as one of two runs."""
    with pytest.raises(ValueError, match=told):
        printed_object(text, "with args: ", source="run.log")
    assert printed_object(text, "with configs: ", source="run.log") is None


def test_a_long_log_is_read_once() -> None:
    """Tests that a log in which every line begins an object is read in one pass, and that no other value is one."""
    text = 'with args: {"a": 1}\n' * 100_000
    assert printed_object(text, "with args: ", source="run.log") == '{"a": 1}'
    assert printed_object('{"note": "with args: 3"}', "with args: ", source="run.log") is None
