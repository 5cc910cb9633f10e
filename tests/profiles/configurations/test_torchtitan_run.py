"""Runs of torchtitan and DeepSpeed by their configurations."""

import json
from typing import Any

import pytest

from profiles.configurations.deepspeed_run import DeepSpeedQuestion, balanced_sizes, read_deepspeed
from profiles.configurations.known_models import MODELS, find_sheet
from profiles.configurations.run_configuration import Recomputation, RunConfiguration
from profiles.configurations.torchtitan_run import read_titan_document, read_torchtitan

TITAN = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 8
seq_len = 4096
steps = 100
[parallelism]
data_parallel_shard_degree = 2
tensor_parallel_degree = 2
pipeline_parallel_degree = 4
pipeline_parallel_schedule = "Interleaved1F1B"
pipeline_parallel_microbatch_size = 2
enable_new_thing = true
[activation_checkpoint]
mode = "full"
[compile]
enable = true
"""


def titan(text: str = TITAN, *, devices: int | None = None, **changes: Any) -> RunConfiguration:
    document = read_titan_document(text, source="train.toml")
    document["parallelism"].update(changes)
    return read_torchtitan(document, model=None, devices=devices)


def test_torchtitan() -> None:
    """Tests that degrees, batch, stages and checkpoints are read, embedding and head counting as a block each."""
    run = titan()
    sizes = [stage.count("t") for stage in run.stages]
    assert sizes == [4, 5, 4, 4, 4, 4, 4, 3]  # 34 over 8, the first two have one more, the ends one less
    assert (run.stages[0][0], run.stages[-1][-1]) == ("E", "L")
    assert (run.tensor, run.pipeline, run.data, run.chunks, run.devices) == (2, 4, 2, 2, 16)
    assert (run.micro_batch, run.num_microbatches, run.sequence) == (2, 4, 4096)
    assert run.recompute == Recomputation()
    assert run.notes.unknown == ["parallelism.enable_new_thing = True"]
    assert run.notes.not_counted == ["compile.enable = True"]
    assert not run.notes.refusals


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"pipeline_parallel_layers_per_stage": 40}, "makes 1 stages on 4 ranks"),
        ({"pipeline_parallel_microbatch_size": 3}, "not a multiple of the microbatch's 3"),
        ({"pipeline_parallel_microbatch_size": 8}, "1 microbatches are not a multiple of 4"),
        ({"module_fqns_per_model_part": [["tok_embeddings", "layers.1"], ["norm", "output"]]}, "does not name"),
        ({"devices": 12}, "12 devices are not 16"),
    ],
)
def test_what_torchtitan_does_not_start(changes: dict[str, Any], told: str) -> None:
    """Tests that what torchtitan would refuse is told."""
    run = titan(**changes)
    assert any(told in each for each in run.notes.refusals), run.notes.refusals


def test_torchtitan_with_parts_and_other_names() -> None:
    """Tests that stated parts count, and the names of its main branch are read."""
    blocks = [f"layers.{number}" for number in range(32)]
    parts = [["tok_embeddings", *blocks[:10]], blocks[10:20], blocks[20:30], [*blocks[30:], "norm", "lm_head"]]
    run = titan(module_fqns_per_model_part=parts, pipeline_parallel_schedule="1F1B")
    assert [len(stage) for stage in run.stages] == [11, 10, 10, 3]
    newer = {
        "parallelism": {"pipeline_parallel_degree": 2, "num_pp_microbatches": 6},
        "training": {"num_tokens_per_microbatch_per_dp_rank": 8192, "max_context_length": 4096},
    }
    run = read_torchtitan(newer, model="llama3-8b", devices=2)
    assert (run.micro_batch, run.num_microbatches, run.sequence) == (2, 6, 4096)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[a", "neither TOML nor JSON"),
        ('[model]\nname = "llama3"\nflavor = "9B"', "model.flavor = '9B'"),
        ('[parallelism]\npipeline_parallel_schedule = "DualPipeV"', "is not supported"),
        ("[parallelism]\ntensor_parallel_degree = true", "not a whole number"),
        ('[parallelism]\npipeline_parallel_microbatch_size = "a"', "not a whole number from 1"),
        ("[training]\nlocal_batch_size = 0", "not a whole number from 1"),
        ("[parallelism]\nmodule_fqns_per_model_part = [[3]]", "not a list of lists of names"),
    ],
)
def test_what_of_torchtitan_is_not_understood(text: str, told: str) -> None:
    """Tests that a refusal names the field and its value."""
    model = None if "flavor" in text else "llama3-8b"
    with pytest.raises(ValueError, match=told):
        read_torchtitan(read_titan_document(text, source="a.toml"), model=model, devices=None)


def deep(document: dict[str, Any], **more: Any) -> RunConfiguration:
    asked: dict[str, Any] = {"model": "llama3-8b", "stages": 4, "method": None, "devices": 8, **more}
    return read_deepspeed(json.dumps(document), DeepSpeedQuestion(**asked), source="ds.json")


@pytest.mark.parametrize(
    ("method", "sizes"),
    [
        ("uniform", [9, 9, 8, 8]),
        ("type:transformer", [9, 8, 8, 9]),
        ("parameters", [8, 9, 9, 8]),
    ],
)
def test_deepspeed_cuts(method: str, sizes: list[int]) -> None:
    """Tests that an embedding, 32 blocks and a head are cut as PipelineModule does."""
    run = deep({"train_batch_size": 16, "bf16": {"enabled": True}}, method=method)
    assert [len(stage) for stage in run.stages] == sizes
    assert (run.data, run.micro_batch, run.num_microbatches) == (2, 1, 8)


def test_balanced_sizes() -> None:
    """Tests that the recurrence is as by hand: among equal spreads the later cut counts."""
    assert balanced_sizes([1, 1, 1, 1], 2) == [2, 2]
    assert balanced_sizes([5, 1, 1, 1, 1, 1], 2) == [1, 5]
    assert balanced_sizes([0, 1, 1, 1, 1, 0], 2) == [3, 3]


def test_deepspeed_numbers_and_unknown_sections() -> None:
    """Tests that batch sizes agree, ZeRO is 0 or 1, and sections that are not known are named."""
    run = deep({"train_batch_size": 20, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4,
                "zero_optimization": {"stage": 2, "overlap_comm": True}, "wings": 2, "optimizer": {}})  # fmt: skip
    assert [each.split(" = ")[0] for each in run.notes.refusals] == ["train_batch_size", "zero_optimization.stage"]
    assert run.notes.unknown == ["wings = 2"]
    assert run.notes.not_counted == ["zero_optimization.overlap_comm"]
    assert run.stages == ()


def test_degrees_of_deepspeed() -> None:
    """Tests that Ulysses', AutoTP's and AutoEP's degrees are read, and what was typed counts before them."""
    document = {"sequence_parallel_size": 2, "tensor_parallel": {"autotp_size": 2},
                "expert_parallel": {"enabled": True, "autoep_size": 8, "route_norm": True}}  # fmt: skip
    run = deep(document, model="mixtral-8x7b", stages=1, devices=16)
    assert (run.context, run.tensor, run.experts, run.data, run.notes.refusals) == (2, 2, 8, 4, [])
    assert run.notes.not_counted[1:] == ["expert_parallel.route_norm"]
    assert "Ulysses" in run.notes.not_counted[0]
    run = deep(document, model="mixtral-8x7b", stages=1, devices=16, context=1, tensor=1, experts=4)
    assert (run.context, run.tensor, run.experts, run.data) == (1, 1, 4, 16)
    run = deep({"expert_parallel": {"autoep_size": 8}}, model="mixtral-8x7b")
    assert (run.experts, run.data) == (1, 2)
    run = deep({}, model="mixtral-8x7b", devices=None, experts=4)
    assert (run.data, run.notes.assumed[0]) == (4, "devices = 16 (4 pipelines)")


