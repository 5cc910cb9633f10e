"""`pipeplan export FORMAT`, and `pipeplan targets`: tests of api/cli/export_commands.py."""

import json
from dataclasses import replace
from pathlib import Path

from api.cli import main
from planner.document import render_plan
from planner.export.targets import TARGETS
from profiles.assumptions import Assumptions
from tests.api.test_cli import ROUND
from tests.api.worlds import Shell
from tests.planner.export.test_targets import cut, language_model


def test_torch_table(shell: Shell):
    """Tests that a plan torch can run becomes its table, and another is refused with the reason and exit code 2."""
    alone = ("--max-stages-per-device", "1", "--no-replication")
    assert shell.run("plan", "demo:gpt-1.5b-zero-bubble", *ROUND, *alone, "-o", "p.json").code == 0
    written = shell.run("export", "torch", "p.json", "demo:gpt-1.5b-zero-bubble")
    assert (written.code, written.out[:4]) == (0, "0F0,"), written.err
    assert shell.run("plan", "demo:alexnet-two-gpus", *ROUND, "-o", "p.json").code == 0
    refused = shell.run("export", "torch", "p.json", "demo:alexnet-two-gpus")
    assert (refused.code, refused.out) == (2, "")
    assert "replica" in refused.err


def test_every_target_is_listed_with_what_it_runs(capsys):
    """Tests that the list and its JSON name each target."""
    assert main(["targets"]) == 0
    begins = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line[0] != " "]
    assert begins == ["program", *TARGETS]
    assert main(["targets", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["megatron"]["limits"]["split_backward"] is False


def test_plans_are_exported_from_the_command_line(tmp_path: Path, capsys):
    """Tests that each export writes its file, and that what cannot be expressed is refused with the reason."""
    problem = language_model()
    plan = tmp_path / "plan.json"
    plan.write_text(render_plan(cut(problem, [4, 5], "1 0")))
    from profiles.workload import Workload, dump_workload

    workload = tmp_path / "workload.json"
    workload.write_text(dump_workload(Workload(profile=problem.profile, cluster=problem.cluster, num_microbatches=4)))
    assert main(["export", "megatron", str(plan), str(workload)]) == 0
    said = capsys.readouterr()
    assert "--pipeline-model-parallel-layout 'Ettt|tttL'\n" in said.out
    ranks = [line for line in said.err.splitlines() if line.startswith("rank ")]
    assert [line.split()[:3] for line in ranks] == [["rank", "0", "d1"], ["rank", "1", "d0"]]
    assert all(", headroom " in line for line in ranks)
    assert "does not state precision, attention (field assumptions): Megatron-LM runs by its defaults" in said.err
    assert main(["export", "torchtitan", str(plan), str(workload), "-o", str(tmp_path / "new" / "folder")]) == 0
    assert (tmp_path / "new" / "folder" / "config.json").exists()
    assert (tmp_path / "new" / "folder" / "schedule.csv").read_text().startswith("0F0,")
    assert main(["export", "deepspeed", str(plan), str(workload)]) == 0
    assert "PARTS = [0, 4, 9]" in capsys.readouterr().out
    assert main(["export", "zero-bubble", str(plan), str(workload)]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)[1][0]["layer_group_idx"] == 1
    assert "flags of Megatron's" in said.err
    stated = replace(problem.profile, assumptions=Assumptions(precision="bf16", attention="flash", sequence_length=64))
    workload.write_text(dump_workload(Workload(profile=stated, cluster=problem.cluster, num_microbatches=4)))
    plan.write_text(render_plan(cut(replace(problem, profile=stated), [4, 5], "1 0")))
    for form, words in (("megatron", "--bf16\n--attention-backend flash\n--seq-length 64\n"), ("deepspeed", "'bf16'")):
        assert main(["export", form, str(plan), str(workload)]) == 0
        said = capsys.readouterr()
        assert words in said.out
        assert "does not state" not in said.err
        assert said.err.count(", headroom ") == 2
    assert main(["export", "torch", str(plan), str(workload)]) == 0
    assert "times and bytes hold for precision = 'bf16': run the model so" in capsys.readouterr().err
    plan.write_text(render_plan(cut(problem, [4, 5], "1 0")))
    workload.write_text(dump_workload(Workload(profile=problem.profile, cluster=problem.cluster, num_microbatches=4)))
    plan.write_text(render_plan(cut(problem, [1, 3, 3, 2], "0 1 0 1")))
    assert main(["export", "deepspeed", str(plan), str(workload)]) == 2
    assert "a device holds several stages; DeepSpeed takes one" in capsys.readouterr().err
