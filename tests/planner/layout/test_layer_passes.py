"""Layers whose weights are gathered one ahead: times and memory by hand, and the judge's against the simulator's."""

from dataclasses import replace
from random import Random

import pytest

from planner.baselines.fully_sharded import make_fully_sharded_plan
from planner.errors import PlanError
from planner.evidence.certificate import check_certificate, make_bound
from planner.layout.costs import CostModel
from planner.layout.layer_passes import LayerPass, most_whole, pass_ns
from planner.plan import Plan
from planner.problem import Options, Problem
from planner.simulation.simulate import simulate
from planner.verify import verify
from profiles.host_times import HostTime
from profiles.model_profile import ActionOverhead, Layer
from tests.long_runs import shortened
from tests.planner.builders import make_layer, make_link, make_plan, make_problem, make_stage
from tests.planner.judge.rules.test_gathered import random_layer
from tests.planner.judged import judged

SEEDS = range(shortened(25, whole=600))


def test_weights_come_one_layer_ahead():
    """Tests that an F and a B are those by hand: the ring is never more than a layer ahead, and is empty when B ends.

    ring  0    4                   19        |   0                15   20    26        46    52
    F     |    F1 10     | idle    | F2 10 | |   B2 20            idle | B1 20         |     |
    """
    assert pass_ns([LayerPass(10, 4, 0), LayerPass(10, 15, 0)]) == 29
    assert pass_ns([LayerPass(20, 0, 6), LayerPass(20, 15, 6)]) == 46
    assert pass_ns([LayerPass(20, 0, 6), LayerPass(20, 4, 6)]) == 46
    assert pass_ns([LayerPass(20, 0, 6), LayerPass(20, 25, 30), LayerPass(1, 0, 0)]) == 75


def test_a_layer_beside_messages_has_the_rest_of_its_device():
    """Tests that work takes longer beside messages by what they take of the device, and by no more than they last.

    F1 begins at 4, beside a gather of 15. With a fifth gone it ends at 17, before that. With half gone 2.5 of it are
    left at 19. Where messages take all of the device it takes as much longer as they last.
    """
    layers = [LayerPass(10, 4, 0), LayerPass(10, 15, 0)]
    assert [pass_ns(layers, occupancy=part) for part in (0, 200, 500, 1000)] == [29, 29, 32, 39]
    assert pass_ns([LayerPass(20, 0, 6), LayerPass(20, 4, 6)], occupancy=1000) == 46 + 4 + 6
    assert pass_ns([LayerPass(0, 4, 0), LayerPass(3, 4, 0)], occupancy=1000) == 11


def test_without_weights_it_is_the_work():
    """Tests that layers with nothing to gather or to send run one after the other."""
    assert pass_ns([LayerPass(3, 0, 0), LayerPass(5, 0, 0)]) == 8


def test_two_neighbours_are_whole_with_two_gradients():
    """Tests that memory counts the largest pair of neighbours, and the largest gradient twice."""
    assert most_whole([1, 5, 2, 4], [3, 1, 1, 1]) == 7 + 6
    assert most_whole([4], [2]) == 4 + 4


def by_hand(**options: object) -> tuple[Problem, Plan]:
    parts = {"parameter_bytes": 6, "gradient_bytes": 8, "optimizer_bytes": 25, "state_bytes": 40, "stash_bytes": 10}
    layers = [make_layer(name, (4, 4, 4), **parts) for name in "xy"]
    chosen = {"shard_optimizer": "allow", "fully_shard": True} | options
    problem = make_problem(layers, [make_link("a b", latency=1)], num_microbatches=2, **chosen)
    return problem, make_fully_sharded_plan(CostModel(problem))


def test_a_plan_by_hand():
    """Tests that time and memory of two layers on two devices are right: gathers take 3 + 1, reductions 4 + 1.

    F: x from 4, y from 8, both 2 long, so 10. B: y ends at 4, x at 8, y's gradients are sent from 4 to 9, x's to 14.
    Nothing follows the last B, and a device holds 1 + (6 + 8 + 25) / 2 of each layer, 12 of weights, 16 of gradients.
    """
    problem, plan = by_hand()
    played = simulate(problem, plan)
    assert played.makespan_ns == 2 * (10 + 14)
    assert played.synchronisations == ()
    assert played.peak_bytes["a"] == 2 + 39 + 12 + 16 + 10
    judged(problem, plan, timeline=played)


def test_a_host_waits_for_every_message():
    """Tests that nothing runs beside messages where these take all of a device, whatever other collectives take.

    F: two gathers of 4 and two layers of 2. B: the last layer's weights stay, so one gather and two reductions of 5.
    """
    problem, plan = by_hand()
    for less in (0, 400):
        cluster = replace(problem.cluster, collective_occupancy=less, sharding_occupancy=1000)
        waiting = replace(problem, cluster=cluster)
        slower = replace(plan, problem=waiting.reference())
        played = simulate(waiting, slower)
        assert played.makespan_ns == 2 * (2 * (4 + 2) + 2 * 4 + 4 + 2 * 5)
        judged(waiting, slower, timeline=played)
    other = replace(problem, cluster=replace(problem.cluster, collective_occupancy=1000, sharding_occupancy=400))
    assert simulate(other, replace(plan, problem=other.reference())).makespan_ns == played.makespan_ns


