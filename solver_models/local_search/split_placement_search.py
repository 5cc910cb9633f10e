"""The joint search with split placement: candidates with preferences in, better ones out."""

from dataclasses import dataclass, replace

import numpy as np

from solver_models.instance import BACKWARD, INPUT_GRAD, WEIGHT_GRAD, DeviceOrder, Integers, ShortIntegers
from solver_models.local_search.critical_path_search import polish
from solver_models.local_search.search import Candidate, Searcher, candidate_of, decode, solution_of
from solver_models.moves.annealing import Cooling, longest_order, make_policy
from solver_models.moves.split_placement import HALF, anneal_split, net_split, places
from solver_models.simulation.evaluator import FAR, Net, peak_excess, play


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitCandidate:
    """A joint plan with split placement as the search sees it."""

    base: Candidate
    """Partition, mapping and policy; its objective counts the preferences, its device orders are unused."""
    preferences: Integers
    """[2, L] device of W, and of the second half of I, of every layer; -1: that of its F."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitOrders:
    """A candidate with the orders found for it."""

    candidate: SplitCandidate
    at: Integers
    """[2, S] devices of W and of the second half of I of every stage; -1: that of its F."""
    device_orders: dict[int, DeviceOrder]
    """Per device, without the actions that only mark arrivals."""
    objective: int
    """Ticks, as far as the search knows."""


class SplitSearcher:
    """Annealing over partition, mapping, policy, and the devices of W and of half of I."""

    def __init__(self, searcher: Searcher) -> None:
        self.searcher = searcher

    def begin(self, candidate: Candidate) -> SplitCandidate:
        """A candidate with everything at home."""
        home = np.full((2, len(candidate.stage_of)), -1, np.int64)
        return SplitCandidate(base=replace(candidate, device_orders=None), preferences=home)

    def anneal(
        self, candidate: SplitCandidate, *, iterations: int, temperature: tuple[float, float], seed: int
    ) -> SplitCandidate:
        """Simulated annealing of stages and of who runs I and W, from `candidate`."""
        searcher, cooling = (
            self.searcher,
            Cooling(steps=iterations, first=temperature[0], last=temperature[1], seed=seed),
        )
        found, preferences, objective = anneal_split(
            searcher.layers, searcher.rules, searcher.instance.pinned, solution_of(candidate.base),
            candidate.preferences, cooling, searcher.by_span,
        )  # fmt: skip
        base = candidate_of(found, objective=int(objective.amount), fit=int(objective.fit))
        return SplitCandidate(base=base, preferences=preferences)

    def order(self, candidate: SplitCandidate, *, iterations: int, temperature: float, seed: int) -> SplitOrders | None:
        """The device orders of the policy, improved; None if they break the memory."""
        base, by_span = candidate.base, self.searcher.by_span
        own = self.searcher.layers, solution_of(base), candidate.preferences
        net, extra = net_split(*own)
        device_orders = np.zeros((len(net.devices), longest_order(net)), np.int32)
        lengths = np.zeros(len(net.devices), np.int64)
        makespan, span, _ = play(
            net, make_policy(net, base.policy_params, len(base.groups)), device_orders, lengths, False, FAR, None
        )
        if makespan >= FAR or peak_excess(net, device_orders, lengths) > 0:
            return None
        value = span if by_span else makespan
        if iterations:
            cooling = Cooling(steps=iterations, first=temperature, last=temperature, seed=seed)
            value, _ = polish(net, device_orders, lengths, cooling, by_span, np.zeros(1, np.int64))
        return SplitOrders(
            candidate=candidate,
            at=places(*own),
            device_orders=self._orders(
                net, extra, device_orders=device_orders, lengths=lengths, num_stages=len(base.groups)
            ),
            objective=int(value),
        )

    def _orders(
        self, net: Net, extra: Integers, *, device_orders: ShortIntegers, lengths: Integers, num_stages: int
    ) -> dict[int, DeviceOrder]:
        """Without marks, and with the stages that the stage replicas belong to."""
        found: dict[int, DeviceOrder] = {}
        for device, device_order in decode(
            net, device_orders, lengths=lengths, first=self.searcher.first_member
        ).items():
            kept: DeviceOrder = []
            for kind, stage, microbatch in device_order:
                if stage < num_stages:
                    kept.append((kind, stage, microbatch))
                    continue
                home, role = extra[stage - num_stages].tolist()
                if role == HALF and kind == INPUT_GRAD:
                    kept.append((INPUT_GRAD, home, microbatch))
                elif role != HALF and kind in (WEIGHT_GRAD, BACKWARD):
                    kept.append((WEIGHT_GRAD, home, microbatch))
            if kept:
                found[device] = kept
        return found
