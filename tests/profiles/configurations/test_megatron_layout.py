"""Tests of profiles/configurations/megatron_layout.py."""

import pytest

from profiles.configurations.megatron_layout import layout_refusals, written_out


@pytest.mark.parametrize(
    ("layout", "stages"),
    [
        ("Et|tL", ["Et", "tL"]),
        ("E,t*3|(tt|)*2,m|L", ["Ettt", "tt", "tt", "m", "L"]),
        ("E(t|)*3L", ["Et", "t", "t", "L"]),
        ("Et*2|(t*2|)*2,tL", ["Ett", "tt", "tt", "tL"]),
        ("Et(|tt)*2|L", ["Et", "tt", "tt", "L"]),
    ],
)
def test_layouts_written_out(layout: str, stages: list[str]) -> None:
    """Tests that repetitions are Megatron's, commas are for the eye."""
    assert written_out(layout) == stages


def test_a_layout_without_end() -> None:
    """Tests that repetitions are counted before they are written out."""
    with pytest.raises(ValueError, match="999,999,998 letters"):
        written_out("E(t|)*999999999L")


@pytest.mark.parametrize(
    ("layout", "told"),
    [
        ("Ett|tL", "has 3 blocks"),
        ("Ett|tt|L", "not a multiple of 2 ranks"),
        ("tt|ttL", "begins with 't'"),
        ("Ett|tt", "ends with 't'"),
        ("Ett|xttL", "has 'x'"),
        ("Ettm|ttL", "behind multi-token"),
        ("Ett|ttmL", "mtp_num_layers is 0"),
        ("Ett|tm|m|tL", "in 2 stages"),
        ("Ett|tm|t|L", "not the last of its rank"),
    ],
)
def test_what_megatron_does_not_take(layout: str, told: str) -> None:
    """Tests that each of Megatron's own checks of a layout is told with its value."""
    found = list(layout_refusals(written_out(layout), blocks=4, predicting=0, ranks=2))
    assert any(told in each for each in found), found
