"""Megatron-LM's arguments in their three forms, and the run that they tell."""

import json

import pytest

from profiles.configurations.argument_forms import ReadArguments, Value, read_arguments
from profiles.configurations.megatron_run import read_megatron
from profiles.configurations.run_configuration import RunConfiguration

FLAGS = {
    "num-layers": "12",
    "hidden-size": "1024",
    "num-attention-heads": "16",
    "vocab-size": "50000",
    "seq-length": "2048",
    "max-position-embeddings": "2048",
    "micro-batch-size": "2",
    "global-batch-size": "64",
    "tensor-model-parallel-size": "2",
    "pipeline-model-parallel-size": "4",
    "pipeline-model-parallel-layout": "Ett|(t*4|)*2ttL",
}


def run_of(text: str, *, source: str = "train.sh", model: str | None = None, **options: Value) -> RunConfiguration:
    read = read_arguments(text, source=source)
    return read_megatron(read, options=options, model=model)


def typed(model: str | None = "llama3-8b", **options: Value) -> RunConfiguration:
    return read_megatron(ReadArguments(values={}, kind="options"), options=options, model=model)


def as_log(values: dict[str, str]) -> str:
    lines = [f"[default0]:  {name.replace('-', '_')} {'.' * 20} {value}" for name, value in values.items()]
    return "\n".join(["using world size: 16", *lines, "  bf16 ............ True", "  fp16 ............ False"])


def as_script(values: dict[str, str]) -> str:
    return "torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --bf16 " + " ".join(
        f"--{name} '{value}'" for name, value in values.items()
    )


def test_the_three_forms_tell_the_same_run() -> None:
    """Tests that flags, a mapping and a log's block of arguments give one run, stage by stage."""
    values = FLAGS
    forms = {
        "train.sh": as_script(values),
        "args.yaml": "MODEL_ARGS:\n" + "".join(f"  --{name}: '{value}'\n" for name, value in values.items())
        + "  --bf16: true\nworld_size: 16\n",
        "args.json": json.dumps({name.replace("-", "_"): value for name, value in values.items()}
                                | {"bf16": True, "world_size": 16}),
        "train.log": as_log({**values, "world-size": "16"}),
    }  # fmt: skip
    for source, text in forms.items():
        run = run_of(text, source=source)
        assert run.stages == ("Ett", "tttt", "tttt", "ttL"), source
        assert (run.tensor, run.pipeline, run.data, run.chunks) == (2, 4, 2, 1)
        assert (run.micro_batch, run.global_batch, run.num_microbatches, run.sequence) == (2, 64, 16, 2048)
        assert (run.shape.blocks, run.shape.hidden, run.shape.vocabulary) == (12, 1024, 50176)
        assert not run.notes.refusals
        assert not run.notes.unknown


def test_experts_are_fused_by_a_flag() -> None:
    """Tests that Transformer Engine's fuser of operations is read, and that without it nothing is fused."""
    runs = [typed(model="gpt-oss-20b", **given) for given in ({}, {"use_transformer_engine_op_fuser": True})]
    assert [run.fused_experts for run in runs] == [False, True]


@pytest.mark.parametrize(
    ("flags", "is_fused"),
    [
        ("", True),
        ("--attention-backend unfused", False),
        ("--attention-backend local", False),
        ("--attention-backend auto --transformer-impl local", False),
        ("--attention-backend flash --transformer-impl local", True),
        ("--transformer-impl local --use-flash-attn", True),
        ("--transformer-impl transformer_engine", True),
        ("--deepspeed --deepspeed_config ds.json", False),
        ("--deepspeed --use-flash-attn-v2", True),
        ("--deepspeed --use-fused-sdpa 1", True),
        ("--no-use-flash-attn --deepspeed", False),
    ],
)
def test_attention_is_fused_or_not(flags: str, is_fused: bool) -> None:
    """Tests that a backend, plain layers or Megatron-DeepSpeed's default say whether scores leave the kernel."""
    run = run_of(as_script(FLAGS) + " " + flags)
    assert (run.fused_attention, run.notes.unknown, run.notes.not_counted) == (is_fused, [], [])


def test_megatron_deepspeed_cuts_by_kinds_of_layers() -> None:
    """Tests that its engine balances what a method names, whatever divides, and shards the optimizer's state in bf16.

    BLOOM was trained so: an embedding, 70 blocks and a tied head on 12 ranks are six of them each.
    """
    sizes = "--num-layers 70 --hidden-size 14336 --num-attention-heads 112 --pad-vocab-size-to 250880"
    start = f"python pretrain_gpt.py {sizes} --pipeline-model-parallel-size 12 --deepspeed --zero-stage 0"
    run = run_of(f"{start} --bf16 --pp-partition-method 'type:transformer|embedding'")
    assert run.stages == ("Ettttt", *["tttttt"] * 10, "tttttL")
    assert (run.shape.vocabulary, run.shards, run.notes.unknown, run.notes.refusals) == (250880, "optimizer", [], [])
    assert any("DeepSpeed's engine cuts by a method alone" in each for each in run.notes.assumed)
    assert run_of(f"{start} --bf16 --no-pipeline-parallel").shards == "nothing"
    run = run_of(f"{start} --fp16")
    assert ([stage.count("t") for stage in run.stages], run.shards) == ([6] * 10 + [5, 5], "nothing")


def test_groups_and_gates_by_other_names() -> None:
    """Tests that Megatron-DeepSpeed's and BigScience's flags say that heads share keys and that parts are gated."""
    plain = as_script(FLAGS)
    shape = run_of(f"{plain} --num-key-value-heads 4 --glu-activation geglu").shape
    assert (shape.key_value_heads, shape.is_gated) == (4, True)
    shape = run_of(f"{plain} --num-query-groups 4 --activation-func-type gelu").shape
    assert (shape.key_value_heads, shape.is_gated) == (16, False)


