"""What operations take in training, beside what they take alone."""

from dataclasses import replace

import pytest

from profiles.estimates.achieved_rates import known_rates
from profiles.estimates.operations import CausalAttention, Exchange, Movement, Operation, Product
from profiles.estimates.sustained_rates import SUSTAINED, Phase, sustained

PRODUCT = Product(rows=4096, columns=8192, inner=8192)
B200 = known_rates()["b200_sxm"]


@pytest.mark.parametrize(("phase", "factor"), [("F", 1.46), ("I", 1.46), ("W", 1.55)])
def test_products_of_b200(phase: Phase, factor: float) -> None:
    """Tests that its products take longer in training than alone, towards weights most, and say whose figure it is."""
    alone = B200.price(PRODUCT)
    found = sustained(alone, PRODUCT, rates=B200, phase=phase)
    assert found.ns == pytest.approx(factor * alone.ns)
    assert "SimuMax" in found.table


def test_exchanges_of_b200() -> None:
    """Tests that a gather among eight has a start, seven peers, and seven eighths of the bytes."""
    gather = Exchange(kind="all_gather", num_bytes=64 * 10**6, devices=8)
    found = sustained(B200.price(gather), gather, rates=B200, phase="F")
    assert found.ns == pytest.approx(23_105 + 7 * 9_183 + 56 * 1_650)


def test_exchanges_of_a100() -> None:
    """Tests that a gather in a node takes half of a measured all-reduce, and one over two nodes its own line."""
    a100 = known_rates()["a100_sxm"]
    gathers = [Exchange(kind="all_gather", num_bytes=64 * 10**6, devices=devices) for devices in (8, 16)]
    inside, outside = (sustained(a100.price(each), each, rates=a100, phase="F") for each in gathers)
    assert inside.ns == pytest.approx(35_501 + 56 * 4_242 + 8 * 891)
    assert outside.ns == a100.price(gathers[1]).ns


@pytest.mark.parametrize(
    "operation",
    [
        CausalAttention(samples=1, sequence=4096, heads=8, key_value_heads=1, head_width=128),
        Exchange(kind="alltoall", num_bytes=10**6, devices=4),
        replace(PRODUCT, dtype="fp8"),
    ],
)
def test_what_takes_as_long_as_alone(operation: Operation) -> None:
    """Tests that attention, and collectives and numbers that nobody measured in training, keep their times."""
    alone = B200.price(operation)
    assert sustained(alone, operation, rates=B200, phase="F") is alone


def test_other_devices_keep_their_times() -> None:
    """Tests that a device type without such figures takes what its tables say, and that movements have a factor."""
    h100 = known_rates()["h100_sxm"]
    alone = h100.price(PRODUCT)
    assert sustained(alone, PRODUCT, rates=h100, phase="W") is alone
    moved = Movement(num_bytes=10**9)
    taken = sustained(B200.price(moved), moved, rates=replace(B200), phase="I")
    assert taken.ns == pytest.approx(SUSTAINED["b200_sxm"].movements * B200.price(moved).ns)
