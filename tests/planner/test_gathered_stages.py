"""Stages that shard their weights and gather them for runs of actions: times, memory, and what the rules reject."""

import json
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from planner.decisions.max_active_stages.plans import gathering_plans, possible_ranks, with_gathered
from planner.decisions.max_active_stages.rank_layouts import even_layouts
from planner.document import parse_plan, render_plan
from planner.errors import PipeplanError, PlanError
from planner.evidence.certificate import check_certificate, make_bound, raise_bound
from planner.export.targets import TARGETS, restrict
from planner.export.trace import render_trace
from planner.judge.reading import Reading
from planner.judge.times import check_times
from planner.layout.costs import CostModel
from planner.plan import Plan, Stage
from planner.plan_kind import describe_kind, differences, kind_of
from planner.planning import make_plan as find_plan
from planner.problem import Options, Problem
from planner.progress import Limits
from planner.simulation.explain import explain
from planner.simulation.simulate import simulate
from planner.verify import verify
from profiles.model_profile import Layer
from solver_models.covering import Covering
from tests.long_runs import shortened
from tests.planner.builders import make_layer, make_link, make_plan, make_problem, make_stage
from tests.planner.judged import judged
from tests.strategies import random_schedule

PARTS = {"parameter_bytes": 6, "gradient_bytes": 8, "optimizer_bytes": 25, "state_bytes": 40}


def layers(count: int, **fields: object) -> list[Layer]:
    """Layers with all parts of their state told apart."""
    return [make_layer(f"l{number}", (4, 4, 4), **(PARTS | fields)) for number in range(count)]


def one_rank(order: str, *, active: int | None, count: int = 2, microbatches: int = 2) -> tuple[Problem, Plan]:
    """Stages l0, l1, ... all of them on the devices a and b, in the same order."""
    problem = make_problem(
        layers(count),
        [make_link("a b", latency=10)],
        num_microbatches=microbatches,
        shard_optimizer="always",
        max_active_stages=count,
        max_stages_per_device=count,
    )
    stages = [replace(make_stage(f"l{n} @ a | b"), shard="weights" if active else "optimizer") for n in range(count)]
    plan = make_plan(problem, stages, {"a": order, "b": order})
    return problem, replace(plan, max_active_stages=active)


ORDER = "0F0 0F1 1F0 1B0 1F1 1B1 0B0 0B1"


def test_one_active_stage_is_gathered_for_each_run_of_its_actions():
    """Tests that times are those by hand: a gather takes 3 + 10, and the device waits for each.

    time  0    13   17    30                42   55      63
    a     | g0 | FF | g1  | 1F 1B 1F 1B     | g0 | 0B 0B | reduced 14
    """
    problem, plan = one_rank(ORDER, active=1)
    played = simulate(problem, plan)
    assert [tuple(gather) for gather in played.gathers] == [(0, 0, 0, 13), (1, 2, 17, 30), (0, 6, 42, 55)]
    assert played.makespan_ns == 63 + 14


def test_whole_and_gathered_weights_by_number_of_active_stages():
    """Tests that makespan and memory are those by hand.

    With all stages active only first gathers are waited for, none follows a step, and a device holds a part of 6 bytes
    more per stage; with one active one of the two is whole at a time.
    """
    figures = {}
    for active in (None, 1, 2):
        problem, plan = one_rank(ORDER, active=active)
        played = simulate(problem, plan)
        figures[active] = played.makespan_ns, played.peak_bytes["a"]
        judged(problem, plan, timeline=played)
        assert verify(problem, plan).violations == ()
    whole = 2 * (40 - 25 + 13)
    assert figures == {None: (64, whole), 1: (77, whole - 2 * 3 + 6), 2: (60, whole - 2 * 3 + 2 * 6)}


