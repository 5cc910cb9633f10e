"""What used to be wrong without a word: each row is exact to one process now, or refused before anything is wrong.

A row trains a model with the trait in question under a plan that brings it out, on real gloo processes, against the
same model in this one process. The rows of a run as a whole (batches, checkpoints, failures) follow below the table.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from planner.document import render_plan
from tests.planner.execute.data.test_dealt_rows import dealt
from tests.planner.execute.orders import make_random_plan
from tests.planner.execute.run.test_execution import Case, drawn, run_cases, run_ranks, shard, sharded

EXACT = {
    "batch norm, two replicas": drawn("0/1", cut=(2,), num_microbatches=3, model="normed"),
    "batch norm, two replicas, two stages": drawn("0/1 0/1", cut=(2, 2), num_microbatches=3, model="normed"),
    "batch norm, two replicas, recomputed": drawn("0/1", cut=(2,), num_microbatches=3, model="normed", recompute="y"),
    "batch norm, one replica, recomputed": drawn("0 1", num_microbatches=3, model="normed", recompute="yy"),
    "batch norm, uneven replicas": drawn("0 0/1", num_microbatches=3, model="normed"),
    "batch norm, uneven replicas in front": drawn("0/1 1", num_microbatches=1, model="normed"),
    "batch norm, whole backward": drawn("0/1", cut=(2,), num_microbatches=3, model="normed", backward="B"),
    "batch norm by plain averages": drawn("0/1", cut=(2,), num_microbatches=3, model="normed_by_average"),
    "batch norm by averages, recomputed": drawn("0 1", num_microbatches=3, model="normed_by_average", recompute="yy"),
    "batch norm without a module": drawn("0/1", cut=(2,), num_microbatches=3, model="normed_by_function"),
    "batch norms of pictures": drawn("0/1", cut=(2,), num_microbatches=3, model="normed_pictures"),
    "batch norms of pictures, one replica": drawn("0 1", num_microbatches=3, model="normed_pictures"),
    "a buffer that changes, recomputed": drawn("0 1", num_microbatches=3, model="averaging", recompute="yy"),
    "a gradient inside layers": drawn("0 1", cut=(2, 1), num_microbatches=3, model="forces"),
    "a gradient inside layers, recomputed": drawn("0 1", num_microbatches=3, model="forces", recompute="yy"),
    "a gradient inside layers, two replicas": drawn("0/1 0/1", num_microbatches=2, model="forces"),
    "a gradient inside the loss": drawn("0 1", num_microbatches=3, model="penalised"),
    "gradients accumulate": drawn("0 1", num_microbatches=3, model="accumulating", steps=4),
    "gradients accumulate, two replicas": drawn("0/1 0/1", num_microbatches=3, model="accumulating", steps=4),
    "gradients accumulate, tied and clipped": drawn("0/1 1", num_microbatches=3, model="accumulating_tied", steps=4),
    "a schedule and rates by name": drawn("0 1 0", num_microbatches=3, model="scheduled", steps=3),
    "a schedule goes on under another plan": drawn(
        "0 1", cut=(1, 2), num_microbatches=3, model="scheduled", steps=3, then=drawn("1 0 1", num_microbatches=3).plan
    ),
    "tokens that count": drawn("0 1", num_microbatches=3, model="counted"),
    "tokens that count, two replicas": drawn("0/1", cut=(2,), num_microbatches=3, model="counted"),
    "tokens that count, uneven replicas": drawn("0 0/1", num_microbatches=3, model="counted"),
    "tokens that count, accumulating": drawn("0/1 1", num_microbatches=3, model="counted_accumulating", steps=4),
    "loss scaled": drawn("0 1", num_microbatches=3, model="loss_scaled", steps=3),
    "loss scaled, two replicas": drawn("0/1 1", num_microbatches=3, model="loss_scaled", steps=3),
    "sharded": sharded("0/1", cut=(3,), num_microbatches=3, steps=3),
    "sharded, two stages in different orders": sharded("0/1 1/0", num_microbatches=3, seed=3),
    "sharded, gradients accumulate": sharded("0/1 0/1", num_microbatches=3, model="accumulating", steps=4),
    "sharded, gradients accumulate, tied and clipped": sharded(
        "0/1 1", num_microbatches=3, model="accumulating_tied", steps=4
    ),
    "sharded, tied within a stage": sharded("0/1", cut=(3,), num_microbatches=3, model="tied"),
    "sharded, a schedule and rates by name": sharded("0/1 1", num_microbatches=3, model="scheduled", steps=3),
    "sharded, tokens that count": sharded("0 0/1", num_microbatches=3, model="counted"),
    "sharded, loss scaled": sharded("0/1 1", num_microbatches=3, model="loss_scaled", steps=3),
    "sharded, frozen in front": sharded("0/1", kinds="fnw", cut=(3,), num_microbatches=3),
    "sharded, batch norm": sharded("0/1", cut=(2,), num_microbatches=3, model="normed"),
    "sharded, goes on without": sharded(
        "0/1",
        cut=(3,),
        num_microbatches=3,
        model="scheduled",
        steps=3,
        then=make_random_plan("1 0 1", num_microbatches=3),
    ),
    "not sharded, goes on sharded": drawn(
        "0 1",
        cut=(1, 2),
        num_microbatches=3,
        model="scheduled",
        steps=3,
        then=sharded("0/1 1", cut=(2, 1), num_microbatches=3).plan,
    ),
}
"""Trained as one process trains it."""

REFUSED = {
    "batch norm by torch's operator": (
        drawn("0/1", cut=(2,), num_microbatches=3, model="normed_otherwise"),
        "layer 'l0' of stage 0 normalises over the microbatch, of which each of its 2 replicas has a part, by a "
        "function of torch's that cannot be synchronised; plan with --no-replication, give Training sync_batch_norm",
    ),
    "batch norm, replicas in different orders": (
        drawn("0/1 1/0", num_microbatches=3, model="normed", seed=3),
        "layer 'l0' of stage 0 normalises over parts of a microbatch, but the plan's replicas run their actions in "
        "different orders: the ranks wait for each other: ",
    ),
    "torch's SyncBatchNorm": (
        drawn("0 1", num_microbatches=3, model="sync_normed"),
        "layer 'l0' has a SyncBatchNorm, which averages over all processes; give",
    ),
    "targets that do not count, two replicas": (
        drawn("0/1", cut=(2,), num_microbatches=3, model="some_ignored"),
        "iteration 0: of the targets of microbatch 0, the 2 replicas of the last stage have ",
    ),
    "a buffer that changes, two replicas": (
        drawn("0/1", cut=(2,), num_microbatches=3, model="only_averaging"),
        "layer 'l0' gives other values to its buffer 'average' for some samples of a microbatch if others are ",
    ),
}
"""Not trained at all, or not beyond the first iteration."""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What both ranks say about every row."""
    cases = EXACT | {name: case for name, (case, _) in REFUSED.items()}
    return run_cases(cases, 2, folder=tmp_path_factory.mktemp("silent"))


