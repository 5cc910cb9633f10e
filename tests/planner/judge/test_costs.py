"""What an action takes, to the judge: tests of planner/judge/costs.py; the expected figures follow by hand."""

from fractions import Fraction

import pytest

from planner.judge.costs import Times, layer_times, measured_times, stage_times, step_time
from profiles.model_profile import LayerCost
from tests.planner.builders import make_layer

NOTHING = Times(*[Fraction(0)] * 5)


def cost(forward: int, samples: int) -> LayerCost:
    """F takes `forward`, I twice and W three times as long; B was not measured."""
    return LayerCost(
        device_type="gpu",
        microbatch_size=samples,
        forward_ns=forward,
        input_grad_ns=2 * forward,
        weight_grad_ns=3 * forward,
    )


MEASURED = {2: cost(10, 2), 4: cost(16, 4)}


def test_an_unmeasured_whole_backward_is_both_halves():
    """Tests that B takes I + W where nobody measured it."""
    assert measured_times(MEASURED[2], kind="") == Times(*map(Fraction, (10, 20, 30, 50, 0)))


@pytest.mark.parametrize(
    ("samples", "is_linear", "forward"),
    [
        (Fraction(2), False, 10),
        (Fraction(3), False, 13),
        (Fraction(5, 2), False, Fraction(23, 2)),
        (Fraction(1), True, 5),
        (Fraction(8), True, 32),
        (Fraction(1), False, None),
        (Fraction(8), False, None),
    ],
)
def test_sizes_between_and_beyond(samples: Fraction, is_linear: bool, forward: int | None):
    """Tests that times lie on the line between neighbours, and beyond these only where costs are linear."""
    times = layer_times(MEASURED, samples, kind="", is_linear=is_linear)
    assert (None if times is None else times.forward) == forward


def test_shares_are_rounded_up_twice():
    """Tests that layers are rounded up at the whole microbatch, the stage at the share, and overheads not shared."""
    layers = [Times(*map(Fraction, ("7/3", 1, 1, 2, 0))), Times(*map(Fraction, ("1/3", 1, 1, 2, 5)))]
    found = stage_times(layers, share=Fraction(1, 2), overhead=dict.fromkeys("FIWB", 100), exchanges=[NOTHING])
    assert found == {"F": 100 + 3, "I": 100 + 7, "W": 100 + 2, "B": 100 + 9}


def test_whoever_has_everything_exchanges_nothing():
    """Tests that exchanges count for shares only."""
    exchange = Times(*map(Fraction, (4, 4, 0, 4, 0)))
    for share, forward in ((Fraction(1), 0), (Fraction(1, 2), 4)):
        found = stage_times([NOTHING], share=share, overhead=dict.fromkeys("FIWB", 0), exchanges=[exchange])
        assert found["F"] == forward


def test_sharers_share_the_step():
    """Tests that steps of all layers are added up and divided, rounded up."""
    layers = [
        make_layer(
            "x", costs=(LayerCost(device_type="gpu", forward_ns=1, input_grad_ns=1, weight_grad_ns=1, optimizer_ns=n),)
        )
        for n in (4, 3)
    ]
    assert step_time(layers, device_type="gpu", sharers=1) == 7
    assert step_time(layers, device_type="gpu", sharers=2) == 4
    assert step_time(layers, device_type="cpu", sharers=2) == 0
