"""What one device does for the layers of a decoder in F, I and W: products, attention, movements, exchanges.

Tensor parallelism of degree t is Megatron's: heads and inner widths are cut into t parts. With sequence parallelism
norms and residual additions work on a t-th of the tokens, and each half of a block gathers its tokens before and
scatters them after; W gathers them once more. Without it, all work on all tokens, and each half sums its results.
A mixture's experts are dealt to the t devices, and tokens travel to them by all-to-all.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from profiles.estimates.model_shapes import ExpertShape, ModelShape, RecurrentShape
from profiles.estimates.operations import CausalAttention, Dtype, Exchange, ExpertProducts, Movement, Operation, Product
from profiles.estimates.run_settings import RunSettings

BF16 = 2
"""Bytes of a value in activations, messages and weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(RunSettings):
    """How a model is run: what is the same for all its layers."""

    samples: int
    """Sequences of a microbatch."""
    degree: int = 1
    """Devices that share every layer."""
    takes_any_layout: bool = False
    """Whether products in fp8 take inputs of any layout; otherwise values are written along rows and columns."""

    @property
    def expert_devices(self) -> int:
        """How many devices share the experts."""
        return self.experts or self.degree

    @property
    def stream_parts(self) -> int:
        """Into how many parts the tokens between products are cut."""
        return self.degree if self.sequence_parallel else 1

    @property
    def tokens(self) -> int:
        """Of a microbatch, on the devices that share a layer."""
        return self.samples * self.sequence // self.context


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationStep:
    """One operation of a layer, and how often it occurs."""

    what: str
    """Its name, e.g. `query, key, value`."""
    operation: Operation
    factor: float = 1.0
    """Times as long as the operation, by an assumption that `because` states."""
    because: str = ""
    """Why it takes `factor` times as long."""
    beside: tuple[str, ...] = ()
    """Steps of the same action while which it continues; it takes what is longer than they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerOperations:
    """The steps of one layer by kind of action."""

    forward: tuple[OperationStep, ...]
    """F."""
    input_grad: tuple[OperationStep, ...]
    """I."""
    weight_grad: tuple[OperationStep, ...]
    """W."""


ATTENTION_BACKWARD = 2.9
"""Times its forward: 2.5 times the operations, at 0.86 of the rate."""

SCORE_BYTES_FORWARD, SCORE_BYTES_BACKWARD, SCORE_BYTES_KEPT = 9, 11, 5
"""Bytes of every score where attention is not fused: softmax reads and writes it; dropout reads it, and writes it and
its mask. Backward both read a gradient and what they kept, and write a gradient. Softmax, mask and product are kept."""

CLAMP_BYTES, BIAS_BYTES = {False: 16, True: 20}, {False: 28, True: 40}
"""Of every value inside an expert, and of every one that leaves it, where both have kernels of their own; True:
backward. Two halves are clamped and joined. A bias times its token's weight is fp32, so are its sum with the output
and what joins the experts; backward, one more product and sum give the gradient of either factor."""

_CAST_BYTES: Mapping[Dtype, int] = {"fp8": 6, "fp8_block": 4, "nvfp4": 5}
"""Of every value that is cast from bf16. One scale for a whole tensor is found by a reading of its own (fp8, and beside
scales of blocks nvfp4). Values are written along rows and along columns; those of fp8 once, where products read them
either way."""

SCAN, SCAN_CHUNK = "scan", 128
"""What the recurrence of a mixer is called, and tokens that it takes at a time."""

GATHER = "all-gather"
"""A device keeps its own tokens of what a layer's first products read: W gathers the others' again."""

ATTENDING = ("", "*")
"""Blocks that have attention: whole ones, and those that are nothing else."""
_WHY_SCAN = "a scan in chunks of 128 tokens at half of a product's rate, backward 2.5 times the operations"
_WHY_ATTENTION = "backward of attention: 2.5 times the operations at 0.86 of the rate"
_WHY_HIDDEN = "beside the products but for the first chunk"
_WHY_EXPERTS = "as many operations as forward"
_KEYS_ROUND, _GRADIENTS_ROUND = "keys, values", "gradients of keys, values"
_COMPUTING = ("query, key, value", "query down", "query up", "key, value down", "key, value up", "output", "up", "down",
              "attention", "experts")  # fmt: skip
"""Steps that another microbatch's tokens travel beside."""


