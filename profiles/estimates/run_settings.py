"""How a model is run in an estimate: one list of settings for questions, configurations and operations."""

from dataclasses import dataclass, fields
from typing import Any

from profiles.estimates.operations import Dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """How a model is run, whatever the microbatch and the group of devices."""

    sequence: int
    """Tokens of a sequence."""
    context: int = 1
    """Devices that share every sequence. Keys and values go round among them while attention runs."""
    dtype: Dtype = "bf16"
    """Of matrix products in blocks; the head is bf16."""
    hides_exchanges: bool = False
    """Whether gathers and scatters run chunk by chunk beside the products that need them."""
    sequence_parallel: bool = True
    """Whether devices that share layers each do a part of the tokens between products; otherwise each does all."""
    experts: int | None = None
    """Devices that share the experts of a layer; None: those that share the layer."""
    sends_once: bool = False
    """Whether a token goes to a node once, however many of its experts are there."""
    hides_tokens: bool = False
    """Whether tokens travel to experts and back while another microbatch computes."""
    fused_experts: bool = False
    """Whether experts' biases and clamps are parts of their products' kernels."""
    fused_attention: bool = True
    """Whether attention is one kernel; otherwise all scores are written, and weighted in products of their own."""


def settings_of(source: object) -> dict[str, Any]:
    """The fields of `RunSettings` that something else states under the same names, such as a configuration."""
    return {each.name: getattr(source, each.name) for each in fields(RunSettings)}
