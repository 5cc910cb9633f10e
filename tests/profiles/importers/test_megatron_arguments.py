"""What a log of Megatron-LM says of how the job ran: tests of profiles/importers/megatron_arguments.py."""

from pathlib import Path
from typing import Any

import pytest

from profiles.assumptions import Assumptions
from profiles.importers.megatron_arguments import assumptions_of, read_assumptions

LOG = """[2026-01-02] rank 0 starts
------------------------ arguments ------------------------
  accumulate_allreduce_grads_in_fp32 .............. True
  attention_backend ............................... AttnBackend.flash
  bf16 ............................................ True
  context_parallel_size ........................... 1
  cross_entropy_loss_fusion ....................... True
  expert_model_parallel_size ...................... 8
  fp16 ............................................ False
  fp8 ............................................. None
  num_experts ..................................... 64
  recompute_granularity ........................... selective
  recompute_modules ............................... ['core_attn', 'moe_act']
  seq_length ...................................... 8192
  sequence_parallel ............................... True
  tp_comm_overlap ................................. False
  use_distributed_optimizer ....................... True
-------------------- end of arguments ---------------------
"""


@pytest.mark.parametrize("prefix", ["", "0: ", "[default0]: ", "2026-01-02T03:04:05 node1 0: "])
def test_megatrons_log_states_its_arguments(tmp_path: Path, prefix: str):
    """Tests that the arguments at the head of a log, whatever stands before each line, become assumptions."""
    path = tmp_path / "train.log"
    path.write_text("".join(f"{prefix}{line}\n" for line in LOG.splitlines()), encoding="utf-8")
    assert read_assumptions(path) == Assumptions(
        precision="bf16",
        gradients="fp32",
        attention="flash",
        fused_loss=True,
        sequence_parallel=True,
        expert_parallel=True,
        hidden_exchanges=False,
        context_parallel=1,
        distributed_optimizer=True,
        selective_modules=("core_attn", "moe_act"),
        sequence_length=8192,
    )


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"bf16": "False", "fp16": "False"}, {"precision": "fp32", "gradients": "fp32"}),
        ({"bf16": "False", "fp16": "True"}, {"precision": "fp16", "gradients": "fp16"}),
        (
            {"bf16": "False", "fp16": "True", "accumulate_allreduce_grads_in_fp32": "True"},
            {"precision": "fp16", "gradients": "fp32"},
        ),
        (
            {"bf16": "True", "fp16": "False", "fp8": "e4m3", "fp8_recipe": "mxfp8"},
            {"precision": "fp8_mx", "gradients": "fp32"},
        ),
        ({"bf16": "True", "fp16": "False", "fp4": "e2m1"}, {"precision": "nvfp4", "gradients": "fp32"}),
        (
            {"bf16": "True", "fp16": "False", "main_grads_dtype": "torch.bfloat16"},
            {"precision": "bf16", "gradients": "bf16"},
        ),
        ({"use_flash_attn": "True"}, {"attention": "flash"}),
        ({"attention_backend": "AttnBackend.unfused"}, {"attention": "unfused"}),
        ({"attention_backend": "AttnBackend.auto"}, {}),
        ({"recompute_granularity": "full", "recompute_modules": "['core_attn']"}, {}),
        ({"recompute_granularity": "selective", "recompute_modules": "['core_attn', 'other']"}, {}),
        ({"num_experts": "None", "expert_model_parallel_size": "1"}, {}),
        ({"world_size": "8"}, {}),
    ],
)
def test_arguments_are_read_as_megatron_means_them(told: dict[str, str], expected: dict[str, Any]):
    """Tests that precisions, recipes and backends are what Megatron makes of its arguments, and no more is stated."""
    assert assumptions_of(told).stated() == expected


def test_a_log_without_arguments_states_nothing(tmp_path: Path):
    """Tests that a log that names no such argument leaves a profile without assumptions."""
    path = tmp_path / "train.log"
    path.write_text("world_size ................ 8\n iteration 1/ 10\n", encoding="utf-8")
    assert read_assumptions(path) is None
