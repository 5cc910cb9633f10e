"""Which layers recompute, and by which kind, as a decision of the search.

Every step begins from one of the good joint candidates, which recompute stage by stage, and from one of the candidates
with kinds of their own, in turn. What is proposed has kinds chosen for its very orders
(`solver_models.recomputation.layer_recomputation`), so it is never worse than what it began from.
"""

from collections.abc import Callable, Iterator
from functools import partial

import numpy

from planner.decisions.recompute_layers.option import DECISION
from planner.lowering import choice_of, make_plan_from_orders, make_stages
from planner.plan import Plan
from planner.planning.improvers.improver import DecisionImprover
from planner.planning.search_state import SearchState
from planner.planning.starts.conversions import candidate_of
from solver_models.local_search.multistart import JointSearch
from solver_models.local_search.search import Candidate, Searcher
from solver_models.recomputation.layer_recomputation import ChosenKinds, LayerRecomputation
from solver_models.simulation.columns import RECOMPUTING
from solver_models.starts.recomputing_cuts import RecomputingCuts

_WORK = 1.0
"""CP-SAT's deterministic limit for one choice of kinds."""
_CUT_PRECISION = 200
"""Parts of the whole work in which their longest stages are distinguished."""
_NUM_CUTS = 24
"""Cuts that are balanced with their recomputation to begin with."""
_FRESH_STARTS = 6
"""How many candidates of the joint search are begun from in turn."""
_ANNEAL_SHARE = 0.5
"""Part of a step's work that change partition and mapping, layers keeping their kinds."""
_POLISH_TEMPERATURE = 0.0003
"""Temperature of the rest, which improves orders."""
_POOL_SIZE = 6
"""Candidates kept."""


class RecomputeImprover(DecisionImprover):
    """Candidates with kinds of recomputation of their own, better with every step."""

    name = DECISION.part

    def __init__(self, run: SearchState, search: JointSearch) -> None:
        self.run, self.search = run, search
        self.pool: list[ChosenKinds] = []
        self.step, self.turn_s = 0, 0.0
        """Turns so far, and seconds of the last task that was taken in."""
        self.recomputation: LayerRecomputation | None = None
        """The search over layers; None where stages recompute as a whole."""
        if self.is_open:
            self.recomputation = LayerRecomputation(run.instance, params=run.params, work=_WORK)

    @property
    def is_open(self) -> bool:
        """Whether the options leave open which layers recompute."""
        return self.run.problem.options.recompute_layers

    def begin(self, given: Candidate | None) -> Iterator[None]:
        """Cuts balanced with their recomputation, and what the joint search begins with, each with its best kinds."""
        del given
        if self.run.start is not None:
            self._take_in(self._given(self.run.start), 0.0)
        tasks = [partial(self._realise, None, start, number=0) for start in self._first_starts()]
        for first in range(0, len(tasks), 2):
            self.run.window.make_room(2)
            self.run.window.start(tasks[first : first + 2], self._take_in, expected_s=self.turn_s)
            yield
        self.run.window.drain()

    def _given(self, plan: Plan) -> ChosenKinds | None:
        """What a plan recomputes, as a candidate; None if it is not feasible."""
        assert self.recomputation is not None
        choice = choice_of(self.run.problem, plan.stages)
        candidate = candidate_of(self.run.problem, self.recomputation.searcher(choice), plan=plan)
        return ChosenKinds(choice=choice, candidate=candidate) if candidate.is_feasible else None

    def _first_starts(self) -> Iterator[Candidate]:
        assert self.recomputation is not None
        relaxed = self.recomputation.relaxed
        groups = tuple((device,) for device in range(self.run.instance.num_devices))
        if self.run.instance.num_layers >= len(groups):
            cuts = RecomputingCuts(self.run.instance, precision=_CUT_PRECISION)
            for stage_of in cuts.cuts(most=_NUM_CUTS):
                yield relaxed.make_candidate(stage_of, groups, modes=numpy.full(len(groups), RECOMPUTING))
        yield from self.search.pool[:_FRESH_STARTS]

    def take_step(self) -> Iterator[None]:
        """Kinds for a joint candidate, and a better candidate from one of our own; what is better is proposed."""
        self.run.window.make_room(2)
        self.step += 1
        tasks = list[Callable[[], ChosenKinds | None]]()
        fresh = [*self.search.polished[:2], *self.search.pool[:_FRESH_STARTS]]
        if fresh:
            chosen = fresh[self.step % len(fresh)]
            own = self.search.searcher if chosen.is_feasible else None
            tasks.append(partial(self._realise, own, chosen, number=2 * self.step))
        if self.pool:
            start = self.pool[self.step // 2 % len(self.pool)] if self.step % 2 else self.pool[0]
            tasks.append(partial(self._improve, start, 2 * self.step + 1, steps=self.search.steps))
        self.run.window.start(tasks, self._take_in, expected_s=self.turn_s)
        yield

    def _realise(self, searcher: Searcher | None, start: Candidate, *, number: int) -> ChosenKinds | None:
        """The best kinds for a candidate's orders, or for those that it has where every layer keeps the least."""
        assert self.recomputation is not None
        relaxed, best, starts = self.recomputation.relaxed, None, []
        if searcher is not None:
            starts.append((searcher, start))
        modes = start.modes | RECOMPUTING
        starts.append((relaxed, relaxed.rate(start.stage_of, start.groups, modes=modes)))
        for own, each in starts:
            found = self.recomputation.realise(own, each, seed=self._seed(number)) if each.is_feasible else None
            if found is not None and (best is None or found.candidate.sort_key < best.candidate.sort_key):
                best = found
        return best

    def _improve(self, start: ChosenKinds, number: int, *, steps: int) -> ChosenKinds:
        assert self.recomputation is not None
        annealed, seed = int(_ANNEAL_SHARE * steps), self._seed(number)
        temperatures = self.run.params.anneal.heats
        temperature = temperatures[number // 2 % len(temperatures)]
        best = self.recomputation.anneal(start, iterations=max(1, annealed), temperature=temperature, seed=seed)
        return self.recomputation.polish(
            best, iterations=max(1, steps - annealed), temperature=_POLISH_TEMPERATURE, seed=seed
        )

    def _seed(self, number: int) -> int:
        return (self.run.limits.seed * 1_000_003 + number) % 2**31

    def _take_in(self, found: ChosenKinds | None, seconds: float) -> None:
        self.turn_s = seconds
        if found is None:
            return
        others = [each for each in self.pool if each.candidate.sort_key != found.candidate.sort_key]
        self.pool = sorted([*others, found], key=lambda each: each.candidate.sort_key)[:_POOL_SIZE]
        best = self.run.incumbent_ns
        if best is None or found.candidate.objective < best:
            self.run.propose(self._plan_of(found), source=self.name)

    def _plan_of(self, found: ChosenKinds) -> Plan:
        assert self.recomputation is not None
        own = found.candidate
        device_orders, _ = self.recomputation.searcher(found.choice).device_orders(own)
        stages = make_stages(self.run.problem, own.stage_of, groups=own.groups, modes=own.modes, choice=found.choice)
        return make_plan_from_orders(self.run.problem, stages, device_orders=device_orders)


make_improver = RecomputeImprover
