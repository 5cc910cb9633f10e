"""Gradients of replicas are added up, and divided."""

import pytest

from tests.planner.builders import make_layer, make_plan, make_problem, with_evidence

torch = pytest.importorskip("torch")

from planner.execute.parallel.reduction import (  # noqa: E402
    BUCKET_BYTES,
    StageReduction,
    bucket_bytes_of,
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
