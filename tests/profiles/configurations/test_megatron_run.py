"""Megatron-LM's arguments in their three forms, and the run that they tell."""

import json

import pytest

from profiles.configurations.argument_forms import ReadArguments, Value, read_arguments
from profiles.configurations.flag_meanings import meaning_of
from profiles.configurations.megatron_layout import layout_refusals, written_out
from profiles.configurations.megatron_run import read_megatron
from profiles.configurations.run_configuration import Recomputation, RunConfiguration

FLAGS = {
    "num-layers": "12",
    "hidden-size": "1024",
    "num-attention-heads": "16",
    "vocab-size": "50000",
    "seq-length": "2048",
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
        assert (run.shape.blocks, run.shape.hidden, run.shape.vocabulary) == (12, 1024, 50048)
        assert not run.notes.refusals
        assert not run.notes.unknown


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
        ("--no-use-flash-attn --deepspeed", False),
    ],
)
def test_attention_is_fused_or_not(flags: str, is_fused: bool) -> None:
    """Tests that a backend, plain layers or Megatron-DeepSpeed's default say whether scores leave the kernel."""
    run = run_of(as_script(FLAGS) + " " + flags)
    assert (run.fused_attention, run.notes.unknown, run.notes.not_counted) == (is_fused, [], [])


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
  ffn_hidden_size: 5632
  num_attention_heads: 16
  num_query_groups: 4
  activation: fast-swiglu
  sequence_parallel: true
  activations_checkpoint_granularity: full
  activations_checkpoint_method: block
  activations_checkpoint_num_layers: 3
  optim: {name: distributed_fused_adam, lr: 1e-4}
  tokenizer: {library: megatron, model: null}
"""
    run = run_of(text, source="gpt.yaml")
    assert (run.tensor, run.pipeline, run.data, run.num_microbatches, run.sequence) == (4, 2, 4, 16, 2048)
    assert (run.shape.key_value_heads, run.shape.is_gated, run.shape.inner) == (4, True, 5632)
    assert (run.recompute, run.shards, run.sequence_parallel) == (Recomputation(blocks=3), "optimizer", True)
    assert run.notes.unknown == []


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
        ("a: &a {}\nb: &b {x: *a, y: *a}\nc: {x: *b, y: *b}", "a.yaml", "the model is not stated"),
        ('{"pipeline_model_parallel_layout": [["what"]]}', "a.json", "has 'what'; write embedding"),
    ],
)
def test_files_that_are_none(text: str, source: str, told: str) -> None:
    """Tests that other files are refused by their names, however large or nested."""
    with pytest.raises(ValueError, match=told):
        run_of(text, source=source)


@pytest.mark.parametrize(
    ("layout", "stages"),
    [
        ("Et|tL", ["Et", "tL"]),
        ("E,t*3|(tt|)*2,m|L", ["Ettt", "tt", "tt", "m", "L"]),
        ("E(t|)*3L", ["Et", "t", "t", "L"]),
        ("Et*2|(t*2|)*2,tL", ["Ett", "tt", "tt", "tL"]),
        ("Et(|tt)*2|L", ["Et", "tt", "tt", "L"]),
    ],
)
def test_layouts_written_out(layout: str, stages: list[str]) -> None:
    """Tests that repetitions are Megatron's, commas are for the eye."""
    assert written_out(layout) == stages


def test_a_layout_without_end() -> None:
    """Tests that repetitions are counted before they are written out."""
    with pytest.raises(ValueError, match="999,999,998 letters"):
        written_out("E(t|)*999999999L")


@pytest.mark.parametrize(
    ("layout", "told"),
    [
        ("Ett|tL", "has 3 blocks"),
        ("Ett|tt|L", "not a multiple of 2 ranks"),
        ("tt|ttL", "begins with 't'"),
        ("Ett|tt", "ends with 't'"),
        ("Ett|xttL", "has 'x'"),
        ("Ettm|ttL", "behind multi-token"),
        ("Ett|ttmL", "mtp_num_layers is 0"),
        ("Ett|tm|m|tL", "in 2 stages"),
        ("Ett|tm|t|L", "not the last of its rank"),
    ],
)
def test_what_megatron_does_not_take(layout: str, told: str) -> None:
    """Tests that each of Megatron's own checks of a layout is told with its value."""
    found = list(layout_refusals(written_out(layout), blocks=4, predicting=0, ranks=2))
    assert any(told in each for each in found), found


