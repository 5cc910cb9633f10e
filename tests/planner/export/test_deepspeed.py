"""A plan for DeepSpeed: tests of planner/export/deepspeed.py."""

import ast
import sys
import types
from dataclasses import replace
from typing import Any

import pytest

from planner.export import deepspeed, megatron, torchtitan
from planner.export.looped_pipelines import as_looped
from planner.export.targets import TARGETS, restrict
from planner.plan import Plan
from planner.problem import Problem
from planner.progress import Limits
from planner.verify import verify
from tests.long_runs import shortened
from tests.planner.export.reading_back import import_deepspeed_parts
from tests.planner.export.test_targets import cut, language_model, parser_file
from tests.planner.hasty import make_plan


class StandIn:
    """What DeepSpeed's PipelineModule gives its `_partition_layers`."""

    def __init__(self, num_layers: int, *, num_stages: int, stage: int) -> None:
        self._layer_specs, self.num_stages, self.global_rank = [None] * num_layers, num_stages, 7
        self._topo = types.SimpleNamespace(get_coord=lambda rank: types.SimpleNamespace(pipe=stage))

    def _set_bounds(self, start: int, stop: int) -> None:
        self.bounds = start, stop


def test_deepspeed_cuts_where_the_plan_does(monkeypatch, record_property):
    """Tests that the module sets parts and bounds as DeepSpeed's own code does, and that the cut leads back."""
    problem = language_model()
    plan = cut(problem, [4, 5], "1 0")
    text = deepspeed.render_deepspeed(problem, plan)
    for name in ("deepspeed", "deepspeed.pipe"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["deepspeed.pipe"].PipelineModule = StandIn  # type: ignore[attr-defined]
    space: dict[str, Any] = {}
    exec(text, space)
    module = space["PlannedPipelineModule"](9, num_stages=2, stage=1)
    module._partition_layers()
    assert (module.parts, module.bounds) == ([0, 4, 9], (4, 9))
    assert space["RANKS"] == ["d1", "d0"]
    with pytest.raises(ValueError, match="the plan is for 9 layers, and there are 8"):
        space["PlannedPipelineModule"](8, num_stages=2, stage=1)._partition_layers()
    names = [layer.name for layer in problem.profile.layers]
    assert import_deepspeed_parts(text, names) == tuple(stage.layers for stage in plan.stages)
    path = parser_file("deepspeed", "runtime", "pipe", "module.py")
    record_property("parser", "documented attributes" if path is None else "DeepSpeed's source")
    if path is not None:
        classes = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
        (theirs,) = (node for node in classes if node.name == "PipelineModule")
        methods = {node.name: ast.unparse(node) for node in theirs.body if isinstance(node, ast.FunctionDef)}
        assert "self._topo.get_coord(self.global_rank).pipe" in methods["_partition_layers"]
        assert "self.parts" in methods["_partition_layers"]
        assert (
            "self._set_bounds(start=self.parts[stage_id], stop=self.parts[stage_id + 1])"
            in methods["_partition_layers"]
        )


def replicated(problem: Problem, *shards: str) -> Plan:
    """Two stages with two replicas each, sharded as said."""
    plan = cut(problem, [4, 5], "0 1")
    stages = tuple(
        replace(stage, replicas=tuple((f"d{number + 2 * replica}",) for replica in range(2)), shard=shard)
        for number, (stage, shard) in enumerate(zip(plan.stages, shards, strict=True))
    )
    return as_looped(problem, replace(plan, stages=stages))


def test_sharded_optimizer_state_is_asked_for_by_each_programs_own_name():
    """Tests that Megatron's flag and DeepSpeed's stage 1 are set where every stage shards, and not where none does."""
    problem = language_model(num_devices=4)
    for shard, flags, stage in (("optimizer", [("--use-distributed-optimizer",)], 1), ("none", [], 0)):
        plan = replicated(problem, shard, shard)
        job = megatron.make_megatron_job(problem, plan)
        assert [words for words in job.arguments if "optimizer" in words[0]] == flags
        assert job.ranks == ("d0", "d2", "d1", "d3")
        space: dict[str, Any] = {"PipelineModule": object}
        exec(deepspeed.render_deepspeed(problem, plan).replace("from deepspeed.pipe import PipelineModule", ""), space)
        assert (space["ZERO_OPTIMIZATION"], space["MICRO_BATCH_SIZE"]) == ({"stage": stage}, 2)
    for parts in (("optimizer", "optimizer_config.py"), ("distributed", "distributed_data_parallel_config.py")):
        if (path := parser_file("megatron", "core", *parts)) is not None:  # the flag sets both
            assert "    use_distributed_optimizer: bool = False" in path.read_text()


def test_what_a_program_cannot_shard_is_refused():
    """Tests that a switch for all stages is not turned for some, and that FSDP2 is not taken for less than it does."""
    problem = language_model(num_devices=4)
    mixed = replicated(problem, "none", "optimizer")
    for make, name in ((megatron.make_megatron_job, "Megatron"), (deepspeed.render_deepspeed, "DeepSpeed")):
        with pytest.raises(ValueError, match="stage 1 has shard = 'optimizer' and stage 0 has not, but " + name):
            make(problem, mixed)
        with pytest.raises(ValueError, match="all stages or none"):
            TARGETS[name.lower()].fit(problem, mixed)
    with pytest.raises(ValueError, match="stage 1 has shard = 'optimizer', but torchtitan shards parameters"):
        torchtitan.make_torchtitan_files(problem, mixed)
    with pytest.raises(ValueError, match="shards parameters and gradients too"):
        TARGETS["torchtitan"].fit(problem, mixed)
    assert TARGETS["executor"].fit(problem, mixed) == mixed
    if (path := parser_file("torchtitan", "config", "configs.py")) is not None:
        assert "parallelism method used is FSDP (Fully Sharded Data Parallelism)" in path.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("num_devices", shortened([3], whole=[2, 3]))
def test_only_what_the_target_runs_is_planned(name: str, num_devices: int):
    """Tests that plans for a target pass the verifier under its limits and are exported without a change."""
    target = TARGETS[name]
    asked = language_model(num_devices=num_devices, num_microbatches=6)
    problem = replace(asked, options=restrict(asked.options, target))
    plan = make_plan(problem, limits=Limits(time_limit_s=30, max_rounds=2), target=target)
    assert verify(problem, plan).passed
    assert verify(asked, replace(plan, problem=asked.reference(), evidence=None)).passed
    assert target.fit(problem, plan).schedule == plan.schedule
    if name == "megatron":
        assert megatron.make_megatron_job(problem, plan).ranks
    if name == "deepspeed":
        assert "PARTS" in deepspeed.render_deepspeed(problem, plan)
    if name == "torchtitan":
        assert torchtitan.make_torchtitan_files(problem, plan)
