"""Packs as rows of torch."""

import pytest
import torch
from torch.utils.data import DataLoader

from planner.execute.data.packed_rows import PackedRow, causal_mask, pack_row
from planner.packing.loaders import PackedBatches, Packer
from planner.packing.pack_times import PackTimes

PACKER = Packer(cap=24, stages=(PackTimes(forward_token_ns=10.0, backward_token_ns=20.0, forward_pack_ns=500),) * 2)


def test_rows_say_where_sequences_begin():
    """Tests that a row of three sequences has their tokens, positions and boundaries, and a mask for them."""
    row = pack_row([torch.tensor([5, 6]), torch.tensor([7]), torch.tensor([8, 9, 4])])
    assert row.tokens.tolist() == [[5, 6, 7, 8, 9, 4]]
    assert row.positions.tolist() == [[0, 1, 0, 0, 1, 2]]
    assert row.boundaries.tolist() == [0, 2, 3, 6]
    assert row.boundaries.dtype == torch.int32
    assert row.longest == 3
    seen = ["".join("x" if sees else "." for sees in line) for line in causal_mask(row.boundaries).tolist()]
    assert seen == ["x.....", "xx....", "..x...", "...x..", "...xx.", "...xxx"]
    with pytest.raises(ValueError, match="none of them empty"):
        pack_row([torch.tensor([1]), torch.tensor([], dtype=torch.long)])


class _Model(torch.nn.Module):
    """Attention over a packed row, and the next token of each."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.embed, self.where, self.out = (
            torch.nn.Parameter(torch.randn(rows, 8, dtype=torch.float64, generator=generator)) for rows in (16, 32, 16)
        )

    def forward(self, row: PackedRow) -> torch.Tensor:
        """The sum of losses over all tokens but each sequence's last."""
        given = self.embed[row.tokens] + self.where[row.positions]
        mixed = torch.nn.functional.scaled_dot_product_attention(
            given, given, given, attn_mask=causal_mask(row.boundaries)
        )
        scores = (mixed @ self.out.T)[0, :-1]
        is_inside = row.positions[0, 1:] > 0
        return torch.nn.functional.cross_entropy(scores[is_inside], row.tokens[0, 1:][is_inside], reduction="sum")


def gradients(rows: list[PackedRow]) -> list[torch.Tensor]:
    """Of the losses of rows, added up."""
    model = _Model()
    for row in rows:
        model(row).backward()
    return [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in model.parameters()]


def test_pipelines_that_pack_are_one_process():
    """Tests that the gradients of all pipelines' packs, added up, are those of every sequence alone in one process."""
    generator = torch.Generator().manual_seed(1)
    sizes = [3, 24, 9, 2, 17, 11, 5, 5, 8, 20, 4, 6]
    data = [torch.randint(16, (size,), generator=generator) for size in sizes]
    alone = gradients([pack_row([sequence]) for sequence in data])
    summed = [torch.zeros_like(each) for each in alone]
    num_packs = 0
    for rank in range(2):
        sampler = PackedBatches(sizes, per_step=12, pipelines=2, rank=rank, packer=PACKER)
        rows = list(DataLoader(data, batch_sampler=sampler, collate_fn=pack_row))
        num_packs += len(rows)
        for total, part in zip(summed, gradients(rows), strict=True):
            total += part
    assert num_packs < len(data)
    for total, whole in zip(summed, alone, strict=True):
        torch.testing.assert_close(total, whole, rtol=1e-12, atol=1e-12)
