"""A production step whose microbatches differ, as a workload: `docs/benchmarks/dealt.md`."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from planner.dealing import Durations
from planner.fidelity.advice import microbatches_of
from planner.fidelity.redealt import transfer_of
from profiles.cluster import Cluster, Device, Link
from profiles.field_rules import MAX_BYTES
from profiles.importers.straggler import RunStep
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile
from profiles.workload import Workload

HERE = Path(__file__).parent / "traces"

TARGET = Path(__file__).parents[1] / "docs" / "benchmarks" / "dealt.md"

BLOCKS = 8
"""Equal blocks that a stage is taken for."""

SECONDS = 60.0
"""Of planning."""


def make_listed_workload(step: RunStep) -> Workload:
    """A step of SE: 64 devices, 256 microbatches, each with its own times for 16 equal blocks and what is beside them.

    The trace does not say how long sequences are: the size of a microbatch is what it took in all, in microseconds.
    What the first stage takes beyond 8 blocks is a layer before them, what the last does one behind them.
    """
    hands = microbatches_of(step)
    microbatches = [one for hand in hands.values() for one in hand]
    sizes = _distinct([sum(one.forward_ns + one.backward_ns) // 1000 for one in microbatches])
    rows = [_layer_times(one) for one in microbatches]
    names = ["rest", *(f"block{number}" for number in range(2 * BLOCKS)), "head"]
    layers = tuple(
        Layer(
            name=name,
            frozen=True,  # what follows the step's last action is not in it
            costs=tuple(
                LayerCost(
                    device_type="traced",
                    microbatch_size=size,
                    forward_ns=row[number][0],
                    input_grad_ns=row[number][1],
                    weight_grad_ns=0,
                )
                for size, row in sorted(zip(sizes, rows, strict=True))
            ),
        )
        for number, name in enumerate(names)
    )
    devices = [f"p{pipeline:02}s{stage}" for pipeline in range(len(hands)) for stage in range(2)]
    lag = transfer_of(step)
    return Workload(
        profile=ModelProfile(
            name=f"SE, step {step.number}",
            layers=layers,
            edges=tuple(Edge(producer=a, consumer=b, bytes=0) for a, b in pairwise(names)),
            microbatch_size=min(sizes),
            scaling="measured",
            provenance="benchmarks/traces/trace-SE.parquet; a stage is taken for 8 equal blocks. Memory unknown.",
        ),
        cluster=Cluster(
            name="SE",
            devices=tuple(Device(name=name, type="traced", memory_bytes=MAX_BYTES) for name in devices),
            links=tuple(Link(a=a, b=b, bandwidth_bytes_per_s=10**12, latency_ns=lag) for a, b in _pairs(devices)),
        ),
        microbatches=tuple(sizes),
        options={"split_backward": False, "max_stages_per_device": 1, "max_replicas": len(hands)},
    )


def _distinct(sizes: Sequence[int]) -> list[int]:
    """The sizes, those that occur again a little larger."""
    known: set[int] = set()
    found = []
    for size in sizes:
        while size in known:
            size += 1
        known.add(size)
        found.append(size)
    return found


def _layer_times(one: Durations) -> list[tuple[int, int]]:
    """Of every layer forward and backward: the rest, the blocks, the head."""
    columns = []
    for first, last in (one.forward_ns, one.backward_ns):
        block = min(first, last) // BLOCKS
        columns.append([first - BLOCKS * block, *[block] * 2 * BLOCKS, last - BLOCKS * block])
    return list(zip(*columns, strict=True))


def _pairs(names: Sequence[str]) -> list[tuple[str, str]]:
    return [(a, b) for number, a in enumerate(names) for b in names[number + 1 :]]
