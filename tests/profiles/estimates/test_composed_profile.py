"""Layers put together from operations, figure by figure: each gigaoperation takes a second, each megabyte a second."""

from dataclasses import replace

import pytest

from profiles.estimates.achieved_rates import AchievedRates, RateLine
from profiles.estimates.composed_profile import CompositionQuestion, compose, shares
from profiles.estimates.model_shapes import ExpertShape, ModelShape
from profiles.estimates.operations import Dtype

SECOND = 1e9
LINE = RateLine(start_ns=0, ns_per_gigaop=SECOND, ns_per_megabyte=0)
MOVING = RateLine(start_ns=0, ns_per_gigaop=0, ns_per_megabyte=SECOND)
NOTHING = RateLine(start_ns=0, ns_per_gigaop=0, ns_per_megabyte=0)

DENSE = ModelShape(
    name="dense", blocks=2, hidden=512, heads=8, key_value_heads=2, head_width=64, inner=1024, vocabulary=4096
)
MIXED = ModelShape(
    name="mixed",
    blocks=3,
    hidden=512,
    heads=8,
    key_value_heads=8,
    head_width=64,
    inner=1024,
    vocabulary=4096,
    windows=(0, 64, 0),
    mixture=ExpertShape(experts=8, chosen=2, inner=256, shared_inner=128, dense_layers=1),
)


def make_rates(**lines: RateLine) -> AchievedRates:
    products = (f"product {dtype}" for dtype in ("bf16", "fp8", "fp8_block", "nvfp4"))
    kinds = (*products, "experts bf16", "all_gather", "reduce_scatter", "alltoall", "attention", "movement")
    given = {name.replace("_bf16", " bf16"): line for name, line in lines.items()}
    return AchievedRates(name="X", multiprocessors=1, lines=dict.fromkeys(kinds, NOTHING) | given, fitted_to="nothing")


def ask(shape: ModelShape, rates: AchievedRates, **given: object) -> CompositionQuestion:
    return CompositionQuestion(shape=shape, rates=[rates], sequence=256, **given)  # type: ignore[arg-type]


def test_tokens_travel_while_another_microbatch_computes():
    """Tests that hidden all-to-alls take what is longer than products, attention and experts, and others all."""
    plain, hidden = (
        compose(ask(MIXED, make_rates(product_bf16=LINE, alltoall=MOVING), degrees=(2,), hides_tokens=hides))[0]
        for hides in (False, True)
    )
    sent = 2 * (2 * 128 * 2 * 512) / 2 / 1e6 * SECOND
    own, beside = (profile.layers[2].costs[0].forward_ns for profile in (plain, hidden))
    assert own - beside == pytest.approx(min(sent, own - sent), rel=0.01)


def test_kinds_of_blocks_are_priced_apart():
    """Tests that dense blocks, blocks with experts and blocks with windows have costs of their own."""
    profile, figures = compose(ask(MIXED, make_rates(product_bf16=LINE, attention=LINE)))
    assert len({layer.costs for layer in profile.layers[1:-1]}) == 3
    assert {figure.layer for figure in figures if figure.layer.startswith("block")} == {
        "block, dense",
        "block, experts, window 64",
        "block, experts",
    }


def test_narrow_numbers_are_cast():
    """Tests that casts of what products read count: six bytes a value in fp8 and five on Blackwell, or none in bf16.

    Hopper's products in fp8 read along rows alone, so values are written twice. Four are without a scale of all.
    """
    moving = make_rates(movement=MOVING)
    asked: list[tuple[str, Dtype]] = [("X", "fp8"), ("b300", "fp8"), ("GB300", "fp8_block"), ("b300", "nvfp4")]
    plain = compose(ask(DENSE, moving))[0].layers[1].costs[0].forward_ns
    read = 256 * (512 + 512 + 512 + 1024)
    for (name, dtype), num_bytes in zip(asked, (6, 5, 4, 5), strict=True):
        narrow = compose(ask(DENSE, replace(moving, name=name), dtype=dtype))[0].layers[1].costs[0].forward_ns
        assert narrow - plain == pytest.approx(num_bytes * read / 1e6 * SECOND, abs=2)


def test_bytes():
    """Tests that a weight has 2, 4 and 12 bytes, halved by two devices, and that edges carry the stream."""
    profile, _ = compose(ask(DENSE, make_rates(), sizes=(2,), degrees=(1, 2)))
    embedding, block = profile.layers[:2]
    weights = 768 * 512 + 512 * 512 + 2048 * 512 + 512 * 1024
    assert (block.parameter_bytes, block.gradient_bytes) == (2 * weights, 4 * weights)
    assert (block.optimizer_bytes, block.state_bytes) == (12 * weights, 18 * weights)
    assert block.wider[0].state_bytes == 9 * weights
    assert embedding.parameter_bytes == 2 * 4096 * 512
    per_token = 4 * 512 + 768 + 512 + 3 * 1024
    assert block.stash_bytes == 2 * 512 * per_token
    assert block.checkpoint_bytes == 2 * 512 * 512
    assert block.weight_stash_bytes <= block.stash_bytes
    assert {edge.bytes for edge in profile.edges} == {2 * 512 * 512}
    assert profile.scaling == "measured"


def test_products_keep_narrow_numbers():
    """Tests that with fp8 one byte less is kept of what products alone read, and half of what W waits for.

    Of a token these are two streams of 512 and an inner width of 1,024, or two experts' streams and widths, and what
    every token passes. Attention's output of 512 is kept as it is, and once more.
    """
    rates = make_rates(**{"experts nvfp4": NOTHING})
    wide, narrow = (compose(ask(MIXED, rates, dtype=dtype))[0].layers[1:3] for dtype in ("bf16", "nvfp4"))
    for a, b, kept in zip(wide, narrow, (1024, 128 + 2 * (512 + 256)), strict=True):
        assert a.stash_bytes - b.stash_bytes == 256 * (2 * 512 - 512 + kept)
        assert a.weight_stash_bytes == 2 * b.weight_stash_bytes


def test_workspace():
    """Tests that a block has bf16 gradients of its weights, streams and inner widths beside what it keeps."""
    block = compose(ask(DENSE, make_rates(), degrees=(1, 2)))[0].layers[1]
    weights = 768 * 512 + 512 * 512 + 2048 * 512 + 512 * 1024
    assert block.workspace_bytes == 2 * (weights + 256 * (4 * 512 + 2 * 1024))
    assert block.wider[0].workspace_bytes == 2 * (weights // 2 + 256 * (3 * 512 + 1024))


def test_the_step_is_stated_once():
    """Tests that the optimizer's step moves 30 bytes a weight, on a device of the least width."""
    profile, _ = compose(ask(DENSE, make_rates(movement=MOVING), degrees=(2, 4)))
    embedding = profile.layers[0]
    assert {cost.optimizer_ns for cost in embedding.costs} == {4096 // 2 * 512 * 30 * 1000}


def test_degrees_that_do_not_divide():
    """Tests that a degree that does not divide the model is refused with what it leaves and those that do."""
    with pytest.raises(ValueError, match=r"degree 3: does not divide the 8 heads of dense; give one of 1, 2, 4, 8"):
        ask(DENSE, make_rates(), degrees=(3,))
    assert MIXED.why_not(16) == "8 heads"


def test_shares_of_nothing():
    """Tests that without figures no part of the time rests on anything."""
    assert shares([]) == {"row": 0, "interpolated": 0, "assumed": 0}
