"""Trainers that start Megatron-LM with names and defaults of their own.

They are ms-swift, LLaMA-Factory, Primus, NeMo-RL, verl and slime.

Written down from their programs of August 2026. Of reinforcement learning the update of the policy is read; what it
does beside that is named.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

Setting = str | bool

SWIFT_COMMANDS = ("sft", "pt", "rlhf")
"""What follows `megatron` on ms-swift's command line."""

_POLICY = "actor_rollout_ref."
_ACTOR = f"{_POLICY}actor."
_VERL_PARTS = tuple(f"{_ACTOR}megatron.{part}" for part in ("override_transformer_config.", "override_ddp_config.", ""))
_VERL_OWN = {"n_gpus_per_node": "8", "nnodes": "1", "n": "1", "ppo_mini_batch_size": "256"}
"""verl's defaults of counts; those of lengths are 512 each."""
_ASIDE = "generation, and passes for log-probabilities, references and values"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerArguments:
    """What a trainer was told, in Megatron's names."""

    trainer: str
    """Its name."""
    values: Mapping[str, Any]
    """By Megatron's names, or in sections of them."""
    model: str = ""
    """As it is stated: a name in Hugging Face's form, a file, or nothing."""
    own: Mapping[str, Setting]
    """The trainer's defaults where they are not Megatron's."""
    elsewhere: Sequence[str] = ()
    """Other files that say more."""
    aside: Sequence[str] = ()
    """Parts of an iteration that are no training of the model."""


def other_files(mapping: Mapping[str, Any]) -> list[str]:
    """The files that a YAML takes in by `defaults`, `extends` or `includes`."""
    found = list[str]()
    for key in ("defaults", "extends", "includes", "bases", "_base_"):
        stated = mapping.get(key) or ()
        for entry in [stated] if isinstance(stated, str | dict) else stated:
            pairs = entry.items() if isinstance(entry, dict) else [("", entry)]
            found += [f"{group}{'/' * bool(group)}{name}" for group, name in pairs if name not in ("_self_", None)]
    return found


def of_mapping(mapping: Mapping[str, Any]) -> TrainerArguments | None:
    """Read the trainer whose document it is; None: of none of them.

    Raises ValueError with field, value and remedy for what is trained otherwise.
    """
    policy, modules = mapping.get("policy"), mapping.get("modules")
    if isinstance(policy, dict) and "megatron_cfg" in policy:
        return _nemo_rl(mapping, policy)
    if isinstance(modules, dict) and (parts := [each for each in modules.values() if _is_primus(each)]):
        return _primus(parts[0])
    if "model_name_or_path" in mapping:
        return _llama_factory(mapping)
    if isinstance(mapping.get(_POLICY[:-1]), dict):
        return replace(verl(dict(_dotted(mapping, before=""))), elsewhere=other_files(mapping))
    return None


def _dotted(mapping: Mapping[str, Any], *, before: str) -> Iterator[tuple[str, Setting]]:
    """Values of sections by their whole names, as on a command line."""
    for name, value in mapping.items():
        if isinstance(value, dict):
            yield from _dotted(value, before=f"{before}{name}.")
        elif value is not None:
            yield f"{before}{name}", value if isinstance(value, bool) else str(value)


def swift(values: Mapping[str, Setting], *, command: str, environment: Mapping[str, str]) -> TrainerArguments:
    """`megatron sft` and its like; processes are counted in its environment."""
    if command == "rlhf":
        raise ValueError("megatron rlhf: steps with passes of a reference model are not read; give megatron sft or pt")
    kept = dict(values)
    _require_all_weights(kept, ("tuner_type", "train_type"))
    model = str(kept.pop("model", "") or kept.pop("load", ""))
    sequence = kept.pop("packing_length", None) or kept.pop("max_length", None)
    return TrainerArguments(
        trainer="ms-swift",
        values={
            **kept,
            **({"seq_length": sequence} if sequence else {}),
            **{
                name: environment[name.upper()]
                for name in ("nproc_per_node", "nnodes")
                if environment.get(name.upper(), "").isdigit()
            },
        },
        model=model,
        own={
            "global_batch_size": "16",
            "use_distributed_optimizer": True,
            "bf16": True,
            "expert_tensor_parallel_size": "1",
            "attention_backend": "flash",
        },
    )


def is_verl(overrides: Mapping[str, Setting]) -> bool:
    """Whether dotted overrides are verl's."""
    return any(name.startswith(_POLICY) for name in overrides)


