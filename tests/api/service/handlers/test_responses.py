"""Jobs as clients see them, with their addresses and their tags: tests of api/service/handlers/responses.py."""

import json

from api.client import workload_document
from api.doctor import make_toy_problem
from tests.api.service.servers import Running
from tests.api.service.test_http import request


def test_idempotency(running: Running):
    """Tests that a key and body give one job, that another body is refused, and so is a key that cannot be."""
    body = {"workload": workload_document(make_toy_problem()), "limits": {"max_rounds": 1, "seed": 77}}
    first = request(running, "POST", "/v1/plans", body, {"Idempotency-Key": "key-1"})
    again = request(running, "POST", "/v1/plans", body, {"Idempotency-Key": "key-1"})
    assert json.loads(first[2])["id"] == json.loads(again[2])["id"]
    other = request(running, "POST", "/v1/plans", {**body, "priority": 1}, {"Idempotency-Key": "key-1"})
    assert (other[0], json.loads(other[2])["code"]) == (422, "idempotency_key_reused")
    assert request(running, "POST", "/v1/plans", body, {"Idempotency-Key": "a b"})[0] == 400
