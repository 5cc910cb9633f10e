"""Collectives across nodes: what leaves a node, and what goes on within it at the same time."""

from dataclasses import replace

import pytest

from profiles.estimates.networks import RING_SHARE, NodeNetwork
from profiles.estimates.operations import Exchange, PricedOperation, assumed

NETWORK = NodeNetwork(node=8, bytes_per_s=1e9)
"""A byte takes a nanosecond between nodes."""


def inside(exchange: Exchange) -> PricedOperation:
    """A tenth of a nanosecond a byte."""
    return assumed(exchange.num_bytes / 10, rule=f"among {exchange.devices}")


def ns(exchange: Exchange, network: NodeNetwork = NETWORK) -> float:
    return network.price(exchange, inside=inside, name="toy").ns


TOKENS = Exchange(kind="alltoall", num_bytes=16_000, devices=16)


def test_a_node_has_no_network():
    """Tests that eight devices beside each other are in a node, and eight that are two apart in two."""
    gather = Exchange(kind="all_gather", num_bytes=8_000, devices=8)
    assert ns(gather) == 800
    assert ns(replace(gather, stride=2)) == pytest.approx(7_000 / 4 / RING_SHARE)


def test_each_device_sends_its_own_tokens():
    """Tests that half of the tokens leave one of two nodes over a device's own card, and three quarters one of four."""
    assert ns(TOKENS) == 8_000
    assert ns(replace(TOKENS, devices=32)) == 12_000


def test_a_token_goes_to_a_node_once():
    """Tests that of eight copies over two nodes nearly one leaves, and all are spread within the node they come to."""
    once = replace(TOKENS, copies=8)
    assert ns(once) == pytest.approx(16_000 * (1 - 1 / 2**8) / 8)
    assert ns(replace(TOKENS, copies=1)) == ns(TOKENS)
    slow = NodeNetwork(node=8, bytes_per_s=1e11)
    assert ns(once, slow) == 1_600  # by what is inside


def test_sums_go_round_twice():
    """Tests that an all-reduce has two passes, and that devices of nodes of one have a card each."""
    own = NodeNetwork(node=1, bytes_per_s=1e9)
    gather = Exchange(kind="all_gather", num_bytes=4_000, devices=4)
    assert ns(gather, own) == pytest.approx(3_000 / RING_SHARE)
    assert ns(replace(gather, kind="all_reduce"), own) == pytest.approx(6_000 / RING_SHARE)
    assert ns(TOKENS, own) == 15_000