def verl(overrides: Mapping[str, Setting]) -> TrainerArguments:
    """The update of its policy by Megatron, out of overrides with their whole names."""
    strategy = str(overrides.get(f"{_ACTOR}strategy", "megatron"))
    if strategy != "megatron" or not any(name.startswith(f"{_ACTOR}megatron.") for name in overrides):
        raise ValueError(
            f"{_ACTOR}strategy: the policy is not trained by Megatron-LM, and only that is read; "
            f"give a command with {_ACTOR}megatron"
        )
    for name in ("model.lora_rank", "model.lora.rank"):
        if str(overrides.get(f"{_POLICY}{name}", "0")) != "0":
            raise ValueError(f"{_POLICY}{name}: adapters beside frozen weights are not read; set it to 0")
    stated = {name: str(overrides.get(f"{section}.{name}", _VERL_OWN[name])) for section, name in (
        ("trainer", "n_gpus_per_node"), ("trainer", "nnodes"), (f"{_POLICY}rollout", "n"),
        (_ACTOR[:-1], "ppo_mini_batch_size"))}  # fmt: skip
    lengths = (f"max_{part}_length" for part in ("prompt", "response"))
    sequence = sum(_whole(name, overrides.get(f"data.{name}", "512")) for name in lengths)
    own = {name: _whole(name, value) for name, value in stated.items()}
    values: dict[str, Any] = {
        "nproc_per_node": str(own["n_gpus_per_node"]),
        "nnodes": str(own["nnodes"]),
        "global_batch_size": str(own["ppo_mini_batch_size"] * own["n"]),
        "seq_length": str(sequence),
        "micro_batch_size": _verl_samples(overrides, sequence=sequence),
    }
    for name in overrides:
        part = next((part for part in _VERL_PARTS if name.startswith(part)), None)
        if part is not None:
            values[name.removeprefix(part).replace(".", "_")] = overrides[name]
    return TrainerArguments(
        trainer="verl",
        values=values,
        model=str(overrides.get(f"{_POLICY}model.path", "")),
        own={"use_distributed_optimizer": True, "sequence_parallel": True, "bf16": True, "attention_backend": "flash"},
        aside=(_ASIDE, f"samples shorter than {sequence} tokens, the longest prompt and response"),
    )


