"""Rules and dashboard, as Prometheus' own program reads and evaluates them; skipped where it is not installed."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

MONITORING = Path(__file__).resolve().parents[2] / "docker" / "monitoring"
RULES = MONITORING / "alerts.yaml"

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (prometheus)")


@needs_promtool
def test_prometheus_reads_the_rules():
    """Tests that Prometheus' own checker finds every expression and every field right."""
    done = subprocess.run(["promtool", "check", "rules", str(RULES)], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    num_rules = len(yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"][0]["rules"])
    assert f"{num_rules} rules found" in done.stdout


def series(name: str, values: str) -> dict[str, str]:
    return {"series": name, "values": values}


REQUESTS = 'pipeplan_requests_total{route="/v1/plans",status="%s"}'

CASES: list[tuple[str, list[dict[str, str]], str, bool]] = [
    ("PipeplanNobodyWorks", [series("pipeplan_workers_alive", "1 1 0x20")], "10m", True),
    ("PipeplanNobodyWorks", [series("pipeplan_workers_alive", "1 1 0 0 1x20")], "10m", False),
    ("PipeplanNotReady", [series("pipeplan_ready", "0x30")], "10m", True),
    ("PipeplanNotReady", [series("pipeplan_ready", "1 0 0 0 1x20")], "10m", False),
    ("PipeplanQueueOld", [series("pipeplan_queue_age_seconds", "0+60x60")], "40m", True),
    ("PipeplanQueueOld", [series("pipeplan_queue_age_seconds", "600x60")], "40m", False),
    ("PipeplanSolversCrash", [series("pipeplan_solver_crashes_total", "0+1x30")], "20m", True),
    ("PipeplanSolversCrash", [series("pipeplan_solver_crashes_total", "2x30")], "20m", False),
    ("PipeplanErrors", [series(REQUESTS % 500, "0+10x30"), series(REQUESTS % 200, "0+90x30")], "20m", True),
    ("PipeplanErrors", [series(REQUESTS % 500, "0+1x30"), series(REQUESTS % 200, "0+99x30")], "20m", False),
]
"""An alert, what is measured minute by minute, the moment, and whether it is raised then."""


@needs_promtool
def test_alerts_fire_when_they_should(tmp_path: Path):
    """Tests that each alert is raised by what it is for, after its time, and not by what passes or is little."""
    tests: list[dict[str, Any]] = []
    severities = {
        rule["alert"]: (rule["labels"], rule["annotations"])
        for rule in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"][0]["rules"]
    }
    for name, measured, moment, is_raised in CASES:
        labels, annotations = severities[name]
        raised = [{"exp_labels": labels, "exp_annotations": annotations}] if is_raised else []
        asked = {"eval_time": moment, "alertname": name, "exp_alerts": raised}
        tests.append({"interval": "1m", "input_series": measured, "alert_rule_test": [asked]})
    file = tmp_path / "tests.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    done = subprocess.run(["promtool", "test", "rules", str(file)], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


RATE = "0+60x120"
"""Of a counter, by the minute: one a second."""


def buckets(name: str, labels: str = "") -> list[dict[str, str]]:
    """A histogram of values below one, one a second."""
    return [series(f'{name}_bucket{{le="{bound}"{labels}}}', RATE) for bound in ("1", "+Inf")]


SHOWN: list[tuple[str, list[dict[str, str]], str, float]] = [
    ("Workers that live", [series("pipeplan_workers_alive", "3x120")], "{}", 3),
    (
        "Jobs ended per minute",
        [series('pipeplan_jobs_ended_total{state="a",stopped_by="b"}', RATE)],
        '{state="a",stopped_by="b"}',
        60,
    ),
    ("Solve time (median, 99 %)", buckets("pipeplan_solve_seconds"), "{}", 0.5),
    ("Crashes, jobs given back, leases lost per hour", [series("pipeplan_solver_crashes_total", RATE)], "{}", 3600),
    ("Request time, 99 % by route", buckets("pipeplan_request_seconds", ',route="/x"'), '{route="/x"}', 0.99),
]
"""A panel of the dashboard, what is measured, and what its first curve shows then: labels and value."""


@needs_promtool
def test_prometheus_evaluates_the_dashboard(tmp_path: Path):
    """Tests that every curve of the dashboard is an expression that Prometheus reads, and that curves of every kind
    show the rates and quantiles that they are named after."""
    panels = json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))["panels"]
    curves = {panel["title"]: [target["expr"] for target in panel["targets"]] for panel in panels}
    expressions = [expression for each in curves.values() for expression in each]
    rules = [{"record": f"curve:{number}", "expr": each} for number, each in enumerate(expressions)]
    file = tmp_path / "curves.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "curves", "rules": rules}]}))
    tests = []
    for title, measured, labels, value in SHOWN:
        sample = {"labels": labels, "value": value}
        asked = {"expr": curves[title][0], "eval_time": "60m", "exp_samples": [sample]}
        tests.append({"interval": "1m", "input_series": measured, "promql_expr_test": [asked]})
    cases = tmp_path / "tests.yaml"
    cases.write_text(yaml.safe_dump({"rule_files": [str(file)], "tests": tests}))
    for command in (("check", "rules", str(file)), ("test", "rules", str(cases))):
        done = subprocess.run(["promtool", *command], check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
