"""Bad input: the right exit code, one clear message, no traceback, nothing on standard output."""

import errno
import json
import os
import sqlite3
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from api.cli.plan_command import _require_unbroken
from api.failures import BrokenOffError, Exit, Failure, describe_failure
from tests.api.worlds import Outcome, Shell, make_workload, plain

Tree = Any


def _cost(tree: Tree) -> Tree:
    return tree["profile"]["layers"][0]["costs"][0]


def missing_field(tree: Tree) -> None:
    del _cost(tree)["forward_ns"]


def wrong_unit(tree: Tree) -> None:
    _cost(tree)["forward_ms"] = _cost(tree).pop("forward_ns")


def size_as_text(tree: Tree) -> None:
    tree["cluster"]["devices"][0]["memory_bytes"] = "16 GB"


def negative_time(tree: Tree) -> None:
    _cost(tree)["forward_ns"] = -5


def not_a_number(tree: Tree) -> None:
    _cost(tree)["forward_ns"] = float("nan")


def cycle(tree: Tree) -> None:
    tree["profile"]["edges"].append({"producer": "head", "consumer": "embed", "bytes": 1})


def unknown_layer(tree: Tree) -> None:
    tree["profile"]["edges"][0]["producer"] = "nobody"


def unknown_device(tree: Tree) -> None:
    tree["cluster"]["links"][0]["b"] = "gpu9"


def unknown_device_type(tree: Tree) -> None:
    tree["cluster"]["devices"][0]["type"] = "abacus"


def unknown_pinned_device(tree: Tree) -> None:
    tree["options"] = {"pinned": [{"layer": "embed", "device": "gpu9"}]}


def unknown_option(tree: Tree) -> None:
    tree["options"] = {"max_replica": 1}


def disconnected(tree: Tree) -> None:
    tree["cluster"]["links"] = []


def zero_microbatches(tree: Tree) -> None:
    tree["num_microbatches"] = 0


def ten_million_microbatches(tree: Tree) -> None:
    tree["num_microbatches"] = 10_000_000


def no_cluster(tree: Tree) -> None:
    del tree["cluster"]


def no_microbatches(tree: Tree) -> None:
    del tree["num_microbatches"]


def nothing_fits(tree: Tree) -> None:
    for device in tree["cluster"]["devices"]:
        device["memory_bytes"] = 2**20


SPOILED: list[tuple[Callable[[Tree], None], int, tuple[str, ...]]] = [
    (missing_field, 2, ("bad.json", "profile.layers[0].costs[0]", "forward_ns")),
    (wrong_unit, 2, ("bad.json", "forward_ms")),
    (size_as_text, 2, ("bad.json", "cluster.devices[0].memory_bytes", "16 GB", "bytes")),
    (negative_time, 2, ("bad.json", "forward_ns", "-5")),
    (not_a_number, 2, ("bad.json", "forward_ns", "NaN")),
    (cycle, 2, ("bad.json", "cycle", "head", "embed")),
    (unknown_layer, 2, ("bad.json", "nobody")),
    (unknown_device, 2, ("bad.json", "gpu9")),
    (unknown_device_type, 2, ("abacus", "gpu0")),
    (unknown_pinned_device, 2, ("gpu9",)),
    (unknown_option, 2, ("options", "max_replica")),
    (disconnected, 2, ("bad.json", "gpu0", "gpu1", "link")),
    (zero_microbatches, 2, ("bad.json", "num_microbatches", "0")),
    (ten_million_microbatches, 2, ("num_microbatches", "10000000", "from 1 to 2097150")),
    (no_cluster, 2, ("--cluster",)),
    (no_microbatches, 2, ("-m",)),
    (nothing_fits, 3, ("embed", "largest device")),
]


def assert_refused(outcome: Outcome, *, code: int, words: tuple[str, ...] = ()):
    """One message with these words, no traceback, nothing on standard output."""
    assert outcome.code == code, outcome.err
    assert outcome.out == ""
    assert outcome.err.count("error: ") == 1, outcome.err
    assert outcome.err.startswith("error: ")
    assert "Traceback" not in outcome.err
    assert len(outcome.err) < 2000
    for word in words:
        assert word in outcome.err, outcome.err


