"""What attention and dropout keep on a card, counted on fake tensors; every expected number follows by hand.

No card was at hand: the kernels' filters are those that torch 2.13 documents, the shapes its registrations for meta.
"""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import dropout, scaled_dot_product_attention

from profiles.measure.card_kernels import AttentionCall, card_kernels
from profiles.measure.memory import SavedBytes

A100, L4, H100 = (8, 0), (8, 9), (9, 0)
SAMPLES, HEADS, ROWS, WIDTH = 2, 4, 64, 16
ONE = SAMPLES * HEADS * ROWS * WIDTH
"""Elements of queries."""
SCORES = SAMPLES * HEADS * ROWS * ROWS
SUMS = 4 * SAMPLES * HEADS * ROWS
"""Bytes of a logarithm per row."""
SEEDS = 24
"""Bytes of what flash keeps of its random numbers."""


def kept(run: Callable[[], torch.Tensor], *, capability: tuple[int, int] | None = A100) -> int:
    """Bytes that autograd saves, and a whole backward runs."""
    with FakeTensorMode(allow_non_fake_inputs=True), card_kernels(capability), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        saved = SavedBytes(nn.Identity())
        with saved.watching():
            result = run()
        result.sum().backward()
        return saved.total()


def fake(*shape: int, dtype: torch.dtype = torch.bfloat16, grad: bool = True) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, requires_grad=grad)


def attention(
    *,
    dtype: torch.dtype = torch.bfloat16,
    width: int = WIDTH,
    value_width: int | None = None,
    key_heads: int = HEADS,
    columns: int = ROWS,
    mask: torch.dtype | None = None,
    **how: Any,
) -> Callable[[], torch.Tensor]:
    """Attention with dropout 0.1 unless said otherwise."""

    def run() -> torch.Tensor:
        query = fake(SAMPLES, HEADS, ROWS, width, dtype=dtype)
        key = fake(SAMPLES, key_heads, columns, width, dtype=dtype)
        value = fake(SAMPLES, key_heads, columns, value_width or width, dtype=dtype)
        bias = None if mask is None else fake(ROWS, columns, dtype=mask, grad=False)
        return scaled_dot_product_attention(query, key, value, bias, **({"dropout_p": 0.1} | how))

    return run


