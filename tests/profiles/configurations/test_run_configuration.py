"""What a training program was told, whatever program it is: tests of profiles/configurations/run_configuration.py."""

import json

import pytest

from profiles.configurations.run_configuration import ReadingNotes, Recomputation
from tests.profiles.configurations.test_deepspeed_run import deep
from tests.profiles.configurations.test_megatron_run import run_of, typed
from tests.profiles.configurations.test_torchtitan_run import titan


def test_nemos_yaml() -> None:
    """Tests that NeMo's two sections give model, degrees, devices, recomputation and optimizer in Megatron's names."""
    text = """
trainer: {devices: 8, num_nodes: 4, precision: bf16, max_steps: 10}
model:
  mcore_gpt: true
  micro_batch_size: 1
  global_batch_size: 64
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 2
  encoder_seq_length: 2048
  num_layers: 24
  hidden_size: 2048
  ffn_hidden_size: ${multiply:3, ${.hidden_size}}
  num_attention_heads: 16
  num_query_groups: 4
  activation: fast-swiglu
  fp8: true
  fp8_hybrid: true
  sequence_parallel: true
  activations_checkpoint_granularity: full
  activations_checkpoint_method: block
  activations_checkpoint_num_layers: 3
  optim: {name: mcore_distributed_optim, lr: 1e-4, overlap_grad_sync: true}
  tokenizer: {library: megatron, model: null}
"""
    run = run_of(text, source="gpt.yaml")
    assert (run.tensor, run.pipeline, run.data, run.num_microbatches, run.sequence) == (4, 2, 4, 16, 2048)
    assert (run.shape.key_value_heads, run.shape.is_gated, run.shape.inner) == (4, True, 6144)
    assert (run.recompute, run.shards, run.sequence_parallel) == (Recomputation(blocks=3), "optimizer", True)
    assert run.dtype == "fp8"
    assert run.notes.unknown == []


def test_mixtures_and_recomputation() -> None:
    """Tests that experts, latent attention, recomputation and shards are read from flags alone."""
    run = typed(
        None, num_layers="4", hidden_size="256", num_attention_heads="8", num_experts="16", moe_router_topk="4",
        moe_ffn_hidden_size="128", moe_layer_freq="[0]*1+[1]*3", multi_latent_attention=True, kv_lora_rank="64",
        swiglu=True, ffn_hidden_size="512", vocab_size="1000", expert_model_parallel_size="4", world_size="8",
        tensor_model_parallel_size="2", recompute_granularity="full", recompute_method="block",
        recompute_num_layers="2", use_distributed_optimizer=True, bf16=True,
    )  # fmt: skip
    assert run.shape.mixture is not None
    assert run.shape.latent is not None
    mixture = run.shape.mixture  # cut in two by tensor parallelism
    assert (mixture.experts, mixture.chosen, mixture.inner, mixture.dense_layers) == (32, 8, 64, 1)
    assert run.shape.latent.key_value_rank == 64
    assert (run.experts, run.data, run.shards) == (8, 4, "optimizer")
    assert run.recompute == Recomputation(blocks=2)
    assert typed(recompute_granularity="full", recompute_method="uniform").recompute == Recomputation()
    assert typed(recompute_granularity="selective").recompute is None


def test_names_of_other_trainers_of_the_family() -> None:
    """Tests that gpt-neox's and Megatron-DeepSpeed's names are read as Megatron's."""
    neox = {"pipe-parallel-size": 2, "model-parallel-size": 2, "train_micro_batch_size_per_gpu": 4,
            "checkpoint-activations": True, "num-layers": 4, "hidden-size": 256, "num-attention-heads": 4,
            "gradient_accumulation_steps": 8, "num-kv-heads": 2}  # fmt: skip
    run = run_of(json.dumps(neox).replace("}", ', # as there\n "norm": "rms",}'), source="20B.yml")
    assert (run.num_microbatches, run.shape.key_value_heads) == (8, 2)
    assert (run.pipeline, run.tensor, run.micro_batch, run.recompute) == (2, 2, 4, Recomputation())
    run = run_of("python pretrain_gpt.py --zero-stage 2 --activations-checkpoint-method uniform", model="llama3-8b")
    assert (run.shards, run.recompute) == ("gradients", Recomputation())


@pytest.mark.parametrize(
    ("unknown", "stated", "is_refused"), [(1, 1, False), (2, 6, False), (2, 5, True), (9, 9, True)]
)
def test_files_most_of_whose_names_are_not_known(unknown: int, stated: int, is_refused: bool) -> None:
    """Tests that more than a third of unknown names, and two at least, are another program's; earlier notes are not."""
    notes = ReadingNotes(unknown=["what a.py sets"] * 9)
    for number in range(unknown):
        notes.note_unknown(f"name{number}", "x")
    if not is_refused:
        notes.require_own("Megatron-LM", stated=stated, names=[], since=9)
        return
    with pytest.raises(ValueError, match=f"^name0, name1.*: {unknown} of {stated} names are not Megatron-LM's; give a"):
        notes.require_own("Megatron-LM", stated=stated, names=["layers"], since=9)


@pytest.mark.parametrize(
    "name",
    ["parallelism.ulysses_degree", "sequence_parallel_degree", "model_parallel_size", "tp_size", "pipeline_stages"],
)
def test_degrees_that_are_not_known(name: str) -> None:
    """Tests that an unknown degree of 2 or more is refused, since the others would be counted without it."""
    notes = ReadingNotes()
    with pytest.raises(ValueError, match=f"{name} = 4: is a degree that is not known; put --tp"):
        notes.note_unknown(name, 4)
    notes.note_unknown(name, 1)
    notes.note_unknown("data_parallel_size", 8)
    assert notes.unknown == [f"{name} = 1", "data_parallel_size = 8"]
    with pytest.raises(ValueError, match="ulysses_degree = 2: is a degree"):
        deep({"ulysses_degree": 2})
    with pytest.raises(ValueError, match=r"parallelism\.ulysses_degree = 2: is a degree"):
        titan(ulysses_degree=2)


@pytest.mark.parametrize(
    ("text", "source", "meant"),
    [
        ("python pretrain_gpt.py --micro-batch-size 1 --global-batchsize 64", "a.sh", "--global-batch-size"),
        ("python pretrain_gpt.py --micro-batch-size 1 --recompute-granularty full", "a.sh", "--recompute-granularity"),
        ("tensor_model_paralel_size: 2\nmicro_batch_size: 1", "a.yaml", "--tensor-model-parallel-size"),
    ],
)
def test_slips_in_names(text: str, source: str, meant: str) -> None:
    """Tests that a name with a letter too few or too many is refused with the one that is meant."""
    with pytest.raises(ValueError, match=f"is not known; write {meant}, or leave it out"):
        run_of(text, model="llama3-8b", source=source)
