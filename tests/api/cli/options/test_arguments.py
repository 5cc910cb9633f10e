"""What the commands accept: tests of api/cli/options/arguments.py."""

import pytest
import typer

from api.cli import app
from planner.document import parse_plan
from profiles.workload import Workload, dump_workload
from tests.api.cli.options.test_folded_help import commands_of
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


CHECKED = ("--time-limit", "--gap", "--deadline", "--expires-days")
"""Numbers whose own messages name the option, the value and the range: their commands' tests."""


def test_every_number_has_a_range(shell: Shell):
    """Tests that no option takes a number without a least and a most: infinities would be internal errors later."""
    found = {
        (name, each.min, each.max)
        for _, command in commands_of(typer.main.get_command(app))
        for each in command.params
        if each.type_descriptor.annotation is float
        for name in each.opts[:1]
    }
    assert {name for name, _, _ in found} > set(CHECKED)
    assert {name for name, least, most in found if None in (least, most)} == set(CHECKED)
    for value in ("inf", "nan", "-1", "1e300"):
        outcome = shell.run("serve", "--retention-days", value)
        assert (outcome.code, "--retention-days" in outcome.err) == (2, True)


def test_speeds_of_links_say_gigabytes(shell: Shell):
    """Tests that the name of a speed cannot be read as gigabits, and that the name of earlier releases still works."""
    shell.write("nodes", "NodeName=n1 CPUTot=8 RealMemory=100 Gres=gpu:h100:2 State=IDLE\n")
    asked = ("cluster", "discover", "slurm", "--file", "nodes", "--accelerator-gib", "80")
    new, old = (shell.run(*asked, name, "50") for name in ("--host-gb-per-s", "--host-gbps"))
    assert (new.code, new.out, new.err) == (0, old.out, old.err)
    assert "50 GB/s from a device to its host" in new.err