def random_case(seed: int, *, active: int) -> tuple[Problem, Plan]:
    """Ranks of two or three devices, each with up to three stages, in random orders."""
    rng = Random(seed)
    num_ranks, width, chunks = rng.randint(1, 2), rng.randint(2, 3), rng.randint(1, 3)
    count = num_ranks * chunks
    layers = [random_layer(rng, f"l{n}") for n in range(count + rng.randint(0, 2))]
    names = [f"d{rank}{place}" for rank in range(num_ranks) for place in range(width)]
    ends = [f"{a} {b}" for n, a in enumerate(names) for b in names[:n]]
    problem = make_problem(
        layers,
        [make_link(each, latency=rng.randint(0, 4), bandwidth=rng.choice([10**9, 3 * 10**8])) for each in ends],
        num_microbatches=rng.randint(1, 4),
        edge_bytes=rng.randint(0, 5),
        memory_bytes=10**6,
        shard_optimizer="allow",
        max_active_stages=9,
        max_stages_per_device=chunks,
    )
    cuts = sorted(rng.sample(range(1, len(layers)), count - 1)) if count > 1 else []
    parts = [layers[a:b] for a, b in zip([0, *cuts], [*cuts, len(layers)], strict=True)]
    ranks = [number % num_ranks for number in range(count)]
    rng.shuffle(ranks)
    alone = tuple(
        Stage(layers=tuple(each.name for each in part), replicas=((f"d{rank}0",),))
        for part, rank in zip(parts, ranks, strict=True)
    )
    orders = random_schedule(rng, problem, stages=alone)
    stages = tuple(
        replace(stage, replicas=tuple((f"d{rank}{place}",) for place in range(width)))
        for stage, rank in zip(alone, ranks, strict=True)
    )
    schedule = {f"d{rank}{place}": orders[f"d{rank}0"] for rank in sorted(set(ranks)) for place in range(width)}
    plan = Plan(problem=problem.reference(), stages=stages, schedule=schedule)
    return problem, with_gathered(plan, possible_ranks(plan), max_active_stages=active)


def random_layer(rng: Random, name: str) -> Layer:
    """Some are frozen, or do not tell the optimizer's state apart."""
    times, parts = tuple(rng.randint(0, 5) for _ in "FI"), [rng.randint(1, 9) for _ in range(3)]
    fields = dict(zip(("parameter_bytes", "gradient_bytes", "optimizer_bytes"), parts, strict=True))
    fields |= {"state_bytes": sum(parts) + rng.randint(0, 5), "stash_bytes": rng.randint(0, 9)}
    kind = rng.random()
    if kind < 0.15:
        return make_layer(name, (*times, 0), parameter_bytes=parts[0], state_bytes=parts[0] + 3, frozen=True)
    if kind < 0.3:
        fields.pop("optimizer_bytes")
    return make_layer(name, (*times, rng.randint(0, 5)), **fields)


SEEDS = range(shortened(25, whole=400))


def test_judge_and_simulator_agree_on_random_plans():
    """Tests that the judge, which finds gathers and memory by rules of its own, has no objection to what is played."""
    gathers = 0
    for seed in SEEDS:
        for active in (1, 2, 4):
            problem, plan = random_case(seed, active=active)
            timeline = simulate(problem, plan)
            judged(problem, plan, timeline=timeline)
            assert verify(problem, plan).violations == ()
            gathers += len(timeline.gathers)
    assert gathers > 5 * len(SEEDS)


def test_a_forged_gather_is_found():
    """Tests that the judge wants every gather, none twice, and each when it can begin and at its length."""
    problem, plan = one_rank(ORDER, active=1)
    played = simulate(problem, plan)
    first, *others = played.gathers
    for forged in (others, [first, first, *others], [first._replace(end_ns=14), *others], [first._replace(stage=1)]):
        found = check_times(Reading(problem, plan), replace(played, gathers=tuple(forged))).inconsistencies
        assert any("gather" in text for text in found)


