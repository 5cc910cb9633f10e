"""Runs of torchtitan and DeepSpeed by their configurations."""

from typing import Any

import pytest

from profiles.configurations.flag_meanings import READ
from profiles.configurations.python_recipe import CLASS
from profiles.configurations.run_configuration import Recomputation, RunConfiguration
from profiles.configurations.torchtitan_run import _Fields, read_titan_document, read_torchtitan

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


def test_checkpoints_of_a_split_backward_are_not_counted() -> None:
    """Tests that whole checkpoints under ZBVZeroBubble are named, which torch computes again for each layer in W."""
    (note,) = (each for each in titan(pipeline_parallel_schedule="ZBVZeroBubble").notes.not_counted if "full" in each)
    assert note.startswith("activation_checkpoint.mode = full: I repeats a block, and so does W")
    plain = TITAN.replace('mode = "full"', 'mode = "none"')
    assert titan(plain, pipeline_parallel_schedule="ZBVZeroBubble").notes.not_counted == ["compile.enable = True"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"pipeline_parallel_layers_per_stage": 40}, "makes 1 stages on 4 ranks"),
        ({"pipeline_parallel_microbatch_size": 3}, "no multiple of the microbatch's 3"),
        ({"num_pp_microbatches": 9}, "9 microbatches are not a multiple of their 2 rounds"),
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
        ("[parallelism]\ndata_parallel_shard_degree = 8", "without a pipeline replicas shard weights"),
        ("[training]\nlocal_batch_size = 0", "not a whole number from 1"),
        ("[parallelism]\nmodule_fqns_per_model_part = [[3]]", "not a list of lists of names"),
        ('[activation_checkpoint]\nmode = "selectiv"', "mode = 'selectiv': is not known; give one of none, selective"),
        ('[activation_checkpoint]\nmode = "Full"', "mode = 'Full': is not known"),
        ('[model]\nname = "llama3"\nflavor = "70b"', "flavor = '70b': write 'llama3' and '70B'"),
        ('[model]\nname = "Llama3"\nflavor = "70B"', "name = 'Llama3', model.flavor = '70B': write 'llama3' and"),
        ('[parallelism]\nenable_async_tensor_parallel = "yes"', "parallel = 'yes': is text, not true or false"),
        ('[parallelism]\ndisable_loss_parallel = "tru"', "parallel = 'tru': is text, not true or false"),
        ('[training]\ndeterministic = "On"', "deterministic = 'On': is text, not true or false"),
        ('[parallelism]\npipeline_parallel_degree = "4"', "degree = '4': is text; write the number without quotes"),
        (
            "[parallelism]\npipeline_parallel_degre = 4\ndata_parallel_shard_degree = 8",
            "pipeline_parallel_degre = 4: is not known; write parallelism.pipeline_parallel_degree, or leave it out",
        ),
        ("[parallelism]\ntensor_parallel_degree = -1", "tensor_parallel_degree = -1: is not a whole number from 1 on"),
        (
            '[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_split_points = ["layer.9"]',
            r"split_points = \['layer.9'\]: are not blocks in order",
        ),
    ],
)
def test_what_of_torchtitan_is_not_understood(text: str, told: str) -> None:
    """Tests that a refusal names the field and its value."""
    model = None if "flavor" in text else "llama3-8b"
    with pytest.raises(ValueError, match=told):
        read_torchtitan(read_titan_document(text, source="a.toml"), model=model, devices=None)


