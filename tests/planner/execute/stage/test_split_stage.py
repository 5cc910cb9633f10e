"""Stages whose I or W runs on other processes than F (split placement), against the same training in one process."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.export.targets import TARGETS, restrict_problem
from planner.problem import Options
from planner.progress import Limits
from planner.replanning.observations import read_observations
from tests.planner.execute.orders import make_random_plan
from tests.planner.execute.parallel.test_process_groups import assert_trained_as_one_process, train, write_case
from tests.planner.execute.run.test_execution import SKIPS, Case, run_ranks
from tests.planner.execute.split_orders import make_split_plan
from tests.planner.export import chains
from tests.planner.hasty import make_plan


def split(placement: str, *, cut: tuple[int, ...] | None = None, kinds: str = "", **more: Any) -> Case:
    """A plan as `make_split_plan` makes it; unless `kinds` says otherwise every layer is a block."""
    own = {key: more.pop(key) for key in ("model", "steps", "dtype", "then") if key in more}
    kinds = kinds or "w" * sum(cut or [1] * len(placement.split()))
    return Case(plan=make_split_plan(placement, kinds=kinds, cut=cut, **more), kinds=kinds, **own)


TWO = {
    "W elsewhere": split("0;;1 1", num_microbatches=3),
    "W and half of I elsewhere": split("0;0,1;1 1;1,0;0", num_microbatches=4),
    "all of I elsewhere": split("0;1 1;0", num_microbatches=3),
    "all but F elsewhere, random order": split("0;1;1 1;0;0 0", num_microbatches=4, seed=3),
    "a device that only helps": split("0;0,1;1 0;0,1;1", cut=(2, 1), num_microbatches=3),
    "a device that only helps, clipped": split("0;0,1;1", cut=(2,), num_microbatches=2, model="clipped"),
    "GPT": split("0;0,1;1 1;1,0;0", cut=(2, 2), num_microbatches=2, model="gpt"),
    "GPT, tied": split("0;;1 1;1,0;0", cut=(2, 2), num_microbatches=2, model="tied_gpt"),
    "convolutions and batch norms": split("0;;1 1;0;1", cut=(2, 2), num_microbatches=2, model="images"),
    "channels last": split("0;0,1;1 1;0;1", cut=(2, 2), num_microbatches=2, model="last_channels"),
    "weights whose channels lie last": split("0;;1 1;0;1", cut=(2, 2), num_microbatches=2, model="last_weights"),
    "weights in columns and with gaps": split("0;0,1;1 1;0;1", cut=(2, 2), num_microbatches=2, model="columns"),
    "a norm over the microbatch in front, in halves": split("0;0,1 1", num_microbatches=2, model="normed"),
    "frozen in front": split("0;0,1 1;1,0;0", kinds="fw", num_microbatches=2),
    "accumulated": split("0;0,1;1 1", num_microbatches=2, model="accumulating", steps=4),
    "gradients in float32": split("0;0,1;1 1", num_microbatches=2, model="float32_gradients", dtype="bfloat16"),
    "scaled losses": split("0;0,1;1 1;0", num_microbatches=2, model="loss_scaled"),
    "a loss of two tensors": split("0;1;1 1;0,1;0", num_microbatches=2, model="paired"),
    "a single number between stages": split("0;1;1 1;0", num_microbatches=2, model="numbered"),
    "counted tokens": split("0;0,1;1 1;0", num_microbatches=2, model="counted"),
    "from split placement to one device each": split(
        "0;0,1;1 1;;0", num_microbatches=2, steps=3, then=make_random_plan("0 1", num_microbatches=2)
    ),
    "from one device each to split placement": Case(
        plan=make_random_plan("0 1", num_microbatches=2),
        kinds="ww",
        steps=3,
        then=make_split_plan("0;0,1;1 1;;0", num_microbatches=2),
    ),
}
FOUR = {
    "LayerPipe, every task somewhere": split("0;1,2;3 1;2,3;0 2;3,0;1 3;0,1;2 0;1;2", num_microbatches=4, seed=1),
    "replicas beside": split("0/1 2;3,2;3 0/3", num_microbatches=3),
    "skip edges": split(
        "0;1,2;3 1;;0 2;0;3 3;3,1", cut=(1, 2, 1, 1), num_microbatches=3, model="skipping", edges=SKIPS, seed=2
    ),
}
REFUSED = {
    "a weight that a forward changes": (
        split("0;0,1;1 1", num_microbatches=2, model="bounded"),
        "layer 'l0' of stage 0 changes its weight 'inner.weight' in its forward, but another process",
    ),
    "a weight that a forward changes through its data": (
        split("0;0,1;1 1", num_microbatches=2, model="bounded_data"),
        "layer 'l0' of stage 0 changes its weight 'inner.weight' in its forward, but another process",
    ),
    "a norm over the microbatch, in halves": (
        split("0 1;0,1", num_microbatches=2, model="normed"),
        "stage 1: the backward of layers 'l1' to 'l1' does not come to the same on another process",
    ),
    "a gradient within the forward": (
        split("0;0,1;1 1", num_microbatches=2, model="sloped"),
        "stage 0: a backward in a forward asks for tensor 0, which goes elsewhere; leave that out; plan with split",
    ),
    "sparse gradients": (
        split("0;0,1;1 1", num_microbatches=2, model="table"),
        "stage 0: the gradient of weight 4 of layers 'l0' to 'l0' is sparse; plan with split_placement = false",
    ),
}
DROPPING = {
    "dropout, split": split("0;0,1;1 1;0", num_microbatches=2, model="dropping"),
    "dropout, plain": Case(plan=make_random_plan("0 1", num_microbatches=2), kinds="ww", model="dropping"),
}
CASES = {f"2 processes: {name}": case for name, case in TWO.items()} | {
    f"4 processes: {name}": case for name, case in FOUR.items()
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What every rank says about every case."""
    answers = {}
    two = TWO | DROPPING | {name: case for name, (case, _) in REFUSED.items()}
    for world_size, cases in [(2, two), (4, FOUR)]:
        folder: Path = tmp_path_factory.mktemp(f"split{world_size}")
        for number, (name, case) in enumerate(cases.items()):
            write_case(folder, number, name=name, case=case)
        run_ranks(folder, world_size)
        ranks = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(world_size)]
        for name in cases:
            answers[f"{world_size} processes: {name}"] = [rank[name] for rank in ranks]
    return answers


