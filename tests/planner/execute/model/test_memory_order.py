"""How tensors lie in memory when they are handed on."""

import pytest

torch = pytest.importorskip("torch")

from planner.execute.model.memory_order import as_sent, dense, order_of  # noqa: E402
from planner.execute.stage.sending import in_rows  # noqa: E402

SIZES = {torch.channels_last: (2, 3, 4, 5), torch.channels_last_3d: (2, 3, 4, 5, 6)}


@pytest.mark.parametrize("order", SIZES)
def test_channels_stay_last(order: torch.memory_format):
    """Tests that what has its channels last keeps its memory, and that a message into such a buffer brings it over."""
    sent = torch.rand(SIZES[order]).contiguous(memory_format=order)
    assert order_of(sent) == order
    assert as_sent(sent) is dense(sent) is sent
    buffer = torch.empty(sent.shape, memory_format=order)
    assert in_rows(sent).is_contiguous()
    assert in_rows(buffer).is_contiguous()
    in_rows(buffer).copy_(in_rows(sent))
    assert torch.equal(buffer, sent)
    assert buffer.stride() == sent.stride()
    assert order_of(sent[1:]) == order


@pytest.mark.parametrize("shape", [(4, 5), (2, 3, 4, 5)])
def test_other_orders_become_rows(shape: tuple[int, ...]):
    """Tests that transposed and expanded tensors are sent row by row, and that expanded ones are handed on as they
    are."""
    turned = torch.rand(shape).transpose(-1, -2)
    assert order_of(turned) == torch.contiguous_format
    assert as_sent(turned).is_contiguous()
    assert torch.equal(dense(turned), turned)
    wide = torch.rand((*shape[:-1], 1)).expand(shape)
    assert dense(wide) is wide
    assert as_sent(wide).is_contiguous()
    assert order_of(torch.zeros(shape).to_sparse()) == torch.contiguous_format
