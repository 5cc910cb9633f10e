"""Stages of which every replica holds a part of weights, gradients and state (FSDP2), on gloo processes."""

import json
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from planner.actions import parse_action
from planner.document import render_plan
from tests.long_runs import IS_LONG
from tests.planner.execute.data.test_dealt_rows import dealt
from tests.planner.execute.orders import make_random_plan
from tests.planner.execute.run.test_execution import TOLERANCES, Case, drawn, run_cases, run_ranks, shard, with_samples


def fully(placement: str, *, backward: str = "B", **more: Any) -> Case:
    """As `drawn`; replicas shard everything, and run whole backwards."""
    case = drawn(placement, backward=backward, **more)
    return replace(case, plan=shard(case.plan), fully_shard=True)


def in_order(placement: str, words: dict[str, str], **more: Any) -> Case:
    """The same with these actions."""
    case = fully(placement, **more)
    schedule = {device: tuple(map(parse_action, word.split())) for device, word in words.items()}
    return replace(case, plan=replace(case.plan, schedule=schedule))


def fully_dealt() -> Case:
    """Each pipeline has microbatches of its own."""
    case = dealt("0/1", (1, 0), (2,), cut=(2,))
    return replace(case, plan=shard(case.plan), fully_shard=True)


def then(case: Case, plan: Any) -> Case:
    """It goes on from a checkpoint under another plan after the first iteration."""
    return replace(case, then=plan)


def apart(placement: str, **more: Any) -> Case:
    """With I and W apart."""
    return fully(placement, backward="IW", **more)


ONE_BY_ONE = "0F0 0B0 0F1 0B1 0F2 0B2"


def planned(**more: Any) -> Case:
    """Fully sharded by the plan, and not by the run."""
    case = in_order("0/1", dict.fromkeys(("d0", "d1"), ONE_BY_ONE), num_microbatches=3, **more)
    (stage,) = case.plan.stages
    return replace(case, plan=replace(case.plan, stages=(replace(stage, shard="full"),)), fully_shard=False)


WHOLE = shard(make_random_plan("0/1", cut=(3,), num_microbatches=3, backward="B"))

