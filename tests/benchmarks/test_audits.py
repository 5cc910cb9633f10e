"""The benchmark of audits: what is compared, and that each kind of row is foreseen."""

from typing import Any

from benchmarks.audits import Variant, on_b200, predicted_s, read_variants, right_orders, scatter


def variant(measured_s: float, release: str = "", **how: Any) -> Variant:
    return Variant(group="a", release=release, model=None, gpu="h100", flags={}, measured_s=measured_s, **how)


def test_pairs_that_are_apart():
    """Tests that pairs within 5 % and of other releases count for nothing, and others by their order."""
    times = [(variant(1.0), 3.0), (variant(1.04), 2.0), (variant(1.2), 2.5), (variant(9.0, "other"), 1.0)]
    assert right_orders(times, spreads={}) == (1, 2)


def test_rows_of_the_same_kernels_scatter():
    """Tests that times per round of one degree and microbatch are compared, and pairs within that count for nothing."""
    same = {"kernels": ("4", "2")}
    rows = [variant(6.0, rounds=6.0, **same), variant(8.4, rounds=7.0, **same), variant(7.0, kernels=("8", "2"))]
    assert scatter(rows) == {"4": 1.2}
    assert right_orders([(row, row.measured_s) for row in rows], spreads=scatter(rows)) == (1, 1)


def test_a_row_of_each_kind():
    """Tests that a row that is fully sharded is refused, and another is foreseen within a factor of two."""
    rows = list(read_variants())
    sharded = next(row for row in rows if row.flags.get("use_megatron_fsdp"))
    assert predicted_s(sharded) is None
    first = predicted_s(rows[0])
    assert first is not None
    assert 0.5 < first / rows[0].measured_s < 2


def test_a_peak_is_near():
    """Tests that the measured peak of two stages is near the foreseen one, and the time no shorter than it."""
    row = {"model": "llama3_405b", "layers": "4", "tensor": "1", "pipeline": "2", "data": "4", "sequence": "4096",
           "microbatches": "4", "measured_ms": "1074.6", "measured_peak_gib": "87.08"}  # fmt: skip
    time, peak = on_b200(row)
    assert 1.0 < time < 1.15
    assert 0.98 < peak < 1.02
