"""The commands around clusters, targets and exports, as they are typed."""

import json
from pathlib import Path

import pytest

from api.cli import main
from tests.planner.export.test_targets import language_model


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


def test_a_job_that_could_not_be_cancelled_is_none(tmp_path, capsys):
    """Tests that a job whose launcher refused to end it ends with its own code later, not as a cancelled one."""
    for name, line in (("squeue", "echo FAILED NonZeroExitCode"), ("scancel", "echo no controller >&2; exit 1")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "launch.json").write_text('{"launcher": "slurm", "name": "job", "number": "7"}')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(tmp_path), prepend=":")
        assert main(["job", "cancel", str(tmp_path)]) == 2
        (tmp_path / "exit").write_text("3\n")
        assert main(["job", "status", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "ended with 3\n"
