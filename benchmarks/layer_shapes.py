"""Layers from shapes and data sheets, for profiles that say that they are estimates.

A transformer block with P weights on T tokens of sequence length s does 2PT operations forward, 2PT for its input's and
2PT for its weights' gradient, and in attention 4sTh forward and 8sTh backward, none of the latter for the weights.
Activations are bf16 and attention never stores its scores.
"""

from dataclasses import dataclass
from typing import Literal

from profiles.estimates.analytic import DeviceSheet
from profiles.model_profile import Layer, LayerCost

Training = Literal["full", "lora", "frozen", "input"]
"""`full`: weights are trained. `lora`: they are frozen, low-rank adapters beside the attention's are trained. `frozen`:
no weights are trained, but a gradient passes. `input`: nothing up to here is trained, so nothing goes back at all."""

BYTES_PER_VALUE = 2
"""Of weights, activations and gradients: bf16."""

_STATE_BYTES_PER_PARAMETER = 16
"""Adam in mixed precision: weights 2, gradients 2, master weights and two moments 4 each."""

_OPTIMIZER_BYTES_PER_PARAMETER = 12
"""Of these: master weights and moments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockShape:
    """A transformer block and what passes through it."""

    hidden: int
    """Width of the residual stream."""
    key_value: int
    """Width of all keys together, and of all values; `hidden` without grouped queries."""
    feed_forward: int
    """Width inside the feed-forward part."""
    is_gated: bool
    """Whether the feed-forward part has a third matrix."""
    tokens: int
    """Tokens of one microbatch: sequence length x sequences."""
    sequence: int
    """Tokens of one sequence."""

    @property
    def parameters(self) -> int:
        """Weights of the block's matrices."""
        attention = 2 * self.hidden * (self.hidden + self.key_value)
        return attention + (2 + self.is_gated) * self.hidden * self.feed_forward

    @property
    def boundary_bytes(self) -> int:
        """What leaves the block."""
        return BYTES_PER_VALUE * self.tokens * self.hidden


def transformer_block(
    name: str, shape: BlockShape, *, sheet: DeviceSheet, training: Training = "full", rank: int = 16
) -> Layer:
    """One block, trained or not; `rank` is that of the adapters of `lora`.

    `lora` puts adapters beside the query, key, value and output matrices. A frozen block keeps less: inputs of matrices
    are wanted for the gradients of their weights only.
    """
    adapters = 2 * rank * (3 * shape.hidden + shape.key_value) if training == "lora" else 0
    trained = {"full": shape.parameters, "lora": adapters}.get(training, 0)
    attention = 4 * shape.sequence * shape.tokens * shape.hidden
    products = 2 * (shape.parameters + adapters) * shape.tokens
    weights = BYTES_PER_VALUE * shape.parameters
    has_backward = training != "input"
    stash, weight_stash = _stashes(shape, training)
    return Layer(
        name=name,
        costs=(
            LayerCost(
                device_type=sheet.name,
                forward_ns=sheet.time_ns(products + attention, weights),
                input_grad_ns=sheet.time_ns(products + 2 * attention, weights) if has_backward else 0,
                weight_grad_ns=sheet.time_ns(2 * trained * shape.tokens) if trained else 0,
                recompute_ns=sheet.time_ns(products + attention, weights) if has_backward else 0,
            ),
        ),
        parameter_bytes=BYTES_PER_VALUE * (trained or shape.parameters),
        optimizer_bytes=_OPTIMIZER_BYTES_PER_PARAMETER * trained if trained else None,
        state_bytes=_state_bytes(shape.parameters + adapters, trained=trained),
        stash_bytes=stash,
        weight_stash_bytes=weight_stash,
        checkpoint_bytes=min(stash, shape.boundary_bytes),
        frozen=not trained,
    )


def _state_bytes(parameters: int, *, trained: int) -> int:
    """Resident: weights alone where they are frozen, and all that Adam keeps where they are trained."""
    return BYTES_PER_VALUE * (parameters - trained) + _STATE_BYTES_PER_PARAMETER * trained