@pytest.mark.parametrize("text", [TITAN, TITAN.replace("local_batch_size = 8", "num_tokens_per_train_step = 65536")])
def test_names_that_are_asked_for_are_known(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that the names that slips are compared with are all that a reading asks for."""
    asked: set[str] = set()
    get = _Fields.get

    def noted(fields: _Fields, name: str, otherwise: Any = None) -> Any:
        asked.add(name)
        return get(fields, name, otherwise)

    monkeypatch.setattr(_Fields, "get", noted)
    titan(text)
    own = {name for name in asked if not name.startswith("_") and not name.endswith(CLASS)}
    assert "parallelism.pipeline_parallel_degree" in own
    assert own <= {*READ["torchtitan"]}


def test_a_batch_of_two_releases() -> None:
    """Tests that a batch in samples is unknown to the release that counts tokens."""
    run = titan(TITAN.replace("steps = 100", "global_batch_size = 64\nnum_tokens_per_train_step = 65536"))
    assert "training.global_batch_size = 64" in run.notes.unknown


def test_other_recomputation() -> None:
    """Tests that a budget of memory, stated or by its class, is named as not counted, and a class of others refused."""
    notes = titan(TITAN.replace('"full"', '"memory_budget"')).notes
    assert "activation_checkpoint.mode = memory_budget: estimates keep all" in notes.not_counted
    document = read_titan_document(
        TITAN.replace('mode = "full"', f'{CLASS} = "MemoryBudgetAC.Config"'), source="a.toml"
    )
    assert (
        read_torchtitan(document, model=None, devices=None)
        .notes.not_counted[-1]
        .endswith("memory_budget: estimates keep all")
    )
    document["activation_checkpoint"][CLASS] = "OtherAC.Config"
    with pytest.raises(ValueError, match=r"mode = 'OtherAC.Config': is not known; give one of none, selective, full"):
        read_torchtitan(document, model=None, devices=None)


OF_2024 = """
[training]
batch_size = 12
seq_len = 4096
tensor_parallel_degree = 2
data_parallel_degree = 2
[experimental]
pipeline_parallel_degree = 3
pipeline_parallel_schedule = "interleaved_1f1b"
enable_async_tensor_parallel = true
"""


def of_2024(changed: str = "", to: str = "") -> RunConfiguration:
    document = read_titan_document(OF_2024.replace(changed, to), source="train.toml")
    return read_torchtitan(document, model="llama3-8b", devices=None)


def test_names_of_2024() -> None:
    """Tests that degrees in the sections of 2024 are read with that release's cut and number of microbatches."""
    run = of_2024()
    assert (run.tensor, run.pipeline, run.data, run.chunks) == (2, 3, 2, 2)
    assert [stage.count("t") for stage in run.stages] == [5, 6, 6, 5, 5, 5]
    assert (run.micro_batch, run.num_microbatches) == (2, 6)  # as many as stages
    assert any("enable_async_tensor_parallel" in each for each in run.notes.not_counted)
    run = of_2024("[experimental]", "[experimental]\npipeline_parallel_microbatches = 12")
    assert (run.micro_batch, run.num_microbatches) == (1, 12)
    points = 'pipeline_parallel_split_points = "layers.4,layers.9"\npipeline_parallel_schedule = "1f1b"'
    run = of_2024('pipeline_parallel_schedule = "interleaved_1f1b"', points)
    assert run.stages == ("Etttt", "ttttt", 23 * "t" + "L")


def test_names_of_releases_that_are_gone() -> None:
    """Tests that real names of 0.2.2 and of July 2024 are taken for no slips, nor for places where stages begin."""
    told = 'pipeline_parallel_split_mode = "manual"\npipeline_parallel_schedule = '
    run = of_2024("pipeline_parallel_schedule = ", told)
    assert run == of_2024()
    run = titan(pipeline_parallel_expert_parallel_overlap=True)
    assert "parallelism.pipeline_parallel_expert_parallel_overlap = True" in run.notes.not_counted


@pytest.mark.parametrize(
    ("changed", "to", "told"),
    [
        ("batch_size = 12", "batch_size = 8", "local_batch_size = 8 is no multiple of its 6 microbatches"),
        ("degree = 3", "degree = 17", "34 stages are too many for 32 blocks"),
        (
            "degree = 3",
            'degree = 2\npipeline_parallel_split_points = ["layers.9"]',
            "2 parts: the schedule needs two or more on each of 2 ranks",
        ),
    ],
)
def test_what_did_not_start_in_2024(changed: str, to: str, told: str) -> None:
    """Tests that batches, stages and points that do not divide are noted as torchtitan's refusals."""
    assert told in of_2024(changed, to).notes.refusals[0]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[training]\nbatch_size = 4\nlocal_batch_size = 4", "is local_batch_size today, which is stated as well"),
        ("[training]\ntensor_parallel_degree = 4\n[parallelism]\ntensor_parallel_degree = 4", "stated as well"),
        ("[experimental]\npipeline_parallel_split_points = ['layers.9', 'layers.4']", "are not blocks in order"),
        ("[experimental]\npipeline_parallel_split_points = 3", "are not blocks in order"),
        ("parallelism = 3\n[experimental]\npipeline_parallel_degree = 2", "which is stated as well"),
        (
            "[parallelism]\npipeline_parallel_degree = 2\nmodule_fqns_per_model_part = 3",
            "is not a list of lists of names",
        ),
        (
            "[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_microbatches = 2\n"
            "pipeline_parallel_microbatch_size = 1",
            "microbatches: is pipeline_parallel_microbatch_size today",
        ),
        ("[actor]\ntensor_parallel_degree = 4", "actor.tensor_parallel_degree: is of another program.s section"),
    ],
)
def test_names_of_two_releases(text: str, told: str) -> None:
    """Tests that values by two names, points that cut nothing, and degrees in unknown sections are refused."""
    with pytest.raises(ValueError, match=told):
        read_torchtitan(read_titan_document(text, source="train.toml"), model="llama3-8b", devices=None)