HALF_MASK = 2 * ROWS * ROWS
"""A mask for all samples and heads, in the type of queries."""


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, 8 * ONE + SUMS + SEEDS),
        ({"dropout_p": 0.0}, 8 * ONE + SUMS + SEEDS),
        ({"is_causal": True}, 8 * ONE + SUMS + SEEDS),
        ({"dtype": torch.float16}, 8 * ONE + SUMS + SEEDS),
        ({"key_heads": 2, "enable_gqa": True}, 6 * ONE + SUMS + SEEDS),
        ({"columns": 32}, 6 * ONE + SUMS + SEEDS),
        ({"width": 20}, 8 * ONE * 24 // 16 + SUMS + SEEDS),
        ({"width": 512}, 8 * ONE * 32 + SUMS + 16),
        ({"value_width": 8}, 2 * (2 * ONE + ONE // 2 + ONE // 2) + SUMS + 16),
        ({"dtype": torch.float32}, 16 * ONE + SUMS + 16),
        ({"mask": torch.bool}, 8 * ONE + SUMS + 16 + HALF_MASK),
        ({"mask": torch.bfloat16}, 8 * ONE + SUMS + 16 + HALF_MASK),
        ({"columns": 60, "mask": torch.bool}, 4 * ONE + 4 * ONE * 60 // 64 + SUMS + 16 + HALF_MASK),
        ({"columns": 32, "is_causal": True}, 6 * ONE + SUMS + 16),
    ],
    ids=lambda given: str(given) if isinstance(given, dict) else "",
)
def test_fused_attention_keeps_no_scores(given: dict[str, Any], expected: int):
    """Tests that queries, keys, values, output, a logarithm a row and a mask are kept, and no scores."""
    assert kept(attention(**given)) == expected


def test_plain_attention_keeps_its_scores():
    """Tests that double precision has no fused kernel: scores before and after dropout, and a byte an element."""
    inputs = 8 * 3 * ONE  # scaled queries and keys, and values
    assert kept(attention(dtype=torch.float64)) == inputs + 8 * 2 * SCORES + SCORES
    assert kept(attention(dtype=torch.float64, dropout_p=0.0)) == inputs + 8 * SCORES


def test_on_a_cpu_nothing_changes():
    """Tests that without a card the CPU's kernels count, and that they do again once a card's have counted."""
    before = kept(attention(), capability=None)
    kept(attention())
    assert kept(attention(), capability=None) == before > 8 * ONE + 2 * SCORES


@pytest.mark.parametrize(
    ("capability", "given", "kernel"),
    [
        (A100, {}, "flash"),
        (H100, {}, "flash"),
        (A100, {"dtype": torch.float32}, "efficient"),
        (A100, {"dtype": torch.float64}, "math"),
        (A100, {"mask": True}, "efficient"),
        (H100, {"mask": True}, "cudnn"),
        (H100, {"mask": True, "width": 192}, "efficient"),
        (A100, {"mask": True, "key_heads": 2}, "math"),
        (H100, {"mask": True, "key_heads": 2}, "cudnn"),
        (A100, {"key_heads": 2}, "flash"),
        (A100, {"width": 256}, "flash"),
        (L4, {"width": 256}, "efficient"),
        (L4, {"width": 256, "dropout": 0.0}, "flash"),
        (L4, {"width": 200, "dropout": 0.0}, "efficient"),
        (A100, {"width": 512}, "efficient"),
        (A100, {"width": 258}, "math"),
        (A100, {"dtype": torch.float32, "width": 18}, "math"),
        (A100, {"is_causal": True, "columns": 32}, "efficient"),
        (A100, {"is_flat": True}, "math"),
    ],
    ids=str,
)
def test_a_card_takes_the_first_kernel_that_fits(capability: tuple[int, int], given: dict[str, Any], kernel: str):
    """Tests that the kernel follows type, width, mask, heads, shape and compute capability."""
    how = {"dtype": torch.bfloat16, "width": WIDTH, "key_heads": HEADS, "columns": ROWS, "mask": False} | given
    with FakeTensorMode():
        query, key, value = (
            fake(SAMPLES, heads, rows, how["width"], dtype=how["dtype"])
            for heads, rows in ((HEADS, ROWS), (how["key_heads"], how["columns"]), (how["key_heads"], how["columns"]))
        )
        if "is_flat" in how:
            query, key, value = (tensor[0] for tensor in (query, key, value))
        call = AttentionCall(
            query=query,
            key=key,
            value=value,
            mask=fake(ROWS, ROWS, grad=False) if how["mask"] else None,
            dropout=how.get("dropout", 0.1),
            is_causal=how.get("is_causal", False),
        )
        assert call.kernel(capability) == kernel


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda x: dropout(x, 0.1), ONE),
        (lambda x: nn.Dropout(0.5)(x), ONE),
        (lambda x: dropout(x, 0.0), 0),
        (lambda x: dropout(x, 0.1, training=False), 0),
        (lambda x: dropout(x * 1, 0.1, inplace=True), 2 * ONE),
        (lambda x: nn.Dropout1d(0.1)(x.flatten(0, 1)), 2 * SAMPLES * HEADS * ROWS),
    ],
    ids=["function", "module", "none", "eval", "in place", "whole channels"],
)
def test_dropout_keeps_a_byte_an_element(run: Callable[[torch.Tensor], torch.Tensor], expected: int):
    """Tests that a mask is a byte an element, of the input's type in place, and nothing where nothing is dropped."""
    assert kept(lambda: run(fake(SAMPLES, HEADS, ROWS, WIDTH))) == expected


def encoder(p: float, **how: Any) -> Callable[[], torch.Tensor]:
    layer = nn.TransformerEncoderLayer(64, HEADS, 256, dropout=p, batch_first=True, **how)
    return lambda: layer(fake(SAMPLES, ROWS, 64, dtype=torch.float32))


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_a_block_with_dropout_keeps_masks_and_the_activation(activation: str):
    """Tests that torch's own block keeps a byte for each of three dropouts, and what it drops from, beside all else."""
    tokens = SAMPLES * ROWS
    masks, activated = tokens * (64 + 256 + 64), 4 * tokens * 256
    plain = kept(encoder(0.0, activation=activation))
    more = masks + (activated if activation == "relu" else 0)  # gelu keeps its input, relu what it gives
    assert kept(encoder(0.1, activation=activation)) == plain + more


def test_weights_of_attention_that_are_asked_for_are_kept():
    """Tests that MultiheadAttention keeps scores twice and a byte an element where its caller wants weights."""
    layer = nn.MultiheadAttention(64, HEADS, dropout=0.1, batch_first=True)

    def run(*, need_weights: bool) -> int:
        def call() -> torch.Tensor:
            given = fake(SAMPLES, ROWS, 64, dtype=torch.float32)
            return layer(given, given, given, need_weights=need_weights)[0]

        return kept(call)

    more = run(need_weights=True) - run(need_weights=False)
    assert (4 + 4 + 1) * SCORES - SUMS - 16 - 4 * ONE <= more <= (4 + 4 + 1) * SCORES + 4 * ONE
