"""What is exported for Megatron-LM in the hands of its own parser, checks, configuration and schedules.

PIPEPLAN_MEGATRON=FOLDER names a checkout of Megatron-LM; without it, the package that `make parsers` unpacks.
"""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from benchmarks.hybrids import MODELS
from planner.export.hybrid_pattern import pattern_of
from planner.export.looped_pipelines import as_looped
from planner.export.megatron import make_megatron_job
from planner.export.model_parts import cut_by, letters_of
from planner.plan import Plan
from planner.problem import Problem
from profiles.assumptions import Assumptions
from profiles.degrees import Degrees
from tests.planner.execute.test_enter import environment
from tests.planner.export.test_deepspeed import replicated
from tests.planner.export.test_hybrid_pattern import hybrid
from tests.planner.export.test_targets import (
    cut,
    language_model,
    on_two_devices,
    parser_file,
    predicting_tokens,
    recomputing,
    selective_model,
)

UNPACKED = parser_file("hybrid", "megatron", "training", "arguments.py")
CHECKOUT = os.environ.get("PIPEPLAN_MEGATRON") or (UNPACKED and str(UNPACKED.parents[2]))


def is_there() -> bool:
    """Whether Megatron's training code can be had; its package of parts alone has none."""
    if CHECKOUT is not None:
        return True
    try:
        return importlib.util.find_spec("megatron.training") is not None
    except ImportError:
        return False


pytestmark = pytest.mark.skipif(
    not is_there(), reason="no Megatron-LM: `make parsers` unpacked none, and PIPEPLAN_MEGATRON names none"
)

Case = tuple[Problem, Plan]


def chunked(num_ranks: int, sizes: list[int], *, num_microbatches: int) -> Case:
    """Stages of so many layers, in a loop."""
    problem = language_model(num_blocks=sum(sizes) - 3, num_devices=num_ranks, num_microbatches=num_microbatches)
    return problem, cut(problem, sizes, " ".join(str(number % num_ranks) for number in range(len(sizes))))


def with_replicas(shard: str, sizes: list[int]) -> Case:
    """Two ranks with two replicas each."""
    problem = language_model(num_devices=4)
    if len(sizes) == 2:
        return problem, replicated(problem, shard, shard)
    plan = cut(problem, sizes, "0 1 0 1")
    stages = tuple(
        replace(stage, shard=shard, replicas=tuple((f"d{number % 2 + 2 * replica}",) for replica in range(2)))
        for number, stage in enumerate(plan.stages)
    )
    return problem, as_looped(problem, replace(plan, stages=stages))


def recomputed(kind: str) -> Case:
    """All blocks of every stage, the first two of each, or all of them selectively."""
    problem = selective_model()
    plan = cut(problem, [4, 5], "0 1")
    blocks = [[name for name in stage.layers if name.startswith("layers.")] for stage in plan.stages]
    if kind == "all":
        return problem, replace(plan, stages=tuple(replace(stage, recompute=True) for stage in plan.stages))
    count = 2 if kind == "full" else 3
    return problem, recomputing(plan, *(dict.fromkeys(own[:count], kind) for own in blocks))


def tensor_parallel() -> Case:
    """Two ranks of two replicas, each of them a group of two devices."""
    problem = on_two_devices(language_model(num_devices=8))
    plan = cut(problem, [4, 5], "0 1")
    groups = ((("d0", "d3"), ("d4", "d5")), (("d7", "d1"), ("d2", "d6")))
    stages = tuple(replace(stage, replicas=each) for stage, each in zip(plan.stages, groups, strict=True))
    return problem, as_looped(problem, replace(plan, stages=stages), has_widths=True)


def by_name(degrees: Degrees) -> Case:
    """The same groups, which share something else."""
    problem, plan = tensor_parallel()
    profile = replace(problem.profile, degrees=(degrees,), assumptions=Assumptions(sequence_parallel=True))
    return replace(problem, profile=profile), plan


def predicting(sizes: list[int], devices: str) -> Case:
    """The last block predicts several tokens."""
    problem = predicting_tokens("layers.5")
    return problem, cut(problem, sizes, devices)


