"""Plans whose devices hold two stages in a V and run DualPipeV with a whole backward: DeepSpeed 0.19.8's engine.

Rank r of P holds stages r and 2 P - 1 - r. DeepSpeed's `DualPipeVSchedule` puts no W off, and wants 2 P microbatches.
"""

from collections import Counter
from dataclasses import replace
from typing import Literal

from planner.actions import Action
from planner.export.looped_pipelines import first_difference, require_whole_pipelines
from planner.plan import Plan, Stage
from planner.problem import Problem

PROGRAM = "DeepSpeed's DualPipeV"


def is_v(plan: Plan) -> bool:
    """Whether the stages go down the ranks and up again, two on each."""
    count = len(plan.stages)
    held = [stage.replicas for stage in plan.stages]
    return count % 2 == 0 and held == held[::-1] and len(set(held)) == count // 2


def _v_ranks(plan: Plan) -> tuple[tuple[str, ...], ...]:
    """The devices of every rank of the pipeline, replica by replica; raises ValueError if the stages are no V."""
    require_whole_pipelines(plan, what=PROGRAM)
    ranks = tuple(stage.replicas for stage in plan.stages[: len(plan.stages) // 2])
    held = tuple(tuple(device for group in rank for device in group) for rank in ranks)
    devices = [device for rank in held for device in rank]
    if not is_v(plan) or len(set(devices)) < len(devices):
        shown = ", ".join(repr(stage.replicas[0][0]) for stage in plan.stages[:8])
        raise ValueError(
            f"the stages are on {shown}, but {PROGRAM} engine needs two per rank, down the ranks and up again; plan "
            "with --target deepspeed-dualpipev"
        )
    return held


def v_orders(problem: Problem, stages: tuple[Stage, ...]) -> list[tuple[Action, ...]]:
    """What every rank runs; raises ValueError for fewer microbatches than two per rank."""
    ranks, count = len(stages) // 2, problem.num_microbatches
    if count < 2 * ranks:
        raise ValueError(
            f"{count} microbatches on {ranks} ranks, but {PROGRAM} engine needs at least two per rank; plan with "
            f"num_microbatches = {2 * ranks} or more, or for another program (pipeplan targets)"
        )
    backward: list[Literal["B", "I"]] = ["B" if problem.profile.trains(each.layers) else "I" for each in stages]
    orders = []
    for rank in range(ranks):
        stage_of = (rank, len(stages) - 1 - rank)
        seen: Counter[str] = Counter()
        order = []
        for step in _steps(rank, ranks=ranks, count=count):
            stage = stage_of[int(step[1])]
            order.append(Action("F" if step[0] == "F" else backward[stage], stage, seen[step]))
            seen[step] += 1
        orders.append(tuple(order))
    return orders


def _steps(rank: int, *, ranks: int, count: int) -> list[str]:
    """F and B of phases 0 (down the ranks) and 1 (up again), in the eight steps of the engine's schedule."""
    after = ranks - rank - 1
    return (
        ["F0"] * 2 * after
        + ["F0", "F1"] * (rank + 1)
        + ["B1", "F1"] * after
        + ["F0", "B1", "F1", "B0"] * (count - 2 * ranks + rank + 1)
        + ["B1", "F1", "B0"] * after
        + ["B1", "B0"] * (rank + 1)
        + ["B0"] * after
    )


def as_dual_pipe_v(problem: Problem, plan: Plan) -> Plan:
    """The same stages in the only order that there is; raises ValueError if the stages are no V."""
    ranks = _v_ranks(plan)
    orders = v_orders(problem, plan.stages)
    schedule = {device: orders[number] for number, rank in enumerate(ranks) for device in rank}
    return replace(plan, schedule=schedule, evidence=None)


def require_dual_pipe_v(problem: Problem, plan: Plan) -> tuple[tuple[str, ...], ...]:
    """The ranks of a plan that is run as it is written; raises ValueError that names the first difference."""
    wanted = as_dual_pipe_v(problem, plan).schedule
    for device, order in wanted.items():
        has = tuple(plan.schedule[device])
        if has != order:
            at, runs, needed = first_difference(has, order)
            raise ValueError(
                f"{device!r} runs {runs} as action {at}, and {PROGRAM} engine runs {needed}; plan with --target "
                "deepspeed-dualpipev"
            )
    return _v_ranks(plan)
