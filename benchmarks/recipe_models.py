"""Configurations, in Hugging Face's form, of models that are not known by a short name: published shapes."""

from typing import Any

KIMI_K2: dict[str, Any] = {
    "model_type": "kimi_k2", "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 64,
    "num_key_value_heads": 64, "intermediate_size": 18432, "vocab_size": 163840, "q_lora_rank": 1536,
    "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
    "moe_intermediate_size": 2048, "n_routed_experts": 384, "n_shared_experts": 1, "num_experts_per_tok": 8,
    "first_k_dense_replace": 1, "num_nextn_predict_layers": 0,
}  # fmt: skip

QWEN3_NEXT: dict[str, Any] = {
    "model_type": "qwen3_next", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 16,
    "num_key_value_heads": 2, "head_dim": 256, "intermediate_size": 5120, "vocab_size": 151936,
    "full_attention_interval": 4, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
    "linear_num_key_heads": 16, "linear_key_head_dim": 128, "moe_intermediate_size": 512, "num_experts": 512,
    "num_experts_per_tok": 10, "shared_expert_intermediate_size": 512, "mlp_only_layers": [], "decoder_sparse_step": 1,
}  # fmt: skip

NEMOTRON_H: dict[str, Any] = {
    "model_type": "nemotron_h", "hidden_size": 4096, "num_hidden_layers": 52, "num_attention_heads": 32,
    "num_key_value_heads": 8, "attention_head_dim": 128, "intermediate_size": 21504, "vocab_size": 131072,
    "mamba_num_heads": 128, "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128,
    "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
}  # fmt: skip

GRANITE_4: dict[str, Any] = {
    "model_type": "granitemoehybrid", "hidden_size": 1536, "num_hidden_layers": 40, "num_attention_heads": 12,
    "num_key_value_heads": 4, "intermediate_size": 512, "shared_intermediate_size": 1024, "vocab_size": 100352,
    "layer_types": (["mamba"] * 5 + ["attention"] + ["mamba"] * 4) * 4, "mamba_n_heads": 48, "mamba_d_head": 64,
    "mamba_n_groups": 1, "mamba_d_state": 128, "mamba_expand": 2, "num_local_experts": 64, "num_experts_per_tok": 6,
    "tie_word_embeddings": True,
}  # fmt: skip
