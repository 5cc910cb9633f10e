"""Weights that some iterations do not use: their gradients, weights and optimizer states are those of one process.

A weight without a gradient is passed over by optimizers, one with a gradient of zeros decays and its state moves.
"""

from dataclasses import replace
from typing import Any

import pytest

from tests.long_runs import IS_LONG
from tests.planner.execute.parallel.test_full_sharding import apart, fully
from tests.planner.execute.run.test_execution import Case, drawn, run_cases, sharded, with_samples
from tests.planner.execute.stage.test_split_stage import split

TWO: dict[str, Case] = {
    "two replicas": drawn("0/1", cut=(2,), num_microbatches=2, model="choosing"),
    "whole backward": drawn("0/1", cut=(2,), num_microbatches=2, model="choosing", backward="B"),
    "recomputed": drawn("0/1", cut=(2,), num_microbatches=2, model="choosing", recompute="y"),
    "two stages, crossed": drawn("0/1 1/0", num_microbatches=2, model="choosing"),
    "uneven replicas": drawn("0 0/1", num_microbatches=2, model="choosing"),
    "shares of 11 and 1 samples": with_samples(drawn("0/1", cut=(2,), num_microbatches=2, model="choosing"), (11, 1)),
    "foreach": drawn("0/1", cut=(2,), num_microbatches=2, model="foreach"),
    "fused": drawn("0/1", cut=(2,), num_microbatches=2, model="fused"),
    "momentum and decay": drawn("0/1", cut=(2,), num_microbatches=2, model="momentum"),
    "accumulated and clipped": drawn("0/1", cut=(2,), num_microbatches=2, model="accumulated"),
    "loss scaled": drawn("0/1", cut=(2,), num_microbatches=2, model="scaled"),
    "tied across stages": drawn("0/1 0/1", num_microbatches=2, model="tied_experts"),
    "tied within a stage": drawn("0/1", cut=(2,), num_microbatches=2, model="tied_experts"),
    "tied to one": drawn("0/1", cut=(2,), num_microbatches=2, model="tied_experts", backward="B"),
    "tied across processes": drawn("0 1", num_microbatches=2, model="tied_experts"),
    "sparse": drawn("0/1", cut=(2,), num_microbatches=2, model="sparse"),
    "sparse, one replica each": drawn("0 1", num_microbatches=2, model="sparse"),
    "early exit": drawn("0/1", cut=(3,), num_microbatches=2, model="leaving"),
    "frozen at first": drawn("0/1", cut=(2,), num_microbatches=2, model="frozen_first"),
    "a stage that nobody uses": drawn("0 1", num_microbatches=2, model="ignoring"),
    "a stage that nobody uses, on one process": drawn("0 0 1", num_microbatches=2, model="ignoring"),
    "stages that nobody uses, two replicas": drawn("0/1 0/1 0", num_microbatches=2, model="ignoring"),
    "a tensor that nobody uses": drawn("0 1 0", num_microbatches=2, model="sided"),
    "a tensor that nobody uses, uneven replicas": drawn("0 0/1", cut=(2, 1), num_microbatches=2, model="sided"),
    "a tensor that nobody uses, split": split("0;1;1 1;1;0", cut=(2, 1), num_microbatches=2, model="sided"),
    "a tensor that nobody uses, fully sharded": fully("0/1 0/1", cut=(1, 2), num_microbatches=2, model="sided"),
    "a tensor that the loss does not use": drawn("0 1", num_microbatches=2, model="sided_to_the_end"),
    "sharded": sharded("0/1", cut=(2,), num_microbatches=2, model="choosing"),
    "sharded, two stages": sharded("0/1 1/0", num_microbatches=2, model="choosing"),
    "sharded, accumulated and clipped": sharded("0/1", cut=(2,), num_microbatches=2, model="accumulated"),
    "sharded, tied": sharded("0/1 0/1", num_microbatches=2, model="tied_experts"),
    "sharded, sparse": sharded("0/1", cut=(2,), num_microbatches=2, model="sparse"),
    "fully sharded": fully("0/1", cut=(2,), num_microbatches=2, model="choosing"),
    "fully sharded, I and W": apart("0/1", cut=(2,), num_microbatches=2, model="choosing"),
    "fully sharded, accumulated and clipped": fully("0/1", cut=(2,), num_microbatches=2, model="accumulated"),
    "fully sharded, tied": fully("0/1 0/1", num_microbatches=2, model="tied_experts"),
    "fully sharded, sparse": fully("0/1", cut=(2,), num_microbatches=2, model="sparse"),
    "fully sharded, early exit": fully("0/1", cut=(3,), num_microbatches=2, model="leaving"),
}
LEFT_OUT = {
    *("whole backward", "recomputed", "uneven replicas", "fused", "loss scaled", "tied within a stage"),
    *("sharded, two stages", "sharded, sparse", "fully sharded, tied", "fully sharded, early exit"),
    "a stage that nobody uses, on one process",
}
"""Those that `make test` leaves to `make test-long`."""
assert TWO.keys() >= LEFT_OUT
RUN = {name: replace(case, steps=4) for name, case in TWO.items() if IS_LONG or name not in LEFT_OUT}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What both ranks say about every row."""
    return run_cases(RUN, 2, folder=tmp_path_factory.mktemp("unused"))


@pytest.mark.parametrize("name", RUN)
def test_weights_without_use_stay_as_in_one_process(outcomes, name: str):
    """Tests that gradients are missing where one process has none, and that weights, states and losses are its own."""
    for answer in outcomes[name]:
        assert "refused" not in answer, answer
        assert answer["missing"] == []
        assert answer["count"] > 0
        assert answer["gradients"] <= 1e-10 * answer["largest"]
        assert answer["weights"] <= 1e-9
        for mine, theirs in zip(answer["losses"], answer["expected_losses"], strict=True):
            assert not mine or mine == pytest.approx(theirs, rel=1e-9)
