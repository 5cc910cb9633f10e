#!/usr/bin/env bash
# HiGHS drops a coefficient of 1e-9, so a memory limit in gigabytes over a number of bytes is no limit.
#
# Bytes are turned into gigabytes by 1e-9, and models are scaled like this to please solvers. HiGHS takes matrix values
# up to 1e-9 (its option `small_matrix_value`) for zero when it reads a model, however large the variable may be. The
# bound of the variable knows better, but is not asked. The answer is "optimal" and breaks the row by any factor; PuLP's
# own check says so, if it is asked. SciPy's `milp` is HiGHS as well, and calls the same point a success. CBC, with the
# same PuLP model, keeps the limit, and HiGHS does with 1.0001e-9.
#
# Guessed: 80e9 bytes from all. Versions: pulp 3.3.2, highspy 1.14.0, scipy 1.17.1, numpy 2.4.6, Python 3.11. Seen for
# as many bytes as possible of at most 1e12, in at most 80 GB:
#     CBC 80 GB; HiGHS 1000 GB; SciPy 1000 GB; HiGHS with 1.0001e-9 80 GB
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'pulp==3.3.2' 'highspy==1.14.0' 'scipy==1.17.1' \
    'numpy==2.4.6'
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import sys

import pulp
from scipy.optimize import Bounds, LinearConstraint, milp

LIMIT_GB, MOST = 80, 10**12


def with_pulp(solver, gigabyte):
    """The answer in gigabytes, the solver's claim, and whether PuLP finds all rows satisfied."""
    problem = pulp.LpProblem("memory", pulp.LpMaximize)
    size = pulp.LpVariable("size", 0, MOST, cat=pulp.LpInteger)
    problem += size
    problem += gigabyte * size <= LIMIT_GB
    problem.solve(solver)
    return round(size.value() / 1e9), pulp.LpStatus[problem.status], problem.valid(1e-3)


def with_scipy():
    answer = milp([-1], integrality=[1], bounds=Bounds(0, MOST), constraints=LinearConstraint([[1e-9]], ub=[LIMIT_GB]))
    return round(answer.x[0] / 1e9), "Optimal" if answer.success else answer.message, 1e-9 * answer.x[0] < LIMIT_GB + 1


found = {
    "CBC": with_pulp(pulp.PULP_CBC_CMD(msg=False), 1e-9),
    "HiGHS": with_pulp(pulp.HiGHS(msg=False), 1e-9),
    "SciPy": with_scipy(),
    "HiGHS, 1.0001e-9": with_pulp(pulp.HiGHS(msg=False), 1.0001e-9),
}
for name, (size, claim, is_valid) in found.items():
    print(f"{name:17} {size} GB, {claim}; satisfies the limit: {is_valid}")
kept, broken = (80, "Optimal", True), (1000, "Optimal", False)
sys.exit(list(found.values()) != [kept, broken, broken, kept])
PYTHON
