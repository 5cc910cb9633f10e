"""What forwards save goes to the host and back, bit by bit, when the plan says so."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from planner.actions import parse_action
from planner.execute.stage.host_stash import HostStashes
from tests.planner.offloads import make_offload

ORDER = [parse_action(each) for each in ["0F0", "0F1", "0F2", "0B0", "0B1", "0B2"]]


def stashes(*offloads: str) -> HostStashes:
    """Of stage 0, on this host."""
    return HostStashes({0: [make_offload(each) for each in offloads]}, order=ORDER, device=torch.device("cpu"))


def model() -> nn.Module:
    """Layers that save inputs, outputs, views and weights."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 24), nn.GELU(), nn.Unflatten(1, (3, 8)), nn.LayerNorm(8), nn.Flatten(), nn.Tanh())


def gradients(moved: HostStashes | None) -> list[torch.Tensor]:
    """Of an iteration in the order above, with slices of one batch."""
    module, batch = model(), torch.arange(96.0).reshape(12, 8).sin().requires_grad_()
    losses: dict[int, torch.Tensor] = {}
    if moved is not None:
        moved.begin()
    for kind, _, m in ORDER:
        if moved is not None:
            moved.take(f"0RECV_F{m}")
            moved.take(f"0{kind}{m}")
        if kind == "B":
            losses.pop(m).backward()
        elif moved is None:
            losses[m] = module(batch[4 * m : 4 * m + 4]).square().sum()
        else:
            with moved.forward(0, m, module=module):
                losses[m] = module(batch[4 * m : 4 * m + 4]).square().sum()
    return [batch.grad, *(each.grad for each in module.parameters())]


def test_gradients_are_the_same_bit_by_bit():
    """Tests that stashes that travel change nothing, in a second iteration neither."""
    moved = stashes("0 0F1 0B0", "1 0B0 0B1", "2 0B1 0B1")
    expected = gradients(None)
    for _ in range(2):
        assert all(map(torch.equal, gradients(moved), expected))


def test_memory_is_given_back_in_between():
    """Tests that between the two actions nothing of a stash that travels is on the device, weights and batch apart."""
    moved, module = stashes("0 0F1 0B0"), model()
    moved.take("0F0")
    batch = torch.ones(400, 8)
    with moved.forward(0, 0, module=module):
        loss = module(batch[:4]).sum()
    stash = moved._stashes[0, 0]
    assert len(stash.travelling) == 5  # the mean and the deviation among them
    assert all(each.here is not None for each in stash.travelling)
    moved.take("0F1")
    assert all(each.here is None for each in stash.travelling)
    with pytest.raises(RuntimeError, match="still on the host"):
        loss.backward()
    for cell in ("0F2", "0B0"):
        moved.take(cell)
    assert all(each.here is not None for each in stash.travelling)


def test_what_changes_in_place_is_refused():
    """Tests that a saved tensor that the forward changes later is named, as autograd itself would."""
    moved, weight = stashes("0 0F1 0B0"), nn.Linear(4, 4)
    x = torch.ones(4, 4)

    def run() -> None:
        with moved.forward(0, 0, module=weight):
            y = x * weight(x)
            x.add_(1)
            y.sum()

    with pytest.raises(RuntimeError, match="changed in place before the forward ended"):
        run()


def test_marks_of_conjugates_and_negatives_are_kept():
    """Tests that what is saved as the conjugate of what lies in memory, or as its negative, comes back as such."""
    wanted, found = [], []
    for moved, grads in ((None, wanted), (stashes("0 0F1 0B0"), found)):
        x = torch.tensor([1 + 2j, 3 - 1j], requires_grad=True)
        with nullcontext() if moved is None else moved.forward(0, 0, module=nn.Linear(1, 1)):
            y = (2 * x).conj()
            loss = (y * y * y.conj()).real.sum() + (y.imag**3).sum()
        for cell in ("0F0", "0F1", "0F2", "0B0") if moved is not None else ():
            moved.take(cell)
        loss.backward()
        grads.append(x.grad)
    assert all(map(torch.equal, wanted, found))
