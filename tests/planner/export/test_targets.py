"""Plans for other programs: only what they can run, written as they read it, and back again."""

import ast
import importlib.util
import itertools
import json
import os
import shlex
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.layouts import import_partition
from planner.export import deepspeed, megatron, torchtitan
from planner.export.looped_pipelines import as_looped
from planner.export.targets import TARGETS, renumbered, restrict
from planner.export.torch_table import render_torch_table, torch_ranks
from planner.plan import Plan, Shard
from planner.problem import Options, Problem
from profiles.configurations.megatron_layout import written_out
from profiles.model_profile import RecomputeBytes, RecomputeTime, WidthBytes
from tests.planner.export.chains import make_chain
from tests.planner.export.chains import make_plan as draw_plan
from tests.planner.export.reading_back import import_torch_table, import_torchtitan_parts

PARSERS = Path(os.environ.get("PIPEPLAN_PARSERS", Path(__file__).parents[3] / ".parsers"))
"""Where `make parsers` unpacks megatron-core, torchtitan and DeepSpeed; none can be imported as a whole here."""


def language_model(*, num_blocks: int = 6, num_devices: int = 2, num_microbatches: int = 4, **options: Any) -> Problem:
    """An embedding, blocks, a norm and a head."""
    problem = make_chain(
        "w" * (num_blocks + 3), num_devices=num_devices, num_microbatches=num_microbatches, options=Options(**options)
    )
    names = ["embedding", *(f"layers.{i}" for i in range(num_blocks)), "norm", "head"]
    new = dict(zip([layer.name for layer in problem.profile.layers], names, strict=True))
    profile = problem.profile
    return replace(
        problem,
        profile=replace(
            profile,
            layers=tuple(replace(layer, name=new[layer.name]) for layer in profile.layers),
            edges=tuple(replace(e, producer=new[e.producer], consumer=new[e.consumer]) for e in profile.edges),
            microbatch_size=4,
        ),
    )


def cut(problem: Problem, sizes: list[int], devices: str) -> Plan:
    """Stages of so many layers on these devices, in 1F1B."""
    names = iter(layer.name for layer in problem.profile.layers)
    drawn = draw_plan(problem, "", stages=" ".join(f"0@d{device}" for device in devices.split()))
    stages = tuple(
        replace(stage, layers=tuple(itertools.islice(names, size)))
        for stage, size in zip(drawn.stages, sizes, strict=True)
    )
    return as_looped(problem, replace(drawn, stages=stages))


def copied(plan: Plan, copies: int, *, shard: Shard = "none") -> Plan:
    """Copies of a pipeline: those of d0 on the first devices, then those of d1 and so on."""
    named = {device: [f"d{copies * int(device[1:]) + copy}" for copy in range(copies)] for device in plan.schedule}
    return replace(
        plan,
        stages=tuple(
            replace(stage, replicas=tuple((name,) for name in named[stage.replicas[0][0]]), shard=shard)
            for stage in plan.stages
        ),
        schedule={name: order for device, order in plan.schedule.items() for name in named[device]},
        max_active_stages=3 if shard == "weights" else None,
    )


def parser_file(*parts: str) -> Path | None:
    path = PARSERS.joinpath(*parts)
    return path if path.exists() else None


