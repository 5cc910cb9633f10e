"""What of a solver's answer is believed; stand-ins take the place of solvers that are not installed."""

import random
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pulp
import pytest

from planner.progress import Limits
from solver_models import pulp_solvers
from solver_models.complete.programme import Programme
from solver_models.complete.with_pulp import solve_with_pulp
from solver_models.pulp_solvers import (
    CheckedAnswer,
    available_solvers,
    checked,
    least_whole,
    require_solver,
    solve_checked,
)
from solver_models.result import SolverFailedError, Status
from tests.planner.hasty import make_plan
from tests.solver_models.complete.test_complete_model import open_problem

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # PuLP leaves the log of a failed program open

GLPSOL = """#!/bin/sh
echo "$*" > "{folder}/arguments"
while [ $# -gt 0 ]; do
  case "$1" in -o) report="$2"; shift;; -w) point="$2"; shift;; --tmlim) sleep {sleep_s};; esac
  shift
done
printf 'Problem: p\\nRows:       0\\nColumns:    2\\nNon-zeros: 0\\nStatus:     {status}\\n' > "$report"
printf '\\n\\n\\n\\n\\n\\n\\n     1 x  *  0\\n     2 y  *  0\\n' >> "$report"
printf 'c stand-in\\ns mip 0 2 {letter} 0\\nj 1 {x}\\nj 2 {y}\\ne o f\\n' > "$point"
"""
"""What glpsol is to PuLP: it writes a report and a point."""

LETTERS = {"INTEGER OPTIMAL": "o", "INTEGER NON-OPTIMAL": "f", "INTEGER EMPTY": "n", "INTEGER UNDEFINED": "u"}


def two_variables() -> pulp.LpProblem:
    """Least 2 x + y with x + y >= 3, x - y >= -2 and whole x, y to 10; the best point is (1, 2), of 4."""
    problem = pulp.LpProblem("two", pulp.LpMinimize)
    x, y = (problem.add_variable(name, lowBound=0, upBound=10, cat="Integer") for name in "xy")
    problem += 2 * x + y
    problem += x + y >= 3, "enough"
    problem += x - y >= -2, "balanced"
    return problem


