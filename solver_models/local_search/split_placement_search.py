"""The joint search with split placement: candidates with preferences in, better ones out (`split_placement` is
compiled).
"""

from dataclasses import dataclass, replace

import numpy as np

from solver_models.instance import BACKWARD, INPUT_GRAD, WEIGHT_GRAD, Integers, ShortIntegers, Word
from solver_models.local_search.critical_path_search import polish
from solver_models.local_search.search import Candidate, Searcher, candidate_of, decode, solution_of
from solver_models.moves.annealing import Cooling, longest_word, make_policy
from solver_models.moves.split_placement import HALF, anneal_apart, net_apart, places
from solver_models.simulation.evaluator import FAR, Net, peak_excess, play


@dataclass(frozen=True, slots=True, kw_only=True)
class ApartCandidate:
    """A joint plan with split placement as the search sees it."""

    base: Candidate
    """Partition, mapping and policy; its objective counts the preferences, its words are unused."""
    preferences: Integers
    """[2, L] device of W, and of the second half of I, of every layer; -1: that of its F."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApartOrders:
    """A candidate with the orders found for it."""

    candidate: ApartCandidate
    at: Integers
    """[2, S] devices of W and of the second half of I of every stage; -1: that of its F."""
    words: dict[int, Word]
    """Per device, without the actions that only mark arrivals."""
    objective: int
    """Ticks, as far as the search knows."""


class ApartSearcher:
    """Annealing over partition, mapping, policy, and the devices of W and of half of I."""

    def __init__(self, searcher: Searcher) -> None:
        self.searcher = searcher

    def begin(self, candidate: Candidate) -> ApartCandidate:
        """A candidate with everything at home."""
        home = np.full((2, len(candidate.stage_of)), -1, np.int64)
        return ApartCandidate(base=replace(candidate, words=None), preferences=home)

    def anneal(
        self, candidate: ApartCandidate, *, iterations: int, heat: tuple[float, float], seed: int
    ) -> ApartCandidate:
        """Anneal from `candidate`."""
        searcher, cooling = self.searcher, Cooling(steps=iterations, first=heat[0], last=heat[1], seed=seed)
        found, preferences, worth = anneal_apart(
            searcher.layers, searcher.rules, searcher.instance.pinned, solution_of(candidate.base),
            candidate.preferences, cooling, searcher.by_span,
        )  # fmt: skip
        base = candidate_of(found, objective=int(worth.amount), fit=int(worth.fit))
        return ApartCandidate(base=base, preferences=preferences)

    def order(self, candidate: ApartCandidate, *, iterations: int, heat: float, seed: int) -> ApartOrders | None:
        """The words of the policy, improved; None if they break the memory."""
        base, by_span = candidate.base, self.searcher.by_span
        own = self.searcher.layers, solution_of(base), candidate.preferences
        net, extra = net_apart(*own)
        words = np.zeros((len(net.budget), longest_word(net)), np.int32)
        lengths = np.zeros(len(net.budget), np.int64)
        makespan, span, _ = play(
            net, make_policy(net, base.policy_params, len(base.groups)), words, lengths, False, FAR, None
        )
        if makespan >= FAR or peak_excess(net, words, lengths) > 0:
            return None
        value = span if by_span else makespan
        if iterations:
            value, _ = polish(net, words, lengths, iterations, heat, seed, by_span)
        return ApartOrders(
            candidate=candidate,
            at=places(*own),
            words=self._words(net, extra, words=words, lengths=lengths, num_stages=len(base.groups)),
            objective=int(value),
        )

    def _words(
        self, net: Net, extra: Integers, *, words: ShortIntegers, lengths: Integers, num_stages: int
    ) -> dict[int, Word]:
        """Without marks, and with the stages that the lanes belong to."""
        found: dict[int, Word] = {}
        for device, word in decode(net, words, lengths=lengths, first=self.searcher.first_member).items():
            kept: Word = []
            for kind, stage, microbatch in word:
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