def block_steps(shape: ModelShape, run: Run, *, block: int) -> LayerOperations:
    """A transformer block; of a hybrid model one part of it, or a recurrent mixer."""
    if (mixer := shape.mixer(block)) is not None:
        return _mixer_steps(mixer, shape=shape, run=run)
    sublayer = shape.sublayer(block)
    mixture = shape.mixture if shape.is_mixture(block) else None
    attention = _attention_products(shape, run) if sublayer in ATTENDING else []
    dense = [] if sublayer == "*" else _feed_products(shape, mixture, run=run)
    products = [*attention, *dense]
    scores = _scores(shape, run, block=block) if attention else None
    experts = (
        [] if mixture is None else [OperationStep(what="experts", operation=_experts(mixture, shape=shape, run=run))]
    )
    exchanges = list(_exchanges(shape, mixture, run=run, sublayer=sublayer))
    return LayerOperations(
        forward=(
            *products,
            *_attending(scores, run=run, is_backward=False),
            *experts,
            *_movements(shape, run=run, block=block, is_backward=False),
            *exchanges,
        ),
        input_grad=(
            *(_gradients_round(step) for step in exchanges if step.what == _KEYS_ROUND),
            *(_towards_input(step) for step in products),
            *_attending(scores, run=run, is_backward=True),
            *(replace(step, because=_WHY_EXPERTS) for step in experts),
            *_movements(shape, run=run, block=block, is_backward=True),
            *exchanges,
        ),
        weight_grad=(
            *(_towards_weights(step) for step in products),
            *(replace(step, because=_WHY_EXPERTS) for step in experts),
            *(step for step in exchanges if step.what == GATHER and run.sequence_parallel),
        ),
    )


