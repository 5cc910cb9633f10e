"""What of a model is on a process, and which of its parameters are one."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed, nn

from planner.execute.run.execution import Execution
from planner.execute.run.preparation import prepare
from planner.execute.training import Training
from tests.planner.execute.orders import make_random_plan


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


def make_execution(backward: str, *, last: type[nn.Module] = Renamed, cut: tuple[int, ...] = (3,)) -> Execution:
    plan = make_random_plan(" ".join("0" for _ in cut), num_microbatches=2, cut=cut, backward=backward)
    training = Training(
        layers={"l0": lambda: nn.Linear(4, 4), "l1": lambda: nn.Linear(4, 4), "l2": lambda: last()},
        loss=nn.functional.mse_loss,
        batch=lambda number: (torch.ones(4, 4), torch.zeros(4, 4)),
        optimizer=lambda given: torch.optim.SGD(given, lr=0.1),
        tied=(("l0:weight", "l2:weight"),),
    )
    return Execution(prepare(plan, training), device=torch.device("cpu"))


@pytest.mark.usefixtures("alone")
def test_copies_within_a_stage_are_one_parameter():
    """Tests that a tied weight is stepped once and added up with nobody, under all its names."""
    execution = make_execution("B")
    first, last = execution.layer("l0"), execution.layer("l2")
    assert first.weight is last.weight is last.same
    assert execution.model.ties == []
    assert len(execution.optimizer.param_groups[0]["params"]) == len(execution.update.parameters) == 5
    assert {"l0:weight", "l2:weight"} <= execution.update.settings().keys()
    before = first.weight.detach().clone()
    execution.step(0)
    assert not torch.equal(before, last.weight)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("backward", "cut"), [("IW", (3,)), ("B", (1, 2))])
def test_copies_whose_gradients_come_apart_stay_copies(backward: str, cut: tuple[int, ...]):
    """Tests that a weight of two stages, or of a stage whose W comes later, is added up from its copies."""
    execution = make_execution(backward, cut=cut)
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
