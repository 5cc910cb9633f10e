"""What one device does for the layers of a decoder in F, I and W: tests of profiles/estimates/block_operations.py."""

from dataclasses import replace

import pytest

from profiles.estimates.block_operations import ATTENTION_BACKWARD, Run, block_steps, embedding_steps, head_steps
from profiles.estimates.composed_profile import compose
from profiles.estimates.model_shapes import ExpertShape, LatentAttention, ModelShape
from profiles.estimates.operations import Exchange, ExpertProducts, Movement, Product
from tests.profiles.estimates.test_composed_profile import DENSE, LINE, MIXED, MOVING, NOTHING, SECOND, ask, make_rates

LATENT = ModelShape(
    name="latent",
    blocks=1,
    hidden=512,
    heads=8,
    key_value_heads=8,
    head_width=64,
    inner=1024,
    vocabulary=4096,
    latent=LatentAttention(query_rank=128, key_value_rank=64, rope=16, key=32, value=32),
)


def gigaops(*products: tuple[int, int, int]) -> float:
    return sum(2 * a * b * c for a, b, c in products) / 1e9


def test_products_of_a_block():
    """Tests that F, I and W are the products of query-key-value, output, up and down, each with its own shape."""
    (cost,) = compose(ask(DENSE, make_rates(product_bf16=LINE)))[0].layers[1].costs
    expected = gigaops((256, 768, 512), (256, 512, 512), (256, 2048, 512), (256, 512, 1024)) * SECOND
    assert cost.forward_ns == cost.recompute_ns == pytest.approx(expected)
    assert cost.input_grad_ns == pytest.approx(expected)
    assert cost.weight_grad_ns == pytest.approx(expected)
    steps = block_steps(DENSE, Run(samples=1, sequence=256), block=0)
    shapes = [str(step.operation) for step in (*steps.input_grad[:1], *steps.weight_grad[:1])]
    assert shapes == ["256 x 512 x 768 bf16", "512 x 768 x 256 bf16"]


def test_attention_goes_back_in_its_multiple():
    """Tests that attention counts masked scores half, is in F and I, and takes its multiple back."""
    (cost,) = compose(ask(DENSE, make_rates(attention=LINE)))[0].layers[1].costs
    forward = 2 * 256 * 256 * 8 * 64 / 1e9 * SECOND
    assert (cost.forward_ns, cost.weight_grad_ns) == (pytest.approx(forward), 0)
    assert cost.input_grad_ns == pytest.approx(ATTENTION_BACKWARD * forward)


def test_attention_that_is_not_fused():
    """Tests that scores are products of their own, once forward and twice as much back, that are moved and kept.

    Of a sample of 256 tokens and 8 heads there are 524,288 scores: 9 bytes of each are moved forward and 11 back, and 5
    are kept, on two devices half of it all.
    """
    fused, plain, profiles = [], [], []
    for is_fused in (True, False):
        asked = ask(DENSE, make_rates(movement=MOVING), degrees=(1, 2), fused_attention=is_fused)
        profiles.append(compose(asked)[0])
        (fused if is_fused else plain).extend(profiles[-1].layers[1].costs)
    for degree, (before, after) in enumerate(zip(fused, plain, strict=True), start=1):
        megabytes = 256 * 256 * 8 / degree / 1e6
        assert after.forward_ns - before.forward_ns == pytest.approx(9 * megabytes * SECOND)
        assert after.input_grad_ns - before.input_grad_ns == pytest.approx(11 * megabytes * SECOND)
        assert after.weight_grad_ns == before.weight_grad_ns
    steps = block_steps(DENSE, Run(samples=1, sequence=256, degree=2, fused_attention=False), block=0)
    own = [[str(step.operation) for step in part if step.what in ("scores", "weighted values")] for part in
           (steps.forward, steps.input_grad)]  # fmt: skip
    assert own == [["1024 x 256 x 64 bf16", *["1024 x 64 x 256 bf16"] * count] for count in (1, 3)]
    before, after = (profile.layers[1] for profile in profiles)
    assert after.stash_bytes - before.stash_bytes == 5 * 256 * 256 * 8
    assert after.wider[0].stash_bytes - before.wider[0].stash_bytes == 5 * 256 * 256 * 4
    assert (after.checkpoint_bytes, after.parameter_bytes) == (before.checkpoint_bytes, before.parameter_bytes)
    assert [profile.assumptions.attention for profile in profiles if profile.assumptions] == ["flash", "unfused"]


def test_a_block_is_cut_by_its_degree():
    """Tests that two devices halve products, norms and additions, and exchange the stream twice each way."""
    run = Run(samples=2, sequence=256, degree=2)
    steps = block_steps(DENSE, run, block=0)
    products = [step.operation for step in steps.forward if isinstance(step.operation, Product)]
    assert [(each.columns, each.inner) for each in products] == [(384, 512), (512, 256), (1024, 512), (512, 512)]
    exchanges = [step.operation for step in steps.forward if isinstance(step.operation, Exchange)]
    assert [each.kind for each in exchanges] == ["all_gather", "reduce_scatter"] * 2
    assert {each.num_bytes for each in exchanges} == {2 * 512 * 512}
    hidden = block_steps(DENSE, Run(samples=2, sequence=256, degree=2, hides_exchanges=True), block=0)
    assert {step.factor for step in hidden.forward if isinstance(step.operation, Exchange)} == {0.5}