def _verl_samples(overrides: Mapping[str, Setting], *, sequence: int) -> str:
    """Of a microbatch: as stated, or as many of the longest as fit into its tokens."""
    tokens = str(overrides.get(f"{_ACTOR}ppo_max_token_len_per_gpu", "16384"))
    if str(overrides.get(f"{_ACTOR}use_dynamic_bsz", "False")).lower() == "true":
        return str(max(1, int(tokens) // max(1, sequence))) if tokens.isdigit() else tokens
    return str(overrides.get(f"{_ACTOR}ppo_micro_batch_size_per_gpu", "1"))


def slime(values: Mapping[str, Setting]) -> TrainerArguments:
    """The update of its policy, which slime starts with Megatron's own flags, out of all flags of its command."""
    own = {"rollout_batch_size": "1", "n_samples_per_prompt": "1", "num_steps_per_rollout": "1", "actor_num_nodes": "1",
           "actor_num_gpus_per_node": "8", "context_parallel_size": "1", "max_tokens_per_gpu": "0",
           "rollout_max_context_len": "0", "rollout_max_prompt_len": "0", "rollout_max_response_len": "0",
           "tensor_model_parallel_size": "1", "pipeline_model_parallel_size": "1"}  # fmt: skip
    count = {name: _whole(name, values.get(name, otherwise)) for name, otherwise in own.items()}
    samples = count["rollout_batch_size"] * count["n_samples_per_prompt"] // max(1, count["num_steps_per_rollout"])
    stated = count["rollout_max_context_len"] or count["rollout_max_prompt_len"] + count["rollout_max_response_len"]
    sequence, tokens = stated or 4096, count["max_tokens_per_gpu"] * count["context_parallel_size"]
    is_dynamic = bool(values.get("use_dynamic_batch_size"))
    group = math.prod(count[f"{kind}_parallel_size"] for kind in ("tensor_model", "context", "pipeline_model"))
    pipelines = max(1, count["actor_num_nodes"] * count["actor_num_gpus_per_node"] // max(1, group))
    each = max(1, _whole("global_batch_size", values.get("global_batch_size", samples)) // pipelines)
    most = max(size for size in range(1, max(1, min(each, tokens // sequence, 4096)) + 1) if each % size == 0)
    return TrainerArguments(
        trainer="slime",
        values={
            "global_batch_size": str(samples),
            "nproc_per_node": str(count["actor_num_gpus_per_node"]),
            "nnodes": str(count["actor_num_nodes"]),
            **values,
            **({"seq_length": str(sequence)} if stated else {}),
            **({"micro_batch_size": str(most)} if is_dynamic else {}),
        },
        model=str(values.get("hf_checkpoint", "")),
        own={"use_distributed_optimizer": True, "bf16": not values.get("fp16"), "seq_length": "4096"},
        aside=(_ASIDE, f"samples shorter than {sequence} tokens, the longest prompt and response"),
    )


def _whole(name: str, value: Any) -> int:
    if not re.fullmatch(r"\d{1,12}", text := str(value).strip("\"'")):
        raise ValueError(f"{name} = {text[:60]}: is not a whole number; give one")
    return int(text)


def _nemo_rl(mapping: Mapping[str, Any], policy: Mapping[str, Any]) -> TrainerArguments:
    section = policy["megatron_cfg"] if isinstance(policy["megatron_cfg"], dict) else {}
    if section.get("enabled") is False or not section:
        raise ValueError(
            "policy.megatron_cfg.enabled: the policy is not trained by Megatron-LM, and only that is read; set it to "
            "true"
        )
    if isinstance(peft := section.get("peft"), dict) and peft.get("enabled"):
        raise ValueError("policy.megatron_cfg.peft.enabled: adapters beside frozen weights are not read; set false")
    cluster = mapping.get("cluster") if isinstance(mapping.get("cluster"), dict) else {}
    left_out = ("enabled", "peft", "activation_checkpointing", "recompute_granularity", "scheduler", "env_vars")
    kept = {name: value for name, value in section.items() if name not in left_out}
    if section.get("activation_checkpointing"):
        kept["recompute_granularity"] = kind = section.get("recompute_granularity") or "full"
        kept |= {"recompute_method": "uniform", "recompute_num_layers": 1} if kind == "full" else {}
    renamed = {
        "global_batch_size": policy.get("train_global_batch_size"),
        "micro_batch_size": policy.get("train_micro_batch_size"),
        "seq_length": policy.get("max_total_sequence_length"),
        "nproc_per_node": (cluster or {}).get("gpus_per_node"),
        "nnodes": (cluster or {}).get("num_nodes"),
    }
    precision = str(policy.get("precision", "bfloat16"))
    return TrainerArguments(
        trainer="NeMo-RL",
        values={**kept, **{name: value for name, value in renamed.items() if value is not None}},
        model=str(policy.get("model_name", "")),
        own={
            "bf16": precision == "bfloat16",
            "fp16": precision == "float16",
            "use_distributed_optimizer": True,
            "overlap_grad_reduce": True,
            "expert_tensor_parallel_size": "1",
        },
        elsewhere=other_files(mapping),
        aside=(_ASIDE, "samples shorter than policy.max_total_sequence_length"),
    )


def _is_primus(part: Any) -> bool:
    return isinstance(part, dict) and "framework" in part and ("overrides" in part or "config" in part)


def _primus(part: Mapping[str, Any]) -> TrainerArguments:
    if (framework := str(part["framework"])) != "megatron":
        raise ValueError(f"framework: {framework[:40]}: the file is not Megatron-LM's; give one of framework megatron")
    files = [str(part[name]) for name in ("config", "model") if name in part]
    overrides = part.get("overrides")
    return TrainerArguments(
        trainer="Primus",
        values=overrides if isinstance(overrides, dict) else {},
        model=str(part.get("model", "")).removesuffix(".yaml"),
        own={"use_distributed_optimizer": True, "sequence_parallel": True, "bf16": True},
        elsewhere=files,
    )


def _llama_factory(mapping: Mapping[str, Any]) -> TrainerArguments:
    kept = dict(mapping)
    for name in ("deepspeed", "fsdp", "fsdp_config"):
        if kept.get(name):
            raise ValueError(
                f"{name} = {str(kept[name])[:60]}: the model is not trained by Megatron-LM, and only that is read; "
                f"leave {name} out"
            )
    _require_all_weights(kept, ("finetuning_type",))
    if not any(name.endswith("_parallel_size") for name in kept):
        raise ValueError("model_name_or_path: trained by Megatron-LM alone is read; give tensor_model_parallel_size")
    renamed = {"per_device_train_batch_size": "micro_batch_size", "cutoff_len": "seq_length"}
    model = str(kept.pop("model_name_or_path"))
    return TrainerArguments(
        trainer="LLaMA-Factory",
        values={renamed.get(name, name): value for name, value in kept.items()},
        model=model,
        own={
            "expert_tensor_parallel_size": "1",
            **({"recompute_method": "uniform"} if kept.get("recompute_granularity") == "full" else {}),
        },
    )


def _require_all_weights(values: dict[str, Any], names: Sequence[str]) -> None:
    """Raise ValueError where a part of the weights is frozen."""
    for name in names:
        if (kind := str(values.pop(name, "full"))) != "full":
            raise ValueError(f"{name} = {kind[:40]}: adapters beside frozen weights are not read; set it to full")
