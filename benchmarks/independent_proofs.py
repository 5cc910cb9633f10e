"""Small plans proved optimal once more: `python -m benchmarks.independent_proofs [--quick] [-o TABLE.md]`.

Those of the 64 problems of `benchmarks.joint_small` with one stage per device. Pumpkin, a constraint solver that logs
why, is asked for a plan that is one nanosecond faster than ours (`benchmarks.stage_rules`). Where it finds that there
is none, every step of its log is checked without it (`benchmarks.proof_log`). `rules left out`: something that keeps to
the statement, which leaves out rules, is faster; `at the makespan`: whether a refuted statement has a solution there.

Not independent: costs are those of the planner's cost model, memory is counted in millionths of the largest device, and
sums that follow from the order and from the partition are taken as they are stated.
"""

import os
import resource
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from benchmarks.joint_small import problems
from benchmarks.proof_log import CheckedLog, ProofError, check_log
from benchmarks.proof_statement import Clause, Constraint, Statement, SwitchLiteral
from benchmarks.report import Planned, Table, make_parser, ms, plan_and_check
from benchmarks.stage_rules import StageRules
from planner.layout.costs import CostModel
from planner.planning import Limits
from planner.planning.complete.complete_question import make_complete_instance
from planner.problem import Problem
from solver_models.complete.coarse import coarsened

PACKAGE, VERSION = "pumpkin-solver", "0.5.0"
"""The version that the table was made with."""

HEADER = (
    "problem", "layers", "micro-batches", "options", "makespan ms", "certified bound ms", "one ns less", "processor s",
    "log MB", "steps", "nogoods", "log checked", "check, processor s", "at the makespan",
)  # fmt: skip

PLAN_S, SECONDS, SEED, TARGET = 40.0, 60, 1, 20
"""Seconds of a plan; processor seconds of a question; the seed of Pumpkin; refutations that are asked for."""

UNITS = 10**6
"""Memory is counted in units, so many on the largest device, what is held rounded down: Pumpkin has 32 bits."""

QUICK = ("chain-6x4-m6-loose-two-level-equal", "chain-6x4-m8-mid-homogeneous-equal")
"""Small ones, of which the second has replicas."""

WORDS = {"unsatisfiable": "no plan", "satisfiable": "rules left out", "unknown": "open"}


def import_pumpkin() -> tuple[ModuleType, ModuleType]:
    """The solver and its constraints; ends with what to install where it is not there."""
    try:
        import pumpkin_solver
        from pumpkin_solver import constraints
    except ImportError:
        raise SystemExit(
            f"{PACKAGE} is not installed; run `pip install {PACKAGE}=={VERSION}` in this environment, and start again"
        ) from None
    return pumpkin_solver, constraints


class Refuter:
    """A statement as Pumpkin's model, which writes its log to `path`."""

    def __init__(self, statement: Statement, *, path: Path, seed: int = SEED) -> None:
        self.statement = statement
        self.solver, self.constraints = import_pumpkin()
        self.model: Any = self.solver.Model(proof=path, seed=seed)
        self.variables: dict[str, Any] = {}
        for name, (low, high) in statement.domains.items():
            if (low, high) == (0, 1):
                self.variables[name] = self.model.new_boolean_variable(name=name)
            else:
                self.variables[name] = self.model.new_integer_variable(low, high, name=name)
        self.tags = [self.model.new_constraint_tag() for _ in statement.constraints]

    def solve(self) -> str:
        """`unsatisfiable`, `satisfiable` or `unknown`."""
        for constraint, tag in zip(self.statement.constraints, self.tags, strict=True):
            if self.model.is_inconsistent():
                break
            self._post(constraint, tag)
        return type(self.model.satisfy()).__name__.lower()

    def _post(self, constraint: Constraint, tag: object) -> None:
        if isinstance(constraint, Clause):
            literals = [self._literal(each) for each in constraint.literals]
            self.model.add_constraint(self.constraints.Clause(literals, tag))
            return
        terms = [self._integer(name).scaled(c) for name, c in constraint.terms]
        row = self.constraints.LessThanOrEquals(terms, constraint.most, tag)
        if constraint.given is None:
            self.model.add_constraint(row)
        else:
            self.model.add_implication(row, self._literal(constraint.given))

    def _literal(self, literal: SwitchLiteral) -> Any:
        name, value = literal
        return self.variables[name] if value else self.variables[name].negate()

    def _integer(self, name: str) -> Any:
        found = self.variables[name]
        return found.as_integer() if isinstance(found, self.solver.BoolExpression) else found


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What Pumpkin says of a statement."""

    answer: str
    """`unsatisfiable`, `satisfiable` or `unknown`."""
    took_s: float
    """Processor seconds."""
    log_bytes: int
    """Of its log."""
    checked: CheckedLog | None
    """What the log holds; None if it was not checked, or refused."""
    check_s: float
    """Processor seconds of the check."""


def make_statement(problem: Problem, *, horizon: int) -> Statement:
    """What every plan of a problem keeps to that takes at most so many nanoseconds."""
    instance = make_complete_instance(problem, CostModel(problem), horizon=horizon)
    units = max(1, -(-max(device.memory for device in instance.devices) // UNITS))
    return StageRules(coarsened(instance, ticks=1, units=units)).statement


def solve_apart(statement: Statement, *, path: Path, processor_s: int = SECONDS) -> tuple[str, float]:
    """Pumpkin's answer from a process that may have so many processor seconds, and how many it took."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (processor_s, processor_s + 5))
            os.write(writer, Refuter(statement, path=path).solve().encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, encoding="ascii") as answers:
        answer = answers.read()
    _, status, usage = os.wait4(child, 0)
    if not answer and not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU):
        raise RuntimeError(f"{path.name}: Pumpkin ended with status {status} and no answer")
    return answer or "unknown", usage.ru_utime + usage.ru_stime