@pytest.mark.parametrize(
    ("document", "more", "told"),
    [
        ({"sequence_parallel_size": 2}, {}, "sequence_parallel_size = 2: 4 stages share no sequences"),
        ({"expert_parallel": {"enabled": True, "autoep_size": 2}}, {}, "llama3-8b has no experts"),
        ({"expert_parallel": {"enabled": True, "autoep_size": 3}}, {"model": "mixtral-8x7b"}, "not divide 8 experts"),
        ({}, {"model": "mixtral-8x7b", "experts": 4}, "does not divide the 2 devices that hold the same layers"),
    ],
)
def test_degrees_that_deepspeed_refuses(document: dict[str, Any], more: dict[str, Any], told: str) -> None:
    """Tests that degrees which DeepSpeed does not take are told with their values."""
    assert any(told in each for each in deep(document, **more).notes.refusals)


@pytest.mark.parametrize(
    ("more", "told"),
    [({"model": None}, "give --model"), ({"stages": None}, "give --pp"), ({"method": "profile"}, "one of uniform")],
)
def test_what_of_deepspeed_is_missing(more: dict[str, Any], told: str) -> None:
    """Tests that what DeepSpeed's configuration never says is asked for."""
    with pytest.raises(ValueError, match=told):
        deep({}, **more)


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({"pipeline": 3}, "pipeline = 3: is not a section"),
        ({"zero_optimization": {"stage": "2"}}, "stage = 2: is not a whole number"),
        ({"sequence_parallel_size": "2"}, "sequence_parallel_size = 2: is not a whole number"),
        ({"expert_parallel": {"enabled": True, "expert_tensor_parallel_size": 2}}, "cut into parts are not read"),
        ({"pipeline": {"partition_method": "type:("}}, "not a regular expression"),
    ],
)
def test_what_of_deepspeed_is_not_understood(document: dict[str, Any], told: str) -> None:
    """Tests that a refusal names section and value."""
    with pytest.raises(ValueError, match=told):
        deep(document)


def test_known_models_and_gpus() -> None:
    """Tests that models have as many weights as they say, and GPUs are found by any of their names."""
    billions = {"llama3-8b": 8.03, "llama3-70b": 70.5, "llama3-405b": 405.8, "gpt3-175b": 174.6, "mixtral-8x7b": 46.7}
    for name, wanted in billions.items():
        shape, _ = MODELS[name]
        experts = 1 if shape.mixture is None else shape.mixture.experts
        attention = shape.hidden * shape.head_width * 2 * (shape.heads + shape.key_value_heads)
        block = attention + experts * (2 + shape.is_gated) * shape.hidden * shape.inner
        tables = (1 if name == "gpt3-175b" else 2) * shape.vocabulary * shape.hidden
        assert (shape.blocks * block + tables) / 1e9 == pytest.approx(wanted, rel=0.002), name
    assert find_sheet("H100").name == find_sheet("h100-sxm").name == "h100_sxm"
    with pytest.raises(ValueError, match="give one of a100"):
        find_sheet("x1")
