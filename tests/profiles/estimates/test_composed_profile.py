"""Layers put together from operations, figure by figure: each gigaoperation takes a second, each megabyte a second."""

import pytest

from profiles.estimates.achieved_rates import AchievedRates, RateLine
from profiles.estimates.block_operations import ATTENTION_BACKWARD, Run, block_steps, embedding_steps, head_steps
from profiles.estimates.composed_profile import CompositionQuestion, compose, shares
from profiles.estimates.model_shapes import ExpertShape, LatentAttention, ModelShape
from profiles.estimates.operations import Exchange, ExpertProducts, Product

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


def make_rates(**lines: RateLine) -> AchievedRates:
    products, exchanges = ("product bf16", "product fp8", "experts bf16"), ("all_gather", "reduce_scatter", "alltoall")
    kinds = (*products, *exchanges, "attention", "movement")
    given = {name.replace("_bf16", " bf16"): line for name, line in lines.items()}
    return AchievedRates(name="X", multiprocessors=1, lines=dict.fromkeys(kinds, NOTHING) | given, fitted_to="nothing")


def ask(shape: ModelShape, rates: AchievedRates, **given: object) -> CompositionQuestion:
    return CompositionQuestion(shape=shape, rates=[rates], sequence=256, **given)  # type: ignore[arg-type]


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


def test_narrow_numbers_are_cast():
    """Tests that fp8 counts the casts of what products read, four bytes a value, and bf16 none."""
    moving = make_rates(movement=MOVING)
    plain, narrow = (compose(ask(DENSE, moving, dtype=dtype))[0].layers[1].costs[0] for dtype in ("bf16", "fp8"))
    read = 256 * (512 + 512 + 512 + 1024)
    assert narrow.forward_ns - plain.forward_ns == pytest.approx(4 * read / 1e6 * SECOND, abs=2)


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


def test_workspace():
    """Tests that a block has bf16 gradients of its weights, streams and inner widths beside what it keeps."""
    block = compose(ask(DENSE, make_rates(), degrees=(1, 2)))[0].layers[1]
    weights = 768 * 512 + 512 * 512 + 2048 * 512 + 512 * 1024
    assert block.workspace_bytes == 2 * (weights + 256 * (4 * 512 + 2 * 1024))
    assert block.wider[0].workspace_bytes == 2 * (weights // 2 + 256 * (3 * 512 + 1024))


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


def test_the_step_is_stated_once():
    """Tests that the optimizer's step moves 30 bytes a weight, on a device of the least width."""
    profile, _ = compose(ask(DENSE, make_rates(movement=MOVING), degrees=(2, 4)))
    embedding = profile.layers[0]
    assert {cost.optimizer_ns for cost in embedding.costs} == {4096 // 2 * 512 * 30 * 1000}


def test_ends():
    """Tests that the head is one product as wide as the vocabulary, and nothing goes back through the embedding."""
    run = Run(samples=1, sequence=256, degree=2)
    assert embedding_steps(DENSE, run).input_grad == ()
    assert str(head_steps(DENSE, run).forward[0].operation) == "256 x 2048 x 512 bf16"


def test_degrees_that_do_not_divide():
    """Tests that a degree that does not divide the model is refused with what it leaves and those that do."""
    with pytest.raises(ValueError, match=r"degree 3: does not divide the 8 heads of dense; give one of 1, 2, 4, 8"):
        ask(DENSE, make_rates(), degrees=(3,))
    assert MIXED.why_not(16) == "8 heads"


def test_shares_of_nothing():
    """Tests that without figures no part of the time rests on anything."""
    assert shares([]) == {"row": 0, "interpolated": 0, "assumed": 0}
