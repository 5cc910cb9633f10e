"""Pipelines on hosts of CPU cores: the graphs of `operation_graphs`, a device per core, costs at several widths.

Times are modelled there, not measured. The LSTM's steps have weights of their own here, since stages share none.
"""

from collections.abc import Iterator

from benchmarks.operation_graphs import GRAPHS, WIDTHS, Node, time_ns
from planner.problem import Options, Problem
from profiles.cluster import Cluster, Device, Link
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile, WidthBytes

MEMORY_BYTES, BUS, NETWORK = 64 << 30, 20_000_000_000, 1_250_000_000
"""Memory of a host; bytes per second to and from a core; and between hosts."""

NUM_MICROBATCHES = 8
HOSTS = {
    "ResNet-50": ((16,), (8, 8)),
    "DCGAN": ((16,),),
    "Inception": ((16,), (8, 8)),
    "LSTM": ((16,),),
}
"""Cores of the hosts, by graph."""


def host_problems() -> Iterator[tuple[str, Problem]]:
    """Names and problems."""
    for name, clusters in HOSTS.items():
        for cores in clusters:
            where = " + ".join(f"{count} cores" for count in cores)
            yield f"{name}-like on {where}", make_host_problem(GRAPHS[name](), cores=cores)


def make_host_problem(nodes: list[Node], *, cores: tuple[int, ...]) -> Problem:
    """A graph on hosts with so many cores each; a stage takes cores of one host."""
    widths = tuple(width for width in WIDTHS if width <= max(cores))
    edges = tuple(
        Edge(producer=nodes[read].name, consumer=node.name, bytes=4 * nodes[read].outputs)
        for node in nodes
        for read in node.inputs
    )
    profile = ModelProfile(
        name="graph on cores",
        layers=tuple(_layer(node, widths) for node in nodes),
        edges=edges,
        microbatch_size=1,
        provenance="times modelled by benchmarks/operation_graphs.py, bytes from shapes",
    )
    return Problem(
        profile=profile,
        cluster=_cluster(cores),
        num_microbatches=NUM_MICROBATCHES,
        options=Options(max_width=max(widths), max_replicas=1),
    )


def _layer(node: Node, widths: tuple[int, ...]) -> Layer:
    state, stash = 16 * node.weights, 8 * node.outputs
    return Layer(
        name=node.name,
        costs=tuple(_cost(node, width) for width in widths),
        parameter_bytes=4 * node.weights,
        state_bytes=state,
        stash_bytes=stash,
        weight_stash_bytes=stash,
        wider=tuple(
            WidthBytes(
                width=w, state_bytes=-(-state // w), stash_bytes=-(-stash // w), weight_stash_bytes=-(-stash // w)
            )
            for w in widths
            if w > 1
        ),
    )


def _cost(node: Node, width: int) -> LayerCost:
    """I and W take as long as F; the first layer has no I."""
    time = time_ns(node.kind, node.macs, width=width)
    return LayerCost(
        device_type="core",
        width=width,
        forward_ns=time,
        input_grad_ns=time if node.inputs else 0,
        weight_grad_ns=time,
    )


def _cluster(cores: tuple[int, ...]) -> Cluster:
    devices = tuple(
        Device(name=f"h{host}c{core}", type="core", host=f"h{host}", memory_bytes=MEMORY_BYTES // count, cores=1)
        for host, count in enumerate(cores)
        for core in range(count)
    )
    inside = [
        Link(a=device.name, b=f"bus{device.host}", bandwidth_bytes_per_s=BUS, latency_ns=1_000) for device in devices
    ]
    between = [
        Link(a=f"bush{host}", b=f"bush{host + 1}", bandwidth_bytes_per_s=NETWORK, latency_ns=50_000)
        for host in range(len(cores) - 1)
    ]
    switches = tuple(f"bush{host}" for host in range(len(cores)))
    return Cluster(name="hosts of cores", devices=devices, links=(*inside, *between), switches=switches)
