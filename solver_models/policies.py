"""Annealing over list-scheduling policies of one net: a cap per lane, a lag and a mode per device."""

import numpy as np

from solver_models.compiled import kernel
from solver_models.kernels import FAR, MICROBATCHES, Policy, play


@kernel
def line_up(net, cap, slope, offset):
    """Caps that fall from stage to stage: slope * (stages left) / 4 + offset."""
    num_stages = net.synchronisation.shape[0]
    for n in range(cap.shape[0]):
        cap[n] = max(1, slope * (num_stages - net.lane_stage[n]) // 4 + offset)


@kernel
def vary(net, cap, lag, mode):
    """Change a random part of a policy in place."""
    draw = np.random.random()
    if draw < 0.15:
        line_up(net, cap, np.random.randint(1, 13), np.random.randint(-2, 4))
    elif draw < 0.65:
        first = np.random.randint(cap.shape[0])
        last = first if np.random.random() < 0.5 else np.random.randint(first, cap.shape[0])
        step = -1 if np.random.random() < 0.5 else 1
        for n in range(first, last + 1):
            cap[n] = min(max(1, cap[n] + step), net.scalars[MICROBATCHES])
    else:
        first, last = 0, lag.shape[0] - 1
        if np.random.random() < 0.6:
            first = last = np.random.randint(lag.shape[0])
        value = np.random.randint(8) if np.random.random() < 0.8 else 1 << 20
        bit = 1 << np.random.randint(3)
        for d in range(first, last + 1):
            if draw < 0.85:
                lag[d] = value
            else:
                mode[d] ^= bit


@kernel
def tune(net, words, lengths, slope, iterations, heat, floor, seed, by_span):
    """Anneal from caps that fall with `slope` until `floor` is reached; `words` then hold the best order found.

    Returns its (objective, sum of last ends).
    """
    np.random.seed(seed)
    num_lanes, num_devices = net.lane_stage.shape[0], net.budget.shape[0]
    cap, lag, mode = np.ones(num_lanes, np.int64), np.full(num_devices, 1 << 20), np.zeros(num_devices, np.int64)
    line_up(net, cap, slope, 0)
    trial, trial_lengths = words.copy(), lengths.copy()
    value = best_value = best_total = FAR
    for step in range(iterations):
        new = Policy(cap.copy(), lag.copy(), mode.copy())
        if step > 0:
            vary(net, new.cap, new.lag, new.mode)
        makespan, span, total = play(net, new, trial, trial_lengths, False, FAR)
        found = span if by_span else makespan
        if found >= FAR:
            continue
        slack = np.int64(-np.log(1 - np.random.random()) * heat * (1 - step / iterations) * found)
        if found <= value + slack:
            cap, lag, mode = new.cap, new.lag, new.mode
            value = found
        if found < best_value or (found == best_value and total < best_total):
            best_value, best_total = found, total
            words[:] = trial
            lengths[:] = trial_lengths
        if best_value <= floor:
            break
    return best_value, best_total
