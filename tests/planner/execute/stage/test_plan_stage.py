"""Plans run as written in torch's own schedule runtime: two gloo processes against one."""

import json
import os
import re
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from planner.baselines.layouts import EVEN
from planner.baselines.registry import METHODS, make_method_plan
from planner.export.torch_table import render_torch_table, torch_ranks
from planner.layout.costs import CostModel
from planner.plan import Plan
from planner.problem import Options, Problem
from planner.progress import Limits
from planner.verify import verify
from tests.integration.forked_ranks import Rank, run_forked
from tests.planner.export import chains
from tests.planner.hasty import make_plan

WORKER = Path(__file__).parents[3] / "integration/torch_pipeline_worker.py"

LAYER_KINDS = {"w": "block", "f": "frozen", "n": "tanh"}
"""The letters of `chains.make_chain`, and the layers that the worker makes of them."""

RELATIVE_TOLERANCE = 1e-12
"""For float64, where gradients are added up in another order; where the order is the same, so is every bit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A plan that two processes run."""

    kinds: str
    """A letter per layer."""
    problem: Problem
    """A chain of these layers on two devices."""
    plan: Plan
    """The plan to be run."""
    merges_backward: bool = True
    """How it is exported."""
    is_exact: bool = False
    """Microbatches are a power of two and every gradient is added up in order: no bit may differ."""

    def document(self, name: str, table: Path) -> dict[str, Any]:
        """What the worker is told."""
        ranks = torch_ranks(self.plan)
        table.write_text(render_torch_table(self.problem, self.plan, merges_backward=self.merges_backward))
        return {
            "name": name,
            "layers": [LAYER_KINDS[kind] for kind in self.kinds],
            "num_microbatches": self.problem.num_microbatches,
            "stages": [
                [ranks.index(stage.replicas[0][0]), [int(layer.removeprefix("l")) for layer in stage.layers]]
                for stage in self.plan.stages
            ],
            "table": str(table),
        }


def planned(kinds: str, *, num_microbatches: int, partition: str, placement: str) -> Case:
    """What the planner makes of a chain whose stages are decided; only the order is left to it."""
    options = Options(
        max_replicas=1,
        partition=tuple(tuple(f"l{number}" for number in stage.split(",")) for stage in partition.split()),
        placement=tuple(((device,),) for device in placement.split()),
    )
    problem = chains.make_chain(kinds, num_devices=2, num_microbatches=num_microbatches, options=options)
    return Case(
        kinds=kinds,
        problem=problem,
        plan=make_plan(problem, limits=Limits(time_limit_s=60, max_rounds=1)),
        merges_backward=False,
    )


def by_method(name: str, *, num_microbatches: int, merges_backward: bool = True, is_exact: bool = False) -> Case:
    """What a published method makes of eight layers."""
    problem = chains.make_chain("w" * 8, num_devices=2, num_microbatches=num_microbatches)
    method = next(method for method in METHODS if method.name == name)
    plan = make_method_plan(CostModel(problem), method, cut=EVEN)
    return Case(kinds="w" * 8, problem=problem, plan=plan, merges_backward=merges_backward, is_exact=is_exact)


def drawn(kinds: str, drawing: str, *, stages: str, num_microbatches: int) -> Case:
    """A plan written by hand."""
    options = Options(max_stages_per_device=3)
    problem = chains.make_chain(kinds, num_devices=2, num_microbatches=num_microbatches, options=options)
    return Case(kinds=kinds, problem=problem, plan=chains.make_plan(problem, drawing, stages=stages))