def test_experts_take_the_place_of_the_dense_part():
    """Tests that a block with experts has a router, a shared expert, experts twice in backward, and all-to-alls."""
    run = Run(samples=1, sequence=256, degree=2)
    dense, mixed = (block_steps(MIXED, run, block=block) for block in (0, 1))
    assert not any(isinstance(step.operation, ExpertProducts) for step in dense.forward)
    names = [step.what for step in mixed.forward]
    assert {"router", "experts", "tokens to experts", "tokens from experts"} <= set(names)
    for steps in (mixed.input_grad, mixed.weight_grad):
        assert [step.because for step in steps if isinstance(step.operation, ExpertProducts)] == [
            "as many operations as forward"
        ]
    (sent,) = (step.operation for step in mixed.forward if step.what == "tokens to experts")
    assert isinstance(sent, Exchange)
    assert sent.num_bytes == 2 * 128 * 2 * 512


def test_tokens_go_into_their_experts_order_and_back():
    """Tests that copies of tokens are read and written twice each way, and that clamps and biases move their bytes.

    Two experts see each of 256 tokens. Fused into products, clamps and biases move nothing.
    """
    mixture = replace(MIXED.mixture or ExpertShape(experts=8, chosen=2, inner=256), has_biases=True)
    steps = {
        name: block_steps(replace(MIXED, mixture=mixture), Run(samples=1, sequence=256, fused_experts=fused), block=1)
        for name, fused in (("apart", False), ("fused", True))
    }
    found = {
        (name, phase): {step.what: step.operation for step in getattr(each, phase)}
        for name, each in steps.items()
        for phase in ("forward", "input_grad", "weight_grad")
    }
    for (name, phase), moved in found.items():
        permuted = None if phase == "weight_grad" else Movement(num_bytes=8 * 512 * 512)
        assert moved.get("permutations") == permuted, (name, phase)
    assert found["apart", "forward"]["clamps, biases"] == Movement(num_bytes=512 * (16 * 256 + 28 * 512))
    assert found["apart", "input_grad"]["clamps, biases"] == Movement(num_bytes=512 * (20 * 256 + 40 * 512))
    plain = {step.what for step in block_steps(MIXED, Run(samples=1, sequence=256), block=1).forward}
    assert "clamps, biases" not in {*found["fused", "forward"], *found["fused", "input_grad"], *plain}


def test_keys_go_round_while_attention_runs():
    """Tests that two devices of a sequence gather its keys and values, and take what is longer than attention."""
    steps = block_steps(DENSE, Run(samples=1, sequence=256, degree=2, context=2), block=0)
    rounds = [
        (step.what, step.operation, step.beside)
        for phase in (steps.forward, steps.input_grad, steps.weight_grad)
        for step in phase
        if step.beside
    ]
    size, beside = 2 * 256 * 2 * 1 * 64, ("attention",)
    gather = ("keys, values", Exchange(kind="all_gather", num_bytes=size, devices=2, stride=2), beside)
    scatter = Exchange(kind="reduce_scatter", num_bytes=size, devices=2, stride=2)
    assert rounds == [gather, ("gradients of keys, values", scatter, beside), gather]
    moved, attention = 2 * size / 2 / 1e6, 2 * 256 * 256 * 4 * 64 / 1e9  # both heads of keys, on one device
    for line, expected in ((NOTHING, moved), (LINE, attention + moved - attention)):
        rates = make_rates(attention=line, all_gather=MOVING)
        (cost,) = compose(ask(DENSE, rates, context=2))[0].layers[1].costs
        assert cost.forward_ns == pytest.approx(expected * SECOND, abs=2)


def test_latent_attention():
    """Tests that queries, keys and values go through their ranks, and weights count each matrix once."""
    products = [
        (step.operation.columns, step.operation.inner)
        for step in block_steps(LATENT, Run(samples=1, sequence=256), block=0).forward
        if isinstance(step.operation, Product)
    ]
    assert products[:5] == [(128, 512), (8 * 48, 128), (80, 512), (8 * 64, 64), (512, 8 * 32)]
    block = compose(ask(LATENT, make_rates()))[0].layers[1]
    assert block.parameter_bytes == 2 * (sum(a * b for a, b in products))


def test_tokens_between_products():
    """Tests that without sequence parallelism a device keeps all tokens' streams, and W gathers none again."""
    apart = Run(samples=1, sequence=256, degree=2)
    together = Run(samples=1, sequence=256, degree=2, sequence_parallel=False)
    gathers = [
        [step.what for step in block_steps(DENSE, run, block=0).weight_grad].count("all-gather")
        for run in (apart, together)
    ]
    assert gathers == [2, 0]
    kept = [
        compose(ask(DENSE, make_rates(), degrees=(2,), sequence_parallel=each))[0].layers[1].wider[0].checkpoint_bytes
        for each in (True, False)
    ]
    assert kept == [2 * 256 * 256, 2 * 256 * 512]


def test_ends():
    """Tests that the head is one product as wide as the vocabulary, and nothing goes back through the embedding."""
    run = Run(samples=1, sequence=256, degree=2)
    assert embedding_steps(DENSE, run).input_grad == ()
    assert str(head_steps(DENSE, run).forward[0].operation) == "256 x 2048 x 512 bf16"


def test_queries_that_are_not_compressed():
    """Tests that latent attention without a rank of queries has one product for them, and keeps as much."""
    assert LATENT.latent is not None
    plain = replace(LATENT, latent=replace(LATENT.latent, query_rank=0))
    shapes = [str(step.operation) for step in block_steps(plain, Run(samples=1, sequence=256), block=0).forward[:2]]
    assert shapes == ["256 x 384 x 512 bf16", "256 x 80 x 512 bf16"]
    kept = [compose(ask(shape, make_rates()))[0].layers[1].stash_bytes for shape in (LATENT, plain)]
    assert kept[0] == kept[1]