TWO = {
    "three layers, several in flight": fully("0/1", cut=(3,), num_microbatches=3, steps=3),
    "1F1B of one stage": in_order("0/1", dict.fromkeys(("d0", "d1"), ONE_BY_ONE), cut=(2,), num_microbatches=3),
    "planned": planned(cut=(3,), steps=3),
    "planned, recomputed": planned(cut=(3,), recompute="y"),
    "planned, frozen in front": planned(cut=(3,), kinds="fnw"),
    "planned, tied": planned(cut=(4,), model="tied_gpt"),
    "two stages each": fully("0/1 0/1", cut=(2, 1), num_microbatches=4),
    "two stages each, three microbatches": fully("0/1 0/1", num_microbatches=3),
    "beside a stage of one replica": in_order(
        "0/1 1",
        {"d0": ONE_BY_ONE, "d1": "0F0 1F0 1B0 0B0 0F1 1F1 1B1 0B1 0F2 1F2 1B2 0B2"},
        cut=(2, 2),
        num_microbatches=3,
    ),
    "shares of 9 and 3 samples": with_samples(fully("0/1", cut=(2,), num_microbatches=3), (9, 3)),
    "clipped": fully("0/1", cut=(3,), num_microbatches=3, model="clipped"),
    "recomputed": fully("0/1", cut=(3,), num_microbatches=3, recompute="y"),
    "frozen in front": fully("0/1", kinds="fnw", cut=(3,), num_microbatches=3),
    "a frozen stage": fully("0/1 0/1", kinds="wwf", cut=(2, 1), num_microbatches=3),
    "frozen between": fully("0/1", kinds="wfw", cut=(3,), num_microbatches=3),
    "LoRA": fully("0/1", cut=(3,), num_microbatches=3, model="adapted"),
    "gradients accumulate": fully("0/1 0/1", num_microbatches=3, model="accumulating", steps=4),
    "tied across stages, clipped": fully("0/1 0/1", cut=(2, 1), num_microbatches=3, model="clipped_tied"),
    "GPT, head tied to embedding": fully("0/1", cut=(4,), num_microbatches=3, model="tied_gpt"),
    "tokens that count": fully("0 0/1", num_microbatches=3, model="counted"),
    "loss scaled": fully("0/1", cut=(2,), num_microbatches=3, model="loss_scaled", steps=3),
    "batch norms, recomputed": fully("0/1", cut=(2,), num_microbatches=3, model="normed", recompute="y"),
    "a gradient inside layers": fully("0/1 0/1", num_microbatches=2, model="forces"),
    "skip edges": fully("0/1 0/1 0/1", cut=(2, 2, 1), num_microbatches=3, model="skipping"),
    "bfloat16": fully("0/1", cut=(2,), num_microbatches=2, model="bfloat16", dtype="bfloat16"),
    "I and W": apart("0/1", cut=(3,), num_microbatches=3, steps=3),
    "I and W, two stages each": apart("0/1 0/1", cut=(2, 1), num_microbatches=4),
    "I and W, three microbatches": apart("0/1 0/1", num_microbatches=3),
    "I, W and B, W late": in_order(
        "0/1",
        dict.fromkeys(("d0", "d1"), "0F0 0F1 0I0 0F2 0I1 0B2 0W1 0W0"),
        cut=(3,),
        num_microbatches=3,
    ),
    "I and W, tied and accumulated": apart("0/1 0/1", num_microbatches=3, model="accumulating_tied", steps=4),
    "I and W, recomputed": apart("0/1", cut=(3,), num_microbatches=3, recompute="y"),
    "I and W, frozen in front": apart("0/1", kinds="fnw", cut=(3,), num_microbatches=3),
    "I and W, a frozen stage": apart("0/1 0/1", kinds="wwf", cut=(2, 1), num_microbatches=3),
    "I and W, GPT": apart("0/1 0/1", cut=(2, 2), num_microbatches=3, model="tied_gpt"),
    "I and W, convolutions": apart("0/1", cut=(2,), num_microbatches=2, model="normed_pictures"),
    "I and W, functions that hold weights": apart("0/1", cut=(2,), num_microbatches=2, model="own_function"),
    "I and W, LoRA": apart("0/1", cut=(3,), num_microbatches=3, model="adapted"),
    "I and W, a gradient inside layers": apart("0/1 0/1", num_microbatches=2, model="forces"),
    "goes on without, by a schedule": then(
        fully("0/1", cut=(3,), num_microbatches=3, model="scheduled", steps=3),
        make_random_plan("1 0 1", num_microbatches=3),
    ),
    "goes on fully sharded": then(
        replace(drawn("0 1", cut=(1, 2), num_microbatches=3, model="tied", steps=3), fully_shard=True), WHOLE
    ),
}

FOUR = {
    "two stages of two": fully("0/2 1/3", cut=(2, 1), num_microbatches=4, steps=3),
    "three replicas, an uneven cut": fully("0/1/2 3", cut=(2, 2), num_microbatches=3),
    "from three replicas to two of other stages": then(
        fully("0/1/2 3", cut=(1, 2), num_microbatches=3, steps=3),
        shard(make_random_plan("0/2 1/3", cut=(2, 1), num_microbatches=3, backward="B")),
    ),
}

