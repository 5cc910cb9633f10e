"""The compiled loop of the joint search: annealing over partition, mapping and policy.

Every step is evaluated by playing the whole iteration (`evaluator.play`).
"""

from typing import NamedTuple

import numpy as np

from solver_models.compiled import int64, kernel
from solver_models.device_rows import MEMORY
from solver_models.instance import Integers, Layers
from solver_models.moves.lower_bounds import net_estimates, net_lower_bounds
from solver_models.moves.neighbourhood import CAP_OFFSET, CAP_SLOPE, LAG, MODE, Solution, is_allowed, neighbour
from solver_models.simulation.evaluator import FAR, MICROBATCHES, Net, Policy, assemble, play

_SLOTS = 1 << 14
"""Solutions whose worth an anneal remembers: its steps often come back to the same ones."""
_KEY, _FIT, _AMOUNT, _TOTAL, _THRESHOLD = range(5)
"""What it remembers of each: a number that tells solutions apart, the fields of `Objective`, and the ticks from which
on the amount may be an underestimate."""
_FACTORS, _PRIMES = (1_103_515_245, 1_664_525), (2_147_483_647, 2_147_483_629)
"""Of the halves of that number, such that products stay within 64 bits."""

FITS, DEADLOCKS, OVERFLOWS, UNRATED = range(4)
"""Whether a solution fits into memory, from good to bad: it does; its policy deadlocks for want of memory; one
microbatch of one stage is too much for a device; it breaks a rule, or nobody has looked."""


