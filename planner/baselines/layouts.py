"""Where a pipelined method puts its stages: which devices it takes, and which layers each of them holds."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

from planner.baselines.applicability import DoesNotApplyError, require_chunks
from planner.baselines.partitions import Partition, even_layers, smallest_largest_stage
from planner.layout.costs import CostModel
from planner.plan import DeviceGroup, Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlacement:
    """Which device holds which stage, devices being numbered along the pipeline."""

    name: str
    """In a phrase, for messages."""
    chunks: int
    """Stages per device."""
    devices_of: Callable[[int], tuple[int, ...]]
    """For a number of devices: the device number of every stage, in stage order."""


def _one_each(num_devices: int) -> tuple[int, ...]:
    return tuple(range(num_devices))


def _looped(num_devices: int, *, chunks: int) -> tuple[int, ...]:
    return tuple(range(num_devices)) * chunks


def _zigzag(num_devices: int, *, chunks: int) -> tuple[int, ...]:
    directions = (tuple(range(num_devices)), tuple(reversed(range(num_devices))))
    return tuple(device for chunk in range(chunks) for device in directions[chunk % 2])


ONE_EACH = StagePlacement(name="one stage per device", chunks=1, devices_of=_one_each)


@cache
def looped(chunks: int) -> StagePlacement:
    """Stage s on device s mod D."""
    return StagePlacement(name="stage s on device s mod D", chunks=chunks, devices_of=partial(_looped, chunks=chunks))


@cache
def zigzag(chunks: int) -> StagePlacement:
    """Down the row of devices and up again, as often as there are chunks; with two a V."""
    name = "stages d and 2D-1-d on device d" if chunks == 2 else "down the devices and up again in turn"
    return StagePlacement(name=name, chunks=chunks, devices_of=partial(_zigzag, chunks=chunks))


LOOPED, V_SHAPED = looped(2), zigzag(2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """One way to cut the model into stages."""

    name: str
    """As it stands in a baseline's name."""
    partition: Callable[[CostModel, tuple[str, ...]], Partition]
    """The layers of every stage, given the (first) device of every stage."""


EVEN = Cut(name="even layers", partition=lambda costs, devices: even_layers(costs.problem, len(devices)))
SMALLEST_LARGEST = Cut(name="largest stage minimised", partition=smallest_largest_stage)
TRANSFERS_TOO = Cut(
    name="largest stage or transfer minimised", partition=partial(smallest_largest_stage, counts_transfers=True)
)
GIVEN = Cut(name="given partition", partition=lambda costs, _: costs.problem.options.partition or ())


def make_stages(costs: CostModel, placement: StagePlacement, *, cut: Cut) -> tuple[Stage, ...]:
    """The stages of a pipeline over all devices in listed order, or over as many as there are layers for.

    Raises DoesNotApplyError if the options ask for something else than `placement` can be.
    """
    require_chunks(costs.problem, placement.chunks)
    groups = _groups(costs, placement)
    partition = cut.partition(costs, tuple(replicas[0][0] for replicas in groups))
    return tuple(Stage(layers=layers, replicas=replicas) for layers, replicas in zip(partition, groups, strict=True))


def _groups(costs: CostModel, placement: StagePlacement) -> list[tuple[DeviceGroup, ...]]:
    options = costs.problem.options
    num_devices = _num_devices(costs, placement)
    positions = placement.devices_of(num_devices)
    if options.placement is None:
        names = [device.name for device in costs.problem.cluster.devices]
        return [((names[position],),) for position in positions]
    held = dict(zip(positions, options.placement, strict=True))
    devices = [device for replicas in held.values() for group in replicas for device in group]
    if tuple(held[position] for position in positions) != options.placement or len(set(devices)) < len(devices):
        raise DoesNotApplyError(f"the given placement is not {placement.name}")
    return list(options.placement)


def _num_devices(costs: CostModel, placement: StagePlacement) -> int:
    problem, chunks = costs.problem, placement.chunks
    available = len(problem.cluster.devices)
    if problem.options.partition is None:
        num_layers = len(problem.profile.layers)
        if num_layers < chunks:
            raise DoesNotApplyError(f"has {num_layers} layers for {chunks} stages")
        return min(available, num_layers // chunks)
    num_stages = len(problem.options.partition)
    if num_stages % chunks or num_stages // chunks > available:
        raise DoesNotApplyError(f"the given partition has {num_stages} stages, the method {chunks} per device")
    return num_stages // chunks
