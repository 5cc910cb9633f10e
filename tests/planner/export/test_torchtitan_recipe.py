"""The recipe for torchtitan, on configurations made here: what it sets, and what it does not take."""

import json
import sys
import types
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from planner.baselines.data_parallel import make_replicated_stage, order_data_parallel
from planner.baselines.fully_sharded import allowing_full_shards, make_fully_sharded_plan
from planner.baselines.pipeline import make_pipeline, make_plan
from planner.export.targets import TARGETS, restrict
from planner.export.torchtitan import make_torchtitan_files
from planner.export.torchtitan_copies import titan_ranks
from planner.export.torchtitan_recipe import CONFIG, FOLDER, planned
from planner.layout.costs import CostModel
from planner.plan import Plan, Shard
from planner.problem import Options, Problem
from tests.planner.export.test_targets import copied, cut, language_model, parser_file


@dataclass
class Training:
    local_batch_size: int = 8
    global_batch_size: int = -1
    seq_len: int = 2048
    disable_cuda_graphs: bool = False


@dataclass
class NewTraining:
    num_tokens_per_microbatch_per_dp_rank: int = 0
    max_context_length: int = 2048
    disable_cuda_graphs: bool = False


@dataclass
class Common:
    data_parallel_replicate_degree: int = 1
    data_parallel_shard_degree: int = -1
    pipeline_parallel_degree: int = 1
    module_fqns_per_model_part: list[list[str]] | None = None
    pipeline_parallel_schedule: str = "1F1B"
    pipeline_parallel_schedule_csv: str | None = ""
    tensor_parallel_degree: int = 7


@dataclass
class Parallelism(Common):
    pipeline_parallel_microbatch_size: int = 1


@dataclass
class NewParallelism(Common):
    num_pp_microbatches: int = 1


