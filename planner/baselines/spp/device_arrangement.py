"""The order in which SPP lines up the devices: the bandwidth graph is cut at its minimum cut, again and again."""

from itertools import combinations
from typing import TYPE_CHECKING

from profiles.cluster import Cluster

if TYPE_CHECKING:
    from networkx import Graph


def order_devices(cluster: Cluster, *, num_bytes: int) -> tuple[str, ...]:
    """The devices, the two halves of every minimum cut (Stoer and Wagner) side by side.

    Halves are turned so that their facing ends share the fastest connection. `num_bytes` is the size of transfer for
    which routes are compared. Where all pairs are alike, the listed order stays.
    """
    names = [device.name for device in cluster.devices]
    rates = {(a, b): _rate(cluster, (a, b), num_bytes=num_bytes) for a in names for b in names if a != b}
    if len(set(rates.values())) < 2:
        return tuple(names)
    return tuple(_ordered(_bandwidth_graph(cluster, rates), names, rates=rates))


def _rate(cluster: Cluster, ends: tuple[str, str], *, num_bytes: int) -> float:
    """Bytes per second of a transfer from one end to the other, latencies included."""
    duration = cluster.route(*ends, num_bytes=num_bytes).duration_ns(num_bytes)
    return 10**9 * num_bytes / max(duration, 1)


def _bandwidth_graph(cluster: Cluster, rates: dict[tuple[str, str], float]) -> "Graph[str]":
    """Devices joined by their direct links, if those connect them all; otherwise every pair, by its route."""
    import networkx

    names = [device.name for device in cluster.devices]
    graph: Graph[str] = networkx.Graph()
    graph.add_nodes_from(names)
    for link in cluster.links:
        if link.a in cluster.by_name and link.b in cluster.by_name:
            graph.add_edge(link.a, link.b, weight=link.bandwidth_bytes_per_s)
    if networkx.is_connected(graph):
        return graph
    pairs = ((a, b) for number, a in enumerate(names) for b in names[number + 1 :])
    graph.add_weighted_edges_from((a, b, min(rates[a, b], rates[b, a])) for a, b in pairs)
    return graph


def _ordered(graph: "Graph[str]", names: list[str], *, rates: dict[tuple[str, str], float]) -> list[str]:
    """`names` in order; `graph` need not connect them: then the parts are what the cut falls into."""
    if len(names) < 3:
        return names
    first, second = (_ordered(graph, half, rates=rates) for half in minimum_cut(graph, names))
    turned = [(a, b) for b in (second, second[::-1]) for a in (first, first[::-1])]
    first, second = max(turned, key=lambda pair: rates[pair[0][-1], pair[1][0]])
    return first + second


def minimum_cut(graph: "Graph[str]", names: list[str]) -> tuple[list[str], list[str]]:
    """The two sides of a global minimum cut of the graph on `names`, each in their order; the first name's side first.

    Stoer and Wagner find one cut among equals; a graph that falls apart is cut between its first part and the rest.
    """
    import networkx

    own = _part(graph, names)
    if networkx.is_connected(own):
        _, (side, _) = networkx.stoer_wagner(own)
        near = set(side)
    else:
        near = networkx.node_connected_component(own, names[0])
    near = near if names[0] in near else set(names) - near
    return [name for name in names if name in near], [name for name in names if name not in near]


def _part(graph: "Graph[str]", names: list[str]) -> "Graph[str]":
    """The graph on `names`, in their order: a view of networkx has that of their hashes, other in every process."""
    import networkx

    own: Graph[str] = networkx.Graph()
    own.add_nodes_from(names)
    own.add_weighted_edges_from(
        (a, b, graph[a][b]["weight"]) for a, b in combinations(names, 2) if graph.has_edge(a, b)
    )
    return own
