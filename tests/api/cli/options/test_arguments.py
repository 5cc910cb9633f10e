"""What the commands accept: tests of api/cli/options/arguments.py."""

import pytest

from planner.document import parse_plan
from profiles.workload import Workload, dump_workload
from tests.api.cli.test_output import PLAN
from tests.api.worlds import Shell
from tests.planner.builders import make_layer, make_link
from tests.planner.builders import make_problem as make_small_problem


def test_switches_become_options(shell: Shell):
    """Tests that switches and pins stand in the plan's question, and that the plan is verified as its answer."""
    switches = ("--no-replication", "--no-split-backward", "--max-stages-per-device", "1", "--pin", "embed=gpu1")
    made = shell.run(*PLAN, *switches, "-o", "p.json")
    assert made.code == 0, made.err
    options = parse_plan((shell.folder / "p.json").read_text()).problem.options
    assert options == {
        "split_backward": False,
        "max_stages_per_device": 1,
        "max_replicas": 1,
        "pinned": [{"layer": "embed", "device": "gpu1"}],
    }
    assert shell.run("verify", "p.json", "workload.json").code == 0


def test_split_placement_is_a_switch(shell: Shell):
    """Tests that W may go to another device where the switch allows it, and that the plan is verified and explained."""
    layer = make_layer("x", (10, 10, 20), stash_bytes=1, weight_stash_bytes=1)
    problem = make_small_problem([layer], [make_link("a b")])
    workload = Workload(profile=problem.profile, cluster=problem.cluster, num_microbatches=8)
    shell.write("w.json", dump_workload(workload))
    apart = shell.run("plan", "w.json", "--split-placement", "--no-replication", "--max-rounds", "2", "-o", "p.json")
    assert apart.code == 0, apart.err
    plan = parse_plan((shell.folder / "p.json").read_text())
    assert plan.problem.options == {"split_placement": True, "max_replicas": 1}
    assert plan.stages[0].weight_grad_replicas
    assert plan.evidence is not None
    assert plan.evidence.makespan_ns < 8 * 40
    for command in ("verify", "explain"):
        assert shell.run(command, "p.json", "w.json").code == 0


@pytest.mark.parametrize("command", ["plan", "verify", "simulate", "explain", "compare", "view", "import"])
def test_examples_of_the_help_are_commands(shell: Shell, command: str):
    """Tests that every example in the help names options that exist."""
    text = shell.run(command, "--help").out
    options = {word for word in text.split() if word.startswith("-")}
    example = text.rpartition("Example")[2]
    assert f"pipeplan {command}" in example
    for word in example.replace("│", " ").split():
        if word.startswith("-") and word != "-":
            assert word in options
