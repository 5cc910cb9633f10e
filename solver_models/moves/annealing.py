"""The compiled loop of the joint search: annealing over partition, mapping and policy.

Every step is evaluated by playing the whole iteration (`evaluator.play`).
"""

from typing import NamedTuple

import numpy as np

from solver_models.compiled import int64, kernel
from solver_models.instance import Integers
from solver_models.moves.lower_bounds import net_floors
from solver_models.moves.neighbourhood import CAP_OFFSET, CAP_SLOPE, LAG, MODE, Solution, is_allowed, neighbour
from solver_models.simulation.evaluator import FAR, MICROBATCHES, Layers, Net, Policy, assemble, play

FITS, DEADLOCKS, OVERFLOWS, UNRATED = range(4)
"""Whether a solution fits into memory, from good to bad: it does; its policy deadlocks for want of memory; one
microbatch of one stage is too much for a device; it breaks a rule, or nobody has looked."""


class Worth(NamedTuple):
    """What a solution is worth: the lesser, in the order of the fields, the better."""

    fit: int
    """`FITS` ... `UNRATED`."""
    amount: int
    """Ticks; where it does not fit, the units that are missing (`_shortage`): a search finds its way to what fits."""
    total: int
    """Sum of the devices' last ends; 0 where it does not fit."""


class Cooling(NamedTuple):
    """How an annealing cools, from the first temperature to the last; both as parts of what is annealed."""

    steps: int
    """Trials."""
    first: float
    """Temperature of the first one."""
    last: float
    """Temperature after the last one."""
    seed: int
    """Of the random numbers."""


@kernel
def make_policy(net: Net, policy_params: Integers, num_stages: int) -> Policy:
    """The policy that four policy_params stand for."""
    num_lanes, num_devices = net.lane_stage.shape[0], net.budget.shape[0]
    cap = np.empty(num_lanes, np.int64)
    for n in range(num_lanes):
        cap[n] = max(1, policy_params[CAP_SLOPE] * (num_stages - net.lane_stage[n]) // 4 + policy_params[CAP_OFFSET])
    return Policy(cap, np.full(num_devices, policy_params[LAG]), np.full(num_devices, policy_params[MODE]))


@kernel
def overflow(net: Net) -> int:
    """Units by which a device cannot even hold one microbatch of its largest lane; 0 if all can."""
    worst = int64(0)
    for n in range(net.lane_stage.shape[0]):
        need = max(net.held[n], net.whole_backward[n]) + net.workspace[n]
        worst = max(worst, need - net.budget[net.lane_device[n]])
    return worst


@kernel
def _shortage(net: Net) -> int:
    """Units that the devices lack, in all, to hold one microbatch of each of their lanes."""
    lacking = int64(0)
    for d in range(net.budget.shape[0]):
        need, extra = int64(0), int64(0)
        for k in range(net.device_start[d], net.device_start[d + 1]):
            n = net.device_lanes[k]
            need += net.held[n]
            extra = max(extra, max(net.whole_backward[n] - net.held[n], 0) + net.workspace[n])
        lacking += max(0, need + extra - net.budget[d])
    return lacking


@kernel
def longest_word(net: Net) -> int:
    """Room that the words of a net need."""
    longest = 1
    for d in range(net.budget.shape[0]):
        longest = max(longest, 3 * net.scalars[MICROBATCHES] * (net.device_start[d + 1] - net.device_start[d]))
    return longest


@kernel
def evaluate(layers: Layers, solution: Solution, threshold: int, by_span: bool, by_floor: bool) -> Worth:
    """The worth of a solution; ticks from `threshold` on may be an underestimate.

    `by_floor`: what no order is below (for the makespan) instead of what the policy reaches.
    """
    net = assemble(layers, solution.stage_of, solution.start, solution.devices, solution.modes)
    if overflow(net) > 0:
        return lacking(OVERFLOWS, net)
    if by_floor or not by_span:
        floor, total = net_floors(net)
        if floor >= threshold or by_floor:
            return Worth(int64(FITS), floor, total)
    return rate_policy(net, solution.policy_params, solution.modes.shape[0], threshold, by_span)


@kernel
def lacking(fit: int, net: Net) -> Worth:
    """The worth of a solution that does not fit."""
    return Worth(int64(fit), _shortage(net), int64(0))


@kernel
def rate_policy(net: Net, policy_params: Integers, num_stages: int, threshold: int, by_span: bool) -> Worth:
    """The worth of the orders that a policy makes; ticks from `threshold` on may be an underestimate."""
    words = np.empty((net.budget.shape[0], longest_word(net)), np.int32)
    lengths = np.zeros(net.budget.shape[0], np.int64)
    policy = make_policy(net, policy_params, num_stages)
    makespan, span, total = play(net, policy, words, lengths, False, FAR if by_span else threshold, None)
    if makespan == FAR:
        return lacking(DEADLOCKS, net)
    return Worth(int64(FITS), span if by_span else makespan, total)


@kernel
def temperature(cooling: Cooling, step: int) -> float:
    """The temperature of a step: the same factor from every one to the next."""
    return cooling.first * (cooling.last / cooling.first) ** (step / cooling.steps)


@kernel
def draw_allowance(worth: Worth, heat: float) -> int:
    """By how much a step at this temperature may be worse: Metropolis' rule, with the random number drawn first."""
    return int64(-np.log(1 - np.random.random()) * heat * worth.amount)


@kernel
def threshold_of(worth: Worth, allowance: int) -> int:
    """Ticks from which on no step is taken; what does not fit is left for anything that does."""
    return worth.amount + allowance + 1 if worth.fit == FITS else int64(FAR)


@kernel
def is_taken(found: Worth, worth: Worth, allowance: int) -> bool:
    """Whether a step from what is worth `worth` to what is worth `found` is taken."""
    if found.fit != worth.fit:
        return found.fit < worth.fit
    is_within = found.amount < worth.amount + allowance
    return is_within or (found.amount == worth.amount and found.total <= worth.total)


@kernel
def is_better(found: Worth, best: Worth) -> bool:
    """Whether it fits better, or as well with less; the last ends do not count."""
    return found.fit < best.fit or (found.fit == best.fit and found.amount < best.amount)


@kernel
def anneal(
    layers: Layers,
    rules: Integers,
    pinned: Integers,
    solution: Solution,
    cooling: Cooling,
    by_span: bool,
    by_floor: bool,
) -> tuple[Solution, Worth]:
    """Simulated annealing; returns the best solution and its worth."""
    np.random.seed(cooling.seed)
    worth = evaluate(layers, solution, FAR, by_span, by_floor)
    best, best_worth = solution, worth
    for step in range(cooling.steps):
        allowance = draw_allowance(worth, temperature(cooling, step))
        new = neighbour(layers, rules, solution)
        if not is_allowed(layers, rules, pinned, new.stage_of, new.start, new.devices):
            continue
        found = evaluate(layers, new, threshold_of(worth, allowance), by_span, by_floor)
        if is_taken(found, worth, allowance):
            solution, worth = new, found
            if is_better(worth, best_worth):
                best, best_worth = solution, worth
    return best, best_worth