@pytest.mark.parametrize("name", EXACT)
def test_it_trains_as_one_process(outcomes, name: str):
    """Tests that losses, gradients, weights and buffers are those of a single process."""
    case: Case = EXACT[name]
    for answer in outcomes[name]:
        assert "refused" not in answer, answer
        for mine, theirs in zip(answer["losses"], answer["expected_losses"], strict=True):
            assert not mine or mine == pytest.approx(theirs, rel=1e-10, abs=1e-12)
        assert answer["missing"] == []
        assert answer["count"] > 0
        assert answer["gradients"] <= 1e-10 * answer["largest"]
        assert answer["weights"] <= 1e-9 * max(answer["largest"], 1)
        assert answer["buffers"] <= 1e-12
        assert answer["kept"] == 0
    assert any(answer["losses"][0] for answer in outcomes[name]), case


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_in_the_same_words(outcomes, name: str):
    """Tests that what cannot be trained exactly is refused by both ranks, with the layer and the remedy."""
    first, second = outcomes[name]
    assert first == second
    assert first["refused"].startswith(REFUSED[name][1]), first


UNTOUCHED = "the optimizer has not been run; to leave such steps out, or to look away: --on-nonfinite skip, or ignore"
STOPPED = {
    "other_batches": "iteration 0: inputs and target of rank 1 (d1) differ from those of rank 0 (d0), so outputs would",
    "other_targets": "iteration 1: target of rank 1 (d1) differs from those of rank 0 (d0), so outputs would be held",
    "nan_stops": "iteration 1: the loss of microbatch 2 is nan: layer 'l0' of stage 0 on rank 0 (d0) is the first to "
    f"give it; {UNTOUCHED}",
    "sharded_nan_stops": "iteration 1: the loss of microbatch 2 is nan: layer 'l0' of stage 0 on rank 0 (d0) is the "
    f"first to give it; {UNTOUCHED}",
    "sharded_nan_in_gradient_stops": "iteration 0: all losses are finite, but the gradient of l1:weight on rank 1 "
    f"(d1), summed over all microbatches, is not; {UNTOUCHED}",
    "nan_in_gradient_stops": "iteration 0: all losses are finite, but the gradient of l1:weight on rank 1 (d1), summed "
    f"over all microbatches, is not; {UNTOUCHED}",
    "dealt_nan_stops": "iteration 1: the loss of microbatch 2 is nan: layer 'l0' of stage 0 on rank 0 (d0) is the "
    f"first to give it; {UNTOUCHED}",
    "failing_optimizer": "the optimizer's step (Failing) raised KeyError: 'momentum' (execute_run_worker.py, line ",
    "raising_factory": "the factory of layer 'l1' raised TypeError: no such width (execute_run_worker.py, line ",
}
"""Whole runs that end, and in which words."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What every rank says about the scenarios of `execute_run_worker.py`."""
    folder = tmp_path_factory.mktemp("runs")
    for name, placement, cut in [("a", "0 1", (1, 1)), ("b", "1 0", (1, 1)), ("c", "0/1", (2,))]:
        plan = make_random_plan(placement, cut=cut, num_microbatches=3)
        (folder / f"{name}.json").write_text(render_plan(plan))
    (folder / "s.json").write_text(render_plan(shard(plan)))
    whole = make_random_plan("0/1", cut=(2,), num_microbatches=3, backward="B")
    (folder / "e.json").write_text(render_plan(whole))
    (folder / "d.json").write_text(render_plan(dealt("0/1", (2, 0), (1,), cut=(2,)).plan))
    run_ranks(folder, 2, worker=Path(__file__).parents[3] / "integration/execute_run_worker.py")
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("name", STOPPED)
def test_it_stops_in_the_same_words(runs, name: str):
    """Tests that a run that would go wrong ends on both ranks in one message that names step and place."""
    first, second = (rank[name] for rank in runs)
    assert first == second
    assert first["refused"].startswith(STOPPED[name]), first


