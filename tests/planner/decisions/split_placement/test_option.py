"""What split placement excludes: tests of planner/decisions/split_placement/option.py."""

import pytest

from planner.document import parse_plan, plan_to_plain, render_plan
from planner.export.torch_table import render_torch_table
from tests.planner.judge.rules.test_split_placement import halves


def test_the_document_names_shares_only_where_they_are():
    """Tests that this is how shares are written, and that other stages do not mention them."""
    _, plan = halves()
    assert plan_to_plain(plan)["stages"] == [
        {
            "layers": ["x"],
            "replicas": [["a"]],
            "recompute": False,
            "input_grad_replicas": [{"group": ["a"], "share": [1, 2]}, {"group": ["b"], "share": [1, 2]}],
        },
        {"layers": ["y"], "replicas": [["c"]], "recompute": False},
    ]


@pytest.mark.parametrize("share", ["[1, 2, 3]", "[1]", "[1, 0]", "[-1, 2]"])
def test_broken_shares_are_refused(share: str):
    """Tests that a share that is not two positive integers is refused with its path."""
    _, plan = halves()
    text = render_plan(plan).replace('"share": [1, 2]', f'"share": {share}')
    with pytest.raises(ValueError, match=r"stages\[0\].input_grad_replicas\[0\].share = .* is not two positive"):
        parse_plan(text)


def test_torch_cannot_run_them():
    """Tests that the export to torch says which stage it cannot express, and what to plan with."""
    problem, plan = halves()
    with pytest.raises(ValueError, match=r"stage 0 places its I or W on other devices.*split_placement = false"):
        render_torch_table(problem, plan)
