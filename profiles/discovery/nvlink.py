"""NVLink between the GPUs of a host: lanes of each generation, and whether an NVSwitch joins them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from profiles.discovery.hosts import HostFacts, NvlinkDomain

if TYPE_CHECKING:
    from networkx import Graph


@dataclass(frozen=True, slots=True, kw_only=True)
class _Nvlink:
    """The NVLinks of a GPU."""

    lanes: int
    """At most, to all others together."""
    lane_bytes_per_s: int
    """Each direction."""

    @property
    def bytes_per_s(self) -> int:
        """Of all lanes together, each direction."""
        return self.lanes * self.lane_bytes_per_s


_GENERATIONS = (
    (r"\bP100", _Nvlink(lanes=4, lane_bytes_per_s=20_000_000_000)),
    (r"V100|GV100", _Nvlink(lanes=6, lane_bytes_per_s=25_000_000_000)),
    (r"RTX [568]000(?! Ada)|RTX 20[78]0|TITAN RTX", _Nvlink(lanes=2, lane_bytes_per_s=25_000_000_000)),
    (r"RTX 3090|RTX A\d{4}|\bA40\b", _Nvlink(lanes=4, lane_bytes_per_s=14_062_500_000)),
    (r"\bA30\b", _Nvlink(lanes=4, lane_bytes_per_s=25_000_000_000)),
    (r"\bA[18]00", _Nvlink(lanes=12, lane_bytes_per_s=25_000_000_000)),
    (r"H[12]00|H800|\bH20\b", _Nvlink(lanes=18, lane_bytes_per_s=25_000_000_000)),
    (r"B[123]00", _Nvlink(lanes=18, lane_bytes_per_s=50_000_000_000)),
)
"""By the product's name: NVLink 1 to 5, lanes per GPU and nominal speed of a lane as NVIDIA's data sheets have them."""
UNKNOWN = _Nvlink(lanes=18, lane_bytes_per_s=25_000_000_000)
"""What a GPU whose name says nothing is taken for."""


def nvlink_of(kind: str) -> _Nvlink:
    """What a GPU of this product has."""
    plain = re.sub(r"[-_]", " ", kind)
    return next((link for name, link in _GENERATIONS if re.search(name, plain, re.IGNORECASE)), UNKNOWN)


def with_nvlink(host: HostFacts, lanes: Mapping[tuple[int, int], int]) -> HostFacts:
    """The host with links between its devices; `lanes`: between each pair (lower number first) that has any.

    Where a device seems to have more lanes than its product, an NVSwitch hands the same lanes to all others.
    """
    pairs: dict[tuple[int, int], int] = {}
    domains: list[NvlinkDomain] = []
    for group in _joined(lanes):
        links = {number: nvlink_of(host.devices[number].type) for number in group}
        own = {number: [count for pair, count in lanes.items() if number in pair] for number in group}
        if any(sum(own[number]) > links[number].lanes for number in group):
            rates = {number: max(own[number]) * links[number].lane_bytes_per_s for number in group}
            name = f"nvlink {host.name}" + (f" {len(domains)}" if domains else "")
            domains.append(NvlinkDomain(name=name, bytes_per_s=rates))
            continue
        for pair, count in lanes.items():
            if pair[0] in group:
                pairs[pair] = count * min(links[number].lane_bytes_per_s for number in pair)
    return replace(host, nvlink_bytes_per_s=pairs, nvlink_domains=tuple(domains))


def _joined(pairs: Mapping[tuple[int, int], int]) -> list[list[int]]:
    """Devices that lanes join, directly or through others."""
    import networkx  # takes longer to load than all else here

    graph: Graph[int] = networkx.Graph(list(pairs))
    return sorted(map(sorted, networkx.connected_components(graph)))


def restricted(host: HostFacts, kept: Sequence[int]) -> HostFacts:
    """The host with only the devices that `kept` names, in that order, and the links between those."""
    place = {number: position for position, number in enumerate(kept)}
    pairs = {
        (min(place[a], place[b]), max(place[a], place[b])): rate
        for (a, b), rate in host.nvlink_bytes_per_s.items()
        if a in place and b in place
    }
    domains = tuple(
        replace(domain, bytes_per_s={place[n]: rate for n, rate in domain.bytes_per_s.items() if n in place})
        for domain in host.nvlink_domains
    )
    return replace(
        host,
        devices=tuple(host.devices[number] for number in kept),
        nvlink_bytes_per_s=pairs,
        nvlink_domains=tuple(domain for domain in domains if len(domain.bytes_per_s) > 1),
    )
