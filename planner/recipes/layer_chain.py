"""A model as one chain of layers that stages cut, each with a letter and a cost."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy
from numpy.typing import NDArray

from planner.recipes.cost_basis import MTP_LOSSES, CostBasis, MtpLoss, RecipeModel
from profiles.estimates.composed_profile import CompositionQuestion, compose
from profiles.estimates.model_shapes import ModelShape
from profiles.estimates.operations import Product
from profiles.model_profile import Layer

Integers = NDArray[numpy.int64]

UNIT = 30_000
"""What a forward pass of a mean block takes: so few ticks that most loops are played in 32 bits."""

FORWARD, BACKWARD = range(2)
BACKWARD_SHARE = 2
"""Times the forward pass, where only the sum of both is known."""

NEAR = 0.02
"""Estimates of blocks that differ by less are no different."""

BF16 = 2

MAX_TIME = 10**15


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerChain:
    """What stages hold, in order; the embedding is with the first block."""

    letters: tuple[str, ...]
    """Of each: `Et`, `t`, `m` (all layers of multi-token prediction), `L`; of a hybrid model its pattern's."""
    costs: tuple[Integers, ...]
    """[2, layers] ticks of F and B, once for each way that they may be, `UNIT` for a block's F."""
    weights: tuple[int, ...]
    """Number of weights that each layer has on a rank."""
    transfer: int
    """Ticks from a stage to the next."""
    predicting: int
    """Layers that an m stands for."""
    origin: str
    """Source of the costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChainLayer:
    """A layer before it has a place in the chain."""

    letter: str
    forward: float
    backward: float
    weights: int = 0

    @property
    def time(self) -> float:
        """Forward and backward, in the unit of the basis."""
        return self.forward + self.backward

    def __add__(self, other: "_ChainLayer") -> "_ChainLayer":
        return _ChainLayer(
            letter=self.letter + other.letter,
            forward=self.forward + other.forward,
            backward=self.backward + other.backward,
            weights=self.weights + other.weights,
        )


def make_chain(model: RecipeModel, *, basis: CostBasis, target: str) -> LayerChain:
    """The chain as a target cuts it.

    In a hybrid pattern parts of blocks are layers, and embedding and head go with the first and last of them. Raises
    ValueError where the model is none for the target, or its costs are not known.
    """
    shape, is_hybrid = model.shape, target == "megatron-hybrid"
    _require_kind(shape, model.predicting, target=target)
    embedding, *parts, head = _parts(model, basis)
    blocks = parts
    if shape.pattern and not is_hybrid:
        blocks = [replace(a + b, letter="t") for a, b in zip(parts[::2], parts[1::2], strict=True)]
    variants = MTP_LOSSES if model.predicting and basis.mtp_loss is None else (basis.mtp_loss or "L",)
    if basis.times is not None:
        rows = [_stated(basis.times, [embedding, *blocks, head], has_m=bool(model.predicting))]
        origin = "times as given"
    else:
        blocks = _with_classes(blocks)
        rows = [_with_prediction(blocks, head, model=model, basis=basis, variant=variant) for variant in variants]
        rows = [[embedding, *row] for row in rows]
        origin = basis.rates.origin
    rows = [_closed(row, is_hybrid=is_hybrid) for row in rows]
    ticks = _Ticks(rows[0])
    return LayerChain(
        letters=tuple(part.letter for part in rows[0]),
        costs=tuple(ticks.of(row) for row in rows),
        weights=tuple(part.weights for part in rows[-1]),
        transfer=round(basis.transfer * UNIT),
        predicting=model.predicting,
        origin=f"{shape.name}, sequences of {model.sequence}: {origin}",
    )


def _require_kind(shape: ModelShape, predicting: int, *, target: str) -> None:
    is_hybrid = target == "megatron-hybrid"
    if target == "torchtitan" and predicting:
        raise ValueError(f"{shape.name}: torchtitan has no multi-token prediction; give CostBasis(predicting=0)")
    if is_hybrid and not set(shape.pattern) & set("MG"):
        raise ValueError(f"{shape.name}: has no recurrent mixers, which a hybrid pattern is for; use another target")
    if is_hybrid and predicting:
        raise ValueError(
            f"{shape.name}: multi-token prediction stands behind / in a hybrid pattern, in no stage of its own; "
            "give CostBasis(predicting=0)"
        )
    if not is_hybrid and shape.pattern and not _is_paired(shape.pattern):
        raise ValueError(
            f"{shape.name}: its layers are {shape.pattern[:12]}..., no whole blocks; use target megatron-hybrid"
        )


def _is_paired(pattern: str) -> bool:
    """Whether a mixer or attention and a feed-forward part or experts take turns."""
    return len(pattern) % 2 == 0 and all(a in "MG*" and b in "-E" for a, b in list(pairwise(pattern))[::2])


def _parts(model: RecipeModel, basis: CostBasis) -> list[_ChainLayer]:
    """The embedding, the blocks or their parts, and the head, in the unit of the rates."""
    profile, _ = compose(
        CompositionQuestion(
            shape=model.shape,
            rates=[basis.rates],
            sequence=model.sequence,
            sizes=(basis.micro_batch,),
            degrees=(basis.tensor,),
            dtype=basis.dtype,
            experts=basis.experts,
        )
    )
    letters = ["E", *(model.shape.pattern or "t" * model.shape.blocks), "L"]
    return [_part(layer, letter) for layer, letter in zip(profile.layers, letters, strict=True)]


def _with_classes(blocks: Sequence[_ChainLayer]) -> list[_ChainLayer]:
    """Blocks whose estimates differ by less than they are sure are equal, at their mean."""
    times = sorted({block.time for block in blocks})
    starts = [time for before, time in zip([-MAX_TIME, *times], times, strict=False) if time > before * (1 + NEAR)]
    classes = [bisect_right(starts, block.time) for block in blocks]
    means = {}
    for number in set(classes):
        own = [block for block, each in zip(blocks, classes, strict=True) if each == number]
        means[number] = [sum(getattr(block, field) for block in own) / len(own) for field in ("forward", "backward")]
    return [
        replace(block, forward=means[number][FORWARD], backward=means[number][BACKWARD])
        for block, number in zip(blocks, classes, strict=True)
    ]


def _part(layer: Layer, letter: str) -> _ChainLayer:
    cost = layer.costs[0]
    held = layer.as_one_device(cost).parameter_bytes
    return _ChainLayer(
        letter=letter,
        forward=cost.forward_ns,
        backward=cost.input_grad_ns + cost.weight_grad_ns,
        weights=held // BF16,
    )


def _with_prediction(
    blocks: Sequence[_ChainLayer], head: _ChainLayer, *, model: RecipeModel, basis: CostBasis, variant: MtpLoss
) -> list[_ChainLayer]:
    """Blocks, multi-token prediction and head; each predicting layer is the last block and a projection before it."""
    if not model.predicting:
        return [*blocks, head]
    hidden, tokens = model.shape.hidden, basis.micro_batch * model.sequence
    product = Product(rows=tokens, columns=hidden // basis.tensor, inner=2 * hidden, dtype=basis.dtype)
    each, last = basis.rates.price(product).ns, blocks[-1]
    times = model.predicting
    own, more = (times, 1) if variant == "m" else (0, times + 1)
    mtp = _ChainLayer(
        letter="m",
        forward=times * (last.forward + each) + own * head.forward,
        backward=times * (last.backward + 2 * each) + own * head.backward,
        weights=times * (last.weights + 2 * hidden * hidden // basis.tensor),
    )
    return [*blocks, mtp, replace(head, forward=more * head.forward, backward=more * head.backward)]


def _stated(
    times: Mapping[str, float | Sequence[float]], layers: Sequence[_ChainLayer], *, has_m: bool
) -> list[_ChainLayer]:
    """The same with measured times; raises ValueError for what is missing or none."""
    embedding, *blocks, head = layers
    wanted = ["E", "t", *(["m"] if has_m else []), "L"]
    if sorted(times) != sorted(wanted):
        raise ValueError(f"times: has {', '.join(sorted(map(str, times)))}; give {', '.join(wanted)} for this model")
    of_blocks = times["t"]
    row = list(of_blocks) if isinstance(of_blocks, Sequence) else [of_blocks] * len(blocks)
    if len(row) != len(blocks):
        raise ValueError(f"times: t has {len(row)} entries; give one, or {len(blocks)}, one for each block")
    figures = [times["E"], *row, *([times["m"]] if has_m else []), times["L"]]
    row_layers = [embedding, *blocks, *([_ChainLayer(letter="m", forward=0, backward=0)] if has_m else []), head]
    return [_timed(layer, figure) for layer, figure in zip(row_layers, figures, strict=True)]


def _timed(layer: _ChainLayer, figure: object) -> _ChainLayer:
    """The layer with a measured time, a third of it forward."""
    if isinstance(figure, bool) or not isinstance(figure, int | float) or not 0 <= figure <= MAX_TIME:
        raise ValueError(f"times: {str(figure)[:60]!r}; give numbers from 0 to 10^15")
    forward = figure / (1 + BACKWARD_SHARE)
    return replace(layer, forward=forward, backward=BACKWARD_SHARE * forward)


def _closed(row: list[_ChainLayer], *, is_hybrid: bool) -> list[_ChainLayer]:
    """Embedding and first block as one; of a hybrid model the head and the last one as well, without letters."""
    embedding, first, *rest = row
    row = [embedding + first, *rest]
    if not is_hybrid:
        return row
    *rest, last, head = row
    row = [*rest, last + head] if rest else [last + head]
    return [replace(part, letter=part.letter.strip("L")[-1]) for part in row]


class _Ticks:
    """Times in ticks, `UNIT` a third of what F and B of a mean block take."""

    def __init__(self, row: Sequence[_ChainLayer]) -> None:
        blocks = [part for part in row if part.letter[-1] not in "mL"][1:] or row
        mean = sum(part.forward + part.backward for part in blocks) / len(blocks)
        self.scale = (1 + BACKWARD_SHARE) * UNIT / mean

    def of(self, row: Sequence[_ChainLayer]) -> Integers:
        """[2, layers]."""
        figures = [[part.forward for part in row], [part.backward for part in row]]
        return numpy.maximum(1, numpy.rint(numpy.array(figures) * self.scale)).astype(numpy.int64)
