"""Optimizers that look at the weights of several stages."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from planner.errors import ExecutionError
from planner.execute.run.shard_check import require_sharding
from planner.execute.training import Training
from tests.planner.execute.orders import make_random_plan


class Limiting(torch.optim.Optimizer):
    """Divides gradients by a norm: that of all together, or each by its own."""

    def __init__(self, parameters: Any, *, is_joint: bool) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.is_joint = is_joint

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        grads = [each.grad for group in self.param_groups for each in group["params"]]
        together = torch.nn.utils.get_total_norm(grads)
        for parameter in (each for group in self.param_groups for each in group["params"]):
            parameter.sub_(0.1 * parameter.grad / (together if self.is_joint else parameter.grad.norm()))


@pytest.mark.parametrize("placement", ["0 1", "0 0", "0/1 0/1"])
@pytest.mark.parametrize("is_joint", [True, False])
def test_joint_steps_want_all_weights_on_one_process(placement: str, is_joint: bool):
    """Tests that an optimizer whose step takes all weights together is refused where no process has them all."""
    training = Training(
        layers={"l0": lambda: nn.Linear(3, 3), "l1": nn.Tanh, "l2": lambda: nn.Linear(3, 3)},
        loss=nn.functional.mse_loss,
        batch=lambda number: (torch.ones(8, 3), torch.ones(8, 3)),
        optimizer=partial(Limiting, is_joint=is_joint),
    )
    plan = make_random_plan(placement, num_microbatches=2, cut=(1, 2))
    if not is_joint or placement != "0 1":
        require_sharding(plan, training, device=torch.device("cpu"))
        return
    with pytest.raises(
        ExecutionError, match=r"its optimizer \(Limiting\) moves l0:weight otherwise without the others"
    ):
        require_sharding(plan, training, device=torch.device("cpu"))


def by_place(parameters: list[Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD([{"params": parameters[:1], "lr": 0.5}, {"params": parameters[1:]}], lr=0.1)


def by_number(parameters: list[Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1 / len(parameters))


def by_shape(parameters: list[Any]) -> torch.optim.Optimizer:
    matrices = [each for each in parameters if each.dim() > 1]
    return torch.optim.SGD(
        [{"params": matrices, "lr": 0.5}, {"params": [p for p in parameters if p.dim() < 2]}], lr=0.1
    )


def without_last(parameters: list[Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters[:-2], lr=0.1)


def of_two_kinds(parameters: list[Any]) -> list[torch.optim.Optimizer]:
    rest = [torch.optim.AdamW(parameters[4:])] if len(parameters) > 4 else []
    return [torch.optim.SGD(parameters[:4], lr=0.1), *rest]


PLACED = {
    by_place: "l2:weight lr = 0.5 where a process holds some layers, and 0.1 where one holds all",
    by_number: "l0:weight lr = 0.025 where a process holds some layers, and 0.0125 where",
    without_last: "l1:weight optimizer = none where a process holds some layers, and SGD where",
    of_two_kinds: "l2:weight optimizer = SGD where a process holds some layers, and AdamW where",
    by_shape: "",
}


@pytest.mark.parametrize("placement", ["0 1", "0/1 0/1", "0 0/1"])
@pytest.mark.parametrize("factory", PLACED)
def test_factories_that_go_by_place_want_all_weights(placement: str, factory: Any):
    """Tests that what optimizers are told of a weight is what they are told in one process, or refused by its field."""
    training = Training(
        layers={f"l{number}": lambda: nn.Linear(3, 3) for number in range(4)},
        loss=nn.functional.mse_loss,
        batch=lambda number: (torch.ones(8, 3), torch.ones(8, 3)),
        optimizer=factory,
    )
    plan = make_random_plan(placement, num_microbatches=2, cut=(2, 2))
    is_told = PLACED[factory] and placement != "0/1 0/1" and (placement, factory) != ("0 0/1", without_last)
    if not is_told:
        require_sharding(plan, training, device=torch.device("cpu"))
        return
    wanted = "l2:weight lr = 0.025" if (placement, factory) == ("0 0/1", by_number) else PLACED[factory]
    with pytest.raises(ExecutionError, match=f"the optimizer's factory gives {wanted}"):
        require_sharding(plan, training, device=torch.device("cpu"))