def test_rows_of_the_vocabulary() -> None:
    """Tests that GPT-2's tokenizer has its own rows, and that they are made divisible for all devices of a group."""
    sizes = "python pretrain_gpt.py --num-layers 4 --hidden-size 1024 --num-attention-heads 16"
    run = run_of(f"{sizes} --tokenizer-type GPT2BPETokenizer --tensor-model-parallel-size 8")
    assert run.shape.vocabulary == 51200
    assert "vocab_size = 50257" in run.notes.assumed


def test_widths_by_a_factor_and_a_step() -> None:
    """Tests that FlagScale's factor and step make the width of a gated part: Aquila's 34B is 24576 wide."""
    sizes = "python pretrain_gpt.py --num-layers 4 --hidden-size 6144 --num-attention-heads 48 --multiple-of 4096"
    assert run_of(f"{sizes} --swiglu --hidden-dim-multiplier 1.3").shape.inner == 24576
    assert run_of(f"{sizes} --hidden-dim-multiplier 1.3").shape.inner == 24576
    assert run_of(f"{sizes} --swiglu").shape.inner == 16384
    with pytest.raises(ValueError, match="--hidden-dim-multiplier x: is not a number"):
        run_of(f"{sizes} --hidden-dim-multiplier x")


def test_experts_of_megatron_deepspeed() -> None:
    """Tests that its own defaults count: one expert is a dense model, one chosen, experts in every second block."""
    plain = as_script(FLAGS)
    assert run_of(plain + " --deepspeed --num-experts 1").shape.mixture is None
    with pytest.raises(ValueError, match="--expert-interval 2: dense blocks between others are not read"):
        run_of(plain + " --deepspeed --num-experts 8")
    mixture = run_of(
        plain + " --deepspeed --num-experts 8 --expert-interval 1 --expert-tensor-parallel-size 1"
    ).shape.mixture
    assert mixture is not None
    assert (mixture.experts, mixture.chosen) == (8, 1)
    other = run_of(plain + " --num-experts 8 --expert-tensor-parallel-size 1").shape.mixture
    assert other is not None
    assert other.chosen == 2


def test_files_that_are_taken_in_are_named() -> None:
    """Tests that a script without a model says which other script may have it."""
    with pytest.raises(
        ValueError, match=r"the model is not stated \(./common.sh is in another file, which is not read\)"
    ):
        run_of("TP=2\nsource ./common.sh\ntorchrun pretrain_gpt.py --tensor-model-parallel-size $TP")


def test_an_attention_backend_that_does_not_exist_is_refused() -> None:
    """Tests that the value is named, and those that there are."""
    with pytest.raises(ValueError, match="--attention-backend sdpa: is not known; give one of flash, fused, auto"):
        run_of(as_script(FLAGS) + " --attention-backend sdpa")
    assert not run_of(as_log({**FLAGS, "attention_backend": "AttnBackend.unfused"})).fused_attention


def test_layouts_as_lists_and_overrides() -> None:
    """Tests that Megatron-Bridge's sections, lists of kinds and overrides are read by the same names."""
    document = {
        "model": {
            "num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "pipeline_model_parallel_size": 2,
            "virtual_pipeline_model_parallel_size": None, "vocab_size": 128, "_target_": "x.y",
            "pipeline_model_parallel_layout": [["embedding", "decoder"], ["decoder", "loss"]],
        },
        "train": {"micro_batch_size": 1, "global_batch_size": 4},
    }  # fmt: skip
    run = run_of(json.dumps(document), source="recipe.json")
    assert run.stages == ("Et", "tL")
    run = run_of(
        "python run.py --bf16 model.tensor_model_parallel_size=2 ++train.global_batch_size=8 --world-size 2",
        model="llama3-8b",
    )
    assert (run.tensor, run.global_batch) == (2, 8)


@pytest.mark.parametrize(
    ("text", "source", "told"),
    [
        ("a" * 10**6, "train.sh", "grows to"),
        ("if [ x ]; then\n" * 200, "train.sh", "within each other"),
        ("{", "a.json", "neither JSON nor YAML"),
        ("- 1", "a.yaml", "no names with values"),
        ("a: &a {}\nb: &b {x: *a, y: *a}\nc: {x: *b, y: *b}", "a.yaml", "states no size, degree or batch by"),
        ('{"pipeline_model_parallel_layout": [["what"]]}', "a.json", "has 'what'; write embedding"),
        ("env_vars: {A: 'true'}", "env.yaml", "states no size, degree or batch by"),
        ("on: {push: {branches: [main]}}\njobs: {test: {name: Run}}", "ci.yaml", "states no size, degree or batch by"),
    ],
)
def test_files_that_are_none(text: str, source: str, told: str) -> None:
    """Tests that other files are refused by their names, however large or nested."""
    with pytest.raises(ValueError, match=told):
        run_of(text, source=source)


def test_a_log_takes_its_defaults_for_nothing() -> None:
    """Tests that what a log prints as off or absent is not told as a flag."""
    run = run_of(as_log({**FLAGS, "some-new-thing": "False",
                         "other-new-thing": "None", "third-thing": "7"}), source="train.log")  # fmt: skip
    assert run.notes.unknown == ["--third-thing 7"]


@pytest.mark.parametrize(
    ("flag", "value", "own"),
    [
        ("hidden-size", 5120, 4096),
        ("num-query-groups", 16, 8),
        ("ffn-hidden-size", 11008, 14336),
        ("kv-channels", 64, 128),
    ],
)
def test_sizes_that_contradict_the_model(flag: str, value: int, own: int) -> None:
    """Tests that a size that is not the named model's is refused with both, and that its own is read."""
    run_of(f"python pretrain_gpt.py --{flag} {own}", model="llama3-8b")
    with pytest.raises(ValueError, match=f"{flag} = {value}: --model llama3-8b has {own}; leave out one"):
        run_of(f"python pretrain_gpt.py --{flag} {value}", model="llama3-8b")


