"""A problem with a change: more or fewer devices, more memory, faster links, other microbatches."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from planner.problem import Problem
from profiles.cluster import Cluster, Device, Link
from profiles.model_profile import require_integer

_STRICT = {"extra": "forbid", "use_attribute_docstrings": True}

MAX_SPEEDUP = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What is different in a what-if; everything left out stays as it is."""

    __pydantic_config__ = _STRICT

    devices: int = 0
    """So many more devices like the last one (fewer, if negative)."""
    memory_bytes: int = 0
    """So many more bytes on every device (fewer, if negative)."""
    link_speed: float = 1.0
    """Every link has so many times its bandwidth."""
    num_microbatches: int | None = None
    """Microbatches instead of the present number."""

    def __post_init__(self) -> None:
        require_integer("change: devices", self.devices, least=-1024, most=1024)
        require_integer("change: memory_bytes", self.memory_bytes, least=-(2**50), most=2**50)
        if not 1 / MAX_SPEEDUP <= self.link_speed <= MAX_SPEEDUP:
            raise ValueError(f"change: link_speed = {self.link_speed} is out of range; give 0.001 to 1000")
        if self.num_microbatches is not None:
            require_integer("change: num_microbatches", self.num_microbatches, least=1, most=2**20)


def changed(problem: Problem, change: Change) -> Problem:
    """The problem with the change; raises ValueError if there is no such problem."""
    return replace(
        problem,
        cluster=_more_devices(
            _faster(_roomier(problem.cluster, change.memory_bytes), change.link_speed), change.devices
        ),
        num_microbatches=change.num_microbatches or problem.num_microbatches,
    )


def _roomier(cluster: Cluster, num_bytes: int) -> Cluster:
    if not num_bytes:
        return cluster
    devices = tuple(
        replace(device, memory_bytes=max(device.reserved_bytes or 0, device.memory_bytes + num_bytes))
        for device in cluster.devices
    )
    return replace(cluster, devices=devices)


def _faster(cluster: Cluster, speed: float) -> Cluster:
    if speed == 1.0:
        return cluster
    links = (
        replace(link, bandwidth_bytes_per_s=max(1, round(link.bandwidth_bytes_per_s * speed))) for link in cluster.links
    )
    return replace(cluster, links=tuple(links))


def _more_devices(cluster: Cluster, count: int) -> Cluster:
    if count < 0:
        return _fewer_devices(cluster, -count)
    model = cluster.devices[-1]
    taken = {device.name for device in cluster.devices} | {end for link in cluster.links for end in (link.a, link.b)}
    twins = [replace(model, name=name) for name, _ in zip(_names(model.name, taken), range(count), strict=False)]
    links = [link for twin in twins for link in _links_of(cluster, model=model, twin=twin)]
    return replace(cluster, devices=(*cluster.devices, *twins), links=(*cluster.links, *links))


def _fewer_devices(cluster: Cluster, count: int) -> Cluster:
    if count >= len(cluster.devices):
        raise ValueError(f"change: devices takes away all {len(cluster.devices)} devices; leave one")
    gone = {device.name for device in cluster.devices[-count:]}
    links = tuple(link for link in cluster.links if not {link.a, link.b} & gone)
    return replace(cluster, devices=cluster.devices[:-count], links=links)


def _names(stem: str, taken: set[str]) -> Iterator[str]:
    number = 0
    while True:
        number += 1
        if f"{stem}-new{number}" not in taken:
            yield f"{stem}-new{number}"


def _links_of(cluster: Cluster, *, model: Device, twin: Device) -> Iterator[Link]:
    """The twin is tied to whatever its model is tied to, and to the model as the model to its first neighbour."""
    own = [link for link in cluster.links if model.name in (link.a, link.b)]
    for link in own:
        yield replace(
            link, a=twin.name if link.a == model.name else link.a, b=twin.name if link.b == model.name else link.b
        )
    if own and not model.host:
        yield replace(own[0], a=model.name, b=twin.name)
