"""From gradients to weights, on one process."""

from functools import partial
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


def by_address(parameters: list[Any]) -> torch.optim.Optimizer:
    return by_number(list({each.data_ptr(): each for each in parameters}.values()))


def by_identity(parameters: list[Any]) -> torch.optim.Optimizer:
    return by_number(list({id(each): each for each in parameters if each.is_leaf and each.requires_grad}.values()))


def by_size(parameters: list[Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        [{"params": [each], "lr": 1 / each.shape[0] / each.numel() / each.ndim} for each in parameters]
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


FACTORIES = [
    by_place, by_number, by_shape, by_address, by_identity, by_size, without_last, of_two_kinds, of_two_forms,
]  # fmt: skip


@pytest.mark.parametrize("factory", FACTORIES)
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


@pytest.mark.parametrize("is_fused", [False, True])
def test_weights_of_other_processes_take_no_memory(is_fused: bool):
    """Tests that a constructor that makes states of all weights makes none of those that are elsewhere."""
    sizes = list[int]()

    def factory(parameters: list[Any]) -> torch.optim.Optimizer:
        made = torch.optim.Adagrad(parameters, fused=is_fused)
        sums = (state["sum"] for state in made.state.values())
        sizes.append(sum(each.nbytes for each in sums if not each.is_meta))
        return made

    make = {"l0": lambda: nn.Linear(2, 2, bias=False), "l1": lambda: nn.Linear(2**19, 2**9)}
    given: Any = {"layers": make, "loss": nn.functional.mse_loss, "batch": lambda _: ()}
    told_of(Training(**given, optimizer=factory), "l0")
    assert sizes == [16]


def settings_of_first(name: str, _: Any) -> dict[str, float]:
    return {"lr": 0.5 if name == "l0:weight" else 0.1}


def keeping_sums(parameters: list[Any]) -> torch.optim.Optimizer:
    return torch.optim.Adagrad(parameters, lr=1 / len(parameters), initial_accumulator_value=0.25)


@pytest.mark.parametrize(
    ("factory", "settings"),
    [(by_place, None), (by_number, None), (keeping_sums, None), (keeping_sums, settings_of_first)],
)
def test_copies_of_a_tied_weight_count_once(factory: Any, settings: Any):
    """Tests that a process that holds both copies, in two stages, gives its factory one, and steps both alike; so does
    one that holds the second alone.
    """
    make = {f"l{number}": lambda: nn.Linear(3, 3, bias=False) for number in range(3)}
    given: Any = {"layers": make, "loss": nn.functional.mse_loss, "batch": lambda _: (), "settings": settings}
    training = Training(**given, optimizer=factory, tied=(("l0:weight", "l2:weight"),))
    alone, whole = told_of(training, "l0", "l1"), find_trained(training)
    for layers in (("l0", "l2"), ("l0", "l1", "l2"), ("l2",), ("l1",)):
        told = told_of(training, *layers)
        assert told == {f"{each}:weight": alone[f"{'l0' if each == 'l2' else each}:weight"] for each in layers}
    mine = {name: nn.Parameter(torch.zeros(each.shape)) for name, each in whole.items()}
    (made,) = make_optimizers(training, list(mine.items()), stepped=list(mine.values()), whole=whole)
    if factory is keeping_sums:
        one, twin = (made.state[mine[name]]["sum"] for name in ("l0:weight", "l2:weight"))
        assert torch.equal(one, twin)
        assert one is not twin


def make_all(factory: Any, *parameters: nn.Parameter, **more: Any) -> tuple[torch.optim.Optimizer, ...]:
    given: Any = {"layers": {"a": nn.Identity}, "loss": nn.functional.mse_loss, "batch": lambda _: ()}
    training = Training(**given, optimizer=factory, **more)
    named = [(f"a:{number}", each) for number, each in enumerate(parameters)]
    return make_optimizers(training, named, stepped=parameters)


def test_optimizers_that_evaluate_the_loss_again_are_refused():
    """Tests that one whose step wants a closure is refused by its name, with what to give instead."""
    with pytest.raises(ValueError, match=r"the step of LBFGS wants a closure, .* give an optimizer that steps by grad"):
        make_all(torch.optim.LBFGS, nn.Parameter(torch.ones(2)))


class Forwarding(torch.optim.SGD):
    """Hands on whatever its step is given."""

    def step(self, *args: Any, **named: Any) -> Any:
        return super().step(*args, **named)


def with_schedule(given: Any) -> torch.optim.Optimizer:
    """A schedule puts a function of its own in the place of the optimizer's step."""
    made = torch.optim.AdamW(given, lr=0.1)
    torch.optim.lr_scheduler.LinearLR(made)
    return made


def with_own_step(given: Any) -> torch.optim.Optimizer:
    made: Any = torch.optim.SGD(given, lr=0.1)
    inner = made.step
    made.step = lambda *args, **named: inner(*args, **named)
    return made


@pytest.mark.parametrize("factory", [with_schedule, partial(Forwarding, lr=0.1), with_own_step])
def test_steps_that_take_anything_want_no_closure(factory: Any):
    """Tests that wrapped steps, and those that hand on what they are given, are taken."""
    assert len(make_all(factory, nn.Parameter(torch.ones(2)))) == 1