def test_a_known_model_with_other_blocks() -> None:
    """Tests that --num-layers beside --model keeps the model's widths."""
    run = typed("llama3-70b", num_layers="12", pipeline_model_parallel_size="2")
    assert (run.shape.blocks, run.shape.hidden, run.stages) == (12, 8192, ("Etttttt", "ttttttL"))
    with pytest.raises(ValueError, match="or one of llama3-8b"):
        typed("llama9")


def test_what_a_launcher_is_told_is_no_flag() -> None:
    """Tests that words before the Python file are the launcher's, of which the numbers of processes count."""
    run = run_of(
        "srun --container-image x.sqsh deepspeed --num_nodes 2 --num_gpus 4 pretrain_gpt.py --bf16 "
        "--tensor-model-parallel-size 2 --global-batch-size 8",
        model="llama3-8b",
    )
    assert (run.devices, run.data, run.notes.unknown) == (8, 4, [])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("python pretrain_t5.py --num-layers 4", "pretrain_t5.py: trains no decoder alone"),
        ("python tools/pretrain_bert.py --num-layers 4", "trains no decoder alone"),
        ("python pretrain_vlm.py --num-layers 4", "trains no decoder alone"),
        ("python tools/run_text_generation_server.py --num-layers 4", "trains no decoder alone"),
        ("python text_generation_ptq.py --num-layers 4", "trains no decoder alone"),
        ("python train.py --actor-num-nodes 1 --rollout-batch-size x", "rollout_batch_size = x: is not a whole number"),
        ("python run.py --decoder-num-layers 4", "an encoder beside a decoder"),
        ("python run.py --position-embedding-type mrope --mrope-section 16 24 24", "an encoder of pictures"),
        ("python run.py --crossattn-emb-size 5120", "attend to other sequences"),
        ("python run.py --model-provider llava_vlm", "encoders beside a decoder"),
        ("python run.py --max-tokens-to-oom 3600000", "text is generated"),
        ("python run.py --zero-stage 3", "--zero-stage 3: replicas that shard weights"),
        ("python run.py --ds-sequence-parallel-size 4", "devices that share sequences so"),
        ("python run.py --use-dualpipev", "two directions"),
        ("python run.py --lora-dim 8 --peft-type lora", "adapters beside frozen weights"),
    ],
)
def test_programs_that_do_something_else(text: str, told: str) -> None:
    """Tests that encoders, adapters and other ways to share sequences are refused by name, never read as a decoder."""
    with pytest.raises(ValueError, match=told):
        run_of(text, model="llama3-8b")


@pytest.mark.parametrize("text", ["python /home/bert/pretrain_gpt.py", "python alberta.py", "python train_bertha.py"])
def test_names_that_only_look_so(text: str) -> None:
    """Tests that a folder or a longer name does not make a program another one."""
    assert run_of(f"{text} --micro-batch-size 1", model="llama3-8b").shape.name == "llama3-8b"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('RUN="srun --mpi=pmix --container-image=x"\nfor C in 1,2; do IFS=, read TP PP <<< $C; $RUN bash -c "$C"; done',
         "2 of 2 names are not Megatron-LM's; give a file"),
        ("torchrun --nproc_per_node 8 pretrain_mine.py --output out --optimizer adam", "states no size"),
        ("accelerate launch run_clm.py --batch_size 8 --gradient_accumulation_steps 4 --bf16", "states no size"),
        ("deepspeed train.py --train_batch_size 64 --deepspeed", "states no size"),
        (". env.sh\ntask='python3 finetune.py --load x'\n", "states no size, .* .env.sh is in another"),
        ("torchrun --nproc-per-node 8 run_recipe.py --recipe qwen3_600m train.global_batch_size=2",
         "tensor_model_parallel_size: what the recipe qwen3_600m sets, which is in another file; give --tp"),
        ("python perf.py --model_recipe_name llama31 --bf16", "what the recipe llama31 sets"),
        ("python entry.py a.policy.tensor_model_parallel_size=4 a.engine.tensor_model_parallel_size=32",
         "a.policy.tensor_model_parallel_size = 4, a.engine.tensor_model_parallel_size = 32: differ"),
        ("python e.py models.policy_trainer.tensor_model_parallel_size=4", "policy_trainer is ChatLearn's"),
    ],
)  # fmt: skip
def test_degrees_that_are_elsewhere(text: str, told: str) -> None:
    """Tests that a command without flags, recipes by name, and sections that differ are refused, never assumed."""
    with pytest.raises(ValueError, match=told):
        run_of(text, model="llama3-8b")


def test_overrides_beside_a_recipe() -> None:
    """Tests that a recipe that is named is read where overrides state all that it could say otherwise."""
    degrees = "model.tensor_model_parallel_size=2 model.pipeline_model_parallel_size=2 train.global_batch_size=8"
    run = run_of(f"torchrun --nproc-per-node 4 run.py --recipe q {degrees}", model="llama3-8b")
    assert (run.tensor, run.pipeline, run.global_batch) == (2, 2, 8)
    assert run.notes.unknown == ["what the recipe q sets", "--recipe q"]


def test_variables_of_a_mapping() -> None:
    """Tests that a mapping's variables take given values or their defaults, and quotes for a shell go."""
    text = json.dumps({
        "LAUNCHER": "some", "TEST_TYPE": "regular",
        "MODEL_ARGS": {"--tensor-model-parallel-size": "${TP}", "--pipeline-model-parallel-size": "${PP:2}",
                       "--global-batch-size": "${GBS:-16}", "--moe-layer-freq": "'([0]*1+[1]*3)'",
                       "--num-layers": 4, "--hidden-size": 256, "--num-attention-heads": 8, "--num-experts": 4},
    })  # fmt: skip
    read = read_arguments(text, source="model.yaml", given={"TP": "2"})
    run = read_megatron(read, options={}, model=None)
    assert (run.tensor, run.pipeline, run.global_batch) == (2, 2, 16)
    assert run.shape.mixture is not None
    assert run.shape.mixture.dense_layers == 1
    assert run.notes.unknown == []
    with pytest.raises(ValueError, match=r"\$TP is not set"):
        run_of(text, source="model.yaml")


