"""What is made of a finished plan: tests of api/service/handlers/artefact_handlers.py."""

import json
from pathlib import Path

from tests.api.service.servers import Running
from tests.api.service.test_http import request


def test_traces_are_looked_at(running: Running):
    """Tests that a job's trace comes back as it ran, replayed and dealt anew, with the figures of the advice."""
    trace = Path("benchmarks/traces/trace-ST.parquet").read_bytes()
    status, _, text = request(running, "POST", "/v1/traces", trace)
    found = json.loads(text)
    plans = {name: plan["figures"]["makespanNs"] for name, plan in found["content"]["plans"].items()}
    assert status == 200
    assert plans["run"] == found["advice"]["measured_ns"]
    assert plans["replay"] == found["advice"]["replayed_ns"]
    assert plans["dealt"] in [remedy["makespan_ns"] for remedy in found["advice"]["remedies"]]
    assert request(running, "POST", "/v1/traces", b"no trace")[0] == 422
