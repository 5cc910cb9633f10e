"""Tests of planner/launch/job_commands.py."""

import json
from dataclasses import replace
from typing import get_args, get_type_hints

from planner.launch.job_commands import Submitted, cancel_command, logs_command, read_down_nodes, status_command


def test_no_launcher_is_taken_for_another():
    """Tests that every launcher there is has a program of its own that says how a job is, and ends it."""
    launchers = get_args(get_type_hints(Submitted)["launcher"])
    jobs = [Submitted(launcher=launcher, name="job", kind="jobset") for launcher in launchers]
    asked = {job.launcher: status_command(job, folder="/j")[:1] + cancel_command(job, folder="/j")[:1] for job in jobs}
    assert asked.pop("torchrun") == ()
    assert len(set(asked.values())) == len(asked) == len(launchers) - 1
    assert all(map(all, asked.values()))


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


def test_a_job_of_another_cluster_is_asked_for_there():
    """Tests that a number counts on the cluster that gave it: here another job may have it."""
    slurm = Submitted(launcher="slurm", name="job", number="17;far")
    assert status_command(slurm, folder="/j") == (
        *("squeue", "--clusters=far", "--noheader", "--states=all", "--jobs=17", "--format=%T %R"),
    )
    assert cancel_command(slurm, folder="/j") == ("scancel", "--clusters=far", "17")


def test_nodes_that_are_down():
    """Tests that a node that is gone, or not ready, is down, and one that is only closed to new pods is not."""
    ready, cordoned = {"metadata": {"name": "a"}}, {"metadata": {"name": "b"}, "spec": {"unschedulable": True}}
    fine = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    silent = {"metadata": {"name": "c"}, "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
    said = json.dumps({"items": [ready | fine, cordoned | fine, silent]})
    found = read_down_nodes(said, hosts=("a", "b", "c", "d"))
    assert found == {"c": "its node is not ready (Unknown)", "d": "it is no node any more"}
