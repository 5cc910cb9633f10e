"""What a profile assumes, as other programs are told it; what they cannot be told is refused."""

import json
from dataclasses import replace
from typing import Any

import pytest

from planner.export import deepspeed, megatron, torchtitan
from planner.export.looped_pipelines import as_looped
from planner.export.stated_assumptions import told_in_notes, unstated_note
from planner.export.targets import TARGETS
from planner.plan import Plan, Stage
from planner.problem import Problem
from profiles.assumptions import Assumptions
from profiles.degrees import Degrees
from profiles.model_profile import RecomputeBytes, RecomputeTime, WidthBytes
from tests.planner.export.test_targets import cut, language_model, parser_file


def assuming(**stated: Any) -> Problem:
    """A language model whose profile states so much, with layers of width 1 and 2 on four devices."""
    problem = language_model(num_devices=4)
    layers = tuple(
        replace(
            layer,
            costs=(*layer.costs, *(replace(cost, width=2) for cost in layer.costs)),
            wider=(WidthBytes(width=2, state_bytes=layer.state_bytes, stash_bytes=layer.stash_bytes),),
        )
        for layer in problem.profile.layers
    )
    profile = replace(problem.profile, layers=layers, assumptions=Assumptions(**stated))
    return replace(problem, profile=profile, options=replace(problem.options, max_width=2))


def grouped(problem: Problem) -> Plan:
    """Two stages on two devices each."""
    names = [layer.name for layer in problem.profile.layers]
    stages = tuple(
        Stage(layers=tuple(part), replicas=(devices,))
        for part, devices in ((names[:4], ("d0", "d1")), (names[4:], ("d2", "d3")))
    )
    return as_looped(problem, Plan(problem=problem.reference(), stages=stages, schedule={}), has_widths=True)


def single(problem: Problem, *, replicas: int = 1, shard: str = "none") -> Plan:
    """Two stages of single devices."""
    plan = cut(problem, [4, 5], "0 1")
    stages = tuple(
        replace(stage, replicas=tuple((f"d{number + 2 * r}",) for r in range(replicas)), shard=shard)
        for number, stage in enumerate(plan.stages)
    )
    return as_looped(problem, replace(plan, stages=stages))


PLAIN = {words[0] for words in megatron.make_megatron_job(assuming(), grouped(assuming())).arguments}


def flags_of(problem: Problem, plan: Plan) -> list[tuple[str, ...]]:
    """What stands beside the flags of a profile that states nothing."""
    job = megatron.make_megatron_job(problem, plan)
    return [words for words in job.arguments if words[0] not in PLAIN]


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({}, []),
        ({"sequence_parallel": True}, [("--sequence-parallel",)]),
        ({"sequence_parallel": False}, []),
        ({"precision": "bf16", "gradients": "fp32"}, [("--bf16",), ("--accumulate-allreduce-grads-in-fp32",)]),
        ({"precision": "fp32", "gradients": "fp32"}, []),
        ({"precision": "fp16", "gradients": "fp16"}, [("--fp16",)]),
        ({"precision": "fp8"}, [("--bf16",), ("--fp8-format", "hybrid"), ("--fp8-recipe", "tensorwise")]),
        ({"precision": "fp8_mx"}, [("--bf16",), ("--fp8-format", "e4m3"), ("--fp8-recipe", "mxfp8")]),
        ({"precision": "nvfp4"}, [("--bf16",), ("--fp4-format", "e2m1"), ("--fp4-recipe", "nvfp4")]),
        ({"attention": "flash"}, [("--attention-backend", "flash")]),
        ({"attention": "unfused"}, [("--attention-backend", "unfused")]),
        ({"fused_loss": True}, [("--cross-entropy-loss-fusion",)]),
        ({"fused_loss": False}, []),
        ({"sequence_length": 4096}, [("--seq-length", "4096")]),
        ({"context_parallel": 1, "distributed_optimizer": False}, []),
        ({"distributed_optimizer": True, "selective_modules": ("core_attn",)}, []),
        (
            {"sequence_parallel": True, "expert_parallel": True},
            [("--sequence-parallel",), ("--expert-model-parallel-size", "2"), ("--expert-tensor-parallel-size", "1")],
        ),
        ({"expert_parallel": False}, [("--expert-tensor-parallel-size", "2")]),
        ({"sequence_parallel": True, "hidden_exchanges": True}, [("--sequence-parallel",), ("--tp-comm-overlap",)]),
    ],
    ids=str,
)
def test_megatron_is_told_by_its_flags(stated: dict[str, Any], expected: list[tuple[str, ...]]):
    """Tests that each field becomes Megatron's flag for it, and that what is its default becomes none."""
    problem = assuming(**stated)
    assert flags_of(problem, grouped(problem)) == expected


