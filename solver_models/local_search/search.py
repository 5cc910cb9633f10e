"""The joint local search on one instance: candidates in, better ones out; the loops are compiled (`annealing`)."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from solver_models.device_groups import holders_and_replicas, with_groups
from solver_models.exact_order.branch_and_bound import best_sequence
from solver_models.exact_order.decomposition import likeness, split_net, twin_devices, without_savings
from solver_models.exact_order.lower_bounds import schedule_lower_bound
from solver_models.exact_order.order_trees import FIRST_RUN
from solver_models.instance import FORWARD, INPUT_GRAD, WEIGHT_GRAD, DeviceOrder, Instance, Integers, ShortIntegers
from solver_models.local_search.critical_path_search import TabuSearch, follows_orders, improve, polish
from solver_models.moves.annealing import (
    DEADLOCKS,
    FITS,
    OVERFLOWS,
    UNRATED,
    Cooling,
    anneal,
    evaluate,
    longest_order,
    make_policy,
    overflow,
)
from solver_models.moves.lower_bounds import net_lower_bound
from solver_models.moves.neighbourhood import Solution, is_allowed, make_rules
from solver_models.search_params import SolverParams
from solver_models.simulation.columns import SHARDING
from solver_models.simulation.evaluator import FAR, Net, assemble, peak_excess, play

_MOST_FLOORED_ACTIONS = 400_000
"""Actions of the largest candidate whose schedule bound says whether its orders are worth looking at."""
_WHOLE_NODES = 100
"""With so few nodes, orders are searched as a whole; with more, parts that share nothing one by one."""
_STEP_PLAYS = 3
"""Plays that a step is counted as."""
_SAMPLES = 60
"""Moves judged per step."""
_PATIENCE = 300
"""Steps without success before it starts again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A joint plan as the search sees it."""

    stage_of: Integers
    """[L] stage of every layer, in topological order."""
    groups: tuple[tuple[int, ...], ...]
    """Devices of every stage."""
    modes: Integers
    """[S] bits: whether a stage recomputes, and shards the optimizer's state if it has several replicas (`columns`)."""
    policy_params: Integers
    """[4] list-scheduling policy."""
    objective: int
    """Ticks, as far as the search knows; the units of memory that are missing where it is not feasible."""
    fit: int = FITS
    """Whether it fits into memory and plays to its end: `FITS` ... `UNRATED` of `annealing`."""
    device_orders: dict[int, DeviceOrder] | None = None
    """Orders found by polishing; None: those of the policy."""

    @property
    def is_feasible(self) -> bool:
        """Whether it fits into memory and plays to its end."""
        return self.fit == FITS

    @property
    def sort_key(self) -> tuple[int, int]:
        """What candidates are sorted by: what fits comes before what does not, then the least objective."""
        return self.fit, self.objective

    def with_orders(self, device_orders: dict[int, DeviceOrder], *, objective: int) -> "Candidate":
        """The same with orders of its own that fit, and the ticks they reach."""
        return replace(self, device_orders=device_orders, objective=objective, fit=FITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sequenced:
    """What branch and bound made of a part of a net."""

    net: Net
    """The part."""
    value: int
    """Ticks of its best order that was found; at least the threshold if none was."""
    device_orders: dict[int, DeviceOrder]
    is_closed: bool
    """Whether no order is better."""


STANDARD_POLICY_PARAMS = tuple(
    np.array(policy_params, dtype=np.int64)
    for policy_params in (
        (4, 0, 0, 0),  # 1F1B: as many in flight as there are stages left
        (4, 0, 1 << 20, 0),  # W only where nothing else can run
        (8, 0, 1 << 20, 0),  # twice the memory
        (6, 1, 1 << 20, 4),
        (0, 1 << 20, 1 << 20, 0),  # as much as the memory takes
        (4, 1, 1, 4),
        (0, 1 << 20, 0, 2),  # GPipe
        (4, 0, 0, 1),
    )
)
"""Policies every candidate is tried with first."""

_ONE_AT_A_TIME = np.array((0, 1, 0, 0), dtype=np.int64)
"""The policy that needs the least memory: tried where all others deadlock."""

LATEST = 1 << 59
"""No order ends this late; the windows of branch and bound are counted from below it."""


class Searcher:
    """The compiled search on one instance."""

    def __init__(self, instance: Instance, *, params: SolverParams = SolverParams()) -> None:
        self.instance, self.params = instance, params
        self.by_span = instance.objective == "span"
        self.layers = with_groups(instance)
        self.rules = make_rules(instance)
        self.required_modes = SHARDING if instance.shard_choice == "always" else 0
        """Bits that every stage has."""
        self.first_member: list[int] = self.layers.members[self.layers.member_start[:-1]].tolist()

    def rate(
        self,
        stage_of: Integers,
        groups: tuple[tuple[int, ...], ...],
        *,
        modes: Integers | None = None,
        policies: Sequence[Integers] = STANDARD_POLICY_PARAMS,
    ) -> Candidate:
        """The candidate with the best of the policies, the standard ones mostly; `UNRATED` if it breaks a rule.

        Where nothing is said of modes, no stage recomputes, and of all stages and none those shard that make it better.
        """
        if modes is None:
            choices = self.plain_modes(groups)
            rated = [self._rate(self.make_candidate(stage_of, groups, modes=each), policies) for each in choices]
            return min(rated, key=lambda candidate: candidate.sort_key)
        return self._rate(self.make_candidate(stage_of, groups, modes=modes), policies)

    def plain_modes(self, groups: tuple[tuple[int, ...], ...]) -> list[Integers]:
        """No stage recomputes, and no stage shards; or all do where they may or may not."""
        none = np.zeros(len(groups), np.int64)
        has_choice = self.instance.may_choose_shards and any(len(group) > 1 for group in groups)
        return [none, none | SHARDING] if has_choice else [none]

    def _rate(self, best: Candidate, policies: Sequence[Integers]) -> Candidate:
        if not self.is_allowed(best):
            return best
        solution = solution_of(best)
        for policy in (*policies, _ONE_AT_A_TIME):
            if policy is _ONE_AT_A_TIME and best.is_feasible:
                break
            fit, amount, _ = evaluate(self.layers, solution._replace(policy_params=policy), FAR, self.by_span, False)
            if (fit, amount) < best.sort_key:
                best = replace(best, policy_params=policy, objective=int(amount), fit=int(fit))
            if fit >= OVERFLOWS:
                break
        return best

    def make_candidate(self, stage_of: Integers, groups: tuple[tuple[int, ...], ...], *, modes: Integers) -> Candidate:
        """A partition and mapping whose orders nobody has looked at yet."""
        return Candidate(
            stage_of=stage_of,
            groups=groups,
            modes=modes | self.required_modes,
            policy_params=STANDARD_POLICY_PARAMS[0],
            objective=0,
            fit=UNRATED,
        )

    def is_allowed(self, candidate: Candidate) -> bool:
        """Whether the candidate keeps the rules of the instance."""
        start, devices = flatten(candidate.groups)
        return bool(is_allowed(self.layers, self.rules, self.instance.pinned, candidate.stage_of, start, devices))

    def anneal(
        self,
        candidate: Candidate,
        *,
        iterations: int,
        temperature: tuple[float, float],
        seed: int,
        by_estimate: bool = False,
    ) -> Candidate:
        """Anneal from `candidate`; releases the interpreter lock, so that several can run at once."""
        cooling = Cooling(steps=iterations, first=temperature[0], last=temperature[1], seed=seed)
        found, objective = anneal(
            self.layers, self.rules, self.instance.pinned, solution_of(candidate), cooling, self.by_span, by_estimate
        )
        return candidate_of(found, objective=int(objective.amount), fit=int(objective.fit))

    def lower_bound(self, stage_of: Integers, groups: tuple[tuple[int, ...], ...], *, modes: Integers) -> int | None:
        """Ticks that no order of this partition and mapping beats; None if it cannot fit into memory."""
        net = self._net(stage_of, groups, modes=modes)
        return None if overflow(net) > 0 else int(net_lower_bound(net)) if not self.by_span else 0

    def exact_lower_bound(self, candidate: Candidate) -> int | None:
        """The schedule bound of a candidate for the makespan; None if it breaks a rule or cannot fit into memory.

        Of more stage replicas than it can tell apart, what `lower_bound` says.
        """
        net = self._net(candidate.stage_of, candidate.groups, modes=candidate.modes)
        if not self.is_allowed(candidate) or overflow(net) > 0:
            return None
        return max(int(net_lower_bound(net)), int(schedule_lower_bound(net, FAR)))

    def is_floored(self, candidate: Candidate) -> bool:
        """Whether the schedule bound holds for the objective, and is derived in the time between two steps."""
        actions = 3 * self.instance.num_microbatches * sum(map(len, candidate.groups))
        return not self.by_span and actions <= _MOST_FLOORED_ACTIONS

    def is_open(self, candidate: Candidate) -> bool:
        """Whether orders of the same partition and mapping could be better, as far as the schedule bound knows."""
        lower_bound = self.exact_lower_bound(candidate) if self.is_floored(candidate) else None
        return lower_bound is None or not candidate.is_feasible or candidate.objective > lower_bound

    def sequence(
        self,
        candidate: Candidate,
        *,
        threshold: int,
        most_nodes: int,
        first_run: int | None = None,
        stop: Integers | None = None,
    ) -> tuple[bool, Candidate | None]:
        """Whether branch and bound has closed every order, and the best below `threshold` that it found, if any.

        It looks at `most_nodes` nodes at most, for the makespan only, and ends early once `stop[0]` is set; it starts
        again after `first_run` nodes (None: `FIRST_RUN`), and now and then. Parts that have nothing to do
        with each other are searched one by one.
        """
        if self.by_span:
            return False, None
        net = self._net(candidate.stage_of, candidate.groups, modes=candidate.modes)
        flag, limit = np.zeros(1, np.int64) if stop is None else stop, min(threshold, LATEST)
        first_run = first_run or FIRST_RUN
        found, device_orders = dict[Hashable, _Sequenced](), dict[int, DeviceOrder]()
        for part in split_net(net) if most_nodes > _WHOLE_NODES else [net]:
            if likeness(part) not in found:
                value, codes, lengths, is_closed = _sequence_part(
                    part,
                    threshold=limit,
                    most_nodes=most_nodes,
                    first_run=first_run,
                    stop=flag,
                )
                if is_closed and value >= limit:
                    return True, None
                own = decode(part, codes, lengths=lengths, first=list(range(len(self.layers.devices))))
                found[likeness(part)] = _Sequenced(net=part, value=value, device_orders=own, is_closed=is_closed)
            twin = found[likeness(part)]
            device_orders |= {
                self.first_member[d]: twin.device_orders.get(x, []) for d, x in twin_devices(part, twin.net).items()
            }
        value = max(each.value for each in found.values())
        if value >= limit:
            return False, None
        is_closed = any(each.is_closed and each.value == value for each in found.values())
        return is_closed, candidate.with_orders(device_orders, objective=value)

    def _net(self, stage_of: Integers, groups: tuple[tuple[int, ...], ...], *, modes: Integers) -> Net:
        start, devices = flatten(groups)
        return assemble(self.layers, stage_of, start, devices, modes | self.required_modes)

    def device_orders(self, candidate: Candidate) -> tuple[dict[int, DeviceOrder], int | None]:
        """The orders of a candidate and the objective they reach; None if they deadlock or exceed the memory."""
        net, device_orders, lengths, fit, value = self._play(candidate)
        return decode(net, device_orders, lengths=lengths, first=self.first_member), value if fit == FITS else None

    def play(self, candidate: Candidate) -> Candidate:
        """The candidate with the objective that its orders reach."""
        *_, fit, value = self._play(candidate)
        return replace(candidate, objective=value, fit=fit)

    def polish(
        self, candidate: Candidate, *, iterations: int, temperature: float, seed: int, stop: Integers | None = None
    ) -> Candidate:
        """Improve the device orders of a candidate with its partition and mapping fixed: as much work as `iterations`
        plays, or until `stop[0]` is set.
        """
        flag = np.zeros(1, np.int64) if stop is None else stop
        net, device_orders, lengths, fit, _ = self._play(candidate)
        if fit == FITS and follows_orders(net):
            search = TabuSearch(
                steps=max(1, iterations // _STEP_PLAYS),
                samples=_SAMPLES,
                patience=_PATIENCE,
                lower_bound=0 if self.by_span else int(net_lower_bound(net)),
                seed=seed,
            )
            reached, _ = improve(net, device_orders, lengths, search, self.by_span, flag)
        else:
            cooling = Cooling(steps=iterations, first=temperature, last=temperature, seed=seed)
            reached, _ = polish(net, device_orders, lengths, cooling, self.by_span, flag)
        found = decode(net, device_orders, lengths=lengths, first=self.first_member)
        if reached >= FAR:
            return replace(candidate, device_orders=found, objective=0, fit=DEADLOCKS)
        return candidate.with_orders(found, objective=int(reached))

    def net_of(self, candidate: Candidate) -> Net:
        """The stage replicas and transfers of a candidate."""
        return self._net(candidate.stage_of, candidate.groups, modes=candidate.modes)

    def _play(self, candidate: Candidate) -> tuple[Net, ShortIntegers, Integers, int, int]:
        """The net of a candidate, its device orders with lengths, whether they fit, and if so their objective."""
        net = self._net(candidate.stage_of, candidate.groups, modes=candidate.modes)
        device_orders = np.zeros((len(self.layers.devices), longest_order(net)), np.int32)
        lengths = np.zeros(len(self.layers.devices), np.int64)
        if candidate.device_orders is not None:
            encode(net, candidate.device_orders, device_orders=device_orders, lengths=lengths, first=self.first_member)
        policy = make_policy(net, candidate.policy_params, len(candidate.groups))
        makespan, span, _ = play(net, policy, device_orders, lengths, candidate.device_orders is not None, FAR, None)
        is_over = peak_excess(net, device_orders, lengths) > 0
        fit = OVERFLOWS if is_over else DEADLOCKS if makespan >= FAR else FITS
        return net, device_orders, lengths, fit, int(span if self.by_span else makespan) if fit == FITS else 0


def solution_of(candidate: Candidate) -> Solution:
    """A candidate as the kernels see it, without its device orders."""
    start, devices = flatten(candidate.groups)
    return Solution(
        stage_of=candidate.stage_of,
        start=start,
        devices=devices,
        modes=candidate.modes,
        policy_params=candidate.policy_params,
    )


def candidate_of(solution: Solution, *, objective: int, fit: int) -> Candidate:
    """The inverse of `solution_of`."""
    return Candidate(
        stage_of=solution.stage_of,
        groups=unflatten(solution.start, solution.devices),
        modes=solution.modes,
        policy_params=solution.policy_params,
        objective=objective,
        fit=fit,
    )


def flatten(groups: tuple[tuple[int, ...], ...]) -> tuple[Integers, Integers]:
    """Groups of devices as [S + 1] where each begins, and all their devices."""
    start = np.cumsum([0, *(len(group) for group in groups)]).astype(np.int64)
    return start, np.array([device for group in groups for device in group], dtype=np.int64)


def unflatten(start: Integers, devices: Integers) -> tuple[tuple[int, ...], ...]:
    """The inverse of `flatten`."""
    return tuple(tuple(devices[a:b].tolist()) for a, b in pairwise(start))


def _sequence_part(
    net: Net, *, threshold: int, most_nodes: int, first_run: int, stop: Integers
) -> tuple[int, ShortIntegers, Integers, bool]:
    """(objective, device orders, lengths, whether it is closed) of the best order below the threshold, as
    `best_sequence`.

    Where B gains by a little, first of all as if it did not: what is refuted then is refuted.
    """
    eased = without_savings(net)
    for each in (net,) if eased is None else (eased, net):
        value, device_orders, lengths, _, is_closed = best_sequence(each, threshold, most_nodes, first_run, stop)
        if value >= threshold:
            break
    return int(value), device_orders, lengths, bool(is_closed)


def decode(net: Net, device_orders: ShortIntegers, *, lengths: Integers, first: list[int]) -> dict[int, DeviceOrder]:
    """Codes to (kind, stage, microbatch) triples, by the first device of a group.

    A W takes the oldest microbatch whose I has run without its W.
    """
    result: dict[int, DeviceOrder] = {}
    known: dict[bytes, DeviceOrder] = {}
    for device, length in enumerate(lengths.tolist()):
        if length:
            replicas, kinds = device_orders[device, :length] >> 2, device_orders[device, :length] & 3
            stages = net.replica_stage[replicas]
            key = (stages * 4 + kinds).tobytes()  # devices that run the same actions share one word
            if key not in known:
                microbatches = _microbatches(stages, kinds)
                known[key] = list(zip(kinds.tolist(), stages.tolist(), microbatches.tolist(), strict=True))
            result[first[device]] = known[key]
    return result


def _microbatches(stages: Integers, kinds: Integers) -> Integers:
    """The microbatch of every action of a device order."""
    found = np.zeros(len(kinds), np.int64)
    for stage in np.unique(stages).tolist():
        own = stages == stage
        forwards, backwards = own & (kinds == FORWARD), own & (kinds != FORWARD) & (kinds != WEIGHT_GRAD)
        found[forwards] = np.arange(np.count_nonzero(forwards))
        found[backwards] = np.arange(np.count_nonzero(backwards))
        weights = own & (kinds == WEIGHT_GRAD)
        found[weights] = found[own & (kinds == INPUT_GRAD)][: np.count_nonzero(weights)]
    return found


def encode(
    net: Net, orders: dict[int, DeviceOrder], *, device_orders: ShortIntegers, lengths: Integers, first: list[int]
) -> None:
    """(kind, stage, microbatch) by the first device of a group to codes; other members' device orders are the same."""
    holders, replicas = holders_and_replicas(net, first)
    for member, device_order in orders.items():
        if member in holders:
            device = holders[member]
            lengths[device] = len(device_order)
            device_orders[device, : len(device_order)] = [
                replicas[device, stage] * 4 + kind for kind, stage, _ in device_order
            ]
