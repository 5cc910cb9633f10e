"""Actions as words and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.actions import KINDS, Action, parse_action


def test_actions_are_written_stage_kind_microbatch():
    """Tests that the text is stage, kind, microbatch, while the tuple begins with the kind."""
    assert str(Action("F", 2, 0)) == "2F0"
    assert Action("F", 2, 0) == ("F", 2, 0)
    assert parse_action("12W345") == Action("W", 12, 345)


@given(kind=st.sampled_from(KINDS), stage=st.integers(0, 999_999_999), microbatch=st.integers(0, 999_999_999))
def test_reading_is_the_inverse_of_writing(kind: str, stage: int, microbatch: int):
    """Tests that every action survives its text."""
    assert parse_action(str(Action(kind, stage, microbatch))) == Action(kind, stage, microbatch)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "F",
        "0F",
        "F0",
        "0f0",
        "0Q0",
        "00F0",
        "0F00",
        "-1F0",
        "0F-1",
        " 0F0",
        "0F0 ",
        "0F0\n",
        "0F0F0",
        "٠F٠",
        "1" * 10 + "F0",
    ],
)
def test_anything_else_is_refused(text: str):
    """Tests that leading zeros, signs, spaces, other digits and other kinds are refused, with an example."""
    with pytest.raises(ValueError, match=r"is not an action; write stage, kind .* e\.g\. '2F0'"):
        parse_action(text)
