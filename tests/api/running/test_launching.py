"""The commands around clusters, targets and exports, as they are typed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from api.cli import main
from planner.document import render_plan
from planner.export.targets import TARGETS
from profiles.assumptions import Assumptions
from tests.planner.export.test_targets import cut, language_model


def test_this_machine_is_described(tmp_path: Path):
    """Tests that nvidia-smi, or its absence, leads to a cluster of this machine's own devices."""
    target = tmp_path / "cluster.json"
    assert main(["cluster", "discover", "nvidia-smi", "--cpus", "--workers-per-host", "2", "-o", str(target)]) == 0
    devices = json.loads(target.read_text())["devices"]
    assert devices
    assert len({device["host"] for device in devices}) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["hostfile"], "hostfile: no file is given; add --file FILE"),
        (["hostfile", "--file", "none"], "none: No such file"),
        (["slurm", "--file", "/dev/null"], "no node is described; give the answer of `scontrol show node`"),
        (["nvidia-smi", "--workers-per-host", "2"], "--workers-per-host applies to hosts without accelerators"),
        (["kubernetes", "--topology", "/dev/null"], "--topology: give the output of `scontrol show topology`"),
    ],
)
def test_what_cannot_be_discovered_is_said(words: list[str], message: str, capsys):
    """Tests that mistakes end in one message and exit code 2."""
    assert main(["cluster", "discover", *words]) == 2
    assert message in capsys.readouterr().err


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
    assert main(["export", "zero-bubble", str(plan)]) == 0
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


def test_a_plan_for_a_target_is_made_and_exported(tmp_path: Path, capsys):
    """Tests that what `plan --target megatron` writes is what `export megatron` takes, unlike a plan without."""
    from profiles.workload import Workload, dump_workload

    problem = language_model(num_microbatches=6)
    workload, plan = tmp_path / "workload.json", tmp_path / "plan.json"
    workload.write_text(dump_workload(Workload(profile=problem.profile, cluster=problem.cluster, num_microbatches=6)))
    assert (
        main(["plan", str(workload), "--target", "megatron", "--max-replicas", "1", "-t", "2", "-q", "-o", str(plan)])
        == 0
    )
    options = json.loads(plan.read_text())["problem"]["options"]
    assert (options["split_backward"], options["max_replicas"]) == (False, 1)
    assert main(["verify", str(plan)]) == 0
    assert main(["export", "megatron", str(plan), "-o", str(tmp_path / "arguments")]) == 0
    capsys.readouterr()
    assert "--pipeline-model-parallel-size 2" in (tmp_path / "arguments").read_text()


def test_a_dry_run_writes_nothing(tmp_path: Path, capsys, monkeypatch):
    """Tests that files and commands are printed, and that neither folder nor process comes of it."""
    monkeypatch.chdir(tmp_path)
    example = Path(__file__).parents[3] / "examples" / "two-ranks.json"
    pods = ["kubernetes", "--image", "i"]
    for words in (["torchrun"], ["slurm", "--gpus"], pods, [*pods, "--kueue", "q"], ["sky"], ["ray", "--gpus"]):
        assert main(["launch", *words, str(example), "--dry-run", "--", "train.py"]) == 0
        assert "planner.execute.enter" in capsys.readouterr().out
    refused = ((["--kueue-level", "x"], "add --kueue QUEUE"), (["--kueue", "q", "--heal"], "drop one of both"))
    for words, said in refused:
        assert main(["launch", *pods, *words, str(example), "--dry-run", "--", "train.py"]) == 2
        assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert main(["job", "status", str(tmp_path)]) == 2
    assert "no job was launched from this folder" in capsys.readouterr().err
    assert main(["launch", "torchrun", str(example), "--host", "x=y", "--", "train.py"]) == 2
    assert "--host x: is no host of the plan; give one of this-host" in capsys.readouterr().err
    patch = tmp_path / "patch.yaml"
    patch.write_text("kind: Pod\nspec: {volume: []}\n")
    words = ["launch", "kubernetes", "--image", "i", "--patch", str(patch), str(example), "--dry-run", "--", "train.py"]
    assert main(words) == 2
    assert (
        f"{patch}.spec: a pod has no field 'volume' (its value is []); did you mean volumes?" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("squeue", "is_cancelled", "said"),
    [
        ("echo RUNNING n0", True, "RUNNING n0"),  # its script has written, and has not ended
        ("echo CANCELLED None", False, "ended: CANCELLED None"),  # by scancel
        ("echo FAILED NonZeroExitCode", False, "ended with 143"),
        ("echo slurm_load_jobs error: Invalid job id specified >&2; exit 1", True, "ended: CANCELLED"),
        ("echo slurm_load_jobs error: Invalid job id specified >&2; exit 1", False, "ended with 143"),
    ],
)
def test_a_code_that_a_cancelled_job_left_is_not_its_end(squeue: str, is_cancelled: bool, said: str, tmp_path, capsys):
    """Tests that Slurm's word goes before the exit code, and that a cancelled job is one when Slurm has forgotten."""
    for name, line in (("squeue", squeue), ("scancel", "exit 0")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "launch.json").write_text('{"launcher": "slurm", "name": "job", "number": "7"}')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(tmp_path), prepend=":")
        if is_cancelled:
            assert main(["job", "cancel", str(tmp_path)]) == 0
        (tmp_path / "exit").write_text("143\n")
        assert main(["job", "status", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{said}\n"
