"""Stashes that travel to host memory and back: times, memory, and what the rules reject."""

import json
from dataclasses import replace
from itertools import product
from random import Random

import pytest

from planner.actions import Action, Offload
from planner.document import parse_plan, render_plan
from planner.evidence.certificate import check_certificate, make_bound, schedule_bound
from planner.export.samples import require_told
from planner.export.targets import TARGETS, restrict
from planner.export.trace import render_trace
from planner.judge.reading import Reading
from planner.judge.times import check_times
from planner.layout.costs import CostModel
from planner.plan import Plan
from planner.plan_kind import describe_kind, differences, kind_of
from planner.problem import Options, Problem
from planner.simulation.explain import explain
from planner.simulation.simulate import simulate
from planner.verify import verify
from tests.long_runs import shortened
from tests.planner.builders import make_layer, make_link, make_plan, make_problem
from tests.planner.judged import judged
from tests.planner.layer_kinds import random_mapped_plan, with_kinds
from tests.planner.offloads import make_offload, random_host_links, random_offloads, with_host_links
from tests.planner.recomputed_chain import every_order, given_stages, recomputed_chain
from tests.strategies import random_plan, random_problem, with_reference

ORDERS = {"d0": "0F0 0F1 0F2 0B0 0B1 0B2", "d1": "1F0 1B0 1F1 1B1 1F2 1B2"}


def chain(*offloads: str, speed: int = 10**9, **link: object) -> tuple[Problem, Plan]:
    """Two stages of three microbatches, F 10 and B 20, a stash of 10; two devices of one host."""
    layers = [make_layer(f"l{n}", (10, 10, 10), stash_bytes=10) for n in range(2)]
    problem = make_problem(layers, [make_link("d0 d1")], num_microbatches=3, receive_buffers=0, memory_bytes=30)
    problem = with_host_links(problem, bandwidth=speed, shared=2, **link)
    plan = make_plan(problem, ["l0 @ d0", "l1 @ d1"], ORDERS)
    lists = [tuple(map(make_offload, text.split(", ") if text else ())) for text in offloads]
    stages = tuple(replace(stage, offload=moved) for stage, moved in zip(plan.stages, lists, strict=True))
    return problem, replace(plan, stages=stages)


@pytest.mark.parametrize(
    ("offloads", "link", "makespan", "peak", "trips"),
    [
        (("", ""), {}, 120, 30, []),
        (("0 0F2 0B0", ""), {}, 120, 30, [(10, 20), (30, 40)]),
        (("0 0F1 0B0", ""), {}, 120, 30, [(10, 20), (40, 50)]),
        (("0 0F2 0B0", ""), {"speed": 25 * 10**7}, 160, 30, [(10, 50), (60, 100)]),
        (("0 0F2 0F2", ""), {}, 120, 30, [(10, 20), (20, 30)]),
        (("0 0F2 0B0, 1 0B0 0B1", ""), {}, 120, 20, [(10, 20), (20, 30), (30, 40), (60, 70)]),
        (("1 0B0 0B0", "0 1B0 1B0"), {"duplex": False}, 160, 30, [(20, 30), (30, 40), (40, 50), (50, 60)]),
        (("", "0 1B0 1B0"), {"latency": 5}, 150, 30, [(20, 35), (35, 50)]),
    ],
)
def test_stashes_travel_as_drawn(
    offloads: tuple[str, str], link: dict, makespan: int, peak: int, trips: list[tuple[int, int]]
):
    """Tests that times and memory are those by hand.

    time   0    10   20   30   40   50   60   70   80   90  100  110  120
    d0   | F0 | F1 | F2 |    | B0      |    | B1      |    | B2      |
    d1        | F0 | B0      | F1 | B1      | F2 | B2      |
    out       | 0  |
    back                | 0  |
    """
    problem, plan = chain(*offloads, **link)
    timeline = simulate(problem, plan)
    judged(problem, plan, timeline=timeline)
    assert verify(problem, plan).violations == ()
    assert [each[-2:] for each in timeline.offloads] == trips
    assert (timeline.makespan_ns, timeline.peak_bytes["d0"]) == (makespan, peak)