CASES: dict[str, Callable[[], Case]] = {
    "plain": lambda: chunked(2, [4, 5], num_microbatches=4),
    "four ranks, fewer microbatches": lambda: chunked(4, [1, 3, 3, 2], num_microbatches=2),
    "one rank": lambda: chunked(1, [9], num_microbatches=3),
    "two chunks": lambda: chunked(2, [2, 2, 2, 3], num_microbatches=4),
    "two chunks, as many microbatches as ranks": lambda: chunked(4, [2, 1, 2, 1, 1, 2, 1, 2], num_microbatches=4),
    "three chunks": lambda: chunked(3, [1, 2, 1, 1, 3, 1, 1, 1, 3], num_microbatches=9),
    "five chunks": lambda: chunked(4, [1, 2] * 8 + [1, 1, 1, 4], num_microbatches=12),
    "replicas": lambda: with_replicas("none", [4, 5]),
    "distributed optimizer": lambda: with_replicas("optimizer", [4, 5]),
    "distributed optimizer, two chunks": lambda: with_replicas("optimizer", [2, 2, 2, 3]),
    "all recomputed": lambda: recomputed("all"),
    "the first blocks recomputed": lambda: recomputed("full"),
    "recomputed selectively": lambda: recomputed("selective"),
    "tensor-parallel": tensor_parallel,
    "contexts": lambda: by_name(Degrees(context=2)),
    "experts on data-parallel ranks": lambda: by_name(Degrees(data=2, expert=2)),
    "experts on tensor-parallel ranks": lambda: by_name(Degrees(tensor=2, expert=2)),
    "multi-token prediction": lambda: predicting([2, 2, 2, 3], "0 1 0 1"),
    "multi-token prediction by itself": lambda: predicting([3, 3, 1, 2], "0 1 2 3"),
}
MIXTURE = ("--num-experts", "4", "--moe-token-dispatcher-type", "alltoall")
"""What users write themselves of a model with experts."""
RECOMPUTED = {
    "all recomputed": ["full", "uniform", 1],
    "the first blocks recomputed": ["full", "block", 2],
    "recomputed selectively": ["selective", None, None],
}


