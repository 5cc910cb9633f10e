"""Which styles of solvers' answers state the value of every variable by its name, and what to ask the others for."""

import re
from dataclasses import dataclass
from itertools import pairwise

WANTED = (
    "give lines NAME VALUE (`highs model.mps --solution_file answer.sol`, "
    "`cbc model.mps solve solution answer.sol`, SCIP's `write solution`, a .sol file of Gurobi's), or a JSON object"
)
"""What is read, and the commands that write it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _AnswerStyle:
    """A style that is told and not read."""

    name: str
    sign: str
    """Pattern of a line that only it has."""
    lacks: str
    """Why no answer is read from it."""


_STYLES = (
    _AnswerStyle(
        name="GLPK's raw style (glpsol --write; HiGHS' write_solution_style = 2)",
        sign=r"^s (mip|bas|ipt) \d+ \d+ ",
        lacks="numbers the columns and names none",
    ),
    _AnswerStyle(
        name="GLPK's printable style (glpsol --output; HiGHS' write_solution_style = 3)",
        sign=r"^\s*No\.\s+Column name\s+(St\s+)?Activity",
        lacks="rounds every value to six digits",
    ),
    _AnswerStyle(
        name="HiGHS' pretty style (write_solution_style = 1)",
        sign=r"^\s*Index\s+Status\s+Lower\s+Upper\s+Primal",
        lacks="rounds every value to six digits",
    ),
    _AnswerStyle(
        name="HiGHS' oldest style (write_solution_style = -1)",
        sign=r"^\d+ \d+ : Number of columns and rows",
        lacks="lists values and names no variable",
    ),
    _AnswerStyle(name="CPLEX's XML", sign=r"^\s*<(\?xml|CPLEXSolution)", lacks="is not read here"),
    _AnswerStyle(name="MOSEK's style", sign=r"^INDEX\s+NAME\s+AT\s+ACTIVITY", lacks="is not read here"),
)
"""Such as people have brought, or can ask their solvers for."""


def require_readable(text: str, *, source: str) -> None:
    """Raise ValueError for an answer in a style that is known and not read."""
    for style in _STYLES:
        if re.search(style.sign, text, re.MULTILINE):
            raise ValueError(f"{source}: is in {style.name}, which {style.lacks}; {WANTED}")


def parse_lines(text: str, names: set[str]) -> dict[str, object]:
    """Values by name, as they stand first: what follows may be dual values. CBC puts a number before the name."""
    found: dict[str, object] = {}
    for line in text.splitlines():
        for name, value in pairwise(line.split()[:3]):
            if name in names:
                found.setdefault(name, value)
    return found
