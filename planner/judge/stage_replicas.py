"""Who runs which actions of a stage (section 2, "Replication" and "Split placement").

A stage on r groups has r stage replicas, each of which runs all its kinds of actions for its share of the samples: an
r-th, or as many as the stage says. With split placement every device that works for the stage is one: its owner, which
alone holds the state, is number 0.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from planner.judge.costs import KINDS
from planner.judge.samples import ALL_SAMPLES, NO_SAMPLES, Samples, cut
from planner.plan import DeviceGroup, Stage


class StageReplica(NamedTuple):
    """Devices that run actions of one stage together."""

    stage: int
    number: int
    """Among those of its stage."""
    group: DeviceGroup
    kinds: str
    """The kinds of actions it may run."""
    samples: Samples
    """Those for which it runs I."""

    @property
    def head(self) -> str:
        """The device that sends and receives for the group."""
        return self.group[0]


def is_split(stage: Stage) -> bool:
    """Whether a stage names other devices for its I or its W."""
    return bool(stage.input_grad_replicas or stage.weight_grad_replicas)


def is_sharded(stage: Stage) -> bool:
    """Whether a stage's replicas hold, and step, a part of the optimizer's state each."""
    return stage.shard in ("optimizer", "weights", "full") and len(stage.replicas) > 1


def is_gathered(stage: Stage) -> bool:
    """Whether they hold a part of the weights each, too, and gather them before they use them."""
    return stage.shard == "weights" and len(stage.replicas) > 1


def is_fully_sharded(stage: Stage) -> bool:
    """Whether they hold a part of all, gradients too, and gather each layer when an action comes to it."""
    return stage.shard == "full" and len(stage.replicas) > 1


def make_stage_replicas(stages: Sequence[Stage], *, has_weight_grad: Sequence[bool]) -> list[StageReplica]:
    """Who runs which actions of each stage, from the plan alone."""
    found: list[StageReplica] = []
    for number, stage in enumerate(stages):
        if is_split(stage):
            found += _split(stage, number, has_weight_grad=has_weight_grad[number])
        else:
            ranges = enumerate(zip(stage.replicas, cut(stage), strict=True))
            found += (StageReplica(number, index, group, KINDS, samples) for index, (group, samples) in ranges)
    return found


def _split(stage: Stage, number: int, *, has_weight_grad: bool) -> list[StageReplica]:
    owner = stage.replicas[0][0]
    input_grad: dict[str, Samples] = {}
    at = Fraction(0)
    for share in stage.input_grad_replicas:
        input_grad[share.group[0]] = Samples(at, at + Fraction(share.numerator, share.denominator))
        at = input_grad[share.group[0]].end
    if not input_grad:
        input_grad[owner] = ALL_SAMPLES
    weight_grad = [share.group[0] for share in stage.weight_grad_replicas] or [owner]
    found = []
    for index, device in enumerate(dict.fromkeys([owner, *input_grad, *weight_grad])):
        kinds = "F" if device == owner else ""
        kinds += "I" if device in input_grad else ""
        kinds += "W" if device in weight_grad and has_weight_grad else ""
        found.append(StageReplica(number, index, (device,), kinds, input_grad.get(device, NO_SAMPLES)))
    return found
