"""Tests of api/service/handlers/answers.py."""

from dataclasses import replace

import pytest

from api.client import ServerError
from api.doctor import make_toy_problem
from planner.progress import Limits
from tests.api.jobs.workers.test_pool import large_problem
from tests.api.service.servers import Running
from tests.api.service.test_http import QUICK


def test_delete_forgets(running: Running):
    """Tests that a deleted plan is gone, even while it runs."""
    client = running.client()
    job = client.submit(large_problem(), limits=Limits(time_limit_s=500.0, seed=2, patience_s=500.0, threads=1))
    client.delete(job["id"])
    with pytest.raises(ServerError) as refusal:
        client.job(job["id"])
    assert refusal.value.status == 404


def test_not_finished_is_a_conflict(running: Running):
    """Tests that the plan of a job that is not finished cannot be fetched yet."""
    client = running.client()
    job = client.submit(large_problem(), limits=Limits(time_limit_s=500.0, seed=3, patience_s=500.0, threads=1))
    with pytest.raises(ServerError) as refusal:
        client.fetch(job["id"], "plan")
    assert (refusal.value.status, refusal.value.code) == (409, "not_finished")
    client.delete(job["id"])


def test_ended_without_a_plan_is_a_conflict(running: Running):
    """Tests that a job that fits nowhere is there to be looked at, and only its plan is not."""
    client, toy = running.client(), make_toy_problem()
    devices = tuple(replace(device, memory_bytes=1) for device in toy.cluster.devices)
    job = client.submit(replace(toy, cluster=replace(toy.cluster, devices=devices)), limits=QUICK)
    assert client.job(job["id"], wait_s=60)["state"] == "failed"
    with pytest.raises(ServerError) as refusal:
        client.fetch(job["id"], "plan")
    assert (refusal.value.status, refusal.value.code) == (409, "no_plan")
