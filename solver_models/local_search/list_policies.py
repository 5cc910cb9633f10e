"""Annealing over list-scheduling policies of one net: a cap per stage replica, a lag and a mode per device."""

from typing import NamedTuple

import numpy as np

from solver_models.compiled import int64, kernel
from solver_models.instance import Integers, ShortIntegers
from solver_models.moves.lower_bounds import make_turnarounds
from solver_models.simulation.columns import FORWARD_PART, GRADIENT_PART
from solver_models.simulation.evaluator import FAR, MICROBATCHES, Net, Policy, make_shares, play

_PUT_OFF = 1 << 20
"""A lag that no device reaches: W only where nothing else can run."""


class Tuning(NamedTuple):
    """Steps and temperatures of a policy's annealing."""

    slope: int
    """Of the caps that it begins with (`_line_up`); 0 stands for those of `_fill_up`."""
    steps: int
    """Trials."""
    temperature: float
    """Temperature of the first one, as a part of the objective; it falls to 0 in equal steps."""
    lower_bound: int
    """It ends once the objective is this low."""
    seed: int
    """Of the random numbers."""


@kernel
def _line_up(net: Net, cap: Integers, slope: int, offset: int) -> None:
    """Caps that fall from stage to stage: slope * (stages left) / 4 + offset."""
    num_stages = net.synchronisation.shape[0]
    for n in range(cap.shape[0]):
        cap[n] = max(1, slope * (num_stages - net.replica_stage[n]) // 4 + offset)


@kernel
def _fill_up(net: Net, cap: Integers, extra: int) -> None:
    """Caps of as many F as end before the first gradient can be back, and `extra` ones: no device waits for long.

    They come at the pace of the slowest stage replica or transfer on the way. A device that starts no F that would
    delay the first I waits less than an F, and the first gradients reach the first stage as early as can be.
    """
    shares = make_shares(net)
    turnaround, pace = make_turnarounds(net, shares), shares[:, FORWARD_PART].copy()
    for n in range(cap.shape[0]):  # stage replicas are ordered by stage, and forward transfers lead to later stages
        for f in range(net.transfer_start[2 * n], net.transfer_start[2 * n + 1]):
            target = net.transfer_target[f]
            pace[target] = max(pace[target], pace[n], net.transfer_duration[f])
        cap[n] = max(1, (turnaround[n] - shares[n, GRADIENT_PART]) // max(pace[n], 1) + extra)


@kernel
def play_filled(
    net: Net, device_orders: ShortIntegers, lengths: Integers, extra: int, by_span: bool
) -> tuple[int, int]:
    """The order of `_fill_up` with W wherever nothing else can run, into `device_orders`: (objective, last ends)."""
    num_devices, cap = net.devices.shape[0], np.ones(net.replica_stage.shape[0], np.int64)
    _fill_up(net, cap, extra)
    policy = Policy(cap, np.full(num_devices, _PUT_OFF), np.zeros(num_devices, np.int64), None)
    makespan, span, total = play(net, policy, device_orders, lengths, False, FAR, None)
    return (span if by_span else makespan), total


@kernel
def vary(net: Net, cap: Integers, lag: Integers, mode: Integers) -> None:
    """Change a random part of a policy in place."""
    draw = np.random.random()
    if draw < 0.15:
        _line_up(net, cap, np.random.randint(1, 13), np.random.randint(-2, 4))
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
        value = np.random.randint(8) if np.random.random() < 0.8 else _PUT_OFF
        bit = 1 << np.random.randint(3)
        for d in range(first, last + 1):
            if draw < 0.85:
                lag[d] = value
            else:
                mode[d] ^= bit


@kernel
def tune(net: Net, device_orders: ShortIntegers, lengths: Integers, tuning: Tuning, by_span: bool) -> tuple[int, int]:
    """Anneal the policy; `device_orders` then hold the best order found. Returns its (objective, sum of last ends)."""
    np.random.seed(tuning.seed)
    num_replicas, num_devices = net.replica_stage.shape[0], net.devices.shape[0]
    cap, lag, mode = np.ones(num_replicas, np.int64), np.full(num_devices, _PUT_OFF), np.zeros(num_devices, np.int64)
    if tuning.slope == 0:
        _fill_up(net, cap, 0)
    else:
        _line_up(net, cap, tuning.slope, 0)
    trial, trial_lengths = device_orders.copy(), lengths.copy()
    value = best_value = best_total = FAR
    for step in range(tuning.steps):
        new = Policy(cap.copy(), lag.copy(), mode.copy(), None)
        if step > 0:
            vary(net, new.cap, new.lag, new.mode)
        makespan, span, total = play(net, new, trial, trial_lengths, False, FAR, None)
        found = span if by_span else makespan
        if found >= FAR:
            continue
        slack = int64(-np.log(1 - np.random.random()) * tuning.temperature * (1 - step / tuning.steps) * found)
        if found <= value + slack:
            cap, lag, mode = new.cap, new.lag, new.mode
            value = found
        if found < best_value or (found == best_value and total < best_total):
            best_value, best_total = found, total
            device_orders[:] = trial
            lengths[:] = trial_lengths
        if best_value <= tuning.lower_bound:
            break
    return best_value, best_total
