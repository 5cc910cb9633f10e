"""How a model was run when its times and bytes were taken: what another program has to be told to run it so."""

from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, get_args, get_type_hints

from profiles.documents.strict_record import StrictRecord
from profiles.field_rules import NotEmpty, Whole, Width, require_fields

Precision = Literal["fp32", "fp16", "bf16", "fp8", "fp8_blockwise", "fp8_mx", "nvfp4"]
"""Of the inputs of matrix products. From `fp8` on (one scale per tensor, per block, per 32 elements, and 4 bits)
weights and all else are bf16."""

GradientPrecision = Literal["fp32", "bf16", "fp16"]
"""Of gradients as they are accumulated. In the order of `--dtype`: Python holds one order for equal unions."""

Module = Literal["core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts"]
"""A part of a block, as Megatron names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions(StrictRecord):
    """What times and bytes of a profile hold for; a field that is null is not stated, and nothing follows from it."""

    precision: Precision | None = None
    """Of the inputs of matrix products."""
    gradients: GradientPrecision | None = None
    """Of gradients as they are accumulated."""
    attention: Literal["flash", "unfused"] | None = None
    """`flash`: one kernel that stores no scores; `unfused`: scores are stored."""
    fused_loss: bool | None = None
    """Whether the loss is computed without storing logits a second time."""
    sequence_parallel: bool | None = None
    """Whether the devices of a group divide norms, dropouts and residual additions along the sequence."""
    expert_parallel: bool | None = None
    """Whether the devices of a group hold whole experts of their own, rather than parts of all."""
    hidden_exchanges: bool | None = None
    """Whether gathers and scatters within a group run beside the products that need them."""
    context_parallel: Width | None = None
    """Devices that share a sequence; costs and bytes are those of one."""
    distributed_optimizer: bool | None = None
    """Whether replicas divided the optimizer's state when times were taken; `optimizer_bytes` are all of it even so."""
    selective_modules: Annotated[tuple[Module, ...], NotEmpty("name the modules, or leave the field out")] | None = None
    """What of a block the kind of recomputation `selective` recomputes."""
    sequence_length: Annotated[int, Whole("tokens", least=1, most=2**30)] | None = None
    """Of a sample."""

    def __post_init__(self) -> None:
        require_fields("assumptions", self)
        for name, hint in get_type_hints(Assumptions).items():
            if name != "__pydantic_config__":
                _require_kind(name, getattr(self, name), hint=hint)

        for module in self.selective_modules or ():
            if module not in get_args(Module):
                raise ValueError(
                    f"assumptions: selective_modules has {str(module)[:60]!r}; "
                    f"give some of {', '.join(get_args(Module))}"
                )

    def stated(self) -> dict[str, Any]:
        """What is not null, by field."""
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None}


def _require_kind(name: str, value: Any, *, hint: Any) -> None:
    """Raise ValueError for what is neither null, nor one of the values that there are, nor true or false."""
    choices = [choice for part in get_args(hint) for choice in get_args(part) if isinstance(choice, str)]
    if choices and value is not None and value not in choices:
        raise ValueError(
            f"assumptions: {name} = {str(value)[:60]!r}; write one of {', '.join(choices)}, or leave it out"
        )
    if bool in get_args(hint) and not isinstance(value, bool | None):
        raise ValueError(f"assumptions: {name} = {str(value)[:60]!r}; write true or false, or leave it out")
