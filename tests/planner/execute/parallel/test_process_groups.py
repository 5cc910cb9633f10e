"""Stages on groups of devices, run tensor-parallel on gloo processes, against the same training in one process."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api.executor_probe import time_group
from planner.document import render_plan
from planner.export.targets import TARGETS, restrict_problem
from planner.fidelity.group_costs import make_group_plan
from planner.plan import Plan
from planner.problem import Options, Problem
from planner.progress import Limits
from profiles.measure.host_processes import HostProcesses
from profiles.model_profile import WidthBytes
from profiles.workload import Workload
from tests.integration.forked_ranks import Rank, run_forked
from tests.long_runs import IS_LONG
from tests.planner.execute.orders import make_random_plan
from tests.planner.execute.run.test_execution import (
    SAMPLES,
    SKIPS,
    TOLERANCES,
    WORKER,
    Case,
    drawn,
    named,
    run_ranks,
    sharded,
)
from tests.planner.execute.test_enter import environment, losses, start_ranks, write
from tests.planner.export import chains
from tests.planner.hasty import make_plan

TWO = {
    "two devices": drawn("0+1", cut=(3,), num_microbatches=3, model="wide"),
    "buffers that count": drawn("0+1", cut=(2,), num_microbatches=2, model="wide_averaging"),
    "masks between stages": drawn("0+1 1", cut=(2, 1), num_microbatches=2, model="wide_masked"),
    "two stages on both": drawn("0+1 0+1", cut=(2, 1), num_microbatches=3, model="wide"),
    "whole backward": drawn("0+1 0+1", cut=(1, 1), num_microbatches=3, model="wide", backward="B"),
    "one device, then both": drawn("0 0+1", cut=(1, 2), num_microbatches=3, model="wide"),
    "both, then one device": drawn("0+1 1", cut=(2, 1), num_microbatches=3, model="wide"),
    "a sum at the end of a stage": drawn("0+1 0+1 1", cut=(1, 1, 1), num_microbatches=2, model="wide_bare"),
    "recomputed": drawn("0+1 0+1", cut=(1, 1), num_microbatches=3, model="wide", recompute="yn"),
    "frozen in front": drawn("0+1 0+1", kinds="fw", num_microbatches=2, model="wide"),
    "clipped": drawn("0+1 0", cut=(2, 1), num_microbatches=2, model="wide_clipped"),
    "accumulated": drawn("0+1 0", cut=(1, 1), num_microbatches=2, model="wide_accumulated", steps=4),
    "skip edges": drawn("0+1 0 0+1 1", cut=(1, 2, 1, 1), num_microbatches=2, model="wide_skipping", edges=SKIPS),
    "GPT, queries, keys and values in one, tied": drawn("0+1", cut=(4,), num_microbatches=2, model="wide_gpt"),
    "torch's encoder layers": drawn("0+1 1", cut=(3, 1), num_microbatches=2, model="encoder"),
    "a table that wants no gradient": drawn("0+1 0+1", cut=(2, 1), num_microbatches=2, model="wide_scaled"),
    "a norm on a part of the sequence": drawn("0+1", cut=(3,), num_microbatches=2, model="sequence"),
    "bfloat16, gradients in float32": drawn(
        "0+1", cut=(2,), num_microbatches=2, model="wide_bfloat16", dtype="bfloat16"
    ),
    "from two devices to one each": drawn(
        "0+1", cut=(4,), num_microbatches=2, model="wide_clipped", steps=3, then=make_random_plan(
            "0 1", cut=(2, 2), num_microbatches=2
        )
    ),
    "from one device each to two": drawn(
        "0 1", cut=(2, 2), num_microbatches=2, model="wide_gpt", steps=3, then=make_random_plan(
            "0+1 0+1", cut=(2, 2), num_microbatches=2
        )
    ),
}  # fmt: skip
FOUR = {
    "two and two": drawn("0+1 2+3", cut=(2, 2), num_microbatches=4, model="wide"),
    "one, two, one": drawn("0 1+2 3", cut=(1, 2, 1), num_microbatches=4, model="wide"),
    "a sum that is sent": drawn("0+1 2+3 1", cut=(1, 1, 1), num_microbatches=2, model="wide_bare"),
    "four, then two of them": drawn("0+1+2+3 2+3", cut=(1, 2), num_microbatches=2, model="wide"),
    "random order": drawn("0+1 2+3 0+2 1", cut=(2, 1, 1, 1), num_microbatches=4, model="wide", seed=1),
    "random order, skip edges": drawn(
        "0+1 1+2 3 0+3", cut=(1, 2, 1, 1), num_microbatches=3, model="wide_skipping", edges=SKIPS, seed=2
    ),
    "random order, replicas": drawn("0+1/2+3 1/3 0+2/1+3", cut=(2, 1, 1), num_microbatches=3, model="wide", seed=3),
    "replicas of groups": drawn("0+1/2+3", cut=(3,), num_microbatches=3, model="wide"),
    "replicas of groups, weights without use": drawn("0+1/2+3", cut=(2,), num_microbatches=2, model="leaving_wide"),
    "replicas of groups, then replicas": drawn("0+1/2+3 1/3", cut=(2, 2), num_microbatches=3, model="wide_clipped"),
    "replicas of groups, sharded and clipped": sharded("0+1/2+3", cut=(3,), num_microbatches=2, model="wide_clipped"),
    "replicas of groups, GPT tied": drawn("0+1/2+3 0+1/2+3", cut=(2, 2), num_microbatches=2, model="wide_gpt"),
    "replicas of groups, a norm on a part of the sequence, sharded": sharded(
        "0+1/2+3", cut=(3,), num_microbatches=2, model="sequence"
    ),
    "from sharded replicas of groups to two groups": sharded(
        "0+1/2+3",
        cut=(4,),
        num_microbatches=2,
        steps=3,
        model="wide_gpt",
        then=make_random_plan("0+1 2+3", cut=(2, 2), num_microbatches=2),
    ),
    "from two groups to sharded replicas of groups": sharded(
        "0+1 2+3",
        cut=(2, 2),
        num_microbatches=2,
        steps=3,
        model="wide_gpt",
        then=make_random_plan("0+1/2+3 0/1", cut=(3, 1), num_microbatches=2),
    ),
}
LAYERS = {
    "gpt2": ("transformer.wte", "transformer.h.0", "transformer.h.1", "transformer.ln_f"),
    "llama": ("model.embed_tokens", "model.layers.0", "model.layers.1", "model.norm"),
    "qwen3": ("model.embed_tokens", "model.layers.0", "model.layers.1", "model.norm"),
    "mixtral": ("model.embed_tokens", "model.layers.0", "model.layers.1", "model.norm"),
    "qwen3_moe": ("model.embed_tokens", "model.layers.0", "model.layers.1", "model.norm"),
    "t5": (
        "encoder.embed_tokens",
        "encoder.block.0",
        "encoder.block.1",
        "encoder.final_layer_norm",
        "decoder.block.0",
        "decoder.block.1",
        "decoder.final_layer_norm",
    ),
    "bert": ("bert.embeddings", "bert.encoder.layer.0", "bert.encoder.layer.1", "cls"),
}
"""As `from_module` names them."""
FAMILIES = {
    f"{model} of transformers": named(
        drawn(placement, cut=cut, num_microbatches=2, model=model, recompute=recompute), *LAYERS[model]
    )
    for model, placement, cut, recompute in (
        ("gpt2", "0 0+1", (2, 2), ""),
        ("llama", "0+1", (4,), ""),
        ("qwen3", "0+1", (4,), ""),
        ("mixtral", "0+1", (4,), ""),
        ("qwen3_moe", "0 0+1", (2, 2), "ny"),
        ("t5", "0+1 0+1", (2, 5), "yn"),
        ("bert", "0 0+1", (2, 2), ""),
    )
}
TWO |= FAMILIES

REFUSED = {
    "nothing to cut": (
        drawn("0+1", num_microbatches=2),
        "stage 0 spans 2 devices, but of none of its layers ('l0' ...) is known how to cut it; say so in `Training.",
    ),
    "a tied weight": (
        drawn("0+1", cut=(2,), num_microbatches=2, model="tied_wide"),
        "stage 0 spans 2 devices, and l0:inner.weight is tied, but would be cut; leave it whole in `parallelize`",
    ),
    "not a part": (
        drawn("0+1", num_microbatches=2, model="misnamed"),
        "stage 0 spans 2 devices, but layer 'l0' cannot be cut: `parallelize` names 'middle', which is not a",
    ),
    "a part that is not put together": (
        drawn("0+1", num_microbatches=2, model="unreduced"),
        "stage 0: layer 'l0' does not come to the same on 2 devices as on one: ",
    ),
    "heads that two do not divide": (
        named(drawn("0+1", cut=(4,), num_microbatches=2, model="llama_of_one"), *LAYERS["llama"]),
        "stage 0 spans 2 devices, but layer 'model.layers.0' cannot be cut: model.layers.0.self_attn has "
        "num_key_value_heads = 1, which width 2 does not divide; plan with a max_width that does, or state the",
    ),
    "an optimizer that looks at whole weights": (
        drawn("0+1", num_microbatches=2, model="wide_normed"),
        "stage 0 is planned with groups of 2 devices, but its optimizer (ByNorm) moves a part of l0:inner.weight "
        "otherwise than the whole of it; use one that works element by element (SGD, Adam, AdamW, ...), or plan with "
        "max_width = 1",
    ),
    "heads that are not counted": (
        drawn("0+1", cut=(3,), num_microbatches=2, model="miscounted_gpt"),
        "stage 0: layer 'l1' does not come to the same on 2 devices as on one: output 0 differs; give `parallelize`",
    ),
}
REFUSED_BY_FOUR = {
    "hidden units that four do not divide": (
        drawn("0+1+2+3", cut=(3,), num_microbatches=2, model="uneven"),
        "stage 0 spans 4 devices, but layer 'l0' cannot be cut: inner.weight has shape (6, 6), which cannot be cut "
        "along dimension 0 into 4 parts; give `parallelize` styles that fit, or plan with max_width = 1",
    ),
}

LEFT_OUT = {
    *("two devices", "whole backward", "both, then one device", "from two devices to one each"),
    *("two and two", "a sum that is sent", "random order", "replicas of groups, then replicas"),
    *("replicas of groups", "replicas of groups, GPT tied", "from sharded replicas of groups to two groups"),
    *("mixtral of transformers", "qwen3 of transformers"),
}
"""Plans that `make test` leaves to the long run: with every part of theirs there are others."""

assert (TWO | FOUR).keys() >= LEFT_OUT
RUN = {
    size: {name: case for name, case in cases.items() if IS_LONG or name not in LEFT_OUT}
    for size, cases in ((2, TWO), (4, FOUR))
}
CASES = {f"{size} processes: {name}": case for size, cases in RUN.items() for name, case in cases.items()}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What every rank says about every case."""
    answers = {}
    for world_size, cases in [
        (2, RUN[2] | {name: case for name, (case, _) in REFUSED.items()}),
        (4, RUN[4] | {name: case for name, (case, _) in REFUSED_BY_FOUR.items()}),
    ]:
        folder = tmp_path_factory.mktemp(f"widths{world_size}")
        for number, (name, case) in enumerate(cases.items()):
            write_case(folder, number, name=name, case=case)
        run_ranks(folder, world_size, needs=["transformers.modeling_utils"] if world_size == 2 else ())
        ranks = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(world_size)]
        for name in cases:
            answers[f"{world_size} processes: {name}"] = [rank[name] for rank in ranks]
    return answers


