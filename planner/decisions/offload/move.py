"""Which stashes travel to hosts, as a decision of the search.

The joint search knows device memory only. A step takes the stages that it holds to be good, orders them as if devices
had more memory, and lets stashes travel until the orders fit. Then single actions move, and stages or microbatches
recompute what travelled, as far as the options allow. What is better than the incumbent is proposed.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from random import Random

from planner.decisions.offload.option import DECISION
from planner.decisions.offload.plans import RULES, OffloadRule, offloading_plan
from planner.layout.costs import CostModel
from planner.layout.offload import held_on_host
from planner.layout.stage_replicas import lay_out, lay_out_stages
from planner.lowering import make_instance
from planner.plan import Plan, Stage
from planner.planning.improvers.improver import DecisionImprover, fitting_objective_ns
from planner.planning.search_state import SearchState
from planner.planning.starts.conversions import plan_of, rate, stages_of
from planner.problem import Problem
from planner.simulation.offloads import journeys
from solver_models.local_search.multistart import JointSearch
from solver_models.local_search.search import Searcher

_STARTS = 6
"""Stages that are ordered in the first step."""
_ROOMS = (1, 2, 4, 0)
"""Times a device's memory that it is given to order stages; 0: as much as all stashes take."""
_TRIES = 32
"""Changes of the best plan in a step, where rounds are counted."""
_MOST_SHARE = 0.05
"""Of the time limit that a step's changes take otherwise."""
_RECOMPUTED_SHARE = 0.3
"""Of these, changes of what recomputes."""
_FURTHEST = 6
"""Places that an action is moved at most."""
_MOST_ACTIONS = 20_000
"""Of a plan; larger ones take too long to be played one by one."""


