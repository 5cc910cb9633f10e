"""Measured links in place of nominal ones: what the link benchmark saw between the devices that were discovered."""

from collections import Counter, defaultdict
from dataclasses import replace

from profiles.cluster import Cluster, Link
from profiles.measure.links import LinkTables, infer_cluster


def with_measured_links(cluster: Cluster, tables: LinkTables) -> Cluster:
    """The devices of `cluster`, joined by the links that explain `tables`.

    The n-th place of a host in the tables is its n-th device. A host within which nothing was measured keeps the links
    that it has inside. Raises ValueError where a host has been measured with
    another number of places than it has devices.
    """
    numbers: dict[str, list[int]] = defaultdict(list)
    for number, place in enumerate(tables.places):
        numbers[place.host].append(number)
    devices: dict[str, list[int]] = defaultdict(list)
    for number, device in enumerate(cluster.devices):
        devices[device.host].append(number)
    for host in sorted(numbers.keys() | devices.keys()):
        if len(numbers[host]) != len(devices[host]):
            raise ValueError(
                f"links: host {host} was measured with {len(numbers[host])} places, "
                f"but has {len(devices[host])} devices; "
                "measure with one process per device on every host"
            )
    places = list(tables.places)
    for host, measured in numbers.items():
        for number, position in zip(measured, devices[host], strict=True):
            device = cluster.devices[position]
            places[number] = replace(
                places[number],
                name=device.name,
                type=device.type,
                memory_bytes=device.memory_bytes,
                cores=device.cores,
                reserved_bytes=device.reserved_bytes,
            )
    inferred = infer_cluster(replace(tables, places=tuple(places)), name=cluster.name)
    return replace(cluster, links=inferred.links + _kept_inside(cluster, tables), switches=inferred.switches)


def _kept_inside(cluster: Cluster, tables: LinkTables) -> tuple[Link, ...]:
    """Links within hosts of several devices where no pair was measured."""
    hosts = [(tables.places[pair.a].host, tables.places[pair.b].host) for pair in tables.pairs]
    measured = {first for first, second in hosts if first == second}
    alone = {host for host, count in Counter(device.host for device in cluster.devices).items() if count == 1}
    owner = {device.name: device.host for device in cluster.devices} | {
        device.host: device.host for device in cluster.devices
    }
    return tuple(
        link
        for link in cluster.links
        if (host := owner.get(link.a)) is not None and host == owner.get(link.b) and host not in measured | alone
    )
