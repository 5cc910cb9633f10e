"""What a log of Megatron-LM says of how the job ran: the arguments that it prints before it begins."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from profiles.assumptions import Assumptions, GradientPrecision, Module, Precision

_MAX_HEAD = 4 * 2**20
"""Bytes at the beginning of a log in which its arguments are looked for."""

_ARGUMENT = re.compile(r"^.*?(?<![\w.])(\w+) \.{3,} (\S.*?) *$", re.MULTILINE)
_RECIPES: Mapping[str, Precision] = {
    "tensorwise": "fp8",
    "delayed": "fp8",
    "blockwise": "fp8_blockwise",
    "mxfp8": "fp8_mx",
}
_ATTENTION: Mapping[str, Literal["flash", "unfused"]] = {
    "flash": "flash",
    "fused": "flash",
    "unfused": "unfused",
    "local": "unfused",
}


def read_assumptions(path: Path) -> Assumptions | None:
    """What the arguments state; None where the log has none of them."""
    with path.open(encoding="utf-8", errors="replace") as file:
        told = dict(_ARGUMENT.findall(file.read(_MAX_HEAD))[::-1])  # the first one counts
    found = assumptions_of(told)
    return found if found.stated() else None


def assumptions_of(told: Mapping[str, str]) -> Assumptions:
    """Of arguments as printed: `True`, `None`, numbers, names, `AttnBackend.flash`, lists of names."""
    length, context = _number(told, "seq_length"), _number(told, "context_parallel_size")
    attention = told.get("attention_backend", "").rpartition(".")[2]
    experts = _number(told, "num_experts")
    return Assumptions(
        precision=_precision(told),
        gradients=_gradients(told),
        attention="flash" if told.get("use_flash_attn") == "True" else _ATTENTION.get(attention),
        fused_loss=_switch(told, "cross_entropy_loss_fusion"),
        sequence_parallel=_switch(told, "sequence_parallel"),
        expert_parallel=None if not experts else (_number(told, "expert_model_parallel_size") or 1) > 1,
        hidden_exchanges=_switch(told, "tp_comm_overlap"),
        context_parallel=context or None,
        distributed_optimizer=_switch(told, "use_distributed_optimizer"),
        selective_modules=_modules(told),
        sequence_length=length or None,
    )


def _precision(told: Mapping[str, str]) -> Precision | None:
    if told.get("fp4", told.get("fp4_format", "None")) != "None":
        return "nvfp4"
    if told.get("fp8", told.get("fp8_format", "None")) != "None":
        return _RECIPES.get(told.get("fp8_recipe", "delayed"))
    kinds: dict[str, Precision] = {"bf16": "bf16", "fp16": "fp16"}
    switches = {name: _switch(told, name) for name in kinds}
    if None in switches.values():
        return None
    return next((kinds[name] for name, is_on in switches.items() if is_on), "fp32")


def _gradients(told: Mapping[str, str]) -> GradientPrecision | None:
    """Of bf16 they are kept in fp32, unless said otherwise."""
    precision = _precision(told)
    if precision is None:
        return None
    if precision in ("fp32", "fp16"):
        is_raised = precision == "fp32" or told.get("accumulate_allreduce_grads_in_fp32") == "True"
        return "fp32" if is_raised else "fp16"
    return "bf16" if "bf" in told.get("main_grads_dtype", "") else "fp32"


def _modules(told: Mapping[str, str]) -> tuple[Module, ...] | None:
    """Of a list as Python prints it; None where nothing is recomputed selectively, or something unknown is."""
    if told.get("recompute_granularity") != "selective":
        return None
    named = re.findall(r"\w+", told.get("recompute_modules", ""))
    known = tuple(module for module in get_args(Module) if module in named)
    return known if known and len(known) == len(named) else None


def _switch(told: Mapping[str, str], name: str) -> bool | None:
    return {"True": True, "False": False}.get(told.get(name, ""))


def _number(told: Mapping[str, Any], name: str) -> int:
    text = told.get(name, "")
    return int(text) if text.isdecimal() and len(text) < 10 else 0