@pytest.mark.parametrize(("spoil", "code", "words"), SPOILED, ids=lambda value: getattr(value, "__name__", ""))
def test_spoiled_workload(shell: Shell, spoil: Callable[[Tree], None], code: int, words: tuple[str, ...]):
    """Tests that a workload with one mistake is refused in a message that names place, value and remedy."""
    tree = plain(make_workload())
    spoil(tree)
    shell.write("bad.json", json.dumps(tree))
    assert_refused(shell.run("plan", "bad.json", "-t", "5", "-q"), code=code, words=words)


COMMANDS: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
    (("plan", "absent.json"), ("absent.json",)),
    (("plan", "."), (".",)),
    (("plan", "demo:gpt-1.5b-zero-buble"), ("demo:gpt-1.5b-zero-bubble",)),
    (("plan", "-", "--cluster", "-"), ("standard input",)),
    (("plan", "-"), ("<stdin>", "empty")),
    (("plan", "workload.json", "-m", "0"), ("num_microbatches", "0")),
    (("plan", "workload.json", "-m", "10000000"), ("num_microbatches",)),
    (("plan", "workload.json", "--gap", "nan"), ("--gap", "nan")),
    (("plan", "workload.json", "--gap", "1"), ("--gap",)),
    (("plan", "workload.json", "--time-limit", "nan"), ("--time-limit",)),
    (("plan", "workload.json", "--time-limit", "0"), ("--time-limit",)),
    (("plan", "workload.json", "--seed", "-1"), ("--seed",)),
    (("plan", "workload.json", "--pin", "embed"), ("--pin", "LAYER=DEVICE")),
    (("plan", "workload.json", "--pin", "embed=gpu7"), ("gpu7",)),
    (("plan", "workload.json", "--max-replicas", "0"), ("max_replicas",)),
    (("plan", "workload.json", "-o", "no/such/folder.json"), ("no/such",)),
    (("plan", "workload.json", "--html", "."), (".",)),
    (("plan", "workload.json", "--target", "megatron", "--server", "http://127.0.0.1:9"), ("--target", "--server")),
    (("plan", "workload.json", "--islands", "2"), ("--islands 2", "--workers")),
    (("plan", "workload.json", "--workers", "2", "--server", "http://127.0.0.1:9"), ("--workers", "--scheduler")),
    (("plan", "plan.json"), ("plan.json",)),
    (("verify", "absent.json", "workload.json"), ("absent.json",)),
    (("verify", "workload.json", "workload.json"), ("workload.json",)),
    (("verify", "-", "-"), ("standard input",)),
    (("compare", "plan.json"), ("workload",)),
    (("import", "workload.json", "-o", "."), (".",)),
    (("view", "plan.json", "workload.json", "--open"), ("-o",)),
]


@pytest.mark.parametrize(("arguments", "words"), COMMANDS, ids=lambda value: " ".join(value)[:40])
def test_bad_command(shell: Shell, arguments: tuple[str, ...], words: tuple[str, ...]):
    """Tests that what cannot be done is refused with 2 in a message that says what to do instead."""
    assert_refused(shell.run(*arguments), code=2, words=words)


