"""The complete model as a file for other solvers, and their answers as plans.

The model is that of a plan's problem, without plans that take longer than it: who has the plan has all it takes to
write the model, and to read an answer to it.
"""

import json
from pathlib import Path
from typing import Literal, get_args

from planner.layout.costs import CostModel
from planner.plan import Plan
from planner.planning.complete.answer_styles import WANTED, parse_lines, require_readable
from planner.planning.complete.complete_search import CompleteQuestion, ask
from planner.problem import Problem
from planner.simulation.timeline import Timeline
from solver_models.complete.with_cp_sat import write_cp_model
from solver_models.complete.with_pulp import linear, write_linear

_ModelForm = Literal["mps", "lp", "cp-sat"]
"""An integer linear programme as MPS or LP file; CP-SAT's own text form."""


def _ask(problem: Problem, timeline: Timeline, *, form: _ModelForm) -> CompleteQuestion:
    if form not in get_args(_ModelForm):
        raise ValueError(f"model form {form!r} is unknown; give one of {', '.join(get_args(_ModelForm))}")
    return ask(problem, CostModel(problem), horizon=timeline.makespan_ns, is_coarse=form != "cp-sat")


def write_model(problem: Problem, timeline: Timeline, *, path: Path, form: _ModelForm) -> int:
    """Write the complete model of a problem, without plans longer than `timeline`; returns its nanoseconds per tick.

    Raises ValueError, with what to change, where the model does not cover the problem or would be too large.
    """
    question = _ask(problem, timeline, form=form)
    if form == "cp-sat":
        write_cp_model(question.model.programme, path)
    else:
        rows = linear(question.model.programme)
        assert rows is not None
        write_linear(rows, path, as_mps=form == "mps")
    return question.ticks


def read_solution(problem: Problem, timeline: Timeline, *, text: str, source: str) -> Plan:
    """The plan that a solver's answer to the model of `timeline` stands for; nothing has checked it.

    `text`: lines with a variable's name and its value, as HiGHS, CBC, SCIP and Gurobi write them, or JSON: an object of
    names and values, or for CP-SAT's form a list of values. Variables that are not named are 0.
    Raises ValueError if it is no answer to that model, or in a style that is not read.
    """
    require_readable(text, source=source)
    plain = _parse_json(text)
    question = _ask(problem, timeline, form="cp-sat" if isinstance(plain, list) else "mps")
    names = [variable.name for variable in question.model.programme.variables]
    if isinstance(plain, list):
        values = list(map(_whole, plain[: len(names)]))
    else:
        named = plain if isinstance(plain, dict) else parse_lines(text, set(names))
        if not named.keys() & set(names):
            raise ValueError(
                f"{source}: names no variable of the model; give the answer to the model of this plan, and {WANTED}"
            )
        values = [_whole(named.get(name, 0)) for name in names]
    if len(values) < len(names):
        raise ValueError(f"{source}: has {len(values)} values for {len(names)} variables; give them all")
    try:
        return question.plan(values)
    except ValueError as error:
        raise ValueError(f"{source}: is not a solution of the model of this plan: {error}") from None


def _parse_json(text: str) -> object:
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"the answer is not JSON: {error}") from None


def _whole(value: object) -> int:
    try:
        return round(float(str(value)))
    except (ValueError, OverflowError):
        raise ValueError(f"the answer has {value!r} in place of a number; give numbers") from None
