"""The compiled loops of the joint search: annealing over partition, mapping and policy, and polishing of words.

Every step is evaluated by playing the whole iteration (`evaluator.play`).
"""

import numpy as np

from solver_models.compiled import kernel
from solver_models.evaluator import FAR, MICROBATCHES, Policy, assemble, play
from solver_models.lower_bounds import net_floors
from solver_models.neighbourhood import CAP_OFFSET, CAP_SLOPE, LAG, MODE, is_allowed, neighbour

PENALTY = 1 << 56
"""Added to the objective of a candidate that deadlocks for want of memory, and twice where one microbatch of one stage
is too much for a device; the rest of the objective is then `shortage`, so that a search finds its way to what fits.
"""


@kernel
def make_policy(net, policy_params, num_stages):
    """The policy that four policy_params stand for."""
    num_lanes, num_devices = net.lane_stage.shape[0], net.budget.shape[0]
    cap = np.empty(num_lanes, np.int64)
    for n in range(num_lanes):
        cap[n] = max(1, policy_params[CAP_SLOPE] * (num_stages - net.lane_stage[n]) // 4 + policy_params[CAP_OFFSET])
    return Policy(cap, np.full(num_devices, policy_params[LAG]), np.full(num_devices, policy_params[MODE]))


@kernel
def overflow(net):
    """Units by which a device cannot even hold one microbatch of its largest lane; 0 if all can."""
    worst = np.int64(0)
    for n in range(net.lane_stage.shape[0]):
        need = max(net.held[n], net.stash[n]) + net.workspace[n]
        worst = max(worst, need - net.budget[net.lane_device[n]])
    return worst


@kernel
def shortage(net):
    """Units that the devices lack, in all, to hold one microbatch of each of their lanes."""
    lacking = np.int64(0)
    for d in range(net.budget.shape[0]):
        need, extra = np.int64(0), np.int64(0)
        for k in range(net.device_start[d], net.device_start[d + 1]):
            n = net.device_lanes[k]
            need += net.held[n]
            extra = max(extra, max(net.stash[n] - net.held[n], 0) + net.workspace[n])
        lacking += max(0, need + extra - net.budget[d])
    return lacking


@kernel
def longest_word(net):
    """Room that the words of a net need."""
    longest = 1
    for d in range(net.budget.shape[0]):
        longest = max(longest, 3 * net.scalars[MICROBATCHES] * (net.device_start[d + 1] - net.device_start[d]))
    return longest


@kernel
def evaluate(layers, stage_of, start, devices, recompute, policy_params, threshold, by_span, by_floor):
    """(objective, sum of last ends) of a candidate; anything from `threshold` on may be an underestimate.

    `by_floor`: what no order is below (for the makespan) instead of what the policy reaches.
    """
    net = assemble(layers, stage_of, start, devices, recompute)
    if overflow(net) > 0:
        return 2 * PENALTY + shortage(net), PENALTY
    if by_floor or not by_span:
        floor, total = net_floors(net)
        if floor >= threshold or by_floor:
            return floor, total
    words = np.empty((net.budget.shape[0], longest_word(net)), np.int32)
    lengths = np.zeros(net.budget.shape[0], np.int64)
    policy = make_policy(net, policy_params, start.shape[0] - 1)
    makespan, span, total = play(net, policy, words, lengths, False, FAR if by_span else threshold, None)
    if makespan == FAR:
        return PENALTY + shortage(net), PENALTY
    return (span if by_span else makespan), total


@kernel
def anneal(
    layers, rules, pinned, stage_of, start, devices, recompute, policy_params, iterations, heat, seed, by_span, by_floor
):
    """`iterations` steps of simulated annealing; `heat` = first and last temperature as parts of the objective (of
    what lacks where nothing fits yet).

    Returns the best candidate and its objective.
    """
    np.random.seed(seed)
    value, total = evaluate(layers, stage_of, start, devices, recompute, policy_params, FAR, by_span, by_floor)
    best = (stage_of, start, devices, recompute, policy_params)
    best_value = value
    for step in range(iterations):
        temperature = heat[0] * (heat[1] / heat[0]) ** (step / iterations)
        allowance = np.int64(-np.log(1 - np.random.random()) * temperature * (value % PENALTY))
        a, b, c, d, e = neighbour(layers, rules, stage_of, start, devices, recompute, policy_params)
        if not is_allowed(layers, rules, pinned, a, b, c):
            continue
        new_value, new_total = evaluate(layers, a, b, c, d, e, value + allowance + 1, by_span, by_floor)
        if new_value < value + allowance or (new_value == value and new_total <= total):
            stage_of, start, devices, recompute, policy_params = a, b, c, d, e
            value, total = new_value, new_total
            if value < best_value:
                best_value = value
                best = (stage_of, start, devices, recompute, policy_params)
    return best[0], best[1], best[2], best[3], best[4], best_value