@pytest.mark.parametrize(
    ("options", "stages"),
    [
        ({}, ["E" + "t" * 16, "t" * 16 + "L"]),
        ({"num_virtual_stages_per_pipeline_rank": "2"}, ["E" + "t" * 8, "t" * 8, "t" * 8, "t" * 8 + "L"]),
        ({"num_layers_per_virtual_pipeline_stage": "8"}, ["E" + "t" * 8, "t" * 8, "t" * 8, "t" * 8 + "L"]),
        ({"decoder_first_pipeline_num_layers": "14"}, ["E" + "t" * 14, "t" * 18 + "L"]),
        ({"decoder_last_pipeline_num_layers": "12", "num_virtual_stages_per_pipeline_rank": "2"},
         ["E" + "t" * 10, "t" * 6, "t" * 10, "t" * 6 + "L"]),
        ({"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True},
         ["E" + "t" * 16, "t" * 16 + "L"]),
        ({"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True,
          "num_virtual_stages_per_pipeline_rank": "1"}, ["E" + "t" * 16, "t" * 16 + "L"]),
    ],
)  # fmt: skip
def test_cuts_without_a_layout(options: dict[str, Value], stages: list[str]) -> None:
    """Tests that Megatron's other ways to cut give the stages that it builds."""
    assert list(typed(pipeline_model_parallel_size="2", **options).stages) == stages


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"pipeline_model_parallel_size": "3"}, "32 blocks do not divide by 3 stages"),
        ({"tensor_model_parallel_size": "64"}, "does not divide the 32 heads"),
        ({"world_size": "6", "pipeline_model_parallel_size": "4"}, "6 devices are not a multiple"),
        ({"global_batch_size": "3", "micro_batch_size": "2"}, "not a multiple of micro_batch_size"),
        ({"global_batch_size": "6", "pipeline_model_parallel_size": "4", "num_virtual_stages_per_pipeline_rank": "2"},
         "6 microbatches are not a multiple of 4 ranks"),
        ({"num_virtual_stages_per_pipeline_rank": "2"}, "2 stages per rank want 2 ranks or more; leave out"),
        ({"pipeline_model_parallel_layout": "Et*16|t*16L"}, "pipeline_model_parallel_size = 1: 2 stages per rank"),
        ({"pipeline_model_parallel_size": "2", "num_virtual_stages_per_pipeline_rank": "2",
          "no_overlap_p2p_communication": True}, "2 stages per rank want 3 ranks or more without overlap"),
        ({"recompute_granularity": "full"}, "needs --recompute-method"),
        ({"pipeline_model_parallel_size": "2", "num_layers_per_virtual_pipeline_stage": "5"}, "stages of 5"),
        ({"pipeline_model_parallel_size": "2", "pipeline_model_parallel_layout": "E(t*8|)*3t*8L",
          "num_layers_per_virtual_pipeline_stage": "8"}, "both given"),
    ],
)  # fmt: skip
def test_what_does_not_start(options: dict[str, Value], told: str) -> None:
    """Tests that what Megatron would refuse is told, with the run's other parts read all the same."""
    run = typed(**options)
    assert any(told in each for each in run.notes.refusals), run.notes.refusals
    assert run.stages == ()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"hybrid_attention_ratio": "0.1"}, "--hybrid-attention-ratio: a hybrid"),
        ({"use_megatron_fsdp": True}, "--use-megatron-fsdp: weights"),
        ({"micro_batch_size": "two"}, "--micro-batch-size: 'two' is not a whole number"),
        ({"global_batch_size": "$BATCH"}, r"--set BATCH=VALUE"),
        ({"tensor_model_parallel_size": True}, "has no value"),
        ({"pipeline_model_parallel_size": "0"}, "give 1 or more"),
        ({"recompute_granularity": "some"}, "give full or selective"),
        (
            {"pipeline_model_parallel_size": "2", "pipeline_model_parallel_layout": "Et*16||t*8|t*8L"},
            "stage 1 is empty",
        ),
    ],
)
def test_what_is_not_understood(options: dict[str, Value], told: str) -> None:
    """Tests that a refusal names flag, value and remedy."""
    with pytest.raises(ValueError, match=told):
        typed(**options)


