#!/usr/bin/env bash
# numba's mean of a float32 array of ones is 0.5 once the array is long enough.
#
# Compiled code is expected to give what NumPy gives, up to the last digits; numba's page on floating point says that
# differences should generally be small. NumPy adds float32 in pairs of halves, so its error hardly grows with the
# length. numba compiles `np.sum`, `np.mean` and `np.var` of float32 into a plain running total of the same type. A
# million equal numbers already have a mean that is 1 % off, and a variance. Beyond 2^24 ones nothing is added any more.
# Mean times, loads and their spread are what a planner takes from a compiled simulation. float64 hides it.
#
# Guessed: equal to six digits. Versions: numba 0.68.1, llvmlite 0.50.0, numpy 2.4.6, Python 3.11. Seen as NumPy's and
# numba's:
#     mean of 2^25 ones: 1 and 0.5; of 10^6 times 0.1: 0.1 and 0.10096; variance of these 5.6e-17 and 9.2e-07
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'numba==0.68.1' 'llvmlite==0.50.0' 'numpy==2.4.6'
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import sys

import numpy as np
from numba import njit


@njit
def mean(values):
    return np.mean(values)


@njit
def variance(values):
    return np.var(values)


ones, tenths = np.ones(2**25, np.float32), np.full(10**6, 0.1, np.float32)
found = {
    "mean of 2^25 ones": (np.mean(ones), mean(ones)),
    "mean of 10^6 times 0.1": (np.mean(tenths), mean(tenths)),
    "variance of 10^6 times 0.1": (np.var(tenths), variance(tenths)),
    "the same in float64": (np.mean(tenths, dtype=np.float64), mean(tenths.astype(np.float64))),
}
for name, (by_numpy, by_numba) in found.items():
    print(f"{name:27} {by_numpy:.6g} by NumPy, {by_numba:.6g} by numba")
errors = [abs(by_numba - by_numpy) for by_numpy, by_numba in found.values()]
sys.exit(not (errors[0] == 0.5 and 5e-4 < errors[1] < 2e-3 and 1e-7 < errors[2] < 1e-5 and errors[3] < 1e-9))
PYTHON