def naming(*degrees: Degrees, **stated: Any) -> Problem:
    """The same, with names for what its groups of two share, at microbatches of two samples."""
    problem = assuming(**stated)
    return replace(problem, profile=replace(problem.profile, degrees=degrees, microbatch_size=2))


@pytest.mark.parametrize(
    ("degrees", "expected"),
    [
        (Degrees(tensor=2), "--tensor-model-parallel-size 2 --expert-tensor-parallel-size 1 --micro-batch-size 2"),
        (
            Degrees(tensor=2, expert=2),
            "--tensor-model-parallel-size 2 --expert-model-parallel-size 2 --expert-tensor-parallel-size 1 "
            "--micro-batch-size 2",
        ),
        (Degrees(context=2), "--context-parallel-size 2 --micro-batch-size 2"),
        (
            Degrees(context=2, expert=2),
            "--context-parallel-size 2 --expert-model-parallel-size 2 --micro-batch-size 2",
        ),
        (Degrees(data=2, expert=2), "--expert-model-parallel-size 2 --micro-batch-size 1"),
    ],
    ids=str,
)
def test_degrees_by_name_are_flags(degrees: Degrees, expected: str):
    """Tests that Megatron is told each degree by its flag, and the samples of one part of the group."""
    problem = naming(degrees, sequence_parallel=True, expert_parallel=True)
    plan = grouped(problem)
    job = megatron.make_megatron_job(problem, plan)
    told = [" ".join(words) for words in job.arguments if words[0] in expected.split() or "expert" in words[0]]
    assert sorted(told) == sorted(f"--{flag.strip()}" for flag in expected.split("--")[1:])
    assert ("--global-batch-size", str(2 * problem.num_microbatches)) in job.arguments
    assert job.ranks == ("d0", "d1", "d2", "d3")
    assert TARGETS["megatron"].fit(problem, plan).stages == plan.stages


def test_experts_beside_tensors_need_shared_sequences():
    """Tests that Megatron's condition on experts is told, with the remedy."""
    problem = naming(Degrees(tensor=2, expert=2), sequence_parallel=False)
    with pytest.raises(
        ValueError, match=r"degrees tensor 2, expert 2, and Megatron-LM needs sequence parallelism .* pro"
    ):
        megatron.make_megatron_job(problem, grouped(problem))


@pytest.mark.parametrize(
    ("degrees", "expected"),
    [
        (Degrees(tensor=2), {"tensor_parallel_degree": 2}),
        (Degrees(context=2), {"context_parallel_degree": 2}),
        (Degrees(data=2, expert=2), {"data_parallel_shard_degree": 2, "expert_parallel_degree": 2}),
    ],
    ids=str,
)
def test_torchtitan_has_fields_for_them(degrees: Degrees, expected: dict[str, int]):
    """Tests that groups are rows of the table, with the degrees beside it, in microbatches of one part's samples."""
    problem = naming(degrees, sequence_parallel=True, hidden_exchanges=False)
    plan = grouped(problem)
    files = torchtitan.make_torchtitan_files(problem, plan)
    config = json.loads(files["config.json"])
    fields = config["parallelism"]
    if (path := parser_file("torchtitan", "config", "configs.py")) is not None:
        assert all(f"    {name}: int" in path.read_text() for name in expected)
    degrees_told = {name: value for name, value in fields.items() if name.endswith("_degree")}
    assert degrees_told == {"pipeline_parallel_degree": 2, **expected}
    assert fields["pipeline_parallel_microbatch_size"] == 2 // degrees.data
    assert config["training"]["local_batch_size"] == 2 // degrees.data * problem.num_microbatches
    assert len(files["schedule.csv"].splitlines()) == 2
    assert TARGETS["torchtitan"].fit(problem, plan).stages == plan.stages
    with pytest.raises(ValueError, match="but a row of the table is one device; plan with max_width = 1"):
        TARGETS["torch"].fit(problem, plan)


