"""NeMo's YAML, whose model section has names of its own, in Megatron's names."""

from collections.abc import Mapping
from typing import Any

_RENAMED = {
    "activations_checkpoint_granularity": "recompute_granularity",
    "activations_checkpoint_method": "recompute_method",
    "activations_checkpoint_num_layers": "recompute_num_layers",
    "use_flash_attention": "use_flash_attn",
    "bias": "add_bias_linear",
}
_OTHER_SECTIONS = ("optim", "tokenizer", "data", "nsys_profile", "exp_manager")
"""Of a model, which say nothing of its layers or degrees."""
_OF_NEMO = ("mcore_gpt", "megatron_amp_O2", "grad_allreduce_chunk_size_mb", "resume_from_checkpoint")
"""Switches of NeMo's own."""


def is_nemo(mapping: Mapping[str, Any]) -> bool:
    """Whether a document has NeMo's two sections."""
    trainer, model = mapping.get("trainer"), mapping.get("model")
    return isinstance(trainer, dict) and isinstance(model, dict) and "devices" in trainer


def in_megatrons_names(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """What it says of model, degrees, batch and devices; other sections are left out."""
    trainer, model = mapping["trainer"], mapping["model"]
    kept = {name: value for name, value in model.items() if name not in (*_OTHER_SECTIONS, *_OF_NEMO)}
    activation = str(kept.pop("activation", "gelu"))
    precision = str(trainer.get("precision", model.get("precision", "")))
    optimizer = str((model.get("optim") or {}).get("name", ""))
    said = {_RENAMED.get(name, name): value for name, value in kept.items() if name != "precision"}
    return said | {
        "swiglu": activation.endswith("glu"),
        "bf16": "bf16" in precision,
        "fp16": precision in ("16", "16-mixed", "fp16"),
        "use_distributed_optimizer": optimizer == "distributed_fused_adam",
        "group_query_attention": bool(kept.get("num_query_groups")),
        "nproc_per_node": trainer["devices"],
        "nnodes": trainer.get("num_nodes", 1),
    }
