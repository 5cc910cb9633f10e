#!/usr/bin/env bash
# A compiled `list.sort(key=...)` is stable up to 15 elements, and not beyond.
#
# Python guarantees that equal elements keep their order, and schedulers build on it: sort by time, then by priority.
# In numba the same line compiles and gives what Python gives in every small test, for up to 15 elements are sorted by
# insertion. From 16 on it is a quicksort, which swaps equal elements; `sorted` and `reverse=True` likewise. So ties of
# a list schedule fall one way in a test with four devices and another way with sixteen, and a kernel and its Python
# twin (NUMBA_DISABLE_JIT) make different plans. With the index as a last part of the key they agree.
#
# Guessed: stable, as Python's. Versions: numba 0.68.1, llvmlite 0.50.0, numpy 2.4.6, Python 3.11. Seen: the same order
# for 1 to 15 elements, another for 16 to 64; with the index in the key the same for all.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'numba==0.68.1' 'llvmlite==0.50.0' 'numpy==2.4.6'
cat >"$folder/order.py" <<'PYTHON'
import sys

from numba import njit

MOST = 64


@njit
def priority(action):
    return action[0]


@njit
def priority_and_index(action):
    return action[0] * 1000 + action[1]


@njit
def in_order(count):
    """Actions as (priority, index), sorted by priority; in place, as a new list, and with the index in the key."""
    actions = [(index % 3, index) for index in range(count)]
    as_new_list = sorted(actions, key=priority)
    with_index = sorted(actions, key=priority_and_index)
    actions.sort(key=priority)
    return actions, as_new_list, with_index


differ = [[], [], []]
for count in range(1, MOST + 1):
    compiled, python = in_order(count), in_order.py_func(count)
    for way in range(3):
        if compiled[way] != python[way]:
            differ[way].append(count)
for name, counts in zip(("sort(key)", "sorted(key)", "sorted(key with index)"), differ):
    told = f"for {counts[0]} to {counts[-1]} elements ({len(counts)} of {MOST} lengths)" if counts else "for no length"
    print(f"{name:23} another order than Python's {told}")
beyond = list(range(16, MOST + 1))
sys.exit(differ != [beyond, beyond, []])
PYTHON
"$folder/venv/bin/python" "$folder/order.py"
