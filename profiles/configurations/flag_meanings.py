"""Fields of programs' configurations by what they mean for time and memory.

Megatron-LM's flags, with those of Megatron-Bridge and of logs, were written down from its `arguments.py` and its
configuration classes of August 2026, and from core 0.16 to 0.20. Names are as in logs: underscores, no dashes before.
"""

import json
from fnmatch import fnmatchcase
from pathlib import Path

_FIELDS = json.loads(Path(__file__).with_name("field_meanings.json").read_text(encoding="utf-8"))
"""By program, a star standing for anything. Not counted: what changes times or bytes, which no estimate follows, or
only turns off what a program overlaps by itself. Irrelevant: data, learning rate, checkpoints, logs, launchers, and
what costs so little that no estimate shows it."""

ALIASES: dict[str, str] = _FIELDS["aliases"]
"""Other names of what is read of Megatron-LM's."""

REFUSED = {
    "decoder_num_layers": "an encoder beside a decoder is not read",
    "decoder_seq_length": "an encoder beside a decoder is not read",
    "mrope_section": "an encoder of pictures beside a decoder is not read",
    "language_model_type": "an encoder of pictures beside a decoder is not read",
    "model_provider": "encoders beside a decoder (MIMO) are not read",
    "max_tokens_to_oom": "text is generated and nothing is trained",
    "crossattn_emb_size": "blocks that attend to other sequences are not read",
    "bert_no_binary_head": "an encoder without a decoder is not read",
    "fsdp": "weights are sharded among replicas (FSDP), of which there are no estimates here",
    "moe_latent_size": "experts that are narrower than the stream of tokens are not read",
    "target_modules": "adapters beside frozen weights are not read",
    "peft": "adapters beside frozen weights are not read",
    "peft_type": "adapters beside frozen weights are not read",
    "peft_scheme": "adapters beside frozen weights are not read",
    "lora_rank": "adapters beside frozen weights are not read",
    "use_custom_fsdp": "weights are sharded among replicas (FSDP), of which there are no estimates here",
    "use_dualpipev": "this order of two directions is not played here",
    "enable_hetero": "ranks that differ from each other are not read",
    "hybrid_attention_ratio": "a hybrid model's layers are read from --hybrid-layer-pattern",
    "hybrid_mlp_ratio": "a hybrid model's layers are read from --hybrid-layer-pattern",
    "mtp_hybrid_override_pattern": "multi-token prediction of hybrid models is not read",
    "use_megatron_fsdp": "weights are sharded among replicas (FSDP), of which there are no estimates here",
    "use_torch_fsdp2": "weights are sharded among replicas (FSDP2), of which there are no estimates here",
    "experimental_attention_variant": "times of other kinds of attention are not known",
    "heterogeneous_layers_config_path": "blocks that differ from each other are not read",
    "encoder_tensor_model_parallel_size": "an encoder with degrees of its own is not read",
    "ds_sequence_parallel_fpdt": "sequences in chunks are not read",
    "encoder_pipeline_model_parallel_size": "an encoder with degrees of its own is not read",
}
"""Flags that make the estimate another one than can be made here, each with the reason."""

OF_ENCODERS = {"data_path": "_text_sentence", "tokenizer_type": "^BertWordPiece", "vocab_extra_ids": "^[1-9]"}
"""Values that BERT and T5 are trained with, where no program's name says what is: parts of texts by sentences, their
tokenizer, and tokens that stand for what is masked."""


def meaning_of(name: str, program: str = "megatron") -> str:
    """`not counted`, `irrelevant` or `unknown`."""
    for meaning in ("not counted", "irrelevant"):
        if any(fnmatchcase(name, pattern) for pattern in _FIELDS[program][meaning]):
            return meaning
    return "unknown"