def ask(cases: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """What Megatron answers, asked in one process."""
    (folder / "cases.json").write_text(json.dumps(cases))
    done = subprocess.run(
        [
            *(sys.executable, "-W", "ignore", str(Path(__file__).parents[2] / "integration/megatron_worker.py")),
            *(str(folder / "cases.json"), str(folder / "answers.json")),
        ],
        env=environment() | ({} if CHECKOUT is None else {"PYTHONPATH": CHECKOUT}),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers: list[dict[str, Any]] = json.loads((folder / "answers.json").read_text())
    return answers


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """By case."""
    asked = []
    for make in CASES.values():
        job = make_megatron_job(*make())
        asked.append({"arguments": [word for words in job.arguments for word in words], "world_size": len(job.ranks)})
    for name, case in zip(CASES, asked, strict=True):
        case["arguments"] += MIXTURE if name.startswith("experts") else ()
    return dict(zip(CASES, ask(asked, tmp_path_factory.mktemp("megatron")), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_megatron_takes_the_flags(name: str, answers: dict[str, dict[str, Any]]):
    """Tests that its parser, checks and configuration take all flags, and give the plan's stages and switches."""
    problem, plan = CASES[name]()
    found = answers[name]
    assert "refused" not in found, found["refused"]
    size = len(found["layout"])
    stages = letters_of(problem, cut_by(plan))
    letters = ["".join(dict.fromkeys(stage)) if set(stage) <= set("EL") else stage for stage in stages]
    wanted = [stage.replace("LL", "L") for stage in letters]
    assert found["layout"] == [wanted[rank::size] for rank in range(size)]
    assert found["num_microbatches"] == problem.num_microbatches
    assert found["recompute"] == RECOMPUTED.get(name, [None, None, None])
    assert found["use_distributed_optimizer"] == name.startswith("distributed optimizer")
    assert found["mtp_num_layers"] == (1 if name.startswith("multi-token") else None)


@pytest.mark.parametrize("name", CASES)
def test_megatron_runs_the_orders_of_the_plan(name: str, answers: dict[str, dict[str, Any]]):
    """Tests that its own schedules run on every rank exactly the actions of the plan, in that order."""
    problem, plan = CASES[name]()
    orders = answers[name]["orders"]
    if orders is None:  # a single rank has no schedule of pipelines: F and B of each microbatch in turn
        orders = [[f"0{kind}{number}" for number in range(problem.num_microbatches) for kind in "FB"]]
    for rank, order in enumerate(orders):
        for group in plan.stages[rank].replicas:
            assert {tuple(map(str, plan.schedule[device])) for device in group} == {tuple(order)}


@pytest.mark.parametrize("name", CASES)
def test_megatron_numbers_ranks_as_the_job_does(name: str, answers: dict[str, dict[str, Any]]):
    """Tests that its groups of ranks, with the job's device of each, are groups, replicas and stages of the plan."""
    problem, plan = CASES[name]()
    ranks, found = make_megatron_job(problem, plan).ranks, answers[name]
    for group in answers[name]["tensor_groups"]:
        held = {ranks[rank] for rank in group}
        assert any(held <= set(group) for stage in plan.stages for group in stage.replicas)
        assert len(held) == found["tensor"] * found["context"]
    for pipeline in answers[name]["pipelines"]:
        places = [
            next(number for number, group in enumerate(plan.stages[stage].replicas) if ranks[rank] in group)
            for stage, rank in enumerate(pipeline)
        ]
        assert len(set(places)) == 1  # a pipeline is of one replica of every stage


def test_megatron_has_the_degrees_of_the_plan(answers: dict[str, dict[str, Any]]):
    """Tests that contexts and experts are shared by as many ranks as the plan's names say."""
    found = {name: [answers[name][each] for each in ("tensor", "context", "experts")] for name in CASES}
    assert found["tensor-parallel"] == [2, 1, 1]
    assert found["contexts"] == [1, 2, 1]
    assert found["experts on data-parallel ranks"] == [1, 1, 2]
    assert found["experts on tensor-parallel ranks"] == [2, 1, 2]


def uneven_hybrid(pattern: str, *, ranks: int, chunks: int, seed: int) -> Case:
    """Stages of a hybrid model of any size."""
    size = len(pattern) + 3
    inner = sorted(Random(seed).sample(range(2, size - 2), ranks * chunks - 1))
    sizes = [b - a for a, b in pairwise((0, *inner, size))]
    return hybrid(pattern, sizes, " ".join(str(number % ranks) for number in range(ranks * chunks)))


HYBRIDS = {
    f"{name}, {ranks} x {chunks}": uneven_hybrid(pattern, ranks=ranks, chunks=chunks, seed=seed)
    for name, pattern in [*((model.name, model.pattern) for model in MODELS), ("begins as a flag", "-M*-M*-M*-M*-M*-")]
    for seed, (ranks, chunks) in enumerate([(1, 1), (2, 1), (4, 1), (7, 1), (2, 2), (4, 2), (2, 3)])
}


@pytest.fixture(scope="module")
def hybrid_answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """By case of a hybrid model."""
    asked = []
    for problem, plan in HYBRIDS.values():
        job = make_megatron_job(problem, plan)
        words = [*(word for words in job.arguments for word in words), *MIXTURE]
        asked.append({"arguments": words, "world_size": len(job.ranks)})
    return dict(zip(HYBRIDS, ask(asked, tmp_path_factory.mktemp("hybrids")), strict=True))


@pytest.mark.parametrize("name", HYBRIDS)
def test_megatron_takes_hybrid_models(name: str, hybrid_answers: dict[str, dict[str, Any]]):
    """Tests that it takes the pattern of a hybrid model, with as many layers and stages, and runs the plan's orders."""
    problem, plan = HYBRIDS[name]
    found = hybrid_answers[name]
    assert "refused" not in found, found["refused"]
    pattern, layers = found["hybrid"]
    assert (pattern.replace("|", ""), pattern.count("|") + 1) == (
        pattern_of([[*problem.profile.topological_order]]),
        len(plan.stages),
    )
    assert layers == len(problem.profile.layers) - 3
    assert (found["chunks"] or 1) * len(plan.schedule) == len(plan.stages)
    for rank, order in enumerate(found["orders"] or ()):
        assert [*map(str, plan.schedule[f"d{rank}"])] == order


def test_megatron_refuses_what_we_refuse(tmp_path: Path):
    """Tests that each refusal of ours that is not about a plan's order is Megatron's own, by its words."""
    base = ("--num-layers", "6", "--micro-batch-size", "4")
    chunks = ("--pipeline-model-parallel-layout", "Et|tt|tt|tL")
    predicting_two = ("--mtp-num-layers", "2", "--pipeline-model-parallel-layout")
    asked = {
        "size should be greater than 1": (1, chunks, "16", 1),
        "The remainder of M": (2, chunks, "20", 2),
        "must be in the same one virtual": (2, (*predicting_two, "Ettt|ttt|m|mL"), "16", 2),
        "always in the last": (
            2,
            ("--mtp-num-layers", "1", "--pipeline-model-parallel-layout", "Ett|ttttm||L"),
            "16",
            2,
        ),
        "should not be used with --hybrid-layer-pattern": (2, ("--hybrid-layer-pattern", "M-M|*-M", *chunks), "16", 2),
    }
    cases = [
        {
            "arguments": [*base, "--pipeline-model-parallel-size", str(size), *more, "--global-batch-size", batch],
            "world_size": world,
        }
        for size, more, batch, world in asked.values()
    ]
    for words, answer in zip(asked, ask(cases, tmp_path), strict=True):
        assert words in answer["refused"]
