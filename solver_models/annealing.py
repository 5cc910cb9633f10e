"""The compiled loops of the joint search: annealing over partition, mapping and policy, and polishing of words.

Every step is evaluated by playing the whole iteration (`kernels.play`).
"""

import numpy as np

from solver_models.compiled import kernel
from solver_models.kernels import FAR, Policy, assemble, play
from solver_models.moves import CAP_OFFSET, CAP_SLOPE, LAG, MODE, is_allowed, neighbour
from solver_models.quick_floors import net_floors

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
def evaluate(layers, stage_of, start, devices, recompute, knobs, threshold, by_span, by_floor):
    """(objective, sum of last ends) of a candidate; anything from `threshold` on may be an underestimate.

    `by_floor`: what no order is below (for the makespan) instead of what the policy reaches.
    """
    net = assemble(layers, stage_of, start, devices, recompute)
    excess = overflow(net)
    if excess > 0:
        return PENALTY + excess, PENALTY
    if by_floor or not by_span:
        floor, total = net_floors(net)
        if floor >= threshold or by_floor:
            return floor, total
    words = np.empty((net.budget.shape[0], longest_word(net)), np.int32)
    lengths = np.zeros(net.budget.shape[0], np.int64)
    policy = make_policy(net, knobs, start.shape[0] - 1)
    makespan, span, total = play(net, policy, words, lengths, False, FAR if by_span else threshold)
    if makespan == FAR:
        return PENALTY * 2, PENALTY
    return (span if by_span else makespan), total


@kernel
def anneal(
    layers, rules, pinned, stage_of, start, devices, recompute, knobs, iterations, heat, seed, by_span, by_floor
):
    """`iterations` steps of simulated annealing; `heat` = first and last temperature as parts of the objective.

    Returns the best candidate and its objective.
    """
    np.random.seed(seed)
    value, total = evaluate(layers, stage_of, start, devices, recompute, knobs, FAR, by_span, by_floor)
    best = (stage_of, start, devices, recompute, knobs)
    best_value = value
    for step in range(iterations):
        temperature = heat[0] * (heat[1] / heat[0]) ** (step / iterations)
        allowance = np.int64(-np.log(1 - np.random.random()) * temperature * min(value, PENALTY // 4))
        a, b, c, d, e = neighbour(layers, rules, stage_of, start, devices, recompute, knobs)
        if not is_allowed(layers, rules, pinned, a, b, c):
            continue
        new_value, new_total = evaluate(layers, a, b, c, d, e, value + allowance + 1, by_span, by_floor)
        if new_value < value + allowance or (new_value == value and new_total <= total):
            stage_of, start, devices, recompute, knobs = a, b, c, d, e
            value, total = new_value, new_total
            if value < best_value:
                best_value = value
                best = (stage_of, start, devices, recompute, knobs)
    return best[0], best[1], best[2], best[3], best[4], best_value


@kernel
def word_is_legal(net, words, lengths, d):
    """Whether the word of device d keeps F before I before W in every lane, and its memory."""
    count = np.zeros((net.lane_stage.shape[0], 3), np.int64)
    held = np.int64(0)
    for x in range(lengths[d]):
        n, kind = words[d, x] >> 2, words[d, x] & 3
        peak = net.workspace[n]
        if kind == 0:
            count[n, 0] += 1
            held += net.held[n]
            peak += held
        elif kind == 2:
            if count[n, 2] >= count[n, 1]:
                return False
            count[n, 2] += 1
            peak += held
            held -= net.weight_stash[n]
        else:
            if count[n, 1] >= count[n, 0]:
                return False
            count[n, 1] += 1
            count[n, 2] += kind == 3
            peak += held + net.stash[n] - net.held[n]
            held += (net.weight_stash[n] if kind == 1 else 0) - net.held[n]
        if peak > net.budget[d]:
            return False
    return True


@kernel
def rotate(word, i, j):
    """Take the action at i out and put it in at j."""
    code = word[i]
    step = 1 if j > i else -1
    for x in range(i, j, step):
        word[x] = word[x + step]
    word[j] = code


@kernel
def polish(net, words, lengths, iterations, heat, seed, by_span):
    """Local search on the words of a net, in place: move one action at a time, keep what is not worse.

    Returns the best (objective, sum of last ends); `words` hold the best order found.
    """
    np.random.seed(seed)
    no_policy = Policy(np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64))
    makespan, span, total = play(net, no_policy, words, lengths, True, FAR)
    value = span if by_span else makespan
    best_value, best_total, best_words = value, total, words.copy()
    users = np.nonzero(lengths > 1)[0]
    for _ in range(iterations):
        d = users[np.random.randint(users.shape[0])]
        i = np.random.randint(lengths[d])
        reach = 1
        while reach < lengths[d] and np.random.random() < 0.6:
            reach += 1 + reach // 2
        j = i + (np.random.randint(reach) + 1) * (1 if np.random.random() < 0.5 else -1)
        j = min(max(j, 0), lengths[d] - 1)
        if i == j or words[d, i] == words[d, j]:
            continue
        rotate(words[d], i, j)
        accepted = False
        if word_is_legal(net, words, lengths, d):
            slack = np.int64(-np.log(1 - np.random.random()) * heat * value)
            threshold = FAR if by_span else value + slack + 1
            makespan, span, new_total = play(net, no_policy, words, lengths, True, threshold)
            new_value = span if by_span else makespan
            if new_value < FAR:
                accepted = new_value < value + slack or (new_value <= value and new_total <= total)
        if not accepted:
            rotate(words[d], j, i)
            continue
        value, total = new_value, new_total
        if value < best_value or (value == best_value and total < best_total):
            best_value, best_total = value, total
            best_words[:] = words
    words[:] = best_words
    return best_value, best_total
