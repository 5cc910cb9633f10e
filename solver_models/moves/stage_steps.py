"""What cutting a stage in two, and making one of two, does to the arrays of a joint plan."""

import numpy as np

from solver_models.compiled import kernel
from solver_models.instance import Integers

Stages = tuple[Integers, Integers, Integers, Integers]
"""([L] stage of every layer, [S + 1] where the replicas of a stage begin, [N] device of every replica, [S] modes)."""


@kernel
def cut_layers(stage_of: Integers, s: int, cut: int) -> Integers:
    """Make stage s two stages: its first `cut` layers, and the others."""
    inside = np.nonzero(stage_of == s)[0]
    result = stage_of + (stage_of > s)
    result[inside[cut:]] = s + 1
    return result


@kernel
def merge_two(stages: Stages, s: int, keep_first: bool, keep_second: bool) -> Stages:
    """Make one stage of stage s and the next one, on the devices of both, or of one of them."""
    stage_of, start, devices, modes = stages
    num_stages = start.shape[0] - 1
    new_stage = stage_of - (stage_of > s)
    result = np.empty(devices.shape[0], np.int64)
    new_start = np.zeros(num_stages, np.int64)
    count = 0
    for t in range(num_stages):
        for k in range(start[t], start[t + 1]):
            if (t == s and not keep_first) or (t == s + 1 and not keep_second):
                continue
            repeated = False
            for x in range(start[s] if t == s + 1 and keep_first else k, k):
                repeated = repeated or devices[x] == devices[k]
            if not repeated:
                result[count] = devices[k]
                count += 1
        new_start[t + 1 if t <= s else t] = count
    new_modes = np.concatenate((modes[: s + 1], modes[s + 2 :]))
    return new_stage, new_start, result[:count], new_modes
