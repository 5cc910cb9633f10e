"""GPT-NeoX's names in Megatron's: tests of profiles/configurations/neox_config.py."""

import pytest

from profiles.configurations.neox_config import is_neox, of_neox
from tests.profiles.configurations.test_megatron_run import run_of

TEXT = """
{
  "pipe-parallel-size": 4, "model_parallel_size": 2, "num_layers": 30, "hidden_size": 4096, "num_attention_heads": 32,
  "intermediate_size": 32768, "activation": "swiglu", "mlp_multiple_of": 256, "no_weight_tying": true,
  "attention_config": [[["flash"], 30]], "pipe_partition_method": "type:transformer|mlp",
  "optimizer": {"type": "Lion"}, "zero_optimization": {"stage": 1}, "fp16": {"enabled": true},
  "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 8, "norm": "rmsnorm",
}
"""


def test_its_names() -> None:
    """Tests that widths of gated parts, ties, kernels, ZeRO and cuts are read as its program reads them."""
    run = run_of(TEXT, source="7B.yml")
    assert (run.shape.inner, run.shape.is_gated, run.shape.is_tied, run.fused_attention) == (11008, True, False, True)
    assert (run.tensor, run.pipeline, run.shards, run.num_microbatches) == (2, 4, "optimizer", 8)
    assert [stage.count("t") for stage in run.stages] == [8, 8, 7, 7]
    assert run.notes.unknown == []
    assert any("the optimizer is Lion" in each for each in run.notes.assumed)


def test_other_mixers_are_refused() -> None:
    """Tests that a model without attention of all tokens is refused by its kind."""
    assert not is_neox({"num_layers": 2})
    with pytest.raises(ValueError, match="attention_config: mamba is not read; give a model of global or flash"):
        of_neox({"pipe_parallel_size": 1, "hidden_size": 8, "attention_config": [[["mamba"], 24]]})


def test_switches_in_words() -> None:
    """Tests that words for true and false are read as DeepSpeed reads them, and others refused."""
    told = {"pipe_parallel_size": 1, "hidden_size": 8}
    assert of_neox(told | {"fp16": {"enabled": "false"}})["fp16"] is False
    assert of_neox(told | {"bf16": {"enabled": "Yes"}})["bf16"] is True
    with pytest.raises(ValueError, match=r"fp16\.enabled = 'maybe': is neither true nor false; write one of them"):
        of_neox(told | {"fp16": {"enabled": "maybe"}})
