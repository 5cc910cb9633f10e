"""Parts of a layer's state: what replicas synchronise where gradients are wider or narrower than weights."""

from dataclasses import replace
from random import Random

import pytest

from planner.evidence.certificate import make_bound, schedule_bound
from planner.layout.costs import CostModel
from planner.lowering import make_instance
from planner.problem import Problem
from planner.simulation.simulate import simulate
from planner.verify import verify
from profiles.held_once import HeldOnce
from profiles.model_profile import Layer, WidthBytes
from tests.long_runs import shortened
from tests.planner.brute_force import brute_force
from tests.planner.builders import make_layer, make_link, make_plan, make_problem
from tests.planner.judged import judged
from tests.strategies import random_plan, random_problem, tiny_problem, with_shared

PART = {"parameter_bytes": 1, "optimizer_bytes": 4}

PARTS = {"parameter_bytes": 2, "gradient_bytes": 4, "optimizer_bytes": 12, "state_bytes": 18}
"""Of one weight in bf16 with gradients, master weight and two moments in fp32."""


def with_parts(problem: Problem, rng: Random) -> Problem:
    """Gradients and optimizer state of their own on most trained layers of a problem, at every width."""

    def told_apart(layer: Layer) -> Layer:
        if not layer.is_trainable or rng.random() < 0.2:
            return layer
        parts = {"gradient_bytes": rng.choice([None, 0, 3, 40]), "optimizer_bytes": rng.choice([None, 5, 60])}
        wider = tuple(told_at(entry) for entry in layer.wider)
        return replace(layer, **parts, state_bytes=layer.state_bytes + 120, wider=wider)

    def told_at(entry: WidthBytes) -> WidthBytes:
        weights, gradients = rng.choice([(None, None), (3, None), (None, 7), (3, 7)])
        return replace(entry, parameter_bytes=weights, gradient_bytes=gradients, state_bytes=entry.state_bytes + 50)

    layers = tuple(map(told_apart, problem.profile.layers))
    return replace(problem, profile=replace(problem.profile, layers=layers))


def test_replicas_synchronise_the_bytes_of_gradients():
    """Tests that gradients of twice the width of the weights take twice as long on the ring, and fill their bucket."""
    problem = make_problem([make_layer("x", (4, 4, 4), **PARTS)], [make_link("a b")])
    problem = replace(problem, profile=replace(problem.profile, bucket_bytes=3))
    plan = make_plan(problem, ["x @ a | b"], {"a": "0F0 0B0", "b": "0F0 0B0"})
    played = simulate(problem, plan)
    assert (played.makespan_ns, played.peak_bytes["a"]) == (6 + 4, 18 + 3)
    assert verify(problem, plan).violations == ()
    as_weights = replace(problem.profile.layers[0], gradient_bytes=None)
    as_weights_too = replace(problem, profile=replace(problem.profile, layers=(as_weights,)))
    assert simulate(as_weights_too, replace(plan, problem=as_weights_too.reference())).makespan_ns == 6 + 2


def test_core_and_judge_agree_on_gradients():
    """Tests that random plans whose gradients differ from their weights take and hold the same by core and judge."""
    for seed in range(shortened(60, whole=1000)):
        rng = Random(seed)
        problem = with_parts(random_problem(rng), Random(seed))
        plan = random_plan(rng, problem)
        played = judged(problem, plan)
        assert {each.rule for each in verify(problem, plan).violations} <= {"memory-exceeded"}
        objective = played.span_ns if problem.options.objective == "span" else played.makespan_ns
        assert schedule_bound(problem, plan.stages, costs=CostModel(problem)) <= objective


def test_core_and_judge_agree_on_what_is_held_once():
    """Tests that random plans whose layers hold bytes together hold the same by core and judge."""
    for seed in range(shortened(60, whole=1000)):
        rng = Random(seed)
        problem = with_shared(random_problem(rng))
        plan = random_plan(rng, problem)
        judged(problem, plan)
        assert {each.rule for each in verify(problem, plan).violations} <= {"memory-exceeded"}


