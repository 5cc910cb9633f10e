"""Who does what when a plan is executed: a rank for every device, a pipeline for every replica, a row for every rank.

Pipelines come one after the other; within one, ranks follow the devices in order of their first stage.
"""

from dataclasses import dataclass

from planner.actions import Action
from planner.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A plan as processes see it."""

    devices: tuple[str, ...]
    """The device of every rank."""
    num_replicas: int
    """How many pipelines run side by side, each on its share of every microbatch."""
    owners: tuple[tuple[int, ...], ...]
    """Per stage the ranks that hold it, one per pipeline."""
    rows: tuple[tuple[Action, ...], ...]
    """Per rank its actions in order."""
    num_microbatches: int
    """Microbatches per iteration."""

    @property
    def world_size(self) -> int:
        """How many processes run the plan."""
        return len(self.devices)

    @property
    def pipeline_size(self) -> int:
        """How many processes one pipeline has."""
        return self.world_size // self.num_replicas

    @property
    def num_stages(self) -> int:
        """How many stages a pipeline has."""
        return len(self.owners)

    def replica_of(self, rank: int) -> int:
        """The pipeline that a rank belongs to."""
        return rank // self.pipeline_size

    def pipeline(self, replica: int) -> range:
        """The ranks of one pipeline."""
        return range(replica * self.pipeline_size, (replica + 1) * self.pipeline_size)

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """The stages that a rank holds, ascending."""
        return tuple(number for number, ranks in enumerate(self.owners) if rank in ranks)

    def owner(self, stage: int, *, replica: int) -> int:
        """The rank that holds a stage of one pipeline."""
        return self.owners[stage][replica]

    def table(self, replica: int) -> list[list[str]]:
        """The actions of every rank of one pipeline as text."""
        return [[str(action) for action in self.rows[rank]] for rank in self.pipeline(replica)]


def make_layout(plan: Plan) -> Layout:
    """Give every device its rank; raises ValueError for a plan that this executor cannot run as written."""
    _require_own_devices(plan)
    num_replicas = _require_even_replicas(plan)
    pipelines = _pipelines(plan, num_replicas)
    devices = tuple(device for pipeline in pipelines for device in pipeline)
    rank = {device: number for number, device in enumerate(devices)}
    if unknown := sorted(device for device, word in plan.schedule.items() if word and device not in rank):
        raise ValueError(f"device {unknown[0]!r} has actions but holds no stage; plan again")
    whole = _stages_without_weight_grad(plan)
    return Layout(
        devices=devices,
        num_replicas=num_replicas,
        owners=tuple(tuple(rank[group[0]] for group in stage.replicas) for stage in plan.stages),
        rows=tuple(
            tuple(
                action._replace(kind="B") if action.kind == "I" and action.stage in whole else action
                for action in plan.schedule.get(device, ())
            )
            for device in devices
        ),
        num_microbatches=plan.problem.num_microbatches,
    )


def _stages_without_weight_grad(plan: Plan) -> set[int]:
    """Stages with nothing to train have no W; torch, which wants as many W as I, gets B in the place of I."""
    with_weight_grad = {action.stage for word in plan.schedule.values() for action in word if action.kind == "W"}
    return set(range(len(plan.stages))) - with_weight_grad


def _pipelines(plan: Plan, num_replicas: int) -> list[list[str]]:
    """The devices of every pipeline; replica k of each stage belongs to pipeline k."""
    seat: dict[str, int] = {}
    for number, stage in enumerate(plan.stages):
        for replica, (device,) in enumerate(stage.replicas):
            if seat.setdefault(device, replica) != replica:
                raise ValueError(
                    f"device {device!r} is replica {replica} of stage {number} but replica {seat[device]} of an "
                    "earlier stage; list the replicas of all stages in the same order of devices"
                )
    pipelines = [[device for device in plan.devices if seat[device] == k] for k in range(num_replicas)]
    if len({len(pipeline) for pipeline in pipelines}) > 1:
        sizes = ", ".join(str(len(pipeline)) for pipeline in pipelines)
        raise ValueError(
            f"the replicas use {sizes} devices; stages that share a device in one replica must share one in all: "
            "plan with max_stages_per_device = 1 or max_replicas = 1"
        )
    _require_like_pipelines(plan, pipelines)
    return pipelines


def _require_like_pipelines(plan: Plan, pipelines: list[list[str]]) -> None:
    """Rank r of every pipeline holds the same stages."""
    for place, devices in enumerate(zip(*pipelines, strict=True)):
        held = [
            [number for number, stage in enumerate(plan.stages) if (device,) in stage.replicas] for device in devices
        ]
        for device, stages in zip(devices, held, strict=True):
            if stages != held[0]:
                raise ValueError(
                    f"devices {devices[0]!r} and {device!r} are rank {place} of their pipelines but hold stages "
                    f"{held[0]} and {stages}; plan with max_stages_per_device = 1 or max_replicas = 1"
                )


def _require_own_devices(plan: Plan) -> None:
    """All actions of a stage run where it is, on single devices."""
    for number, stage in enumerate(plan.stages):
        if stage.is_split:
            raise ValueError(
                f"stage {number} places its I or W on other devices, but the executor runs a stage on one device; "
                "plan with split_placement = false"
            )
        for group in stage.replicas:
            if len(group) != 1:
                raise ValueError(
                    f"stage {number} spans {len(group)} devices, but a process drives one; plan with max_width = 1"
                )


def _require_even_replicas(plan: Plan) -> int:
    """All stages have as many replicas; returns how many."""
    counts = [len(stage.replicas) for stage in plan.stages]
    if not counts or min(counts) == 0:
        raise ValueError("the plan has no stages, or one without a device; plan again")
    for number, count in enumerate(counts):
        if count != counts[0]:
            raise ValueError(
                f"stage {number} has {count} replicas but stage 0 has {counts[0]}, and the executor runs whole "
                "pipelines side by side; plan with uneven_replication = false"
            )
    return counts[0]
