"""Achieved rates: the arithmetic of a line, what comes along, and how far it is from the tables."""

import pytest

from profiles.estimates.achieved_rates import AchievedRates, RateLine, features, known_rates
from profiles.estimates.operations import CausalAttention, Exchange, ExpertProducts, Movement, Product


def test_a_line():
    """Tests that a time is a start, and so much per gigaoperation and megabyte."""
    assert RateLine(start_ns=10, ns_per_gigaop=2, ns_per_megabyte=3).ns(5e9, 7e6) == 10 + 10 + 21


def test_features():
    """Tests that tiles of products are filled up, the last wave half, and other operations counted as they are."""
    key, operations, num_bytes = features(Product(rows=100, columns=300, inner=10), multiprocessors=4)
    waves = (2 / 4 + 1) / 2  # two tiles of 128 x 256 on four multiprocessors
    assert (key, operations, num_bytes) == (
        "product bf16",
        waves * 4 * 2 * 128 * 256 * 10,
        2 * 10 * (100 + 300) + 2 * 100 * 300,
    )
    attention = CausalAttention(samples=1, sequence=8, heads=2, key_value_heads=2, head_width=4)
    assert features(attention, multiprocessors=1) == ("attention", 2 * 8 * 8 * 2 * 4, 8 * 8 * 2 * 4)
    experts = ExpertProducts(tokens=8, hidden=4, inner=2, chosen=2, experts=4, groups=2, dtype="fp8")
    assert features(experts, multiprocessors=1) == ("experts fp8", 6 * 8 * 4 * 2, 3 * 2 * 4 * 2 + 4 * 8 * 4)
    assert features(Movement(num_bytes=9), multiprocessors=1) == ("movement", 0.0, 9)
    exchange = Exchange(kind="alltoall", num_bytes=8, devices=4)
    assert features(exchange, multiprocessors=1) == ("alltoall", 0.0, 6)


def test_what_comes_along():
    """Tests that five device types come along, that all their products take time, and that others are refused."""
    assert set(known_rates()) == {"a100_sxm", "h100_sxm", "h200_sxm", "b200_sxm", "gb200"}
    for rates in known_rates().values():
        assert rates.price(Product(rows=4096, columns=4096, inner=4096)).ns > 0
        assert "aiconfigurator-core" in rates.origin
    with pytest.raises(ValueError, match="a100_sxm: nothing is known of product fp8; give one of"):
        known_rates()["a100_sxm"].price(Product(rows=1, columns=1, inner=1, dtype="fp8"))
    assert isinstance(known_rates()["gb200"], AchievedRates)