def random_case(rng: Random) -> tuple[Problem, Plan]:
    """Any stages, replicas, widths, orders, recomputation and host links."""
    problem = random_problem(rng)
    if rng.random() < 0.3:
        problem = with_kinds(rng, problem)
    options = replace(problem.options, recompute=True, recompute_microbatches=True, split_placement=False)
    problem = random_host_links(rng, replace(problem, options=options))
    plan = random_mapped_plan(rng, problem) if options.recompute_layers else random_plan(rng, problem)
    return problem, with_reference(problem, random_offloads(rng, plan, count=problem.num_microbatches))


def test_core_and_judge_agree():
    """Tests that both read random plans alike, no bound is above a valid one, and documents and explanations hold."""
    valid = 0
    for seed in range(shortened(40, whole=2000)):
        problem, plan = random_case(Random(seed))
        timeline = simulate(problem, plan)
        judged(problem, plan, timeline=timeline)
        assert parse_plan(render_plan(plan)) == plan
        lists = [(len(stage.offload), len(group)) for stage in plan.stages for group in stage.replicas]
        assert len(timeline.offloads) == 2 * sum(count * width for count, width in lists)
        found = explain(problem, plan, timeline=timeline)
        assert {device.total_ns for device in found.devices} == {timeline.makespan_ns}
        if verify(problem, plan).passed:
            valid += 1
            assert schedule_bound(problem, plan.stages, costs=CostModel(problem)) <= timeline.makespan_ns
    assert valid


def test_a_forged_stash_is_found():
    """Tests that the judge names a stash that is ready, starts or ends at another time, is missing or comes twice."""
    problem, plan = chain("0 0F2 0B0", "")
    timeline = simulate(problem, plan)
    first, second = timeline.offloads
    for forged, message in (
        ((first._replace(ready_ns=9), second), "is not ready at 10 ns to travel out"),
        ((first._replace(end_ns=21), second), "does not travel for 10 ns"),
        ((first, second._replace(start_ns=31, end_ns=41)), "ready at 30 ns, starts at 31 ns"),
        ((first,), "is not ready at 30 ns to travel back"),
        ((first, second, second), "moves a stash too often"),
    ):
        found = check_times(Reading(problem, plan), replace(timeline, offloads=forged)).inconsistencies
        assert any(message in each for each in found), found


def test_an_explanation_names_the_host_link():
    """Tests that an action that waits for its stash is on the critical chain behind it."""
    problem, plan = chain("0 0F2 0B0", "", speed=25 * 10**7)
    found = explain(problem, plan, timeline=simulate(problem, plan))
    assert ("transfer", "its host → d0", 60, 100) in [(s.kind, s.place, s.start_ns, s.end_ns) for s in found.path]
    assert (found.devices[0].transfer_ns, found.devices[0].order_ns) == (50, 20)


def test_traces_show_stashes():
    """Tests that each stash is an event of its device, on the row of its direction."""
    problem, plan = chain("0 0F2 0B0", "")
    events = json.loads(render_trace(problem, plan, timeline=simulate(problem, plan)))["traceEvents"]
    assert [(each["tid"], each["ts"]) for each in events if each["name"] == "stash 0, 0"] == [(2, 0.01), (3, 0.03)]


def test_kinds_of_plans_tell_of_offload():
    """Tests that plans which differ in that alone are of two kinds."""
    kinds = [kind_of(chain(text, "")[1]) for text in ("", "0 0F2 0B0")]
    assert "activations in host memory" in describe_kind(kinds[1])
    assert list(differences(kinds[1], kinds[0])) == ["nothing in host memory"]


def test_no_bound_is_above_the_best_of_all_plans():
    """Tests that of two stages with room for a stash, and any orders and offload of the first, the best is as drawn,
    shorter than without, and no bound is above it.

    time   0    10   20   30   40   50   60   70   80   90
    d0   | F0 | F1 |         | B0      |    | B1      |      a stash travels for a nanosecond
    d1        | F0 | B0      | F1 | B1      |
    """
    problem = recomputed_chain(2, num_microbatches=2, kept=1, recompute=False, recompute_microbatches=False)
    problem = with_host_links(problem, bandwidth=10**12)
    costs, found = CostModel(problem), {False: [], True: []}
    for plan in _orders(problem):
        order = plan.schedule["d0"]
        for chosen in product(*(_offloads(order, microbatch) for microbatch in range(2))):
            first = replace(plan.stages[0], offload=tuple(filter(None, chosen)))
            timeline = simulate(problem, replace(plan, stages=(first, plan.stages[1])), costs=costs)
            if max(timeline.peak_bytes.values()) <= 10:
                found[bool(first.offload)].append(timeline.makespan_ns)
    best = min(found[True])
    assert (best, min(found[False])) == (90, 120)
    bound = make_bound(problem, costs, time_limit_s=1).value_ns
    assert max(bound, schedule_bound(problem, given_stages(problem), costs=costs)) <= best