class OffloadImprover(DecisionImprover):
    """Plans some of whose stashes travel to hosts."""

    name, finds_alone = DECISION.part, True

    def __init__(self, run: SearchState, search: JointSearch) -> None:
        self.run, self.search, self.problem = run, search, run.problem
        self.seen = set[tuple[Stage, ...]]()
        """Stages that were ordered."""
        self.best: tuple[int, Plan, OffloadRule] | None = None
        """Its own best plan, with its objective."""
        self.random = Random(run.limits.seed)

    @property
    def is_open(self) -> bool:
        """Whether the options leave it open, and plans are small enough to be played one by one."""
        return self.problem.options.offload and self.run.num_actions <= _MOST_ACTIONS

    def take_step(self) -> Iterator[None]:
        """Order stages that are new, then change the best plan."""
        for stages in self._new_stages():
            for plan in self._ordered(stages):
                self._try(plan)
                yield
        begin, tries = time.monotonic(), 0
        while self.best is not None and self._has_time(tries, time.monotonic() - begin):
            self._change()
            tries += 1
        yield

    def _has_time(self, tries: int, seconds: float) -> bool:
        """Whether a step may continue after so many changes; where rounds are counted their number alone decides."""
        if self.run.limits.max_rounds is not None:
            return tries < _TRIES
        limit = min(_MOST_SHARE * self.run.limits.time_limit_s, self.run.seconds_left)
        return seconds < limit and not self.run.should_stop()

    def _new_stages(self) -> list[tuple[Stage, ...]]:
        """Those given, or those that the search begins with, and its best ones; each once, keeping everything."""
        found, given = list[tuple[Stage, ...]](), self.run.problem.given_stages
        if given is not None:
            found.append(given)
        elif not self.seen:
            found += self.run.layouts[:_STARTS]
        if self.run.plan is not None:
            found.append(self.run.plan.stages)
        found += (stages_of(self.problem, each) for each in islice(self.search.pool, _STARTS // 2))
        plain = (
            tuple(replace(stage, recompute=False, recompute_microbatches=(), offload=()) for stage in stages)
            for stages in found
        )
        new = [stages for stages in dict.fromkeys(plain) if stages not in self.seen]
        self.seen.update(new)
        return new

    def _ordered(self, stages: tuple[Stage, ...]) -> Iterator[Plan]:
        """The stages in the best order of a policy on devices with more memory than they have."""
        for times in _ROOMS:
            roomy = _with_room(self.problem, stages, costs=self.run.costs, times=times)
            searcher = Searcher(make_instance(roomy, CostModel(roomy)))
            candidate = rate(roomy, searcher, stages=stages)
            if candidate.is_feasible:
                yield replace(plan_of(roomy, searcher, candidate=candidate), problem=self.problem.reference())

    def _try(self, plan: Plan, *, rules: tuple[OffloadRule, ...] = RULES) -> None:
        """Let stashes of a plan travel, by the best of some rules; keep what is no worse than all before."""
        for rule in rules:
            made = offloading_plan(self.problem, plan, costs=self.run.costs, rule=rule)
            objective = None if made is None else self._objective_ns(made)
            if made is not None and objective is not None and (self.best is None or objective <= self.best[0]):
                self.best = objective, made, rule
        if self.best is not None and (self.run.incumbent_ns is None or self.best[0] < self.run.incumbent_ns):
            self.run.propose(self.best[1], source=self.name)

    def _change(self) -> None:
        """Move an action of the best plan, or change what recomputes, and let stashes travel anew."""
        assert self.best is not None
        _, plan, rule = self.best
        changed = self._recomputing(plan) if self.random.random() < _RECOMPUTED_SHARE else self._reordered(plan)
        if changed is not None:
            self._try(changed, rules=tuple({rule, self.random.choice(RULES)}))

    def _reordered(self, plan: Plan) -> Plan | None:
        """The plan with one action a few places earlier, on all devices of the same order; None if that cannot be."""
        order = plan.schedule[self.random.choice(list(plan.schedule))]
        place = self.random.randrange(len(order))
        before = max(0, place - self.random.randint(1, _FURTHEST))
        action = order[place]
        if any((each.stage, each.microbatch) == (action.stage, action.microbatch) for each in order[before:place]):
            return None
        changed = (*order[:before], action, *order[before:place], *order[place + 1 :])
        schedule = {device: changed if own == order else own for device, own in plan.schedule.items()}
        return replace(plan, schedule=schedule)

    def _recomputing(self, plan: Plan) -> Plan | None:
        """A stage recomputes everything, some microbatches of those that travel, or less; None if none may."""
        number, options = self.random.randrange(len(plan.stages)), self.problem.options
        stage = plan.stages[number]
        if not options.recompute:
            return None
        choices = [replace(stage, recompute=not stage.recompute, recompute_microbatches=(), offload=())]
        moved = [each.microbatch for each in stage.offload]
        if options.recompute_microbatches and moved:
            some = self.random.sample(moved, self.random.randint(1, len(moved)))
            chosen = tuple(sorted({*stage.recompute_microbatches, *some}))
            choices.append(replace(stage, recompute=True, recompute_microbatches=chosen, offload=()))
        if stage.recompute_microbatches:
            kept = self.random.choice(stage.recompute_microbatches)
            rest = tuple(m for m in stage.recompute_microbatches if m != kept)
            choices.append(replace(stage, recompute=bool(rest), recompute_microbatches=rest, offload=()))
        stages = (*plan.stages[:number], self.random.choice(choices), *plan.stages[number + 1 :])
        return replace(plan, stages=stages)

    def _objective_ns(self, plan: Plan) -> int | None:
        """None if the plan cannot be played, or does not fit into the memory of devices and hosts."""
        objective = fitting_objective_ns(self.run, plan)
        return objective if objective is not None and self._fits_hosts(plan) else None

    def _fits_hosts(self, plan: Plan) -> bool:
        own = journeys(plan, lay_out(plan, costs=self.run.costs).replicas, cluster=self.problem.cluster)
        held: dict[str, int] = {}
        for device in dict.fromkeys(each.device for each in own):
            host = self.problem.cluster.by_name[device].host
            held[host] = held.get(host, 0) + held_on_host([each for each in own if each.device == device])
        return all(held.get(host.name, 0) <= host.memory_bytes for host in self.problem.cluster.hosts)


make_improver = OffloadImprover


def _with_room(problem: Problem, stages: tuple[Stage, ...], *, costs: CostModel, times: int) -> Problem:
    """The problem on devices with so many times their memory, or with room for all stashes, and without offload."""
    stashes = sum(each.cost.stash_bytes for each in lay_out_stages(stages, costs=costs).replicas)
    more = problem.num_microbatches * stashes
    devices = tuple(
        replace(each, memory_bytes=each.memory_bytes + (more if not times else (times - 1) * each.usable_bytes))
        for each in problem.cluster.devices
    )
    return replace(
        problem,
        cluster=replace(problem.cluster, devices=devices),
        options=replace(problem.options, offload=False),
    )
