"""A rank is killed; the plan for the rest goes on from the checkpoint to the losses of a run without a break."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from api.cli import main
from planner.document import parse_plan, render_plan
from planner.problem import Options
from planner.progress import Limits
from tests.planner.execute.test_enter import losses, start_ranks
from tests.planner.export.chains import make_chain
from tests.planner.hasty import make_plan


def run(plan: Path, *more: object, model: str = "model") -> list[int]:
    """The exit codes of all ranks of a plan."""
    size = len(parse_plan(plan.read_bytes()).devices)
    return [code for code, _ in start_ranks([[plan, "--model", f"models_for_replan:{model}", *more]] * size)]


@pytest.fixture
def _models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "models_for_replan.py").write_text(
        "import os, signal\n"
        "from dataclasses import replace\n"
        "from execute_models import vectors\n"
        "def model():\n"
        "    return vectors('wwwwww', num_microbatches=4)\n"
        "def dying():\n"
        "    whole = model()\n"
        "    def batch(number):\n"
        "        if number == 3 and os.environ['RANK'] == '1':\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "        return whole.batch(number)\n"
        "    return replace(whole, batch=batch)\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")


@pytest.mark.usefixtures("_models")
def test_a_job_goes_on_without_a_lost_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Tests that after a killed rank a new plan, from the old one on, goes on from what was saved, as its recipe says.

    Tests that the losses are, number for number, those of a run that nothing happened to.
    """
    options = Options(max_replicas=1, uneven_replication=False, skip_edges=False, max_stages_per_device=1)
    problem = make_chain("wwwwww", num_devices=2, num_microbatches=4, options=options)
    present = make_plan(problem, limits=Limits(time_limit_s=60, max_rounds=2))
    assert len(present.devices) == 2
    plan, rest = tmp_path / "plan.json", tmp_path / "rest.json"
    plan.write_text(render_plan(present))

    assert run(plan, "--steps", 5, "--losses", tmp_path / "whole") == [0, 0]
    assert run(plan, "--steps", 2, "--save", tmp_path / "saved", "--losses", tmp_path / "first") == [0, 0]
    dead = run(plan, "--steps", 3, "--load", tmp_path / "saved", model="dying")
    assert -9 in dead
    assert all(dead)

    lost = present.devices[1]
    recipe = tmp_path / "recipe.json"
    words = ["watch", str(plan), "--lost", lost, "-o", str(rest), "--recipe", str(recipe), "--target", "executor"]
    assert main([*words, "-t", "1"]) == 0
    told = capsys.readouterr().err
    assert "new plan: " in told
    assert "from the checkpoint to" in told
    after = parse_plan(rest.read_bytes())
    assert after.devices == tuple(device for device in present.devices if device != lost)
    moves = json.loads(recipe.read_text())["moves"]
    gone = {name for stage in present.stages if stage.replicas == ((lost,),) for name in stage.layers}
    assert {key for move in moves for key in move["keys"]} == {
        f"{what}/{name}:" for name in gone for what in ("weights", "optimizer")
    }
    assert all(move["from"] is None for move in moves)

    assert run(rest, "--steps", 3, "--load", tmp_path / "saved", "--losses", tmp_path / "rest") == [0]
    assert losses(tmp_path / "first") + losses(tmp_path / "rest") == losses(tmp_path / "whole")


@pytest.mark.usefixtures("_models")
def test_a_running_plan_is_held_against_its_timings(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Tests that the executor's own timings are read, that drift is told, and that a plan is made at measured costs."""
    options = Options(max_replicas=1, uneven_replication=False, skip_edges=False)
    problem = make_chain("wwwwww", num_devices=2, num_microbatches=4, options=options)
    plan, better = tmp_path / "plan.json", tmp_path / "better.json"
    plan.write_text(render_plan(make_plan(problem, limits=Limits(time_limit_s=60, max_rounds=1))))
    assert run(plan, "--steps", 3, "--trace", tmp_path / "traces") == [0, 0]
    capsys.readouterr()
    assert main(["watch", str(plan), str(tmp_path / "traces"), "--json", "-o", str(better), "-t", "2"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["has_drifted"]  # the profile says a microsecond
    assert said["present_ns"] > said["planned_ns"]
    assert 0 <= said["most_gain_ns"] == max(said["present_ns"], said["measured_ns"]) - said["limit_ns"]
    made = parse_plan(better.read_bytes())
    assert made.evidence is not None
    assert said["best_ns"] == made.evidence.makespan_ns
    assert main(["watch", str(plan), str(tmp_path / "traces"), "--json", "-t", "2"]) == 0
    again = json.loads(capsys.readouterr().out)
    for each in (said, again):  # planned at the costs of an explanation, at which the present plan is a start
        assert said["limit_ns"] <= each["best_ns"] <= each["present_at_its_costs_ns"]
    hashes = {"profile_sha256": "", "cluster_sha256": ""}  # costs as measured, on a cluster as measured
    assert replace(made.problem, **hashes) == replace(parse_plan(plan.read_bytes()).problem, **hashes)
