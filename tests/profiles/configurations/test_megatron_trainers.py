"""Trainers around Megatron-LM: tests of profiles/configurations/megatron_trainers.py, through what reads them."""

import json
from typing import Any

import pytest

from profiles.configurations.argument_forms import read_arguments
from profiles.configurations.megatron_run import read_megatron
from profiles.configurations.megatron_trainers import SWIFT_COMMANDS, is_verl, of_mapping, other_files, swift, verl
from profiles.configurations.run_configuration import RunConfiguration

SWIFT = """
NPROC_PER_NODE=8 NNODES=2 \\
megatron sft --model Qwen/Qwen3-32B --tensor_model_parallel_size 4 --pipeline_model_parallel_size 2 \\
    --dataset 'some/set#500' --max_length 2048 --recompute_granularity full --recompute_method uniform
"""
VERL = """
tp=4
HOME_OF=${HOME_OF:-"${HOME}/verl"}
python3 -m verl.trainer.main_ppo --config-name=ppo_megatron_trainer data.max_prompt_length=1024 \\
    data.max_response_length=3072 actor_rollout_ref.model.path=$HOME_OF/Qwen3-8B \\
    actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.rollout.n=4 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 actor_rollout_ref.rollout.tensor_model_parallel_size=8 \\
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=$tp \\
    actor_rollout_ref.ref.megatron.tensor_model_parallel_size=1 \\
    actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=2 \\
    +actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity=full \\
    +actor_rollout_ref.actor.megatron.override_transformer_config.recompute_method=uniform \\
    actor_rollout_ref.actor.megatron.virtual_pipeline_model_parallel_size=null \\
    trainer.n_gpus_per_node="8" trainer.nnodes=2
"""
NEMO_RL: dict[str, Any] = {
    "defaults": "base.yaml",
    "policy": {
        "model_name": "meta-llama/Llama-3.3-70B-Instruct",
        "train_global_batch_size": 512,
        "train_micro_batch_size": 1,
        "max_total_sequence_length": 4096,
        "megatron_cfg": {
            "enabled": True,
            "activation_checkpointing": True,
            "tensor_model_parallel_size": 4,
            "pipeline_model_parallel_size": 4,
            "optimizer": {"lr": 1e-6},
        },
        "generation": {"vllm_cfg": {"tensor_parallel_size": 8, "pipeline_parallel_size": 2}},
    },
    "cluster": {"gpus_per_node": 8, "num_nodes": 4},
}
PRIMUS: dict[str, Any] = {
    "modules": {
        "pre_trainer": {
            "framework": "megatron",
            "config": "pre_trainer.yaml",
            "model": "${PRIMUS_MODEL:llama3.1_70B}.yaml",
            "overrides": {
                "tensor_model_parallel_size": 8,
                "pipeline_model_parallel_size": 4,
                "global_batch_size": 64,
                "micro_batch_size": 1,
                "seq_length": 8192,
            },
        }
    }
}
FACTORY: dict[str, Any] = {
    "model_name_or_path": "Qwen/Qwen3-30B-A3B-Instruct-2507",
    "finetuning_type": "full",
    "cutoff_len": 2048,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 8,
    "pipeline_model_parallel_size": 4,
    "expert_model_parallel_size": 2,
    "tensor_model_parallel_size": 2,
    "recompute_granularity": "full",
}


def audited(text: str | dict[str, Any], *, model: str | None = None) -> RunConfiguration:
    """What an audit reads of a script, or of a document."""
    is_script = isinstance(text, str)
    read = read_arguments(
        text if is_script else json.dumps(text), source="train.sh" if is_script else "train.json", given={}
    )
    return read_megatron(read, options={}, model=model)


def sizes(run: RunConfiguration) -> tuple[object, ...]:
    """Degrees, samples and tokens."""
    return (run.tensor, run.pipeline, run.data, run.micro_batch, run.global_batch, run.sequence)


def test_swift():
    """Tests that ms-swift's command is found without a Python file, with its model, processes and defaults."""
    run = audited(SWIFT)
    assert (run.shape.name, *sizes(run)) == ("qwen3-32b", 4, 2, 2, 1, 16, 2048)
    assert (run.shards, run.recompute is not None) == ("optimizer", True)
    assert "global_batch_size = 16 (ms-swift's own)" in run.notes.assumed
    assert not run.notes.unknown
    assert "rlhf" in SWIFT_COMMANDS
    told = swift({"packing_length": "9"}, command="pt", environment={"NNODES": "$N"})
    assert (dict(told.values), told.model) == ({"seq_length": "9"}, "")


