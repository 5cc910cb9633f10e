"""Gradients of replicas are added up, divided, and clipped."""

import pytest

from tests.planner.builders import make_layer, make_plan, make_problem, with_evidence

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from planner.execute.parallel import reduction  # noqa: E402
from planner.execute.parallel.reduction import (  # noqa: E402
    BUCKET_BYTES,
    StageReduction,
    bucket_bytes_of,
    clip_gradients,
)


def test_the_plan_says_how_large_buckets_are():
    """Tests that the figure of the evidence is used, and the usual one where there is none."""
    problem = make_problem([make_layer("x")], [], more_devices="a")
    plan = make_plan(problem, ["x @ a"], {"a": "0F0 0B0"})
    assert bucket_bytes_of(plan) == BUCKET_BYTES == 2**25
    for stated, used in ((0, BUCKET_BYTES), (4096, 4096)):
        assert bucket_bytes_of(with_evidence(problem, plan, bucket_bytes=stated)) == used


@pytest.mark.parametrize("divisor", [1.0, 4.0])
def test_the_sum_is_divided_in_its_bucket(divisor: float):
    """Tests that gradients that are gone begin as zeros again, and that the mean is that of each parameter."""

    class Work:
        def wait(self) -> None:
            """Nothing travels."""

    class Replicas:
        def allreduce(self, messages: list[torch.Tensor]) -> Work:
            messages[0] *= 2  # two replicas that have the same
            return Work()

    held = [torch.nn.Parameter(torch.zeros(count)) for count in (2, 3)]
    together = StageReduction([*held, torch.nn.Parameter(torch.zeros(1), requires_grad=False)], group=Replicas())
    for _ in range(2):
        together.prepare()
        (held[0].sum() * 8 + held[1].sum() * 4).backward()
        together.start()
        together.finish(divisor)
        assert [parameter.grad.tolist() for parameter in held] == [[16 / divisor] * 2, [8 / divisor] * 3]
        for parameter in held:
            parameter.grad = None


class _Calls(TorchDispatchMode):
    """Notes what the host asks of a device."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, arguments=(), more=None):
        self.names.append(function.__name__.split(".")[0])
        return function(*arguments, **(more or {}))


def _filled(types):
    """Parameters with gradients of these types, of several sizes."""
    noise, held = torch.Generator().manual_seed(3), []
    for number, kind in enumerate(types):
        held.append(torch.nn.Parameter(torch.zeros(7 * number + 1, 3, dtype=kind)))
        held[-1].grad = torch.randn(held[-1].shape, generator=noise).to(kind)
    return held


def test_the_norm_of_all_gradients_is_asked_for_at_once(monkeypatch):
    """Tests that a card's host makes no call per gradient, and that norm and gradients are those of one after another,
    bit by bit, of any types.
    """
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda _: None)
    types = [torch.float32, torch.bfloat16, torch.float64, torch.float16]
    held, alike = _filled(types), _filled(types)
    squares = [torch.linalg.vector_norm(each.grad, dtype=torch.float64) ** 2 for each in alike]
    norm = float(torch.stack(squares).sum().sqrt())
    with _Calls() as calls:
        given = clip_gradients(held, counted=held, max_norm=0.5, device=torch.device("cpu"))
    assert given == norm
    assert calls.names.count("_foreach_norm") == 1
    assert "linalg_vector_norm" not in calls.names
    for each, other in zip(held, alike, strict=True):
        assert torch.equal(each.grad, other.grad.mul_(0.5 / (norm + 1e-6)))
    for is_together, asked in ((True, ["_foreach_mul_"]), (False, ["mul_"] * 4)):
        with _Calls() as calls:
            reduction._change([each.grad for each in alike], 0.5, kind="mul", is_together=is_together)
        assert calls.names == asked


@pytest.mark.parametrize(
    ("kind", "travels"), [(torch.float64, True), (torch.bfloat16, False), (torch.complex128, False)]
)
def test_losses_travel_in_types_that_hold_them(kind: torch.dtype, travels: bool):
    """Tests that a loss goes with gradients of real numbers that are long enough, and else has a message of its own."""
    held = StageReduction([torch.nn.Parameter(torch.ones(3, dtype=kind))], group=object())
    held.num_carried = 1
    held.prepare()
    assert (held.carry(torch.ones(1)) is not None) == travels


def test_complex_gradients_are_clipped_by_their_magnitudes(monkeypatch):
    """Tests that the norm is torch's own where some gradients are complex."""
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda _: None)
    held, alike = (_filled([torch.complex128, torch.float64]) for _ in range(2))
    norm = float(torch.nn.utils.clip_grad_norm_(alike, 0.5))
    given = clip_gradients(held, counted=held, max_norm=0.5, device=torch.device("cpu"))
    assert given == pytest.approx(norm)
    for each, other in zip(held, alike, strict=True):
        torch.testing.assert_close(each.grad, other.grad)