def test_every_flag_has_a_meaning() -> None:
    """Tests that flags are read, known not to matter, not counted, or named as unknown; and what is taken is listed."""
    script = as_script({**FLAGS, "lr": "1e-4", "moe-new-thing": "3", "fp8-param-gather": ""})
    run = run_of(f"{script} --overlap-everything stray")
    assert run.notes.unknown == ["--moe-new-thing 3", "--overlap-everything stray"]
    assert any("--fp8-param-gather" in each for each in run.notes.not_counted)
    assert typed().notes.assumed == [
        "devices = 1 (one pipeline)",
        "micro_batch_size = 1",
        "global_batch_size = 16 (16 microbatches per rank)",
        "seq_length = 8192",
        "bf16",
    ]
    assert meaning_of("lr_decay_style") == meaning_of("save_interval") == "irrelevant"
    assert meaning_of("cuda_graph_impl") == "not counted"


def test_a_log_takes_its_defaults_for_nothing() -> None:
    """Tests that what a log prints as off or absent is not told as a flag."""
    run = run_of(as_log({**FLAGS, "some-new-thing": "False",
                         "other-new-thing": "None", "third-thing": "7"}), source="train.log")  # fmt: skip
    assert run.notes.unknown == ["--third-thing 7"]


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


@pytest.mark.parametrize(
    ("pattern", "dense"),
    [
        ("1", 0),
        ("[0]*3+[1]*58", 3),
        ("[0]+[1]*26", 1),
        ("([0]*1+[1]*3)", 1),
        ("[0,1,1,1]", 1),
        ("[0,1]*24", None),
        ("2", None),
    ],
)
def test_where_experts_are(pattern: str, dense: int | None) -> None:
    """Tests that a pattern of blocks with experts is read where they are all but the first, and refused elsewhere."""
    options: dict[str, Value] = {
        "num_layers": "4", "hidden_size": "256", "num_attention_heads": "8", "num_experts": "16", "vocab_size": "1000",
        "moe_layer_freq": pattern, "expert_model_parallel_size": "8", "tensor_model_parallel_size": "2",
        "expert_tensor_parallel_size": "1",
    }  # fmt: skip
    if dense is None:
        with pytest.raises(ValueError, match="--moe-layer-freq"):
            typed(None, **options)
        return
    run = typed(None, **options)
    assert run.shape.mixture is not None
    assert run.shape.mixture.dense_layers == dense
    assert (run.experts, run.data) == (8, 4)
    assert run.notes.assumed[0] == "devices = 8 (4 pipelines)"


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
        ("python run.py --decoder-num-layers 4", "an encoder beside a decoder"),
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
    assert run_of(text, model="llama3-8b").shape.name == "llama3-8b"


def test_names_of_other_trainers_of_the_family() -> None:
    """Tests that gpt-neox's and Megatron-DeepSpeed's names are read as Megatron's."""
    neox = {"pipe-parallel-size": 2, "model-parallel-size": 2, "train_micro_batch_size_per_gpu": 4,
            "checkpoint-activations": True, "num-layers": 4, "hidden-size": 256, "num-attention-heads": 4,
            "gradient_accumulation_steps": 8, "num-kv-heads": 2}  # fmt: skip
    run = run_of(json.dumps(neox).replace("}", ', # as there\n "norm": "rms",}'), source="20B.yml")
    assert (run.num_microbatches, run.shape.key_value_heads) == (8, 2)
    assert (run.pipeline, run.tensor, run.micro_batch, run.recompute) == (2, 2, 4, Recomputation())
    run = run_of("python run.py --zero-stage 2 --activations-checkpoint-method uniform --num-gpus 1", model="llama3-8b")
    assert (run.shards, run.recompute) == ("gradients", Recomputation())


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
