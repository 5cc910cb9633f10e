"""From gradients to weights, on one process."""

from typing import Any

import pytest
import torch
from torch import nn

from planner.execute.parallel.update import Update, make_optimizers
from planner.execute.run.shard_check import find_trained
from planner.execute.training import Training


def make_update(*grads: torch.Tensor | None) -> Update:
    parameters = [nn.Parameter(torch.ones(3 if grad is None else len(grad))) for grad in grads]
    for parameter, grad in zip(parameters, grads, strict=True):
        parameter.grad = grad
    training = Training(
        layers={"a": nn.Identity},
        loss=lambda y, t: (y - t).sum(),
        batch=lambda _: (torch.ones(1, 3), torch.ones(1, 3)),
        optimizer=lambda given: torch.optim.SGD(given, lr=0.1),
    )
    named = [(f"a:{number}", parameter) for number, parameter in enumerate(parameters)]
    return Update(training, named, counted=parameters, device=torch.device("cpu"))


@pytest.mark.parametrize("num_others", [1, 2**18])
@pytest.mark.parametrize(
    ("values", "is_finite"),
    [
        ((1.0, -2.0, 0.0), True),
        ((3e38, -3e38, 3e38), True),  # their squares are not
        ((1.0, float("nan"), 0.0), False),
        ((float("inf"), float("-inf"), 0.0), False),
    ],
)
def test_finite_gradients_are_told_from_others(values: tuple[float, ...], is_finite: bool, num_others: int):
    """Tests that large gradients are finite, and that one that is not is found wherever and beside how many it is."""
    others = torch.ones(num_others), None
    assert make_update(*others, torch.tensor(values)).has_finite_gradients() is is_finite
    assert make_update(torch.tensor(values), *others).has_finite_gradients() is is_finite


def test_nothing_is_finite():
    """Tests that a process without gradients has nothing against a step."""
    assert make_update(None).has_finite_gradients()
    assert make_update(torch.zeros(0)).has_finite_gradients()


def test_optimizers_of_other_weights_are_refused():
    """Tests that an optimizer of the model's own weights, which no layer computes with, is refused, whether or not it
    has some of the right ones, and one that has a weight twice by its name."""
    own, other = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))
    for held in ([other], [own, other]):
        with pytest.raises(ValueError, match=r"a weight \(2,\) that its factory was not given.*make it of the list"):
            make_all(lambda _, held=held: torch.optim.SGD(held, lr=0.1), own)
    with pytest.raises(ValueError, match="a:0 is given to two optimizers; give each parameter to one"):
        make_all(lambda given: [torch.optim.SGD(given), torch.optim.Adam(given)], own)
    assert len(make_all(torch.optim.SGD, own)) == 1


def test_factories_get_weights_in_the_order_of_the_model():
    """Tests that layers may come in another order than the model's own list, which a factory may pick from by place."""
    one, other, third = (nn.Parameter(torch.full((3,), float(number))) for number in range(3))

    def by_place(given: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD([{"params": given[:1], "lr": 0.5}, {"params": given[1:], "lr": 0.1}])

    (made,) = make_all(by_place, one, other, third, order={"a:0": 1, "a:1": 2, "a:2": 0})
    assert [group["params"] for group in made.param_groups] == [[third], [one, other]]
    (made,) = make_all(by_place, one, other, third)
    assert [group["params"] for group in made.param_groups] == [[one], [other, third]]


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


def of_two_forms(parameters: list[Any]) -> list[torch.optim.Optimizer]:
    matrices, others = ([each for each in parameters if (each.dim() == 2) is is_so] for is_so in (True, False))
    return [torch.optim.Muon(matrices), torch.optim.AdamW(others, fused=True)]


def told_of(training: Training, *layers: str) -> dict[str, Any]:
    """What the optimizers of a process with these layers are, and are told, of each weight that they step."""
    whole = find_trained(training)
    mine = {name: nn.Parameter(torch.zeros(each.shape)) for name, each in whole.items() if name[:2] in layers}
    made = make_optimizers(training, list(mine.items()), stepped=list(mine.values()), whole=whole)
    assert all(any(group["params"] for group in each.param_groups) for each in made)
    names = {id(each): name for name, each in mine.items()}
    return {
        names[id(each)]: (type(optimizer), group["lr"])
        for optimizer in made
        for group in optimizer.param_groups
        for each in group["params"]
    }


@pytest.mark.parametrize("factory", [by_place, by_number, by_shape, without_last, of_two_kinds, of_two_forms])
def test_factories_tell_what_they_tell_in_one_process(factory: Any):
    """Tests that a process with some layers steps their weights as one with all does, if a factory goes by place, by
    number or by shape, wants some of each shape, or leaves weights out.
    """
    make = {"l0": lambda: nn.Embedding(3, 3), **{f"l{number}": lambda: nn.Linear(3, 3) for number in range(1, 4)}}
    given: Any = {"layers": make, "loss": nn.functional.mse_loss, "batch": lambda _: ()}
    training = Training(**given, optimizer=factory)
    alone = told_of(training, *make)
    assert len(alone) == 7 - 2 * (factory is without_last)
    for layers in (("l0",), ("l0", "l1"), ("l2", "l3"), ("l3",)):
        assert told_of(training, *layers) == {name: each for name, each in alone.items() if name[:2] in layers}


def make_all(factory: Any, *parameters: nn.Parameter, **more: Any) -> tuple[torch.optim.Optimizer, ...]:
    given: Any = {"layers": {"a": nn.Identity}, "loss": nn.functional.mse_loss, "batch": lambda _: ()}
    training = Training(**given, optimizer=factory, **more)
    named = [(f"a:{number}", each) for number, each in enumerate(parameters)]
    return make_optimizers(training, named, stepped=parameters)