def test_groups_of_queries() -> None:
    """Tests that a configuration class counts groups of queries always, and flags beside their switch alone."""
    values = {"num_layers": 4, "hidden_size": 256, "num_attention_heads": 8, "num_query_groups": 2}
    groups = [
        run_of(json.dumps(document), source="a.yaml").shape.key_value_heads
        for document in (values, {**values, "group_query_attention": True}, {"model": {**values, "_target_": "x.Y"}})
    ]
    assert groups == [8, 2, 2]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"bf16": True, "fp16": True}, "bf16 and fp16 are both on"),
        (
            {"recompute_granularity": "selective", "recompute_method": "uniform", "recompute_num_layers": "1"},
            "selective recomputation takes no --recompute-method",
        ),
        (
            {"num_layers_per_virtual_pipeline_stage": "2", "num_virtual_stages_per_pipeline_rank": "2"},
            "are both given; drop one",
        ),
        ({"recompute_granularity": "full", "recompute_method": "each"}, "needs --recompute-method (uniform or block)"),
    ],
)
def test_flags_that_exclude_each_other(more: dict[str, Value], told: str) -> None:
    """Tests that what Megatron asserts is refused."""
    assert any(told in each for each in typed(**more).notes.refusals)


def test_experts_of_a_dense_model_and_blocks_that_are_not_recomputed() -> None:
    """Tests that a dense model has no expert degree, and block by block so many are recomputed, none where it is 0."""
    assert typed(expert_model_parallel_size="4").notes.refusals == [
        "expert_model_parallel_size = 4: the model has no experts; leave it out"
    ]
    block: dict[str, Value] = {"recompute_granularity": "full", "recompute_method": "block"}
    assert typed(**block, recompute_num_layers="0").recompute is None
    run = typed(**block)
    assert run.recompute is not None
    assert run.recompute.blocks == 1
    assert "recompute_num_layers = 1" in run.notes.assumed
    assert typed(pipeline_model_parallel_size="2", num_virtual_stages_per_pipeline_rank="null").chunks == 1


def test_queries_are_compressed_where_it_is_said() -> None:
    """Tests that latent attention without a rank of queries has none, as Megatron-LM's flag does."""
    flags = {**FLAGS, "multi-latent-attention": "true", "kv-lora-rank": "64"}
    for rank in (0, 96):
        shape = run_of(as_script(flags | ({"q-lora-rank": str(rank)} if rank else {}))).shape
        assert shape.latent is not None
        assert shape.latent.query_rank == rank


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("--micro-batch-size 0", "--micro-batch-size: 0; give 1 or more"),
        ("--seq-length 0", "--seq-length: 0; give 1 or more"),
        ("--num-layers 999999999", "--num-layers: 999999999 is more than the 10,000"),
        ("--sequence-parallel maybe", "--sequence-parallel: 'maybe' is neither true nor false"),
        ("--fp8-format hybrid --fp8-recipe own", "--fp8-recipe own: is not known"),
        ("--moe-token-dispatcher-type flexx", "--moe-token-dispatcher-type flexx: is none of allgather, alltoall, all"),
        ("--transformer-impl locl", "--transformer-impl locl: is none of local, transformer_engine and"),
        ("--num-layers 0 --num-layer 12", "--num-layer 12: is not known; write --num-layers, or leave it out"),
        ("--seq-length 0 --parallel.ep-size 8 --account x", "--seq-length: 0; give 1 or more"),
        (
            "--seq-length 0 --sequence-lenght 9 --pipeline-model-paralel-size 2",
            "paralel-size 2: is not known; write --",
        ),
        ("--seq-length 0 --decoder-last-pipeline-num-layers 3", "--seq-length: 0; give 1 or more"),
        ("--lora-rank 8", "--lora-rank: adapters"),
        ("--use-custom-fsdp", "--use-custom-fsdp: weights are sharded"),
    ],
)
def test_values_that_are_not_understood(flags: str, told: str) -> None:
    """Tests that a value without a meaning is refused by its flag, and never another one taken for it."""
    with pytest.raises(ValueError, match=told):
        run_of(f"{as_script(FLAGS)} {flags}")


def test_where_devices_come_from() -> None:
    """Tests that a number of devices that does not do is told with a node's and the nodes', and what Slurm gives."""
    flags = as_script({**FLAGS, "tensor-model-parallel-size": "16"}).replace("--nnodes", "--other-nodes")
    told = " ".join(run_of(f"#!/bin/bash\n#SBATCH --nodes=8\n{flags}").notes.refusals)
    assert "8 a node on one node, as nnodes is not stated, and Slurm's header asks for 8) are not" in told
    assert "--devices" not in told
    told = " ".join(run_of(f"#!/bin/bash\n#SBATCH --nodes=8-9\n{flags}").notes.refusals)
    assert "8 a node on one node, as nnodes is not stated) are not" in told


@pytest.mark.parametrize(
    ("number", "told"),
    [("$N", r"\$N is not set in the script; give --set N=VALUE"), ("$(nproc)", ".* is not a whole number; give one")],
)
def test_a_launchers_flag_is_told_by_its_own_name(number: str, told: str) -> None:
    """Tests that a number of processes that the script leaves open is told as the launcher spells it."""
    with pytest.raises(ValueError, match=f"^--num_processes: {told}"):
        run_of(f"accelerate launch --num_processes {number} pretrain_gpt.py {as_script(FLAGS).partition('.py')[2]}")