def test_samples_that_cannot_be_dealt():
    """Tests that microbatches of one sample are not cut for two parts of a group."""
    problem = naming(Degrees(data=2))
    one = replace(problem, profile=replace(problem.profile, microbatch_size=1))
    for make in (megatron.make_megatron_job, torchtitan.make_torchtitan_files):
        with pytest.raises(ValueError, match="microbatches of 1 samples cannot be cut for"):
            make(one, grouped(one))


def test_groups_of_one_divide_nothing():
    """Tests that what devices of a group share is not said of single devices, where Megatron would warn of it."""
    problem = assuming(sequence_parallel=True, hidden_exchanges=True, expert_parallel=True, precision="bf16")
    assert flags_of(problem, single(problem)) == [("--bf16",)]


def test_a_distributed_optimizer_is_stated_by_the_plans_shards():
    """Tests that a profile of divided states wants a plan whose replicas divide theirs, where there are any."""
    problem = assuming(distributed_optimizer=True)
    sharded = megatron.make_megatron_job(problem, single(problem, replicas=2, shard="optimizer"))
    assert ("--use-distributed-optimizer",) in sharded.arguments
    with pytest.raises(ValueError, match=r"assumptions.distributed_optimizer = True: .* plan with"):
        megatron.make_megatron_job(problem, single(problem, replicas=2))


def test_what_recomputes_selectively_is_named():
    """Tests that the modules of the kind `selective` are Megatron's, and said where the plan recomputes so alone."""
    problem = assuming(selective_modules=("core_attn", "mlp"))
    layers = tuple(
        replace(
            layer,
            wider=(),
            costs=tuple(
                replace(cost, recompute_kinds=(RecomputeTime(kind="selective", recompute_ns=1),))
                for cost in layer.costs
                if cost.width == 1
            ),
            recompute_kinds=(RecomputeBytes(kind="selective", checkpoint_bytes=1),),
        )
        for layer in problem.profile.layers
    )
    problem = replace(problem, profile=replace(problem.profile, layers=layers))
    plan = single(problem)
    recomputing = tuple(
        replace(stage, recompute=tuple((name, "selective") for name in stage.layers if name.startswith("layers.")))
        for stage in plan.stages
    )
    told = megatron.make_megatron_job(problem, replace(plan, stages=recomputing)).arguments
    assert ("--recompute-granularity", "selective") in told
    assert ("--recompute-modules", "core_attn", "mlp") in told


@pytest.mark.parametrize(
    ("target", "stated", "message"),
    [
        ("megatron", {"context_parallel": 2}, "assumptions.context_parallel = 2, which Megatron-LM does not support"),
        (
            "megatron",
            {"precision": "bf16", "gradients": "bf16"},
            r"assumptions.gradients = 'bf16', .* profile with gra",
        ),
        ("megatron", {"precision": "fp32", "attention": "flash"}, r"attention = 'flash', .* in fp32; profile in bf16"),
        ("torchtitan", {"attention": "unfused"}, "assumptions.attention = 'unfused', and torchtitan has no attention"),
        ("torchtitan", {"precision": "fp8"}, "assumptions.precision = 'fp8', and torchtitan supports bf16 and fp32"),
        ("torchtitan", {"fused_loss": True}, "assumptions.fused_loss = True, and torchtitan has no such setting"),
        ("torchtitan", {"gradients": "fp32"}, "assumptions.gradients = 'fp32', and torchtitan has no setting"),
        (
            "deepspeed",
            {"precision": "fp8"},
            "assumptions.precision = 'fp8', and DeepSpeed supports fp32, fp16 and bf16",
        ),
        ("deepspeed", {"context_parallel": 4}, "assumptions.context_parallel = 4, which DeepSpeed does not support"),
    ],
)
def test_what_a_program_cannot_be_told_is_refused(target: str, stated: dict[str, Any], message: str):
    """Tests that the refusal names field, value and program, when a plan is made for it and when it is exported."""
    problem = assuming(**stated)
    plan = single(problem)
    make = {
        "megatron": megatron.make_megatron_job,
        "torchtitan": torchtitan.make_torchtitan_files,
        "deepspeed": deepspeed.render_deepspeed,
    }[target]
    with pytest.raises(ValueError, match=message):
        make(problem, plan)
    with pytest.raises(ValueError, match=message):
        TARGETS[target].fit(problem, plan)