END = ", or run without fully_shard"
REFUSED = {
    "nobody shards": (
        replace(drawn("0/1", cut=(2,), num_microbatches=2), fully_shard=True),
        "fully_shard is set, but no stage of the plan has replicas that shard; plan with pipeplan plan "
        f"--shard-optimizer allow (or always){END}",
    ),
    "other orders": (
        fully("0/1 1", num_microbatches=3),
        "the replicas of stages that are fully sharded gather their weights together, but do not run their actions in "
        "one order: the ranks wait for each other: rank 0 in ",
    ),
    "a dealing": (
        fully_dealt(),
        "stage 0 would be fully sharded, but its replicas are dealt microbatches of their own, so that they do not ",
    ),
    "groups": (
        fully("0+1/2+3", cut=(2,), num_microbatches=2, model="wide"),
        f"stage 0 would be fully sharded, but it is run by groups of 2 devices; plan with max_width = 1{END}",
    ),
    "gradients in float32": (
        fully("0/1", cut=(2,), num_microbatches=2, model="float32_gradients"),
        "stage 0 would be fully sharded, but torch adds up the gradients of layer 'l0' in the type of its parameters; "
        f"set float32_gradients = False{END}",
    ),
    "types side by side": (
        fully("0/1", cut=(2,), num_microbatches=2, model="of_two_types"),
        "stage 0 would be fully sharded, but layer 'l0' trains parameters of bfloat16 and float32, which torch reduces "
        f"together; give it one type{END}",
    ),
    "a compiled layer": (
        fully("0/1", cut=(2,), num_microbatches=2, model="compiled"),
        "layer 'l1' of stage 0 is compiled, but its weights would be gathered and freed around it (fully_shard); leave",
    ),
}
"""Plans and trainings that do not fit, and what every rank says."""

LEFT_OUT = {"two stages each, three microbatches", "frozen between", "loss scaled", "a frozen stage"}
"""Which `make test` leaves to the long run."""
CASES = {2: {name: case for name, case in TWO.items() if IS_LONG or name not in LEFT_OUT}, 4: FOUR}


def require_torch() -> None:
    """Older ones are refused (`planner/execute/run/full_shard_check.py`)."""
    if tuple(map(int, version("torch").split(".")[:2])) < (2, 13):
        pytest.skip("fully_shard needs torch 2.13")


def num_ranks(case: Case) -> int:
    """Processes of both of its plans."""
    return max(len({d for s in plan.stages for group in s.replicas for d in group}) for plan in case.plans)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What every rank says about every case."""
    require_torch()
    answers = {}
    refused = {name: case for name, (case, _) in REFUSED.items()}
    for size, cases in CASES.items():
        mine = cases | {name: case for name, case in refused.items() if num_ranks(case) == size}
        answers |= run_cases(mine, size, folder=tmp_path_factory.mktemp(f"fully{size}"))
    return answers


@pytest.mark.parametrize(("size", "name"), [(size, name) for size, cases in CASES.items() for name in cases])
def test_it_trains_as_one_process(outcomes, size: int, name: str):
    """Tests that losses, gradients, weights and buffers are those of a single process, and nothing stays behind."""
    case, answers = CASES[size][name], outcomes[name]
    tolerance = TOLERANCES[case.dtype]
    assert len(answers) == size
    for answer in answers:
        assert "refused" not in answer, answer
        for mine, theirs in zip(answer["losses"], answer["expected_losses"], strict=True):
            assert not mine or mine == pytest.approx(theirs, rel=tolerance, abs=0)
        assert answer["missing"] == []
        assert answer["count"] > 0
        assert answer["gradients"] <= tolerance * answer["largest"]
        assert answer["weights"] <= 10 * tolerance * max(answer["largest"], 1)
        assert answer["buffers"] <= 1e-12
        assert answer["kept"] == 0
    assert any(answer["losses"][0] for answer in answers)


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_by_every_rank(outcomes, name: str):
    """Tests that what cannot be fully sharded is refused in the same words by every rank, with stage and remedy."""
    first, *others = outcomes[name]
    assert others == [first] * len(others)
    assert first["refused"].startswith(REFUSED[name][1]), first


def test_what_is_left_to_the_long_run_exists():
    """Tests that the names left out are those of cases."""
    assert TWO.keys() >= LEFT_OUT


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What both ranks say about the scenarios of `fully_sharded_runs.py`."""
    require_torch()
    folder = tmp_path_factory.mktemp("runs")
    plan = make_random_plan("0/1", cut=(2,), num_microbatches=3, backward="B")
    split = shard(make_random_plan("0/1", cut=(2,), num_microbatches=3))
    plans = {"c": plan, "s": shard(plan), "w": split, "p": planned(cut=(2,)).plan}
    for name, each in plans.items():
        (folder / f"{name}.json").write_text(render_plan(each))
    run_ranks(folder, 2, worker=Path(__file__).parents[3] / "integration/fully_sharded_runs.py")
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