def _mixer_steps(mixer: RecurrentShape, *, shape: ModelShape, run: Run) -> LayerOperations:
    """A recurrent mixer: two projections, a convolution, and a scan in chunks, all but the projections assumed."""
    tokens, inner = run.tokens, mixer.inner // run.degree
    projections = [
        _step("in projection", tokens, mixer.columns // run.degree, shape.hidden, run=run),
        _step("out projection", tokens, shape.hidden, inner, run=run),
    ]
    chunks = Product(rows=tokens, columns=inner, inner=SCAN_CHUNK + 2 * mixer.state)
    stream, moved = tokens * shape.hidden // run.stream_parts, tokens * mixer.columns // run.degree

    def beside(*, passes: int, scan: float, values: int) -> Iterator[OperationStep]:
        yield OperationStep(what=SCAN, operation=chunks, factor=scan, because=_WHY_SCAN)
        yield OperationStep(what="convolution, gate", operation=Movement(num_bytes=values * BF16 * moved))
        yield OperationStep(what="norm", operation=Movement(num_bytes=passes * BF16 * stream))
        yield OperationStep(what="addition", operation=Movement(num_bytes=3 * BF16 * stream))
        yield from _gather_and_scatter(tokens * shape.hidden, run=run)

    return LayerOperations(
        forward=(*projections, *beside(passes=2, scan=2.0, values=4)),
        input_grad=(*(_towards_input(step) for step in projections), *beside(passes=3, scan=5.0, values=8)),
        weight_grad=(
            *(_towards_weights(step) for step in projections),
            *_gather_again(tokens * shape.hidden, run=run),
        ),
    )


def _feed_products(shape: ModelShape, mixture: ExpertShape | None, *, run: Run) -> list[OperationStep]:
    if mixture is None:
        return _dense_products(shape.inner, shape=shape, run=run)
    return _shared_products(mixture, shape=shape, run=run)


def embedding_steps(shape: ModelShape, run: Run) -> LayerOperations:
    """A look-up, and adding gradients into the rows that were looked up; with its exchange where it is shared."""
    moved = OperationStep(what="rows", operation=Movement(num_bytes=2 * BF16 * run.tokens * shape.hidden))
    exchange = _exchange("reduce_scatter", run.tokens * shape.hidden, run=run)
    gather = _exchange("all_gather", run.tokens * shape.hidden, run=run)
    return LayerOperations(forward=(moved, *exchange), input_grad=(), weight_grad=(moved, *gather))


def head_steps(shape: ModelShape, run: Run) -> LayerOperations:
    """The last norm, the logits in bf16 and their loss in fp32."""
    columns = shape.vocabulary // run.degree
    logits = run.tokens * columns
    product = OperationStep(what="logits", operation=Product(rows=run.tokens, columns=columns, inner=shape.hidden))
    norm = run.tokens * shape.hidden // run.stream_parts
    gather = _exchange("all_gather", run.tokens * shape.hidden, run=run)
    scatter = _exchange("reduce_scatter", run.tokens * shape.hidden, run=run)
    return LayerOperations(
        forward=(
            product,
            OperationStep(what="loss", operation=Movement(num_bytes=8 * logits)),
            OperationStep(what="norm", operation=Movement(num_bytes=2 * BF16 * norm)),
            *gather,
        ),
        input_grad=(
            _towards_input(product),
            OperationStep(what="loss", operation=Movement(num_bytes=6 * logits)),
            OperationStep(what="norm", operation=Movement(num_bytes=3 * BF16 * norm)),
            *scatter,
        ),
        weight_grad=(_towards_weights(product), *_gather_again(run.tokens * shape.hidden, run=run)),
    )


def _attention_products(shape: ModelShape, run: Run) -> list[OperationStep]:
    heads, tokens, latent = shape.heads // run.degree, run.tokens, shape.latent
    if latent is not None:
        rank, queries = latent.query_rank, heads * (latent.key + latent.rope)
        return [
            *([_step("query down", tokens, rank, shape.hidden, run=run)] if rank else []),
            _step("query up", tokens, queries, rank or shape.hidden, run=run),
            _step("key, value down", tokens, latent.key_value_rank + latent.rope, shape.hidden, run=run),
            _step("key, value up", tokens, heads * (latent.key + latent.value), latent.key_value_rank, run=run),
            _step("output", tokens, shape.hidden, heads * latent.value, run=run),
        ]
    queries = heads * (2 if shape.has_gated_attention else 1)
    columns = (queries + 2 * _key_value_heads(shape, run)) * shape.head_width
    return [
        _step("query, key, value", tokens, columns, shape.hidden, run=run),
        _step("output", tokens, shape.hidden, heads * shape.head_width, run=run),
    ]


def _key_value_heads(shape: ModelShape, run: Run) -> int:
    return max(1, shape.key_value_heads // run.degree)


def _dense_products(inner: int, *, shape: ModelShape, run: Run) -> list[OperationStep]:
    own = inner // run.degree
    return [
        _step("up", run.tokens, (1 + shape.is_gated) * own, shape.hidden, run=run),
        _step("down", run.tokens, shape.hidden, own, run=run),
    ]


def _shared_products(mixture: ExpertShape, *, shape: ModelShape, run: Run) -> list[OperationStep]:
    """The router, on each device's own tokens, and the expert that all tokens pass."""
    shared = _dense_products(mixture.shared_inner, shape=shape, run=run) if mixture.shared_inner else []
    router = Product(rows=max(1, run.tokens // run.degree), columns=mixture.experts, inner=shape.hidden)
    return [OperationStep(what="router", operation=router), *shared]


def _step(what: str, *sizes: int, run: Run) -> OperationStep:
    rows, columns, inner = sizes
    return OperationStep(what=what, operation=Product(rows=rows, columns=columns, inner=inner, dtype=run.dtype))


def _scores(shape: ModelShape, run: Run, *, block: int) -> CausalAttention:
    """Of one device; with shared sequences it has a part of the scores, as many as with a part of the heads."""
    latent = shape.latent
    heads = max(1, shape.heads // run.degree // run.context)
    width = shape.head_width if latent is None else (latent.key + latent.rope + latent.value) // 2
    own = heads if latent is not None else min(heads, _key_value_heads(shape, run))
    return CausalAttention(
        samples=run.samples,
        sequence=run.sequence,
        heads=heads,
        key_value_heads=own,
        head_width=width,
        window=shape.window(block) if shape.window(block) < run.sequence else 0,
        is_latent=latent is not None,
    )


def _attending(scores: CausalAttention | None, *, run: Run, is_backward: bool) -> Iterator[OperationStep]:
    """One kernel, or products and what lies between them: scores, softmax, dropout and its mask."""
    if scores is None:
        return
    if run.fused_attention:
        step = OperationStep(what="attention", operation=scores)
        yield replace(step, factor=ATTENTION_BACKWARD, because=_WHY_ATTENTION) if is_backward else step
        return
    rows = scores.samples * scores.heads * scores.sequence
    towards_scores = Product(rows=rows, columns=scores.sequence, inner=scores.head_width)
    from_scores = Product(rows=rows, columns=scores.head_width, inner=scores.sequence)
    yield OperationStep(what="scores", operation=towards_scores)
    for _ in range(3 if is_backward else 1):
        yield OperationStep(what="weighted values", operation=from_scores)
    moved = SCORE_BYTES_BACKWARD if is_backward else SCORE_BYTES_FORWARD
    yield OperationStep(what="softmax, dropout", operation=Movement(num_bytes=moved * rows * scores.sequence))


def _experts(mixture: ExpertShape, *, shape: ModelShape, run: Run) -> ExpertProducts:
    return ExpertProducts(
        tokens=max(1, run.tokens * run.expert_devices // run.degree),
        hidden=shape.hidden,
        inner=mixture.inner,
        chosen=mixture.chosen,
        experts=mixture.experts,
        groups=run.expert_devices,
        dtype=run.dtype,
    )


def _movements(shape: ModelShape, *, run: Run, block: int, is_backward: bool) -> Iterator[OperationStep]:
    """Norms and additions on a device's own tokens, rotations, activations, and casts to narrow numbers."""
    sublayer, mixture = shape.sublayer(block), shape.mixture if shape.is_mixture(block) else None
    stream = run.tokens * shape.hidden // run.stream_parts * (1 if sublayer else 2)
    rotated = run.tokens * (shape.heads // run.degree + _key_value_heads(shape, run)) * shape.head_width
    inner = 0 if sublayer == "*" else shape.inner if mixture is None else mixture.shared_inner
    activated = run.tokens * inner // run.degree
    passes = 3 if is_backward else 2
    yield OperationStep(what="norms", operation=Movement(num_bytes=passes * BF16 * stream))
    yield OperationStep(what="additions", operation=Movement(num_bytes=3 * BF16 * stream))
    if shape.is_gated and sublayer in ATTENDING:  # a model without has learned positions
        yield OperationStep(what="rotation", operation=Movement(num_bytes=2 * BF16 * rotated))
    if activated:
        values = (5 if is_backward else 3) if shape.is_gated else (3 if is_backward else 2)
        yield OperationStep(what="activation", operation=Movement(num_bytes=values * BF16 * activated))
    if mixture is not None:
        own = run.tokens * mixture.chosen // run.degree
        yield OperationStep(what="permutations", operation=Movement(num_bytes=4 * BF16 * own * shape.hidden))
        if mixture.has_biases and not run.fused_experts:
            moved = CLAMP_BYTES[is_backward] * mixture.inner + BIAS_BYTES[is_backward] * shape.hidden
            yield OperationStep(what="clamps, biases", operation=Movement(num_bytes=own * moved))
    if run.dtype != "bf16":
        cast = _cast_values(shape, mixture, run=run, sublayer=sublayer, is_backward=is_backward)
        num_bytes = _CAST_BYTES[run.dtype] - (run.dtype == "fp8" and run.takes_any_layout)
        yield OperationStep(what="casts", operation=Movement(num_bytes=num_bytes * cast))


def _cast_values(shape: ModelShape, mixture: ExpertShape | None, *, run: Run, sublayer: str, is_backward: bool) -> int:
    """Values that are cast: inputs of products forward, gradients of their outputs backward."""
    products = _attention_products(shape, run) if sublayer in ATTENDING else []
    products += _dense_products(shape.inner, shape=shape, run=run) if mixture is None and sublayer != "*" else []
    sizes = [step.operation for step in products if isinstance(step.operation, Product)]
    cast = sum(each.rows * (each.columns if is_backward else each.inner) for each in sizes)
    if mixture is not None:
        own = run.tokens * mixture.chosen // run.degree
        cast += own * (shape.hidden + (2 * mixture.inner if is_backward else mixture.inner))
    return cast


def _exchanges(shape: ModelShape, mixture: ExpertShape | None, *, run: Run, sublayer: str) -> Iterator[OperationStep]:
    """Of a block forward, and as many backward.

    A gather and a scatter are around attention, another pair or two all-to-alls around the rest.
    """
    pair = list(_gather_and_scatter(run.tokens * shape.hidden, run=run))
    if sublayer in ATTENDING:
        yield from pair
        yield from _round(shape, run)
    if sublayer != "*" and (mixture is None or mixture.shared_inner):
        yield from pair
    if mixture is not None and run.expert_devices > 1:
        sent = run.tokens // run.degree * mixture.chosen * shape.hidden
        for what in ("tokens to experts", "tokens from experts"):
            operation = Exchange(
                kind="alltoall",
                num_bytes=BF16 * sent,
                devices=run.expert_devices,
                copies=mixture.chosen if run.sends_once else 0,
            )
            yield OperationStep(what=what, operation=operation, beside=_COMPUTING if run.hides_tokens else ())


def _round(shape: ModelShape, run: Run) -> Iterator[OperationStep]:
    """Keys and values of a whole sequence, which every device that shares it sees part by part."""
    if run.context == 1:
        return
    latent, heads = shape.latent, max(1, shape.heads // run.degree)
    columns = (
        2 * _key_value_heads(shape, run) * shape.head_width
        if latent is None
        else heads * (latent.key + latent.rope + latent.value)
    )
    operation = Exchange(
        kind="all_gather",
        num_bytes=BF16 * run.samples * run.sequence * columns,
        devices=run.context,
        stride=run.degree,
    )
    yield OperationStep(what=_KEYS_ROUND, operation=operation, beside=("attention",))


def _gradients_round(step: OperationStep) -> OperationStep:
    """Backward, gradients of keys and values go round as well."""
    assert isinstance(step.operation, Exchange)
    return replace(step, what=_GRADIENTS_ROUND, operation=replace(step.operation, kind="reduce_scatter"))


def _gather_and_scatter(values: int, *, run: Run) -> Iterator[OperationStep]:
    yield from _exchange("all_gather", values, run=run)
    yield from _exchange("reduce_scatter", values, run=run)


def _gather_again(values: int, *, run: Run) -> Sequence[OperationStep]:
    """Before W, where a device kept its own tokens alone."""
    return _exchange("all_gather", values, run=run) if run.sequence_parallel else ()


def _exchange(kind: Literal["all_gather", "reduce_scatter"], values: int, *, run: Run) -> Sequence[OperationStep]:
    if run.degree == 1:
        return ()
    operation = Exchange(kind=kind, num_bytes=BF16 * values, devices=run.degree)
    step = OperationStep(what=kind.replace("_", "-"), operation=operation)
    return (replace(step, factor=1 / run.degree, because=_WHY_HIDDEN) if run.hides_exchanges else step,)


def _towards_input(step: OperationStep) -> OperationStep:
    """The gradient of a product's input: gradients of outputs times the weights."""
    own = step.operation
    assert isinstance(own, Product)
    return replace(step, operation=replace(own, columns=own.inner, inner=own.columns))


def _towards_weights(step: OperationStep) -> OperationStep:
    """The gradient of a product's weights: gradients of outputs, turned, times inputs."""
    own = step.operation
    assert isinstance(own, Product)
    rows, columns = sorted((own.columns, own.inner))
    return replace(step, operation=replace(own, rows=rows, columns=columns, inner=own.rows))
