"""Which stages shard their weights, and how many of a device are gathered at a time, as a decision of the search.

The joint search knows whole weights only. A step looks at the incumbent and at what the joint search holds to be good.
All ranks of a plan that could gather do so, with every number of active stages, and then every rank but one. Devices of
a rank get one order, that of their first. The first step also orders stages anew for the memory that gathering leaves
(`rank_layouts`). What is better than the incumbent is proposed.
"""

from collections.abc import Iterator
from itertools import islice

from planner.decisions.max_active_stages.option import DECISION
from planner.decisions.max_active_stages.plans import gathering_plans
from planner.decisions.max_active_stages.rank_layouts import even_layouts, ordered_plans
from planner.plan import Plan, Stage
from planner.planning.improvers.improver import DecisionImprover
from planner.planning.search_state import SearchState
from planner.planning.starts.conversions import plan_of
from solver_models.local_search.multistart import JointSearch

_STARTS = 6
"""Candidates of the joint search that are looked at in a step."""


class GatherImprover(DecisionImprover):
    """Plans whose stages gather their weights, made from plans whose weights are whole."""

    name, finds_alone = DECISION.part, True

    def __init__(self, run: SearchState, search: JointSearch) -> None:
        self.run, self.search, self.problem = run, search, run.problem
        self.seen: set[tuple[Stage, ...]] = set()
        """Stages that were looked at, as the joint search has them."""
        self.most = self.problem.options.max_active_stages or 0

    @property
    def is_open(self) -> bool:
        """Whether the options leave it open, and plans are small enough to be played one by one."""
        return self.problem.options.max_active_stages is not None and self.problem.may_shard and not self.run.is_large

    def take_step(self) -> Iterator[None]:
        """The best way to gather of plans that were not looked at yet."""
        for stages in () if self.seen else dict.fromkeys(self._layouts()):
            self.propose_best(ordered_plans(self.problem, stages, most=self.most))
            yield
        for plan in self._starts():
            if plan.stages not in self.seen:
                self.seen.add(plan.stages)
                self.propose_best(gathering_plans(plan, most=self.most))
                yield

    def _layouts(self) -> Iterator[tuple[Stage, ...]]:
        """Stages to be ordered anew: those given, even ones, and those that the search begins with."""
        if (given := self.run.problem.given_stages) is not None:
            yield given
            return
        yield from filter(self.problem.is_as_given, even_layouts(self.problem))
        yield from self.run.layouts[:_STARTS]

    def _starts(self) -> Iterator[Plan]:
        if self.run.plan is not None and self.run.plan.max_active_stages is None:
            yield self.run.plan
        yield from self.run.played
        candidates = (each for each in (*self.search.pool, *self.search.elite) if each.is_feasible)
        for candidate in islice(candidates, _STARTS):
            yield plan_of(self.problem, self.search.searcher, candidate=candidate)


make_improver = GatherImprover