def test_sums_of_gradients_by_a_word() -> None:
    """Tests that `no` turns sums in four bytes off, as `false` does."""
    sizes = [
        run_of(f"{as_script(FLAGS)} --grad-reduce-in-fp32 {word}").gradient_bytes for word in ("no", "false", "yes")
    ]
    assert sizes == [2, 2, 4]


def test_lengths_and_patterns_that_megatron_refuses() -> None:
    """Tests that tokens that degrees do not cut and experts' patterns of other lengths are told; so is an optimizer."""
    plain = {name: value for name, value in FLAGS.items() if "layout" not in name}
    text = f"{as_script(plain)} --context-parallel-size 3 --sequence-parallel no --bf16 on --optimizer sgd"
    notes = run_of(text + " --num-experts 8 --moe-layer-freq [0]*1+[1]*3").notes
    assert "seq_length = 2048 is not a multiple of 6" in " ".join(notes.refusals)
    assert "--moe-layer-freq has 4 blocks, and --num-layers 12; make them equal" in notes.refusals
    assert "states of Adam, though the optimizer is sgd" in notes.assumed


def test_sections_of_two_models() -> None:
    """Tests that sizes that differ between sections are refused, and equal ones are not."""
    own = "model:\n  num_layers: 4\n  hidden_size: 64\n  num_attention_heads: 4\n"
    with pytest.raises(ValueError, match="num_layers is 4 in one section and 2 in another"):
        run_of(own + "draft:\n  num_layers: 2\n", source="c.yaml")
    assert run_of(own + "other:\n  num_layers: 4\n", source="c.yaml").shape.blocks == 4
    read = read_arguments("num_layers: ${oc.env:DEPTH,3}", source="c.yaml", given={})
    assert read.values == {"num_layers": "3"}


@pytest.mark.parametrize(
    "statement",
    [
        "m.tensor_model_parallel_size = int(os.environ['TP'])",
        "m.tensor_model_parallel_size *= 2",
        "m.tensor_model_parallel_size, m.seed = pair()",
        "match 1:\n        case 1: m.tensor_model_parallel_size = 4",
        "with x:\n        m.tensor_model_parallel_size = 4",
    ],
)
def test_degrees_that_a_recipe_computes(statement: str) -> None:
    """Tests that a degree set by a statement that is not read is refused by it, unless it is typed."""
    made = "Model(num_layers=4, hidden_size=64, num_attention_heads=4)"
    text = f"def f():\n    m = {made}\n    {statement}\n    return Config(model=m)\n"
    read = read_arguments(text, source="r.py", function="f")
    with pytest.raises(ValueError, match="is not read, and sets tensor_model_parallel_size; give --tp"):
        read_megatron(read, options={}, model=None)
    assert read_megatron(read, options={"tensor_model_parallel_size": "2"}, model=None).tensor == 2


@pytest.mark.parametrize(
    "line",
    ["--data-path: ${DATA}/my-bert_00_text_sentence", "--tokenizer-type: BertWordPieceCase", "--vocab-extra-ids: 100"],
)
def test_an_encoder_is_no_decoder(line: str) -> None:
    """Tests that a YAML or log that names no program is refused by what only BERT and T5 have, and a GPT's is not."""
    text = "MODEL_ARGS:\n  --num-layers: 24\n  --hidden-size: 1024\n  --num-attention-heads: 16\n  " + line
    name, value = line.split(": ")
    with pytest.raises(ValueError, match=f"{name} .*: trains an encoder, such as BERT's or T5's"):
        run_of(text, source="model_config.yaml")
    with pytest.raises(ValueError, match=f"{name} .*: trains an encoder"):
        run_of(as_log({**FLAGS, name.strip("-"): value}), source="train.log")
    assert run_of(f"python pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 1 {name} {value}")


NO_FUSED = "NVTE_FLASH_ATTN=0 NVTE_FUSED_ATTN=0"


@pytest.mark.parametrize(
    ("before", "flags", "is_fused", "told"),
    [
        (f"export {NO_FUSED}\n", "", False, "Megatron core 0.10 and later"),
        (f"env {NO_FUSED} ", "", False, "Megatron core 0.10 and later"),
        ("mpirun -x NVTE_FLASH_ATTN=0 -x NVTE_FUSED_ATTN=0 ", "", False, "Megatron core 0.10 and later"),
        ("export NVTE_FLASH_ATTN=0 NVTE_UNFUSED_ATTN=0\n", "", True, "NVTE_FLASH_ATTN = 0"),
        ("export NVTE_FUSED_ATTN=1\n", "", True, ""),
        (f"export {NO_FUSED}\n", "--attention-backend unfused", False, ""),
        (f"export {NO_FUSED}\n", "--attention-backend flash", True, "NVTE_FLASH_ATTN = 0 beside --attention-backend"),
        ("export NVTE_FLASH_ATTN=1\n", "--attention-backend auto", True, ""),
        ("export NVTE_FUSED_ATTN=1\n", "--attention-backend flash", True, "which sets it to 0"),
        ("export NVTE_ALLOW_NONDETERMINISTIC_ALGO=0\n", "", True, "NVTE_ALLOW_NONDETERMINISTIC_ALGO = 0"),
        ("export NVTE_ALLOW_NONDETERMINISTIC_ALGO=1\n", "", True, ""),
        ("export NVTE_FWD_LAYERNORM_SM_MARGIN=16\n", "", True, "NVTE_FWD_LAYERNORM_SM_MARGIN = 16"),
    ],
)
def test_variables_that_choose_kernels(before: str, flags: str, is_fused: bool, told: str) -> None:
    """Tests that Transformer Engine's variables are priced, refused beside a backend that sets them, or named."""
    run = run_of(f"{before}torchrun pretrain_gpt.py --micro-batch-size 1 {flags}", model="llama3-8b")
    kept = [each for each in run.notes.assumed if "fused" in each]
    found = [*run.notes.refusals, *run.notes.not_counted, *kept]
    assert run.fused_attention == is_fused
    assert any(told in each for each in found) if told else not found


