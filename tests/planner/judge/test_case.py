"""What every rule is given: tests of planner/judge/case.py."""

from planner.judge.case import Case, shown
from tests.planner.builders import make_layer, make_link, make_plan, make_problem, make_split


def test_values_are_cut():
    """Tests that texts stand as they are, others as Python writes them, and that both are cut."""
    assert shown("text") == "text"
    assert shown(("a", 1)) == "('a', 1)"
    assert shown("x" * 9, 8) == "xxxxx..."


def test_devices_know_their_stages():
    """Tests that groups count where they hold a stage, and devices of shares where they work for one."""
    problem = make_problem([make_layer("x"), make_layer("y")], [make_link("a b"), make_link("b c")])
    stages = [make_split("x @ a", weight_grad="c"), "y @ b"]
    plan = make_plan(problem, stages, {"a": "0F0 0I0", "b": "1F0 1B0", "c": "0W0"})
    case = Case(problem, plan, play=lambda: "nobody plays it")
    assert case.groups_on == {"a": {0: ("a",)}, "b": {1: ("b",)}}
    assert {device: list(held) for device, held in case.replicas_on.items()} == {"a": [0], "c": [0], "b": [1]}
    assert [number for number, _ in case.split_stages()] == [0]
    assert case.played == "nobody plays it"
    assert case.timeline is None
    assert case.judgement is None