def of_2026(*, ranks: int = 2, **training: int) -> RunConfiguration:
    """A run whose microbatches are counted in tokens."""
    document = {
        "parallelism": {"pipeline_parallel_degree": ranks, "num_pp_microbatches": 6, "data_parallel_shard_degree": 1},
        "training": {"max_context_length": 4096, **training},
    }
    return read_torchtitan(document, model="llama3-8b", devices=None)


def test_microbatches_by_their_tokens() -> None:
    """Tests that tokens of no whole samples are told, samples are no longer than a microbatch, and steps are whole."""
    assert of_2026().micro_batch == 4
    assert "num_tokens_per_microbatch_per_dp_rank = 16384 (torchtitan's own)" in str(of_2026().notes.assumed)
    odd = of_2026(num_tokens_per_microbatch_per_dp_rank=10_000)
    assert "a microbatch of 10000 tokens is 2 samples of 4096" in odd.notes.assumed
    assert of_2026(num_tokens_per_microbatch_per_dp_rank=2048).sequence == 2048
    steps = of_2026(num_tokens_per_microbatch_per_dp_rank=4096, num_tokens_per_train_step=30_000)
    assert steps.notes.refusals[0].startswith("training.num_tokens_per_train_step = 30000 is not a multiple of 24576")


def test_no_microbatches_without_a_pipeline() -> None:
    """Tests that a rank without a pipeline takes its samples at once, in both releases."""
    assert of_2026(ranks=1).num_microbatches == 1
    alone = read_torchtitan({"training": {"local_batch_size": 8}}, model="llama3-8b", devices=1)
    assert (alone.micro_batch, alone.num_microbatches) == (8, 1)


def test_devices_that_cannot_share_experts() -> None:
    """Tests that an expert degree has as many devices of one copy as it needs, or is refused as torchtitan does."""
    document = {"parallelism": {"pipeline_parallel_degree": 2, "expert_parallel_degree": 8}}
    assert read_torchtitan(document, model="qwen3-30b-a3b", devices=None).devices == 16
    refusals = read_torchtitan(document, model="qwen3-30b-a3b", devices=8).notes.refusals
    assert refusals[0].startswith("4 devices that hold the same layers are not a multiple of the 8")
    document["parallelism"] |= {"data_parallel_replicate_degree": 2, "data_parallel_shard_degree": 4}
    assert "multiple of the 8" in str(read_torchtitan(document, model="qwen3-30b-a3b", devices=16).notes.refusals)