def test_more_active_stages_hold_more_and_gather_less():
    """Tests that with every further active stage a device holds no less, and nothing is gathered more often."""
    for seed in SEEDS:
        found = []
        for active in (1, 2, 3, 4):
            problem, plan = random_case(seed, active=active)
            timeline = simulate(problem, plan)
            found.append((timeline.peak_bytes, len(timeline.gathers)))
        for (less, more_often), (more, less_often) in pairwise(found):
            assert all(less[device] <= more[device] for device in less)
            assert more_often >= less_often


def test_only_work_layer_and_path_bounds_hold():
    """Tests that the bound is one of these where stages may be gathered, above no way to gather, and rederived."""
    for seed in SEEDS[:8]:
        problem, plan = random_case(seed, active=1)
        bound = make_bound(problem, CostModel(problem))
        assert bound.kind in ("work", "layer", "path")
        assert check_certificate(problem, bound.certificate) == bound.value_ns
        assert list(raise_bound(CostModel(problem), bound, make_covering=Covering, reached=lambda: None)) == []
        for gathering in gathering_plans(plan, most=4):
            assert bound.value_ns <= simulate(problem, gathering).makespan_ns
    with pytest.raises(ValueError, match="'pipeline' does not hold where max_active_stages is allowed"):
        check_certificate(problem, {"kind": "pipeline", "value_ns": 1, "price": 0})


def test_documents_say_how_many_stages_are_active():
    """Tests that a plan comes back from its document, and that a plan without gathered stages does not mention them."""
    _, plan = one_rank(ORDER, active=2)
    assert parse_plan(render_plan(plan)) == plan
    assert '"shard": "weights"' in render_plan(plan)
    whole = render_plan(one_rank(ORDER, active=None)[1])
    assert "max_active_stages" not in whole[whole.index('"stages"') :]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"shard_optimizer": "never"}, "whoever shards weights shards the optimizer's state: set shard_optimizer"),
        ({"synchronisation": "bucketed"}, "synchronisation = bucketed"),
        ({"split_placement": True}, "split_placement = true"),
        ({"unequal_shares": True}, "unequal_shares = true"),
        ({"order": "looped", "split_backward": False}, "order = looped"),
    ],
)
def test_what_gathered_stages_exclude(options: dict[str, object], reason: str):
    """Tests that options which gathered stages have no rule for are refused, with a remedy."""
    with pytest.raises(ValueError, match=rf"max_active_stages = 2 with .*{reason}.* or leave max_active_stages out"):
        Options(**{"shard_optimizer": "allow", "max_active_stages": 2} | options)


@pytest.mark.parametrize("target", sorted(set(TARGETS) - {"executor"}))
def test_other_programs_are_not_planned_for(target: str):
    """Tests that a question with gathered stages is refused for programs that cannot be told of them."""
    with pytest.raises(ValueError, match=f"target {target}: options ask for max_active_stages = 2"):
        restrict(Options(shard_optimizer="allow", max_active_stages=2), TARGETS[target])


def test_explained_times_of_gathered_plans_add_up():
    """Tests that a device's parts are the makespan, and that the chain of events leads from its end back to 0."""
    kinds = set()
    for seed in SEEDS:
        problem, plan = random_case(seed, active=1 + seed % 2)
        played = simulate(problem, plan)
        found = explain(problem, plan, timeline=played)
        assert {device.total_ns for device in found.devices} == {played.makespan_ns}
        assert (found.path[0].start_ns, found.path[-1].end_ns) == (0, played.makespan_ns)
        assert all(a.end_ns == b.start_ns for a, b in pairwise(found.path))
        kinds |= {step.kind for step in found.path}
    assert "gather" in kinds
    assert "wait" not in kinds


def test_traces_show_gathers():
    """Tests that every gathering is an event on its stage's row, beside what synchronises there."""
    problem, plan = one_rank(ORDER, active=1)
    events = json.loads(render_trace(problem, plan, timeline=simulate(problem, plan)))["traceEvents"]
    shown = [(each["name"], each["tid"], each["ts"]) for each in events if "gather" in each["name"]]
    assert shown == [("gather stage 0", 1, 0.0), ("gather stage 1", 2, 0.017), ("gather stage 0", 1, 0.042)]