CASES = {
    "planned, one stage per rank": lambda: planned(
        "wwwww", num_microbatches=4, partition="0,1 2,3,4", placement="d0 d1"
    ),
    "planned, V": lambda: planned("wwwwww", num_microbatches=4, partition="0,1 2 3 4,5", placement="d0 d1 d1 d0"),
    "ZB-H1": lambda: by_method("ZB-H1", num_microbatches=4, merges_backward=False, is_exact=True),
    "ZB-H2, merged": lambda: by_method("ZB-H2", num_microbatches=8, is_exact=True),
    "ZB-V": lambda: by_method("ZB-V", num_microbatches=6, merges_backward=False),
    "interleaved": lambda: by_method("interleaved 1F1B", num_microbatches=4),
    "permuted, adjacent, revisited": lambda: drawn(
        "wwwwww",
        """
        d1: 0F0 1F0 0F1 1F1 3F0 3F1 3I0 3I1 3W1 3W0 1I0 0I0 1W0 1B1 0W0 0B1
        d0: 2F0 2F1 4F0 5F0 5B0 4F1 4I0 5F1 5B1 4I1 2I0 2I1 4W0 4W1 2W1 2W0
        """,
        stages="0@d1 1@d1 2@d0 3@d1 4@d0 5@d0",
        num_microbatches=2,
    ),
    "stages without weights": lambda: drawn(
        "nnwwfw",
        """
        d0: 0F0 1F0 0F1 1F1 1I0 0I0 1I1 0I1
        d1: 2F0 3F0 3I0 2I0 2F1 3W0 3F1 2W0 3I1 2I1 3W1 2W1
        """,
        stages="0@d0 1@d0 2@d1 3,4,5@d1",
        num_microbatches=2,
    ),
}
if find_spec("torch") is not None and version("torch").startswith("2.12."):
    del CASES["stages without weights"]  # torch's own stage refuses it there: it expects a gradient to send


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Case, list[dict[str, Any]]]]:
    """Every case, and what rank 0 and rank 1 say about it; one start of torch for all of them."""
    folder = tmp_path_factory.mktemp("torch")
    cases = {name: make() for name, make in CASES.items()}
    assert all(verify(case.problem, case.plan).passed for case in cases.values())
    for number, (name, case) in enumerate(cases.items()):
        document = case.document(name, folder / f"{number}.csv")
        (folder / f"{number}.case.json").write_text(json.dumps(document))
    run_ranks(folder)
    answers = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]
    return {name: (case, [answer[name] for answer in answers]) for name, case in cases.items()}


def run_ranks(folder: Path) -> None:
    """Both ranks to their end; they meet over loopback through a file in the folder."""
    ranks = [
        Rank(
            arguments=[str(folder), str(rank)],
            environment=os.environ | {"GLOO_SOCKET_IFNAME": "lo"},
            folder=WORKER.parents[2],
            log=folder / f"rank{rank}.log",
            program=str(WORKER),
        )
        for rank in range(2)
    ]
    answers = run_forked(ranks, timeout_s=60)
    assert [code for code, _ in answers] == [0, 0], "\n".join(said for _, said in answers)


@pytest.mark.parametrize("name", CASES)
def test_losses_equal_those_of_one_process(outcomes, name: str):
    """Tests that the loss of every microbatch is the one that a single process computes, bit by bit."""
    case, answers = outcomes[name]
    losses = [loss for answer in answers for loss in answer["losses"]]
    assert len(losses) == case.problem.num_microbatches
    assert losses == [loss for answer in answers for loss in answer["expected_losses"]]


@pytest.mark.parametrize("name", CASES)
def test_gradients_equal_those_of_one_process(outcomes, name: str):
    """Tests that every parameter has its gradient: to the bit, or within 1e-12 where the order of summation differs."""
    case, answers = outcomes[name]
    for answer in answers:
        assert answer["missing"] == []
        allowed = 0.0 if case.is_exact else RELATIVE_TOLERANCE * answer["largest_gradient"]
        assert answer["gradient_difference"] <= allowed
    assert any(answer["largest_gradient"] > 0 for answer in answers)


@pytest.mark.parametrize("name", CASES)
def test_plan_runs_as_written(outcomes, name: str):
    """Tests that each process executes the actions of its device, all of them, in the order of the table."""
    case, answers = outcomes[name]
    table = render_torch_table(case.problem, case.plan, merges_backward=case.merges_backward)
    for row, answer in zip(table.splitlines(), answers, strict=True):
        executed = [name for name in answer["executed"] if re.fullmatch(r"[0-9]+[FIWB][0-9]+", name)]
        assert executed == row.split(",")