@pytest.mark.parametrize(("batch", "is_refused"), [(8, True), (60, True), (32, False), (64, False), (-1, False)])
def test_a_global_batch_of_parts_of_steps(batch: int, is_refused: bool) -> None:
    """Tests that what is no whole number of accumulation steps is refused, as torchtitan does (2 pipelines of 8)."""
    text = TITAN.replace("[training]", f"[training]\nglobal_batch_size = {batch}")
    wanted = [f"training.global_batch_size = {batch} is not a multiple of 16, which all pipelines take at a time"]
    assert titan(text).notes.refusals == (wanted if is_refused else [])


def test_degrees_that_divide_neither_heads_nor_tokens() -> None:
    """Tests that such degrees are refused as torchtitan does, and states of another optimizer are assumed."""
    assert "does not divide the 32 heads" in titan(tensor_parallel_degree=3).notes.refusals[0]
    assert "seq_len = 4096 is not a multiple of 12" in titan(context_parallel_degree=3).notes.refusals[0]
    assumed = titan(TITAN + '[optimizer]\nname = "SGD"\n').notes.assumed
    assert "states of Adam, though the optimizer is SGD" in assumed


def test_a_v_has_two_parts_on_each_rank() -> None:
    """Tests that other numbers of parts are refused, as torchtitan does."""
    blocks = [f"layers.{number}" for number in range(32)]
    parts = [["tok_embeddings", *blocks[:11]], blocks[11:22], blocks[22:], ["norm", "output"]]
    run = titan(module_fqns_per_model_part=parts, pipeline_parallel_schedule="ZBVZeroBubble")
    assert run.notes.refusals == ["module_fqns_per_model_part: a V has two parts on each of 4 ranks; state so many"]


def test_a_table_overrules_the_order() -> None:
    """Tests that a table's rows are read by rank, and that its schedule says how many stages a rank has."""
    text = TITAN.replace("[model]", '_table = "0F0, 0B0,\\n1F0,1B0\\n"\n[model]').replace(
        "= 4\npipeline", "= 2\npipeline"
    )
    run = titan(text, pipeline_parallel_schedule="PipelineScheduleSingle", pipeline_parallel_schedule_csv="s.csv")
    assert (run.order, run.chunks, run.in_v) == ("table", 1, False)
    assert run.rows == (("0F0", "0B0"), ("1F0", "1B0"))
    names = ["tok_embeddings", *(f"layers.{number}" for number in range(32)), "norm", "output"]
    parts = {"module_fqns_per_model_part": [names[:9], names[9:]], "pipeline_parallel_schedule_csv": "s.csv"}
    run = titan(text, pipeline_parallel_schedule="PipelineScheduleMulti", **parts)  # as `export torchtitan` writes it
    assert (len(run.stages), run.chunks, run.notes.refusals) == (2, 1, [])
    with pytest.raises(ValueError, match="pipeline_parallel_schedule_csv: has 2 rows for 4 ranks; give a row per rank"):
        titan(text, pipeline_parallel_degree=4, pipeline_parallel_schedule_csv="s.csv")
    with pytest.raises(ValueError, match="'PipelineScheduleMulti': is not supported; use 1F1B"):
        titan(text, pipeline_parallel_schedule="PipelineScheduleMulti")


def test_a_schedule_needs_a_pipeline() -> None:
    """Tests that one rank has one stage, whatever schedule is stated, as torchtitan runs it."""
    run = titan(pipeline_parallel_degree=1, data_parallel_shard_degree=1)
    assert (run.stages, run.order, run.notes.refusals) == (("E" + "t" * 32 + "L",), "1F1B", [])


def test_experts_are_shared_by_no_dense_model() -> None:
    """Tests that an expert degree is named where the model has no experts, and has to divide the devices as always."""
    run = titan(expert_parallel_degree=2)
    assert "parallelism.expert_parallel_degree = 2: the model has no experts" in run.notes.not_counted
    assert run.experts is None
    assert any("that share their experts" in each for each in titan(expert_parallel_degree=7).notes.refusals)
