"""Solvers on the complete model, as they are asked on the command line."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from api.cli import main
from planner.document import parse_plan, render_plan
from planner.simulation.simulate import simulate
from profiles.workload import Workload, dump_workload
from tests.planner.planning.complete.test_complete_files import baseline_of, solve_file
from tests.solver_models.complete.test_complete_model import open_problem


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    """A small problem whose best plan, 74 ns, is no baseline."""
    problem = open_problem()
    options = {name: value for name, value in asdict(problem.options).items() if value is not None and value != ()}
    path = tmp_path / "workload.json"
    path.write_text(
        dump_workload(
            Workload(
                profile=problem.profile,
                cluster=problem.cluster,
                num_microbatches=problem.num_microbatches,
                options=options,
            )
        )
    )
    return path


@pytest.mark.parametrize("method", ["cp-sat", "ilp"])
def test_a_solver_is_chosen(workload: Path, tmp_path: Path, capsys, method: str):
    """Tests that the best plan is found, that the screen says who claims so, and that nobody calls it proved."""
    plan = tmp_path / "plan.json"
    assert main(["plan", str(workload), "--method", method, "-t", "60", "-o", str(plan)]) == 0
    said = capsys.readouterr()
    assert "stopped by the solver, which claims that it found the best" in said.out + said.err
    evidence = json.loads(plan.read_text())["evidence"]
    assert evidence["makespan_ns"] == evidence["solver_bound_ns"] == 74
    assert evidence["solution_status"] == "feasible"
    assert main(["verify", str(plan), "--certificate"]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method", "best"], "--method 'best' is unknown; give one of auto, search, cp-sat, ilp"),
        (["--solver", "HiGHS"], "--solver 'HiGHS' needs --method ilp, not auto; set --method to ilp"),
        (["--time-limit", "0"], "--time-limit 0.0 is out of range; give seconds above 0"),
        (["--seed", "-1"], "--seed -1 is out of range; give an integer from 0"),
        (["--threads", "2000"], "--threads 2000 is out of range; give an integer from 1 to 1024"),
        (["--method", "ilp", "--solver", "NONE"], "solver 'NONE' is not available here; choose one of"),
        (["--method", "cp-sat", "--objective", "span"], "options: objective = span is not in the complete model"),
    ],
)
def test_what_cannot_be_asked_is_said(workload: Path, capsys, words: list[str], message: str):
    """Tests that each mistake ends in one message and exit code 2, before anything is planned."""
    assert main(["plan", str(workload), *words]) == 2
    assert message in capsys.readouterr().err


def test_a_model_is_solved_elsewhere(tmp_path: Path, capsys):
    """Tests that a plan's model goes out, and that the answer comes back as a better plan that passes every rule."""
    problem = open_problem()
    plan, model, answer, better = (tmp_path / name for name in ("plan.json", "model.mps", "answer.sol", "better.json"))
    workload = tmp_path / "workload.json"
    workload.write_text(
        dump_workload(
            Workload(profile=problem.profile, cluster=problem.cluster, num_microbatches=problem.num_microbatches)
        )
    )
    plan.write_text(render_plan(baseline_of(problem)))
    assert main(["export", "model", str(plan), str(workload), "-f", "mps", "-o", str(model)]) == 0
    assert "makespan in 1 ns" in capsys.readouterr().err
    solve_file(model, answer, solver="HiGHS")
    assert main(["import", "solution", str(answer), str(plan), str(workload), "-o", str(better)]) == 0
    assert "passed every rule" in capsys.readouterr().err
    assert simulate(problem, parse_plan(better.read_text())).makespan_ns == 74


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["import", "solution", "answer"], "needs the answer and the plan whose model was solved"),
        (["import", "solution", "none", "plan.json", "workload.json"], "none: No such file"),
        (["export", "model", "plan.json", "workload.json", "-f", "sav", "-o", "model"], "model form 'sav' is unknown"),
    ],
)
def test_files_that_are_wrong_are_said(shell, words: list[str], message: str):
    """Tests that each mistake around the files ends in one message and exit code 2."""
    said = shell.run(*words)
    assert said.code == 2
    assert message in said.err
