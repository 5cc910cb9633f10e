"""The compiled loops of the joint search: annealing over partition, mapping and policy, and polishing of words.

Every step is evaluated by playing the whole iteration (`kernels.play`).
"""

import numpy as np

from solver_models.compiled import kernel
from solver_models.kernels import FAR, MICROBATCHES, TAIL, Policy, assemble, play
from solver_models.moves import CAP_OFFSET, CAP_SLOPE, LAG, MODE, is_allowed, neighbour

PENALTY = 1 << 56
"""Added to the objective of a candidate that does not fit into memory."""


@kernel
def make_policy(net, knobs, num_stages):
    """The policy that four knobs stand for."""
    num_lanes, num_devices = net.lane_stage.shape[0], net.budget.shape[0]
    cap = np.empty(num_lanes, np.int64)
    for n in range(num_lanes):
        cap[n] = max(1, knobs[CAP_SLOPE] * (num_stages - net.lane_stage[n]) // 4 + knobs[CAP_OFFSET])
    return Policy(cap, np.full(num_devices, knobs[LAG]), np.full(num_devices, knobs[MODE]))


@kernel
def net_floor(net):
    """No order of this net is faster: per device, the least head of its lanes, their work, their least synchronisation.

    A lane's head is the longest chain of forwards and transfers before its first F.
    """
    num_lanes = net.lane_stage.shape[0]
    head = np.zeros(num_lanes, np.int64)
    floor = np.int64(0)
    for n in range(num_lanes):  # lanes are ordered by stage, and forward flows lead to later stages
        leave = head[n] + net.duration[n, 0]
        for f in range(net.flow_start[2 * n], net.flow_start[2 * n + 1]):
            head[net.flow_target[f]] = max(head[net.flow_target[f]], leave + net.flow_duration[f])
    for d in range(net.budget.shape[0]):
        work, least_head, least_end = np.int64(0), FAR, FAR
        for k in range(net.device_start[d], net.device_start[d + 1]):
            n = net.device_lanes[k]
            backward = net.duration[n, 1]
            if net.has_weight[n]:
                backward = min(net.duration[n, 1] + net.duration[n, 2], net.duration[n, 3])
            work += net.scalars[MICROBATCHES] * (net.duration[n, 0] + backward)
            least_head = min(least_head, head[n])
            least_end = min(least_end, net.synchronisation[net.lane_stage[n]])
        if work > 0:
            floor = max(floor, least_head + work + least_end)
    return floor + net.scalars[TAIL]


@kernel
def overflow(net):
    """Units by which a device cannot even hold one microbatch of its largest lane; 0 if all can."""
    worst = np.int64(0)
    for n in range(net.lane_stage.shape[0]):
        need = max(net.held[n], net.stash[n]) + net.workspace[n]
        worst = max(worst, need - net.budget[net.lane_device[n]])
    return worst


@kernel
def longest_word(net):
    """Room that the words of a net need."""
    longest = 1
    for d in range(net.budget.shape[0]):
        longest = max(longest, 3 * net.scalars[0] * (net.device_start[d + 1] - net.device_start[d]))
    return longest


@kernel
def evaluate(layers, stage_of, start, devices, recompute, knobs, threshold, by_span):
    """(objective, sum of last ends) of a candidate; anything from `threshold` on may be an underestimate."""
    net = assemble(layers, stage_of, start, devices, recompute)
    excess = overflow(net)
    if excess > 0:
        return PENALTY + excess, PENALTY
    if not by_span:
        floor = net_floor(net)
        if floor >= threshold:
            return floor, floor
    words = np.empty((net.budget.shape[0], longest_word(net)), np.int32)
    lengths = np.zeros(net.budget.shape[0], np.int64)
    makespan, span, total = play(net, make_policy(net, knobs, start.shape[0] - 1), words, lengths, False)
    if makespan == FAR:
        return PENALTY * 2, PENALTY
    return (span if by_span else makespan), total


@kernel
def anneal(layers, rules, pinned, stage_of, start, devices, recompute, knobs, iterations, heat, seed, by_span):
    """`iterations` steps of simulated annealing; `heat` = first and last temperature as parts of the objective.

    Returns the best candidate and its objective.
    """
    np.random.seed(seed)
    value, total = evaluate(layers, stage_of, start, devices, recompute, knobs, FAR, by_span)
    best = (stage_of, start, devices, recompute, knobs)
    best_value = value
    for step in range(iterations):
        temperature = heat[0] * (heat[1] / heat[0]) ** (step / iterations)
        allowance = np.int64(-np.log(1 - np.random.random()) * temperature * min(value, PENALTY // 4))
        a, b, c, d, e = neighbour(layers, rules, stage_of, start, devices, recompute, knobs)
        if not is_allowed(layers, rules, pinned, a, b, c):
            continue
        new_value, new_total = evaluate(layers, a, b, c, d, e, value + allowance + 1, by_span)
        if new_value < value + allowance or (new_value == value and new_total <= total):
            stage_of, start, devices, recompute, knobs = a, b, c, d, e
            value, total = new_value, new_total
            if value < best_value:
                best_value = value
                best = (stage_of, start, devices, recompute, knobs)
    return best[0], best[1], best[2], best[3], best[4], best_value
