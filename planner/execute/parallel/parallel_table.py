"""How modules that people use are cut for a group of devices: which parts column by column, which row by row.

In a block the matrices whose output is cut come first (heads of attention, hidden units), then one whose input is cut
and whose output is added up over the group: a message per such pair and direction. What is not named (norms,
embeddings, routers, heads of vocabularies) every member has whole. Families are known by the names of their modules.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

from planner.execute.parallel.parallel_styles import (
    Conv1DRowwiseParallel,
    ExpertsParallel,
    FusedColwiseParallel,
    OwnHeadsOfBias,
    SummedGradients,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ParallelRule:
    """How one class of modules is cut."""

    styles: Mapping[str, Callable[[], ParallelStyle]]
    """By the path of the part inside the module; empty: the module itself."""
    weights: tuple[str, ...] = ()
    """Parameters of the module itself, by which it is told from others of its name."""
    heads: tuple[str, ...] = ()
    """Fields of the module's `config` that the width has to divide, where they are there."""
    local: Mapping[str, int | None] = field(default_factory=dict)
    """Attributes that are set on every member: to a number, or (None) to what they were by the width."""


_ATTENTION_HEADS = ("num_attention_heads", "num_key_value_heads", "n_head")
_DECODER_ATTENTION = _ParallelRule(
    styles=dict.fromkeys(("q_proj", "k_proj", "v_proj"), ColwiseParallel) | {"o_proj": RowwiseParallel},
    heads=_ATTENTION_HEADS,
)
_NORMED_ATTENTION = _ParallelRule(
    styles={**_DECODER_ATTENTION.styles, "q_norm": SummedGradients, "k_norm": SummedGradients}, heads=_ATTENTION_HEADS
)
_GATED_PERCEPTRON = _ParallelRule(
    styles=dict.fromkeys(("gate_proj", "up_proj"), ColwiseParallel) | {"down_proj": RowwiseParallel}
)
_ENCODER_ATTENTION = _ParallelRule(
    styles=dict.fromkeys(("self.query", "self.key", "self.value"), ColwiseParallel) | {"output.dense": RowwiseParallel},
    heads=_ATTENTION_HEADS,
)
_ENCODER_PERCEPTRON = _ParallelRule(styles={"intermediate.dense": ColwiseParallel, "output.dense": RowwiseParallel})
_NUMBERED_PERCEPTRON = _ParallelRule(styles={"fc1": ColwiseParallel, "fc2": RowwiseParallel})
_EXPERTS = _ParallelRule(styles={"": ExpertsParallel}, weights=tuple(ExpertsParallel.CUTS))


def _of_families(names: str, kind: str, *, rule: _ParallelRule) -> dict[tuple[str, str], _ParallelRule]:
    return {("transformers", f"{name}{kind}"): rule for name in names.split()}


RULES: Mapping[tuple[str, str], _ParallelRule] = {
    **_of_families("Llama Mistral Mixtral Qwen2", "Attention", rule=_DECODER_ATTENTION),
    **_of_families("Qwen3 Qwen3Moe", "Attention", rule=_NORMED_ATTENTION),
    **_of_families("ViT", "Attention", rule=_DECODER_ATTENTION),
    **_of_families("Llama Mistral Qwen2 Qwen3 Qwen3Moe", "MLP", rule=_GATED_PERCEPTRON),
    **_of_families("Bert Roberta", "Attention", rule=_ENCODER_ATTENTION),
    **_of_families("Bert Roberta", "Layer", rule=_ENCODER_PERCEPTRON),
    **_of_families("ViT", "MLP", rule=_NUMBERED_PERCEPTRON),
    **_of_families("Whisper", "EncoderLayer", rule=_NUMBERED_PERCEPTRON),
    **_of_families("Whisper", "DecoderLayer", rule=_NUMBERED_PERCEPTRON),
    ("transformers", "WhisperAttention"): _ParallelRule(
        styles=dict.fromkeys(("q_proj", "k_proj", "v_proj"), ColwiseParallel) | {"out_proj": RowwiseParallel},
        heads=("encoder_attention_heads", "decoder_attention_heads"),
        local={"num_heads": None},
    ),
    **_of_families("Mixtral Qwen3Moe", "Experts", rule=_EXPERTS),
    ("transformers", "T5Attention"): _ParallelRule(
        styles={"": OwnHeadsOfBias, **dict.fromkeys("qkv", ColwiseParallel), "o": RowwiseParallel},
        heads=("num_heads",),
        local={"n_heads": None, "inner_dim": None},
    ),
    ("transformers", "T5DenseActDense"): _ParallelRule(styles={"wi": ColwiseParallel, "wo": RowwiseParallel}),
    ("transformers", "T5DenseGatedActDense"): _ParallelRule(
        styles={"wi_0": ColwiseParallel, "wi_1": ColwiseParallel, "wo": RowwiseParallel}
    ),
    ("transformers", "GPT2Attention"): _ParallelRule(
        styles={"c_attn": lambda: FusedColwiseParallel(num_fused=3), "c_proj": Conv1DRowwiseParallel},
        heads=_ATTENTION_HEADS,
        local={"split_size": None, "num_heads": None},
    ),
    ("transformers", "GPT2MLP"): _ParallelRule(styles={"c_fc": FusedColwiseParallel, "c_proj": Conv1DRowwiseParallel}),
    ("torch", "TransformerEncoderLayer"): _ParallelRule(
        styles={"linear1": ColwiseParallel, "linear2": RowwiseParallel},
        local={"activation_relu_or_gelu": 0},  # its fast path for evaluation reads whole weights
    ),
}
"""By package and name of the class."""


def parallelize_by_table(layer: nn.Module, width: int) -> dict[str, ParallelStyle]:
    """The styles of a layer's parts by their paths, empty if none is known; sets what is counted per member (heads).

    Raises ValueError where the width does not divide the heads.
    """
    found: dict[str, ParallelStyle] = {}
    for path, part, rule in list(_known_parts(layer)):
        config = getattr(part, "config", None)
        for name in rule.heads:
            count = getattr(config, name, None)
            if isinstance(count, int) and count % width:
                raise ValueError(
                    f"{path or type(part).__name__} has {name} = {count}, which width {width} does not divide; plan "
                    "with a max_width that does, or state the cut in `parallelize`"
                )
        for name, value in rule.local.items():
            if hasattr(part, name):
                setattr(part, name, getattr(part, name) // width if value is None else value)
        for child, make in rule.styles.items():
            found[f"{path}.{child}".strip(".")] = make()
    return found


def _known_parts(layer: nn.Module) -> Iterator[tuple[str, Any, _ParallelRule]]:
    for path, part in layer.named_modules():
        kind = type(part)
        rule = RULES.get((kind.__module__.partition(".")[0], kind.__name__))
        if rule is None or not all(_has(part, child) for child in rule.styles):
            continue
        if set(rule.weights) <= {name for name, _ in part.named_parameters(recurse=False)}:
            yield path, part, rule


def _has(module: nn.Module, path: str) -> bool:
    try:
        module.get_submodule(path)
    except AttributeError:
        return False
    return True
