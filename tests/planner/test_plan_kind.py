"""What makes two plans alike, what a kind is called, and in what two of them differ."""

from dataclasses import replace

import pytest

from planner.plan import Plan
from planner.plan_kind import PlanKind, describe_kind, differences, kind_of
from planner.problem import Problem
from tests.planner.builders import make_layer, make_link, make_plan, make_problem
from tests.planner.hasty import make_plans


def two_devices() -> Problem:
    layers = [make_layer(name) for name in "wxyz"]
    return make_problem(layers, [make_link("a b")], num_microbatches=2, max_stages_per_device=2)


def one_each(words: dict[str, str], *, recompute: tuple[bool, bool] = (False, False)) -> Plan:
    plan = make_plan(two_devices(), ["w x @ a", "y z @ b"], words)
    stages = tuple(replace(stage, recompute=flag) for stage, flag in zip(plan.stages, recompute, strict=True))
    return replace(plan, stages=stages)


ONE_F_ONE_B = {"a": "0F0 0F1 0B0 0B1", "b": "1F0 1B0 1F1 1B1"}
GPIPE = {"a": "0F0 0F1 0B0 0B1", "b": "1F0 1F1 1B0 1B1"}
ZERO_BUBBLE = {"a": "0F0 0F1 0I0 0W0 0I1 0W1", "b": "1F0 1I0 1F1 1I1 1W0 1W1"}
PLAIN = PlanKind(
    num_stages=2, replicas=(1, 1), width=1, chunks=1, recompute="none", backward="whole", fills_first=False
)


@pytest.mark.parametrize(
    ("plan", "kind", "text"),
    [
        (one_each(ONE_F_ONE_B), PLAIN, "2 stages, whole backward"),
        (one_each(GPIPE), replace(PLAIN, fills_first=True), "2 stages, whole backward, all forwards first"),
        (one_each(ZERO_BUBBLE), replace(PLAIN, backward="split"), "2 stages, split backward"),
        (
            one_each(ONE_F_ONE_B, recompute=(True, False)),
            replace(PLAIN, recompute="some"),
            "2 stages, recomputing in part, whole backward",
        ),
        (
            one_each(ONE_F_ONE_B, recompute=(True, True)),
            replace(PLAIN, recompute="all"),
            "2 stages, recomputing, whole backward",
        ),
        (
            make_plan(two_devices(), ["w x y z @ a | b"], {"a": "0F0 0B0 0F1 0B1", "b": "0F0 0B0 0F1 0B1"}),
            replace(PLAIN, num_stages=1, replicas=(2, 2)),
            "1 stage, 2 replicas, whole backward",
        ),
        (
            make_plan(
                two_devices(), ["w @ a", "x y @ b", "z @ a"], {"a": "0F0 2F0 2B0 0B0 0F1 2F1 2B1 0B1", "b": "1F0 1B0"}
            ),
            replace(PLAIN, num_stages=3, chunks=2),
            "3 stages, 2 stages per device, whole backward",
        ),
    ],
)
def test_kinds(plan: Plan, kind: PlanKind, text: str):
    """Tests that a plan has this kind, which is called so."""
    assert kind_of(plan) == kind
    assert describe_kind(kind) == text


def test_cuts_and_devices_make_no_kind():
    """Tests that another cut on other devices is the same kind."""
    other = make_plan(two_devices(), ["w @ b", "x y z @ a"], {"b": ONE_F_ONE_B["a"], "a": ONE_F_ONE_B["b"]})
    assert kind_of(other) == kind_of(one_each(ONE_F_ONE_B))


def test_one_microbatch_fills_nothing():
    """Tests that a single forward before its backward is not called a fill."""
    assert not kind_of(one_each({"a": "0F0 0B0", "b": "1F0 1B0"})).fills_first


@pytest.mark.parametrize(
    ("change", "phrase"),
    [
        ({"num_stages": 1}, "fewer stages"),
        ({"num_stages": 3}, "more stages"),
        ({"replicas": (1, 2)}, "more replicas"),
        ({"width": 2}, "stages 2 devices wide"),
        ({"chunks": 3}, "3 stages per device"),
        ({"recompute": "all"}, "recomputes"),
        ({"recompute": "some"}, "recomputes in part"),
        ({"backward": "split"}, "split backward"),
        ({"backward": "elsewhere"}, "split placement"),
        ({"fills_first": True}, "all forwards first"),
    ],
)
def test_differences(change: dict[str, object], phrase: str):
    """Tests that each difference has its phrase, and that there is another one, or none to spare, the other way."""
    other = replace(PLAIN, **change)
    assert list(differences(PLAIN, other)) == [phrase]
    back = list(differences(other, PLAIN))
    assert len(back) == 1
    assert back != [phrase]
    assert list(differences(other, other)) == []


@pytest.mark.parametrize(
    ("best", "other", "phrase"),
    [
        ((1, 4), (1, 1), "no replicas"),
        ((1, 4), (2, 2), "fewer replicas"),
        ((1, 4), (4, 4), "replicas alike"),
        ((4, 4), (1, 4), "replicas uneven"),
        ((1, 4), (2, 4), "replicas shared out otherwise"),
    ],
)
def test_replicas(best: tuple[int, int], other: tuple[int, int], phrase: str):
    """Tests that fewer, more and otherwise shared replicas are told apart."""
    assert list(differences(replace(PLAIN, replicas=best), replace(PLAIN, replicas=other))) == [phrase]


def test_options_that_there_are_not_are_refused():
    """Tests that a misspelt option is an error, not ignored."""
    with pytest.raises(TypeError, match="unexpected keyword argument 'limit'"):
        make_plans(two_devices(), top=2, limit=None)  # type: ignore[call-arg]
