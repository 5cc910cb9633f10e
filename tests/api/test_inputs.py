"""What was typed becomes problems and plans: tests of api/inputs.py."""

import json
from dataclasses import replace

import pytest

from api.inputs import parse_changes
from planner.document import parse_plan
from profiles.workload import Workload, dump_workload
from tests.api.test_cli import ROUND
from tests.api.worlds import Shell, make_workload


def test_switches_are_options_by_their_names():
    """Tests that every option may have a switch of its name, that 0 is a value, and that what nobody gave stays."""
    unused = {"deadline": None, "no_replication": False, "pin": None, "decide_all": True, "recompute": False}
    assert parse_changes(unused) == {}
    given = {"keep_workspace": True, "max_replicas": 3, "receive_buffers": 0, "no_skip_edges": True}
    expected = {"max_replicas": 3, "skip_edges": False, "receive_buffers": 0, "keep_workspace": True}
    assert parse_changes(unused | given) == expected


def test_profile_and_cluster_apart(shell: Shell):
    """Tests that profile, cluster and microbatches may come from three places."""
    workload = make_workload(num_microbatches=None)
    shell.write("profile.json", dump_workload(replace(workload, cluster=None)))
    outcome = shell.run("plan", "profile.json", "--cluster", "workload.json", "-m", "2", *ROUND, "-q")
    assert outcome.code == 0, outcome.err
    assert parse_plan(outcome.out).problem.num_microbatches == 2


def sized_workload() -> Workload:
    """The small world measured at two and at eight samples, of which eight cost less than four times two."""
    workload = make_workload(num_microbatches=None)
    layers = tuple(
        replace(layer, costs=(*layer.costs, replace(cost, microbatch_size=2, forward_ns=cost.forward_ns // 3)))
        for layer in workload.profile.layers
        for cost in layer.costs
    )
    return replace(workload, profile=replace(workload.profile, layers=layers))


@pytest.mark.slow
def test_a_global_batch(shell: Shell):
    """Tests that sizes stand side by side, that all commands take the plan, alone and with its workload, and JSON."""
    shell.write("sized.json", dump_workload(sized_workload()))
    made = shell.run("plan", "sized.json", "--global-batch", "24", "--max-rounds", "1", "-o", "p.json")
    assert made.code == 0, made.err
    assert "3 microbatches of 8 samples (global batch of 24)" in made.err
    (row,) = (line.split() for line in made.err.splitlines() if line.startswith("✓        8"))
    assert row[:3] == ["✓", "8", "3"]
    assert "chosen" in row
    assert "(at any size)" in made.err
    plan = parse_plan((shell.folder / "p.json").read_text())
    assert (plan.problem.microbatch_size, plan.problem.num_microbatches, plan.problem.global_batch_size) == (8, 3, 24)
    assert plan.evidence is not None
    assert [row.microbatch_size for row in plan.evidence.sizes] == [2, 8]
    for command in (("verify",), ("verify", "--certificate"), ("explain",), ("view", "--text"), ("export", "torch")):
        for workload in ((), ("sized.json",)):
            done = shell.run(*command, "p.json", *workload)
            assert done.code == 0, (command, done.err)
    told = shell.run("plan", "sized.json", "-g", "24", "--max-rounds", "0", "--json", "-o", "q.json")
    (*_, last) = (json.loads(line) for line in told.err.splitlines())
    assert [(row["microbatch_size"], row["num_microbatches"]) for row in last["sizes"]] == [(2, 12), (8, 3)]
    asked = shell.run("what-if", "p.json", "--change", "num_microbatches=2", "-t", "1")
    assert asked.code == 0, asked.err


@pytest.mark.slow
def test_a_global_batch_with_kinds_and_money(shell: Shell):
    """Tests that --top and --objective cost answer a global batch, each plan with its size on the screen."""
    workload = sized_workload()
    devices = tuple(replace(device, price_per_hour=2.0) for device in workload.cluster.devices)
    priced = replace(workload, cluster=replace(workload.cluster, devices=devices))
    shell.write("sized.json", dump_workload(priced))
    ask = ("plan", "sized.json", "--global-batch", "24", "--max-rounds", "0")
    kinds = shell.run(*ask, "--top", "2", "-o", "kinds.json")
    assert "microbatches of 8, " in " ".join(kinds.err.partition("Other kinds of plan")[2].split()), kinds.err
    cheapest = shell.run(*ask, "--objective", "cost", "-o", "cheapest.json")
    assert cheapest.code == 0, cheapest.err
    for name in ("kinds.2.json", "cheapest.json"):
        assert shell.run("verify", "--certificate", name).code == 0


def test_a_workload_with_a_global_batch(shell: Shell):
    """Tests that a workload may ask for it, that the command line has the last word, and others want a number."""
    shell.write("batch.json", dump_workload(sized_workload().with_batch(16, (2,))))
    plain = shell.run("plan", "batch.json", "--max-rounds", "0", "-q")
    assert (plain.code, parse_plan(plain.out).problem.microbatch_sizes) == (0, (2,)), plain.err
    sizes = shell.run("plan", "batch.json", "--microbatch-sizes", "4,8", "--max-rounds", "0", "-q")
    assert (sizes.code, parse_plan(sizes.out).problem.microbatch_sizes) == (0, (4, 8)), sizes.err
    count = shell.run("plan", "batch.json", "-m", "4", "--max-rounds", "0", "-q")
    cut = parse_plan(count.out).problem
    assert (cut.num_microbatches, cut.microbatch_size, cut.global_batch_size) == (4, 4, 16), count.err
    shell.write("batch.json", dump_workload(sized_workload().with_batch(16, (2, 8))))
    asked = shell.run("what-if", "batch.json", "--change", "devices=1")
    assert asked.code == 2
    assert "states global_batch_size = 16 and no microbatches" in asked.err


@pytest.mark.parametrize(
    ("switches", "message"),
    [
        (("-m", "3", "--global-batch", "24"), "give one of them"),
        (("--global-batch", "7"), "global_batch_size = 7 is not a multiple of any measured microbatch size"),
        (("--global-batch", "24", "--microbatch-sizes", "3,x"), "--microbatch-sizes 3,x: write numbers of samples"),
        (("--global-batch", "24", "--microbatch-sizes", "5"), "names 5, which does not divide global_batch_size = 24"),
        (("--global-batch", "32", "--microbatch-sizes", "16"), "was measured on 'toy' at 2, 8 only"),
        (("--microbatch-sizes", "2"), "needs a global batch; add --global-batch SAMPLES"),
        (("-m", "3", "--microbatch-sizes", "2"), "-m 3 and --microbatch-sizes 2 exclude each other; give one of them"),
        ((), "add -m N, or --global-batch SAMPLES"),
    ],
)
def test_a_batch_that_cannot_be_cut(shell: Shell, switches: tuple[str, ...], message: str):
    """Tests that value and remedy are named, with exit code 2."""
    shell.write("sized.json", dump_workload(sized_workload()))
    outcome = shell.run("plan", "sized.json", *switches)
    assert outcome.code == 2
    assert message in " ".join(outcome.err.split())
