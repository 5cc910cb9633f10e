"""`pipeplan compare PLAN FOLDER`: report, JSON, picture and calibration, of a run that is made up."""

import json
import re
from pathlib import Path

import pytest

from planner.document import render_plan
from planner.execute.record.executed_timeline import IterationTimes, MemoryUsed, render_rank
from planner.plan import Plan
from planner.problem import Problem
from planner.simulation.simulate import simulate
from profiles.load import load_workload
from profiles.workload import Workload, dump_workload
from tests.api.worlds import Shell
from tests.planner.export import chains


@pytest.fixture
def world(shell: Shell, tmp_path: Path) -> tuple[Problem, Plan]:
    """A plan, its workload and its run; actions take twice as long as planned, the first iteration longer still."""
    problem = chains.make_chain("www", num_devices=2, num_microbatches=2)
    plan = chains.make_plan(problem, "d0: 0F0 0F1 0B0 0B1\nd1: 1F0 1B0 1F1 1B1", stages="0,1@d0 2@d1")
    workload = Workload(profile=problem.profile, cluster=problem.cluster, num_microbatches=2)
    (tmp_path / "workload.json").write_text(dump_workload(workload))
    (tmp_path / "plan.json").write_text(render_plan(plan))
    folder = tmp_path / "trace"
    folder.mkdir()
    timeline = simulate(problem, plan)
    for rank, (device, word) in enumerate(timeline.actions.items()):
        rows = [[(str(a), f * start + 10**15, f * end + 10**15) for a, start, end in word] for f in (9, 2, 2)]
        times = []
        for row in rows:
            asked = (10**15, *(end for _, _, end in row[:-1]))
            times.append(IterationTimes(asked, begin_ns=10**15, reduced_ns=row[-1][2], end_ns=row[-1][2]))
        used = MemoryUsed("resident set", timeline.peak_bytes[device] + 30, timeline.peak_bytes[device] // 2, None)
        (folder / f"rank{rank}.json").write_text(render_rank(rank, device, iterations=rows, times=times, memory=used))
    return problem, plan


def test_a_run_is_reported(shell: Shell, world: tuple[Problem, Plan]):
    """Tests that the report has every part, and JSON in which they add up; the slow first iteration does not count."""
    makespan = simulate(*world).makespan_ns
    outcome = shell.run("compare", "plan.json", "trace", "workload.json")
    assert outcome.code == 0, outcome.err
    for name in ("compute", "transfer", "launch overhead", "waiting", "sum", "1 left out as warm-up", "cause: host "):
        assert name in outcome.out
    found = json.loads(shell.run("compare", "plan.json", "trace", "-w", "workload.json", "--json").out)
    assert (found["predicted_ns"], found["measured_ns"]) == (makespan, 2 * makespan)
    assert sum(found["parts_ns"].values()) == found["difference_ns"] == makespan
    assert found["parts_ns"]["compute"] > 0.8 * makespan
    assert sum(found["causes_ns"].values()) == makespan
    assert found["causes_ns"]["card"] == found["parts_ns"]["compute"] + found["parts_ns"]["optimizer"]
    assert found["iterations_ns"] == [2 * makespan] * 2


def test_memory_is_compared(shell: Shell, world: tuple[Problem, Plan], tmp_path: Path):
    """Tests that every device's peak stands beside the plan's, in two parts that add up, and that nonsense is named."""
    assert "Peak memory by device" in shell.run("compare", "plan.json", "trace", "workload.json").out
    rows = json.loads(shell.run("compare", "plan.json", "trace", "-w", "workload.json", "--json").out)["memory"]
    planned = simulate(*world).peak_bytes
    assert {row["device"]: row["predicted_peak_bytes"] for row in rows} == dict(planned)
    for row in rows:
        assert row["measured_peak_bytes"] - row["predicted_peak_bytes"] == 30
        assert row["rest_part_bytes"] + row["way_part_bytes"] == 30
    path = tmp_path / "trace" / "rank1.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | {"memory": {"source": "resident set", "peak_bytes": "much"}}))
    outcome = shell.run("compare", "plan.json", "trace", "workload.json")
    assert outcome.code == 2
    assert "rank1.json: memory =" in outcome.err
    del document["memory"]
    path.write_text(json.dumps(document))
    assert (
        len(json.loads(shell.run("compare", "plan.json", "trace", "-w", "workload.json", "--json").out)["memory"]) == 1
    )


def test_a_run_is_drawn(shell: Shell, world: tuple[Problem, Plan], tmp_path: Path):
    """Tests that the picture holds both timelines."""
    outcome = shell.run("compare", "plan.json", "trace", "workload.json", "--html", "both.html")
    assert outcome.code == 0, outcome.err
    (content,) = re.findall(r'id="content">(.*?)</script>', (tmp_path / "both.html").read_text())
    plans = json.loads(content)["plans"]
    makespan = simulate(*world).makespan_ns
    assert [plan["figures"]["makespanNs"] for plan in plans] == [makespan, 2 * makespan]


def test_a_run_calibrates(shell: Shell, world: tuple[Problem, Plan], tmp_path: Path):
    """Tests that with the calibrated workload the plan is predicted to take what the run took."""
    arguments = ("--calibrate", "workload.json", "-o", "calibrated.json")
    outcome = shell.run("compare", "plan.json", "trace", "workload.json", *arguments)
    assert outcome.code == 0, outcome.err
    calibrated = load_workload(tmp_path / "calibrated.json")
    assert {entry.what for entry in calibrated.profile.measurements} >= {"duration", "overhead", "transfer"}
    found = json.loads(shell.run("compare", "plan.json", "trace", "calibrated.json", "--json").out)
    assert abs(found["difference_ns"]) <= 0.01 * found["measured_ns"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plan.json", "trace", "workload.json", "--warm-up", "3"), "has only 3 iterations"),
        (("trace", "plan.json"), "PLAN FOLDER"),
        (("plan.json", "trace", "workload.json", "--calibrate", "workload.json"), "belong together"),
        (("plan.json", "workload.json", "--html", "a.html"), "need the folder of a run"),
        (("plan.json", "trace", "workload.json", "--baselines"), "leave it out"),
    ],
)
def test_mistakes_have_one_message(shell: Shell, world: tuple[Problem, Plan], arguments: tuple[str, ...], message: str):
    """Tests that what does not belong together is refused, with what to do."""
    outcome = shell.run("compare", *arguments)
    assert outcome.code == 2
    assert message in outcome.err