def test_megatron_divides_experts_with_sequences_alone():
    """Tests that experts of their own, and hidden exchanges, want sequence parallelism, as Megatron checks."""
    for stated in ({"expert_parallel": True}, {"hidden_exchanges": True, "sequence_parallel": False}):
        problem = assuming(**stated)
        with pytest.raises(ValueError, match=r"Megatron-LM .*; profile with sequence_parallel = true"):
            megatron.make_megatron_job(problem, grouped(problem))


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({"precision": "bf16", "gradients": "fp32"}, {"dtype": "float32", "mixed_precision_param": "bfloat16"}),
        ({"precision": "bf16", "gradients": "bf16"}, {"dtype": "bfloat16", "mixed_precision_param": "bfloat16"}),
        ({"precision": "fp32"}, {"dtype": "float32", "mixed_precision_param": "float32"}),
        ({"attention": "flash", "fused_loss": False, "sequence_length": 4096}, {"seq_len": 4096}),
    ],
)
def test_torchtitan_is_told_by_its_training_section(stated: dict[str, Any], expected: dict[str, Any]):
    """Tests that precision and sequence are fields of its configuration."""
    problem = assuming(**stated)
    training = json.loads(torchtitan.make_torchtitan_files(problem, single(problem))["config.json"])["training"]
    assert {
        name: training[name] for name in training if name not in ("local_batch_size", "disable_cuda_graphs")
    } == expected
    if (path := parser_file("torchtitan", "config", "configs.py")) is not None:
        assert all(f"    {name}: " in path.read_text() for name in expected)


def test_deepspeed_is_told_by_its_configuration():
    """Tests that precision is a part of its configuration, and that the rest is said of the layers' own code."""
    problem = assuming(precision="bf16", gradients="fp32", attention="flash", sequence_length=128)
    space: dict[str, Any] = {"PipelineModule": object}
    exec(
        deepspeed.render_deepspeed(problem, single(problem)).replace("from deepspeed.pipe import PipelineModule", ""),
        space,
    )
    assert space["CONFIG"] == {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}
    assert space["MODEL"] == {"attention": "flash", "sequence_length": 128}


def test_torchs_runtime_is_told_in_words():
    """Tests that a table, which has no settings, comes with a line for each thing that the model's code decides."""
    problem = assuming(precision="bf16", attention="flash", distributed_optimizer=False)
    notes = told_in_notes(problem, single(problem), what="torch's runtime")
    assert notes == (
        "times and bytes hold for precision = 'bf16': run the model so",
        "times and bytes hold for attention = 'flash': run the model so",
    )
    problem = assuming(context_parallel=2)
    with pytest.raises(ValueError, match="context_parallel = 2, which torch's runtime does not support"):
        told_in_notes(problem, single(problem), what="torch's runtime")


@pytest.mark.parametrize(
    ("stated", "missing"),
    [
        (None, "precision, attention, sequence_parallel"),
        ({"precision": "bf16", "attention": "flash"}, "sequence_parallel"),
        ({"precision": "bf16", "attention": "flash", "sequence_parallel": False}, ""),
    ],
)
def test_what_is_not_stated_is_said(stated: dict[str, Any] | None, missing: str):
    """Tests that older profiles are exported as before, with a line that names what they do not state."""
    problem = assuming(**(stated or {}))
    if stated is None:
        problem = replace(problem, profile=replace(problem.profile, assumptions=None))
    notes = unstated_note(problem, grouped(problem), what="Megatron-LM")
    assert bool(notes) == bool(missing)
    assert all(
        f"does not state {missing} (field assumptions): Megatron-LM runs by its defaults" in note for note in notes
    )