class Objective(NamedTuple):
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
    num_replicas, num_devices = net.replica_stage.shape[0], net.devices.shape[0]
    cap = np.empty(num_replicas, np.int64)
    for n in range(num_replicas):
        cap[n] = max(1, policy_params[CAP_SLOPE] * (num_stages - net.replica_stage[n]) // 4 + policy_params[CAP_OFFSET])
    return Policy(cap, np.full(num_devices, policy_params[LAG]), np.full(num_devices, policy_params[MODE]), None)


@kernel
def overflow(net: Net) -> int:
    """Units by which a device cannot even hold one microbatch of its largest stage replica; 0 if all can."""
    worst = int64(0)
    for n in range(net.replica_stage.shape[0]):
        need = max(net.held[n], net.whole_backward[n]) + net.workspace[n]
        worst = max(worst, need - net.devices[net.replica_device[n], MEMORY])
    return worst


@kernel
def _shortage(net: Net) -> int:
    """Units that the devices lack, in all, to hold one microbatch of each of their stage replicas."""
    lacking = int64(0)
    for d in range(net.devices.shape[0]):
        need, extra = int64(0), int64(0)
        for k in range(net.device_start[d], net.device_start[d + 1]):
            n = net.device_replicas[k]
            need += net.held[n]
            extra = max(extra, max(net.whole_backward[n] - net.held[n], 0) + net.workspace[n])
        lacking += max(0, need + extra - net.devices[d, MEMORY])
    return lacking


@kernel
def longest_order(net: Net) -> int:
    """Room that the device orders of a net need."""
    longest = 1
    for d in range(net.devices.shape[0]):
        longest = max(longest, 3 * net.scalars[MICROBATCHES] * (net.device_start[d + 1] - net.device_start[d]))
    return longest


@kernel
def evaluate(layers: Layers, solution: Solution, threshold: int, by_span: bool, by_estimate: bool) -> Objective:
    """The worth of a solution; ticks from `threshold` on may be an underestimate.

    `by_estimate`: what no order is below, or an estimate where memory is scarce (for the makespan), instead of what the
    policy reaches.
    """
    net = assemble(layers, solution.stage_of, solution.start, solution.devices, solution.modes)
    if overflow(net) > 0:
        return lacking(OVERFLOWS, net)
    if by_estimate or not by_span:
        lower_bound, total = net_estimates(net) if by_estimate else net_lower_bounds(net)
        if lower_bound >= threshold or by_estimate:
            return Objective(int64(FITS), lower_bound, total)
    return rate_policy(net, solution.policy_params, solution.modes.shape[0], threshold, by_span)


@kernel
def lacking(fit: int, net: Net) -> Objective:
    """The worth of a solution that does not fit."""
    return Objective(int64(fit), _shortage(net), int64(0))


@kernel
def rate_policy(net: Net, policy_params: Integers, num_stages: int, threshold: int, by_span: bool) -> Objective:
    """The worth of the orders that a policy makes; ticks from `threshold` on may be an underestimate."""
    device_orders = np.empty((net.devices.shape[0], longest_order(net)), np.int32)
    lengths = np.zeros(net.devices.shape[0], np.int64)
    policy = make_policy(net, policy_params, num_stages)
    makespan, span, total = play(net, policy, device_orders, lengths, False, FAR if by_span else threshold, None)
    if makespan == FAR:
        return lacking(DEADLOCKS, net)
    return Objective(int64(FITS), span if by_span else makespan, total)


@kernel
def temperature(cooling: Cooling, step: int) -> float:
    """The temperature of a step: the same factor from every one to the next."""
    return cooling.first * (cooling.last / cooling.first) ** (step / cooling.steps)


@kernel
def draw_allowance(objective: Objective, temperature: float) -> int:
    """By how much a step at this temperature may be worse: Metropolis' rule, with the random number drawn first."""
    return int64(-np.log(1 - np.random.random()) * temperature * objective.amount)


@kernel
def threshold_of(objective: Objective, allowance: int) -> int:
    """Ticks from which on no step is taken; what does not fit is left for anything that does."""
    return objective.amount + allowance + 1 if objective.fit == FITS else int64(FAR)


@kernel
def is_taken(found: Objective, objective: Objective, allowance: int) -> bool:
    """Whether a step from what is worth `objective` to what is worth `found` is taken."""
    if found.fit != objective.fit:
        return found.fit < objective.fit
    is_within = found.amount < objective.amount + allowance
    return is_within or (found.amount == objective.amount and found.total <= objective.total)


@kernel
def is_better(found: Objective, best: Objective) -> bool:
    """Whether it fits better, or as well with less; the last ends do not count."""
    return found.fit < best.fit or (found.fit == best.fit and found.amount < best.amount)


@kernel
def _key(solution: Solution) -> int:
    """A number of 62 bits that tells solutions apart."""
    first, second = int64(1), int64(1)
    for part in (solution.stage_of, solution.start, solution.devices, solution.modes, solution.policy_params):
        for x in range(part.shape[0]):
            first = (first * _FACTORS[0] + part[x] + 1) % _PRIMES[0]
            second = (second * _FACTORS[1] + part[x] + 1) % _PRIMES[1]
    return first << 31 | second


@kernel
def _evaluate_once(
    layers: Layers, solution: Solution, threshold: int, by_span: bool, by_estimate: bool, known: Integers
) -> Objective:
    """As `evaluate`, unless `known` [slots, 5] has what that said of the same solution, or says that it is too much."""
    key = _key(solution)
    row = known[key % known.shape[0]]
    is_exact = row[_FIT] != FITS or row[_AMOUNT] < row[_THRESHOLD]
    if row[_KEY] != key or not (is_exact or threshold <= row[_THRESHOLD]):
        found = evaluate(layers, solution, threshold, by_span, by_estimate)
        row[_KEY], row[_FIT], row[_AMOUNT], row[_TOTAL] = key, found.fit, found.amount, found.total
        row[_THRESHOLD] = threshold
    return Objective(row[_FIT], row[_AMOUNT], row[_TOTAL])


@kernel
def anneal(
    layers: Layers,
    rules: Integers,
    pinned: Integers,
    solution: Solution,
    cooling: Cooling,
    by_span: bool,
    by_estimate: bool,
) -> tuple[Solution, Objective]:
    """Simulated annealing; returns the best solution and its worth."""
    np.random.seed(cooling.seed)
    objective = evaluate(layers, solution, FAR, by_span, by_estimate)
    best, best_objective, known = solution, objective, np.full((_SLOTS, 5), -1)
    for step in range(cooling.steps):
        allowance = draw_allowance(objective, temperature(cooling, step))
        new = neighbour(layers, rules, solution)
        if not is_allowed(layers, rules, pinned, new.stage_of, new.start, new.devices):
            continue
        found = _evaluate_once(layers, new, threshold_of(objective, allowance), by_span, by_estimate, known)
        if is_taken(found, objective, allowance):
            solution, objective = new, found
            if is_better(objective, best_objective):
                best, best_objective = solution, objective
    return best, best_objective