@pytest.mark.parametrize(
    "stated",
    [
        "ENV_VARS:\n  NVTE_FLASH_ATTN: 0\n  NVTE_FUSED_ATTN: '0'\nMODEL_ARGS:\n",
        "env:\n- {name: NVTE_FLASH_ATTN, value: '0'}\n- name: NVTE_FUSED_ATTN\n  value: 0\nargs:\n",
        "launch: ['NVTE_FLASH_ATTN=0', 'NVTE_FUSED_ATTN=0']\nargs:\n",
    ],
)
def test_such_variables_in_a_document(stated: str) -> None:
    """Tests that they count where a YAML lists them, in any of the usual forms."""
    sizes = "  --num-layers: 12\n  --hidden-size: 1024\n  --num-attention-heads: 16"
    assert not run_of(f"{stated}{sizes}", source="a.yaml").fused_attention
    assert run_of(f"{stated.replace('0', '1')}{sizes}", source="a.yaml").fused_attention


SIZES = "--num-layers 8 --hidden-size 1024 --num-attention-heads 16 --vocab-size 50000"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("python pretrain_gpt.py --schedules-method dualpipev", "this order of two directions is not played"),
        ("python pretrain_gpt.py --noop-layers 6-7", "--noop-layers 6-7: is no list of numbers"),
        ("python pretrain_gpt.py --standalone-embedding-stage", "in a stage of its own is read from --pipeline-model-"),
        ("python pretrain_gpt.py --lora-r 8", "--lora-r: adapters beside frozen weights"),
        ("python pretrain_gpt.py --enable-zbh1-pipeline", "order of zero bubbles"),
        ("python posttrain_gpt.py --stage dpo", "--stage dpo: passes of other models"),
        ("python pretrain_gpt.py --linear-num-value-heads 32", "layers of a hybrid model are read from"),
        ("python pretrain_gpt.py --full-attention-interval 4", "layers of a hybrid model are read from"),
        ("python pretrain_mamba.py --mamba-state-dim 128", "--mamba-state-dim: layers of a hybrid model"),
        ("python pretrain_hybrid.py", "pretrain_hybrid.py: layers of a hybrid model"),
        ("python pretrain_gpt.py --spec core.mamba_layer_specs mamba_stack_spec", "--spec .*: layers of a hybrid"),
        ("python pretrain_prefix_lm.py", "trains no decoder alone"),
        ("python tools/hf2mcore.py", "trains no decoder alone"),
        ("python -m examples.inference.offline_inference", "trains no decoder alone"),
        ("python evaluation.py", "trains no decoder alone"),
        ("python tasks/msdp/main.py --task MSDP-PROMPT", "--task: tasks beside a decoder's training"),
        ("python pretrain_gpt.py --yaml-cfg a.yaml", "--yaml-cfg: what is trained stands in that file"),
        ("python pretrain_gpt.py --num-layers-per-virtual-pipeline-stag 2", "takes it for .*-stage; write it whole"),
    ],
)
def test_flags_of_the_family_that_make_it_another_run(text: str, told: str) -> None:
    """Tests that orders, blocks and programs of Megatron's descendants that no estimate follows are refused by name."""
    with pytest.raises(ValueError, match=told):
        run_of(f"{text} {SIZES}")
    assert run_of(f"python posttrain_gpt.py --stage sft {SIZES}").shape.blocks == 8


def test_blocks_of_a_class_of_its_own() -> None:
    """Tests that a specification of blocks is told, but for Megatron's own and a hybrid model's beside its pattern."""
    start = f"python hybrid_runs/pretrain_gpt.py {SIZES}"
    assert run_of(f"{start} --spec my.specs my_block").notes.not_counted == [
        "--spec my.specs my_block: blocks of a class of its own"
    ]
    assert run_of(f"{start} --spec local").notes.not_counted == []
    hybrid = run_of(f"{start} --spec core.hybrid_layer_specs hybrid_stack_spec --hybrid-layer-pattern M-*-")
    assert (hybrid.shape.pattern, hybrid.notes.not_counted) == ("M-*-", [])


