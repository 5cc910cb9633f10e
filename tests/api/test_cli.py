"""Every command on a small world, in this process: what it writes where, and with which exit code."""

import json

from api.inputs import UNKNOWN_SIZE
from planner.document import parse_plan
from profiles.load import load_workload
from tests.api.worlds import Shell, make_workload

ROUND = ("--max-rounds", "1")


def test_gap_missed(shell: Shell):
    """Tests that a plan that misses the gap asked for is written all the same, and the exit code is 4."""
    missed = shell.run("plan", "demo:gpt-1.5b-zero-bubble", "-t", "0.5", "--gap", "0.0001", "-q")
    plan = parse_plan(missed.out)
    assert plan.evidence is not None
    assert plan.evidence.gap > 0.0001
    assert missed.code == 4
    reached = shell.run("plan", "demo:gpt-1.5b-zero-bubble", "-t", "5", "--gap", "0.9", "-q")
    assert (reached.code, reached.err) == (0, "")


def foreign_form(meta: dict[str, int]) -> str:
    """Two layers in the neutral form, with these remarks."""
    layer = {"forward_ms": 1.0, "backward_ms": 2.0, "param_bytes": 8, "activation_bytes": 8}
    layers = [{"name": name, **layer} for name in "ab"]
    return json.dumps({"name": "foreign", "layers": layers, "edges": [[0, 1]], "meta": meta})


def test_import(shell: Shell):
    """Tests that a foreign form becomes a document in ours that means the same, on another device type if asked."""
    said = ("import", "-", "--cluster", "workload.json", "-m", "4", "--device-type", "toy")
    outcome = shell.run(*said, stdin=foreign_form({"microbatch_size": 2}))
    assert (outcome.code, outcome.err.count("\n")) == (0, 1), outcome.err
    assert "all layers hold 64 bytes together" in outcome.err
    shell.write("ours.json", outcome.out)
    assert load_workload("ours.json").cluster == make_workload().cluster
    assert load_workload("ours.json").profile.microbatch_size == 2
    assert shell.run("plan", "ours.json", *ROUND, "-q").code == 0
    assert shell.run("import", "ours.json").out == outcome.out


def test_import_says_what_the_form_leaves_out(shell: Shell):
    """Tests that a form without the number of samples becomes a document that says null, and standard error says so."""
    outcome = shell.run("import", "-", stdin=foreign_form({}))
    assert (outcome.code, outcome.err) == (0, f"-: {UNKNOWN_SIZE}\n")
    assert json.loads(outcome.out)["profile"]["microbatch_size"] is None


def test_import_of_traces(shell: Shell):
    """Tests that traces give a summary and a workload that can be planned, and broken ones one message and no file."""
    for rank in range(2):
        names = [f"PP:{rank}{kind}{m}" for m in range(2) for kind in "FB"]
        events = [{"ph": "X", "name": name, "ts": i, "dur": 1} for i, name in enumerate(names)]
        shell.write(f"{rank}.json", json.dumps({"distributedInfo": {"rank": rank}, "traceEvents": events}))
    outcome = shell.run("import", "trace", "0.json", "1.json", "-o", "traced.json")
    assert (outcome.code, outcome.err) == (0, "")
    assert "1 pipeline x 2 stages x 2 microbatches" in outcome.out
    assert shell.run("plan", "traced.json", *ROUND, "-q").code == 0
    assert json.loads(shell.run("import", "trace", "0.json", "--json").out)["durations"][0]["mean_ns"] == 1000
    shell.write("bad.json", '{"traceEvents": [')
    outcome = shell.run("import", "trace", "bad.json", "-o", "none.json")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.count("\n") == 1
    assert "bad.json: is cut off" in outcome.err
    assert not (shell.folder / "none.json").exists()
    assert shell.run("import", "graph.txt", "0.json").code == 2
    assert shell.run("import", "trace", "0.json", "--cluster", "workload.json").code == 2
