"""Fully sharded data parallelism (FSDP2, ZeRO-3): one stage, every device a replica that holds an r-th of all state."""

from collections.abc import Iterator
from dataclasses import replace

from planner.baselines.applicability import DoesNotApplyError, require_choices
from planner.baselines.data_parallel import make_replicated_stage, make_single_stage_plan
from planner.layout.costs import CostModel
from planner.plan import Plan
from planner.problem import Problem

NAME = "fully sharded data parallel"


def make_fully_sharded_plan(costs: CostModel, *, recompute: bool = False) -> Plan:
    """Forward and backward of one microbatch after the other; raises DoesNotApplyError where there is no such plan."""
    (stage,) = make_replicated_stage(costs)
    stages = (replace(stage, shard="full", recompute=recompute),)
    if not stages[0].is_fully_sharded:
        raise DoesNotApplyError("shards over several devices, and has one")
    if any(len(group) > 1 for group in stage.replicas):
        raise DoesNotApplyError("shards over single devices, and is given groups of several")
    require_choices(costs, stages)
    return make_single_stage_plan(costs, stages)


def allowing_full_shards(problem: Problem) -> Problem:
    """The problem under options that allow such plans; raises ValueError with the reason where nothing does."""
    shard = "allow" if problem.options.shard_optimizer == "never" else problem.options.shard_optimizer
    return replace(problem, options=replace(problem.options, fully_shard=True, shard_optimizer=shard))


def recompute_choices(problem: Problem) -> Iterator[bool]:
    """Whether it recomputes: not at first, and then, where the options offer it."""
    yield False
    if problem.options.recompute:
        yield True