def test_verl():
    """Tests that the policy's degrees are read, not those of generation or of the reference."""
    run = audited(VERL)
    assert (run.shape.name, *sizes(run)) == ("qwen3-8b", 4, 2, 2, 2, 256, 4096)
    assert (run.recompute is not None, run.shards, run.sequence_parallel) == (True, "optimizer", True)
    assert any(note.startswith("generation") for note in run.notes.not_counted)
    odd = audited(VERL.replace("trainer.nnodes", "data.max_prompt_length=1001 trainer.nnodes"))
    assert (odd.notes.refusals, odd.sequence % 4) == ([], 0)  # samples are padded
    packed = VERL.replace("actor.ppo_micro", "actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_micro").replace(
        "trainer.nnodes", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=13000 trainer.nnodes"
    )
    assert audited(packed.replace("rollout.n=4", "rollout.n=6")).micro_batch == 3


def test_verl_as_a_document():
    """Tests that its YAML is read like its command line, with the files that it begins with named."""
    actor = {"strategy": "megatron", "ppo_mini_batch_size": 64, "ppo_micro_batch_size_per_gpu": 2,
             "megatron": {"tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 2,
                          "virtual_pipeline_model_parallel_size": None}}  # fmt: skip
    policy = {"model": {"path": "Qwen/Qwen3-8B"}, "actor": actor, "rollout": {"n": 4, "tensor_model_parallel_size": 8},
              "ref": {"megatron": {"pipeline_model_parallel_size": 1}}}  # fmt: skip
    text = {"defaults": ["base", "_self_"], "actor_rollout_ref": policy, "trainer": {"nnodes": 2}}
    run = audited(text)
    assert (run.shape.name, *sizes(run)) == ("qwen3-8b", 4, 2, 2, 2, 256, 1024)
    assert run.notes.unknown == ["what base sets"]


def test_nemo_rl():
    """Tests that the policy's section is read, what it inherits is named, and its checkpointing is Megatron's."""
    run = audited(NEMO_RL)
    assert (run.shape.name, *sizes(run)) == ("llama3-70b", 4, 4, 2, 1, 512, 4096)
    assert (run.recompute is not None, run.shards) == (True, "optimizer")
    assert run.notes.unknown == ["what base.yaml sets"]
    bare = NEMO_RL | {"policy": {**NEMO_RL["policy"], "train_global_batch_size": None}}
    with pytest.raises(ValueError, match=r"global_batch_size: what base\.yaml sets, which is in another file"):
        audited(bare)


def test_primus():
    """Tests that overrides are read with the model's name, and the files beside them are named."""
    run = audited(PRIMUS)
    assert (run.shape.name, *sizes(run)) == ("llama3-70b", 8, 4, 1, 1, 64, 8192)
    assert (run.shards, run.sequence_parallel) == ("optimizer", True)
    assert run.notes.unknown == ["what pre_trainer.yaml sets", "what llama3.1_70B.yaml sets"]
    trainer = PRIMUS["modules"]["pre_trainer"]
    sized = {**trainer, "overrides": {**trainer["overrides"], "num_layers": 40, "hidden_size": 8192}}
    shape = audited({"modules": {"pre_trainer": sized}}).shape
    assert (shape.blocks, shape.key_value_heads) == (40, 8)


def test_llama_factory():
    """Tests that samples, tokens and the model have their names, and full recomputation is of all blocks."""
    run = audited(FACTORY)
    assert (run.shape.name, *sizes(run)) == ("qwen3-30b-a3b", 2, 4, 1, 2, 16, 2048)
    assert (run.experts, run.expert_tensor, run.notes.refusals) == (2, 1, [])
    assert run.recompute is not None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SWIFT.replace("--dataset", "--tuner_type lora --dataset"), "tuner_type = lora: adapters"),
        (SWIFT.replace("megatron sft", "megatron rlhf"), "megatron rlhf: steps with passes of a reference"),
        (SWIFT.replace("Qwen3-32B", "Qwen9-1B"), "model Qwen/Qwen9-1B: its sizes are not known"),
        (VERL.replace("actor.megatron", "actor.fsdp_config"), "strategy: the policy is not trained by Megatron-LM"),
        (VERL.replace("trainer.nnodes=2", "trainer.nnodes=$N"), "nnodes = \\$N: is not a whole number"),
        (VERL.replace("trainer.nnodes", "actor_rollout_ref.model.lora.rank=8 trainer.nnodes"), "lora.rank: adapters"),
        ({"policy": {"megatron_cfg": {"enabled": False}}}, "megatron_cfg.enabled: the policy is not trained by"),
        ({"policy": {"megatron_cfg": {"peft": {"enabled": True}, "x": 1}}}, "peft.enabled: adapters"),
        ({"modules": {"t": {"framework": "torchtitan", "overrides": {}}}}, "framework: torchtitan: the file is not"),
        (FACTORY | {"finetuning_type": "lora"}, "finetuning_type = lora: adapters"),
    ],
)
def test_refusals(text: str | dict[str, Any], said: str):
    """Tests that what is trained otherwise is refused by field, value and remedy."""
    with pytest.raises(ValueError, match=said):
        audited(text)


