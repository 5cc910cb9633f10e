"""Stages that shard their weights and gather them for runs of actions: times, memory, and what the rules reject."""

import json
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from planner.decisions.max_active_stages.plans import gathering_plans, possible_ranks, with_gathered
from planner.errors import PlanError
from planner.evidence.certificate import check_certificate, make_bound, raise_bound
from planner.export.trace import render_trace
from planner.judge.rules import gathered
from planner.layout.costs import CostModel
from planner.plan import Plan, Stage
from planner.plan_kind import describe_kind, differences, kind_of
from planner.problem import Problem
from planner.simulation.explain import explain
from planner.simulation.simulate import simulate
from planner.verify import verify
from profiles.model_profile import Layer
from solver_models.covering import Covering
from tests.long_runs import shortened
from tests.planner.builders import make_layer, make_link, make_plan, make_problem, make_stage
from tests.planner.judge.broken_plans import of_module, require_alone
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


@pytest.mark.parametrize("rule", of_module(gathered))
def test_a_plan_breaks_the_rule_alone(rule: str):
    """Tests that a plan that breaks exactly one rule is rejected for that, in one readable sentence."""
    require_alone(rule)
