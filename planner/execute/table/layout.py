"""Who does what when a plan is executed: a rank for every device, a row of actions for every rank.

Where replica k of every stage can be put into pipeline k, pipelines come one after the other, and within one ranks
follow the devices in order of their first stage. Otherwise ranks follow the devices in that order. The devices of a
group (a stage of width w > 1) have a rank each, and all of them run the stage's actions.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from planner.actions import Action
from planner.layout.split_placement import make_parts
from planner.plan import FULL_RECOMPUTATION, Plan, Stage


class StagePart(NamedTuple):
    """What one rank does for a stage whose I or W is placed on other devices than its F (split placement)."""

    rank: int
    kinds: str
    """The kinds of its actions, in the order F, I, W."""
    start: Fraction
    """Where its share of every I begins, in parts of a microbatch's samples."""
    end: Fraction
    """Where that ends; equal to `start` if it runs no I."""

    @property
    def has_share(self) -> bool:
        """Whether it runs some of every I."""
        return self.start < self.end


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A plan as processes see it."""

    devices: tuple[str, ...]
    """The device of every rank."""
    owners: tuple[tuple[int, ...], ...]
    """Per stage the ranks that hold it, replica after replica; the members of a replica's group ascend."""
    rows: tuple[tuple[Action, ...], ...]
    """Per rank its actions in order."""
    num_microbatches: int
    """Microbatches per iteration."""
    widths: tuple[int, ...] = ()
    """Per stage how many ranks run each of its actions together; empty: one, everywhere."""
    parts: tuple[tuple[StagePart, ...], ...] = ()
    """Per stage who runs what of it, its owner first, where I or W is elsewhere; of other stages nothing. Empty: no
    stage is split."""
    samples: tuple[tuple[int, ...], ...] = ()
    """Per stage how many samples of a planned microbatch each replica takes, of stages with equal shares nothing.
    Empty: all shares are equal."""
    dealing: tuple[tuple[int, ...], ...] = ()
    """The microbatches that replica k of every stage takes whole, for every k. Empty: every replica has its share of
    each."""

    @property
    def world_size(self) -> int:
        """How many processes run the plan."""
        return len(self.devices)

    @property
    def num_stages(self) -> int:
        """How many stages the model is cut into."""
        return len(self.owners)

    @property
    def replica_counts(self) -> tuple[int, ...]:
        """The different numbers of replicas that stages have, ascending."""
        return tuple(sorted({self.num_replicas_of(stage) for stage in range(self.num_stages)}))

    def width(self, stage: int) -> int:
        """How many ranks run each action of a stage together."""
        return self.widths[stage] if self.widths else 1

    def parts_of(self, stage: int) -> tuple[StagePart, ...]:
        """Who runs what of a stage whose I or W is elsewhere, its owner first; empty for any other."""
        return self.parts[stage] if self.parts else ()

    def helped_by(self, rank: int) -> tuple[int, ...]:
        """The stages of which a rank runs I or W without holding them, ascending."""
        return tuple(
            number
            for number, parts in enumerate(self.parts)
            if any(part.rank == rank for part in parts) and rank not in self.owners[number]
        )

    def num_replicas_of(self, stage: int) -> int:
        """Into how many parts a stage cuts every microbatch."""
        return len(self.owners[stage]) // self.width(stage)

    def samples_of(self, stage: int) -> tuple[int, ...]:
        """How many of as few equal parts of a microbatch as the plan knows each replica of a stage takes."""
        return (self.samples[stage] if self.samples else ()) or (1,) * self.num_replicas_of(stage)

    @property
    def num_parts(self) -> int:
        """Into how many equal parts a microbatch has to be cut so that no replica of any stage cuts one."""
        return math.lcm(*(sum(self.samples_of(stage)) for stage in range(self.num_stages)))

    def replica_at(self, stage: int, rank: int) -> int:
        """Which of a stage's replicas a rank belongs to."""
        return self.owners[stage].index(rank) // self.width(stage)

    def part_at(self, stage: int, rank: int) -> tuple[int, int]:
        """Which of how many parts a rank has of every microbatch that its replica of a stage takes."""
        return (0, 1) if self.dealing else (self.replica_at(stage, rank), self.num_replicas_of(stage))

    def assignment_of(self, stage: int, rank: int) -> Sequence[int]:
        """The microbatches that a rank's replica of a stage takes."""
        return self.dealing[self.replica_at(stage, rank)] if self.dealing else range(self.num_microbatches)

    def groups_of(self, stage: int) -> tuple[tuple[int, ...], ...]:
        """Per replica the ranks of its group."""
        ranks, width = self.owners[stage], self.width(stage)
        return tuple(ranks[start : start + width] for start in range(0, len(ranks), width))

    def team_of(self, stage: int, rank: int) -> tuple[int, ...]:
        """The ranks that run a stage's actions together with one of them, itself included."""
        return self.groups_of(stage)[self.replica_at(stage, rank)]

    def alike(self, stage: int) -> tuple[tuple[int, ...], ...]:
        """Per place in a group the ranks, one per replica, that hold the same part of the stage."""
        ranks, width = self.owners[stage], self.width(stage)
        return tuple(ranks[place::width] for place in range(width))

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """The stages that a rank holds, ascending."""
        return tuple(number for number, ranks in enumerate(self.owners) if rank in ranks)