@dataclass
class Config:
    """Of a model of so many blocks."""

    num_blocks: int = 6
    training: Training | NewTraining = field(default_factory=Training)
    parallelism: Parallelism | NewParallelism = field(default_factory=Parallelism)

    @property
    def model_spec(self) -> types.SimpleNamespace:
        return types.SimpleNamespace(model=types.SimpleNamespace(layers=[None] * self.num_blocks))


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module with a configuration, and the folder that is exported for a plan of four stages."""
    problem = language_model()
    for name, text in make_torchtitan_files(problem, cut(problem, [2, 2, 2, 3], "0 1 0 1")).items():
        (tmp_path / name).write_text(text)
    made = types.ModuleType("some_configurations")
    made.small = Config  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "some_configurations", made)
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.setenv(CONFIG, "some_configurations:small")
    return made


def test_the_recipe_sets_what_the_plan_says(module: types.ModuleType, tmp_path: Path):
    """Tests that fields of the plan are set, the table is found from any folder, and other fields stay."""
    config = planned()
    assert (config.training.local_batch_size, config.training.disable_cuda_graphs) == (16, True)
    assert config.parallelism.pipeline_parallel_microbatch_size == 4
    assert config.parallelism.module_fqns_per_model_part[3] == ["layers.5", "norm", "lm_head"]
    assert config.parallelism.pipeline_parallel_schedule_csv == str(tmp_path.resolve() / "schedule.csv")
    assert (config.parallelism.pipeline_parallel_degree, config.parallelism.tensor_parallel_degree) == (2, 7)


def test_the_recipe_knows_the_names_of_the_main_branch(module: types.ModuleType):
    """Tests that a torchtitan that counts microbatches is told their number, and their size in tokens."""
    module.small = lambda: Config(training=NewTraining(), parallelism=NewParallelism())  # type: ignore[attr-defined]
    config = planned()
    assert config.parallelism.num_pp_microbatches == 4
    assert config.training.num_tokens_per_microbatch_per_dp_rank == 4 * 2048
    assert config.training.disable_cuda_graphs


@pytest.mark.parametrize("is_new", [False, True])
def test_the_recipe_states_the_length_of_a_sequence(module: types.ModuleType, tmp_path: Path, is_new: bool):
    """Tests that an exported length of sequences is set under either name, and counts for the tokens of a rank."""
    exported = json.loads((tmp_path / "config.json").read_text())
    exported["training"]["seq_len"] = 512
    (tmp_path / "config.json").write_text(json.dumps(exported))
    if is_new:
        module.small = lambda: Config(training=NewTraining(), parallelism=NewParallelism())  # type: ignore[attr-defined]
    training = planned().training
    assert (training.max_context_length if is_new else training.seq_len) == 512
    assert not is_new or training.num_tokens_per_microbatch_per_dp_rank == 4 * 512


def test_the_recipe_refuses_another_model(module: types.ModuleType):
    """Tests that blocks which torchtitan would leave out without a word are counted."""
    module.small = lambda: Config(num_blocks=32)  # type: ignore[attr-defined]
    with pytest.raises(
        ValueError, match="the plan is for 6 blocks, but the model of PIPEPLAN_TORCHTITAN_CONFIG has 32"
    ):
        planned()


def test_the_recipe_names_what_is_missing(module: types.ModuleType, monkeypatch: pytest.MonkeyPatch):
    """Tests that a field that torchtitan lacks, a variable that is not set and one of another form are named."""
    module.small = lambda: Config(parallelism=Common())  # type: ignore[attr-defined,arg-type]
    with pytest.raises(
        ValueError, match=r"has no parallelism\.pipeline_parallel_microbatch_size, which the plan needs"
    ):
        planned()
    monkeypatch.setenv(CONFIG, "some_configurations")
    with pytest.raises(ValueError, match="name a module and its function"):
        planned()
    monkeypatch.delenv(FOLDER)
    with pytest.raises(ValueError, match="PIPEPLAN_TORCHTITAN is not set"):
        planned()


def data_parallel(problem: Problem) -> Plan:
    costs = CostModel(problem)
    stages = make_replicated_stage(costs)
    return make_plan(costs, stages, device_orders=order_data_parallel(make_pipeline(costs, stages)))


@pytest.mark.parametrize(("is_sharded", "degrees"), [(True, (1, 2)), (False, (2, 1))], ids=["FSDP2", "DDP"])
def test_one_stage_is_data_parallelism(
    module: types.ModuleType, tmp_path: Path, is_sharded: bool, degrees: tuple[int, int]
):
    """Tests that a fully sharded plan, and one with copies, become degrees and batches, with fields that torchtitan has
    and no table.
    """
    problem = allowing_full_shards(language_model(num_microbatches=3))
    plan = make_fully_sharded_plan(CostModel(problem)) if is_sharded else data_parallel(problem)
    files = make_torchtitan_files(problem, plan)
    assert list(files) == ["config.json"]
    (tmp_path / "config.json").write_text(files["config.json"])
    config = planned()
    assert (config.parallelism.data_parallel_replicate_degree, config.parallelism.data_parallel_shard_degree) == degrees
    assert config.parallelism.pipeline_parallel_degree == 1
    assert (config.training.local_batch_size, config.training.global_batch_size) == (2, 12)
    assert TARGETS["torchtitan"].fit(problem, plan).stages == plan.stages
    if (path := parser_file("torchtitan", "config", "configs.py")) is not None:
        told = [name for fields in json.loads(files["config.json"]).values() for name in fields]
        assert all(f"\n    {name}: " in path.read_text() for name in told)


def test_what_torchtitan_accumulates_otherwise_is_refused():
    """Tests that other orders, and stages that recompute, are not told as data parallelism."""
    problem = allowing_full_shards(replace(language_model(), options=Options(recompute=True)))
    plan = data_parallel(problem)
    for wrong in (
        make_fully_sharded_plan(CostModel(problem), recompute=True),
        replace(plan, schedule={name: order[::2] + order[1::2] for name, order in plan.schedule.items()}),
    ):
        with pytest.raises(ValueError, match="one microbatch after the other, and recomputes as its own"):
            TARGETS["torchtitan"].fit(problem, wrong)


def test_targets_that_shard_fully_have_copies():
    """Tests that torchtitan has copies, equally many of every stage, and full shards are refused where none are."""
    asked = Options(shard_optimizer="allow", fully_shard=True)
    narrowed = restrict(asked, TARGETS["torchtitan"])
    assert (narrowed.max_replicas, narrowed.uneven_replication) == (None, False)
    assert restrict(Options(), TARGETS["torch"]).max_replicas == 1
    assert restrict(asked, TARGETS["executor"]).fully_shard
    for name in set(TARGETS) - {"torchtitan", "executor"}:
        with pytest.raises(ValueError, match=f"target {name}: options ask for fully_shard"):
            restrict(asked, TARGETS[name])


@pytest.mark.parametrize(("shard", "degrees"), [("none", (2, 1)), ("weights", (1, 2))])
def test_copies_of_a_pipeline(module: types.ModuleType, tmp_path: Path, shard: Shard, degrees: tuple[int, int]):
    """Tests that copies, whole or sharded, are degrees of data beside one table, each with its part of a microbatch."""
    problem = language_model(num_devices=4, num_microbatches=3)
    plan = copied(cut(problem, [4, 5], "0 1"), 2, shard=shard)
    for name, text in make_torchtitan_files(problem, plan).items():
        (tmp_path / name).write_text(text)
    assert len((tmp_path / "schedule.csv").read_text().splitlines()) == 2
    config = planned()
    told = config.parallelism
    assert (told.data_parallel_replicate_degree, told.data_parallel_shard_degree) == degrees
    assert (told.pipeline_parallel_degree, told.pipeline_parallel_microbatch_size) == (2, 2)
    assert (config.training.local_batch_size, config.training.global_batch_size) == (6, 12)
    assert TARGETS["torchtitan"].fit(problem, plan).stages == plan.stages
    assert titan_ranks(plan) == ("d0", "d1", "d2", "d3")
