"""What a collective takes whose devices stand in several nodes."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from profiles.estimates.operations import Exchange, PricedOperation, assumed

CARDS_BYTES_PER_S = {"b200_sxm": 50 * 10**9, "gb200": 50 * 10**9}
"""What the systems of a device type come with, a card of 400 Gbit/s per device, where a package's sheet says 800."""

SPEEDS_GB_PER_S = 0.001, 10**6
"""Of a network, least and most, that may be stated."""

RING_SHARE = 2 / 3
"""Of the rate of cards, what rings over them achieve: as much as of NVLink's in measured tables of collectives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNetwork:
    """What joins the nodes of one device type."""

    node: int
    """Devices that are joined without it: those of a node, or of a rack."""
    bytes_per_s: float
    """Of one device to those of other nodes, in one direction."""

    def price(self, exchange: Exchange, *, inside: Callable[[Exchange], PricedOperation], name: str) -> PricedOperation:
        """Its time; `inside` says what one among devices of a node takes.

        Rings go over the network cards of all devices of a node. Of an all-to-all each device sends its own part, over
        its own card and, at the same time, within the node.
        """
        own = min(exchange.devices, max(1, self.node // exchange.stride))
        if own == exchange.devices:
            return inside(exchange)
        if exchange.kind != "alltoall":
            passes = 2 if exchange.kind == "all_reduce" else 1
            moved = passes * exchange.num_bytes * (exchange.devices - 1) / exchange.devices
            return assumed(
                1e9 * moved / (own * RING_SHARE * self.bytes_per_s),
                rule=f"{name}: rings over all network cards of a node",
            )
        leaving = exchange.num_bytes * _leaving(nodes=exchange.devices / own, copies=exchange.copies)
        outside_ns = 1e9 * leaving / self.bytes_per_s
        staying = exchange.num_bytes if exchange.copies else exchange.num_bytes * own // exchange.devices
        inside_ns = inside(replace(exchange, num_bytes=staying, devices=own)).ns if own > 1 else 0.0
        return assumed(max(outside_ns, inside_ns), rule=f"{name}: each device over its own network card")


def _leaving(*, nodes: float, copies: int) -> float:
    """Which part of what a device sends leaves its node.

    Of a token's copies, chosen evenly over the nodes, one goes to each node that has any, where that is asked for.
    """
    elsewhere = (nodes - 1) / nodes
    return (nodes - 1) * (1 - elsewhere**copies) / copies if copies else elsewhere
