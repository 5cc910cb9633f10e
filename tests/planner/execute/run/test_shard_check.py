"""Optimizers that look at the weights of several stages."""

from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from planner.errors import ExecutionError
from planner.execute.run.shard_check import find_trained, require_sharding
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
            parameter.sub_(
                self.param_groups[0]["lr"] * parameter.grad / (together if self.is_joint else parameter.grad.norm())
            )


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
        require_sharding(plan, training, trained=find_trained(training), device=torch.device("cpu"))
        return
    with pytest.raises(
        ExecutionError, match=r"its optimizer \(Limiting\) moves l0:weight otherwise without the others"
    ):
        require_sharding(plan, training, trained=find_trained(training), device=torch.device("cpu"))


def clipped(parameters: list[Any], *, is_joint: bool) -> torch.optim.Optimizer:
    """SGD with a hook that clips gradients, of all weights or of each."""
    made = torch.optim.SGD(parameters, lr=1.0)
    clip: Any = nn.utils.clip_grad_norm_ if is_joint else nn.utils.clip_grad_value_
    made.register_step_pre_hook(lambda *_: clip(parameters, 0.01) and None)
    return made


@pytest.mark.parametrize("is_joint", [True, False])
def test_hooks_of_steps_are_tried(is_joint: bool):
    """Tests that torch's own optimizer with a hook that looks at all weights is refused, with what to give instead."""
    training = Training(
        layers={"l0": lambda: nn.Linear(3, 3), "l1": lambda: nn.Linear(3, 3)},
        loss=nn.functional.mse_loss,
        batch=lambda number: (torch.ones(8, 3), torch.ones(8, 3)),
        optimizer=partial(clipped, is_joint=is_joint),
    )
    plan = make_random_plan("0 1", num_microbatches=2, cut=(1, 1))
    with pytest.raises(ExecutionError, match=r"SGD.*clip by `max_norm`") if is_joint else nullcontext():
        require_sharding(plan, training, trained=find_trained(training), device=torch.device("cpu"))


def by_number(parameters: list[Any]) -> torch.optim.Optimizer:
    """Looks at each weight alone, but at how many there are when it is made."""
    made = Limiting(parameters, is_joint=False)
    made.param_groups[0]["lr"] = 1 / len(parameters)
    return made


def test_both_names_of_a_tied_weight_are_one_weight():
    """Tests that a step that depends on the number of weights is let be where a tied one has a name in two stages."""
    training = Training(
        layers={"l0": lambda: nn.Linear(3, 3), "l1": nn.Tanh, "l2": lambda: nn.Linear(3, 3)},
        loss=nn.functional.mse_loss,
        batch=lambda number: (torch.ones(8, 3), torch.ones(8, 3)),
        optimizer=by_number,
        tied=(("l0:weight", "l2:weight"),),
    )
    plan = make_random_plan("0 1", num_microbatches=2, cut=(1, 2))
    require_sharding(plan, training, trained=find_trained(training), device=torch.device("cpu"))


class Asking(torch.optim.SGD):
    """Evaluates the loss again, as sharpness-aware ones do, though its signature does not say so."""

    def step(self, closure: Any = None) -> None:
        assert closure is not None, "no closure"


def test_a_step_that_fails_is_told_before_anything_runs():
    """Tests that the optimizer, the error and what to give instead are named."""
    training = Training(
        layers={"l0": lambda: nn.Linear(3, 3), "l1": lambda: nn.Linear(3, 3)},
        loss=nn.functional.mse_loss,
        batch=lambda number: (torch.ones(8, 3), torch.ones(8, 3)),
        optimizer=Asking,
    )
    plan = make_random_plan("0 1", num_microbatches=2)
    with pytest.raises(
        ExecutionError, match=r"step \(Asking\) raised AssertionError: no closure .*; give an optimizer"
    ):
        require_sharding(plan, training, trained=find_trained(training), device=torch.device("cpu"))


class Sharpening(torch.optim.SGD):
    """Runs the forward once more in its step."""

    def step(self, closure: Any = None) -> Any:
        assert closure is not None, "it needs a closure"
        return super().step(closure)


@pytest.mark.parametrize("placement", ["0", "0/1", "0 1"])
@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (
            {"optimizer": Sharpening},
            r"step \(Sharpening\) raised .* it needs a closure .*; give an optimizer that steps by",
        ),
        ({"optimizer": torch.optim.LBFGS}, r"the step of LBFGS wants a closure, .*; give an optimizer that steps by"),
        ({"schedule": torch.optim.lr_scheduler.ReduceLROnPlateau}, r"ReduceLROnPlateau, .*; set the rate in your own"),
    ],
)
def test_steps_that_want_more_than_gradients_are_refused_first(placement: str, more: dict[str, Any], reason: str):
    """Tests that before anything is trained, also where one process has all weights, optimizers and schedules that
    ask for a closure or a loss are refused with what to give instead.
    """
    training = Training(
        **{
            "layers": {"l0": lambda: nn.Linear(3, 3), "l1": lambda: nn.Linear(3, 3)},
            "loss": nn.functional.mse_loss,
            "batch": lambda number: (torch.ones(8, 3), torch.ones(8, 3)),
            "optimizer": torch.optim.SGD,
        }
        | more
    )
    stages = len(placement.split())
    plan = make_random_plan(placement, num_microbatches=2, cut=(2,) if stages == 1 else (1, 1))
    with pytest.raises(ExecutionError, match=reason):
        require_sharding(plan, training, trained=find_trained(training), device=torch.device("cpu"))