def ask(statement: Statement, *, path: Path) -> Asked:
    """Pumpkin's answer, its log checked if it refutes the statement."""
    answer, took_s = solve_apart(statement, path=path)
    begin, checked = time.process_time(), None
    if answer == "unsatisfiable":
        try:
            checked = check_log(statement, path)
        except ProofError as error:
            print(f"{path.name}: {error}", flush=True)
    check_s = time.process_time() - begin
    return Asked(
        answer=answer, took_s=took_s, log_bytes=path.stat().st_size, checked=checked, check_s=check_s
    )  # fmt: skip


def fits(problem: Problem, *, makespan: int, path: Path) -> str:
    """Whether the statement lets a plan through that takes as long as ours; a proof that it does not is an error."""
    answer, _ = solve_apart(make_statement(problem, horizon=makespan), path=path)
    path.unlink()
    if answer == "unsatisfiable":
        raise AssertionError(f"{path.name}: the statement forbids a plan that passes every rule")
    return "a plan" if answer == "satisfiable" else "open"


def cells(name: str, options: str, problem: Problem, planned: Planned, *, asked: Asked, fitting: str) -> list[str]:
    """A row of the table."""
    checked = asked.checked
    is_refuted = asked.answer == "unsatisfiable"
    return [
        name,
        str(len(problem.profile.layers)),
        str(problem.num_microbatches),
        options,
        ms(planned.evidence.makespan_ns),
        ms(planned.evidence.lower_bound_ns),
        WORDS[asked.answer],
        f"{asked.took_s:.1f}",
        f"{asked.log_bytes / 1e6:.1f}",
        f"{checked.inferences:,}" if checked else "–",
        f"{checked.nogoods:,}" if checked else "–",
        ("every step" if checked else "REFUSED") if is_refuted else "–",
        f"{asked.check_s:.1f}" if is_refuted else "–",
        fitting,
    ]


def chosen(*, is_quick: bool) -> Iterator[tuple[str, str, Problem]]:
    """The problems with one stage per device; two small ones if quick."""
    found = (row for row in problems() if row[2].options.max_stages_per_device == 1)
    if is_quick:
        found = (row for row in found if row[0] in QUICK)
    return found


def main() -> None:
    """Plan, ask and check, a row each; say how many are proved once more."""
    given = make_parser(__doc__).parse_args()
    import_pumpkin()
    table = Table.about("# Independent proofs", __doc__, header=HEADER, output=given.output)
    num_proved = num_asked = 0
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, options, problem in chosen(is_quick=given.quick):
            planned = plan_and_check(problem, Limits(time_limit_s=PLAN_S, patience_s=PLAN_S))
            makespan, path = planned.evidence.makespan_ns, folder / f"{name}.drcp"
            statement = make_statement(problem, horizon=makespan - 1)
            asked = ask(statement, path=path)
            is_refuted = asked.answer == "unsatisfiable"
            fitting = fits(problem, makespan=makespan, path=folder / f"{name}.fits.drcp") if is_refuted else "–"
            table.add(cells(name, options, problem, planned, asked=asked, fitting=fitting))
            num_asked, num_proved = num_asked + 1, num_proved + (asked.checked is not None)
            path.unlink()
    verdict = "not judged by a few rows" if given.quick else "met" if num_proved >= TARGET else "missed"
    table.close(
        f"Proved once more, every step checked: {num_proved} of {num_asked}. Target: {TARGET} of 64: {verdict}."
    )


if __name__ == "__main__":
    main()