def _stashes(shape: BlockShape, training: Training) -> tuple[int, int]:
    """What a microbatch leaves behind between F and I, and between I and W."""
    if training == "input":
        return 0, 0
    queries = shape.hidden + 2 * shape.key_value
    inside = (1 + shape.is_gated) * shape.feed_forward
    needed = 3 * shape.hidden + queries + inside
    attention_inputs, attention_gradients = 2 * shape.hidden, queries + shape.hidden
    other_inputs, other_gradients = shape.hidden + shape.feed_forward, inside + shape.hidden
    kept = {
        "full": (attention_inputs + other_inputs, attention_gradients + other_gradients),
        "lora": (attention_inputs, attention_gradients),
    }.get(training, (0, 0))
    # the attention's own output is wanted for the input's gradient, too: it is not held twice
    stash = needed + max(0, kept[0] - shape.hidden)
    unit = BYTES_PER_VALUE * shape.tokens
    return unit * stash, unit * min(stash, sum(kept))


def embedding(name: str, *, vocabulary: int, hidden: int, tokens: int, sheet: DeviceSheet, trained: bool) -> Layer:
    """A table look-up: bytes move, next to nothing is computed; a trained one adds gradients into its table."""
    moved = 2 * BYTES_PER_VALUE * tokens * hidden
    parameters = vocabulary * hidden
    indices = 8 * tokens if trained else 0
    return Layer(
        name=name,
        costs=(
            LayerCost(
                device_type=sheet.name,
                forward_ns=sheet.time_ns(0, moved),
                input_grad_ns=0,
                weight_grad_ns=sheet.time_ns(0, moved) if trained else 0,
            ),
        ),
        parameter_bytes=BYTES_PER_VALUE * parameters,
        optimizer_bytes=_OPTIMIZER_BYTES_PER_PARAMETER * parameters if trained else None,
        state_bytes=_state_bytes(parameters, trained=parameters if trained else 0),
        stash_bytes=indices + (BYTES_PER_VALUE * tokens * hidden if trained else 0),
        weight_stash_bytes=indices + (BYTES_PER_VALUE * tokens * hidden if trained else 0),
        frozen=not trained,
    )


def language_head(name: str, *, vocabulary: int, hidden: int, tokens: int, sheet: DeviceSheet, trained: bool) -> Layer:
    """Logits and their loss: one product as wide as the vocabulary; the logits stay in bf16 and fp32."""
    parameters = vocabulary * hidden
    product = sheet.time_ns(2 * parameters * tokens, BYTES_PER_VALUE * parameters + 6 * tokens * vocabulary)
    inputs, logits = BYTES_PER_VALUE * tokens * hidden, tokens * vocabulary
    return Layer(
        name=name,
        costs=(
            LayerCost(
                device_type=sheet.name,
                forward_ns=product,
                input_grad_ns=product,
                weight_grad_ns=product if trained else 0,
            ),
        ),
        parameter_bytes=BYTES_PER_VALUE * parameters,
        optimizer_bytes=_OPTIMIZER_BYTES_PER_PARAMETER * parameters if trained else None,
        state_bytes=_state_bytes(parameters, trained=parameters if trained else 0),
        stash_bytes=inputs + 6 * logits,
        weight_stash_bytes=inputs + BYTES_PER_VALUE * logits if trained else 0,
        frozen=not trained,
    )


def projection(name: str, *, inner: int, outer: int, tokens: int, sheet: DeviceSheet) -> Layer:
    """One trained matrix, `inner` x `outer`, as between a vision encoder and a language model."""
    parameters = inner * outer
    product = sheet.time_ns(2 * parameters * tokens, BYTES_PER_VALUE * parameters)
    return Layer(
        name=name,
        costs=(LayerCost(device_type=sheet.name, forward_ns=product, input_grad_ns=product, weight_grad_ns=product),),
        parameter_bytes=BYTES_PER_VALUE * parameters,
        optimizer_bytes=_OPTIMIZER_BYTES_PER_PARAMETER * parameters,
        state_bytes=_state_bytes(parameters, trained=parameters),
        stash_bytes=BYTES_PER_VALUE * tokens * inner,
        weight_stash_bytes=BYTES_PER_VALUE * tokens * inner,
    )
