"""Megatron-LM's flags by what they mean for time and memory, with those of Megatron-Bridge and of logs.

Written down from Megatron-LM's `arguments.py` and its configuration classes of August 2026, and from core 0.16 to 0.20.
Names are as in logs: underscores, no dashes before. A star stands for anything.
"""

from fnmatch import fnmatchcase

ALIASES = {
    "model_parallel_size": "tensor_model_parallel_size",
    "num_moe_experts": "num_experts",
    "num_layers_in_first_pipeline_stage": "decoder_first_pipeline_num_layers",
    "num_layers_in_last_pipeline_stage": "decoder_last_pipeline_num_layers",
    "virtual_pipeline_model_parallel_size": "num_virtual_stages_per_pipeline_rank",
    "sequence_length": "seq_length",
    "encoder_seq_length": "seq_length",
    "encoder_num_layers": "num_layers",
    "batch_size": "micro_batch_size",
    "pipe_parallel_size": "pipeline_model_parallel_size",
    "pad_vocab_size_to": "padded_vocab_size",
    "train_micro_batch_size_per_gpu": "micro_batch_size",
    "train_batch_size": "global_batch_size",
    "moe_num_experts": "num_experts",
    "moe_expert_parallel_size": "expert_model_parallel_size",
    "num_key_value_heads": "num_query_groups",
    "num_kv_heads": "num_query_groups",
    "hybrid_override_pattern": "hybrid_layer_pattern",
    "num_gpus": "nproc_per_node",
    "num_nodes": "nnodes",
    "gated_linear_unit": "swiglu",
    "fp8": "fp8_format",
    "fp4": "fp4_format",
    "microbatch_group_size_per_virtual_pipeline_stage": "microbatch_group_size_per_vp_stage",
}
"""Other names of what is read."""

NOT_COUNTED = (
    "overlap_p2p_communication_warmup_flush", "use_flashinfer_*",
    "attention_output_gate", "barrier_with_*", "batch_p2p_*", "cp_comm_type", "cpu_offloading*", "cross_entropy_*",
    "cuda_graph_*", "enable_cuda_graph", "external_cuda_graph", "deallocate_pipeline_outputs", "ddp_bucket_size",
    "ddp_num_buckets", "ddp_pad_buckets*", "ddp_reduce_scatter_with*", "defer_embedding_wgrad_compute",
    "delay_wgrad_compute", "deterministic_mode", "distribute_saved_activations", "empty_unused_memory_level",
    "enable_mhc_*", "ep_overlap_*", "exp_avg*_dtype", "fine_grained_*", "first_last_layers_bf16", "fp16", "fp8_param*",
    "fp4_param*", "fp8_wgrad", "fp32_residual_connection", "freeze_*", "fsdp_*", "gtp_*", "main_grads_dtype",
    "main_params_dtype", "mhc_*", "mlp_chunks_for_training", "moe_deepep*",
    "moe_expert_capacity_factor", "moe_expert_rank_capacity_factor", "moe_flex_*", "moe_hybridep*",
    "moe_layer_recompute", "moe_pad_expert*", "moe_paged_stash*", "moe_shared_expert_overlap",
    "moe_token_drop*", "mtp_use_repeated_layer", "mtp_detach_heads", "mtp_hsm", "nccl_ub",
    "no_gradient_accumulation_fusion", "no_overlap_p2p_communication", "no_*_fusion",
    "offload_*", "optimizer_cpu_offload", "optimizer_offload_fraction",
    "overlap_cpu_optimizer_d2h_h2d", "overlap_dispatch_backward_with_experts_wgrad",
    "overlap_p2p_comm_warmup_flush", "overlap_param_gather_with_optimizer_step", "overlap_p2p_comm", "quant_recipe",
    "rampup_batch_size", "recompute_modules", "reuse_grad_buf_for_mxfp8_param_ag", "sft*", "step_batch_size_schedule",
    "decrease_batch_size_if_needed", "tensor_parallel_num_weight_shards", "tp_comm_bulk_*", "tp_comm_split_*",
    "tp_comm_atomic_*", "tp_comm_overlap_*", "use_kitchen*", "use_nccl_ub", "use_precision_aware_optimizer",
    "use_ring_exchange_p2p", "use_sharp", "use_torch_optimizer_for_cpu_offload", "variable_seq_lengths",
    "wgrad_deferral_limit", "window_*", "activation_offload_fraction", "delta_offload_bytes_across_pp_ranks",
    "delay_offload*", "min_offloaded_tensor_size", "num_layers_at_*_in_bf16", "no_rope_freq", "dsa_*",
    "max_seqlen_per_dp_cp_rank", "moe_train_capacity_factor", "moe_min_capacity", "use_tutel", "partition_activations",
    "no_async_tensor_model_parallel_allreduce", "param_offload", "grad_offload", "optimizer_offload", "packing",
)  # fmt: skip
"""Flags that change times or bytes, which estimates do not follow. Those that only turn off what Megatron overlaps by
itself stand here as well."""

