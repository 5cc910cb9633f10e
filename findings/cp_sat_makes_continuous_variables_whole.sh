#!/usr/bin/env bash
# CP-SAT as a solver for mixed-integer models makes continuous variables whole, and calls the result optimal.
#
# OR-Tools offers CP-SAT behind `pywraplp` ("SAT") beside SCIP and CBC, and MathOpt offers it beside HiGHS; MathOpt's
# page speaks of experimental support to rescale and discretise continuous variables. One expects a refusal, or a fine
# grid with a small error. But the grid is 1. Only where a row with a single continuous variable shows an exact scale is
# that taken instead, so that a first small test (3 x >= 1) is right. With two in a row the optimum is that of the
# rounded model, and `BestBound` states it as the bound of the real one. Shares of work, of bandwidth or of a batch,
# which lie between 0 and 1, become all or nothing, and a batch cannot be halved: the model is called infeasible.
#
# Guessed: equal to six digits. Versions: ortools 9.15.6755, numpy 2.4.6, Python 3.11. Seen with SCIP and with SAT:
#     one in a row: 0.333 and 0.333; two in a row: 3.228 and 2.1 (bound 2.1); time of a batch divided between two
#     devices: 0.714 and 1 (bound 1); two equal shares: 0.5 and infeasible
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'ortools==9.15.6755' 'numpy==2.4.6'
"$folder/venv/bin/python" - <<'PYTHON'
import sys

from ortools.linear_solver import pywraplp


def solve(solver_name, build):
    """Objective and bound, rounded, or the status if there is no optimum."""
    solver = pywraplp.Solver.CreateSolver(solver_name)
    build(solver)
    status = solver.Solve()
    if status != pywraplp.Solver.OPTIMAL:
        return {pywraplp.Solver.INFEASIBLE: "infeasible"}.get(status, status), None
    return round(solver.Objective().Value(), 3), round(solver.Objective().BestBound(), 3)


def build_one(solver):
    x = solver.NumVar(0, 10, "x")
    solver.Add(3 * x >= 1)
    solver.Minimize(x)


def build_two(solver):
    x, y = solver.NumVar(0, 10, "x"), solver.NumVar(0, 10, "y")
    solver.Add(3.7 * x + 1.3 * y <= 10)
    solver.Add(x + 2.2 * y <= 4)
    solver.Maximize(x + 1.1 * y)


def build_shares(solver):
    """A batch divided between two devices, one 2.5 times as fast, so that the step is shortest."""
    slow, fast, time = solver.NumVar(0, 1, "slow"), solver.NumVar(0, 1, "fast"), solver.NumVar(0, 9, "time")
    solver.Add(slow + fast == 1)
    solver.Add(2.5 * slow <= time)
    solver.Add(fast <= time)
    solver.Minimize(time)


def build_halves(solver):
    """A batch divided equally."""
    first, second = solver.NumVar(0, 1, "first"), solver.NumVar(0, 1, "second")
    solver.Add(first + second == 1)
    solver.Add(first - second == 0)
    solver.Minimize(first)


builds = {"one in a row": build_one, "two in a row": build_two, "shares": build_shares, "halves": build_halves}
found = {name: (solve("SCIP", build), solve("SAT", build)) for name, build in builds.items()}
for name, (scip, sat) in found.items():
    print(f"{name:13} SCIP {scip[0]} (bound {scip[1]}), SAT {sat[0]} (bound {sat[1]})")
sys.exit([sat for _, sat in found.values()] != [(0.333, 0.333), (2.1, 2.1), (1, 1), ("infeasible", None)])
PYTHON
