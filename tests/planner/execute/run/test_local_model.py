"""What of a model is on a process, which of its parameters are one, and what layers may not remember by the plan."""

import re
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import distributed, nn

from planner.actions import parse_action
from planner.execute.model.cut.outside_state import find_outside
from planner.execute.model.layer_state import OwnPlace
from planner.execute.run import execution as run_execution
from planner.execute.run.execution import Execution
from planner.execute.run.local_model import LocalModel
from planner.execute.run.preparation import prepare
from planner.execute.table.layout import make_layout
from planner.execute.training import Training
from planner.plan import Plan
from tests.planner.execute.orders import make_random_plan

SEEN = [0]


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of one."""
    distributed.init_process_group("gloo", f"file://{tmp_path / 'meeting'}", world_size=1, rank=0)
    yield
    distributed.destroy_process_group()


class Renamed(nn.Linear):
    """Has its weight under a second name."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.same = self.weight


def make_execution(
    backward: str, *, last: type[nn.Module] = Renamed, cut: tuple[int, ...] = (3,), **more: Any
) -> Execution:
    plan = make_random_plan(" ".join("0" for _ in cut), num_microbatches=2, cut=cut, backward=backward)
    training = Training(
        layers={"l0": lambda: nn.Linear(4, 4), "l1": lambda: nn.Linear(4, 4), "l2": lambda: last()},
        loss=nn.functional.mse_loss,
        batch=lambda number: (torch.ones(4, 4), torch.zeros(4, 4)),
        optimizer=lambda given: torch.optim.SGD(given, lr=0.1),
        tied=(("l0:weight", "l2:weight"),),
        **more,
    )
    return Execution(prepare(plan, training), device=torch.device("cpu"))


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("backward", ["B", "IW"])
def test_copies_within_a_stage_are_one_parameter(backward: str):
    """Tests that a tied weight is stepped once and added up with nobody, under all its names."""
    execution = make_execution(backward)
    first, last = execution.layer("l0"), execution.layer("l2")
    assert first.weight is last.weight is last.same
    assert execution.model.ties == []
    assert len(execution.optimizer.param_groups[0]["params"]) == len(execution.update.parameters) == 5
    assert {"l0:weight", "l2:weight"} <= execution.update.settings().keys()
    before = first.weight.detach().clone()
    execution.step(0)
    assert not torch.equal(before, last.weight)


@pytest.mark.usefixtures("alone")
def test_nothing_lasts_amid_what_comes_and_goes(monkeypatch: pytest.MonkeyPatch):
    """Tests that layers are made, and iterations run up to the first update, outside the heap, and no later ones."""
    entered = []
    monkeypatch.setattr(run_execution, "outside_the_heap", lambda: nullcontext(entered.append("once")))
    execution = make_execution("B", accumulate=2)
    counts = [len(entered)]
    for number in range(4):
        assert execution.step(number).is_updated == bool(number % 2)
        counts.append(len(entered))
    assert counts == [1, 2, 3, 3, 3]


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("backward", ["IW", "B"])
def test_copies_of_two_stages_stay_copies(backward: str):
    """Tests that a weight of two stages is added up from its copies."""
    execution = make_execution(backward, cut=(1, 2))
    assert execution.layer("l0").weight is not execution.layer("l2").weight
    assert [len(tie.copies) for tie in execution.model.ties] == [2]
    execution.step(0)
    assert torch.equal(execution.layer("l0").weight, execution.layer("l2").weight)


@pytest.mark.usefixtures("alone")
def test_copies_of_other_types_stay_copies():
    """Tests that a weight which one layer trains and another only reads is not trained by both."""

    class Reading(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 4)
            self.weight.requires_grad_(False)

    execution = make_execution("B", last=Reading)
    assert execution.layer("l0").weight is not execution.layer("l2").weight
    assert [len(tie.copies) for tie in execution.model.ties] == [2]


class Counting(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        SEEN[0] += 1
        return x * SEEN[0]


def in_order(plan: Plan, words: str) -> Plan:
    return replace(plan, schedule=dict.fromkeys(plan.schedule, tuple(map(parse_action, words.split()))))


ALONE = make_random_plan("0", num_microbatches=2)
PLANS = {
    "alone": (ALONE, ""),
    "another order": (in_order(ALONE, "0F1 0B1 0F0 0B0"), "runs microbatch 1 before 0; keep nothing"),
    "replicas": (make_random_plan("0/1", num_microbatches=2), "each replica sees others; .*--max-replicas 1"),
    "two processes": (make_random_plan("0 1", num_microbatches=2), "layers on other processes use one of their own"),
    "two stages of one": (make_random_plan("0 0", num_microbatches=2), ""),
}


@pytest.mark.parametrize("name", PLANS)
def test_what_one_process_would_not_see_may_not_be_remembered(name: str):
    """Tests that variables outside, attributes and buffers are asked for where the plan makes a difference, and only
    there: buffers of replicas are compared anyway.
    """
    plan, reason = PLANS[name]
    layout, layer = make_layout(plan), Counting()
    (variable,) = find_outside(layer)
    preparation = SimpleNamespace(outside=(frozenset([variable]),) * layout.num_stages)
    trial = LocalModel._find_trial(SimpleNamespace(layout=layout, rank=0, preparation=preparation), 0)
    assert (trial is None) == (reason == "")
    if trial is not None:
        attribute, buffer = OwnPlace(layer, "seen", False), OwnPlace(layer, "seen", True)
        asked = [trial.is_asked(place) for place in (variable, attribute, buffer)]
        assert asked == [True, name != "two processes", name == "another order"]
        assert re.search(reason, trial.reason)


class Averaged(nn.Module):
    """A batch norm, and a buffer that is no average of it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("other", torch.zeros(1))


@pytest.mark.parametrize(
    ("placement", "sources"),
    [("2 0/1 1/2 1/2 1/2 1/2 2 2 1/0", {1: [1, 2], 2: [1, 2]}), ("0+1/2+3", {0: [0], 1: [1], 2: [0], 3: [1]})],
)
def test_running_averages_come_from_the_first_of_a_place_in_one_order(monkeypatch, placement: str, sources: Any):
    """Tests that ranks go through stages alike, ask the first rank that holds their part, and share averages only."""
    plan = make_random_plan(placement, num_microbatches=2)
    layout, asked = make_layout(plan), list[tuple[int, Any, torch.Tensor]]()
    monkeypatch.setattr(distributed, "broadcast", lambda x, source, group: asked.append((source, group, x)))
    averaging = frozenset(n for n, ranks in enumerate(layout.owners) if {*sources} <= {*ranks})
    for rank, expected in sources.items():
        asked.clear()
        layer, groups = Averaged(), SimpleNamespace(stages=list(range(layout.num_stages)))
        model: Any = SimpleNamespace(
            plan=plan, layout=layout, rank=rank, groups=groups, preparation=SimpleNamespace(averaging=averaging)
        )
        model.layer = lambda _, layer=layer: layer
        LocalModel.share_averages(model)
        assert [(source, group) for source, group, _ in asked[::3]] == list(
            zip(expected, sorted(averaging), strict=True)
        )
        assert {id(x) for _, _, x in asked} == {id(each) for each in layer.norm.buffers()}