IRRELEVANT = (
    "no_ckpt_*", "no_rl_*", "no_yarn_*", "enable_chunked_prefill",
    "accumulate_allreduce_grads_in_fp32", "adam_*", "adlr_*", "adopt_*", "align_*", "allow_ambiguous_pad_tokens",
    "app_tag*", "apply_*", "async_*", "attention_dropout", "attention_softmax_in_fp32", "auto_detect_ckpt_format",
    "batch_invariant*", "bert_*", "bias_*_fusion", "biencoder_*", "block_data_path", "calc_ft_timeouts",
    "calculate_per_token_loss", "chat_template", "check_*", "ckpt_*", "classes_fraction", "clip_grad", "clone_scatter*",
    "config_logger_dir", "consumed_*", "create_*", "data_args_path", "data_cache_path", "data_parallel_random_init",
    "data_parallel_size", "data_path", "data_per_class_fraction", "dataloader_*", "ddp_average_in_collective",
    "ddp_param_name*", "decoupled_*", "dino_*", "disable_*", "dist_ckpt*",
    "dist_url", "distrib_optim_*", "distributed_backend", "distributed_timeout*", "dump_*", "embedding_*",
    "empty_cuda_cache", "enable_experimental", "enable_ft_package", "enable_gloo*", "enable_msc", "enable_one_logger",
    "end_weight_decay", "eod_mask_loss", "error_injection_*", "eval_*", "evidence_data_path", "exit_*", "export_*",
    "fake_process_group", "fim_*", "finetune", "flash_attention_version", "flash_decode", "flight_recorder_*",
    "fp8_amax_*", "fp8_interval", "fp8_margin", "ft_num_warmup_iters", "full_validation", "fully_parallel_*",
    "glu_linear_offset", "gpu_sniff*", "gradient_accumulation_fusion", "grpo_*", "head_lr_mult", "hidden_dropout",
    "hierarchical_context*", "high_priority_*", "hysteresis", "ict_*", "img_*", "indexer_*", "inference_*",
    "init_method*", "init_model_with_meta_device", "initial_loss_scale", "inprocess_*", "iter_per_epoch", "iteration",
    "iterations_to_skip", "langrl_*", "layernorm_*", "lazy_mpu_init", "lion_*", "load", "load_*", "local_rank", "log_*",
    "logging_*", "logits_*", "loss_scale*", "lr", "lr_*", "main_grads*", "manual_gc*", "mask_*", "master_addr",
    "master_port", "rdzv_*", "max_position_embeddings", "max_restarts", "memory_snapshot_path", "merge_file",
    "metadata_path", "micro_batch_times", "mid_level*", "min_loss_scale", "min_lr", "mmap_bin_files", "mock_data",
    "moe_apply_probs*", "moe_aux_loss*", "moe_enable_routing*", "moe_grouped_gemm", "moe_input_jitter_eps",
    "moe_per_layer_logging", "moe_permute_fusion", "moe_router_*", "moe_routing_*", "moe_use_*", "moe_z_loss_coeff",
    "moe_use_upcycling", "moe_upcycling*", "mrope_*", "mscale*", "mtp_loss_scaling_factor", "muon_*",
    "multiple_validation_sets", "mup_*", "nccl_communicator*", "no_align_*", "no_bert_*", "no_check_*", "no_create_*",
    "no_data_sharding", "no_initialization", "no_load_*", "no_masked_softmax*", "no_mmap_bin_files", "no_one_logger",
    "no_persist_layer_norm", "no_position_embedding", "no_save_*", "no_use_*", "no_weight*", "node_rank",
    "non_persistent_*", "norm_epsilon", "normalization", "null_tokenizer*", "num_channels", "num_classes",
    "num_dataset_builder_threads", "num_workers", "nvtx_ranges", "object_storage*", "on_error*", "one_logger*",
    "onnx_safe", "openai_gelu", "optimizer", "otel_*", "output_bert*", "output_logit*", "override_*", "params_dtype",
    "patch_dim", "per_split*", "perform_*", "persist_layer_norm", "phase_transition*", "pipeline_dtype",
    "position_embedding_type", "pretrained_checkpoint", "profile*", "pytorch_profiler*", "qk_clip*", "qk_l2_norm",
    "qk_layernorm", "query_in_block_prob", "rank", "record_*", "refit_*", "relative_attention*", "replication*",
    "rerun_mode", "reset_*", "result_rejected*", "retriever_*", "retro_*", "rl_*", "rope_*", "rotary_*",
    "run_workload*", "sample_rate", "save", "save_*", "seed", "sgd_momentum", "short_seq_prob", "skip_train",
    "softmax_type", "softmax_scale", "special_tokens", "spec", "split", "standalone", "start_eval*",
    "start_weight_decay", "straggler_*", "strict_*", "swin_*", "tee", "te_rng_tracker", "tensorboard_*",
    "test_data_path", "test_mode", "tiktoken_*", "timing_*", "titles_data_path", "tokenizer_*", "train_data_path",
    "train_iters", "train_samples", "train_sync*", "transformer_impl", "trust_remote_code",
    "share_embeddings_and_output_weights", "use_checkpoint_*", "use_cpu_initialization", "use_dist_ckpt", "use_gloo*",
    "use_legacy*", "use_mcore_models", "use_mp_args*", "use_mup", "use_nsys*", "use_one_sent*", "use_persistent*",
    "use_pytorch_profiler", "use_rope_scaling", "use_rotary_position_embeddings", "use_te", "use_te_*",
    "use_tp_pp_dp_mapping", "use_tokenizer_model*", "use_transformer_engine_op_fuser", "valid_data_path",
    "validation_*", "verify_integrity", "vision_*", "vocab_extra_ids", "vocab_file", "wandb_*", "warmup", "wd_*",
    "weight_decay*", "wsd_*", "yarn_*", "log_dir", "redirects", "role", "add_qkv_bias", "add_bias_linear",
    "squared_relu", "quick_geglu", "activation_func*", "bias_dropout_fusion", "masked_softmax_fusion", "beta_fast",
    "beta_slow", "cache_mla_latents", "mla_down_proj_fusion", "original_max_position_embeddings",
    "perform_initialization", "async_save", "rank_*", "exp_name", "no_save", "yaml_cfg", "kitchen_*", "megatron_fsdp_*",
    "data_parallel_sharding_strategy", "outer_dp_sharding_strategy", "sequence_parallel_comm", "inprocess_restart",
    "gradient_reduce_div_fusion", "is_hybrid_model", "mamba_*", "linear_*", "pad_vocab_size", "vocab_size_divisible",
    "transformer_pipeline_model_parallel_size", "start_weight*", "hybrid_context_parallel", "heterogeneous_*",
    "expert_tensor_parallel_num*", "overlap_grad_reduce_*", "env_vars", "should_pad_vocab", "grad_reduce_in_fp32",
    "data_impl", "deepspeed", "deepspeed_config", "no_query_key_layer_scaling", "train_tokens",
    "moe_loss_coeff", "moe_eval_capacity_factor", "no_pipeline_parallel", "deepspeed_activation_checkpointing",
    "create_moe_param_group", "synchronize_each_layer", "norm_init_weight", "average_in_collective",
    "create_attention_mask_in_dataloader", "config_path", "config_name", "use_mbridge", "vanilla_mbridge", "dataset*",
    "num_train_epochs", "output_dir", "split_dataset_ratio", "streaming", "do_train", "preprocessing_num_workers",
    "template", "learning_rate", "max_steps", "max_grad_norm", "max_epochs", "system", "model_author", "model_name",
    "norm", "pos_emb", "output_layer_parallelism", "gpt_j_residual", "scaled_*_softmax_fusion", "gradient_clipping",
    "checkpoint_num_layers", "checkpoint_factor", "steps_per_print", "wall_clock_breakdown", "keep_last_n_checkpoints",
    "precision", "mlp_multiple_of", "use_bias_in_*", "rms_norm_epsilon", "lm_eval*", "launcher",
    "overwrite_*", "warmup_*", "plot_loss", "use_remove_padding", "stderr_sink_level", "file_sink_level",
    "add_version", "lazy_tokenize", "truncation_strategy", "padding_free", "report_to", "model_type", "use_hf",
)  # fmt: skip
"""Flags that have nothing to do with where layers stand: data, learning rate, checkpoints, logs, launchers, and what
costs so little that no estimate shows it."""

REFUSED = {
    "decoder_num_layers": "an encoder beside a decoder is not read",
    "decoder_seq_length": "an encoder beside a decoder is not read",
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
    "rollout_batch_size": "slime's iterations have a batch, lengths and an optimizer of its own, which are not read",
    "encoder_pipeline_model_parallel_size": "an encoder with degrees of its own is not read",
}
"""Flags that make the estimate another one than can be made here, each with the reason."""


def meaning_of(name: str) -> str:
    """`not counted`, `irrelevant` or `unknown`."""
    for meaning, patterns in (("not counted", NOT_COUNTED), ("irrelevant", IRRELEVANT)):
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            return meaning
    return "unknown"