def test_a_class_whose_defaults_are_the_model() -> None:
    """Tests that a provider of Megatron-Bridge is told where the document leaves out what it decides."""
    model = {"_target_": "models.llama.Llama31ModelProvider8B", "num_layers": 8, "hidden_size": 256}
    model |= {"num_attention_heads": 4, "tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 2}
    document = {"model": model, "train": {"global_batch_size": 8, "micro_batch_size": 1}}
    told = "what models.llama.Llama31ModelProvider8B sets"
    assert run_of(json.dumps(document), source="a.json").notes.unknown == [told]
    model["gated_linear_unit"] = True
    assert run_of(json.dumps(document), source="a.json").notes.unknown == []
    del model["gated_linear_unit"], model["pipeline_model_parallel_size"]
    with pytest.raises(ValueError, match=rf"^pipeline_model_parallel_size: {told}, which is in another file; give --p"):
        run_of(json.dumps(document), source="a.json")


def test_blocks_that_do_nothing() -> None:
    """Tests that MindSpeed's blocks that do nothing count where stages are cut, and nowhere else."""
    moe = "--num-experts 4 --moe-layer-freq -1 --first-k-dense-replace"
    run = run_of(f"python pretrain_gpt.py --noop-layers 0,7 --pipeline-model-parallel-size 4 {SIZES} {moe} 3")
    assert (run.stages, run.shape.blocks) == (("Et", "tt", "tt", "tL"), 6)
    assert run.shape.mixture is not None
    assert run.shape.mixture.dense_layers == 2
    named = run_of(
        "python pretrain_gpt.py --num-layers 36 --noop-layers 34,35 --pipeline-model-parallel-size 2", model="llama3-8b"
    )
    assert (named.shape.blocks, named.stages[1].count("t")) == (34, 16)
    every = run_of(f"python pretrain_gpt.py {SIZES} {moe} -1").shape.mixture
    assert every is not None
    assert every.dense_layers == 0
    alone = run_of(f"python pretrain_gpt.py --noop-layers 6,7 --pipeline-model-parallel-size 4 {SIZES}")
    assert alone.stages[3] == "L"
    whole = run_of(f"python pretrain_gpt.py --noop-layers 2,3 --pipeline-model-parallel-size 4 {SIZES}").notes.refusals
    assert whole[0].startswith("stage 1 has no block but those of --noop-layers")


def test_none_in_small_letters_is_nothing() -> None:
    """Tests that ms-swift's way to say that nothing is recomputed is read."""
    assert run_of(f"python pretrain_gpt.py --recompute-granularity none {SIZES}").recompute is None


def test_what_a_checkpoint_states_is_named() -> None:
    """Tests that sizes and degrees which a checkpoint overrules are named, and one head of keys for all is read."""
    run = run_of(
        f"python pretrain_gpt.py --use-checkpoint-args --use-mp-args-from-checkpoint-args {SIZES} "
        "--attention-head-type multiquery"
    )
    assert run.notes.not_counted == ["--use-checkpoint-args", "--use-mp-args-from-checkpoint-args"]
    assert (run.shape.heads, run.shape.key_value_heads, run.notes.unknown) == (16, 1, [])


def test_a_log_of_a_decoder_states_every_mixers_sizes() -> None:
    """Tests that a log, which has Megatron's defaults of mixers, is a decoder's unless it says otherwise."""
    defaults = {**FLAGS, "mamba_state_dim": "128", "linear_num_value_heads": "32", "is_hybrid_model": "False"}
    assert run_of(as_log(defaults), source="train.log").shape.pattern == ""
    with pytest.raises(ValueError, match="--is-hybrid-model: layers of a hybrid model are read from"):
        run_of(as_log({**defaults, "is_hybrid_model": "True"}), source="train.log")


@pytest.mark.parametrize("flag", ["--quick-geglu", "--geglu", "--gelu-tanh", "--swiglu"])
def test_gates(flag: str) -> None:
    """Tests that every switch of a gated activation makes a third matrix, and only Megatron's own narrows the part."""
    shape = run_of(f"python pretrain_gpt.py {SIZES} {flag}").shape
    assert (shape.is_gated, shape.inner) == (True, 2688 if flag == "--swiglu" else 4096)
    assert run_of(f"python pretrain_gpt.py {SIZES} --attention-output-gate").shape.has_gated_attention


def test_mindspeeds_experts_and_stages() -> None:
    """Tests that dense first blocks, shared experts and blocks of every rank are read by MindSpeed's names."""
    experts = "--num-experts 64 --moe-router-topk 6 --moe-intermediate-size 512 --n-shared-experts 2"
    text = f"python pretrain_gpt.py {SIZES} {experts} --first-k-dense-replace 1 --pipeline-model-parallel-size 3"
    run = run_of(f"{text} --num-layer-list 2,3,3")
    assert run.shape.mixture is not None
    assert (run.shape.mixture.inner, run.shape.mixture.shared_inner, run.shape.mixture.dense_layers) == (512, 1024, 1)
    assert (run.stages, run.cut_by) == (("Ett", "ttt", "tttL"), ("--num-layer-list 2,3,3",))
    assert all(
        "is not 3 numbers of 1 or more with the sum 8" in run_of(f"{text} --num-layer-list {each}").notes.refusals[0]
        for each in ("2,3,4", "4,0,4", "4,4")
    )


@pytest.mark.parametrize(
    ("text", "source", "told"),
    [
        ("base_emb_dim: 2048\nici_fsdp_parallelism: 4", "base.yml", "base_emb_dim is MaxText's"),
        ("python3 -m maxtext.train base.yml --x 1", "train.sh", "maxtext.train is MaxText's"),
        ("model:\n  name: mpt\ndevice_train_microbatch_size: 4", "mpt.yaml", "is LLM-Foundry's"),
        ("actor_train:\n  strategy_args: {}", "roll.yaml", "actor_train is ROLL's"),
        ("sft_train: {strategy_args: {}}", "sft.yaml", "strategy_args is ROLL's"),
        ("actor: {backend: 'megatron:d4p1t1', mb_spec: {}}", "grpo.yaml", "mb_spec is AReaL's"),
        ("step_scheduler: {global_batch_size: 128}", "moonlight.yaml", "step_scheduler is NeMo Automodel's"),
        ("deepspeed --module openrlhf.cli.train_sft --max_len 2048", "sft.sh", "openrlhf is OpenRLHF's"),
        ("parallelism:\n  dp: 2\n  pp_engine: 1f1b", "nano.yaml", "pp_engine is nanotron's"),
        ("megatron_lm_config: {megatron_lm_pp_degree: 4}", "acc.yaml", "megatron_lm_config is Accelerate's"),
        ('{"pipeline_parallel_degree": 4, "virtual_pp_degree": 5}', "pre.json", "virtual_pp_degree is PaddleNLP's"),
        ("parallel_config: {pipeline_stage: 4, micro_batch_num: 8}", "run.yaml", "micro_batch_num is MindFormers's"),
        ("colossalai run train.py --pp 4", "run.sh", "colossalai is Colossal-AI's"),
        ("compute_environment: LOCAL_MACHINE\nbf16: true", "acc.yaml", "compute_environment is Accelerate's"),
        ("base_model: a/b\nsequence_len: 2048\nmicro_batch_size: 1", "qat.yaml", "sequence_len is Axolotl's"),
        ("dist_config: {name: fsdp2}\nmicro_batch_size: 1", "v1.yaml", "dist_config is LLaMA-Factory v1's"),
        ("actor_config: {tensor_model_parallel_size: 2}\nrl_config: {}", "grpo.yaml", "rl_config is MindSpeed-RL's"),
    ],
)
def test_foreign_trainers_are_refused_by_name(text: str, source: str, told: str) -> None:
    """Tests that a configuration of another trainer is named as such, and not half read."""
    with pytest.raises(ValueError, match=f"{source}: .*{told}.*, whose configurations are not read"):
        run_of(text, source=source, model="llama3-8b")


@pytest.mark.parametrize(
    "stated", ["pipeline_parallel_degree: 4", "pp_size: 8", "tp_degree: 2", "parallel: {pipeline_stages: 16}"]
)
def test_degrees_by_other_names_are_not_left_out(stated: str) -> None:
    """Tests that no run without the degree is audited where an unknown name states one, alone or beside Megatron's."""
    for text in (stated, f"{stated}\ntensor_model_parallel_size: 2"):
        with pytest.raises(ValueError, match="is a degree that is not known; put --tp, --pp and so on in its place"):
            run_of(text, source="run.yaml", model="llama3-8b")
    assert run_of("pp_size: 1", source="run.yaml", model="llama3-8b").notes.unknown == ["--pp-size 1"]


def test_what_only_the_cluster_can_answer_is_asked_for() -> None:
    """Tests that a flag whose value depends on a file is refused with the condition, and read once it is given."""
    text = f"PP=4\n[ -f many ] || PP=8\npython pretrain_gpt.py {SIZES} --pipeline-model-parallel-size $PP --save $DIR"
    told = (
        r"--pipeline-model-parallel-size: \$PP depends on \[ -f many \], which is not decided here; give --set PP=VALUE"
    )
    with pytest.raises(ValueError, match=told):
        run_of(text)
    given = read_arguments(text, source="train.sh", given={"PP": "8"})
    assert read_megatron(given, options={}, model=None).pipeline == 8
    for flag in ("--fp8-format", "--recompute-granularity", "--optimizer"):
        with pytest.raises(ValueError, match=f"{flag}: .X is not set in the script; give --set X=VALUE"):
            run_of(f"python pretrain_gpt.py {SIZES} {flag} $X")


def test_names_of_a_mapping_are_whole() -> None:
    """Tests that a mapping's unknown name is unknown, though argparse would take it for a longer flag."""
    assert run_of("mode: brief\nbf16: true\n", source="a.yaml", model="llama3-8b").notes.unknown == ["--mode brief"]


def test_more_tensor_parallelism_than_experts() -> None:
    """Tests that experts cut by tensor parallelism may be fewer than it, and whole ones are not read."""
    flags = {"num-layers": 8, "hidden-size": 4096, "num-attention-heads": 32, "vocab-size": 32000, "num-experts": 4,
             "tensor-model-parallel-size": 8, "seq-length": 4096, "max-position-embeddings": 4096,
             "micro-batch-size": 1}  # fmt: skip
    run = run_of(as_script(flags) + " --sequence-parallel --disable-bias-linear")
    assert not run.notes.refusals
    assert run.shape.mixture is not None
    assert (run.shape.mixture.experts, run.expert_tensor) == (32, 8)
    with pytest.raises(ValueError, match="is not read beside 4 experts"):
        run_of(as_script({**flags, "expert-tensor-parallel-size": 1}))


def test_commands_of_hugging_faces_trainers() -> None:
    """Tests that they are read where Megatron-LM trains with their names, and refused elsewhere."""
    flags = "--model_name_or_path Qwen/Qwen3-8B --per_device_train_batch_size 2 --cutoff_len 8192 --bf16"
    run = run_of(f"torchrun --nproc_per_node 8 train.py {flags} --tensor_model_parallel_size 4")
    assert (run.tensor, run.micro_batch, run.sequence, run.shape.name) == (4, 2, 8192, "qwen3-8b")
    with pytest.raises(ValueError, match="model_name_or_path: trained by Megatron-LM alone is read"):
        run_of(f"torchrun --nproc_per_node 8 train.py {flags}")
    with pytest.raises(ValueError, match=r"deepspeed = ds\.json: the model is not trained by Megatron-LM"):
        run_of(f"deepspeed train.py {flags} --tensor_model_parallel_size 4 --deepspeed ds.json")


def test_an_array_that_nobody_sets_behind_the_program() -> None:
    """Tests that flags which only the machine knows are named wherever they stand."""
    run = run_of('mapfile -t A < args.txt\ntorchrun pretrain_gpt.py "${A[@]}" --micro-batch-size 1', model="llama3-8b")
    assert [each.partition(" ")[0] for each in run.notes.unknown] == ["$A"]


@pytest.mark.parametrize(
    ("flags", "held"),
    [
        ("--bf16", 4),
        ("--bf16 --grad-reduce-in-bf16", 2),
        ("--bf16 --main-grads-dtype bf16", 2),
        ("--bf16 --main-grads-dtype fp32", 4),
        ("--fp16", 2),
        ("--fp16 --accumulate-allreduce-grads-in-fp32", 4),
    ],
)
def test_gradients_add_up_in_the_type_that_megatron_takes(flags: str, held: int) -> None:
    """Tests that gradients of bf16 are raised by themselves, and those of fp16 only where it is asked for."""
    run = run_of(f"torchrun --nproc_per_node 8 pretrain_gpt.py {flags}", model="llama3-8b")
    assert (run.gradient_bytes, run.sum_bytes) == (held, held)


def test_groups_of_queries_without_a_number() -> None:
    """Tests that the switch alone means one group, as Megatron's parser has it, where the flags are the model."""
    text = f"python pretrain_gpt.py {SIZES} --group-query-attention"
    assert run_of(text).shape.key_value_heads == 1
    assert run_of(f"{text} --num-query-groups 4").shape.key_value_heads == 4
    assert (
        run_of(
            "python pretrain_gpt.py --group-query-attention --micro-batch-size 1", model="llama3-8b"
        ).shape.key_value_heads
        == 8
    )
