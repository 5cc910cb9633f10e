"""Tests of profiles/configurations/deepspeed_run.py."""

import json
from typing import Any

import pytest

from profiles.configurations.audit_question import AuditQuestion
from profiles.configurations.deepspeed_run import balanced_sizes, read_deepspeed
from profiles.configurations.run_configuration import RunConfiguration

OPTIONS = {"stages": "pp", "method": "partition_method", "tensor": "tp", "context": "cp", "experts": "ep",
           "micro_batch": "micro_batch_size", "batch": "global_batch_size", "sequence": "seq_length"}  # fmt: skip


def deep(document: dict[str, Any], **more: Any) -> RunConfiguration:
    stated: dict[str, Any] = {"model": "llama3-8b", "stages": 4, "method": None, "devices": 8, **more}
    asked = AuditQuestion(program="deepspeed", **{OPTIONS.get(name, name): value for name, value in stated.items()})
    return read_deepspeed(json.dumps(document), asked, source="ds.json")


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


def test_latent_attention_has_the_weights_of_its_own_matrices() -> None:
    """Tests that `parameters` counts the narrow products of latent attention, and not those of whole heads.

    Attention has 256 x 16 + 16 x 128 + 256 x 24 + 16 x 128 + 64 x 256 = 30,720 weights, a block 79,872, and a table
    256,000: four blocks weigh little more than a table. Heads of 128 would have a million in each block.
    """
    config = {"model_type": "deepseek_v3", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8,
              "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
              "head_dim": 128, "intermediate_size": 64, "vocab_size": 1000, "n_routed_experts": 2,
              "num_experts_per_tok": 1, "moe_intermediate_size": 64, "first_k_dense_replace": 4}  # fmt: skip
    assert deep(
        {"bf16": {"enabled": True}}, model=json.dumps(config), stages=3, devices=3, method="parameters"
    ).stages == (
        "E",
        "tttt",
        "L",
    )


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


def test_two_types_of_half_are_refused() -> None:
    """Tests that DeepSpeed starts with bf16 or fp16 alone, as it asserts itself."""
    both = deep({"bf16": {"enabled": True}, "fp16": {"enabled": True}}).notes.refusals
    assert both == ["bf16 and fp16 are both enabled; enable one of them"]
    assert deep({"bf16": {"enabled": True}, "fp16": {"enabled": False}}).notes.refusals == []


def test_bf16_by_its_earlier_name() -> None:
    """Tests that bfloat16, as earlier releases call it, shards the optimizer's states, also switched on by a word."""
    run = deep({"bfloat16": {"enabled": "true"}})
    assert (run.shards, run.notes.unknown) == ("optimizer", [])


@pytest.mark.parametrize(("word", "shards"), [("Yes", "optimizer"), (1, "optimizer"), ("no", "nothing")])
def test_switches_in_words(word: object, shards: str) -> None:
    """Tests that words for true and false are read as DeepSpeed reads them."""
    run = deep({"bf16": {"enabled": word}})
    assert (run.shards, run.notes.unknown) == (shards, [])


def test_names_in_sections() -> None:
    """Tests that a section's names are not counted, of no matter, or unknown."""
    notes = deep(
        {
            "bf16": {"enabled": True, "bf16_optimizer_states": True, "check_grad_overflow": False},
            "zero_optimization": {"stage": 1, "overlap_comm": True, "fancy": 3},
            "optimizer": {"type": "AdamW", "params": {"lr": 1}},
            "train_batch_size": 8,
        }
    ).notes
    assert notes.not_counted == ["bf16.bf16_optimizer_states", "zero_optimization.overlap_comm"]
    assert notes.unknown == ["zero_optimization.fancy = 3"]


