"""Jobs as clients see them, with their addresses and their tags: tests of api/service/handlers/responses.py."""

import json

from api.client import workload_document
from api.doctor import make_toy_problem
from tests.api.service.servers import Running
from tests.api.service.test_http import check_job, request


def test_idempotency(running: Running):
    """Tests that a key and body give one job, that another body is refused, and so is a key that cannot be."""
    body = {"workload": workload_document(make_toy_problem()), "limits": {"max_rounds": 1, "seed": 77}}
    first = request(running, "POST", "/v1/plans", body, {"Idempotency-Key": "key-1"})
    again = request(running, "POST", "/v1/plans", body, {"Idempotency-Key": "key-1"})
    assert json.loads(first[2])["id"] == json.loads(again[2])["id"]
    other = request(running, "POST", "/v1/plans", {**body, "priority": 1}, {"Idempotency-Key": "key-1"})
    assert (other[0], json.loads(other[2])["code"]) == (422, "idempotency_key_reused")
    assert request(running, "POST", "/v1/plans", body, {"Idempotency-Key": "a b"})[0] == 400


def test_unlikely_units_are_said(running: Running):
    """Tests that the answer to a submission, and it alone, doubts a link of 24 bytes per second."""
    workload = workload_document(make_toy_problem())
    body = {"workload": workload, "limits": {"max_rounds": 1, "seed": 78}}
    assert "doubts" not in json.loads(request(running, "POST", "/v1/plans", body)[2])
    workload["cluster"]["links"][0]["bandwidth_bytes_per_s"] = 24
    for _ in range(2):
        job = json.loads(request(running, "POST", "/v1/plans", body, {"Prefer": "wait=60"})[2])
        check_job(job)
        (doubt,) = job["doubts"]
        assert doubt.endswith("bandwidth_bytes_per_s = 24 is 2.4e-08 GB/s; is the unit right?")
    assert "doubts" not in json.loads(request(running, "GET", job["links"]["self"])[2])
