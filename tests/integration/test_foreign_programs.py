"""What is exported, in the hands of the programs themselves where they run here."""

import ast
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from api.cli import main
from api.running import attempts
from planner.document import parse_plan
from planner.export.deepspeed import render_deepspeed
from planner.export.torch_table import render_torch_table, torch_ranks
from planner.export.torchtitan import find_map
from planner.launch.launch_job import TORCHRUN, Command
from planner.plan import Plan
from planner.problem import Problem
from planner.replanning.observations import read_observations
from planner.simulation.simulate import simulate
from planner.verify import verify
from tests.integration.forked_ranks import run_script
from tests.long_runs import IS_LONG, long_only
from tests.planner.execute.test_enter import environment, losses, start_ranks
from tests.planner.export.chains import make_chain, make_plan
from tests.planner.export.test_deepspeed import replicated
from tests.planner.export.test_targets import PARSERS, cut, language_model

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
EXAMPLE = ROOT / "examples" / "two-ranks.json"


def sharded_and_recomputed() -> tuple[Problem, Plan]:
    """Two stages of two replicas each."""
    problem = language_model(num_devices=4)
    plan = replicated(problem, "optimizer", "optimizer")
    return problem, replace(plan, stages=tuple(replace(stage, recompute=True) for stage in plan.stages))


def in_a_row() -> tuple[Problem, Plan]:
    """Two stages on a device each, in the order of the second one's name."""
    problem = language_model()
    return problem, cut(problem, [4, 5], "1 0")


@pytest.mark.slow
@pytest.mark.skipif(not (PARSERS / "dependencies").exists(), reason="DeepSpeed was not unpacked (make parsers)")
@pytest.mark.parametrize("make", [in_a_row, pytest.param(sharded_and_recomputed, marks=long_only)])
def test_deepspeeds_engine_trains_as_planned(make: Callable[[], tuple[Problem, Plan]], tmp_path: Path):
    """Tests that DeepSpeed's own engine builds the plan's stages, runs its orders, and trains as one process does."""
    problem, plan = make()
    (tmp_path / "planned.py").write_text(render_deepspeed(problem, plan))
    paths = os.pathsep.join([str(PARSERS / "dependencies"), str(PARSERS)])
    size = sum(len(stage.replicas) for stage in plan.stages)
    where = {"PYTHONPATH": paths, "DS_ACCELERATOR": "cpu", "HOME": str(tmp_path)}
    answers = start_ranks(
        [[tmp_path / "planned.py", tmp_path]] * size,
        program=str(HERE / "deepspeed_worker.py"),
        folder=tmp_path,
        **{name: [value] * size for name, value in where.items()},
    )
    assert [code for code, _ in answers] == [0] * size, answers
    for rank in range(size):
        found = json.loads((tmp_path / f"rank{rank}.json").read_text())
        stage = plan.stages[found["stage"]]
        assert (found["parts"], found["bounds"]) == ([0, 4, 9], [0, 4] if found["stage"] == 0 else [4, 9])
        assert found["order"] == [str(action) for action in plan.schedule[stage.replicas[found["replica"]][0]]]
        assert (found["zero"], found["checkpoints"]) == (stage.shard == "optimizer", stage.recompute)
        assert found["losses"] == pytest.approx(found["alone"], rel=1e-5)
        for ours, alone in zip(found["weights"], found["alone_weights"], strict=True):
            assert ours == pytest.approx(alone, abs=1e-5)


@pytest.mark.skipif(not (PARSERS / "torchtitan").exists(), reason="torchtitan was not unpacked (make parsers)")
@pytest.mark.parametrize("devices", ["0 1 2 3", "1 0 1 0", "0 1 1 0"])
def test_torchtitan_maps_stages_as_planned(devices: str, tmp_path: Path):
    """Tests that torchtitan's own function, asked with the exported schedule, gives every rank the plan's stages."""
    problem = language_model(num_devices=4)
    looped = cut(problem, [2, 2, 2, 3], devices if devices != "0 1 1 0" else "0 1 0 1")
    plan = replace(
        looped,
        stages=tuple(
            replace(stage, replicas=((f"d{device}",),))
            for stage, device in zip(looped.stages, devices.split(), strict=True)
        ),
    )
    source = (PARSERS / "torchtitan" / "distributed" / "pipeline_parallel.py").read_text()
    (theirs,) = (
        ast.unparse(node)
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name == "_get_pp_rank_to_stage_indices_mapping"
    )
    ranks = len(torch_ranks(plan))
    code = (
        "from torch.distributed.pipelining.schedules import get_schedule_class, ScheduleZBVZeroBubble\n"
        "from torch.distributed.pipelining.schedules import ScheduleDualPipeV\n"
        f"{theirs}\n"
        f"print([_get_pp_rank_to_stage_indices_mapping(r, {ranks}, {find_map(plan)!r}, 4) for r in range({ranks})])\n"
    )
    held = [
        tuple(number for number, stage in enumerate(plan.stages) if stage.replicas == ((device,),))
        for device in torch_ranks(plan)
    ]
    assert run_script(code, tmp_path / "theirs.py").strip() == str(held)