def put(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that programs are looked for in first."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for program in ("sh", "sleep"):
        (folder / program).symlink_to(f"/bin/{program}")
    monkeypatch.setenv("PATH", str(folder))
    return folder


def stand_in(folder: Path, *, point: tuple[int, int], status: str = "INTEGER OPTIMAL", sleep_s: float = 0) -> None:
    text = GLPSOL.format(folder=folder, status=status, letter=LETTERS[status], x=point[0], y=point[1], sleep_s=sleep_s)
    put(folder / "glpsol", text)


@pytest.mark.parametrize(
    ("point", "status", "hint", "expected"),
    [
        ((1, 2), "INTEGER OPTIMAL", None, ("feasible", None)),
        ((3, 0), "INTEGER NON-OPTIMAL", None, ("feasible", None)),  # to PuLP the two are one
        ((0, 0), "INTEGER UNDEFINED", None, ("unknown", None)),
        ((0, 0), "INTEGER EMPTY", None, ("infeasible", None)),
        ((1, 2), "INTEGER OPTIMAL", (3, 0), ("feasible", None)),
    ],
)
def test_a_solver_gets_what_it_takes(
    bin_folder: Path,
    point: tuple[int, int],
    status: str,
    hint: tuple[int, int] | None,
    expected: tuple[Status, float | None],
):
    """Tests that GLPK, which takes no threads, gap or start, is given whole seconds, and claims no optimum."""
    stand_in(bin_folder, point=point, status=status)
    start = None if hint is None else dict(zip("xy", hint, strict=True))
    answer = solve_checked(two_variables(), solver="GLPK_CMD", time_limit_s=7.8, threads=2, hint=start)
    assert (answer.status, answer.bound) == expected
    assert answer.values == (dict(zip("xy", point, strict=True)) if status.endswith("OPTIMAL") else None)
    assert (bin_folder / "arguments").read_text().split()[-2:] == ["--tmlim", "7"]


@pytest.mark.parametrize(("status", "claimed"), [("INTEGER OPTIMAL", "feasible"), ("INTEGER EMPTY", "unknown")])
def test_what_is_said_at_the_limit_is_no_claim(bin_folder: Path, status: str, claimed: Status):
    """Tests that of a solver that stopped at its limit the point stays, and no bound, whatever PuLP calls it."""
    stand_in(bin_folder, point=(3, 0), status=status, sleep_s=1.02)
    answer = solve_checked(two_variables(), solver="GLPK_CMD", time_limit_s=1)
    assert (answer.status, answer.bound) == (claimed, None)
    assert answer.values == ({"x": 3.0, "y": 0.0} if claimed == "feasible" else None)


@pytest.mark.parametrize(
    ("point", "status", "hint", "message"),
    [
        ((0, 2), "INTEGER OPTIMAL", None, "calls a solution optimal that breaks row enough by 1"),
        ((0, 9), "INTEGER OPTIMAL", None, "breaks row balanced by 7"),
        ((-1, 4), "INTEGER OPTIMAL", None, "breaks the limits of variable x by 1"),
        ((0, 0), "INTEGER EMPTY", (1, 2), "infeasible although it was given a solution"),
    ],
)
def test_a_contradicted_answer_is_a_failure(
    bin_folder: Path, point: tuple[int, int], status: str, hint: tuple[int, int] | None, message: str
):
    """Tests that a claim is refused that a row, a limit or a known solution contradicts."""
    stand_in(bin_folder, point=point, status=status)
    start = None if hint is None else dict(zip("xy", hint, strict=True))
    with pytest.raises(SolverFailedError, match=message):
        solve_checked(two_variables(), solver="GLPK_CMD", time_limit_s=5, hint=start)


@pytest.mark.parametrize(
    ("program", "solver"),
    [
        ("cbc", "COIN_CMD"),
        ("glpsol", "GLPK_CMD"),
        ("scip", "SCIP_CMD"),
        ("highs", "HiGHS_CMD"),
    ],
)
@pytest.mark.parametrize("end", ["kill -SEGV $$", "exit 3", "exit 0"])
def test_a_solver_that_crashes_is_named(bin_folder: Path, program: str, solver: str, end: str):
    """Tests that a program that dies, fails or writes nothing is a failure of the solver, and not of ours."""
    put(bin_folder / program, f"#!/bin/sh\n{end}\n")
    if end == "exit 0" and solver == "HiGHS_CMD":
        pytest.skip("PuLP reads no answer of HiGHS as one without a point")
    with pytest.raises(SolverFailedError, match=f"solver {solver} ended without a readable answer"):
        solve_checked(two_variables(), solver=solver, time_limit_s=5)


ANSWERS: Mapping[str, tuple[CheckedAnswer, Status, bool, float | None]] = {
    "a start that breaks a row": (
        CheckedAnswer(status="feasible", values={"x": 0, "y": 0}, bound=3.0), "unknown", False, 3.0,
    ),
    "a point that is nearly whole": (
        CheckedAnswer(status="optimal", values={"x": 0.9999999, "y": 2.0000001}, bound=4.0), "optimal", True, 4.0,
    ),
    "half a unit": (
        CheckedAnswer(status="feasible", values={"x": 0.4, "y": 2.4}, bound=None), "unknown", False, None,
    ),
    "a bound without a point": (CheckedAnswer(status="unknown", values=None, bound=2.5), "unknown", False, 2.5),
}  # fmt: skip
"""Answers, and what of them holds: status, whether the point does, bound."""


@pytest.mark.parametrize("name", ANSWERS)
def test_points_are_checked(name: str):
    """Tests that a point counts, rounded, if it satisfies every row; what a solver states as bound stays."""
    answer, status, has_point, bound = ANSWERS[name]
    found = checked(two_variables(), answer, solver="any", hint=None)
    assert (found.status, found.values is not None, found.bound) == (status, has_point, bound)
    assert found.values is None or found.values == {"x": 1.0, "y": 2.0}


def test_the_default_is_offered_first(bin_folder: Path):
    """Tests that HiGHS comes first, solvers without a time limit not at all, each once; refusals say which is which."""
    for program in ("glpsol", "cbc", "copt_cmd"):
        put(bin_folder / program, "#!/bin/sh\n")
    usable = available_solvers()
    assert usable[0] == "HiGHS"
    assert {"GLPK_CMD", "COIN_CMD"} < set(usable)
    assert len(set(usable)) == len(usable)
    with pytest.raises(ValueError, match=r"solver 'COPT_CMD' takes no time limit from PuLP; choose one of HiGHS, "):
        require_solver("COPT_CMD")
    (bin_folder / "glpsol").unlink()
    with pytest.raises(ValueError, match=r"solver 'GLPK_CMD' is not available here; choose one of HiGHS"):
        require_solver("GLPK_CMD")


@pytest.mark.parametrize(
    ("bound", "whole"), [(None, None), (100.0, 100), (99.4, 100), (100.00001, 100), (99.99999, 100), (101.5, 102)]
)
def test_bounds_are_whole(bound: float | None, whole: int | None):
    """Tests that a bound on a whole number is lifted to one, less what floating point may have added."""
    assert least_whole(bound) == whole


def unlike_machines() -> pulp.LpProblem:
    """Fourteen jobs on three machines, each as long as it is there, so that the last one ends early: by 33."""
    rng, problem = random.Random(5), pulp.LpProblem("unlike_machines", pulp.LpMinimize)
    end = problem.add_variable("end", lowBound=0, cat="Integer")
    problem += end
    times = [[rng.randint(3, 20) for _ in range(3)] for _ in range(14)]
    use = [[problem.add_variable(f"x_{job}_{machine}", cat="Binary") for machine in range(3)] for job in range(14)]
    for machine in range(3):
        problem += end >= pulp.lpSum(times[job][machine] * use[job][machine] for job in range(14))
    for row in use:
        problem += pulp.lpSum(row) == 1
    return problem


def test_an_incumbent_is_no_bound(monkeypatch: pytest.MonkeyPatch):
    """Tests that a solver that stops at its first point knows no bound above the optimum, which it finds otherwise."""
    with monkeypatch.context() as patch:
        patch.setattr(pulp, "HiGHS", partial(pulp.HiGHS, mip_max_improving_sols=1))
        stopped = solve_checked(unlike_machines(), time_limit_s=60)
        assert (stopped.status, stopped.values is not None) == ("feasible", True)
        assert stopped.bound is None or stopped.bound <= 33
    answer = solve_checked(unlike_machines(), time_limit_s=60)
    assert (answer.status, answer.bound) == ("optimal", 33)


def test_the_solver_that_comes_along():
    """Tests that HiGHS gives point and bound of the small programme, from a start that breaks a row as well."""
    for hint in (None, {"x": 3, "y": 0}, {"x": 0, "y": 0}):
        answer = solve_checked(two_variables(), time_limit_s=5, hint=hint)
        assert (answer.status, answer.values, answer.bound) == ("optimal", {"x": 1.0, "y": 2.0}, 4.0)


def test_a_programme_is_answered_in_whole_numbers(bin_folder: Path):
    """Tests that values come by number of variable, and a claim is the objective's."""
    rows = Programme()
    x, y = rows.integer("x", high=10), rows.integer("y", high=10)
    rows.add({x: 1, y: 1}, low=3)
    rows.objective = x
    stand_in(bin_folder, point=(0, 3))
    answer = solve_with_pulp(rows, solver="GLPK_CMD", hint=None, time_limit_s=5, threads=1)
    assert (answer.status, answer.bound, answer.values) == ("feasible", None, [0, 3])


@pytest.mark.parametrize("end", ["kill -KILL $$", "exit 1"])
def test_a_failure_keeps_the_plan(bin_folder: Path, end: str):
    """Tests that a solver's death ends the run as its failure, and the best baseline is the plan."""
    put(bin_folder / "glpsol", f"#!/bin/sh\n{end}\n")
    plan = make_plan(open_problem(), limits=Limits(time_limit_s=60, method="ilp", solver="GLPK_CMD"))
    evidence = plan.evidence
    assert evidence is not None
    assert (evidence.stopped_by, evidence.solver_bound_ns) == ("solver_failed", None)
    assert "GLPK_CMD ended without a readable answer" in evidence.solver_versions["complete model"]
    assert evidence.verdict["passed"]


def test_nothing_is_built_for_a_solver_that_is_not_there(monkeypatch: pytest.MonkeyPatch):
    """Tests that a solver is refused before baselines or rows are made."""
    monkeypatch.setattr(pulp_solvers, "available_solvers", lambda: ["HiGHS"])
    monkeypatch.setattr("planner.planning.runs.candidate_run.begin_run", lambda *_, **__: pytest.fail("a run began"))
    with pytest.raises(ValueError, match=r"'GLPK_CMD' .*; choose one of HiGHS"):
        make_plan(open_problem(), limits=Limits(method="ilp", solver="GLPK_CMD"))
