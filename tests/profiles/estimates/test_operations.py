"""Tests of profiles/estimates/operations.py."""

import pytest

from profiles.estimates.operation_counts import CountedOperations
from profiles.estimates.operations import CausalAttention, ExpertProducts, Movement, Product


def test_operations_are_counted():
    """Tests that multiplications of every kind count twice, with their additions, and what only moves not at all."""
    count = CountedOperations()
    attention = CausalAttention(samples=1, sequence=100, heads=2, key_value_heads=1, head_width=10)
    experts = ExpertProducts(tokens=10, hidden=4, inner=5, chosen=2, experts=8, groups=2)
    for operation, wanted in (
        (Product(rows=2, columns=3, inner=4), 48),
        (attention, 2 * 100 * 100 * 2 * 10),
        (experts, 2 * 3 * 10 * 2 * 4 * 5 // 2),
        (Movement(num_bytes=10**6), 0),
    ):
        assert count.price(operation).ns == pytest.approx(wanted / 1000)  # type: ignore[arg-type]