@pytest.mark.parametrize(
    "arguments", [("plan",), ("nonsense",), ("plan", "workload.json", "--nonsense"), ("plan", "w", "-m", "x")]
)
def test_bad_usage(shell: Shell, arguments: tuple[str, ...]):
    """Tests that bad usage gives 2, on standard error only."""
    outcome = shell.run(*arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert "Usage: pipeplan" in outcome.err


def test_error_as_event(shell: Shell):
    """Tests that with --json an error is an event too."""
    outcome = shell.run("plan", "absent.json", "--json")
    event = json.loads(outcome.err)
    assert (outcome.code, event["event"], event["code"]) == (2, "error", 2)


@pytest.mark.parametrize(
    ("target", "names", "code", "words"),
    [
        ("megatron", ("head", "block.0", "block.1", "embed"), 3, ("target megatron", "by their names")),
        ("torchtitan", ("embed", "block.0", "mtp", "head"), 3, ("target torchtitan", "multi-token prediction")),
    ],
)
def test_names_that_a_target_cannot_express(
    shell: Shell, target: str, names: tuple[str, ...], code: int, words: tuple[str, ...]
):
    """Tests that layers which no plan for a program can have are named at once, with the code of what is impossible."""
    tree = json.loads((shell.folder / "workload.json").read_text())
    layers = tree["profile"]["layers"]
    new = dict(zip([layer["name"] for layer in layers], names, strict=True))
    for layer in layers:
        layer["name"] = new[layer["name"]]
    for edge in tree["profile"]["edges"]:
        edge["producer"], edge["consumer"] = new[edge["producer"]], new[edge["consumer"]]
    shell.write("named.json", json.dumps(tree))
    outcome = shell.run("plan", "named.json", "--target", target, "-q")
    assert_refused(outcome, code=code, words=("no plan can exist", *words))


@pytest.mark.parametrize(("error", "code"), [("NoPlanFoundError", 5), ("InfeasibleProblemError", 3), ("PlanError", 6)])
def test_outcomes_of_planning(shell: Shell, monkeypatch: pytest.MonkeyPatch, error: str, code: int):
    """Tests that a run without a plan says why by its exit code, and that a rejected plan leaves a bundle."""
    import planner.errors

    def fail(*arguments: object, **options: object) -> None:
        raise getattr(planner.errors, error)("because")

    monkeypatch.setattr("planner.planning.make_plans", fail)
    outcome = shell.run("plan", "workload.json", "-q")
    assert_refused(outcome, code=code, words=("because",))
    bundle = shell.folder / "pipeplan-bundle.json"
    assert bundle.exists() == (code == 6)
    if code == 6:
        assert str(bundle) in outcome.err
        kept = json.loads(bundle.read_text())
        shell.write("again.json", json.dumps(kept["workload"]))
        assert shell.run("import", "again.json").out == (shell.folder / "workload.json").read_text()


@pytest.mark.parametrize(
    ("stopped_by", "code", "words"),
    [
        ("solver_failed", 5, ("solver CBC crashed", "the plan is that of 'GPipe'")),
        ("internal_error", 1, ("the search broke off", "please report it")),
        ("time", 0, ()),
    ],
)
def test_a_search_that_broke_off(stopped_by: str, code: int, words: tuple[str, ...]):
    """Tests that once the plan is written, a failure of the solver gives 5, one of ours 1, and both are said."""
    evidence = SimpleNamespace(
        stopped_by=stopped_by, source="GPipe", solver_versions={"complete model": "solver CBC crashed"}
    )
    failure = Failure(code=Exit.DONE, message="")
    try:
        _require_unbroken(SimpleNamespace(evidence=evidence))  # type: ignore[arg-type]
    except BrokenOffError as error:
        failure = describe_failure(error)
    assert failure.code == code
    assert all(each in failure.message for each in words)


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.ENOSPC, "make room there"),
        (errno.EROFS, "check the path and its rights"),
        (errno.EACCES, "check the path and its rights"),
        (errno.ENOTDIR, "choose another path"),
    ],
)
def test_a_place_that_takes_no_file_is_no_fault_of_ours(code: int, remedy: str):
    """Tests that a file that cannot be written is named with the cause and what to do, and is no internal error."""
    failure = describe_failure(OSError(code, os.strerror(code), "data/lock"))
    assert failure == Failure(code=Exit.USAGE, message=f"data/lock: {os.strerror(code)}; {remedy}")
    assert describe_failure(FileNotFoundError(errno.ENOENT, "No such file", "ours")).code == Exit.INTERNAL


@pytest.mark.parametrize("said", ["unable to open database file", "attempt to write a readonly database"])
def test_a_store_that_cannot_be_opened_is_no_fault_of_ours(said: str):
    """Tests that what SQLite says of a folder without the right to write is bad usage, and other errors stay ours."""
    failure = describe_failure(sqlite3.OperationalError(said))
    assert failure == Failure(code=Exit.USAGE, message=f"the store: {said}; check its folder (--data) and its rights")
    assert describe_failure(sqlite3.OperationalError("no such column: x")).code == Exit.INTERNAL


def test_a_data_folder_that_cannot_be_made_is_named(shell: Shell):
    """Tests that a service is not said to be broken where its folder lies below a file."""
    outcome = shell.run("keys", "list", "--data", "workload.json/data")
    assert (outcome.code, outcome.err) == (2, "error: workload.json/data: Not a directory; choose another path\n")