def make_layout(plan: Plan) -> Layout:
    """Give every device its rank; raises ValueError for a plan that this executor cannot run as written."""
    _require_own_devices(plan)
    _require_whole_samples(plan)
    _require_sound_shares(plan)
    _require_sound_assignment(plan)
    _require_full_recomputation(plan)
    pipelines = _find_pipelines(plan)
    devices = tuple(device for pipeline in pipelines or [list(plan.devices)] for device in pipeline)
    rank = {device: number for number, device in enumerate(devices)}
    if unknown := sorted(
        device for device, device_order in plan.schedule.items() if device_order and device not in rank
    ):
        raise ValueError(f"device {unknown[0]!r} has actions but no stage; plan again")
    whole = _stages_without_weight_grad(plan)
    return Layout(
        devices=devices,
        owners=tuple(
            tuple(member for group in stage.replicas for member in sorted(rank[name] for name in group))
            for stage in plan.stages
        ),
        rows=tuple(
            tuple(
                action._replace(kind="B") if action.kind == "I" and action.stage in whole else action
                for action in plan.schedule.get(device, ())
            )
            for device in devices
        ),
        num_microbatches=plan.problem.num_microbatches,
        widths=widths_of(plan),
        parts=_parts_of(plan, rank),
        samples=tuple(stage.samples for stage in plan.stages) if _has_unequal_shares(plan) else (),
        dealing=plan.dealing,
    )


def _parts_of(plan: Plan, rank: Mapping[str, int]) -> tuple[tuple[StagePart, ...], ...]:
    if not any(stage.is_split for stage in plan.stages):
        return ()
    trained = {action.stage for device_order in plan.schedule.values() for action in device_order if action.kind == "W"}
    return tuple(
        tuple(
            StagePart(rank[part.device], part.kinds, part.start, part.end)
            for part in (make_parts(stage, has_weight_grad=number in trained) if stage.is_split else ())
        )
        for number, stage in enumerate(plan.stages)
    )


def widths_of(plan: Plan) -> tuple[int, ...]:
    """Per stage the devices of each of its groups; empty where all are single ones."""
    widths = tuple(len(stage.replicas[0]) for stage in plan.stages)
    return widths if max(widths, default=1) > 1 else ()


def _require_full_recomputation(plan: Plan) -> None:
    """A layer is run again as a whole: what other kinds keep of it, nobody has told this executor."""
    for number, stage in enumerate(plan.stages):
        for name, kind in stage.recomputed.items():
            if kind != FULL_RECOMPUTATION:
                raise ValueError(
                    f"stage {number} recomputes layer {name!r} by {kind!r}, but the executor recomputes whole layers "
                    "only; plan without recompute_kinds in the profile"
                )


def _stages_without_weight_grad(plan: Plan) -> set[int]:
    """Stages with nothing to train have no W; torch, which wants as many W as I, gets B in the place of I."""
    with_weight_grad = {
        action.stage for device_order in plan.schedule.values() for action in device_order if action.kind == "W"
    }
    return {number for number, stage in enumerate(plan.stages) if not stage.is_split} - with_weight_grad


def _has_unequal_shares(plan: Plan) -> bool:
    return any(stage.samples for stage in plan.stages)


def _find_pipelines(plan: Plan) -> list[list[str]]:
    """The devices of every pipeline, replica k of each stage in pipeline k; empty if that cannot be."""
    if widths_of(plan) or _has_unequal_shares(plan) or any(stage.is_split for stage in plan.stages):
        return []
    num_replicas = len(plan.stages[0].replicas)
    if any(len(stage.replicas) != num_replicas for stage in plan.stages):
        return []
    replica_of: dict[str, int] = {}
    for stage in plan.stages:
        for replica, (device,) in enumerate(stage.replicas):
            if replica_of.setdefault(device, replica) != replica:
                return []
    pipelines = [[device for device in plan.devices if replica_of[device] == k] for k in range(num_replicas)]
    held = [
        [[number for number, stage in enumerate(plan.stages) if (device,) in stage.replicas] for device in pipeline]
        for pipeline in pipelines
    ]
    return pipelines if all(stages == held[0] for stages in held) else []


