"""Which switches nodes of Kubernetes hang on: what their labels say."""

from collections.abc import Mapping, Sequence
from typing import Any

_PLACES = ("topology.kubernetes.io/region", "topology.kubernetes.io/zone")
_NETWORKS = (
    [f"topology.k8s.aws/network-node-layer-{number}" for number in (1, 2, 3)],
    [f"cloud.google.com/gce-topology-{level}" for level in ("block", "subblock", "host")],
    [f"oci.oraclecloud.com/rdma.{level}" for level in ("hpc_island_id", "network_block_id", "local_block_id")],
    *([f"{net}.coreweave.cloud/{level}" for level in ("fabric", "superpod", "leafgroup")] for net in ("backend", "ib")),
    [f"network.topology.nvidia.com/{level}" for level in ("datacenter", "core", "spine", "leaf", "block")],
    [f"fabric.topograph.run/tier-{number}" for number in range(7, -1, -1)],
    [f"cloud.provider.com/topology-{level}" for level in ("block", "rack")],
)
"""What clouds and NVIDIA's topograph call the levels of a network, the outermost first; each describes all of it."""


def switches_of_labels(labels: Mapping[str, Any], *, keys: Sequence[str] = ()) -> tuple[str, ...]:
    """The switches above a node of Kubernetes, the outermost first, each named by the way to it.

    `keys`: the labels that say it, the outermost first; if there are none, places and what names most of `_NETWORKS`.
    """
    network = max(_NETWORKS, key=lambda levels: sum(bool(labels.get(key)) for key in levels))
    values = [str(labels[key]) for key in keys or (*_PLACES, *network) if labels.get(key)]
    return tuple("/".join(values[: depth + 1]) for depth in range(len(values)))
