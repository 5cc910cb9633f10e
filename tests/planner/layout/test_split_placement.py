"""Tests of planner/layout/split_placement.py."""

from dataclasses import replace

import pytest

from planner.judge.reading import Reading
from planner.plan import Plan
from planner.problem import Problem
from planner.verify import verify
from tests.planner.builders import (
    draw,
    make_plan,
    make_split,
    picture,
)
from tests.planner.judge.rules.test_split_placement import (
    both_elsewhere,
    halves,
    input_grad_elsewhere,
    one_layer,
    play,
    weight_grad_elsewhere,
)
from tests.strategies import with_memory, with_reference


def test_shares_are_rounded_up():
    """Tests that thirds of time and bytes are whole nanoseconds and bytes, rounded up."""
    problem = one_layer((1, 4, 0), num_microbatches=1, parameter_bytes=0, stash_bytes=4)
    stage = make_split("x @ a", input_grad="a 1/3, b 2/3")
    timeline = play(problem, make_plan(problem, [stage], {"a": "0F0 0I0", "b": "0I0"}))
    assert draw(problem, timeline) == picture("""
        a   |0F0 0I0----
        b   |.   .   .   .   0I0--------
        a>b |.   0f0--------
    """)


MEMORY: dict[str, tuple[tuple[Problem, Plan], dict[str, int]]] = {
    # a: state 10, stash 4 until the end of its I. b: gradient 3, buffers 2 x 2, weight stash 2.
    "W elsewhere": (weight_grad_elsewhere(), {"a": 10 + 4, "b": 3 + 4 + 2}),
    # a: state 10, buffers 2 x 1, both stashes until W, weight stash 1. b: weights 3, buffers 2 x 2, stash 2.
    "I elsewhere": (input_grad_elsewhere(), {"a": 10 + 2 + 4 + 1, "b": 3 + 4 + 2}),
    # a: state 10, buffers of gradient and weight stash 2 x (1 + 1), stash 2, of which 1 stays for W beside the other 1.
    # b: weights 1, buffers of stash and gradient 2 x (1 + 1), half a stash. c: buffers 2 x 2.
    "halves": (halves(), {"a": 10 + 4 + 2, "b": 1 + 4 + 1, "c": 4}),
    # a: stash 3 while F runs. b: weights 2, buffers 2 x 3, stash 3. c: gradient 2, buffers 2 x 1, weight stash 1.
    "both elsewhere": (both_elsewhere(), {"a": 3, "b": 2 + 6 + 3, "c": 2 + 2 + 1}),
}


@pytest.mark.parametrize("name", MEMORY)
def test_memory(name: str):
    """Tests that the peak of every device is the one worked out by hand."""
    (problem, plan), peaks = MEMORY[name]
    assert play(problem, plan).peak_bytes == peaks
    assert {d: use.peak_bytes for d, use in Reading(problem, plan).memory.items()} == peaks


def test_memory_is_limited_elsewhere_too():
    """Tests that a device that only helps must not exceed its memory, and that the action at fault is named."""
    problem, plan = input_grad_elsewhere()
    problem = with_memory(problem, {"b": 8})
    (violation,) = verify(problem, with_reference(problem, plan)).violations
    assert violation.message == "Device b holds up to 9 bytes, above its 8, first during 0I0."


def test_memory_without_buffers_counts_what_is_in_use():
    """Tests that without receive buffers a device still holds the stash while its I runs."""
    problem, plan = input_grad_elsewhere()
    problem = replace(problem, options=replace(problem.options, receive_buffers=0))
    assert play(problem, with_reference(problem, plan)).peak_bytes == {"a": 10 + 4 + 1, "b": 3 + 2}
