"""Solvers' answers by style: those that name every variable are read, others are refused by their name."""

from pathlib import Path

import highspy
import pytest

from planner.planning.complete.answer_styles import parse_lines, require_readable

MODEL = """Minimize
 obj: x_0 + 2 end_of_a_long_name + 3 y
Subject To
 c1: x_0 + end_of_a_long_name >= 3
 c2: y - x_0 >= 1234566
Bounds
 0 <= x_0 <= 2
 0 <= end_of_a_long_name <= 5
 0 <= y <= 9999999
General
 x_0 end_of_a_long_name y
End
"""
VALUES = {"x_0": 0, "end_of_a_long_name": 3, "y": 1234566}

GLPK_RAW = "c Columns:    3\nc\ns mip 2 3 o 3703704\ni 1 3\ni 2 1234566\nj 1 0\nj 2 3\nj 3 1234566\ne o f\n"
GLPK_LINEAR = "c Status:     OPTIMAL\ns bas 2 3 f f 3703704\ni 1 l 3 2\nj 1 b 0 0\ne o f\n"
GLPK_PRINTABLE = """Problem:
Columns:    3 (3 integer, 0 binary)

   No. Column name       Activity     Lower bound   Upper bound
------ ------------    ------------- ------------- -------------
     1 x_0          *              0             0             2
     2 end_of_a_long_name
                    *              3             0             5
     3 y            *    1.23457e+06             0         1e+07
"""
GLPK_RELAXED = "   No. Column name  St   Activity     Lower bound\n     1 x_0  B  1.5  0  2\n"
CPLEX = '<?xml version = "1.0"?>\n<CPLEXSolution version="1.2">\n <variable name="x_0" index="0" value="0"/>\n'
MOSEK = "VARIABLES\nINDEX      NAME           AT ACTIVITY   LOWER LIMIT\n0          x_0   LL 0  0\n"


@pytest.fixture(scope="module")
def solved(tmp_path_factory: pytest.TempPathFactory) -> highspy.Highs:
    """HiGHS with the answer to `MODEL`."""
    path = tmp_path_factory.mktemp("model") / "model.lp"
    path.write_text(MODEL, encoding="utf-8")
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.readModel(str(path))
    solver.run()
    return solver


def written(solver: highspy.Highs, style: int, folder: Path) -> str:
    """The answer as HiGHS writes it in a style."""
    path = folder / "answer.sol"
    solver.writeSolution(str(path), style)
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize("style", [0, 4])
def test_styles_of_names_and_values_are_read(solved: highspy.Highs, tmp_path: Path, style: int):
    """Tests that HiGHS' default style, and its sparse one, give every value exactly."""
    text = written(solved, style, tmp_path)
    require_readable(text, source="answer.sol")
    found = {name: int(str(value)) for name, value in parse_lines(text, set(VALUES)).items()}
    assert {name: found.get(name, 0) for name in VALUES} == VALUES


@pytest.mark.parametrize(
    ("style", "message"),
    [
        (-1, r"HiGHS' oldest style .* names no variable"),
        (1, r"HiGHS' pretty style .* rounds every value"),
        (2, r"raw style .*= 2\), which numbers the columns"),
        (3, r"printable style .*= 3\), which rounds every value"),
    ],
)
def test_other_styles_of_highs_are_refused(solved: highspy.Highs, tmp_path: Path, style: int, message: str):
    """Tests that HiGHS' other styles are named, with the command that writes the style that is read."""
    with pytest.raises(ValueError, match=message) as refusal:
        require_readable(written(solved, style, tmp_path), source="answer.sol")
    assert "answer.sol: is in " in str(refusal.value)
    assert "highs model.mps --solution_file answer.sol" in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GLPK_RAW, "GLPK's raw style"),
        (GLPK_LINEAR, "GLPK's raw style"),
        (GLPK_PRINTABLE, "GLPK's printable style"),
        (GLPK_RELAXED, "GLPK's printable style"),
        (CPLEX, "CPLEX's XML"),
        (MOSEK, "MOSEK's style"),
    ],
)
def test_other_solvers_styles_are_refused(text: str, message: str):
    """Tests that what glpsol 5.0 wrote, and what others write, is refused by the style's name."""
    with pytest.raises(ValueError, match=message):
        require_readable(text, source="answer.sol")


def test_dual_values_do_not_overwrite():
    """Tests that a name that comes again, with its dual value, keeps its first one."""
    text = "# Primal solution values\n# Columns 1\nx 3\n# Dual solution values\n# Columns 1\nx -7\n"
    assert parse_lines(text, {"x"}) == {"x": "3"}


@pytest.mark.parametrize(
    "text",
    [
        "x_0 0\nend_of_a_long_name 3\ny 1234566\n",
        "Optimal - objective value 3703704.00\n 0 x_0 0 1\n 1 end_of_a_long_name 3 2\n 2 y 1234566 3\n",
        "solution status: optimal\nobjective value: 3703704\nend_of_a_long_name  3 \t(obj:2)\ny 1234566 \t(obj:3)\n",
        "# Objective value = 3703704\nx_0 0\nend_of_a_long_name 3\ny 1234566\n",
    ],
    ids=["plain", "CBC", "SCIP", "Gurobi"],
)
def test_every_wanted_style_is_read(text: str):
    """Tests that what CBC, SCIP and Gurobi write is read and not taken for another style."""
    require_readable(text, source="answer.sol")
    found = parse_lines(text, set(VALUES))
    assert {name: int(str(found.get(name, 0))) for name in VALUES} == VALUES
