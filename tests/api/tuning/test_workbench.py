"""What the loop of `pipeplan tune` does to the world: tests of api/tuning/workbench.py."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api.tuning import short_run, workbench
from planner.document import parse_plan
from profiles.load import load_workload
from profiles.workload import dump_workload
from tests.api.worlds import Shell
from tests.long_runs import IS_LONG, long_only, shortened
from tests.planner.execute.test_enter import start_ranks

ROOT = Path(__file__).resolve().parents[3]


class FewLaunches:
    """Starts the first run with torchrun, and the ranks of others as forks."""

    def __init__(self) -> None:
        self.num_started = 0
        self._launch = short_run.run_command

    def __call__(self, command: tuple[str, ...], **how: Any) -> None:
        self.num_started += 1
        if IS_LONG or self.num_started == 1:
            self._launch(command, **how)
            return
        (count,) = (int(word.partition("=")[2]) for word in command if word.startswith("--nproc-per-node="))
        answers = start_ranks([command[command.index("planner.execute") + 1 :]] * count)
        how["log"].write_text("".join(said for _, said in answers))
        assert [code for code, _ in answers] == [0] * count, answers


@long_only
def test_a_tiny_model_for_real(shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Tests that plans of a small model are run in two processes, the fastest is kept, and the profile learns.

    `make test` starts only the first of them with torchrun.
    """
    monkeypatch.setattr(workbench, "PLANNING_S", 1.0)
    monkeypatch.setattr(short_run, "run_command", launches := FewLaunches())
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # for the processes that run the plans
    workload = load_workload(str(ROOT / "examples" / "two-ranks-workload.json"))
    options = {key: value for key, value in workload.options.items() if key != "max_replicas"}
    options |= shortened({"split_backward": False, "max_stages_per_device": 1}, whole={})  # two kinds of plans, or more
    shell.write("guessed.json", dump_workload(replace(workload, options=options)))
    arguments = ("--workload", "guessed.json", "--runs", "1", "--steps", "4", "--within", "40", "-t", "100")
    done = shell.run("tune", "examples.train:make_training", *arguments, "-o", "best.json", "--json")
    assert done.code == 0, done.err
    said = json.loads(done.err.splitlines()[-1])
    measured = {row["key"]: row["measured_ns"] for row in said["plans"] if row["measured_ns"] is not None}
    assert launches.num_started >= len(measured) >= 2
    assert measured[said["chosen"]] == min(measured.values())
    assert {max(row["replicas"]) for row in said["plans"]} == {1, 2}
    plan = parse_plan((tmp_path / "best.json").read_bytes(), source="best.json")
    assert plan.evidence is not None
    calibrated = load_workload(str(tmp_path / "best.workload.json"))
    assert any(entry.what == "duration" for entry in calibrated.profile.measurements)