def write_case(folder: Path, number: int, *, name: str, case: Case) -> None:
    (folder / f"{number:03}.plan.json").write_text(render_plan(case.plan))
    document = {key: getattr(case, key) for key in ("kinds", "model", "steps", "fully_shard")}
    document |= {"name": name, "plan": f"{number:03}.plan.json", "then": ""}
    if case.then is not None:
        document["then"] = f"{number:03}.then.json"
        (folder / document["then"]).write_text(render_plan(case.then))
    (folder / f"{number:03}.case.json").write_text(json.dumps(document))


def assert_trained_as_one_process(case: Case, answers: list[dict[str, Any]], *, tell: Callable[[Plan], int]) -> None:
    """Losses, gradients and weights are those of a single process, and every rank ran its row; `tell`: how many ranks
    know a plan's losses.
    """
    tolerance = TOLERANCES[case.dtype]
    for number in range(case.steps):
        plan = case.plan if case.then is None or number == 0 else case.then
        told = [answer for answer in answers if answer["losses"][number]]
        assert len(told) == tell(plan)
        for answer in told:
            assert answer["losses"][number] == pytest.approx(answer["expected_losses"][number], rel=tolerance, abs=0)
    for answer in answers:
        assert answer["missing"] == []
        assert answer["gradients"] <= tolerance * answer["largest"]
        assert answer["weights"] <= 10 * tolerance * max(answer["largest"], 1)
        assert answer["kept"] == 0
        assert answer["executed"][case.then is not None :] == [answer["row"]] * (case.steps - (case.then is not None))
    assert sum(answer["count"] for answer in answers) > 0