@pytest.mark.slow
def test_no_plan_is_below_bounds_with_other_gradients():
    """Tests that for tiny problems whose gradients are larger or smaller than weights no bound is above the best."""
    for seed in range(shortened(40, whole=400)):
        problem = with_parts(tiny_problem(Random(seed)), Random(seed))
        best = brute_force(problem)
        if best is not None:
            assert make_bound(problem, CostModel(problem)).value_ns <= best, seed


def test_the_search_counts_gradients():
    """Tests that what replicas synchronise stands in the search's tables, as stated and in equal parts."""
    wide = WidthBytes(width=2, stash_bytes=0, state_bytes=9, parameter_bytes=1)
    layer = make_layer("x", (4, 4, 4), wider=(wide,), **PARTS)
    layer = replace(layer, costs=(*layer.costs, replace(layer.costs[0], width=2)))
    problem = make_problem([layer], [make_link("a b")], max_width=2)
    instance = make_instance(problem, CostModel(problem))
    assert instance.wide is not None
    assert instance.layers.gradient.tolist() == [[[4], [0]], [[0], [4]]]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"state_bytes": 17}, r"= 18 exceeds state_bytes = 17; .* raise it, or correct a part"),
        ({"frozen": True}, "apply to trained layers only; leave them out"),
        ({"optimizer_bytes": -1}, "optimizer_bytes = -1 is out of range"),
    ],
)
def test_parts_that_do_not_add_up_are_refused(changes: dict[str, object], words: str):
    """Tests that a sum below its parts, and parts of what is not trained, are refused with what to do."""
    with pytest.raises(ValueError, match=words):
        make_layer("x", (1, 1, 0) if "frozen" in changes else (1, 1, 1), **{**PARTS, **changes})


def test_what_layers_hold_together_counts_once():
    """Tests that a stage with both layers holds their tied weight and their tensor once, unless it shards, splits its
    actions over devices, or recomputes one of them; and so by the core as by the judge.
    """
    layers = [
        make_layer(name, (1, 1, 1), state_bytes=10, stash_bytes=8, weight_stash_bytes=8, checkpoint_bytes=2, **PART)
        for name in "xy"
    ]
    problem = make_problem(layers, [make_link("a b")], recompute=True, recompute_layers=True, shard_optimizer="allow")
    once = HeldOnce(first="x", second="y", state_bytes=6, stash_bytes=4)
    problem = replace(problem, profile=replace(problem.profile, held_once=(once,)))
    order = {"a": "0F0 0I0 0W0"}
    peaks = {}
    for text, changes in {
        "x y @ a": {},
        "x y @ a, recomputed": {"recompute": True},
        "x y @ a, y alone": {"recompute": (("y", "full"),)},
        "x y @ a | b": {},
        "x y @ a | b, sharded": {"shard": "optimizer"},
        "x @ a; y @ b": {},
    }.items():
        stages = text.partition(",")[0]
        here = {"a": order["a"], "b": order["a"]} if "|" in text else order
        here = {"a": "0F0 0I0 0W0", "b": "1F0 1I0 1W0"} if ";" in text else here
        plan = make_plan(problem, stages.split("; "), here)
        plan = replace(plan, stages=(replace(plan.stages[0], **changes), *plan.stages[1:]))
        assert verify(problem, plan).violations == ()
        peaks[text] = simulate(problem, plan).peak_bytes["a"]
    assert peaks == {
        "x y @ a": 14 + 12,  # the weight stash of 16 is no more than the stash
        "x y @ a, recomputed": 14 + 16,
        "x y @ a, y alone": 14 + 16,
        "x y @ a | b": 14 + 6,
        "x y @ a | b, sharded": 20 - 4 + 6,
        "x @ a; y @ b": 10 + 8,
    }
