"""What a proof-logging solver is told is true of every plan, and its log is believed for its steps alone."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from ortools.sat.python import cp_model

from benchmarks import independent_proofs
from benchmarks.independent_proofs import make_statement, solve_apart
from benchmarks.proof_log import LogChecker, ProofError
from benchmarks.proof_statement import Clause, Statement
from planner.problem import Problem
from tests.long_runs import shortened
from tests.planner.brute_force import brute_force
from tests.planner.planning.improvers.test_branch_and_check import chain_of, exact_tiny_problem

KINDS = ("one stage", "replicas", "graphs")

LOG = """\
a 1 [y <= 10]
a 2 [x <= 2]
i 5 1 2 0 c:4 l:linear_bounds
i 6 0 1 l:initial_domain
n 7 2 0 6 5
a 3 [x <= 10]
a 4 [y <= 2]
i 8 3 4 0 c:4 l:linear_bounds
i 9 0 3 l:initial_domain
n 10 4 0 9 8
a 5 [b >= 1]
i 11 -2 1 5 0 c:1 l:linear_bounds
i 12 0 -2 c:7 l:nogood
i 13 0 1 l:initial_domain
n 14 5 0 13 12 11
a 6 [d >= 1]
i 15 -4 3 6 0 c:2 l:linear_bounds
i 16 0 -4 c:10 l:nogood
i 17 0 3 l:initial_domain
n 18 6 0 17 16 15
i 19 -5 0 6 c:3 l:nogood
i 20 0 -5 c:14 l:nogood
i 21 0 -6 c:18 l:nogood
n 22 0 21 20 19
c UNSAT
"""
"""Pumpkin's, of `two_tasks`."""


def two_tasks() -> Statement:
    """One of two tasks of length 7 comes first, between 0 and 10 each, and 13 in sum at least: there is no way."""
    statement = Statement()
    for name in "xy":
        statement.integer(name, high=10)
    for name in "bd":
        statement.switch(name)
    statement.row([("x", 2), ("y", -1)], most=-7, given=("b", 1))
    statement.row([("y", 2), ("x", -1)], most=-7, given=("d", 1))
    statement.clause(("b", 1), ("d", 1))
    statement.row([("x", -1), ("y", -1)], most=-13)
    return statement


def test_a_log_is_followed():
    """Tests that a refutation of Pumpkin's follows from the statement, and that CP-SAT finds no solution either."""
    found = LogChecker(two_tasks()).check(LOG.splitlines())
    assert (found.inferences, found.nogoods, found.rows) == (13, 5, 4)
    assert not has_solution(two_tasks())


@pytest.mark.parametrize("number", range(LOG.count("\n")))
def test_no_line_of_a_log_can_be_missing(number: int):
    """Tests that a log without one of its lines is refused."""
    lines = LOG.splitlines()
    del lines[number]
    with pytest.raises(ProofError):
        LogChecker(two_tasks()).check(lines)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[x <= 2]", "[x <= 3]"),
        ("[y <= 10]", "[y <= 9]"),
        ("[y <= 10]", "[z <= 10]"),
        ("a 3 ", "a 2 "),
        ("2 0 c:4", "2 0 c:3"),
        ("2 0 c:4", "2 0 c:23"),
        ("2 0 c:4 l:linear_bounds", "2 0"),
        ("i 11 -2", "i 11"),
        ("n 7 2 0 6 5", "n 7 2 0 6"),
        ("n 7 2 0 6 5", "n 7 0 6 5"),
        ("n 7 2", "n 4 2"),
        ("n 14 5 0 13 12 11", "n 14 5 0 13 12 8"),
        ("n 22 0", "n 22 6 0"),
        ("c UNSAT", "c 2"),
        ("c UNSAT", "c UNSAT\na 7 [x <= 1]"),
        ("c UNSAT", "x"),
    ],
)
def test_wrong_steps_are_refused(old: str, new: str):
    """Tests that a log with a step that does not follow, or that names what is not there, is refused."""
    assert old in LOG
    with pytest.raises(ProofError):
        LogChecker(two_tasks()).check(LOG.replace(old, new, 1).splitlines())


