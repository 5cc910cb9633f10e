"""Scripts for Slurm as text."""

import shlex

import pytest

from planner.launch.slurm import describe_slurm_job, find_job_id, render_slurm
from tests.planner.launch.test_torchrun import HOSTILE, make_job

SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=job
#SBATCH --nodes=2
#SBATCH --ntasks=3
#SBATCH --distribution=arbitrary
#SBATCH --requeue
#SBATCH --open-mode=append
set -eu
export SLURM_HOSTFILE=/job/hosts
export MASTER_ADDR=b
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
rm -f /job/exit
code=0
srun --distribution=arbitrary --kill-on-bad-exit=1 -- python3 -m planner.execute.enter /shared/plan.json \
--sha256 f00d -- train.py --steps 3 || code=$?
echo "$code" > /job/exit
exit "$code"
"""


def test_task_r_is_on_the_host_of_rank_r():
    """Tests that all is there: the script, the file of hosts in order of rank, and the command that submits them."""
    submission = render_slurm(make_job(), folder="/job", options=["--time=10"])
    assert submission.files == {"hosts": "b\na\nb\n", "job.sbatch": SCRIPT}
    (command,) = submission.commands
    assert command.render() == (
        "SLURM_HOSTFILE=/job/hosts sbatch --parsable --output=/job/log --time=10 /job/job.sbatch"
    )


def test_accelerators_are_asked_for_by_the_highest_that_is_used():
    """Tests that every node gives as many as the plan's highest index needs, and that tasks see all of them."""
    script = render_slurm(make_job(), folder="/job", with_gpus=True).files["job.sbatch"]
    assert "#SBATCH --gpus-per-node=3\n" in script
    assert "srun --distribution=arbitrary --kill-on-bad-exit=1 --gpu-bind=none -- python3" in script


def test_hostile_words_stay_single_words():
    """Tests that the shell gives back every word as it was given, and that none ends up among sbatch's options."""
    folder = f"/{HOSTILE}/100%j"
    submission = render_slurm(make_job(program=(HOSTILE,)), folder=folder, master=HOSTILE)
    lines = submission.files["job.sbatch"].splitlines()
    (run,) = (shlex.split(line) for line in lines if line.startswith("srun "))
    assert run[run.index("train.py" if "train.py" in run else HOSTILE) :] == [HOSTILE, "||", "code=$?"]
    assert f"export SLURM_HOSTFILE={shlex.quote(folder + '/hosts')}" in lines
    assert f"export MASTER_ADDR={shlex.quote(HOSTILE)}" in lines
    assert all(line.count(" ") == 1 for line in lines if line.startswith("#SBATCH"))
    (output,) = (word for word in submission.commands[0].arguments if word.startswith("--output="))
    assert "%%j" in output


@pytest.mark.parametrize("host", ["n[0-3]", "a,b", "a*2", "x y"])
def test_what_slurm_would_expand_is_refused(host: str):
    """Tests that names that a file of hosts would read as several nodes are refused."""
    with pytest.raises(ValueError, match="cannot be the name of a Slurm node"):
        render_slurm(make_job(host_names={"b": host}), folder="/job")


def test_the_answer_of_sbatch_is_read():
    """Tests that the job's number is found with and without a cluster's name, and that anything else is refused."""
    assert [find_job_id(answer) for answer in ("17\n", "17;cluster\n")] == ["17", "17"]
    with pytest.raises(ValueError, match="which is no job number"):
        find_job_id("Submitted batch job 17")


def test_the_answer_of_squeue_is_read():
    """Tests that states of jobs that go on are passed on, that others have ended, and that none is gone."""
    said = {"RUNNING n0": "RUNNING n0", "COMPLETING n0": "COMPLETING n0", "": "gone: Slurm no longer knows it"}
    said |= {"CANCELLED None": "ended: CANCELLED None", "NODE_FAIL n1": "ended: NODE_FAIL n1"}
    assert {answer: describe_slurm_job(f"{answer}\n") for answer in said} == said
