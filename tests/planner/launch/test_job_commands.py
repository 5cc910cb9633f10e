"""Tests of planner/launch/job_commands.py."""

from dataclasses import replace

from planner.launch.job_commands import Submitted, cancel_command, logs_command, status_command


def test_verbs_are_commands():
    """Tests that each launcher is asked, read and told in its own words."""
    slurm = Submitted(launcher="slurm", name="job", number="17")
    pods = Submitted(launcher="kubernetes", name="job", namespace="team", kind="jobset")
    assert status_command(slurm, folder="/j") == (
        *("squeue", "--noheader", "--states=all", "--jobs=17", "--format=%T %R"),
    )
    assert cancel_command(slurm, folder="/j") == ("scancel", "17")
    assert status_command(pods, folder="/j") == ("kubectl", "get", "--ignore-not-found", "--filename", "/j/job.json")
    assert cancel_command(pods, folder="/j") == (
        *("kubectl", "delete", "--ignore-not-found", "--filename", "/j/job.json"),
    )
    assert logs_command(pods, folder="/j", follow=True) == (
        *("kubectl", "logs", "--namespace=team", "--selector=jobset.sigs.k8s.io/jobset-name=job"),
        *("--all-containers", "--prefix", "--tail=-1", "--follow"),
    )
    volcano = logs_command(replace(pods, kind="volcano"), folder="/j", follow=False)
    assert "--selector=volcano.sh/job-name=job" in volcano
