"""Tests of profiles/configurations/argument_forms.py."""

import pytest

from profiles.configurations.argument_forms import Value, read_arguments
from tests.profiles.configurations.test_megatron_run import FLAGS, as_log, run_of, typed


@pytest.mark.parametrize(
    ("options", "stages"),
    [
        ({}, ["E" + "t" * 16, "t" * 16 + "L"]),
        ({"num_virtual_stages_per_pipeline_rank": "2"}, ["E" + "t" * 8, "t" * 8, "t" * 8, "t" * 8 + "L"]),
        ({"num_layers_per_virtual_pipeline_stage": "8"}, ["E" + "t" * 8, "t" * 8, "t" * 8, "t" * 8 + "L"]),
        ({"decoder_first_pipeline_num_layers": "14"}, ["E" + "t" * 14, "t" * 18 + "L"]),
        ({"decoder_first_pipeline_num_layers": "14", "decoder_last_pipeline_num_layers": "18"},
         ["E" + "t" * 14, "t" * 18 + "L"]),
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
        ({"nproc_per_node": "8", "pipeline_model_parallel_size": "16"},
         "8 devices (8 a node on one node, as nnodes is not stated) are not a multiple of tensor x context x pipeline "
         "= 16; use another number; what"),
        ({"nproc_per_node": "8", "nnodes": "3", "pipeline_model_parallel_size": "16"},
         "24 devices (8 a node on 3 nodes) are not"),
        ({"pipeline_model_parallel_size": "4", "decoder_first_pipeline_num_layers": "40"},
         "40 blocks on the first or last rank: the model has 32; give fewer"),
        ({"pipeline_model_parallel_size": "3", "decoder_first_pipeline_num_layers": "0"},
         "0, 16, 16 blocks per rank leave one without any; give each one; use --pipeline-model-parallel-layout"),
        ({"pipeline_model_parallel_size": "2", "decoder_last_pipeline_num_layers": "32"},
         "0, 32 blocks per rank leave one without any"),
        ({"global_batch_size": "3", "micro_batch_size": "2"}, "not a multiple of micro_batch_size"),
        ({"global_batch_size": "6", "pipeline_model_parallel_size": "4", "num_virtual_stages_per_pipeline_rank": "2"},
         "6 microbatches are not a multiple of 4 ranks"),
        ({"num_virtual_stages_per_pipeline_rank": "2"}, "2 stages per rank want 2 ranks or more; leave out"),
        ({"pipeline_model_parallel_layout": "Et*16|t*16L"}, "pipeline_model_parallel_size = 1: 2 stages per rank"),
        ({"pipeline_model_parallel_size": "2", "num_virtual_stages_per_pipeline_rank": "2",
          "no_overlap_p2p_communication": True}, "2 stages per rank want 3 ranks or more without overlap"),
        ({"recompute_granularity": "full"}, "needs --recompute-method"),
        ({"pipeline_model_parallel_size": "2", "num_layers_per_virtual_pipeline_stage": "5"}, "stages of 5"),
        ({"num_layers_per_virtual_pipeline_stage": "0"}, "= 0 divides no blocks; leave it out"),
        ({"pipeline_model_parallel_size": "2", "pipeline_model_parallel_layout": "E(t*8|)*3t*8L",
          "num_layers_per_virtual_pipeline_stage": "8"}, "both given"),
        ({"pipeline_model_parallel_size": "2", "decoder_first_pipeline_num_layers": "16",
          "num_layers_per_virtual_pipeline_stage": "8"}, "give --num-virtual-stages-per-pipeline-rank in its place"),
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


@pytest.mark.parametrize(
    ("pattern", "dense"),
    [
        ("1", 0),
        ("[0]*3+[1]*58", 3),
        ("[0]+[1]*26", 1),
        ("([0]*1+[1]*3)", 1),
        ("[0,1,1,1]", 1),
        ("0 1 1 1", 1),
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
    "line",
    [
        '{{"log":"{}\\n","stream":"stdout"}}',
        '{{"log":"{}\\n"}}',
        '{{"log":"{}\\r\\n", "stream":"stdout"}}',
        '{{"log": "\\u001b[32m{}\\u001b[0m\\n" , "stream": "stdout"}}',
        "{}",
        "\x1b[32m{}\x1b[0m",
        "7: {}",
        "\x1b[36m(W pid=1)\x1b[0m {} [repeated 15x across cluster]",
    ],
)
def test_decorated_logs(line: str) -> None:
    """Tests that colours, and what launchers put before and behind every line, are no values."""
    text = as_log(FLAGS)
    decorated = "\n".join(line.format(each) for each in text.splitlines())
    assert read_arguments(decorated, source="a.log").values == read_arguments(text, source="a.log").values


def test_what_a_tracker_keeps_is_a_log() -> None:
    """Tests that the configuration that Weights & Biases keeps of a run is read as its block of arguments."""
    names = {name.replace("-", "_"): value for name, value in FLAGS.items()}
    sections = "".join(f"{name}:\n  desc: null\n  value: {value}\n" for name, value in names.items())
    read = read_arguments(f"wandb_version: 1\n_wandb:\n  value: {{}}\n{sections}", source="config.yaml")
    assert (read.kind, read.values) == ("log", names)


def test_logs_of_several_runs() -> None:
    """Tests that ranks may repeat a block, and that blocks of two runs are refused, and blocks that are cut off."""
    text = as_log(FLAGS)
    other = as_log({**FLAGS, "tensor-model-parallel-size": "8"})
    assert read_arguments(f"{text}\n{text}", source="a.log").values == read_arguments(text, source="a.log").values
    with pytest.raises(ValueError, match="tensor_model_parallel_size is 2 in one block and 8 in another; give one run"):
        read_arguments(f"{text}\n{other}", source="a.log")
    part = as_log({name: value for name, value in FLAGS.items() if not name.startswith("pipeline")})
    with pytest.raises(ValueError, match="no pipeline_model_parallel_size, so it is a part of one; give it whole"):
        read_arguments(part, source="a.log")


def test_logs_say_virtual_stages_twice() -> None:
    """Tests that what Megatron makes of blocks per virtual stage, and logs beside it, is no second flag."""
    plain = {name: value for name, value in FLAGS.items() if not name.endswith("layout")}
    cut = {**plain, "num-layers-per-virtual-pipeline-stage": "4", "virtual-pipeline-model-parallel-size": "2"}
    run = run_of(as_log({**cut, "num-layers": "32"}), source="train.log")
    assert (run.chunks, run.notes.refusals) == (2, [])


def test_logs_with_a_list_of_one() -> None:
    """Tests that whole numbers as DeepSpeed's fork logs them are read, and experts that differ by block refused."""
    stated = {**FLAGS, "deepspeed": "True", "zero-stage": "1.0"}
    run = run_of(as_log({**stated, "num-experts": "[1]"}), source="a.log")
    assert (run.shape.mixture, run.shards) == (None, "optimizer")
    with pytest.raises(ValueError, match=r"--num-experts: '\[64, 128\]' is not a whole number"):
        run_of(as_log({**stated, "num-experts": "[64, 128]"}), source="a.log")
