"""Modules that `export deepspeed` writes: tests of profiles/configurations/deepspeed_run.py."""

from typing import Any

import pytest

from profiles.configurations.audit_question import AuditQuestion
from profiles.configurations.deepspeed_run import read_deepspeed
from profiles.configurations.run_configuration import Recomputation, RunConfiguration

MODULE = """
from deepspeed.pipe import PipelineModule
PARTS = [0, 10, 18, 26, 34]
ACTIVATION_CHECKPOINT_INTERVAL = 1
NUM_MICROBATCHES = 16
ZERO_OPTIMIZATION = {"stage": 1}
CONFIG = {"bf16": {"enabled": True}}
MODEL = {"attention": "unfused", "sequence_length": 1024}
RANKS = ["a", "b", "c", "d", "e", "f", "g", "h"]

class PlannedPipelineModule(PipelineModule):
    pass
"""


def planned(text: str = MODULE, **asked: Any) -> RunConfiguration:
    question = AuditQuestion(program="deepspeed", **{"model": "llama3-8b", **asked})
    return read_deepspeed(text, question, source="planned.py")


def test_a_planned_module() -> None:
    """Tests that parts, pipelines, microbatches, recomputation, ZeRO and the model's own code are read."""
    run = planned()
    assert [len(stage) for stage in run.stages] == [10, 8, 8, 8]
    assert (run.pipeline, run.data, run.num_microbatches, run.sequence) == (4, 2, 16, 1024)
    assert (run.recompute, run.shards, run.fused_attention) == (Recomputation(), "optimizer", False)
    assert (run.notes.unknown, run.notes.refusals) == ([], [])
    assert (run.micro_batch, "train_micro_batch_size_per_gpu = 1" in run.notes.assumed) == (1, True)
    stated = planned(f"MICRO_BATCH_SIZE = 3\n{MODULE}")
    assert (stated.micro_batch, stated.global_batch, stated.num_microbatches) == (3, 3 * 2 * 16, 16)


@pytest.mark.parametrize(
    ("text", "asked", "told"),
    [
        (MODULE.replace("class Planned", "class PlannedDualPipeV"), {}, "DualPipeV is not audited; give a plan with"),
        ("import deepspeed\n", {}, "is no module that `pipeplan export deepspeed` wrote"),
        ("PARTS = [0,", {}, "is no module that"),
        (MODULE.replace("0, 10, 18", "0, 18, 10"), {}, "are not layers before each stage"),
        (MODULE, {"model": "llama3-70b"}, "PARTS: are of 34 layers, and llama3-70b has 82"),
        (MODULE, {"pp": 8}, "leave out --pp and --partition-method"),
        (MODULE, {"partition_method": "uniform"}, "leave out --pp and --partition-method"),
    ],
)
def test_modules_that_are_not_read(text: str, asked: dict[str, Any], told: str) -> None:
    """Tests that DualPipeV, other files, other models and options that contradict are refused with a remedy."""
    with pytest.raises(ValueError, match=told):
        planned(text, **asked)


def test_devices_are_those_of_its_ranks() -> None:
    """Tests that another number of devices does not start, and that JSON states pipelines beside shared sequences."""
    assert planned(devices=16).notes.refusals == ["data_parallel_size = 2: times 4 it is not 16 devices; use 8"]
    question = AuditQuestion(program="deepspeed", model="llama3-8b", pp=1)
    text = '{"data_parallel_size": 4, "sequence_parallel_size": 2}'
    run = read_deepspeed(text, question, source="ds.json")
    assert (run.data, run.context, run.devices) == (4, 2, 8)
