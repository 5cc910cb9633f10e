"""Which plans are alike: what a plan does, without where its cuts are and which device does it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from planner.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanKind:
    """Two plans differ in kind if they differ in one of these."""

    num_stages: int
    """Stages of the pipeline."""
    replicas: tuple[int, int]
    """Fewest and most replicas of a stage."""
    width: int
    """Most devices that share the layers of a stage."""
    chunks: int
    """Most stages that a device holds."""
    recompute: Literal["none", "some", "all"]
    """Layers that recompute their activations."""
    backward: Literal["whole", "split", "elsewhere"]
    """Whether I and W run apart anywhere, and whether on other devices than F."""
    fills_first: bool
    """Whether every device runs all its forwards before its first backward, as GPipe does."""
    shard: Literal["none", "some", "all", "full"] = "none"
    """Stages with several replicas that shard the optimizer's state; `full`: and all else."""
    microbatch_size: int | None = None
    """Samples of a microbatch, where that was decided."""
    active: int | None = None
    """Stages of a device whose weights are gathered at a time, where they are sharded."""


def kind_of(plan: Plan) -> PlanKind:
    """Stages, replicas, width, chunks, recomputation and backward of a plan, by which alternatives differ."""
    replicas = [len(stage.replicas) for stage in plan.stages]
    flags = {name in kinds for stage in plan.stages for kinds in (stage.recomputed,) for name in stage.layers}
    flags |= {False} if any(stage.recompute_microbatches for stage in plan.stages) else set()
    return PlanKind(
        num_stages=len(plan.stages),
        replicas=(min(replicas), max(replicas)),
        width=max(len(group) for stage in plan.stages for group in stage.replicas),
        chunks=max(len({action.stage for action in order}) for order in plan.schedule.values()),
        recompute=_how_many(flags),
        backward=_backward_of(plan),
        fills_first=all(_fills_first("".join(action.kind for action in order)) for order in plan.schedule.values()),
        shard="full"
        if any(stage.is_fully_sharded for stage in plan.stages)
        else _how_many({stage.is_sharded for stage in plan.stages if len(stage.replicas) > 1}),
        microbatch_size=plan.problem.microbatch_size,
        active=plan.max_active_stages,
    )


def _how_many(flags: set[bool]) -> Literal["none", "some", "all"]:
    return "some" if len(flags) > 1 else "all" if True in flags else "none"


def _backward_of(plan: Plan) -> Literal["whole", "split", "elsewhere"]:
    if any(stage.is_split for stage in plan.stages):
        return "elsewhere"
    is_split = any(action.kind in "IW" for order in plan.schedule.values() for action in order)
    return "split" if is_split else "whole"


def _fills_first(kinds: str) -> bool:
    """`FFFBBB`, and not `F` alone before its backward: then there is nothing to fill."""
    return kinds.count("F") > 1 and "F" not in kinds.lstrip("F")


def describe_kind(kind: PlanKind) -> str:
    """The kind in a phrase."""
    fewest, most = kind.replicas
    parts = [] if kind.microbatch_size is None else [f"microbatches of {kind.microbatch_size}"]
    parts.append(_count(kind.num_stages, "stage"))
    if most > 1:
        parts.append(f"{most if fewest == most else f'{fewest} to {most}'} replicas")
    if kind.width > 1:
        parts.append(f"up to {kind.width} devices wide")
    if kind.chunks > 1:
        parts.append(f"{kind.chunks} stages per device")
    if kind.recompute != "none":
        parts.append("recomputing" if kind.recompute == "all" else "recomputing in part")
    if kind.shard != "none":
        what = {"full": "fully sharded", "all": "sharded optimizer"}
        parts.append(what.get(kind.shard, "sharded optimizer in part"))
    if kind.active is not None:
        parts.append(f"weights of {_count(kind.active, 'stage')} gathered at a time")
    parts.append({"whole": "whole backward", "split": "split backward", "elsewhere": "split placement"}[kind.backward])
    if kind.fills_first:
        parts.append("all forwards first")
    return ", ".join(parts)


def differences(best: PlanKind, other: PlanKind) -> Iterator[str]:
    """What is simpler or more elaborate in another plan than in the best, a phrase each."""
    if other.microbatch_size != best.microbatch_size:
        yield f"microbatches of {other.microbatch_size}"
    if other.num_stages != best.num_stages:
        yield f"{'fewer' if other.num_stages < best.num_stages else 'more'} stages"
    if other.replicas != best.replicas:
        yield "no replicas" if other.replicas[1] == 1 else _replicas(best.replicas, other.replicas)
    if other.width != best.width:
        yield "no wide stages" if other.width == 1 else f"stages {other.width} devices wide"
    if other.chunks != best.chunks:
        yield "one stage per device" if other.chunks == 1 else f"{other.chunks} stages per device"
    if other.recompute != best.recompute:
        yield {"none": "no recomputation", "some": "recomputes in part", "all": "recomputes"}[other.recompute]
    if other.shard != best.shard:
        what = {"none": "no sharded optimizer", "some": "shards in part", "all": "sharded optimizer"}
        yield what.get(other.shard, "fully sharded")
    if other.active != best.active:
        yield "whole weights" if other.active is None else f"{other.active} gathered at a time"
    if other.backward != best.backward:
        yield {"whole": "no split backward", "split": "split backward", "elsewhere": "split placement"}[other.backward]
    if other.fills_first != best.fills_first:
        yield "all forwards first" if other.fills_first else "backwards as early as may be"


def _replicas(best: tuple[int, int], other: tuple[int, int]) -> str:
    if other[1] != best[1]:
        return "fewer replicas" if other[1] < best[1] else "more replicas"
    if other[0] == other[1]:
        return "replicas alike"
    return "replicas uneven" if best[0] == best[1] else "replicas shared out otherwise"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
