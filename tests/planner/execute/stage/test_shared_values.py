"""Layers that change in place what others are given."""

import pytest
import torch
from torch import nn

from planner.execute.run.preparation import prepare
from planner.execute.training import Training
from tests.planner.execute.orders import make_random_plan


class Giving(nn.Linear):
    """Gives a tensor that wants no gradient, and another one, or a part of it."""

    def __init__(self, *sizes: int, has_part: bool) -> None:
        super().__init__(*sizes)
        self.has_part = has_part

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        mark = x.detach().clone()
        return super().forward(x), mark, mark[:, :1] if self.has_part else x[:, :1].detach().clone()


class Changing(nn.Linear):
    """Changes one of the two in place, or a copy of it, and hands on neither."""

    def __init__(self, *sizes: int, place: int = 0, has_copy: bool = False) -> None:
        super().__init__(*sizes)
        self.place, self.has_copy = place, has_copy

    def forward(self, x: torch.Tensor, *marks: torch.Tensor) -> torch.Tensor:
        mark = marks[self.place].clone() if self.has_copy else marks[self.place]
        return super().forward(x) + mark.add_(1)


class Taking(nn.Linear):
    def forward(self, x: torch.Tensor, *marks: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + marks[-2]


class Alone(nn.Linear):
    """Changes in place what it alone is given, and hands it on."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).relu_()


def training(*middle: nn.Module, has_part: bool = False) -> Training:
    """l0 gives, l1 to the last but one is the middle, and the last takes what l0 gives as well."""
    layers = [Giving(4, 4, has_part=has_part), *middle, Taking(4, 4)]
    names = [f"l{number}" for number in range(len(layers))]
    return Training(
        layers={name: lambda layer=layer: layer for name, layer in zip(names, layers, strict=True)},
        loss=lambda output, target: (output - target).square().mean(),
        batch=lambda number: (torch.ones(8, 4), torch.ones(8, 4)),
        optimizer=torch.optim.SGD,
        inputs={names[-1]: (names[-2], "l0")},
    )


@pytest.mark.parametrize(
    ("middle", "cut", "has_part", "what"),
    [
        ([Changing(4, 4)], (1, 2), False, ""),  # both on the second, which has one copy
        ([Changing(4, 4)], (2, 1), False, ""),  # it is sent after the change
        ([Changing(4, 4)], (1, 1, 1), False, "layer 'l0' gives it, of which layer 'l2'"),
        ([Changing(4, 4, has_copy=True)], (1, 1, 1), False, ""),
        ([Changing(4, 4, place=1)], (3,), True, "layer 'l0' gives it, of which layer 'l1'"),  # it is laid in rows
        ([Changing(4, 4, has_copy=True)], (3,), True, ""),
        ([Changing(4, 4), Alone(4, 4)], (3, 1), False, ""),
    ],
)
def test_changes_that_others_would_not_see_are_refused(
    middle: list[nn.Module], cut: tuple[int, ...], has_part: bool, what: str
):
    """Tests that a layer may change in place what others see changed as in one process, and nothing else."""
    placement, edges = " ".join(map(str, range(len(cut)))), "0-1 1-2 0-2" if len(cut) > 2 else ""
    plan, made = (
        make_random_plan(placement, num_microbatches=2, cut=cut, edges=edges),
        training(*middle, has_part=has_part),
    )
    if not what:
        prepare(plan, made)
        return
    with pytest.raises(ValueError, match=what) as refusal:
        prepare(plan, made)
    assert str(refusal.value).startswith("layer 'l1' changes in place what")


def test_a_change_of_a_stage_s_own_input_names_its_remedy():
    """Tests that a layer whose input wants a gradient and comes from elsewhere is told to change a copy."""

    class First(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.relu_())

    made = Training(
        **(vars(training()) | {"layers": {"l0": lambda: nn.Linear(4, 4), "l1": lambda: First(4, 4)}, "inputs": {}})
    )
    with pytest.raises(ValueError, match=r"in-place operation; .* copies of tensors \(`clone\(\)`\)$"):
        prepare(make_random_plan("0 1", num_microbatches=2), made)