@pytest.mark.parametrize("name", CASES)
def test_losses_and_gradients_equal_those_of_one_process(outcomes, name: str):
    """Tests that losses, gradients and weights are those of a single process, and every action runs where it should."""
    case, answers = CASES[name], outcomes[name]
    assert_trained_as_one_process(case, answers, tell=lambda plan: len(plan.stages[-1].replicas))


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_come_to_the_same_is_refused(outcomes, name: str):
    """Tests that every rank says the same before the first iteration where a share cannot be computed by itself."""
    first, second = outcomes[f"2 processes: {name}"]
    assert first == second
    assert first["refused"].startswith(REFUSED[name][1]), first


def test_dropout_is_that_of_the_plain_plan(outcomes):
    """Tests that what F draws is what I uses elsewhere: losses after a step are those of the plan without shares."""
    mine, plain = (outcomes[f"2 processes: {name}"][1]["losses"] for name in DROPPING)
    assert mine[0] == plain[0]
    assert mine[1] == pytest.approx(plain[1], rel=1e-12)
    assert mine[0] != mine[1]


def test_a_planned_split_placement_runs_by_command(tmp_path: Path):
    """Tests that a plan for the executor has W elsewhere where that gains, runs by command with losses of one process,
    can be held against its trace, and that its checkpoint goes on under a plan without it.
    """
    executor = TARGETS["executor"]
    problem = chains.make_chain("wwww", num_devices=2, num_microbatches=4)
    options = Options(partition=(("l0", "l1", "l2"), ("l3",)), placement=((("d0",),), (("d1",),)), split_placement=True)
    problem = restrict_problem(replace(problem, options=options), executor)
    plan = make_plan(problem, limits=Limits(time_limit_s=60, max_rounds=4))
    assert plan.stages[0].is_split
    assert executor.fit(problem, plan) == plan
    traces = tmp_path / "traces"
    mine = train(plan, tmp_path, "split", "--steps", 2, "--save", tmp_path / "point", "--trace", traces)
    alone = make_random_plan("0", cut=(4,), num_microbatches=4)
    whole = train(alone, tmp_path, "whole", "--steps", 3)
    assert mine == [pytest.approx(losses, rel=1e-12) for losses in whole[:2]]
    (third,) = train(alone, tmp_path, "on", "--load", tmp_path / "point")
    assert third == pytest.approx(whole[2], rel=1e-12)
    seen = read_observations(sorted(traces.glob("rank*.json")), plan)
    wanted = {(device, action.stage, action.kind) for device, word in plan.schedule.items() for action in word}
    assert set(seen.durations_ns) == wanted