def test_what_a_full_shard_adds_is_added_to_its_plans_alone():
    """Tests that each F of the plan by hand takes 2 longer and each B 5, and a replicated plan none of it."""
    problem, plan = by_hand()
    action = ActionOverhead(device_type="gpu", forward_ns=1, sharded_forward_ns=2, sharded_backward_ns=5)
    slower = replace(problem, profile=replace(problem.profile, action_overhead_ns=(action,)))
    played = simulate(slower, replace(plan, problem=slower.reference()))
    assert played.makespan_ns == 2 * (10 + 1 + 2 + 14 + 5)
    judged(slower, replace(plan, problem=slower.reference()), timeline=played)
    (stage,) = plan.stages
    times = [CostModel(each).stage_cost(replace(stage, shard="none"), 0).backward_ns for each in (problem, slower)]
    assert times[0] == times[1]


def random_problem(seed: int) -> Problem:
    """Two to four devices, of one or two types, in a third of the cases with host times, in others with overheads."""
    rng = Random(seed)
    names = "abcd"[: rng.randint(2, 4)]
    problem = make_problem(
        [_unlike(rng, random_layer(rng, f"l{number}")) for number in range(rng.randint(1, 5))],
        [
            make_link(f"{a} {b}", latency=rng.randint(0, 4), bandwidth=rng.choice([10**9, 3 * 10**8]))
            for place, a in enumerate(names)
            for b in names[:place]
        ],
        num_microbatches=rng.randint(1, 4),
        memory_bytes=10**6,
        microbatch_size=len(names) * rng.randint(1, 3),
        scaling="linear",
        shard_optimizer="allow",
        fully_shard=True,
        recompute=True,
    )
    overheads = [ActionOverhead(device_type=each, forward_ns=rng.randint(0, 3), input_grad_ns=1, weight_grad_ns=1,
                                backward_ns=rng.randint(0, 2), exchange_ns=rng.randint(0, 2),
                                sharded_forward_ns=3 * (each == "old"), sharded_backward_ns=5)
                 for each in ("gpu", "old")]  # fmt: skip
    profile = replace(problem.profile, action_overhead_ns=tuple(overheads)) if seed % 3 == 1 else problem.profile
    if seed % 3 == 2:
        profile = replace(profile, layers=tuple(_asked_for(rng, layer) for layer in profile.layers))
    devices = tuple(replace(each, type=rng.choice(["gpu", "old"])) for each in problem.cluster.devices)
    cluster = replace(problem.cluster, devices=devices, collective_occupancy=(0, 300, 1000)[seed // 3 % 3])
    cluster = replace(cluster, sharding_occupancy=(0, 700)[seed % 2])
    return replace(problem, profile=profile, cluster=cluster)


def _unlike(rng: Random, layer: Layer) -> Layer:
    """The same on a second type of devices, at other times."""
    (cost,) = layer.costs
    other = replace(cost, device_type="old", forward_ns=rng.randint(0, 9), recompute_ns=rng.randint(0, 3))
    return replace(layer, costs=(cost, other), forward_exchanges=rng.randint(0, 1))


def _asked_for(rng: Random, layer: Layer) -> Layer:
    """Hosts take time for every action, and for the recomputation."""

    def host() -> tuple[HostTime, ...]:
        asked = [(action, rng.randint(0, 9)) for action in ("F", "I", "W", "full")]
        return tuple(HostTime(action=action, host_ns=time, first_ns=rng.randint(0, time), last_ns=rng.randint(0, 2))
                     for action, time in asked)  # fmt: skip

    return replace(layer, costs=tuple(replace(cost, host=host()) for cost in layer.costs))


def test_judge_and_simulator_agree_on_random_plans():
    """Tests that the judge, which adds up layers and messages by itself, has no objection, and no bound is above."""
    for seed in SEEDS:
        problem = random_problem(seed)
        bound = make_bound(problem, CostModel(problem))
        assert bound.kind in ("work", "layer", "path", "host")
        assert check_certificate(problem, bound.certificate) == bound.value_ns
        for recompute in (False, True):
            plan = make_fully_sharded_plan(CostModel(problem), recompute=recompute)
            timeline = simulate(problem, plan)
            judged(problem, plan, timeline=timeline)
            assert verify(problem, plan).violations == ()
            assert bound.value_ns <= timeline.makespan_ns


def test_faster_links_never_hurt():
    """Tests that a plan takes no longer on links that are faster."""
    for seed in SEEDS[::3]:
        problem = random_problem(seed)
        spans = []
        for factor in (1, 2, 1000):
            links = tuple(
                replace(each, bandwidth_bytes_per_s=each.bandwidth_bytes_per_s * factor)
                for each in problem.cluster.links
            )
            faster = replace(problem, cluster=replace(problem.cluster, links=links))
            spans.append(simulate(faster, make_fully_sharded_plan(CostModel(faster))).makespan_ns)
        assert spans == sorted(spans, reverse=True)


def test_what_cannot_run_in_step_is_not_played():
    """Tests that the simulator refuses a stage that is not alone, and devices that do not run F0 B0 F1 B1."""
    problem, plan = by_hand()
    with pytest.raises(PlanError, match="run F0 B0 F1 B1"):
        simulate(problem, replace(plan, schedule={**plan.schedule, "b": plan.schedule["b"][::-1]}))
    split = make_plan(problem, [replace(make_stage("x @ a | b"), shard="full"), "y @ a"], {"a": "", "b": ""})
    with pytest.raises(PlanError, match="the only one of its plan"):
        simulate(problem, split)


def test_what_full_shards_exclude():
    """Tests that whoever shards all shards the optimizer's state, and devices compute while they send."""
    with pytest.raises(ValueError, match=r"fully_shard = true with shard_optimizer = never.*or leave fully_shard out"):
        Options(fully_shard=True)
    problem, _ = by_hand()
    with pytest.raises(ValueError, match="overlap = false with fully_shard"):
        replace(problem, cluster=replace(problem.cluster, overlap=False))