def _require_whole_samples(plan: Plan) -> None:
    """Raise ValueError if replicas are to share a microbatch whose size the profile does not state."""
    assumed = None if plan.evidence is None else plan.evidence.assumed_divisible
    if assumed:
        raise ValueError(
            f"stage {assumed[0]} cuts every microbatch for {len(plan.stages[assumed[0]].replicas)} replicas, but the "
            "profile says microbatch_size = null; state the samples of a microbatch in the profile and plan again, or "
            "plan with max_replicas = 1"
        )


def _require_sound_shares(plan: Plan) -> None:
    """Where a stage says what its replicas take, it says so for each, and all stages speak of one microbatch."""
    totals = {sum(stage.samples) for stage in plan.stages if stage.samples}
    for number, stage in enumerate(plan.stages):
        is_sound = len(stage.samples) == len(stage.replicas) and min(stage.samples) > 0 and len(totals) == 1
        if stage.samples and not is_sound:
            raise ValueError(
                f"stage {number} has samples = {list(stage.samples)} for {len(stage.replicas)} replicas: give each of "
                "them 1 at least, in all stages those of one microbatch; plan again"
            )


def _require_sound_assignment(plan: Plan) -> None:
    """Every microbatch is dealt once, to as many pipelines as every stage has replicas, which take it whole."""
    if not plan.dealing:
        return
    count = len(plan.dealing)
    for number, stage in enumerate(plan.stages):
        if len(stage.replicas) != count:
            raise ValueError(
                f"the plan deals its microbatches to {count} pipelines, but stage {number} has {len(stage.replicas)} "
                "replicas; give each pipeline one replica of every stage"
            )
        if stage.samples or stage.is_split:
            what = "samples" if stage.samples else "input_grad_replicas or weight_grad_replicas"
            raise ValueError(
                f"stage {number} has {what}, but the plan deals whole microbatches to its replicas; plan without either"
            )
    if sorted(m for assignment in plan.dealing for m in assignment) != list(range(plan.problem.num_microbatches)):
        raise ValueError(
            f"the plan's dealing {[list(assignment) for assignment in plan.dealing]} is not one of microbatches 0 to "
            f"{plan.problem.num_microbatches - 1}, each of them once; plan again"
        )


def _require_plain_parts(stage: Stage, number: int) -> None:
    """What docs/reference/contract.md allows: one owner of one device, one device per share, and every sample once."""
    if len(stage.replicas) != 1 or len(stage.replicas[0]) != 1 or stage.recomputed:
        raise ValueError(
            f"stage {number} places gradients on other devices, which needs one replica on one device without "
            "recomputation; plan again"
        )
    inputs, weights = stage.input_grad_replicas, stage.weight_grad_replicas
    groups = [share.group for share in (*inputs, *weights)]
    total = sum(Fraction(share.numerator, share.denominator) for share in inputs)
    is_whole = all(share.numerator == share.denominator for share in weights)
    if any(len(group) != 1 for group in groups) or len({share.group for share in inputs}) < len(inputs):
        raise ValueError(f"stage {number} names a group of devices, or one twice, for its I or W; name single devices")
    if (inputs and total != 1) or len(weights) > 1 or not is_whole:
        raise ValueError(f"the shares of stage {number}'s I or W do not add up to 1; plan again")


def _require_own_devices(plan: Plan) -> None:
    """All actions of a stage run where it is, on groups of one width."""
    if not plan.stages:
        raise ValueError("the plan has no stages; plan again")
    for number, stage in enumerate(plan.stages):
        if not stage.layers:
            raise ValueError(f"stage {number} has no layers; plan again")
        if stage.is_split:
            _require_plain_parts(stage, number)
            if widths_of(plan):
                raise ValueError(
                    f"stage {number} places gradients on other devices, but other stages run on groups of devices; "
                    "plan with max_width = 1, or with split_placement = false"
                )
        if stage.shard != "none" and len(stage.replicas) == 1:
            raise ValueError(f"stage {number} has shard = {stage.shard!r} but one replica; plan with shard = 'none'")
        devices = [name for group in stage.replicas for name in group]
        if not devices or len(set(devices)) != len(devices) or not all(stage.replicas):
            raise ValueError(f"stage {number} has no device, or one twice; plan again")
        if len(sizes := sorted({len(group) for group in stage.replicas})) > 1:
            raise ValueError(
                f"stage {number} has replicas of widths {' and '.join(map(str, sizes))}, but all must hold equal parts "
                "of its layers; give its replicas one width"
            )
