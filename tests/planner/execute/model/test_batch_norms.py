"""Batch normalisation over replicas: values, gradients and statistics of one process, and what it holds meanwhile."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch
from torch import nn
from torch.nn import functional

from planner.execute.model.batch_norms import Exchange, Memory, ReplicaBatchNorms
from profiles.measure.memory import LiveBytes

SHAPES = {"vectors": (8, 3), "sequences": (6, 3, 5), "pictures": (6, 3, 4, 2), "volumes": (4, 3, 2, 3, 2)}
NORMS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}


class Meeting:
    """Where replicas, each on a thread of its own, exchange tensors."""

    def __init__(self, count: int) -> None:
        self.barrier, self.given = Barrier(count), [torch.empty(0)] * count

    def exchange_of(self, replica: int) -> Exchange:
        def exchange(tensor: torch.Tensor) -> list[torch.Tensor]:
            self.given[replica] = tensor
            self.barrier.wait(10)
            parts = list(self.given)
            self.barrier.wait(10)
            return parts

        return exchange


def run(norm: nn.Module, x: torch.Tensor, grad: torch.Tensor, exchange: Exchange | None) -> dict[str, torch.Tensor]:
    """What a norm gives forward and back; by replicas' statistics where there is an exchange."""
    x = x.clone().requires_grad_()
    if exchange is None:
        y = norm(x)
    else:
        with ReplicaBatchNorms(exchange, Memory()):
            y = norm(x)
    torch.autograd.backward(y, grad)
    assert x.grad is not None
    grads = {name: parameter.grad for name, parameter in norm.named_parameters()}
    buffers = {name: buffer for name, buffer in norm.named_buffers() if buffer.is_floating_point()}
    return {"y": y.detach(), "x": x.grad} | grads | buffers


def make_norm(shape: tuple[int, ...], *, is_affine: bool, dtype: torch.dtype = torch.float64) -> nn.Module:
    norm = NORMS[len(shape)](shape[1], affine=is_affine, dtype=dtype)
    for number, parameter in enumerate(norm.parameters()):
        nn.init.normal_(parameter, generator=torch.Generator().manual_seed(number))
    return norm


@pytest.mark.parametrize("is_affine", [True, False])
@pytest.mark.parametrize("mean", [0.0, 50.0])
@pytest.mark.parametrize("kind", SHAPES)
def test_replicas_normalise_as_one_process(kind: str, mean: float, is_affine: bool):
    """Tests that two halves give together what the whole gives, far from zero as well."""
    shape = SHAPES[kind]
    noise = torch.Generator().manual_seed(len(shape))
    x = mean + torch.randn(shape, generator=noise, dtype=torch.float64)
    grad = torch.randn(shape, generator=noise, dtype=torch.float64)
    whole = run(make_norm(shape, is_affine=is_affine), x, grad, None)
    meeting = Meeting(2)
    with ThreadPoolExecutor(2) as threads:
        started = [
            threads.submit(run, make_norm(shape, is_affine=is_affine), *parts, meeting.exchange_of(replica))
            for replica, parts in enumerate(zip(x.chunk(2), grad.chunk(2), strict=True))
        ]
        parts = [each.result(20) for each in started]
    for name, expected in whole.items():
        if name in ("y", "x"):
            found = torch.cat([part[name] for part in parts])
        elif name in ("weight", "bias"):
            found = parts[0][name] + parts[1][name]
        else:
            assert torch.equal(parts[0][name], parts[1][name])
            found = parts[0][name]
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-11, msg=lambda text, n=name: f"{n}: {text}")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_types_are_added_up_in_float32(dtype: torch.dtype):
    """Tests that a replica of bfloat16 gives bfloat16, and no farther from the truth than rounding takes it."""
    shape = SHAPES["pictures"]
    noise = torch.Generator().manual_seed(1)
    x, grad = (torch.randn(shape, generator=noise).to(dtype) for _ in range(2))
    norm, exact = (make_norm(shape, is_affine=True, dtype=each) for each in (dtype, torch.float64))
    exact.load_state_dict(norm.state_dict())
    found = run(norm, x, grad, lambda tensor: [tensor])
    expected = run(exact, x.double(), grad.double(), None)
    for name in ("y", "x", "weight", "bias"):
        assert found[name].dtype == dtype
        torch.testing.assert_close(found[name].double(), expected[name], rtol=2e-2, atol=2e-2)


def test_a_recomputation_asks_nobody():
    """Tests that a second run of the same layer takes the moments that the first one exchanged."""
    x, memory = torch.randn(6, 3), Memory()
    asked = list[torch.Tensor]()

    def exchange(tensor: torch.Tensor) -> list[torch.Tensor]:
        asked.append(tensor)
        return [tensor]

    with ReplicaBatchNorms(exchange, memory):
        first = functional.batch_norm(x, None, None, training=True)
        memory.position = 0
        second = functional.batch_norm(x, None, None, training=True)
    assert torch.equal(first, second)
    assert len(asked) == 1


def test_one_sample_in_all_is_refused_as_torch_does():
    """Tests that statistics of a single value are an error with torch's words."""
    with (
        ReplicaBatchNorms(lambda tensor: [tensor], Memory()),
        pytest.raises(ValueError, match="more than 1 value per channel"),
    ):
        functional.batch_norm(torch.ones(1, 3), None, None, training=True)


def test_a_replica_holds_little_more_than_one_process():
    """Tests that F holds nothing beside its result and B one tensor of the size of its input more than torch's own.

    The plan knows what the layer holds where it has no replicas.
    """
    x = torch.randn(8, 4, 32, 32, requires_grad=True)
    weight, bias = torch.ones(4, requires_grad=True), torch.zeros(4, requires_grad=True)
    size, little = x.numel() * 4, 4096

    def normalise() -> torch.Tensor:
        return functional.batch_norm(x, None, None, weight, bias, training=True)

    held = {}
    for kind, mode in (("own", LiveBytes()), ("replica", LiveBytes())):
        with mode:
            if kind == "own":
                y = normalise()
            else:
                with ReplicaBatchNorms(lambda tensor: [tensor], Memory()):
                    y = normalise()
            forward = mode.peak
            before = mode.mark()
            torch.autograd.backward(y, torch.ones_like(y))
            held[kind] = forward, mode.peak - before
        del y
        x.grad = weight.grad = bias.grad = None
    assert held["own"][0] <= size + little
    assert held["replica"][0] <= size + little
    assert held["replica"][1] <= held["own"][1] + size + little