def _orders(problem: Problem) -> list[Plan]:
    """All orders of F and B of the given stages in which microbatch 0 is the first, wherever it can be."""
    stages, orders = given_stages(problem), [every_order(number, 2, kinds="FB") for number in range(2)]
    ascending = [[order for order in each if order[0].microbatch == 0] for each in orders]
    plans = [
        Plan(problem=problem.reference(), stages=stages, schedule={"d0": first, "d1": second})
        for first, second in product(*ascending)
    ]
    return [plan for plan in plans if not any(each.rule == "deadlock" for each in verify(problem, plan).violations)]


def _offloads(order: tuple[Action, ...], microbatch: int) -> list[Offload | None]:
    """None, and all pairs of actions between F and B."""
    places = {(action.kind, action.microbatch): place for place, action in enumerate(order)}
    first, last = places["F", microbatch] + 1, places["B", microbatch]
    pairs = [(a, b) for a in range(first, last + 1) for b in range(a, last + 1)]
    return [None, *(Offload(microbatch=microbatch, freed_before=order[a], fetched_before=order[b]) for a, b in pairs)]


@pytest.mark.parametrize("name", [name for name in TARGETS if name != "executor"])
def test_other_programs_do_not_offload_single_microbatches(name: str):
    """Tests that their plans are made without, and that a plan with it is refused with the remedy."""
    problem, plan = chain("0 0F2 0B0", "")
    assert not restrict(problem.options, TARGETS[name]).offload
    with pytest.raises(ValueError, match="offload = false"):
        require_told(plan, what=name)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"order": "looped", "split_backward": False}, "order = looped; .* set order to any"),
        ({"split_placement": True}, "set split_placement to false"),
        ({"shard_optimizer": "allow", "max_active_stages": 1}, "leave max_active_stages out"),
    ],
)
def test_what_offload_excludes(changes: dict, message: str):
    """Tests that options which exclude it are named with the remedy."""
    with pytest.raises(ValueError, match=message):
        Options(offload=True, **changes)


def test_clusters_without_host_links_are_refused():
    """Tests that a question needs a device with a host link, on a cluster whose devices compute while they send."""
    problem, _ = chain("", "")
    for changes, message in (
        ({"devices": tuple(replace(each, host_link="") for each in problem.cluster.devices)}, "has a host_link"),
        ({"overlap": False}, "set overlap to true"),
    ):
        with pytest.raises(ValueError, match=message):
            replace(problem, cluster=replace(problem.cluster, **changes))
    profile = replace(problem.profile, microbatch_size=1)
    with pytest.raises(ValueError, match="only for microbatches of one size"):
        replace(problem, profile=profile, microbatches=(1, 1, 1))


def test_bounds_count_the_memory_of_hosts():
    """Tests that bounds are those of devices that have what their hosts keep, too, and can be derived again.

    With room for one of four stashes each F of stage 0 waits for the B before it; with room for two none waits.
    """
    values = []
    for room in (0, 10, 40):
        problem = recomputed_chain(2, num_microbatches=4, kept=1, recompute=False, recompute_microbatches=False)
        problem = with_host_links(problem, room=room)
        bound = make_bound(problem, CostModel(problem), time_limit_s=1)
        assert check_certificate(problem, bound.certificate) == bound.value_ns
        values.append((bound.value_ns, schedule_bound(problem, given_stages(problem), costs=CostModel(problem))))
    assert values == [(200, 200), (130, 130), (130, 130)]
    alone = replace(problem, options=replace(problem.options, offload=False))
    assert make_bound(alone, CostModel(alone), time_limit_s=1).value_ns == 200