@pytest.mark.parametrize(("name", "value"), [("x", (0, 11)), ("y", (0, 16))])
def test_a_log_of_another_statement_is_refused(name: str, value: tuple[int, int]):
    """Tests that a log does not refute a statement with more room."""
    statement = two_tasks()
    statement.domains[name] = value
    with pytest.raises(ProofError):
        LogChecker(statement).check(LOG.splitlines())


def test_holes_count():
    """Tests that values that are taken out one by one count where they stand at the end of what is left."""
    statement = Statement()
    statement.integer("x", high=3)
    statement.row([("x", -1)], most=-2)
    lines = ["a 1 [x != 3]", "a 2 [x != 2]", "i 3 1 2 0 c:1 l:linear_bounds", "n 4 1 2 0 3", "c UNSAT"]
    with pytest.raises(ProofError, match="nogood of no atoms"):
        LogChecker(statement).check(lines)
    with pytest.raises(ProofError, match="does not follow"):
        LogChecker(statement).check(["a 1 [x != 3]", "a 2 [x != 1]", "i 3 1 2 0 c:1 l:linear_bounds"])


def has_solution(statement: Statement) -> bool:
    """Whether CP-SAT finds one."""
    model = cp_model.CpModel()
    variables = {name: model.new_int_var(low, high, name) for name, (low, high) in statement.domains.items()}

    def literal(name: str, value: int) -> cp_model.IntVar:
        return variables[name] if value else variables[name].negated()

    for each in statement.constraints:
        if isinstance(each, Clause):
            model.add_bool_or([literal(*one) for one in each.literals])
            continue
        row = model.add(sum(c * variables[name] for name, c in each.terms) <= each.most)
        if each.given is not None:
            row.only_enforce_if(literal(*each.given))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    status = solver.solve(model)
    assert status in (cp_model.OPTIMAL, cp_model.INFEASIBLE)
    return status == cp_model.OPTIMAL


def problem_of(kind: str, seed: int) -> Problem:
    """A random small problem with one stage per device."""
    problem = exact_tiny_problem(seed) if kind == "graphs" else chain_of(kind, seed)
    options = replace(problem.options, objective="makespan", max_stages_per_device=1, recompute=False)
    return replace(problem, options=options)


@pytest.mark.parametrize("kind", KINDS)
def test_no_plan_is_ruled_out(kind: str):
    """Tests that the best plan of all keeps to the statement, and that often nothing faster does."""
    tight = asked = 0
    for seed in range(1000, 1000 + shortened(10, whole=200)):
        problem = problem_of(kind, seed)
        best = brute_force(problem)
        if best is None:
            continue
        asked += 1
        assert has_solution(make_statement(problem, horizon=best)), f"seed {seed}"
        tight += not has_solution(make_statement(problem, horizon=best - 1))
    assert 4 * tight > asked


def stand_in(answer: Callable[[], str]) -> type:
    """A solver that is not Pumpkin, which need not be there."""

    class StandIn:
        def __init__(self, statement: Statement, *, path: Path) -> None:
            del statement, path

        def solve(self) -> str:
            """What was given."""
            return answer()

    return StandIn


def busy() -> str:
    """Takes processor time until it is ended."""
    while True:
        pass


def test_a_question_has_so_many_processor_seconds(monkeypatch, tmp_path):
    """Tests that an answer comes with its seconds, that too many of them give none, and that errors are told."""
    ask = partial(solve_apart, two_tasks(), path=tmp_path / "log", processor_s=1)
    monkeypatch.setattr(independent_proofs, "Refuter", stand_in(lambda: "satisfiable"))
    answer, took_s = ask()
    assert answer == "satisfiable"
    assert took_s < 1
    monkeypatch.setattr(independent_proofs, "Refuter", stand_in(busy))
    answer, took_s = ask()
    assert answer == "unknown"
    assert 0.5 < took_s < 3  # the kernel counts a limit by ticks
    monkeypatch.setattr(independent_proofs, "Refuter", stand_in(lambda: str(1 // 0)))
    with pytest.raises(RuntimeError, match="no answer"):
        ask()
