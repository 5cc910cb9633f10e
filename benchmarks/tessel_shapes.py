"""Tessel's shapes: blocks on single devices, on all of them at once, and in both directions.

Tessel (HPCA 2024, examples/simulator/cases_tessel.py of its repository) is given where every block runs; it looks for
an order that repeats. Its training shapes are stated here as problems: a block is a layer whose forward takes 1 and
whose backward takes 3 (1 where all devices share it), with the memory that the example has. Blocks that all devices
share are layers with costs at that width only. We are asked for stages, devices and order at once, and may hold as many
stages on a device as the shape has. Nothing is sent, and I and W are one action. V and X have
room for 4 stashes, the others for 6, as in its own example scripts.
"""

from dataclasses import dataclass
from itertools import pairwise

from planner.problem import Options, Problem
from profiles.cluster import Cluster, Device, Link
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile, WidthBytes

NUM_DEVICES = 4


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One of its placements, as a problem."""

    name: str
    """What it is called there."""
    chains: tuple[str, ...]
    """Blocks in a row; those in capitals are shared by all devices."""
    room: int
    """Stashes that a device has room for."""
    chunks: int
    """Stages that a device may hold."""
    stashes: bool = False
    """Whether shared blocks hold a stash."""

    @property
    def overlaps(self) -> bool:
        """Whether groups of its plans overlap: such plans are verified and bounded, but no longer searched."""
        return not "".join(self.chains).islower()


SHAPES = (
    Shape(name="V", chains=("a b c d",), room=4, chunks=1),
    Shape(name="X", chains=("a b c d", "e f g h"), room=4, chunks=2),
    Shape(name="M", chains=("W a b c d",), room=6, chunks=2),
    Shape(name="K", chains=("a b W", "c d W"), room=6, chunks=2, stashes=True),
)


def make_problem(shape: Shape, num_microbatches: int) -> Problem:
    """A shape as a problem, a nanosecond per step, a byte per stash."""
    chains = [chain.split() for chain in shape.chains]
    names = dict.fromkeys(name for chain in chains for name in chain)
    pairs = dict.fromkeys((a, b) for chain in chains for a, b in pairwise(chain))
    devices = [f"d{number}" for number in range(NUM_DEVICES)]
    ends = [(a, b) for number, b in enumerate(devices) for a in devices[:number]]
    return Problem(
        profile=ModelProfile(
            name=f"{shape.name} shape",
            layers=tuple(_shared(name, shape.stashes) if name.isupper() else _single(name) for name in names),
            edges=tuple(Edge(producer=a, consumer=b, bytes=0) for a, b in pairs),
            provenance="Steps and stashes of Tessel's example of that name.",
        ),
        cluster=Cluster(
            name="four devices",
            devices=tuple(Device(name=name, type="device", memory_bytes=shape.room) for name in devices),
            links=tuple(Link(a=a, b=b, bandwidth_bytes_per_s=10**9) for a, b in ends),
        ),
        num_microbatches=num_microbatches,
        options=Options(max_stages_per_device=shape.chunks, max_replicas=1, max_width=NUM_DEVICES, receive_buffers=0),
    )


def _single(name: str) -> Layer:
    return Layer(name=name, costs=(_cost(3, width=1),), stash_bytes=1)


def _shared(name: str, has_stash: bool) -> Layer:
    wider = WidthBytes(width=NUM_DEVICES, state_bytes=0, stash_bytes=int(has_stash))
    return Layer(name=name, costs=(_cost(1, width=NUM_DEVICES),), stash_bytes=int(has_stash), wider=(wider,))


def _cost(backward: int, *, width: int) -> LayerCost:
    return LayerCost(device_type="device", width=width, forward_ns=1, input_grad_ns=backward, weight_grad_ns=0)
