#!/usr/bin/env bash
# In CP-SAT an interval of length 0 may not lie within another one for no_overlap, and may for cumulative.
#
# "No overlap" on one machine and "cumulative" of capacity 1 are taught as the same constraint, and models are moved
# from one to the other. The documentation says that no_overlap keeps intervals from overlapping in time, and an empty
# interval covers no time. But no_overlap asks of each pair that one ends before the other starts, empty or not: a
# transfer that takes no time (same device, zero bytes) cannot happen while the machine computes. Cumulative counts who
# is there at each moment, and an empty interval is never there. Durations that are rounded to 0, or variable ones that
# may be 0, thus change the optimum with the choice of the constraint, and no_overlap_2d is as strict as no_overlap.
#
# Guessed: both allow it. Versions: ortools 9.15.6755, numpy 2.4.6, Python 3.11. Seen for a machine busy from 0 to 10
# and an interval that starts at 5 at the earliest: empty: no_overlap ends at 10, cumulative at 5; of length 1: both at
# 11.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'ortools==9.15.6755' 'numpy==2.4.6'
"$folder/venv/bin/python" - <<'PYTHON'
import sys

from ortools.sat.python import cp_model


def earliest_end(kind, length, presolve):
    """Of an interval that may start from 5 on, beside a fixed one from 0 to 10."""
    model = cp_model.CpModel()
    start = model.new_int_var(5, 30, "start")
    intervals = [
        model.new_fixed_size_interval_var(0, 10, "busy"),
        model.new_fixed_size_interval_var(start, length, "second"),
    ]
    if kind == "no_overlap":
        model.add_no_overlap(intervals)
    elif kind == "no_overlap_2d":
        row = model.new_fixed_size_interval_var(0, 1, "row")
        model.add_no_overlap_2d(intervals, [row, row])
    else:
        model.add_cumulative(intervals, [1, 1], 1)
    model.minimize(start + length)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.cp_model_presolve = presolve
    assert solver.solve(model) == cp_model.OPTIMAL
    return round(solver.objective_value)


found = {
    (kind, length): [earliest_end(kind, length, presolve) for presolve in (True, False)]
    for length in (0, 1)
    for kind in ("no_overlap", "no_overlap_2d", "cumulative")
}
for (kind, length), ends in found.items():
    print(f"length {length}, {kind:13} ends at {ends[0]} with presolve, {ends[1]} without")
sys.exit(list(found.values()) != [[10, 10], [10, 10], [5, 5], [11, 11], [11, 11], [11, 11]])
PYTHON
