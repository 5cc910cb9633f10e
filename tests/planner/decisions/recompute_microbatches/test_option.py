"""Stages that recompute some microbatches and keep others: core and judge agree, and no bound is above any plan."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings

from planner.document import parse_plan, render_plan
from planner.errors import PlanError
from planner.evidence.certificate import check_certificate, make_bound, schedule_bound
from planner.export import deepspeed
from planner.export.samples import require_told
from planner.layout.costs import CostModel
from planner.plan import Plan, Stage
from planner.problem import Options, Problem
from planner.simulation.simulate import simulate
from planner.verify import verify
from tests.long_runs import examples, shortened
from tests.planner.builders import make_plan
from tests.planner.judged import judged
from tests.planner.layer_kinds import random_mapped_plan, with_kinds
from tests.planner.recomputed_chain import every_plan, given_stages, recomputed_chain
from tests.strategies import RANDOMS, random_plan, random_problem, with_reference


def chosen(plan: Plan, *lists: tuple[int, ...]) -> Plan:
    """The plan whose stages recompute these microbatches alone."""
    pairs = zip(plan.stages, lists, strict=True)
    stages = tuple(replace(stage, recompute=bool(m), recompute_microbatches=m) for stage, m in pairs)
    return replace(plan, stages=stages)


def drawn(problem: Problem) -> Plan:
    """Two stages of three microbatches.

    time   0    10   20   30   40   50   60   70   80   90  100  110
    d0   | F0 | F1 | F2 | I0 | W0 |    | I1 | W1 |    | I2 | W2 |
    d1        | F0 | I0 | W0 | F1 | I1 | W1 | F2 | I2 | W2 |
    """
    words = {"d0": "0F0 0F1 0F2 0I0 0W0 0I1 0W1 0I2 0W2", "d1": "1F0 1I0 1W0 1F1 1I1 1W1 1F2 1I2 1W2"}
    return make_plan(problem, ["l0 @ d0", "l1 @ d1"], words)


@pytest.mark.parametrize(
    ("lists", "makespan", "peak"),
    [
        (((), ()), 110, 30),
        (((1,), ()), 110, 20),
        (((2,), ()), 120, 20),
        (((0, 1, 2), ()), 120, 10),
        (((), (0,)), 120, 30),
    ],
)
def test_only_listed_microbatches_recompute(lists: tuple[tuple[int, ...], ...], makespan: int, peak: int):
    """Tests that I of a listed microbatch takes 10 ns more, and that the first stage holds its stash during I alone."""
    problem = recomputed_chain(2, num_microbatches=3, kept=3)
    plan = chosen(drawn(problem), *lists)
    found = judged(problem, plan)
    assert (found.makespan_ns, found.peak_bytes["d0"]) == (makespan, peak)
    assert verify(problem, plan).passed


def some_microbatches(rng: Random, plan: Plan, *, count: int) -> Plan:
    """The plan with lists of microbatches in stages that recompute."""
    stages = []
    for stage in plan.stages:
        listed = tuple(m for m in range(count) if rng.random() < 0.5) if stage.recompute else ()
        stages.append(replace(stage, recompute_microbatches=listed))
    return replace(plan, stages=tuple(stages))


@settings(max_examples=examples(300), deadline=None)
@given(rng=RANDOMS)
def test_lists_are_read_alike(rng: Random):
    """Tests that core and judge agree on any stages, layers, kinds, widths and replicas, and documents keep lists."""
    problem = random_problem(rng)
    if rng.random() < 0.5:
        problem = with_kinds(rng, problem)
    turns = rng.random() < 0.3
    options = replace(problem.options, recompute=True, recompute_microbatches=True, recompute_in_turn=turns)
    problem = replace(problem, options=options)
    plan = random_mapped_plan(rng, problem) if options.recompute_layers else random_plan(rng, problem)
    plan = with_reference(problem, some_microbatches(rng, plan, count=problem.num_microbatches))
    judged(problem, plan)
    assert parse_plan(render_plan(plan)) == plan
    everything = replace(plan, stages=tuple(replace(stage, recompute_microbatches=()) for stage in plan.stages))
    none = replace(plan, stages=tuple(replace(s, recompute=False, recompute_microbatches=()) for s in plan.stages))
    peaks = [simulate(problem, each).peak_bytes for each in (everything, plan, none)]
    assert all(peaks[0][device] <= peaks[1][device] <= peaks[2][device] for device in peaks[1])


@pytest.mark.parametrize(
    ("stage", "rule"),
    [
        ({"recompute": False, "recompute_microbatches": (1,)}, "recompute-microbatches-wrong"),
        ({"recompute": True, "recompute_microbatches": (1, 1)}, "recompute-microbatches-wrong"),
        ({"recompute": True, "recompute_microbatches": (2, 1)}, "recompute-microbatches-wrong"),
        ({"recompute": True, "recompute_microbatches": (0, 3)}, "recompute-microbatches-wrong"),
        ({"recompute": True, "recompute_microbatches": (-1,)}, "recompute-microbatches-wrong"),
        ({"recompute": True, "recompute_microbatches": [1]}, "malformed"),
    ],
)
def test_lists_that_cannot_be_are_named(stage: dict, rule: str):
    """Tests that a list is ascending, of microbatches that there are, in a stage that recomputes."""
    problem = recomputed_chain(2, num_microbatches=3, kept=3)
    plan = drawn(problem)
    plan = replace(plan, stages=(replace(plan.stages[0], **stage), plan.stages[1]))
    assert [each.rule for each in verify(problem, plan).violations] == [rule]


def test_the_option_forbids_lists():
    """Tests that without the option a stage recomputes every microbatch or none."""
    problem = recomputed_chain(2, num_microbatches=3, kept=3, recompute_microbatches=False)
    found = verify(problem, chosen(drawn(problem), (1,), ())).violations
    assert [(each.rule, each.subject) for each in found] == [("recompute-some", "stage 0")]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"recompute_microbatches": True}, "recompute_microbatches = true with recompute = false"),
        (
            {"recompute": True, "recompute_microbatches": True, "order": "looped", "split_backward": False},
            "set order to any, or leave recompute_microbatches out",
        ),
    ],
)
def test_options_that_exclude_it(options: dict, what: str):
    """Tests that the option needs recomputation, and that programs that run stages in a loop are refused."""
    with pytest.raises(ValueError, match=what):
        Options(**options)


def test_documents_do_not_mention_what_is_not_used():
    """Tests that a plan without lists reads as before, and that an empty list is refused with a remedy."""
    problem = recomputed_chain(2, num_microbatches=3, kept=3)
    text = render_plan(drawn(problem))
    assert "recompute_microbatches" not in text.replace('"recompute_microbatches": true', "")
    wrong = text.replace('"recompute": false', '"recompute": true, "recompute_microbatches": []', 1)
    with pytest.raises(ValueError, match="is empty; leave it out"):
        parse_plan(wrong)


@pytest.mark.parametrize("what", ["DeepSpeed", "Megatron-LM", "torch's runtime", "zero-bubble's runtime"])
def test_programs_refuse_it(what: str):
    """Tests that programs, whose settings hold for all microbatches, are given a remedy."""
    plan = chosen(drawn(recomputed_chain(2, num_microbatches=3, kept=3)), (1,), (1,))
    with pytest.raises(ValueError, match=f"stage 0 recomputes only some .*, which {what} .* recompute_microbatches = "):
        require_told(plan, what=what)


def test_deepspeed_refuses_it():
    """Tests that an exporter refuses it by itself."""
    problem = recomputed_chain(2, num_microbatches=3, kept=3, split_backward=False)
    problem = replace(problem, profile=replace(problem.profile, microbatch_size=1))
    with pytest.raises(ValueError, match="plan with recompute_microbatches = false"):
        deepspeed.require_expressible(problem, chosen(drawn(problem), (1,), (1,)))


def least_of(problem: Problem, *, kinds: str) -> int:
    """The least makespan of all plans of the given stages that fit, by the core."""
    costs, rooms = CostModel(problem), {device.name: device.usable_bytes for device in problem.cluster.devices}
    best = 10**9
    for plan in every_plan(problem, kinds=kinds):
        try:
            found = simulate(problem, plan, costs=costs)
        except PlanError:
            continue
        if all(found.peak_bytes[device] <= room for device, room in rooms.items()):
            best = min(best, found.makespan_ns)
    return best


LONG_CASES = [(1, 3, 1, "FB"), (3, 2, 1, "FB"), (2, 2, 1, "FIW"), (2, 2, 1.5, "FIW")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stages", "count", "kept", "kinds"),
    [(2, 2, 1, "FB"), (2, 2, 1.5, "FB"), *shortened([], whole=LONG_CASES)],
)
def test_no_bound_is_above_any_plan(stages: int, count: int, kept: float, kinds: str):
    """Tests that bounds hold for every order and list, also where microbatches do not come in order."""
    problem = recomputed_chain(stages, num_microbatches=count, kept=kept, split_backward="I" in kinds)
    costs, best = CostModel(problem), least_of(problem, kinds=kinds)
    bound = make_bound(problem, costs)
    assert check_certificate(problem, bound.certificate) == bound.value_ns <= best
    given = [(flags, replace(s, recompute=flags)) for s in given_stages(problem)[:1] for flags in (False, True)]
    for _, first in given:
        own: tuple[Stage, ...] = (first, *given_stages(problem)[1:])
        assert schedule_bound(problem, own, costs=costs, reached=best) <= best