def test_a_step_that_is_not_finite_can_be_left_out(runs):
    """Tests that skipping leaves all weights as they were, on every rank, and that the next step is taken."""
    for rank in runs:
        assert rank["nan_is_skipped"] == {"updated": [False, True], "changed": True}


def test_a_step_that_is_not_finite_can_be_ignored(runs):
    """Tests that a run that was told not to look takes the step, with nan behind the layer that gives it."""
    first, second = (rank["nan_is_ignored"] for rank in runs)
    assert first == {"updated": [True, True], "nan": False}
    assert second == {"updated": [True, True], "nan": True}


def test_an_overflow_lowers_the_loss_scale(runs):
    """Tests that an overflow costs its step on every rank, and that the scale grows again after two good ones."""
    for rank in runs:
        expected = {"updated": [False, True, True, True], "scale": 1023 - 900 + 1}
        assert rank["overflow_lowers_the_scale"] == {"a": expected, "s": expected}


def test_a_run_goes_on_from_a_checkpoint_to_the_bit(runs):
    """Tests that dropout, AdamW and a one-cycle schedule go on to the bit, under the same plan and another."""
    expected = next(
        rank["checkpoints_resume"]["expected"] for rank in runs if rank["checkpoints_resume"]["expected"][0]
    )
    for name in ("a", "b"):
        found = [rank["checkpoints_resume"]["found"][name] for rank in runs]
        assert [first for first, _ in found] == [4, 4]
        assert [losses for _, losses in found if losses[0]] == [expected]
    assert next(rank["checkpoints_resume"]["left"] for rank in runs) == ["step-00000004"]


def test_a_checkpoint_is_whole_or_not_there(runs):
    """Tests that a writing that breaks off leaves the checkpoint of that name, and the newest, as they were; and that
    the next one is written all the same.
    """
    expected = {"said": ["no room"] * 2, "found": ["step-00000001", 1, True]}
    for rank in runs:
        found = dict(rank["writing_breaks_off"])
        left = found.pop("left")
        assert found == expected
        assert [name for name in left if not name.startswith(".")] == ["step-00000002"]


def test_batch_norms_of_replicas_can_be_those_of_torchs_wrapper(runs):
    """Tests that weights and running averages on every rank are those of DistributedDataParallel, which exchanges no
    statistics and keeps the first rank's averages.
    """
    for rank in runs:
        found = rank["statistics_of_replicas"]
        assert found["distance"] < 1e-9  # AdamW divides by small numbers
        assert (found["tensors"], found["losses"]) == (18, 3)


