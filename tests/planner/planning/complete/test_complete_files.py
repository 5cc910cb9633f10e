"""Tests of planner/planning/complete/complete_files.py."""

import json
import subprocess
from pathlib import Path

import highspy
import pulp
import pytest
from ortools.sat.python import cp_model

from planner.baselines.registry import make_baselines, play_baseline
from planner.layout.costs import CostModel
from planner.plan import Plan
from planner.planning.complete.complete_files import read_solution, write_model
from planner.problem import Problem
from planner.simulation.simulate import simulate
from planner.verify import verify
from tests.long_runs import shortened
from tests.solver_models.complete.test_complete_model import open_problem


def baseline_of(problem: Problem) -> Plan:
    """The worst baseline that fits."""
    costs, fitting = CostModel(problem), list[tuple[int, Plan]]()
    for baseline in make_baselines(problem, costs):
        row, timeline = play_baseline(problem, baseline, costs=costs)
        if row.fits_memory and timeline is not None and baseline.plan is not None:
            fitting.append((timeline.makespan_ns, baseline.plan))
    return max(fitting, key=lambda each: each[0])[1]


def solve_file(path: Path, answer: Path, *, solver: str) -> None:
    """What a person does with the file."""
    if solver == "HiGHS":
        highs = highspy.Highs()
        highs.setOptionValue("output_flag", False)
        highs.readModel(str(path))
        highs.run()
        highs.writeSolution(str(answer), 0)
    elif solver == "CBC":
        cbc = pulp.PULP_CBC_CMD.pulp_cbc_path
        subprocess.run([cbc, path, "-log", "0", "solve", "solu", answer], check=True, capture_output=True)
    else:
        model = cp_model.CpModel()
        model.proto.parse_text_format(path.read_text(encoding="utf-8"))
        cp_solver = cp_model.CpSolver()
        cp_solver.solve(model)
        answer.write_text(json.dumps(list(cp_solver.response_proto.solution)), encoding="utf-8")


@pytest.mark.parametrize(
    ("form", "solver"),
    [("mps", "HiGHS"), ("lp", "HiGHS"), ("cp-sat", "CP-SAT"), *shortened([], whole=[("mps", "CBC")])],
)
def test_a_model_goes_out_and_its_answer_comes_back(tmp_path: Path, form: str, solver: str):
    """Tests that the file solved elsewhere gives the best plan, and that it passes the verifier."""
    problem = open_problem()
    timeline = simulate(problem, baseline_of(problem))
    assert timeline.makespan_ns > 74
    model, answer = tmp_path / f"model.{form}", tmp_path / "answer.sol"
    assert write_model(problem, timeline, path=model, form=form) == 1  # type: ignore[arg-type]
    solve_file(model, answer, solver=solver)
    plan = read_solution(problem, timeline, text=answer.read_text(encoding="utf-8"), source="answer.sol")
    verdict = verify(problem, plan)
    assert verdict.passed
    assert verdict.timeline is not None
    assert verdict.timeline.makespan_ns == 74


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names no variable"),
        ("x 1\ny 2", "names no variable"),
        ("[1, 2]", "2 values for"),
        ("{", "is not JSON"),
        ('{"makespan": "long"}', "'long' in place of a number"),
        ('{"makespan": 3}', "not a solution of the model"),
    ],
)
def test_answers_to_something_else_are_refused(text: str, message: str):
    """Tests that what is no answer to the model of the plan is called that."""
    problem = open_problem()
    with pytest.raises(ValueError, match=message):
        read_solution(problem, simulate(problem, baseline_of(problem)), text=text, source="answer")
