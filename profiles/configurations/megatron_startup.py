"""What Megatron-LM asks of a command before it starts, beside how layers, devices and batches divide."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping

from profiles.configurations.argument_forms import Value
from profiles.configurations.flag_meanings import FORKS, STARTUP

_UPSTREAM = re.compile(r"(?:^|/)pretrain_(?:gpt|hybrid|mamba)\.py$")
"""Programs of Megatron-LM that train decoders; forks have them, too."""
_SIZES = ("max_position_embeddings", "seq_length", "hidden_size", "num_attention_heads")
_LEVELS = "hierarchical_context_parallel_sizes"
_SHARED = ("num_query_groups", "tensor_model_parallel_size")


def is_upstream(program: str) -> bool:
    """Whether a program has the name of one of Megatron-LM's."""
    return _UPSTREAM.search(program) is not None


def fork_flags(flags: Iterable[str]) -> list[str]:
    """Those that Megatron-LM's own parser does not take, and forks do; two of its own have an underscore."""
    named = ((each, each.lstrip("-").replace("-", "_")) for each in flags)
    return [each for each, name in named if name in FORKS or ("_" in each and "opt_param" not in each)]


def startup_refusals(values: Mapping[str, Value], *, switches: Mapping[str, Value], is_whole: bool) -> Iterator[str]:
    """Why Megatron-LM ends at once, each with a remedy.

    `switches` are those of the command, with what stands behind them; `is_whole`: it states all of the model.
    """
    for name, value in switches.items():
        if isinstance(value, str):
            yield f"{_shown(name)} {value[:40]!r}: is a switch, and the parser takes no value; leave the value out"
    for given, wanted in STARTUP:
        is_asked = all(_holds(each, values) for each in given) if given else is_whole
        if is_asked and not any(_holds(each, values) for each in wanted):
            asked = " or ".join(map(_shown, wanted))
            told = f"{' and '.join(map(_shown, given))}: asks for {asked} beside; change one of them"
            yield told if given else f"{asked}: is not there, and has no default; give it"
    positions, tokens, hidden, heads = (_number(values.get(name, "")) for name in _SIZES)
    if positions < tokens and positions:
        yield f"--max-position-embeddings {positions} is less than --seq-length {tokens}; give {tokens} or more"
    if hidden % (heads or 1) and not _holds("kv_channels", values):
        yield f"--hidden-size {hidden} is no multiple of --num-attention-heads {heads}; give --kv-channels"
    groups, ranks = (_number(values.get(name, "")) or 1 for name in _SHARED)
    if _holds("group_query_attention", values) and groups % ranks and ranks % groups:
        size = f"--tensor-model-parallel-size {ranks}"
        yield f"--num-query-groups {groups} is neither a multiple nor a divisor of {size}; use another number"
    sizes, context = str(values.get(_LEVELS, "")).split(), _number(values.get("context_parallel_size", "")) or 1
    if _LEVELS in values and math.prod(map(_number, sizes)) != context:
        told = f"{_shown(_LEVELS)} {' '.join(sizes)[:40]}: their product is not --context-parallel-size {context}"
        yield f"{told}; make them equal"


def _number(value: Value) -> int:
    return int(value) if re.fullmatch("[0-9]{1,12}", str(value)) else 0


def _shown(term: str) -> str:
    """`--bf16`, `no --bf16`, `--optimizer adam`, `--num-experts above 0`."""
    name = "--" + term.lstrip("!").replace("_", "-").replace("=", " ").replace(">", " above ")
    return f"no {name}" if term.startswith("!") else name


def _holds(term: str, values: Mapping[str, Value]) -> bool:
    name, sign, bound = re.split(r"([=>]|$)", term.lstrip("!"), maxsplit=1)
    value = values.get(name, False)
    if sign == "=":
        return value == bound
    if sign == ">":
        return _number(value) > int(bound)
    return (value is not False and value not in ("None", "null")) != term.startswith("!")