def test_a_run_of_another_plan_is_refused(shell: Shell, world: tuple[Problem, Plan], tmp_path: Path):
    """Tests that a rank which ran something else is named, with the place."""
    document = json.loads((tmp_path / "trace" / "rank1.json").read_text())
    document["iterations"][0][0][0] = "1F1"
    (tmp_path / "trace" / "rank1.json").write_text(json.dumps(document))
    outcome = shell.run("compare", "plan.json", "trace", "workload.json")
    assert outcome.code == 2
    assert "'d1' ran 1F1 where the plan says 1F0 (action 0)" in outcome.err
    (tmp_path / "trace" / "rank1.json").write_text('{"device": 3}')
    assert (
        "rank1.json: is not what the executor's --trace writes"
        in shell.run("compare", "plan.json", "trace", "workload.json").err
    )


@pytest.mark.parametrize("command", ["compare", "watch"])
def test_documents_of_two_runs_are_not_one(shell: Shell, world: tuple[Problem, Plan], tmp_path: Path, command: str):
    """Tests that a rank left by another run is named, and one that stands there twice."""
    assert world
    order = ("plan.json", "trace", "-w", "workload.json")
    first, second = (tmp_path / "trace" / f"rank{rank}.json" for rank in (0, 1))
    for rank, path in enumerate((first, second)):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"run": rank, "world_size": 2, "num_stages": 2}))
    outcome = shell.run(command, *order)
    assert (outcome.code, "rank1.json: is of another run than trace/rank0.json; give" in outcome.err) == (2, True)
    (tmp_path / "trace" / "rank2.json").write_text(first.read_text())
    second.write_text(second.read_text().replace('"run": 1', '"run": 0'))
    outcome = shell.run(command, *order)
    assert outcome.code == 2
    assert re.search(r"rank2\.json: (is of device 'd0', as|device 'd0' was given before)", outcome.err)
