"""What a run does, as operations that tables know."""

from collections.abc import Callable

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from profiles.estimates.achieved_rates import AchievedRates, RateLine
from profiles.estimates.block_operations import ATTENTION_BACKWARD
from profiles.estimates.operations import CausalAttention, Product
from profiles.measure.operation_log import LoggedWork, OperationLog, time_of


def test_products_are_logged_by_shape():
    """Tests that plain, added and batched products are logged with their shapes, and others not."""
    first, second, batch = torch.zeros(3, 4), torch.zeros(4, 5), torch.zeros(2, 3, 4)
    with OperationLog() as log:
        first @ second
        torch.addmm(torch.zeros(5), first, second)
        batch @ second.expand(2, 4, 5)
        torch.zeros(0, 4) @ second
        first + first
    assert [operation for operation, _ in log.work.operations] == [
        Product(rows=3, columns=5, inner=4),
        Product(rows=3, columns=5, inner=4),
        Product(rows=6, columns=5, inner=4),
    ]


@pytest.mark.parametrize(("causal", "factor"), [(True, 1.0), (False, 2.0)])
def test_attention_is_logged_both_ways(causal: bool, factor: float):
    """Tests that attention is logged once, twice as long without a mask, and in its multiple on the way back."""
    query, key, value = (torch.zeros(2, 3, 8, 4, requires_grad=True) for _ in range(3))
    with OperationLog() as log:
        scaled_dot_product_attention(query, key, value, is_causal=causal).sum().backward()
    shape = CausalAttention(samples=2, sequence=8, heads=3, key_value_heads=3, head_width=4)
    assert log.work.operations == [(shape, factor), (shape, pytest.approx(ATTENTION_BACKWARD * factor))]


def test_a_phase_takes_its_operations_and_movements():
    """Tests that a phase is the sum over operations, each in its multiple, and of what else is moved."""
    lines = {
        "product bf16": RateLine(start_ns=100, ns_per_gigaop=0, ns_per_megabyte=0),
        "movement": RateLine(start_ns=0, ns_per_gigaop=0, ns_per_megabyte=1e6),
    }
    rates = AchievedRates(name="X", multiprocessors=1, lines=lines, fitted_to="nothing")
    one = Product(rows=1, columns=1, inner=1)
    work = LoggedWork(operations=[(one, 1.0), (one, 2.0)], moved_bytes=7)
    assert time_of(work, rates, phase="F") == 307
    assert time_of(LoggedWork(operations=[(one, 1.0), (one, 2.0)]), rates, phase="W") == 300


def moved(run: Callable[[], object]) -> int:
    with OperationLog() as log:
        kept = run()
    assert kept is not None
    return log.finish().moved_bytes


def test_what_lies_between_products_is_one_kernel():
    """Tests that a chain reads its inputs once and writes what a product or anybody later wants of it."""
    x, weights = torch.ones(2, 3), torch.ones(3, 5)
    size = 4 * 6
    assert moved(lambda: (x * 2 + x).sin()) == size + size
    assert moved(lambda: (x * 2).sin() @ weights) == size + size
    assert moved(lambda: [y := x * 2, (y @ weights).sum()]) == size + size + 4 * 10 + 4
    assert moved(lambda: x.T @ x) == 0


def test_look_ups_read_what_they_write():
    """Tests that a table counts as many bytes as rows that are looked up, and changes in place nothing."""
    table, rows = torch.zeros(1000, 4), torch.tensor([1, 2])
    assert moved(lambda: torch.nn.functional.embedding(rows, table)) == 16 + 32 + 32
    assert moved(lambda: table.add_(1)) == 0


def test_sparse_tensors_move_what_they_hold():
    """Tests that indices and values are read, not the zeros between them."""
    sparse = torch.eye(100).to_sparse()
    assert moved(sparse.to_dense) == 100 * (2 * 8 + 4) + 4 * 100**2
