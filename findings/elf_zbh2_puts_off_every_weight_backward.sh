#!/usr/bin/env bash
# ELF's ZB-H2 puts off nearly all backwards for weights to the end, so its memory grows with the microbatches.
#
# ZB-H2 is known as the schedule that pays for its empty bubble with about twice the activations of 1F1B: 2 p - 1 on
# the first of p ranks, however long the step is. ELF's generator of that name begins with these 2 p - 1 forwards. Then
# it takes one forward and one backward for inputs in turn until one forward is left, and only then the first backward
# for weights. What that needs is kept as long: every rank holds all microbatches but one, which is GPipe's memory.
# With operations of equal length the step is as long as under ELF's ZB-H1, which holds p. Up to 2 p microbatches, as
# in a small test, both look as the paper has them.
#
# Guessed: 7 of 4 ranks for any step. Versions: elf-pipeline 0.1.0, torch 2.13.0 (CPU), Python 3.11. Seen, as
# microbatches held at once by the first of 4 ranks, and time beyond its work:
#     8 microbatches: ZB-H1 4, ZB-H2 7; 16: 4 and 15; 32: 4 and 31; 64: 4 and 63; 3 units beyond the work in each
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'elf-pipeline==0.1.0' 'torch==2.13.0' \
    'numpy==2.4.6' 'dill==0.4.1' 'psutil==7.2.2' 'PyYAML==6.0.3'
cd "$folder"
OMP_NUM_THREADS=1 "$folder/venv/bin/python" - <<'PYTHON'
import sys

from elf.scheduling.scheduling import OperationType
from elf.scheduling.schedulers import generate_zbh1_schedule, generate_zbh2_schedule

RANKS = 4
KINDS = F, I, W = OperationType.FORWARD, OperationType.BACKWARD_INPUTS, OperationType.BACKWARD_PARAMS


def orders(generate, microbatches):
    """Of each rank the operations as (kind, microbatch)."""
    found = [[] for _ in range(RANKS)]
    for operation in generate(list(range(RANKS)), microbatches):
        if operation.op in KINDS:
            found[operation.rank].append((operation.op, operation.mb_id))
    return found


def most_held(order):
    """Microbatches after their forward and before their backward for weights, at most."""
    held = most = 0
    for kind, _ in order:
        held += (kind is F) - (kind is W)
        most = max(most, held)
    return most


def step_length(orders):
    """When the last operation ends if each takes one unit and transfers none."""
    ends, free, places = {}, [0] * RANKS, [0] * RANKS
    while any(place < len(order) for place, order in zip(places, orders)):
        for rank, order in enumerate(orders):
            if places[rank] < len(order):
                kind, number = order[places[rank]]
                needed = {F: [(rank - 1, F)], I: [(rank, F), (rank + 1, I)], W: [(rank, I)]}[kind]
                needed = [(where, what, number) for where, what in needed if 0 <= where < RANKS]
                if all(one in ends for one in needed):
                    free[rank] = 1 + max([free[rank], *(ends[one] for one in needed)])
                    ends[rank, kind, number] = free[rank]
                    places[rank] += 1
    return max(free)


grows = {}
for microbatches in (8, 16, 32, 64):
    told = []
    for name, generate in (("ZB-H1", generate_zbh1_schedule), ("ZB-H2", generate_zbh2_schedule)):
        found = orders(generate, microbatches)
        most, beyond = most_held(found[0]), step_length(found) - 3 * microbatches
        grows[name, microbatches] = most, beyond
        told.append(f"{name} holds {most} and takes {beyond} beyond its work")
    print(f"{microbatches} microbatches: {'; '.join(told)}")
expected = {("ZB-H1", count): (4, 3) for count in (8, 16, 32, 64)}
expected |= {("ZB-H2", count): (count - 1, 3) for count in (8, 16, 32, 64)}
sys.exit(grows != expected)
PYTHON
