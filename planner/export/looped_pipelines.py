"""Plans whose devices hold stages in a loop and run 1F1B, interleaved or not: the order of Megatron and DeepSpeed.

Rank p of P holds stages p, P + p, 2 P + p and so on. Such programs know nothing else, so that a plan is either exactly
this or cannot be run; `as_looped` gives the plan of this kind with the same stages.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest

from planner.actions import Action
from planner.export.samples import require_told
from planner.plan import Plan, Stage
from planner.problem import Problem


def require_whole_pipelines(plan: Plan, *, width: int = 1, what: str) -> None:
    """Raise ValueError unless stages have as many whole replicas of one width, and `what` can be told all they use."""
    for number, stage in enumerate(plan.stages):
        if stage.is_split or any(len(group) != width for group in stage.replicas):
            wanted = "whole single devices" if width == 1 else f"whole groups of {width} devices, as stage 0 is"
            raise ValueError(f"stage {number} is not on {wanted}; plan with max_width = 1")
        if len(stage.replicas) != len(plan.stages[0].replicas):
            raise ValueError(
                f"stage {number} has {len(stage.replicas)} replicas but stage 0 has {len(plan.stages[0].replicas)}, "
                "but data parallelism copies whole pipelines; plan with uneven_replication = false"
            )
    require_told(plan, what=what)


def first_difference(has: Sequence[Action], wanted: Sequence[Action]) -> tuple[int, str, str]:
    """Where two orders begin to differ, and what each has there."""
    pairs = enumerate(zip_longest(has, wanted, fillvalue="nothing"))
    return next((at, str(mine), str(theirs)) for at, (mine, theirs) in pairs if mine != theirs)


def _looped_ranks(plan: Plan, *, has_widths: bool = False) -> tuple[tuple[str, ...], ...]:
    """The devices of every rank of the pipeline, replica by replica; raises ValueError if they are no loop.

    `has_widths`: a replica may be a group of devices, all groups of one width.
    """
    require_whole_pipelines(plan, width=len(plan.stages[0].replicas[0]) if has_widths else 1, what="whole pipelines")
    ranks = tuple(dict.fromkeys(stage.replicas for stage in plan.stages))
    for number, stage in enumerate(plan.stages):
        if stage.replicas != ranks[number % len(ranks)]:
            raise ValueError(
                f"stage {number} is on {stage.replicas[0][0]!r}, but a loop of {len(ranks)} ranks needs it on "
                f"{ranks[number % len(ranks)][0][0]!r}; plan with max_stages_per_device = 1"
            )
    if len(plan.stages) % len(ranks):
        raise ValueError(
            f"{len(plan.stages)} stages are not a multiple of {len(ranks)} ranks; plan with max_stages_per_device = 1"
        )
    held = tuple(tuple(device for group in rank for device in group) for rank in ranks)
    if len({device for rank in held for device in rank}) < sum(map(len, held)):
        raise ValueError("a device belongs to several ranks; plan with max_stages_per_device = 1")
    return held


def looped_orders(
    problem: Problem, stages: tuple[Stage, ...], *, num_ranks: int, in_round: int | None = None
) -> list[tuple[Action, ...]]:
    """What every rank runs; raises ValueError where the interleaved order does not exist.

    One chunk: rank p runs min(P - p - 1, M) forwards, then a forward and a backward in turn. With v chunks it runs
    2 (P - p - 1) + (v - 1) R forwards first, and R microbatches (`in_round`, else P) pass one chunk after another.
    """
    count, chunks, each = problem.num_microbatches, len(stages) // num_ranks, in_round or num_ranks
    if chunks > 1 and count % each:
        raise ValueError(
            f"{count} microbatches are not a multiple of {num_ranks} ranks, as several stages per rank need; plan with "
            "max_stages_per_device = 1"
        )
    backward = ["B" if problem.profile.trains(stage.layers) else "I" for stage in stages]
    forward_order = [(chunk, m) for first in range(0, count, each) for chunk in range(chunks)
             for m in range(first, min(first + each, count))]  # fmt: skip
    orders = []
    for rank in range(num_ranks):
        ahead = num_ranks - rank - 1 if chunks == 1 else 2 * (num_ranks - rank - 1) + (chunks - 1) * each
        forwards = [Action("F", chunk * num_ranks + rank, m) for chunk, m in forward_order]
        backwards = [((chunks - 1 - chunk) * num_ranks + rank, m) for chunk, m in forward_order]
        order = forwards[:ahead]
        for number, (stage, microbatch) in enumerate(backwards):
            order += forwards[ahead + number : ahead + number + 1]
            order.append(Action(backward[stage], stage, microbatch))  # type: ignore[arg-type]
        orders.append(tuple(order))
    return orders


def require_some_loop(problem: Problem) -> None:
    """Raise ValueError where no plan stands in a loop, for the stages, or their devices, that are decided."""
    options, count, stages = problem.options, problem.num_microbatches, problem.given_stages
    if options.partition is None:
        return
    if stages is not None and all(stage.replicas for stage in stages):
        as_looped(problem, Plan(problem=problem.reference(), stages=stages, schedule={}), has_widths=True)
        return
    size = len(options.partition)
    most = min(size, len(problem.cluster.devices))
    divisors = [ranks for ranks in range(1, most + 1) if size % ranks == 0]
    held = [ranks for ranks in divisors if size // ranks <= options.max_stages_per_device]
    if not any(ranks == size or count % ranks == 0 for ranks in held):
        raise ValueError(
            f"partition has {size} stages, which no number of ranks can share equally (max_stages_per_device = "
            f"{options.max_stages_per_device}, num_microbatches = {count}); give another partition, or leave it out"
        )


def as_looped(problem: Problem, plan: Plan, *, has_widths: bool = False, in_round: int | None = None) -> Plan:
    """The same stages in the only order that there is; raises ValueError if the stages are no loop."""
    ranks = _looped_ranks(plan, has_widths=has_widths)
    orders = looped_orders(problem, plan.stages, num_ranks=len(ranks), in_round=in_round)
    schedule = {device: orders[number] for number, rank in enumerate(ranks) for device in rank}
    return replace(plan, schedule=schedule, evidence=None)


def require_looped(problem: Problem, plan: Plan, *, what: str, has_widths: bool = False) -> tuple[tuple[str, ...], ...]:
    """The ranks of a plan that is run as it is written; raises ValueError that names the first difference."""
    ranks = _looped_ranks(plan, has_widths=has_widths)
    wanted = as_looped(problem, plan, has_widths=has_widths).schedule
    for number, rank in enumerate(ranks):
        for device in rank:
            if tuple(plan.schedule[device]) != wanted[device]:
                at, runs, needed = first_difference(plan.schedule[device], wanted[device])
                raise ValueError(
                    f"rank {number} ({device}) runs {runs} as action {at}, and {what} runs {needed}, which supports "
                    f"1F1B only; plan with --target {what.split()[0].lower().removesuffix('-lm')}"
                )
    return ranks