def test_an_evaluation_changes_nothing(runs):
    """Tests that losses without dropout are the same under two plans, with and without replicas."""
    (alone,) = (rank["evaluation"]["a"] for rank in runs if rank["evaluation"]["a"])
    for rank in runs:
        assert rank["evaluation"]["c"] == pytest.approx(alone, rel=1e-12)


def test_a_loss_of_two_outputs_is_evaluated(runs):
    """Tests that an evaluation hands a loss all that the model gives, as a step does, in one stage and in two."""
    for rank in runs:
        for evaluated, trained in rank["evaluation_of_two_outputs"].values():
            assert evaluated == pytest.approx(trained, rel=1e-12)
    assert len(runs[0]["evaluation_of_two_outputs"]["e"][0]) == 3


def test_dealt_microbatches_are_evaluated_as_in_one_pipeline(runs):
    """Tests that losses under a dealing are those of one pipeline, dropout included, and the same on all that know."""
    (alone,) = (rank["dealt_evaluation"]["a"] for rank in runs if rank["dealt_evaluation"]["a"][0])
    for rank in runs:
        losses, loss = rank["dealt_evaluation"]["d"]
        assert losses == pytest.approx(alone[0], rel=1e-12)
        assert loss == pytest.approx(alone[1], rel=1e-12)


def test_one_batch_is_cut_as_the_plan_says(runs):
    """Tests that a batch becomes microbatches of the sizes stated, or equal ones, and is refused where it cannot."""
    found = runs[0]["listed_by_the_plan"]
    assert [found["stated"], found["equal"]] == [[5, 1, 6], [3, 3, 3, 3]]
    end = " together; give as many, or a list of microbatches"
    assert found["2"] == "the batch has 12 samples, but the 2 microbatches have 6" + end
    assert found["5"] == "the batch has 12 samples, but the 5 microbatches have 10" + end


def test_a_process_without_its_own_microbatches_says_so(runs):
    """Tests that who is given what others take, and not what it takes itself, is told which microbatch is missing."""
    said = [rank["dealt_without_its_own"] for rank in runs]
    assert said[0].startswith(
        "stage 0 on rank 0 takes microbatch 0 of iteration 0, but was given 1; give every process"
    )
    assert said[1].startswith("stage 0 on rank 1 takes microbatch 1 of iteration 0, but was given 0, 2; give every")


def test_a_loop_of_ones_own_trains_alike(runs):
    """Tests that batches given by hand have the losses of those that the training numbers."""
    for rank in runs:
        assert rank["own_loop"]["found"] == rank["own_loop"]["expected"]
    assert any(rank["own_loop"]["found"][0] for rank in runs)


def test_sharding_changes_nothing_but_the_memory(runs):
    """Tests that weights are the same to the bit with two replicas, and that each holds its half of the state."""
    for name, made in {
        name: [rank["sharded_alike"][name] for rank in runs] for name in runs[0]["sharded_alike"]
    }.items():
        assert all(each["alike"] and each["moved"] for each in made), (name, made)
        whole, most = made[0]["bytes"][0], max(each["bytes"][1] for each in made)
        assert sum(each["bytes"][1] for each in made) == whole
        assert most <= 0.51 * whole, (name, made)


def test_buckets_that_travel_early_change_nothing(runs):
    """Tests that weights and losses are the same to the bit, and that all buckets left within the last backward."""
    for rank in runs:
        expected = {"alike": True, "buckets": [1, 4], "early": 4, "moved": True}
        assert rank["buckets_travel_early"] == {"plain": expected, "accumulating": expected}


def test_sharded_state_goes_on_to_the_bit(runs):
    """Tests that a checkpoint of sharded state goes on under the same plan and under one that does not shard it."""
    for rank in runs:
        assert rank["sharded_resumes"] == {"s": True, "c": True}


def test_optimizers_that_look_at_whole_parameters_are_refused(runs):
    """Tests that norms, factored moments and odd states are found before anything runs, in the same words."""
    first, second = (rank["sharded_refused"] for rank in runs)
    assert first == second
    start = "stage 0 is planned with shard = 'optimizer', but "
    kinds = ["(Adafactor) moves a part of l0:", "(Normalised) moves a part of l0:", "keeps 'columns' of l0:"]
    kinds.append("(Muon) moves a part of l0:inner.weight otherwise than the whole of it; use one that works element by")
    wanted = [f"its optimizer {kind}" for kind in kinds]
    wanted.append("l0:inner.weight does not lie in one row in memory; make it contiguous, or plan with shard = 'none'")
    assert len(first) == len(wanted)
    for said, text in zip(first, wanted, strict=True):
        assert said.startswith(start + text), said
