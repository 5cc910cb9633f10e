"""Weight gradients put off, against those of a plain backward; started by `test_deferred.py`, not imported.

Prints, per kind of layer, what was wrong; an empty list if nothing was.
"""

import copy
import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from planner.execute.model.deferred import WeightGradStore, defer_weight_grads

Make = Callable[[], tuple[nn.Module, torch.Tensor]]


def real(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


class Experts(nn.Module):
    """Half of the samples each."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(2, 4, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([nn.functional.linear(part, self.up[k]) for k, part in enumerate(x.chunk(2))])


class NamedLinear(nn.Linear):
    """As torchtitan's: made otherwise, and computes as ever."""

    def __init__(self, *, sizes: tuple[int, int]) -> None:
        super().__init__(*sizes)


class OtherLinear(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.weight.mean()


KINDS: dict[str, Make] = {
    "subclass of linear": lambda: (NamedLinear(sizes=(5, 3)).double(), real(4, 5)),
    "linear": lambda: (nn.Linear(5, 3).double(), real(4, 5)),
    "linear, no bias": lambda: (nn.Linear(5, 3, bias=False).double(), real(4, 5)),
    "linear, three dimensions": lambda: (nn.Linear(5, 3).double(), real(4, 7, 5)),
    "linear, one dimension": lambda: (nn.Linear(5, 3).double(), real(5)),
    "linear, bfloat16": lambda: (nn.Linear(5, 3).bfloat16(), real(4, 5).bfloat16()),
    "attention": lambda: (SelfAttention().double(), real(3, 4, 6)),
    "experts": lambda: (Experts().double(), real(4, 5)),
    "convolution 1d": lambda: (nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2).double(), real(2, 4, 9)),
    "convolution 2d": lambda: (nn.Conv2d(4, 6, 3, dilation=2).double(), real(2, 4, 9, 8)),
    "convolution 2d, no batch": lambda: (nn.Conv2d(4, 6, 3, padding=1).double(), real(4, 9, 8)),
    "convolution 3d": lambda: (nn.Conv3d(2, 4, 2, bias=False).double(), real(2, 2, 4, 3, 5)),
    "embedding": lambda: (nn.Embedding(7, 3, padding_idx=1).double(), torch.randint(7, (4, 5))),
    "embedding by frequency": lambda: (nn.Embedding(7, 3, scale_grad_by_freq=True).double(), torch.randint(7, (4, 5))),
}


def gradients(
    model: nn.Module, x: torch.Tensor, *, recomputes: bool = False, casts: bool = False
) -> torch.Tensor | None:
    """One backward of a loss that is not linear; gives the gradient of x."""
    x = x.clone().requires_grad_(x.is_floating_point())
    context: AbstractContextManager[object] = torch.autocast("cpu", torch.bfloat16) if casts else nullcontext()
    with context:
        y = checkpoint(model, x, use_reentrant=False) if recomputes else model(x)
    (y.float() if casts else y).tanh().sum().backward()
    return x.grad


def faults(make: Make, *, is_deferring: bool = True, **how: bool) -> list[str]:
    torch.manual_seed(0)
    plain, x = make()
    store, model = WeightGradStore(), copy.deepcopy(plain)
    found = [] if defer_weight_grads(model, store) == 1 else ["not converted"]
    store.is_deferring = is_deferring
    for _ in range(2):  # the second adds to the first
        wanted, given = gradients(plain, x, **how), gradients(model, x, **how)
        if wanted is not None and not torch.equal(wanted, given):
            found.append("another input gradient")
    if is_deferring and any(parameter.grad is not None for parameter in model.parameters()):
        found.append("not put off")
    store.take()()
    for (name, mine), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
        if mine.grad is None or mine.grad.requires_grad or not torch.equal(mine.grad, theirs.grad):
            found.append(f"another gradient of {name}")
    return found + (["differs in its state"] if list(model.state_dict()) != list(plain.state_dict()) else [])


def not_converted() -> list[str]:
    """Layers that must be left alone."""
    hooked, frozen = nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False)
    hooked.weight.register_post_accumulate_grad_hook(lambda parameter: None)
    patched = nn.Linear(2, 2)
    patched.forward = partial(nn.Linear.forward, patched)
    layers = {
        "patched": patched,
        "subclass with its own forward": OtherLinear(2, 2),
        "hooked": hooked,
        "frozen": frozen,
        "part of attention": nn.MultiheadAttention(4, 2).out_proj,
        "parametrized": nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)),
        "padded otherwise": nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular"),
        "padded by name": nn.Conv2d(1, 1, 3, padding="same"),
        "sparse": nn.Embedding(3, 2, sparse=True),
        "bounded": nn.Embedding(3, 2, max_norm=1.0),
    }
    return [name for name, layer in layers.items() if defer_weight_grads(layer, WeightGradStore())]


def weights_elsewhere() -> list[str]:
    """A layer whose input is a weight, or a view of one: W comes when weights have been freed (FSDP2)."""
    found = []
    for name, view in {"itself": lambda x: x, "expanded": lambda x: x.expand(3, 4, 5)}.items():
        torch.manual_seed(0)
        linear, latents = nn.Linear(5, 2).double(), nn.Parameter(real(4, 5))
        (wanted,) = torch.autograd.grad(linear(view(latents)).sin().sum(), linear.weight)
        store = WeightGradStore()
        defer_weight_grads(linear, store)
        store.is_deferring = True
        linear(view(latents)).sin().sum().backward()
        for weight in (latents, linear.weight):
            weight.untyped_storage().resize_(0)
        store.take()()
        found += [] if torch.equal(linear.weight.grad, wanted) else [name]
    return found


def weights_changed() -> list[str]:
    """A weight that another forward changes before the backward of this one is told, where the gradient needs it."""
    found = []
    for is_needed in (True, False):
        linear, store = nn.Linear(5, 2), WeightGradStore()
        defer_weight_grads(linear, store, owner="l0")
        y = linear(torch.randn(3, 5, requires_grad=is_needed))
        with torch.no_grad():
            linear.weight.mul_(0.5)
        try:
            y.sum().backward()
        except RuntimeError as error:
            is_told = "the weight of l0 has changed between its forward and its backward" in str(error)
            found += [] if is_needed and is_told else [str(error)]
        else:
            found += ["not told"] if is_needed else []
    return found


def main() -> None:
    answers = {name: faults(make) for name, make in KINDS.items()}
    answers |= {f"{name}, at once": faults(make, is_deferring=False) for name, make in KINDS.items()}
    answers["linear, recomputed"] = faults(KINDS["linear"], recomputes=True)
    answers["convolution, recomputed"] = faults(KINDS["convolution 2d"], recomputes=True)
    answers["linear, autocast"] = faults(lambda: (nn.Linear(5, 3), torch.randn(4, 5)), casts=True)
    answers["weights elsewhere in W"] = weights_elsewhere()
    answers["weights changed"] = weights_changed()
    answers["left alone"] = not_converted()
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
