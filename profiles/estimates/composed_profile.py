"""A profile of a decoder put together from operations whose times a table or a model of rates gives.

Times are sums over the operations of `profiles/estimates/block_operations.py`, one after another; bytes are those of
Megatron in mixed precision: weights bf16, main gradients, master weights and two moments fp32.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from profiles.assumptions import Assumptions, Precision
from profiles.degrees import Degrees
from profiles.estimates.block_operations import (
    ATTENDING,
    BF16,
    SCORE_BYTES_KEPT,
    LayerOperations,
    OperationStep,
    Run,
    block_steps,
    embedding_steps,
    head_steps,
)
from profiles.estimates.block_weights import block_weights, weight_products
from profiles.estimates.model_shapes import SUBLAYERS, ModelShape
from profiles.estimates.operations import Movement, PricedOperation, Rates, Source
from profiles.estimates.run_settings import RunSettings, settings_of
from profiles.estimates.sustained_rates import Phase, sustained
from profiles.field_rules import MAX_NAME_LENGTH
from profiles.model_profile import Edge, Layer, LayerCost, Measurement, ModelProfile, WidthBytes

GRADIENT_BYTES, OPTIMIZER_BYTES = 4, 12
"""Per weight, beside two bytes of the weight itself: main gradients; master weights and two moments."""

STEP_BYTES = 30
"""Read and written per weight by a step of Adam: gradient, master weight and two moments read, the last three and the
weight in bf16 written."""

_ASSUMPTIONS = (
    "Products towards inputs and weights are looked up as products of their own shapes, laid out as forward ones are; "
    "attention goes back in 2.9 times its forward, experts in their forward twice; norms, additions, rotations, "
    "permutations, activations, casts and the loss move their bytes at the sheet's bandwidth; recomputing is F once "
    "more; operations follow one another{hidden}; experts get equally many tokens; state is weights bf16, main "
    "gradients fp32, master weights and two moments fp32; the step of Adam moves 30 bytes a weight, and is stated at "
    "the least width."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One operation of one layer with its time: where a number of the profile comes from."""

    layer: str
    """Its kind: `embedding`, `block`, `head`."""
    phase: str
    """F, I or W."""
    device_type: str
    run: Run
    """Width and microbatch among others."""
    step: OperationStep
    priced: PricedOperation
    """How long it takes, and how that is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompositionQuestion(RunSettings):
    """What is to be put together; cost and bytes are those of one of the devices that share a sequence."""

    shape: ModelShape
    rates: Sequence[Rates]
    """One per device type."""
    sizes: Sequence[int] = (1,)
    """Samples of a microbatch, the profile's own first."""
    degrees: Sequence[int | Degrees] = (1,)
    """Devices that share a layer: a tensor-parallel degree, or degrees by name."""

    def __post_init__(self) -> None:
        for degree in self.degrees:
            tensor = degree if isinstance(degree, int) else degree.tensor
            if reason := self.shape.why_not(tensor):
                raise ValueError(
                    f"degree {degree}: does not divide the {reason} of {self.shape.name}; "
                    f"give one of {', '.join(map(str, self.shape.degrees()))}"
                )
            if isinstance(degree, Degrees) and (reason := self._why_not(degree)):
                raise ValueError(f"degrees {degree}: do not divide the {reason}; give others")

    def _why_not(self, named: Degrees) -> str:
        """What degrees by name do not divide; empty: nothing."""
        if self.context > 1 or self.experts is not None:
            return "devices that context and experts are stated of for all degrees"
        experts = 1 if self.shape.mixture is None else self.shape.mixture.experts
        if experts % named.expert:
            return f"{experts} experts of {self.shape.name}"
        if named.context > 1 and self.sequence % (2 * named.context):
            return f"{self.sequence} tokens of a sample into twice as many parts"
        uneven = [size for size in self.sizes if size % named.data]
        return f"{uneven[0]} samples of a microbatch" if uneven else ""

    def run(self, degree: int | Degrees, size: int) -> Run:
        """How devices that share so run a microbatch of so many samples."""
        settings = settings_of(self)
        if not isinstance(degree, Degrees):
            return Run(**settings, samples=size, degree=degree)
        settings |= {"context": degree.context, "experts": degree.expert}
        return Run(**settings, samples=size // degree.data, degree=degree.tensor)


def compose(question: CompositionQuestion) -> tuple[ModelProfile, tuple[Figure, ...]]:
    """The profile and every figure that it was made of; raises ValueError where no time is known."""
    composer = _Composer(question)
    layers = tuple(composer.layers())
    shape, size = question.shape, question.sizes[0]
    crossing = BF16 * size * question.sequence * shape.hidden // question.context
    profile = ModelProfile(
        name=f"{shape.name}, {question.dtype}",
        layers=layers,
        edges=tuple(Edge(producer=a.name, consumer=b.name, bytes=crossing) for a, b in itertools.pairwise(layers)),
        microbatch_size=size,
        scaling="measured",
        conditions="alone",
        provenance=_provenance(question, composer.figures),
        degrees=tuple(each for each in question.degrees if isinstance(each, Degrees)),
        assumptions=_assumptions(question),
        measurements=tuple(_measurement(figure) for figure in composer.figures),
    )
    return profile, tuple(composer.figures)


def _assumptions(question: CompositionQuestion) -> Assumptions:
    """What the operations of `block_operations` and the bytes of `_Bytes` are those of."""
    return Assumptions(
        precision=_precision(question),
        gradients="fp32",
        attention="flash" if question.fused_attention else "unfused",
        fused_loss=False,
        sequence_parallel=question.sequence_parallel,
        expert_parallel=None if question.shape.mixture is None else True,
        hidden_exchanges=question.hides_exchanges,
        context_parallel=question.context,
        distributed_optimizer=False,
        sequence_length=question.sequence,
    )


def _precision(question: CompositionQuestion) -> Precision | None:
    """Blocks of fp8 have 32 elements on Blackwell and 128 or more before; None where both are asked for."""
    if question.dtype != "fp8_block":
        return question.dtype
    kinds: set[Precision] = {"fp8_mx" if _is_blackwell(rates) else "fp8_blockwise" for rates in question.rates}
    return kinds.pop() if len(kinds) == 1 else None


def _is_blackwell(rates: Rates) -> bool:
    return rates.name.lower().startswith(("b", "gb"))


class _Composer:
    """Layers, each kind priced once."""

    def __init__(self, question: CompositionQuestion) -> None:
        self.question = question
        self.figures: list[Figure] = []
        self._known: dict[str, Layer] = {}

    def layers(self) -> Iterator[Layer]:
        """The embedding, the blocks, the head."""
        shape = self.question.shape
        yield self._layer("embedding", "embedding", block=0)
        for block in range(shape.blocks):
            part = f".{SUBLAYERS[letter]}" if (letter := shape.sublayer(block)) else ""
            yield self._layer(f"block.{block}{part}", _block_kind(shape, block), block=block)
        yield self._layer("head", "head", block=0)

    def _layer(self, name: str, kind: str, *, block: int) -> Layer:
        if kind not in self._known:
            self._known[kind] = self._first_of(kind, block=block)
        return replace(self._known[kind], name=name)

    def _first_of(self, kind: str, *, block: int) -> Layer:
        """A layer of a kind; all of one kind are alike."""
        return Layer(
            name=kind,
            costs=tuple(self._costs(kind, block=block)),
            **self._bytes(kind, 1, block=block).fields(),
            wider=tuple(
                WidthBytes(width=_width(degree), **self._bytes(kind, degree, block=block).fields())
                for degree in sorted(self.question.degrees, key=_width)
                if _width(degree) > 1
            ),
        )

    def _bytes(self, kind: str, degree: int | Degrees, *, block: int) -> "_Bytes":
        run = self.question.run(degree, self.question.sizes[0])
        return _Bytes(self.question.shape, run, kind=kind, block=block)

    def _costs(self, kind: str, *, block: int) -> Iterator[LayerCost]:
        question = self.question
        for rates, degree, size in itertools.product(question.rates, question.degrees, question.sizes):
            run = replace(question.run(degree, size), takes_any_layout=_is_blackwell(rates))
            steps = _steps(kind, block=block, shape=question.shape, run=run)
            forward = self._sum(kind, "F", steps=steps.forward, rates=rates, run=run)
            input_grad = self._sum(kind, "I", steps=steps.input_grad, rates=rates, run=run)
            weight_grad = self._sum(kind, "W", steps=steps.weight_grad, rates=rates, run=run)
            yield LayerCost(
                device_type=rates.name,
                width=_width(degree),
                microbatch_size=None if size == question.sizes[0] else size,
                forward_ns=forward,
                input_grad_ns=input_grad,
                weight_grad_ns=weight_grad,
                recompute_ns=forward if kind.startswith("block") else 0,
                optimizer_ns=self._step_ns(kind, block=block, rates=rates),
            )

    def _sum(self, kind: str, phase: Phase, *, steps: Sequence[OperationStep], rates: Rates, run: Run) -> int:
        found = []
        for step in steps:
            alone = rates.price(step.operation)
            priced = sustained(alone, step.operation, rates=rates, phase=phase)
            found.append(priced.times(step.factor, because=step.because) if step.because else priced)
        found = _beside(steps, found)
        self.figures += [
            Figure(layer=kind, phase=phase, device_type=rates.name, run=run, step=step, priced=priced)
            for step, priced in zip(steps, found, strict=True)
        ]
        return math.ceil(sum(priced.ns for priced in found))

    def _step_ns(self, kind: str, *, block: int, rates: Rates) -> int:
        weights = self._bytes(kind, min(self.question.degrees, key=_width), block=block).weights()
        return math.ceil(rates.price(Movement(num_bytes=STEP_BYTES * weights)).ns)


def _beside(steps: Sequence[OperationStep], found: Sequence[PricedOperation]) -> list[PricedOperation]:
    """The same with what runs beside other steps only as long as it is longer than they; each hides so much once."""
    left = {step.what: priced.ns for step, priced in zip(steps, found, strict=True) if not step.beside}
    exposed = []
    for step, priced in zip(steps, found, strict=True):
        hidden = 0.0
        for name in step.beside:
            part = min(left.get(name, 0.0), priced.ns - hidden)
            left[name] = left.get(name, 0.0) - part
            hidden += part
        exposed.append(priced.times(1 - hidden / priced.ns, because="beside others") if hidden else priced)
    return exposed


def _width(degree: int | Degrees) -> int:
    return degree if isinstance(degree, int) else degree.width


def _block_kind(shape: ModelShape, block: int) -> str:
    """Blocks of one kind cost the same."""
    parts = ["block"]
    if shape.pattern:
        parts.append(SUBLAYERS[shape.sublayer(block)])
    elif shape.mixture is not None:
        parts.append("experts" if shape.is_mixture(block) else "dense")
    if shape.window(block):
        parts.append(f"window {shape.window(block)}")
    return ", ".join(parts)


def _steps(kind: str, *, block: int, shape: ModelShape, run: Run) -> LayerOperations:
    if kind == "embedding":
        return embedding_steps(shape, run)
    return head_steps(shape, run) if kind == "head" else block_steps(shape, run, block=block)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """Values per token that a block keeps on one device."""

    stash: int
    waiting: int
    narrow: int = 0
    """Bytes less, where products keep what they read as numbers of one byte."""


class _Bytes:
    """What one device holds of a layer, of a microbatch that it runs with others."""

    def __init__(self, shape: ModelShape, run: Run, *, kind: str, block: int) -> None:
        self.shape, self.run, self.kind, self.block = shape, run, kind, block
        self.tokens, self.degree = run.tokens, run.degree

    def fields(self) -> dict[str, Any]:
        """Every figure, by its name in the profile."""
        weights = self.weights()
        return {
            "parameter_bytes": BF16 * weights,
            "gradient_bytes": GRADIENT_BYTES * weights,
            "optimizer_bytes": OPTIMIZER_BYTES * weights,
            "state_bytes": (BF16 + GRADIENT_BYTES + OPTIMIZER_BYTES) * weights,
            "stash_bytes": self.stash(),
            "weight_stash_bytes": self.weight_stash(),
            "checkpoint_bytes": self.checkpoint(),
            "workspace_bytes": self.workspace(),
        }

    def _score_bytes(self) -> int:
        """What unfused attention keeps of all scores; 0 where it is fused."""
        shape, run = self.shape, self.run
        if run.fused_attention or not self.kind.startswith("block") or shape.sublayer(self.block) not in ATTENDING:
            return 0
        return SCORE_BYTES_KEPT * self.tokens * run.sequence * max(1, shape.heads // self.degree)

    def _stream(self) -> int:
        """Values per token between products that one device keeps."""
        return self.shape.hidden // self.run.stream_parts

    def weights(self) -> int:
        """Of one device; norms aside."""
        shape = self.shape
        if self.kind in ("embedding", "head"):
            return shape.vocabulary // self.degree * shape.hidden
        return block_weights(shape, self.run, block=self.block)

    def _block(self) -> _Held:
        """Residual stream and norms twice, queries, keys, values, attention's output, and what is inside."""
        shape = self.shape
        if self.kind.startswith("block") and shape.pattern:
            return self._part()
        products = weight_products(shape, self.run, block=self.block)
        mixture = shape.mixture if shape.is_mixture(self.block) else None
        stream = self._stream()
        heads = shape.heads // self.degree
        width = 2 * max(1, shape.key_value_heads // self.degree) + heads
        attended = width * shape.head_width
        if shape.latent is not None:  # queries, and keys with values, each behind what they are compressed to
            first = int(shape.latent.query_rank > 0)
            attended = sum(each.columns for each in products[first : first + 3 : 2])
        output = heads * (shape.head_width if shape.latent is None else shape.latent.value)
        inner = shape.inner // self.degree if mixture is None else mixture.shared_inner // self.degree
        through = (2 + shape.is_gated) * inner
        if mixture is not None:
            through += mixture.chosen * (2 * shape.hidden + 3 * mixture.inner) // self.degree
        stash = 4 * stream + attended + output + through
        inputs = 2 * stream + output + inner
        gradients = attended + stream + (1 + shape.is_gated) * inner + stream
        if mixture is not None:
            inputs += mixture.chosen * (shape.hidden + mixture.inner) // self.degree
            gradients += mixture.chosen * (shape.hidden + 2 * mixture.inner) // self.degree
        # attention keeps its own output as well, and two products read what latent attention compresses
        narrow = 0 if self.run.dtype == "bf16" else inputs - 2 * output - (stream if shape.latent else 0)
        return _Held(stash=stash, waiting=min(stash, inputs + gradients), narrow=narrow)

    def _part(self) -> _Held:
        """Of a hybrid model's block: the stream and its norm, and what its one part makes."""
        shape, mixer = self.shape, self.shape.mixer(self.block)
        stream = self._stream()
        if mixer is not None:
            own = (mixer.columns + mixer.convolved + 2 * mixer.inner) // self.degree
            return _Held(stash=2 * stream + own, waiting=stream + (mixer.columns + mixer.inner) // self.degree)
        products = weight_products(shape, self.run, block=self.block)
        if shape.sublayer(self.block) == "*":
            own = products[0].columns + products[-1].inner
        else:
            mixture = shape.mixture if shape.is_mixture(self.block) else None
            inner = shape.inner if mixture is None else mixture.shared_inner
            own = (2 + shape.is_gated) * inner // self.degree
            if mixture is not None:
                own += mixture.chosen * (2 * shape.hidden + (2 + shape.is_gated) * mixture.inner) // self.degree
        return _Held(stash=2 * stream + own, waiting=2 * stream + own)

    def stash(self) -> int:
        """From F to the end of I."""
        shape = self.shape
        if self.kind == "embedding":
            return self.tokens * (8 + BF16 * self._stream())
        if self.kind == "head":
            return self.tokens * (2 * BF16 * self._stream() + 6 * shape.vocabulary // self.degree)
        held = self._block()
        return self.tokens * (BF16 * held.stash - held.narrow) + self._score_bytes()

    def weight_stash(self) -> int:
        """Of it until the end of W."""
        shape = self.shape
        if self.kind == "embedding":
            return self.stash()
        if self.kind == "head":
            return BF16 * self.tokens * (self._stream() + shape.vocabulary // self.degree)
        return (BF16 if self.run.dtype == "bf16" else 1) * self.tokens * self._block().waiting

    def checkpoint(self) -> int:
        """What stays of it when the stage recomputes: a device's part of the layer's input."""
        return self.stash() if self.kind in ("embedding", "head") else BF16 * self.tokens * self._stream()

    def workspace(self) -> int:
        """While an action runs: gradients on their way, and in bf16 one gradient of every shape of weight.

        Transformer Engine keeps the latter from the first backward pass on, for autograd, beside sums in fp32.
        """
        shape = self.shape
        if self.kind == "embedding":
            return BF16 * self.weights()
        if self.kind == "head":
            return BF16 * self.tokens * (shape.hidden + shape.vocabulary // self.degree)
        mixture = shape.mixture if shape.is_mixture(self.block) else None
        inner = (shape.inner if mixture is None else mixture.shared_inner) // self.degree
        passing = 2 * shape.hidden + 2 * self._stream() + (1 + shape.is_gated) * inner
        shapes = {(each.columns, each.inner) for each in weight_products(shape, self.run, block=self.block)}
        if mixture is not None:
            passing += mixture.chosen * (shape.hidden + 2 * mixture.inner) // self.degree
            shapes |= {(2 * mixture.inner, shape.hidden), (shape.hidden, mixture.inner)}
        scores = self._score_bytes() * BF16 // SCORE_BYTES_KEPT
        return BF16 * (sum(columns * rows for columns, rows in shapes) + self.tokens * passing) + scores


def shares(figures: Sequence[Figure]) -> dict[Source, float]:
    """Which part of all time rests on rows, on what lies between them, and on assumptions."""
    total = sum(figure.priced.ns for figure in figures) or 1.0
    sources: tuple[Source, ...] = get_args(Source)
    return {
        source: sum(figure.priced.ns for figure in figures if figure.priced.source == source) / total
        for source in sources
    }


def interpolation_error(figures: Sequence[Figure]) -> float | None:
    """Of the times between rows, weighted by them, as a part of each; None where none is known."""
    between = [each.priced for each in figures if each.priced.source == "interpolated"]
    known = [priced for priced in between if priced.error is not None]
    total = sum(priced.ns for priced in known)
    return sum(priced.ns * (priced.error or 0.0) for priced in known) / total if total else None


def _provenance(question: CompositionQuestion, figures: Sequence[Figure]) -> str:
    """Sources, how much of the time rests on what, and what was assumed."""
    parts = shares([figure for figure in figures if figure.layer.startswith("block")])
    said = {"row": "rows of tables", "interpolated": "values between rows", "assumed": "assumptions"}
    told = ", ".join(f"{100 * part:.0f} % {said[source]}" for source, part in parts.items())
    if (error := interpolation_error([each for each in figures if each.layer.startswith("block")])) is not None:
        told += f"; between rows +-{100 * error:.0f} % (95 % of rows that are left out in turn are within it)"
    context = (
        f" Sequences are shared by {question.context} devices, each with as many scores; keys and values go round "
        "while attention runs."
        if question.context > 1
        else ""
    )
    if named := [str(each) for each in question.degrees if isinstance(each, Degrees)]:
        context += (
            f" Groups are {'; '.join(named)}; what the devices of one exchange of gradients at the end of an iteration "
            "is not counted, and a message between two groups goes whole."
        )
    hidden = ", exchanges but for their first chunk beside products" if question.hides_exchanges else ", none is hidden"
    return (
        f"Put together, not measured as a whole, from {'; '.join(rates.origin for rates in question.rates)}: "
        f"{question.shape.name}, {question.dtype}, sequences of {question.sequence}. Of the time of blocks: {told}; "
        f"`measurements` states each.{context} {_ASSUMPTIONS.format(hidden=hidden)}"
    )


def _measurement(figure: Figure) -> Measurement:
    """The figure as the profile states it."""
    run, error = figure.run, figure.priced.error or 0.0
    where = f"{figure.device_type}, width {run.degree}, {run.samples} samples"
    subject = f"{figure.layer} {figure.phase} ({where}): {figure.step.what}, {figure.step.operation}"
    return Measurement(
        what={"row": "table row", "interpolated": "interpolated", "assumed": "assumed"}[figure.priced.source],
        subject=subject[:MAX_NAME_LENGTH],
        count=max(1, figure.priced.rows),
        median_ns=round(figure.priced.ns),
        low_ns=round(figure.priced.ns * (1 - min(1.0, error))),
        high_ns=round(figure.priced.ns * (1 + error)),
        source=figure.priced.table[:MAX_NAME_LENGTH],
        error_permille=math.ceil(1000 * error) if error else None,
    )