def test_degrees_of_deepspeed() -> None:
    """Tests that Ulysses', AutoTP's and AutoEP's degrees are read, and what was typed counts before them."""
    document = {"sequence_parallel_size": 2, "tensor_parallel": {"autotp_size": 2},
                "expert_parallel": {"enabled": True, "autoep_size": 8, "route_norm": True}}  # fmt: skip
    run = deep(document, model="mixtral-8x7b", stages=1, devices=16)
    assert (run.context, run.tensor, run.experts, run.data, run.notes.refusals) == (2, 2, 8, 4, [])
    assert run.notes.not_counted[:-1] == ["expert_parallel.route_norm"]
    assert "Ulysses" in run.notes.not_counted[-1]
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
        (
            {},
            {"model": "mixtral-8x7b", "experts": 4},
            "2 devices that hold the same layers are not a multiple of the 4",
        ),
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
        ({"deepspeed": {"zero_optimization": {"stage": 1}}}, "is not DeepSpeed's configuration.*; give that alone"),
        ({"zero_optimization": {"stage": "2"}}, "stage = '2': is text; write the number without quotes"),
        ({"train_batch_size": "512"}, "train_batch_size = '512': is text; write the number without quotes"),
        ({"bf16": {"enabled": "yess"}}, "bf16.enabled = 'yess': is neither true nor false; write one of them"),
        ({"fp16": True}, "fp16 = True: is not a section; write an object"),
        (
            {"pipeline": {"activation_checkpoint_intervall": 1}},
            "intervall = 1: is not known; write pipeline.activation_checkpoint_interval, or leave it out",
        ),
        ({"zero_optimization": {"stge": 1}}, "zero_optimization.stge = 1: is not known; write zero_optimization.stage"),
        (
            {"micro_batch_size_per_gpu": 2},
            "micro_batch_size_per_gpu = 2: is not known; write train_micro_batch_size_per_",
        ),
        (
            {"train_micro_batch_size": 2},
            "train_micro_batch_size = 2: is not known; write train_micro_batch_size_per_gpu",
        ),
        (
            {"gradient_accumulation": 2},
            "gradient_accumulation = 2: is not known; write gradient_accumulation_steps, or",
        ),
        ({"tensor_parallel": {"tp_size": 2}}, "tp_size = 2: is not known; write tensor_parallel.autotp_size, or"),
        ({"sequence_parallel_size": "2"}, "sequence_parallel_size = '2': is text; write"),
        ({"expert_parallel": {"enabled": True, "expert_tensor_parallel_size": 2}}, "cut into parts are not read"),
        ({"pipeline": {"partition_method": "type:("}}, "not a regular expression"),
        ({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 0}, "train_micro_batch_size_per_gpu = 0: is no num"),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps = 0: is no number of samples; give 1 or"),
    ],
)
def test_what_of_deepspeed_is_not_understood(document: dict[str, Any], told: str) -> None:
    """Tests that a refusal names section and value."""
    with pytest.raises(ValueError, match=told):
        deep(document)


def test_comments_are_no_sections() -> None:
    """Tests that a name that begins with an underscore is left alone."""
    assert deep({"_comment": "for others", "comms_config": {"verbose": False}}).notes.unknown == []


def test_what_chooses_the_batch_is_told() -> None:
    """Tests that sections by which DeepSpeed chooses another batch are named where they are turned on."""
    notes = deep({"elasticity": {"enabled": True}, "autotuning": {"enabled": False}}).notes
    assert [each for each in notes.not_counted if each in ("elasticity", "autotuning")] == ["elasticity"]


def test_other_optimizers_and_names_twice() -> None:
    """Tests that states of another optimizer are said to be assumed, and a name that stands there twice is refused."""
    told = "states of Adam, though the optimizer is Lamb"
    assert told in deep({"optimizer": {"type": "Lamb"}}).notes.assumed
    assert not [each for each in deep({"optimizer": {"type": "OneBitAdam"}}).notes.assumed if "states" in each]
    asked = AuditQuestion(program="deepspeed", model="llama3-8b", pp=2)
    with pytest.raises(ValueError, match="train_batch_size stands there twice; keep one"):
        read_deepspeed('{"train_batch_size": 64, "train_batch_size": 128}', asked, source="ds.json")
    with pytest.raises(ValueError, match="give --pp"):
        deep({"pipeline": {"stages": 0}}, stages=None)
    assert "does not divide the 32 heads" in deep({}, tensor=3, devices=24).notes.refusals[0]


def test_values_left_to_another_program_are_told() -> None:
    """Tests that `auto`, which Hugging Face's Trainer may replace, is named; batches say what is assumed of them."""
    sections = {"tensor_parallel": {"autotp_size": "auto"}, "zero_optimization": {"stage": "auto"}}
    document = {"train_batch_size": "auto", **sections, "bf16": {"enabled": True}}
    found = [each for each in deep(document).notes.assumed if "auto" in each]
    assert found == [
        f"{name} is auto, and read as if it were not there"
        for name in ("tensor_parallel.autotp_size", "zero_optimization.stage")
    ]


def test_values_left_to_another_program_are_told_once() -> None:
    """Tests that neither what an option says nor what another note tells is named again; halves are if one is on."""
    halves: dict[str, object] = {"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}
    document = {**halves, "pipeline": {"stages": "auto"}, "sequence_parallel_size": "auto"}
    assumed = deep(document, stages=2).notes.assumed
    assert [each for each in assumed if "bf16" in each or "fp16" in each] == [
        "bf16, though neither bf16 nor fp16 is enabled"
    ]
    assert [each for each in assumed if "auto" in each] == [
        "sequence_parallel_size is auto, and read as if it were not there"
    ]
    assumed = deep({**halves, "bf16": {"enabled": True}}).notes.assumed
    assert [each for each in assumed if "auto" in each] == ["fp16.enabled is auto, and read as if it were not there"]