def test_sizes_beside_a_name():
    """Tests that stated sizes count where the name is not known, and an option counts before the name."""
    run = audited(SWIFT.replace("--model Qwen/Qwen3-32B", "--model Qwen/None"), model="llama3-8b")
    assert run.shape.name == "llama3-8b"


def test_other_files():
    """Tests that files that a document takes in are listed, of all forms, and its own place is none of them."""
    assert other_files({"defaults": "a.yaml"}) == ["a.yaml"]
    assert other_files({"defaults": ["_self_", {"train": "70b"}], "extends": ["b.yaml"]}) == ["train/70b", "b.yaml"]
    assert other_files({}) == []
    assert of_mapping({"num_layers": 4}) is None
    assert not is_verl({"model.num_layers": "4"})
    assert verl({"actor_rollout_ref.actor.megatron.x": "1"}).values["global_batch_size"] == "256"


@pytest.mark.parametrize("name", ["deepspeed", "fsdp"])
def test_llama_factory_without_megatron(name: str) -> None:
    """Tests that what DeepSpeed or FSDP trains is refused by the field that says so."""
    with pytest.raises(ValueError, match=f"{name} = x.json: the model is not trained by Megatron-LM"):
        of_mapping({"model_name_or_path": "Qwen/Qwen3-8B", name: "x.json"})
    with pytest.raises(ValueError, match="trained by Megatron-LM alone is read; give tensor_model"):
        of_mapping({"model_name_or_path": "Qwen/Qwen3-8B", "per_device_train_batch_size": 2})


SLIME = """
if [ "$(nvidia-smi | wc -l)" -gt 0 ]; then HAS_NVLINK=1; else HAS_NVLINK=0; fi
source models/qwen3-32B.sh
ROLLOUT=(--rollout-batch-size 32 --n-samples-per-prompt 8 --rollout-max-response-len 8192 --rm-type math)
PERF=(--tensor-model-parallel-size 4 --sequence-parallel --pipeline-model-parallel-size 2 --context-parallel-size 2
   --use-dynamic-batch-size --max-tokens-per-gpu 9216)
ray job submit --runtime-env-json="{\\"env_vars\\": {\\"NVLS\\": \\"$HAS_NVLINK\\"}}" -- python3 train.py \\
   --actor-num-nodes 4 --hf-checkpoint /models/Qwen3-32B/ ${MODEL_ARGS[@]} ${ROLLOUT[@]} ${PERF[@]}
"""


def slime(text: str) -> RunConfiguration:
    return read_megatron(read_arguments(text, source="run.sh"), options={}, model=None)


def test_slimes_command() -> None:
    """Tests that processes, batch, lengths and packed samples are slime's, and flags of other files are named."""
    few = slime(f"{SLIME} --rollout-max-response-len 10")
    assert few.notes.refusals == []  # microbatches have as many samples as there are, not as fit
    assert few.global_batch % (few.micro_batch * few.data) == 0
    run = slime(SLIME)
    assert (run.shape.name, run.tensor, run.pipeline, run.context, run.data) == ("qwen3-32b", 4, 2, 2, 2)
    assert (run.global_batch, run.micro_batch, run.sequence, run.dtype) == (256, 2, 8192, "bf16")
    assert run.shards == "optimizer"
    assert [each.split()[0] for each in run.notes.unknown] == ["$MODEL_ARGS"]
    assert run.notes.not_counted[0].startswith("generation")


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ("--micro-batch-size 4 --global-batch-size 128", (128, 4, 8192)),
        ("--num-steps-per-rollout 2 --micro-batch-size 2", (128, 2, 8192)),
        ("--rollout-max-prompt-len 1024 --micro-batch-size 1", (256, 1, 9216)),
        ("--rollout-max-context-len 4096 --use-dynamic-batch-size", (256, 4, 4096)),
    ],
)
def test_slimes_batches(flags: str, wanted: tuple[int, int, int]) -> None:
    """Tests that a batch may be stated or be parts of a rollout, and microbatches stated or packed."""
    run = slime(SLIME.replace("--use-dynamic-batch-size", flags))
    assert (run.global_batch, run.micro_batch, run.sequence) == wanted