def test_kinds_of_plans_tell_how_many_stages_are_active():
    """Tests that plans which differ in that alone are of two kinds, and what either is called."""
    kinds = [kind_of(one_rank(ORDER, active=active)[1]) for active in (None, 1, 2)]
    assert len(set(kinds)) == 3
    assert "sharded optimizer, weights of 2 stages gathered at a time" in describe_kind(kinds[2])
    assert list(differences(kinds[2], kinds[0])) == ["whole weights"]
    assert list(differences(kinds[0], kinds[1])) == ["1 gathered at a time"]


def test_a_plan_that_gathers_otherwise_is_not_played():
    """Tests that the simulator refuses what has no rule: no number of active stages, or two orders in a rank."""
    problem, plan = one_rank(ORDER, active=1)
    with pytest.raises(PlanError, match="go together"):
        simulate(problem, replace(plan, max_active_stages=None))
    other = {**plan.schedule, "b": plan.schedule["b"][::-1]}
    with pytest.raises(PlanError, match="the same order"):
        simulate(problem, replace(plan, schedule=other))


def given_ranks(memory: int, **options: object) -> Problem:
    """Eight equal layers, each a stage, in a loop on two ranks of two devices; weights take 40 of 200 units a layer."""
    parts = {"parameter_bytes": 40, "gradient_bytes": 40, "optimizer_bytes": 120, "state_bytes": 200, "stash_bytes": 10}
    names, ranks = "abcd", ((("a",), ("b",)), (("c",), ("d",)))
    problem = make_problem(
        [make_layer(f"l{number}", (2000, 2000, 2000), **parts) for number in range(8)],
        [make_link(f"{a} {b}", bandwidth=10**8) for n, a in enumerate(names) for b in names[:n]],
        num_microbatches=4,
        memory_bytes=memory,
        microbatch_size=2,
        scaling="linear",
        shard_optimizer="always",
        split_backward=False,
        max_stages_per_device=4,
        max_active_stages=4,
    )
    given = {"partition": tuple((f"l{n}",) for n in range(8)), "placement": tuple(ranks[n % 2] for n in range(8))}
    return replace(problem, options=replace(problem.options, **given | options))


LIMITS = Limits(time_limit_s=60, max_rounds=1)


@pytest.mark.slow
def test_the_search_gathers_where_weights_do_not_fit_or_it_is_quicker():
    """Tests that a question with little memory is answered with one stage active at a time where it has no answer with
    whole weights, and that with more memory more stages are active, in a plan no slower than without gathering.
    """
    whole = 4 * (40 + 40 + 60)
    scarce = whole + 30
    with pytest.raises(PipeplanError):
        find_plan(given_ranks(scarce - 20, max_active_stages=None), limits=LIMITS)
    tight = find_plan(given_ranks(scarce - 20), limits=LIMITS)
    assert tight.max_active_stages == 1
    roomy, ample = given_ranks(10 * whole), given_ranks(10 * whole, max_active_stages=None)
    plan, other = find_plan(roomy, limits=LIMITS), find_plan(ample, limits=LIMITS)
    assert verify(roomy, plan).passed
    assert plan.max_active_stages is not None
    assert plan.evidence is not None
    assert other.evidence is not None
    assert plan.evidence.makespan_ns < other.evidence.makespan_ns
    assert plan.evidence.bound_kind in ("work", "layer", "path")


def test_even_layouts_are_ranks_of_equal_width():
    """Tests that layers are cut evenly, in a loop, on two and on four devices, with up to four stages of a device."""
    problem = replace(given_ranks(1000), options=Options(max_stages_per_device=4, max_replicas=2))
    layouts = [[len(stage.layers) for stage in stages] for stages in even_layouts(problem)]
    assert layouts == [[4, 4], [2] * 4, [1, 2, 1] * 2, [1] * 8]
    ranks = {stage.replicas for stages in even_layouts(problem) for stage in stages}
    assert ranks == {(("a",), ("b",)), (("c",), ("d",))}
