"""Steps that leave a stage with a number of replicas that no stage may have, and how they continue to one it may have.

Replicas take whole samples, so that a microbatch of 3 allows 1 and 3 replicas, one of 8 allows 1, 2, 4 and 8. A step
that adds or takes away one device would never lead from 1 to 3, nor from 4 to 8:

    [a b] [c d] [e f]     one stage of the first two      [a b c d] [e f]      2 replicas: not allowed
     0     1     2                                         0 1       2
                          continues with their neighbour    [a b c d e f]
                                                           0 1 2
                          or takes a device, or drops one [a b c d] [e f]
                                                           0 1 3     2
"""

import numpy as np

from solver_models.compiled import kernel
from solver_models.instance import NO_TABLE, Integers, Layers
from solver_models.moves.stage_steps import Stages, cut_layers, merge_two


@kernel
def may_have(layers: Layers, count: int) -> bool:
    """Whether a stage may have so many replicas."""
    return bool(0 < count < layers.table_of_replicas.shape[0] and layers.table_of_replicas[count] != NO_TABLE)


@kernel
def _find_odd(layers: Layers, start: Integers) -> int:
    """The first stage with replicas, but with a number of them that it may not have; -1 if there is none."""
    for s in range(start.shape[0] - 1):
        count = start[s + 1] - start[s]
        if count > 0 and not may_have(layers, count):
            return s
    return -1


@kernel
def _nearest_count(layers: Layers, count: int, step: int) -> int:
    """The next larger (`step` 1) or smaller (-1) number of replicas that a stage may have; 0 if there is none."""
    found = count + step
    while 0 < found < layers.table_of_replicas.shape[0]:
        if may_have(layers, found):
            return found
        found += step
    return 0


@kernel
def _replicas_held(devices: Integers, num_devices: int) -> Integers:
    """How many stages each device runs."""
    held = np.zeros(num_devices, np.int64)
    for n in range(devices.shape[0]):
        held[devices[n]] += 1
    return held


@kernel
def _drop_some(start: Integers, devices: Integers, s: int, count: int) -> tuple[Integers, Integers]:
    """Leave a stage so many of its replicas, whichever."""
    surplus = start[s + 1] - start[s] - count
    keep = np.ones(devices.shape[0], np.bool_)
    keep[start[s] + np.random.permutation(start[s + 1] - start[s])[:surplus]] = False
    starts = start.copy()
    starts[s + 1 :] -= surplus
    return starts, devices[keep]


@kernel
def _add_some(
    layers: Layers, start: Integers, devices: Integers, s: int, count: int, most_stages: int
) -> tuple[Integers, Integers]:
    """Give a stage so many replicas in all: on any devices (or groups as wide) with room for one more stage.

    Unchanged where there are too few of them.
    """
    own = devices[start[s] : start[s + 1]]
    held = _replicas_held(devices, layers.devices.shape[0])
    new, found = np.empty(count - own.shape[0], np.int64), 0
    for d in np.random.permutation(layers.devices.shape[0]):
        is_new = held[d] < most_stages and layers.width_row[d] == layers.width_row[own[0]]
        if found < new.shape[0] and is_new and not np.any(own == d):
            new[found] = d
            found += 1
    if found < new.shape[0]:
        return start, devices
    starts = start.copy()
    starts[s + 1 :] += found
    return starts, np.concatenate((devices[: start[s + 1]], new, devices[start[s + 1] :]))


@kernel
def settle_counts(layers: Layers, start: Integers, devices: Integers, most_stages: int) -> tuple[Integers, Integers]:
    """Give every stage a number of replicas that it may have: the next larger or smaller one."""
    for s in range(start.shape[0] - 1):
        count = start[s + 1] - start[s]
        if count > 0 and not may_have(layers, count):
            more, less = _nearest_count(layers, count, 1), _nearest_count(layers, count, -1)
            if more and (not less or np.random.random() < 0.5):
                start, devices = _add_some(layers, start, devices, s, more, most_stages)
            elif less:
                start, devices = _drop_some(start, devices, s, less)
    return start, devices


@kernel
def settle(layers: Layers, stages: Stages, most_stages: int, is_merged: bool) -> Stages:
    """Where merging or cutting leaves a stage a number of replicas that it may not have: continue, or change it."""
    stage_of, start, devices, modes = stages
    if _find_odd(layers, start) < 0:
        return stages
    if np.random.random() < 0.5:
        start, devices = settle_counts(layers, start, devices, most_stages)
        return stage_of, start, devices, modes
    return _merge_on(layers, stages) if is_merged else _cut_on(layers, stages)


@kernel
def _merge_on(layers: Layers, stages: Stages) -> Stages:
    """Merge a stage with its neighbours until it has a number of replicas that it may have."""
    while stages[1].shape[0] > 2:
        s = _find_odd(layers, stages[1])
        if s < 0:
            break
        is_last = s == stages[1].shape[0] - 2
        first = s - 1 if is_last or (s > 0 and np.random.random() < 0.5) else s
        stages = merge_two(stages, first, True, True)
    return stages


@kernel
def _cut_on(layers: Layers, stages: Stages) -> Stages:
    """Cut stages, layers in proportion to replicas, until each has a number of replicas that it may have."""
    stage_of, start, devices, modes = stages
    while True:
        s = _find_odd(layers, start)
        if s < 0:
            break
        count, size = start[s + 1] - start[s], np.sum(stage_of == s)
        if count < 2 or size < 2:
            break
        part = _nearest_count(layers, 2 + np.random.randint(count - 1), -1)
        if not part:
            break
        cut = min(max((size * part + count // 2) // count, 1), size - 1)
        stage_of = cut_layers(stage_of, s, cut)
        start = np.concatenate((start[: s + 1], np.array([start[s] + part]), start[s + 1 :]))
        modes = np.concatenate((modes[: s + 1], modes[s:]))
    return stage_of, start, devices, modes
