"""GPT-NeoX's YAML, whose names are Megatron's in part, in Megatron's names (main of 2026)."""

import re
from collections.abc import Mapping
from typing import Any

from profiles.configurations.deepspeed_run import is_on

_RENAMED = {
    "no_weight_tying": "untie_embeddings_and_output_weights",
    "pipe_partition_method": "pp_partition_method",
    "moe_top_k": "moe_router_topk",
}
_SECTIONS = ("zero_optimization", "optimizer", "fp16", "bf16", "attention_config", "activation", "intermediate_size")
_GATED = ("geglu", "reglu", "swiglu", "bilinear", "glu")


def is_neox(mapping: Mapping[str, Any]) -> bool:
    """Whether a document counts the stages of a pipeline as GPT-NeoX does."""
    return bool({"pipe_parallel_size", "pipe-parallel-size"} & mapping.keys())


def of_neox(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """What it says of model, degrees and batch; raises ValueError for mixers that are no attention of all tokens."""
    said = {str(name).replace("-", "_"): value for name, value in mapping.items()}
    sections = {name: value for name in _SECTIONS if isinstance(value := said.get(name), dict)}
    kinds = set(re.findall("[a-z]+", str(said.get("attention_config")).lower())) - {"all", "none"}
    if unread := kinds - {"global", "flash"}:
        raise ValueError(f"attention_config: {min(unread)} is not read; give a model of global or flash attention")
    kept = {_RENAMED.get(name, name): value for name, value in said.items() if name not in _SECTIONS}
    is_gated = str(said.get("activation", "gelu")) in _GATED
    inner, multiple = said.get("intermediate_size") or 4 * said.get("hidden_size", 0), said.get("mlp_multiple_of") or 1
    precision = str(said.get("precision", ""))
    return kept | {
        "pipe_parallel_size": said.get("pipe_parallel_size") or 1,
        "ffn_hidden_size": -(-(inner // 3 if is_gated else inner) // multiple) * multiple,
        "swiglu": is_gated,
        "use_flash_attn": "flash" in kinds,
        "zero_stage": sections.get("zero_optimization", {}).get("stage", 0),
        "optimizer": sections.get("optimizer", {}).get("type"),
        "group_query_attention": bool(said.get("num_kv_heads")),
        "bf16": is_on(sections, "bf16") or precision == "bfloat16",
        "fp16": is_on(sections, "fp16") or precision == "fp16",
        "deepspeed": True,
    }
