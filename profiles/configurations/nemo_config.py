"""NeMo's YAML, whose model section has names of its own, in Megatron's names."""

import re
from collections.abc import Mapping
from typing import Any

_RENAMED = {
    "activations_checkpoint_granularity": "recompute_granularity",
    "activations_checkpoint_method": "recompute_method",
    "activations_checkpoint_num_layers": "recompute_num_layers",
    "use_flash_attention": "use_flash_attn",
    "bias": "add_bias_linear",
    "overlap_grad_sync": "overlap_grad_reduce",
    "ub_tp_comm_overlap": "tp_comm_overlap",
}
_OTHER_SECTIONS = ("optim", "tokenizer", "data", "nsys_profile", "exp_manager")
"""Of a model, which say nothing of its layers or degrees."""
_OF_NEMO = ("mcore_gpt", "megatron_amp_O2", "grad_allreduce_chunk_size_mb", "resume_from_checkpoint")
"""Switches of NeMo's own."""
_DEGREES = {f"{kind}_model_parallel_size" for kind in ("tensor", "pipeline", "expert")} | {"context_parallel_size"}
_OTHER_MODELS = {
    **dict.fromkeys(("encoder", "vision", "mm_cfg", "retro"), "an encoder beside a decoder is"),
    "hyena": "operators in place of attention are",
}
"""Sections of models that are more or other than a decoder."""
_OTHER_HEADS = {
    "bert_binary_head": "an encoder without a decoder is",
    **dict.fromkeys(("use_avg_pool", "reward_model_type"), "a head of rewards is"),
}
"""Switches that such models alone have, on or off."""
_PRODUCT = re.compile(r"\$\{multiply: *(\d+), *\$\{\.(\w+)\}\}")


def is_nemo(mapping: Mapping[str, Any]) -> bool:
    """Whether a document has NeMo's two sections."""
    trainer, model = mapping.get("trainer"), mapping.get("model")
    return isinstance(trainer, dict) and isinstance(model, dict) and "devices" in trainer


def in_megatrons_names(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """What it says of model, degrees, batch and devices; other sections are left out.

    Raises ValueError for a model that has more than a decoder.
    """
    trainer, model = mapping["trainer"], mapping["model"]
    other = _OTHER_HEADS | {name: why for name, why in _OTHER_MODELS.items() if isinstance(model.get(name), dict)}
    if found := [name for name in model if name in other]:
        raise ValueError(f"model.{found[0]}: {other[found[0]]} not read; give a decoder's file")
    for section, stated in mapping.items():
        if section != "model" and isinstance(stated, dict) and (beside := _DEGREES.intersection(stated)):
            raise ValueError(f"{section}.{min(beside)}: NeMo has it in model alone; give NeMo's file")
    left_out = (*_OTHER_SECTIONS, *_OF_NEMO, "fp8", "fp8_hybrid", "fp8_e4m3")
    kept = {name: _product(value, model) for name, value in model.items() if name not in left_out}
    activation = str(kept.pop("activation", "gelu"))
    precision = str(trainer.get("precision", model.get("precision", "")))
    optimizer = str((model.get("optim") or {}).get("name", ""))
    said = {_RENAMED.get(name, name): value for name, value in kept.items() if name != "precision"}
    return said | {
        "swiglu": activation.endswith("glu"),
        "bf16": "bf16" in precision,
        "fp16": precision in ("16", "16-mixed", "fp16"),
        "use_distributed_optimizer": optimizer in ("distributed_fused_adam", "mcore_distributed_optim"),
        "fp8_format": model.get("fp8") is True and ("hybrid" if model.get("fp8_hybrid") else "e4m3"),
        "group_query_attention": bool(kept.get("num_query_groups")),
        "nproc_per_node": trainer["devices"],
        "nnodes": trainer.get("num_nodes", 1),
    }


def _product(value: Any, model: Mapping[str, Any]) -> Any:
    """`${multiply:4, ${.hidden_size}}` by its value; anything else as it is."""
    match = _PRODUCT.fullmatch(value.strip()) if isinstance(value, str) else None
    return value if match is None or not isinstance(model.get(match[2]), int) else int(match[1]) * model[match[2]]
