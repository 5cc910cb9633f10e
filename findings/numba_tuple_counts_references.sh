#!/usr/bin/env bash
# numba counts the references of every array of a tuple at each call that is not inlined, read or not.
#
# A NamedTuple of arrays looks like a C struct that is passed by pointer: a callee that reads one of ten arrays should
# cost what it costs with that one array. As long as LLVM inlines the callee, that is so. A callee that is too large for
# that, or calls itself, has the references of all ten arrays counted up and down at each call, atomically. A line more
# in a small kernel can therefore make its callers several times as slow.
#
# Versions: numba 0.68.1, llvmlite 0.50.0, numpy 2.4.6, Python 3.11. Seen: 10 counted references in the loop against 2,
# and 3.5 times the processor time.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'numba==0.68.1' 'llvmlite==0.50.0' 'numpy==2.4.6'
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import sys
import time
from collections import namedtuple

import numpy as np
from numba import njit

Arrays = namedtuple("Arrays", [f"array{number}" for number in range(10)])


@njit
def read_of_tuple(arrays, place):
    if place < 0:  # never: it only keeps the compiler from inlining
        return read_of_tuple(arrays, place + 1) + arrays.array1[0]
    return arrays.array0[place & 7]


@njit
def read_of_two(first, second, place):
    if place < 0:
        return read_of_two(first, second, place + 1) + second[0]
    return first[place & 7]


@njit
def sum_of_tuple(arrays, count):
    total = 0
    for place in range(count):
        total += read_of_tuple(arrays, place)
    return total


@njit
def sum_of_two(arrays, count):
    first, second, total = arrays.array0, arrays.array1, 0
    for place in range(count):
        total += read_of_two(first, second, place)
    return total


def seconds(kernel):
    found = []
    for _ in range(5):
        begin = time.process_time()
        kernel(arrays, 5_000_000)
        found.append(time.process_time() - begin)
    return min(found)


arrays = Arrays(*(np.arange(8) for _ in range(10)))
assert sum_of_tuple(arrays, 1000) == sum_of_two(arrays, 1000)
counted = [
    kernel.inspect_llvm(kernel.signatures[0]).count("call void @NRT_incref") for kernel in (sum_of_tuple, sum_of_two)
]
ratio = seconds(sum_of_tuple) / seconds(sum_of_two)
print(f"references counted: {counted[0]} with the tuple, {counted[1]} with two arrays; {ratio:.1f} times the time")
sys.exit(not (counted[0] >= 10 > 2 >= counted[1] and ratio > 1.3))
PYTHON
