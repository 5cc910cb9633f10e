"""Which stages are held in parts by their replicas (`fully_shard`), where that is asked for, and what is against it."""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import nn

from planner.errors import PlanError
from planner.execute.table.layout import Layout
from planner.execute.torch_versions.supported import show, torch_version
from planner.execute.training import Training
from planner.layout.gathers import Rank, gathering_ranks
from planner.plan import Plan

OLDEST = (2, 13)
"""Where one replica has no gradient it has to reduce zeros, for which the others wait; older ones were not tried."""

_REMEDY = "or run without fully_shard"


def find_fully_sharded(
    plan: Plan, training: Training, *, layout: Layout, layers: Sequence[Mapping[str, nn.Module]], is_asked: bool = True
) -> frozenset[int]:
    """The stages with `shard` and replicas; unless that `is_asked` for, those whose weights the plan shards.

    `layers`: per stage its layers on the meta device, by name.

    Raises ValueError if there are none, or if one of them cannot be run so: with the stage, the reason and the remedy.
    """
    if torch_version() < OLDEST:
        what = "fully_shard" if is_asked else "sharding weights (max_active_stages, fully_shard)"
        raise ValueError(
            f"torch {torch.__version__} is installed, but {what} needs more; install {show(OLDEST)} or later"
        )
    gathered = [number for rank in _gathering_ranks(plan) for number in rank.stages]
    sharded = [n for n, stage in enumerate(plan.stages) if stage.shard != "none" and layout.num_replicas_of(n) > 1]
    planned = {*gathered, *(number for number in sharded if plan.stages[number].is_fully_sharded)}
    found = sharded if is_asked else sorted(planned)
    if not found:
        raise ValueError(
            "fully_shard is set, but no stage of the plan has replicas that shard; plan with pipeplan plan "
            f"--shard-optimizer allow (or always), {_REMEDY}"
        )
    for number in found:
        faults = [*_faults_of_plan(number, training, layout=layout)]
        remedy = "or plan without max_active_stages and fully_shard" if number in planned else _REMEDY
        for text in (*faults, *_faults_of_layers(training, layers[number])):
            raise ValueError(f"stage {number} would be fully sharded, but {text}, {remedy}")
    return frozenset(found)


def _gathering_ranks(plan: Plan) -> tuple[Rank, ...]:
    """Raises ValueError where a plan gathers otherwise than ranks of devices can."""
    try:
        return gathering_ranks(plan)
    except PlanError as error:
        raise ValueError(f"{error}; plan again, or without max_active_stages") from None


def _faults_of_plan(number: int, training: Training, *, layout: Layout) -> Iterator[str]:
    if layout.dealing or training.deal is not None:
        yield (
            "its replicas are dealt microbatches of their own, so that they do not gather its weights together; plan "
            "microbatches of one size, without a dealing"
        )
    if layout.width(number) > 1:
        yield f"it is run by groups of {layout.width(number)} devices; plan with max_width = 1"
    if layout.parts_of(number):
        yield "its I or W is elsewhere than its F; plan with split_placement = false"


def _faults_of_layers(training: Training, layers: Mapping[str, nn.Module]) -> Iterator[str]:
    for name, layer in layers.items():
        trained = {each.dtype for each in layer.parameters() if each.requires_grad}
        if len(trained) > 1:
            kinds = " and ".join(sorted(str(kind).removeprefix("torch.") for kind in trained))
            yield f"layer {name!r} trains parameters of {kinds}, which torch reduces together; give it one type"
        if training.float32_gradients and trained & {torch.bfloat16, torch.float16}:
            yield (
                f"torch adds up the gradients of layer {name!r} in the type of its parameters; set float32_gradients = "
                "False"
            )