@pytest.mark.slow
@pytest.mark.parametrize("is_split", [pytest.param(False, marks=long_only), True])
def test_stages_of_an_exported_table_may_be_fully_sharded(is_split: bool, tmp_path: Path):
    """Tests that torch's runtime takes an exported table for stages under fully_shard, with one process' gradients."""
    problem = make_chain("wwww", num_devices=2, num_microbatches=4)
    whole = "d0: 0F0 0F1 0B0 0F2 0B1 0F3 0B2 0B3\nd1: 1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3"
    split = "d0: 0F0 0F1 0I0 0F2 0I1 0F3 0I2 0I3 0W0 0W1 0W2 0W3\nd1: 1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1F3 1I3 1W2 1W3"
    plan = make_plan(problem, split if is_split else whole, stages="0,1@d0 2,3@d1")
    table = tmp_path / "table.csv"
    table.write_text(render_torch_table(problem, plan, merges_backward=False))
    answers = start_ranks([[table, tmp_path, 4]] * 4, program=str(HERE / "fully_sharded_worker.py"), folder=tmp_path)
    assert [code for code, _ in answers] == [0] * 4, answers
    for rank in range(4):
        found = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert found["apart"] < 1e-14
        assert found["held"] == found["whole"] // 2


def test_torchs_profiler_is_read(tmp_path: Path):
    """Tests that a trace that torch's own profiler exports, with actions marked as its runtime does, is measured."""
    code = (
        "import time, torch\n"
        "from torch.profiler import profile, record_function, ProfilerActivity\n"
        "with profile(activities=[ProfilerActivity.CPU]) as profiler:\n"
        "    for action in ('0F0', '0F1', '0B0'):\n"
        "        with record_function(f'PP:{action}'):\n"
        "            time.sleep(0.02)\n"
        f"profiler.export_chrome_trace({str(tmp_path / 'trace.json')!r})\n"
    )
    run_script(code, tmp_path / "profiled.py")
    problem = make_chain("ww", num_devices=1, num_microbatches=2)
    plan = make_plan(problem, "d0: 0F0 0F1 0B0 0B1", stages="0,1@d0")
    seen = read_observations([tmp_path / "trace.json"], plan)
    found = {cell: [span for row in rows for span in row] for cell, rows in seen.durations_ns.items()}
    assert {cell: len(spans) for cell, spans in found.items()} == {("d0", 0, "B"): 1, ("d0", 0, "F"): 2}
    assert all(20e6 <= span < 2e9 for spans in found.values() for span in spans)


def fork_agents(commands: Sequence[Command]) -> int:
    """What `run_agents` does with the one command for this machine, its processes being forks."""
    (command,) = commands
    enter = command.arguments.index("-m", 3)
    assert command.arguments[:enter] == (sys.executable, *TORCHRUN, "--standalone", "--nproc-per-node=2")
    module, *words = command.arguments[enter + 1 :]
    answers = start_ranks(
        [words] * 2, program=module, **{key: [value] * 2 for key, value in command.environment.items()}
    )
    return next((code for code, _ in answers if code), 0)


def test_the_example_runs_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Tests that the first command of the launch page trains on two ranks, with a plan that passes the verifier.

    `make test` forks the two: `launch` starts torchrun in test_healing.py, and the executor in test_three_commands.py.
    """
    from api.inputs import read_plan_and_problem

    plan, problem = read_plan_and_problem(str(EXAMPLE), None)
    assert verify(problem, plan).passed
    assert plan.evidence is not None
    assert simulate(problem, plan).makespan_ns == plan.evidence.makespan_ns
    monkeypatch.chdir(ROOT)
    if not IS_LONG:
        monkeypatch.setattr(attempts, "run_agents", fork_agents)
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    page = (ROOT / "docs" / "how-to" / "launch.md").read_text(encoding="utf-8")
    words = page.partition("$ pipeplan ")[2].splitlines()[0].split()
    place = words.index("--")
    words[place:place] = ["--folder", str(tmp_path / "job")]
    assert main([*words, "--losses", str(tmp_path / "losses")]) == 0
    assert len(losses(tmp_path / "losses")) == 3
    assert parse_plan((tmp_path / "job" / "plan.json").read_bytes()) == plan
