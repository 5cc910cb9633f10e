#!/bin/sh
# PuLP says of a solver that stopped at a limit, without a claim, that no solution exists.
#
# What surprises: `LpProblem.sol_status` is there to tell an optimum from a point at a limit. For a solver that PuLP
# calls `Not Solved` (Gurobi at its node or time limit; GLPK's `Undefined` likewise) it is LpSolutionInfeasible, which
# PuLP prints as "No Solution Exists", although the problem has a solution and the solver said nothing else. Who reads
# only `sol_status` believes in an infeasible problem; `status` has to be read beside it.
#
# Seen with pulp 3.3.2 and gurobipy 13.0.3 (its size-limited licence ends in November 2027):
#     status: Not Solved; sol_status: No Solution Exists; a known solution satisfies all rows: True
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pulp==3.3.2 gurobipy==13.0.3
"$folder/venv/bin/python" - <<'PYTHON'
import random
import sys

import pulp

rng = random.Random(1)
problem = pulp.LpProblem("market_split", pulp.LpMinimize)
items = [pulp.LpVariable(f"x{number}", cat="Binary") for number in range(40)]
known = [rng.randint(0, 1) for _ in items]
problem += items[0]
for _ in range(4):
    weights = [rng.randint(1, 99) for _ in items]
    total = sum(weight * value for weight, value in zip(weights, known))
    problem += pulp.lpSum(weight * item for weight, item in zip(weights, items)) == total
problem.solve(pulp.GUROBI(msg=False, NodeLimit=0, Heuristics=0))
status, claim = pulp.LpStatus[problem.status], pulp.LpSolution[problem.sol_status]
for item, value in zip(items, known):
    item.varValue = value
is_solution = problem.valid()
print(f"status: {status}; sol_status: {claim}; a known solution satisfies all rows: {is_solution}")
sys.exit((status, claim, is_solution) != ("Not Solved", "No Solution Exists", True))
PYTHON
