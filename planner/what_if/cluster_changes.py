"""A problem on a changed cluster: other memory, faster links, more devices."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from planner.problem import Problem
from profiles.cluster import Cluster, Device, Link


def with_memory(problem: Problem, memory_bytes: Callable[[Device], int]) -> Problem:
    """The same question with another limit on each device, at least 0."""
    cluster = problem.cluster
    devices = tuple(
        replace(device, memory_bytes=max(device.reserved_bytes or 0, memory_bytes(device)))
        for device in cluster.devices
    )
    return replace(problem, cluster=replace(cluster, devices=devices))


def with_link_speed(problem: Problem, factor: float, *, numbers: Collection[int] | None = None) -> Problem:
    """The same question with `factor` times the bandwidth on the links at these positions (None: on all)."""
    cluster = problem.cluster
    links = tuple(
        link.at_speed(factor) if numbers is None or number in numbers else link
        for number, link in enumerate(cluster.links)
    )
    return replace(problem, cluster=replace(cluster, links=links))


def with_twins(problem: Problem, name: str, *, count: int = 1) -> Problem:
    """The same question with `count` more devices like the device `name`.

    A twin has the same type, memory and host, and is linked to whatever its model is linked to. If the model has a
    direct link to another device, the fastest of these is also between model and twin. Raises ValueError if the model
    has no link.
    """
    cluster = problem.cluster
    model = cluster.by_name[name]
    own = [link for link in cluster.links if name in (link.a, link.b)]
    if not own:
        raise ValueError(f"change: devices = {count}: device {name!r} has no link to copy; give it one in the cluster")
    names = _fresh_names(cluster, name)
    twins = [replace(model, name=next(names)) for _ in range(count)]
    links = [link for twin in twins for link in _links_of(twin.name, name, own=own, cluster=cluster)]
    grown = replace(cluster, devices=(*cluster.devices, *twins), links=(*cluster.links, *links))
    return replace(problem, cluster=grown)


def _links_of(twin: str, model: str, *, own: list[Link], cluster: Cluster) -> Iterator[Link]:
    for link in own:
        yield replace(link, a=twin if link.a == model else link.a, b=twin if link.b == model else link.b)
    direct = [link for link in own if {link.a, link.b} <= cluster.by_name.keys()]
    if direct:
        fastest = max(direct, key=lambda link: link.bandwidth_bytes_per_s)
        yield replace(fastest, a=model, b=twin)


def _fresh_names(cluster: Cluster, stem: str) -> Iterator[str]:
    """Names that no device and no end of a link has."""
    taken = {device.name for device in cluster.devices} | {end for link in cluster.links for end in (link.a, link.b)}
    number = 0
    while True:
        number += 1
        if (name := f"{stem}-new{number}") not in taken:
            yield name
