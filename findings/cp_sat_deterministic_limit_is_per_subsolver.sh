#!/usr/bin/env bash
# CP-SAT's limit of deterministic time is not one of the solve: each subsolver may use all of it.
#
# `max_deterministic_time` is documented as the time allowed to solve a problem, and `interleave_search` as what makes
# the search the same for any number of workers. One would expect both together to be the same work for any number. But
# each subsolver of the portfolio has the whole limit, and the workers' number says how many subsolvers there are: two
# interleaved workers use four times the limit, four workers eight times, and take as much longer. Without interleaving
# it is the number of workers times the limit. The answer's `deterministic_time` gives the sum. A budget that was tuned
# with one worker is several times as large with two, and another search.
#
# Guessed: the limit once, or once per worker. Versions: ortools 9.15.6755, numpy 2.4.6, Python 3.11. Seen as multiples
# of the limit: 1 worker 1.0, interleaved 1.0; 2 workers 2.0, interleaved 4.0; 4 workers 4.0, interleaved 8.0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'ortools==9.15.6755' 'numpy==2.4.6'
"$folder/venv/bin/python" - <<'PYTHON'
import random
import sys

from ortools.sat.python import cp_model

LIMIT = 0.1


def multiple_of_limit(workers, interleaved):
    """Deterministic time that a search uses, in those allowed, on a market split that it does not solve."""
    rng = random.Random(1)
    model = cp_model.CpModel()
    items = [model.new_bool_var("") for _ in range(40)]
    for _ in range(4):
        weights = [rng.randint(1, 99) for _ in items]
        model.add(sum(weight * item for weight, item in zip(weights, items)) == sum(weights) // 2)
    model.minimize(sum(items))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = workers
    solver.parameters.interleave_search = interleaved
    solver.parameters.max_deterministic_time = LIMIT
    assert solver.solve(model) == cp_model.UNKNOWN
    return solver.response_proto.deterministic_time / LIMIT


found = {}
for workers in (1, 2, 4):
    for interleaved in (False, True):
        found[workers, interleaved] = multiple_of_limit(workers, interleaved)
        kind = "interleaved" if interleaved else "beside each other"
        print(f"{workers} workers, {kind:18} {found[workers, interleaved]:.1f} times the limit")
is_once = all(0.9 < found[1, interleaved] < 1.1 for interleaved in (False, True))
sys.exit(not (is_once and found[2, False] > 1.5 and found[2, True] > 3 and found[4, True] > 6))
PYTHON
