#!/usr/bin/env bash
# The order that torch's 1F1B states for its last stage is one microbatch ahead, and cannot run.
#
# Every schedule of torch's pipelines has its order in `pipeline_order`: for each rank the actions, which a planner, a
# simulator or the visualizer beside it reads. `step` of 1F1B is written by hand and does not read it. In the order, the
# last stage's first forward is of microbatch 1. Its first backward is of microbatch 0, which has had no forward, and
# its last forward is of one microbatch more than there are. The reason is a counter that begins at 0 on a stage with
# no forward before its first backward, as on the others after their first. GPipe's order and the interleaved ones are
# right, for any number of ranks.
#
# Guessed: any order that is stated can run. Versions: torch 2.13.0 (CPU), Python 3.11. Seen for 4 ranks and 4
# microbatches:
#     GPipe and Interleaved1F1B: can run; 1F1B: last stage 3F1 3B0 3F2 3B1 3F3 3B2 3F4 3B3
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'torch==2.13.0' 'numpy==2.4.6'
cd "$folder"
OMP_NUM_THREADS=1 "$folder/venv/bin/python" -W ignore - <<'PYTHON'
import sys

import torch
from torch import distributed, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.testing._internal.distributed.fake_pg import FakeStore

RANKS = MICROBATCHES = 4
KINDS = {"FORWARD": "F", "FULL_BACKWARD": "B"}


def stated_order(schedule_class, numbers, count):
    """Of each rank the actions as (stage, kind, microbatch)."""
    stages = [PipelineStage(nn.Linear(1, 1), number, count, torch.device("cpu")) for number in numbers]
    given = stages if len(stages) > 1 else stages[0]
    order = schedule_class(given, MICROBATCHES, loss_fn=nn.functional.mse_loss).pipeline_order
    return [
        [
            (action.stage_index, KINDS[action.computation_type.name], action.microbatch_index)
            for action in order[rank]
            if action is not None and action.computation_type.name in KINDS
        ]
        for rank in range(RANKS)
    ]


def can_run(order, count):
    """Whether every action comes up once everything that it needs is done."""
    done, places, is_moving = set(), [0] * RANKS, True
    while is_moving:
        is_moving = False
        for rank, actions in enumerate(order):
            while places[rank] < len(actions):
                stage, kind, number = actions[places[rank]]
                needed = {(stage - 1, "F", number)} if kind == "F" else {(stage, "F", number), (stage + 1, "B", number)}
                if not {one for one in needed if 0 <= one[0] < count} <= done:
                    break
                done.add(actions[places[rank]])
                places[rank] += 1
                is_moving = True
    return all(place == len(actions) for place, actions in zip(places, order))


distributed.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
orders = {
    "GPipe": (stated_order(ScheduleGPipe, [0], RANKS), RANKS),
    "Interleaved1F1B": (stated_order(ScheduleInterleaved1F1B, [0, RANKS], 2 * RANKS), 2 * RANKS),
    "1F1B": (stated_order(Schedule1F1B, [0], RANKS), RANKS),
}
distributed.destroy_process_group()
found = {name: can_run(order, count) for name, (order, count) in orders.items()}
for name, (order, _) in orders.items():
    told = " ".join(f"{stage}{kind}{number}" for stage, kind, number in order[-1])
    print(f"{name:16} {'can run' if found[name] else 'cannot run'}; last rank: {told}")
last = orders["1F1B"][0][-1]
numbers = {kind: [number for _, each, number in last if each == kind] for kind in "FB"}
sys.exit(list(found.values()) != [True, True, False] or numbers != {"F": [1, 2, 3, 4], "B": [0, 1, 2, 3]})
PYTHON
