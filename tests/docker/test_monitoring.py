"""Rules for Prometheus, as its own program reads them and as they fire; skipped where it is not installed."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

RULES = Path(__file__).resolve().parents[2] / "docker" / "monitoring" / "alerts.yaml"

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