@pytest.mark.parametrize("name", CASES)
def test_losses_and_gradients_equal_those_of_one_process(outcomes, name: str):
    """Tests that losses, gradients and weights are those of a single process, and that every member knows the loss."""
    case, answers = CASES[name], outcomes[name]
    assert_trained_as_one_process(
        case, answers, tell=lambda plan: len({device for group in plan.stages[-1].replicas for device in group})
    )


@pytest.mark.parametrize("name", [*REFUSED, *REFUSED_BY_FOUR])
def test_what_cannot_be_run_together_is_refused(outcomes, name: str):
    """Tests that every rank says the same before the first iteration, with the field, its value and a remedy."""
    size = 2 if name in REFUSED else 4
    answers = outcomes[f"{size} processes: {name}"]
    assert all(answer == answers[0] for answer in answers)
    assert answers[0]["refused"].startswith((REFUSED | REFUSED_BY_FOUR)[name][1]), answers[0]


def planned_problem() -> Problem:
    """Four layers, measured on one device and, twice as fast, on two; all are on both devices."""
    problem = chains.make_chain("wwww", num_devices=2, num_microbatches=4)
    layers = []
    for layer in problem.profile.layers:
        (alone,) = layer.costs
        half = {key: getattr(alone, key) // 2 for key in ("forward_ns", "input_grad_ns", "weight_grad_ns")}
        wider = WidthBytes(width=2, state_bytes=layer.state_bytes // 2, stash_bytes=5)
        layers.append(replace(layer, costs=(alone, replace(alone, width=2, **half)), wider=(wider,)))
    options = Options(
        max_width=2,
        max_stages_per_device=2,
        partition=(("l0", "l1"), ("l2", "l3")),
        placement=((("d0", "d1"),), (("d0", "d1"),)),
    )
    return replace(problem, profile=replace(problem.profile, layers=tuple(layers)), options=options)


def train(plan: Plan, folder: Path, name: str, *more: object) -> list[list[float]]:
    """Its losses."""
    path = write(plan, folder / f"{name}.json")
    command = [path, "--model", "execute_models:wide_alone", "--losses", folder / name, *more]
    answers = start_ranks([command] * len(plan.devices))
    assert [code for code, _ in answers] == [0] * len(plan.devices), answers
    return losses(folder / name)


def test_a_planned_width_runs_and_its_files_go_on_under_another(tmp_path: Path):
    """Tests that a plan for the executor may have groups, and that weights and checkpoints change hands."""
    executor = TARGETS["executor"]
    problem = restrict_problem(planned_problem(), executor)
    plan = make_plan(problem, limits=Limits(time_limit_s=60, max_rounds=1))
    assert [stage.replicas for stage in plan.stages] == [(("d0", "d1"),)] * 2
    assert executor.fit(problem, plan) == plan
    alone = make_random_plan("0", cut=(4,), num_microbatches=4)
    weights, point = tmp_path / "weights", tmp_path / "checkpoint"
    first = train(plan, tmp_path, "two", "--steps", 2, "--save-weights", weights, "--save", point)
    whole = train(alone, tmp_path, "one", "--steps", 3, "--save", tmp_path / "other")
    assert len(whole) == 3
    for mine, theirs in zip(first, whole, strict=False):
        assert mine == pytest.approx(theirs, rel=1e-12)
    (third,) = train(alone, tmp_path, "on", "--load", point)
    assert third == pytest.approx(whole[2], rel=1e-12)
    by_two, by_one = (train(each, tmp_path, name, "--weights", weights) for each, name in ((plan, "a"), (alone, "b")))
    assert by_two[0] == pytest.approx(by_one[0], rel=1e-12)
    assert by_two[0] != pytest.approx(whole[0], rel=1e-3)
    fourth = train(plan, tmp_path, "there", "--load", tmp_path / "other")
    assert fourth[0] == pytest.approx(train(alone, tmp_path, "here", "--load", tmp_path / "other")[0], rel=1e-12)


def test_layers_are_timed_by_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Tests that two processes of the executor time every layer, and say how much of its weights each of them holds.

    `make test-long` has them started and their times put into the profile.
    """
    problem = chains.make_chain("wwww", num_devices=2, num_microbatches=4)
    plan = write(make_group_plan(problem.profile, 2, num_microbatches=4, is_fine=True), tmp_path / "plan.json")
    model = "execute_models:wide_alone"
    about = {"model": model, "plans": [str(plan)], "kind": "group", "folder": str(tmp_path), "iterations": 2}
    ranks = [
        Rank(
            arguments=[json.dumps(about)],
            environment=environment(RANK=str(rank), WORLD_SIZE="2"),
            folder=tmp_path,
            log=tmp_path / f"{rank}.log",
            program="planner.execute.probe",
        )
        for rank in range(2)
    ]
    assert [code for code, _ in run_forked(ranks, timeout_s=90)] == [0, 0]
    for rank in range(2):
        found = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert found["held"] == {
            f"l{number}": [8 * (2 * 6 * 6 + 6 + 6), 8 * (2 * 6 * 12 + 12 + 6)] for number in range(4)
        }
        (times,) = found["runs"]
        assert {key: len(taken) for key, taken in times.items()} == {
            f"{stage}{kind}": 8 if kind == "F" else 4 for stage in range(4) for kind in "FIWB"
        }
    if IS_LONG:
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (WORKER.parent, WORKER.parents[2]))))
        profile = replace(problem.profile, microbatch_size=SAMPLES)
        workload = Workload(profile=profile, cluster=problem.cluster, num_microbatches=4)
        with HostProcesses() as host:
            how = {"width": 2, "sizes": (SAMPLES,), "iterations": 2, "host": host}
            timed, reason = time_group(workload, model=model, **how)
            same, wrong = time_group(workload, model="no_such:model", **how)
        assert reason == ""
        for layer in timed.profile.layers:
            assert [cost.width for cost in layer.costs] == [1, 2]
            assert 20 < layer.wider[0].parameter_bytes < 0.6 * layer.parameter_bytes  # the outer bias is whole
        assert "Width 2: times of layers run tensor-parallel by 2 processes" in timed.profile.provenance
        assert same is workload
        assert "no_such" in wrong
