"""A pipeline before it is cut: what it takes at least and about, and whether its state fits."""

import math

from profiles.estimates.even_stages import EvenPipeline
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile


def pipeline(
    *, usable_bytes: int = 1000, recomputes: bool = True, state_bytes: int = 100, step_ns: int = 0
) -> EvenPipeline:
    """Four layers of 10 + 20 ns and 100 of 110 bytes that recomputing leaves out, on two devices."""
    cost = LayerCost(
        device_type="X", forward_ns=10, input_grad_ns=20, weight_grad_ns=0, recompute_ns=8, optimizer_ns=step_ns
    )
    layers = [
        Layer(
            name=name, costs=(cost,), parameter_bytes=2, state_bytes=state_bytes, stash_bytes=110, checkpoint_bytes=10
        )
        for name in "abcd"
    ]
    edges = [Edge(producer=a, consumer=b, bytes=1) for a, b in zip("abc", "bcd", strict=True)]
    profile = ModelProfile(name="four", layers=tuple(layers), edges=tuple(edges))
    return EvenPipeline(profile=profile, devices=2, usable_bytes=usable_bytes, microbatches=5, recomputes=recomputes)


def test_work_and_bubble():
    """Tests that all work on both devices is the least, and that half of 1F1B's bubble comes on top."""
    assert pipeline().least_ns == 4 * 30 * 5 // 2
    assert pipeline().estimate_ns == 300 * (1 + 1 / 10)


def test_steps_come_after_the_bubble():
    """Tests that the optimizer's steps, exchanges with them, are on all devices at the end."""
    assert pipeline(step_ns=7).least_ns == 300 + 4 * 7 // 2
    assert pipeline(step_ns=7).estimate_ns == 300 * (1 + 1 / 10) + 14


def test_what_has_to_recompute():
    """Tests that half of the layers recompute where half of what that saves is too much, and none where it may not."""
    short = 100 * 4 // 2 + 2 * 2 * 110 - 2 * 2 * 100 // 2
    assert pipeline(usable_bytes=short).estimate_ns == (300 + 0.5 * 16 * 5) * 1.1
    assert pipeline(usable_bytes=short, recomputes=False).estimate_ns == math.inf
    assert pipeline(usable_bytes=210).estimate_ns == math.inf


def test_state_alone():
    """Tests that all state has to fit on all devices, and the largest on one."""
    assert pipeline(usable_bytes=200).may_fit
    assert not pipeline(usable_bytes=199).may_fit
    assert not pipeline(state_bytes=501).may_fit
