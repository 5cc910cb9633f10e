"""A workload to fill in: small, valid, with placeholders where measured figures belong."""

from dataclasses import replace
from itertools import pairwise

from profiles.cluster import Cluster, assumed_reserve_bytes
from profiles.discovery.hosts import HostDevice, HostFacts, make_cluster
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile
from profiles.workload import Workload

_DEVICE_TYPE = "GPU"
"""What costs and devices are filed under."""

MEMORY_BYTES = 80 * 2**30
_PARAMETER_BYTES = 100_000_000
_STATE_BYTES = 8 * _PARAMETER_BYTES
"""Two bytes of weights, two of gradients, twelve of 32-bit weights and moments."""

_PRICE_PER_HOUR = 1.0
"""Money then counts hours of devices."""

ACTION_NS, STASH_BYTES, TENSOR_BYTES, MICROBATCH_SIZE = 1_000_000, 200_000_000, 16_000_000, 4
"""Round numbers: a reader sees that nobody measured them."""

_NOTICE = "TEMPLATE: no figure is measured. Replace every time and size, then this sentence."


def make_template(*, num_layers: int, num_devices: int, num_microbatches: int) -> Workload:
    """A chain of layers that are all alike, on one host of devices that are all alike.

    Raises ValueError for less than one of anything.
    """
    names = [f"layer{number}" for number in range(num_layers)]
    profile = ModelProfile(
        name="my model",
        layers=tuple(map(_make_layer, names)),
        edges=tuple(Edge(producer=a, consumer=b, bytes=TENSOR_BYTES) for a, b in pairwise(names)),
        microbatch_size=MICROBATCH_SIZE,
        scaling="linear",
        provenance=_NOTICE,
    )
    return Workload(profile=profile, cluster=_make_cluster(num_devices), num_microbatches=num_microbatches)


def _make_layer(name: str) -> Layer:
    cost = LayerCost(device_type=_DEVICE_TYPE, forward_ns=ACTION_NS, input_grad_ns=ACTION_NS, weight_grad_ns=ACTION_NS)
    return Layer(
        name=name,
        costs=(cost,),
        parameter_bytes=_PARAMETER_BYTES,
        state_bytes=_STATE_BYTES,
        stash_bytes=STASH_BYTES,
        weight_stash_bytes=STASH_BYTES // 2,
    )


def _make_cluster(num_devices: int) -> Cluster:
    """As `pipeplan cluster discover` makes one: nominal speeds, and a reserve that is assumed."""
    device = HostDevice(
        type=_DEVICE_TYPE, memory_bytes=MEMORY_BYTES, reserved_bytes=assumed_reserve_bytes(MEMORY_BYTES)
    )
    cluster = make_cluster("my cluster", [HostFacts(name="host0", devices=(device,) * num_devices)])
    return replace(cluster, devices=tuple(replace(each, price_per_hour=_PRICE_PER_HOUR) for each in cluster.devices))