def load_megatron_parser(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Megatron core's own class, out of its one file; None where the package was not unpacked."""
    path = parser_file("megatron", "core", "transformer", "pipeline_parallel_layer_layout.py")
    if path is None:
        return None
    for name in ("megatron", "megatron.core", "megatron.core.transformer", "megatron.core.parallel_state"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["megatron.core"].parallel_state = sys.modules["megatron.core.parallel_state"]  # type: ignore[attr-defined]
    for name, file in (("megatron.core.transformer.enums", path.parent / "enums.py"), ("layout", path)):
        specification = importlib.util.spec_from_file_location(name, file)
        assert specification is not None
        assert specification.loader is not None
        module = importlib.util.module_from_spec(specification)
        monkeypatch.setitem(sys.modules, name, module)
        specification.loader.exec_module(module)
    return sys.modules["layout"].PipelineParallelLayerLayout  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("sizes", "devices", "layout"),
    [
        ([4, 5], "0 1", "Ettt|tttL"),
        ([1, 3, 3, 2], "1 0 1 0", "E|ttt|ttt|L"),
        ([2, 2, 2, 3], "0 1 2 3", "Et|tt|tt|tL"),
    ],
)
def test_megatron_reads_its_layout(sizes, devices, layout, monkeypatch, record_property):
    """Tests that the layout is one that Megatron parses to the plan's stages, and that it leads back to them."""
    problem = language_model(num_devices=4)
    plan = cut(problem, sizes, devices)
    job = megatron.make_megatron_job(problem, plan)
    flags = {words[0]: words[1] for words in job.arguments}
    assert flags["--pipeline-model-parallel-layout"] == layout
    assert (flags["--num-layers"], flags["--micro-batch-size"], flags["--global-batch-size"]) == ("6", "4", "16")
    assert job.ranks == torch_ranks(plan)
    names = [layer.name for layer in problem.profile.layers]
    assert import_partition(layout, names) == tuple(stage.layers for stage in plan.stages)
    assert [shlex.split(line) for line in megatron.render_megatron(job).splitlines()] == list(map(list, job.arguments))
    theirs = load_megatron_parser(monkeypatch)
    record_property("parser", "documented grammar" if theirs is None else "megatron-core")
    if theirs is not None:
        parsed = theirs(layout, len(job.ranks))
        parsed.validate_layer_layout(num_layers=6, mtp_num_layers=None)
        for number, stage in enumerate(plan.stages):
            rank, chunk = number % len(job.ranks), number // len(job.ranks)
            blocks = [int(name[7:]) for name in stage.layers if name.startswith("layers.")]
            found = parsed.layout[rank][chunk]
            assert sum(layer.name == "decoder" for layer in found) == len(blocks)
            assert ("embedding" in [layer.name for layer in found]) == ("embedding" in stage.layers)
            assert ("loss" in [layer.name for layer in found]) == ("head" in stage.layers)


@pytest.mark.parametrize("layout", ["E(t|)*3L", "E,t*3|(tt|)*2,L", "E|t*2|L", "Et||tL"])
def test_layouts_are_written_out_as_megatron_does(layout: str, monkeypatch, record_property):
    """Tests that our reading of parentheses, factors, commas and empty stages is Megatron's."""
    ours = written_out(layout)
    theirs = load_megatron_parser(monkeypatch)
    record_property("parser", "documented grammar" if theirs is None else "megatron-core")
    expected = {"E(t|)*3L": ["Et", "t", "t", "L"], "E,t*3|(tt|)*2,L": ["Ettt", "tt", "tt", "L"]}
    expected |= {"E|t*2|L": ["E", "tt", "L"], "Et||tL": ["Et", "", "tL"]}
    assert ours == expected[layout]
    if theirs is not None:
        letters = {"embedding": "E", "decoder": "t", "loss": "L", "mtp": "m"}
        assert ours == ["".join(letters[t.name] for t in stage) for stage in theirs.parse_str_to_list(layout)]


def test_torchtitan_reads_its_files(tmp_path: Path, record_property):
    """Tests that every field is one of torchtitan's configuration, its map is the plan's, and the cut leads back."""
    problem = language_model()
    for devices, style in (("0 1 0 1", "PipelineScheduleMulti"), ("0 1 1 0", "ZBVZeroBubble")):
        base = cut(problem, [2, 2, 2, 3], "0 1 0 1")
        plan = replace(
            base,
            stages=tuple(
                replace(stage, replicas=((f"d{device}",),))
                for stage, device in zip(base.stages, devices.split(), strict=True)
            ),
        )
        assert torchtitan.find_map(plan) == style
    files = torchtitan.make_torchtitan_files(problem, base)
    config = json.loads(files["config.json"])
    parallelism = config["parallelism"]
    assert (config["training"]["local_batch_size"], parallelism["pipeline_parallel_microbatch_size"]) == (16, 4)
    assert parallelism["module_fqns_per_model_part"] == [
        ["tok_embeddings", "layers.0"],
        ["layers.1", "layers.2"],
        ["layers.3", "layers.4"],
        ["layers.5", "norm", "lm_head"],
    ]
    names = [layer.name for layer in problem.profile.layers]
    assert import_torchtitan_parts(parallelism["module_fqns_per_model_part"], names) == tuple(
        stage.layers for stage in base.stages
    )
    path = parser_file("torchtitan", "config", "configs.py")
    record_property("parser", "documented fields" if path is None else "torchtitan's configuration")
    if path is not None:
        classes = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
        (theirs,) = (node for node in classes if node.name == "ParallelismConfig")
        fields = {node.target.id for node in theirs.body if isinstance(node, ast.AnnAssign)}  # type: ignore[union-attr]
        assert set(parallelism) <= fields


def test_torch_tables_lead_back():
    """Tests that a table that keeps I and W apart leads back to the schedule, and that other cells are refused."""
    problem = make_chain("wwww", num_devices=2, num_microbatches=2)
    plan = draw_plan(problem, "d0: 0F0 0F1 0I0 0W0 0I1 0W1\nd1: 1F0 1I0 1F1 1I1 1W0 1W1", stages="0,1@d0 2,3@d1")
    table = render_torch_table(problem, plan, merges_backward=False)
    assert import_torch_table(table, torch_ranks(plan)) == plan.schedule
    with pytest.raises(ValueError, match="'0F0xyz' is not an action"):
        import_torch_table("0F0xyz\n\n", ("d0", "d1"))
    with pytest.raises(ValueError, match="3 rows for 2 ranks"):
        import_torch_table("\n\n\n", ("d0", "d1"))


def test_targets_never_widen_what_was_asked_for():
    """Tests that narrower wishes stay, and that what a target lacks is taken away."""
    given = Options(max_stages_per_device=1, max_replicas=1, split_backward=True, recompute=True)
    narrowed = restrict(given, TARGETS["megatron"])
    assert (narrowed.max_stages_per_device, narrowed.max_replicas, narrowed.recompute) == (1, 1, True)
    assert (narrowed.split_backward, narrowed.skip_edges, narrowed.order) == (False, False, "looped")
    assert [restrict(Options(), TARGETS[name]).order for name in ("torch", "deepspeed")] == ["any", "looped"]
    assert restrict(narrowed, TARGETS["torch"]).order == "looped"
    assert restrict(Options(max_replicas=None), TARGETS["torch"]).max_replicas == 1


def test_why_megatron_cannot_is_said_exactly():
    """Tests that each reason names the stage or the action, and what to plan instead."""
    problem = language_model(num_devices=4)
    plan = cut(problem, [4, 5], "0 1")
    other = dict(plan.schedule)
    other["d0"] = (*plan.schedule["d0"][1::-1], *plan.schedule["d0"][2:])
    cases = [
        (replace(plan, schedule=other), "rank 0 (d0) runs 0F1 as action 0, and Megatron-LM runs 0F0"),
        (
            replace(plan, stages=(replace(plan.stages[0], replicas=(("d0",), ("d2",))), plan.stages[1])),
            "stage 1 has 1 replicas but stage 0 has 2",
        ),
        (
            replace(plan, stages=(replace(plan.stages[0], recompute=True), plan.stages[1])),
            "only some stages recompute",
        ),
        (cut(problem, [8, 1], "0 1"), "the layers of the head are in several stages"),
    ]
    for wrong, message in cases:
        with pytest.raises(ValueError) as refusal:  # noqa: PT011
            megatron.make_megatron_job(problem, wrong)
        assert message in str(refusal.value)
    unknown = make_chain("wwww", num_devices=2, num_microbatches=2)
    with pytest.raises(ValueError, match="microbatch_size = null, but Megatron-LM needs the samples"):
        megatron.make_megatron_job(unknown, as_looped(unknown, draw_plan(unknown, "", stages="0,1@d0 2,3@d1")))
    unnamed = replace(unknown, profile=replace(unknown.profile, microbatch_size=1))
    drawn = as_looped(unnamed, draw_plan(unnamed, "", stages="0,1@d0 2,3@d1"))
    layout = dict(words[:2] for words in megatron.make_megatron_job(unnamed, drawn).arguments)
    assert layout["--pipeline-model-parallel-layout"] == "Ett|ttL"  # a profile of blocks alone


def recomputing(plan: Plan, *maps: dict[str, str]) -> Plan:
    """The plan with these layers of its stages recomputing, each by its kind."""
    stages = [replace(stage, recompute=tuple(own.items())) for stage, own in zip(plan.stages, maps, strict=True)]
    return replace(plan, stages=tuple(stages))


def selective_model() -> Problem:
    """One whose blocks may recompute selectively, for nothing."""
    problem = language_model(num_devices=4)
    time, size = RecomputeTime(kind="selective", recompute_ns=0), RecomputeBytes(kind="selective", checkpoint_bytes=0)
    layers = tuple(
        replace(layer, costs=(replace(layer.costs[0], recompute_kinds=(time,)),), recompute_kinds=(size,))
        for layer in problem.profile.layers
    )
    return replace(problem, profile=replace(problem.profile, layers=layers))


def test_megatron_is_told_which_blocks_recompute():
    """Tests that the first blocks of every stage, or all of one kind, become flags, and that others are refused."""
    problem = selective_model()
    plan = cut(problem, [4, 5], "0 1")
    blocks = [[name for name in stage.layers if name.startswith("layers.")] for stage in plan.stages]
    first = recomputing(plan, *(dict.fromkeys(own[:2], "full") for own in blocks))
    flags = dict(words[:2] for words in megatron.make_megatron_job(problem, first).arguments)
    assert (flags["--recompute-method"], flags["--recompute-num-layers"]) == ("block", "2")
    every = recomputing(plan, *(dict.fromkeys(own, "selective") for own in blocks))
    assert ("--recompute-granularity", "selective") in megatron.make_megatron_job(problem, every).arguments
    wrong = {
        "this plan others": [{blocks[0][1]: "full"}, {}],
        "is not a block": [{plan.stages[0].layers[0]: "full"}, {}],
    }
    for message, maps in wrong.items():
        with pytest.raises(ValueError, match=message):
            megatron.make_megatron_job(problem, recomputing(plan, *maps))
    with pytest.raises(ValueError, match="recompute_layers = false"):
        deepspeed.render_deepspeed(problem, recomputing(plan, {}, {}))


def test_renumbering_is_by_the_last_stage():
    """Tests that microbatches take the numbers in which the last stage runs them, everywhere."""
    problem = make_chain("ww", num_devices=2, num_microbatches=2)
    plan = draw_plan(problem, "d0: 0F0 0F1 0B1 0B0\nd1: 1F1 1B1 1F0 1B0", stages="0@d0 1@d1")
    again = renumbered(plan)
    assert [str(action) for action in again.schedule["d1"]] == ["1F0", "1B0", "1F1", "1B1"]
    assert [str(action) for action in again.schedule["d0"]] == ["0F1", "0F0", "0B0", "0B1"]


def test_what_megatron_does_not_recompute_is_said():
    """Tests that a plan whose stages recompute embedding and head too is told that Megatron holds their stash."""
    problem = language_model(num_devices=4)
    plan = cut(problem, [4, 5], "0 1")
    assert megatron.make_megatron_job(problem, plan).notes == ()
    again = replace(plan, stages=tuple(replace(stage, recompute=True) for stage in plan.stages))
    first, second = megatron.make_megatron_job(problem, again).notes
    assert "recomputes 'embedding' too, and Megatron does not: each device holds up to 10 bytes m" in first
    assert "recomputes 'norm', 'head' too, and Megatron does not: each device holds up to 20 bytes m" in second


def test_megatron_has_no_chunks_on_one_rank():
    """Tests that stages which share the only rank are refused, as Megatron's own checks do."""
    problem = language_model(num_devices=1)
    with pytest.raises(ValueError, match="one rank holds 2 stages, but Megatron interleaves on at least two ranks"):
        megatron.make_megatron_job(problem, cut(problem, [4, 5], "0 0"))


def predicting_tokens(*names: str) -> Problem:
    """A language model of which these blocks predict several tokens."""
    problem = language_model(num_devices=4)
    new = {name: f"mtp.{name}" for name in names}
    profile = problem.profile
    layers = tuple(replace(layer, name=new.get(layer.name, layer.name)) for layer in profile.layers)
    edges = tuple(
        replace(edge, producer=new.get(edge.producer, edge.producer), consumer=new.get(edge.consumer, edge.consumer))
        for edge in profile.edges
    )
    return replace(problem, profile=replace(profile, layers=layers, edges=edges))


def test_multi_token_prediction_is_in_one_stage():
    """Tests that its layers are written as m with their number, and refused in two stages."""
    problem = predicting_tokens("layers.5")
    job = megatron.make_megatron_job(problem, cut(problem, [2, 2, 2, 3], "0 1 0 1"))
    flags = dict(words[:2] for words in job.arguments)
    assert (flags["--pipeline-model-parallel-layout"], flags["--mtp-num-layers"]) == ("Et|tt|tt|mL", "1")
    problem = predicting_tokens("layers.4", "layers.5")
    with pytest.raises(ValueError, match="stages 2 and 3 have layers of multi-token prediction"):
        megatron.make_megatron_job(problem, cut(problem, [2, 2, 2, 3], "0 1 0 1"))


def on_two_devices(problem: Problem) -> Problem:
    """Layers that groups of two devices share as well."""
    layers = tuple(
        replace(
            layer,
            costs=(layer.costs[0], replace(layer.costs[0], width=2)),
            wider=(WidthBytes(width=2, parameter_bytes=20, state_bytes=60, stash_bytes=5),),
        )
        for layer in problem.profile.layers
    )
    return replace(problem, profile=replace(problem.profile, layers=layers))


def test_megatrons_groups_of_devices_have_one_width():
    """Tests that groups of two devices become a flag and ranks side by side, and that groups of unlike size do not."""
    problem = on_two_devices(language_model(num_devices=4))
    plan = cut(problem, [4, 5], "0 1")
    wide = replace(
        plan,
        stages=(replace(plan.stages[0], replicas=(("d3", "d0"),)), replace(plan.stages[1], replicas=(("d1", "d2"),))),
    )
    job = megatron.make_megatron_job(problem, as_looped(problem, wide, has_widths=True))
    assert ("--tensor-model-parallel-size", "2") in job.arguments
    assert job.ranks == ("d3", "d0", "d1", "d2")
    mixed = replace(wide, stages=(wide.stages[0], replace(wide.stages[1], replicas=(("d1",),))))
    with pytest.raises(ValueError, match="stage 1 is not on whole groups of 2 devices, as stage 0 is"):
        megatron.make_megatron_job(problem, mixed)
    with pytest.raises(ValueError, match="stage 0 is not on whole single devices; plan with max_width = 1"):
        deepspeed.render_deepspeed(problem, wide)
