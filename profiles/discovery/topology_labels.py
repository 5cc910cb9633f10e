"""Which switches nodes of Kubernetes hang on: what their labels say."""

from collections.abc import Mapping, Sequence
from typing import Any

_TOPOLOGY_LABELS = (
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    *(f"topology.k8s.aws/network-node-layer-{number}" for number in (1, 2, 3)),
    *(f"cloud.google.com/gce-topology-{level}" for level in ("block", "subblock", "host")),
    *(f"oci.oraclecloud.com/rdma.{level}" for level in ("hpc_island_id", "network_block_id", "local_block_id")),
    *(f"{net}.coreweave.cloud/{level}" for net in ("backend", "ib") for level in ("fabric", "superpod", "leafgroup")),
    *(f"network.topology.nvidia.com/{level}" for level in ("datacenter", "core", "spine", "leaf", "block")),
    *(f"fabric.topograph.run/tier-{number}" for number in range(7, -1, -1)),
    "cloud.provider.com/topology-block",
    "cloud.provider.com/topology-rack",
)
"""What clouds and NVIDIA's topograph call the levels of a network, the outermost first."""


def switches_of_labels(labels: Mapping[str, Any], *, keys: Sequence[str] = ()) -> tuple[str, ...]:
    """The switches above a node of Kubernetes, the outermost first, each named by the way to it.

    `keys`: the labels that say it, the outermost first; those of `_TOPOLOGY_LABELS` if there are none.
    """
    values = [str(labels[key]) for key in keys or _TOPOLOGY_LABELS if labels.get(key)]
    return tuple("/".join(values[: depth + 1]) for depth in range(len(values)))