def test_full_sharding_changes_nothing_but_the_memory(runs):
    """Tests that weights and evaluated losses are those of whole replicas, and that each has half of the state."""
    for name, whole in runs[0]["alike"].items():
        made = [whole, runs[1]["alike"][name]]
        assert all(each["alike"] for each in made), (name, made)
        assert sum(each["bytes"][1] for each in made) == whole["bytes"][0]
        assert max(each["bytes"][1] for each in made) <= 0.51 * whole["bytes"][0]


def test_an_evaluation_leaves_no_weights_whole(runs):
    """Tests that a planned run, whose last layer's weights stay for the backward, gives them back without one."""
    assert [rank["planned"] for rank in runs] == [True, True]


def test_nothing_is_held_whole_between_actions(runs):
    """Tests that after F, B, I and W no whole weight and no whole gradient is left on a replica, but half."""
    for rank in runs:
        alone, fully, apart = (rank["held"][name] for name in ("s", "f", "w"))
        assert (fully["looked"], apart["looked"]) == (2 * 2 * 3, 2 * 3 * 3)
        assert alone["large"] >= 4  # two layers' weights and gradients, or the buckets that they lie in
        assert fully["large"] == apart["large"] == 0
        assert alone["bytes"] == 2 * fully["bytes"] == 2 * apart["bytes"]


def test_a_gradient_that_one_replica_has_not_is_zero(runs):
    """Tests that weights are those of replicas that hold all, where one replica alone has a use for one."""
    assert [rank["unlike_replicas"] for rank in runs] == [True, True]


def test_it_goes_on_from_checkpoints_copies_and_files(runs):
    """Tests that state is filed whole: the same plan goes on to the bit, others within rounding, a lost device too."""
    for rank in runs:
        found = rank["resumes"]
        assert [found[name]["to the bit"] for name in ("f", "copies")] == [True, True]
        assert [found[name]["close"] for name in ("s", "c")] == [True, True]
        assert found["file"]
        assert found["loaded"]


def test_weights_have_the_names_that_hooks_give_them(runs):
    """Tests that a layer whose state dictionary shows two matrices for one is written and read so, whole or sharded."""
    for rank in runs:
        found = rank["shown"]
        assert found.pop("names") == [f"l{layer}.{half}.weight" for layer in range(2) for half in "ab"]
        assert found == {name: [True, True] for name in "fwsc"}


STOPPED = {
    "no_checkpoint": "the whole of layer 'l0' has state of its own (get_extra_state of Counting), which no checkpoint ",
    "nan_stops": "iteration 1: the loss of microbatch 2 is nan: layer 'l0' of stage 0 on rank 0 (d0) is the first to ",
    "nan_in_gradient_stops": "iteration 0: all losses are finite, but the gradient of l1:weight on rank 1 (d1), ",
    "drifting_stops": "after iteration 0 l0:average of stage 0 is not the same on its replicas on ranks 0 (d0) and 1 ",
}


@pytest.mark.parametrize("name", STOPPED)
def test_it_stops_in_the_same_words(runs, name: str):
    """Tests that a run that would go wrong ends on both ranks in one message."""
    first, second = (rank[name] for rank in runs)
    assert first == second
    assert first.startswith(STOPPED[name]), first


def test_layers_are_reduced_in_one_order_whatever_a_replica_left_out(monkeypatch: pytest.MonkeyPatch):
    """Tests that a layer whose gradients come early waits for those before it, and one without any keeps its place;
    one that is not sharded may be the last.
    """
    from planner.execute.parallel.full_sharding import ShardedLayers

    tied = [("a", "tied"), ("tied",), ()]
    for waits in ([("a", "c"), ("c",), ()], [("c", "b"), ("b",), ()], [()], tied):
        done = list[Any]()
        monkeypatch.setattr("planner.execute.parallel.full_sharding.reduce_now", done.append)
        layers: Any = {"c": "c", "b": "b", "a": "a"}
        sharded = ShardedLayers(layers)
        for _ in range(2):
            for waiting in waits:
                sharded.reduce(waiting)
        assert "".join(done) == "cba" * 2
