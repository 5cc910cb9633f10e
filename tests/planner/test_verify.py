"""Every rule of the verifier, by a plan that breaks it and no other."""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import planner.verify
from planner.actions import Action, parse_action
from planner.decisions.price.device_kinds import PER_UNIT
from planner.errors import PlanError
from planner.plan import Evidence, Plan, RentalResult, Stage
from planner.problem import GlobalBatch, PinnedLayer, Problem
from planner.simulation.simulate import Timeline, simulate
from planner.verify import MAX_VIOLATIONS_PER_RULE, RULES, Violation, verify
from profiles.cluster import Device
from profiles.model_profile import Layer, LayerCost, WidthBytes
from tests.planner.builders import (
    make_edge,
    make_layer,
    make_link,
    make_plan,
    make_problem,
    make_split,
    make_stage,
    with_evidence,
)
from tests.planner.offloads import make_offload, with_host_links
from tests.strategies import cases, with_memory, with_reference

WORDS = {"a": "0F0 0F1 0I0 0W0 0B1", "b": "1F0 1I0 1W0 1F1 1B1"}


def wide_layer(name: str, **fields: object) -> Layer:
    """A layer measured on one and on two devices of type gpu, and on one of type cpu."""
    costs = tuple(
        LayerCost(device_type=kind, width=width, forward_ns=1, input_grad_ns=1, weight_grad_ns=1)
        for kind, width in (("gpu", 1), ("gpu", 2), ("cpu", 1))
    )
    wider = (WidthBytes(width=2, state_bytes=3, stash_bytes=2),)
    return make_layer(name, **{"costs": costs, "wider": wider, "stash_bytes": 2} | fields)


def base_problem(**options: object) -> Problem:
    """A chain w, x, y, z on gpus a, b, c, d and cpu e, all linked; w and x were measured at width 1 only."""
    layers = [wide_layer(name) for name in "wxyz"]
    layers[:2] = [replace(layer, wider=()) for layer in layers[:2]]
    ends = ["a b", "b c", "c d", "d e", "e a"]
    problem = make_problem(layers, list(map(make_link, ends)), num_microbatches=2, edge_bytes=1, **options)
    devices = tuple(replace(d, type="cpu") if d.name == "e" else d for d in problem.cluster.devices)
    return replace(problem, cluster=replace(problem.cluster, devices=devices))


def base_plan(problem: Problem, *stages: str | Stage, **words: str) -> Plan:
    """w and x on a, y and z on b, unless `stages` or `words` say otherwise."""
    return make_plan(problem, list(stages) or ["w x @ a", "y z @ b"], WORDS | words)


def with_stages(*stages: str | Stage) -> Callable[[], tuple[Problem, Plan]]:
    """The base plan with other stages, for rules that look no further."""
    return lambda: (problem := base_problem(), base_plan(problem, *stages))


def with_words(**words: str) -> Callable[[], tuple[Problem, Plan]]:
    """The base plan with other words."""
    return lambda: (problem := base_problem(), base_plan(problem, **words))


def with_options(**options: object) -> Callable[[], tuple[Problem, Plan]]:
    """The base plan under options that forbid something about it."""
    return lambda: (problem := base_problem(**options), base_plan(problem))


def with_reference_field(**fields: object) -> Callable[[], tuple[Problem, Plan]]:
    """The base plan with another reference to its problem."""

    def make() -> tuple[Problem, Plan]:
        problem = base_problem()
        plan = base_plan(problem)
        return problem, replace(plan, problem=replace(plan.problem, **fields))

    return make


def with_evidence_field(**fields: object) -> Callable[[], tuple[Problem, Plan]]:
    """The base plan with evidence that is true but for `fields`."""
    return lambda: (problem := base_problem(), with_evidence(problem, base_plan(problem), **fields))


def of_cost(*, late: bool = False, is_stated: bool = True, **fields: object) -> Callable[[], tuple[Problem, Plan]]:
    """The base plan as an answer to a question about money, with evidence that is true but for `fields`."""

    def make() -> tuple[Problem, Plan]:
        problem = base_problem()
        devices = tuple(replace(device, price_per_hour=1.5) for device in problem.cluster.devices)
        options = replace(problem.options, objective="cost", deadline_ns=1 if late else None)
        problem = replace(problem, cluster=replace(problem.cluster, devices=devices), options=options)
        plan = base_plan(problem)
        cost = 3_000_000 * simulate(problem, plan).makespan_ns / PER_UNIT
        true: dict[str, Any] = {"devices": ("a", "b"), "price_per_hour": 3.0, "cost": cost, "lower_bound": 0.0}
        rental = RentalResult(**true | {"gap": 1.0, "certificate": {"value": 0}} | fields)
        return problem, with_evidence(problem, plan, rental=rental if is_stated else None)

    return make


def with_recomputed(*microbatches: int, is_allowed: bool = True) -> Callable[[], tuple[Problem, Plan]]:
    """The base plan where the first stage recomputes some of its two microbatches."""
    stage = replace(make_stage("w x @ a", recompute=True), recompute_microbatches=microbatches)
    options = {"recompute": True, "recompute_microbatches": is_allowed}
    return lambda: (problem := base_problem(**options), base_plan(problem, stage, "y z @ b"))


def with_offload(
    text: str = "0 0F1 0I0", *, is_allowed: bool = True, is_linked: bool = True, room: int = 100
) -> Callable[[], tuple[Problem, Plan]]:
    """The base plan where a microbatch of the first stage travels: which, freed and fetched before what."""

    def make() -> tuple[Problem, Plan]:
        problem = with_host_links(base_problem(), room=room)
        devices = [replace(each, host_link=each.host_link if is_linked else "") for each in problem.cluster.devices[:1]]
        devices += problem.cluster.devices[1:]
        layers = [replace(layer, stash_bytes=8) for layer in problem.profile.layers]
        problem = replace(
            problem,
            profile=replace(problem.profile, layers=tuple(layers)),
            cluster=replace(problem.cluster, devices=tuple(devices)),
            options=replace(problem.options, offload=is_allowed),
        )
        return problem, base_plan(problem, replace(make_stage("w x @ a"), offload=(make_offload(text),)), "y z @ b")

    return make


def with_map() -> Callable[[], tuple[Problem, Plan]]:
    """The base plan with one layer of two that recomputes, where stages may."""
    stage = replace(make_stage("w x @ a"), recompute=(("x", "full"),))
    return lambda: (problem := base_problem(recompute=True), base_plan(problem, stage, "y z @ b"))


REPLICATED = {"b": "1F0 1F1 1B0 1B1", "c": "1F0 1F1 1B0 1B1"}


def group_of_two() -> tuple[Problem, Plan]:
    problem = base_problem()
    return problem, base_plan(problem, "w x @ a", "y z @ b+c", **REPLICATED)


def two_stages_on_one_device() -> tuple[Problem, Plan]:
    problem = base_problem(max_stages_per_device=1)
    return problem, make_plan(problem, ["w x @ a", "y z @ a"], {"a": "0F0 1F0 1B0 0B0 0F1 1F1 1B1 0B1"})


def in_a_loop(*stages: str, **words: str) -> Callable[[], tuple[Problem, Plan]]:
    """A plan of whole backward passes where stages have to stand in a loop."""

    def make() -> tuple[Problem, Plan]:
        problem = base_problem(order="looped", split_backward=False)
        return problem, make_plan(problem, list(stages), words)

    return make


def cut_sample() -> tuple[Problem, Plan]:
    """Two replicas of three samples."""
    problem = base_problem(microbatch_size=3)
    return problem, base_plan(problem, "w x @ a | c", "y z @ b", c=WORDS["a"])


def unequal(
    samples: tuple[int, ...], *, allowed: bool = True, text: str = "w x @ a | c"
) -> Callable[[], tuple[Problem, Plan]]:
    """Replicas that say how many of three samples they take."""

    def make() -> tuple[Problem, Plan]:
        problem = base_problem(microbatch_size=3, unequal_shares=allowed)
        stage = replace(make_stage(text), samples=samples)
        return problem, base_plan(problem, stage, "y z @ b", c=WORDS["a"])

    return make


def needless_samples() -> tuple[Problem, Plan]:
    """Two replicas that say that each takes two of four samples."""
    problem = base_problem(microbatch_size=4, unequal_shares=True)
    stage = replace(make_stage("w x @ a | c"), samples=(2, 2))
    return problem, base_plan(problem, stage, "y z @ b", c=WORDS["a"])


def unmeasured_share() -> tuple[Problem, Plan]:
    """Two replicas of one sample each, where only two were measured."""
    problem = base_problem(microbatch_size=2, scaling="measured")
    return problem, base_plan(problem, "w x @ a | c", "y z @ b", c=WORDS["a"])


def two_replicas() -> tuple[Problem, Plan]:
    problem = base_problem(max_replicas=1)
    return problem, base_plan(problem, "w x @ a", "y z @ b | c", **REPLICATED)


def two_and_three_replicas() -> tuple[Problem, Plan]:
    problem = base_problem(uneven_replication=False)
    words = dict.fromkeys("ac", "0F0 0F1 0B0 0B1") | dict.fromkeys("bde", "1F0 1F1 1B0 1B1")
    return problem, make_plan(problem, ["w x @ a | c", "y z @ b | d | e"], words)


def gathered(
    most: int | None = 1, *, allowed: int = 1, beside: str = "", c: str = "0F0 0F1 0B0 0B1"
) -> Callable[[], tuple[Problem, Plan]]:
    """The first stage on a and c, which gather its weights; `beside`: how the second one, there as well, is sharded."""

    def make() -> tuple[Problem, Plan]:
        problem = base_problem(shard_optimizer="always", max_active_stages=allowed)
        stages = [replace(make_stage("w x @ a | c"), shard="weights"), make_stage("y z @ b")]
        words = {"a": "0F0 0F1 0B0 0B1", "b": "1F0 1F1 1B0 1B1", "c": c}
        if beside:
            stages[1] = replace(make_stage("y z @ a | c"), shard=beside)
            words = dict.fromkeys("ac", "0F0 1F0 1B0 0B0 0F1 1F1 1B1 0B1")
        return problem, replace(make_plan(problem, stages, words), max_active_stages=most)

    return make


def skipping_edge() -> tuple[Problem, Plan]:
    problem = base_problem(skip_edges=False)
    edges = (*problem.profile.edges, make_edge("w z"))
    problem = replace(problem, profile=replace(problem.profile, edges=edges))
    words = {"a": "0F0 0F1 0B0 0B1", "b": "1F0 1F1 1B0 1B1", "c": "2F0 2F1 2B0 2B1"}
    return problem, make_plan(problem, ["w @ a", "x y @ b", "z @ c"], words)


def disordered_group() -> tuple[Problem, Plan]:
    problem = base_problem(max_width=2)
    return problem, base_plan(problem, "w x @ a", "y z @ b+c", b="1F0 1F1 1B0 1B1", c="1F1 1F0 1B0 1B1")


def unlinked_devices() -> tuple[Problem, Plan]:
    problem = base_problem()
    object.__setattr__(problem.cluster, "links", ())
    for name in ("_directed", "_neighbours", "_routes", "_network", "_nodes", "_node_of"):
        problem.cluster.__dict__.pop(name, None)
    return problem, base_plan(problem)


def frozen_stage() -> tuple[Problem, Plan]:
    problem = base_problem()
    frozen = tuple(
        replace(layer, frozen=True, costs=tuple(replace(c, weight_grad_ns=0) for c in layer.costs))
        for layer in problem.profile.layers[:2]
    )
    problem = replace(problem, profile=replace(problem.profile, layers=frozen + problem.profile.layers[2:]))
    return problem, base_plan(problem, a="0F0 0F1 0I0 0W0 0I1")


def too_little_memory() -> tuple[Problem, Plan]:
    problem = base_problem()
    problem = with_memory(problem, {"a": simulate(problem, base_plan(problem)).peak_bytes["a"] - 1})
    return problem, base_plan(problem)


def list_of_text() -> tuple[Problem, Plan]:
    problem = base_problem()
    plan = base_plan(problem)
    return problem, replace(plan, schedule={**plan.schedule, "a": ("0F0",)})


def without_list() -> tuple[Problem, Plan]:
    problem = base_problem()
    plan = base_plan(problem)
    return problem, replace(plan, schedule={"a": plan.schedule["a"]})


APART = {"a": "0F0 0F1 0I0 0I1", "c": "0W0 0W1"}


def with_split(stage: Stage, *, split_placement: bool = True, **words: str) -> Callable[[], tuple[Problem, Plan]]:
    """The base plan with another first stage; its W is on c, unless `words` say otherwise."""

    def make() -> tuple[Problem, Plan]:
        problem = base_problem(split_placement=split_placement)
        return problem, base_plan(problem, stage, "y z @ b", **APART | words)

    return make


def halved(**profile: object) -> Callable[[], tuple[Problem, Plan]]:
    """Half of I of the first stage on another device, under a profile that does not allow it."""

    def make() -> tuple[Problem, Plan]:
        problem = base_problem(split_placement=True, **profile)
        words = {"a": "0F0 0F1 0I0 0W0 0I1 0W1", "c": "0I0 0I1"}
        return problem, base_plan(problem, make_split("w x @ a", input_grad="a 1/2, c 1/2"), "y z @ b", **words)

    return make


def weight_share_of_frozen_stage() -> tuple[Problem, Plan]:
    problem, _ = frozen_stage()
    problem = replace(problem, options=replace(problem.options, split_placement=True))
    return problem, base_plan(problem, make_split("w x @ a", weight_grad="c"), "y z @ b", a="0F0 0F1 0I0 0I1", c="")


def with_replicas_that_shard() -> tuple[Problem, Plan]:
    """The second stage is replicated, and shards the optimizer's state though nobody has allowed it."""
    problem = base_problem()
    stage = replace(make_stage("y z @ b | c"), shard="optimizer")
    return problem, base_plan(problem, "w x @ a", stage, c=WORDS["b"])


def of_batch(*, allowed: tuple[int, ...] | None = None, **reference: object) -> Callable[[], tuple[Problem, Plan]]:
    """Two microbatches of two samples, a batch of four; costs are known for one and for two samples, and alike."""

    def make() -> tuple[Problem, Plan]:
        problem = base_problem(microbatch_size=2)
        layers = tuple(
            replace(
                layer, costs=tuple(replace(c, microbatch_size=n) for c in layer.costs for n in (1, 2)), stash_bytes=0
            )
            for layer in problem.profile.layers
        )
        edges = tuple(replace(edge, bytes=0) for edge in problem.profile.edges)
        profile = replace(problem.profile, layers=layers, edges=edges)
        batch = GlobalBatch(profile=profile, global_batch_size=4, microbatch_sizes=allowed)
        problem = replace(problem, profile=profile, batch=batch)
        plan = base_plan(problem)
        return problem, replace(plan, problem=replace(plan.problem, **reference))

    return make


APART_STAGE = make_split("w x @ a", weight_grad="c")


def dealt(
    *stages: str, dealing: tuple[tuple[int, ...], ...] = ((0,), (1,)), is_listed: bool = True, **words: str
) -> Callable[[], tuple[Problem, Plan]]:
    """The base plan on two pipelines, a b and c d, with one microbatch each."""

    def make() -> tuple[Problem, Plan]:
        problem = base_problem()
        problem = replace(problem, profile=replace(problem.profile, microbatch_size=2))
        problem = replace(problem, microbatches=(1, 2)) if is_listed else problem
        known = {"a": "0F0 0I0 0W0", "b": "1F0 1B0", "c": "0F1 0B1", "d": "1F1 1B1"}
        plan = make_plan(problem, list(stages) or ["w x @ a | c", "y z @ b | d"], known | words)
        return problem, replace(plan, dealing=dealing)

    return make


def in_disorder() -> tuple[Problem, Plan]:
    """One pipeline that begins its microbatches the other way round."""
    problem, plan = dealt("w x @ a", "y z @ b", dealing=((1, 0),), **WORDS)()
    return problem, replace(plan, schedule={device: plan.schedule[device] for device in "ab"})


BROKEN: dict[str, Callable[[], tuple[Problem, Plan]]] = {
    "malformed": list_of_text,
    "profile-name": with_reference_field(profile="another"),
    "profile-hash": with_reference_field(profile_sha256="0" * 64),
    "cluster-hash": with_reference_field(cluster_sha256="0" * 64),
    "microbatch-count": with_reference_field(num_microbatches=3),
    "microbatches-listed": with_reference_field(microbatches=(1, 1)),
    "dealing-unasked": dealt(is_listed=False),
    "dealing-once": dealt(dealing=((0,), (0,))),
    "dealing-replicas": dealt("w x @ a | c", "y z @ b"),
    "dealing-devices": dealt("w x @ a | c", "y z @ c | a"),
    "dealing-order": in_disorder,
    "action-undealt": dealt(a="0F0 0I0 0W0 0F1"),
    "batch-size": of_batch(global_batch_size=8),
    "batch-cut": of_batch(microbatch_size=1),
    "size-unmeasured": of_batch(allowed=(1,)),
    "options-differ": with_reference_field(options={"max_replicas": 1}),
    "layer-unknown": with_stages("w x q @ a", "y z @ b"),
    "layer-repeated": with_stages("w x @ a", "x y z @ b"),
    "layer-missing": with_stages("w x @ a", "y @ b"),
    "stage-empty": with_stages("w x @ a", "y z @ b", " @ c"),
    "stage-order": with_stages("y z @ a", "w x @ b"),
    "layer-order": with_stages("x w @ a", "y z @ b"),
    "group-empty": with_stages("w x @ a", Stage(layers=("y", "z"), replicas=())),
    "device-unknown": with_stages("w x @ a", "y z @ q"),
    "device-repeated": with_stages("w x @ a", "y z @ b | b"),
    "group-mixed": with_stages("w x @ a", "y z @ b+e"),
    "width-uneven": with_stages("w x @ a", "y z @ b | c+d"),
    "offload-forbidden": with_offload(is_allowed=False),
    "offload-wrong": with_offload("2 0F1 0I0"),
    "offload-unlinked": with_offload(is_linked=False),
    "offload-order": with_offload("0 0F1 0W0"),
    "host-memory-exceeded": with_offload(room=15),
    "gathered-limit": gathered(None),
    "gathered-forbidden": gathered(2),
    "gathered-ranks": gathered(beside="optimizer"),
    "gathered-order": gathered(c="0F1 0F0 0B0 0B1"),
    "shard-alone": with_stages(replace(make_stage("w x @ a"), shard="optimizer"), "y z @ b"),
    "samples-cut": cut_sample,
    "samples-per-replica": unequal((2, 1), text="w x @ a | c | d"),
    "samples-none": unequal((3, 0)),
    "samples-sum": unequal((1, 3)),
    "samples-needless": needless_samples,
    "unequal-forbidden": unequal((1, 2), allowed=False),
    "width-unmeasured": with_stages("w x @ a+c", "y z @ b"),
    "width-limit": group_of_two,
    "stages-per-device": two_stages_on_one_device,
    "replica-limit": two_replicas,
    "replicas-uneven": two_and_three_replicas,
    "edge-skips": skipping_edge,
    "recompute-unknown": with_stages(replace(make_stage("w x @ a"), recompute=(("y", "full"),)), "y z @ b"),
    "recompute-uneven": with_map(),
    "recompute-some": with_recomputed(1, is_allowed=False),
    "recompute-microbatches-wrong": with_recomputed(2),
    "degrees-wrong": with_stages(replace(make_stage("w x @ a"), degrees=(("context", 2),)), "y z @ b"),
    "recompute-forbidden": with_stages(make_stage("w x @ a", recompute=True), "y z @ b"),
    "shard-option": with_replicas_that_shard,
    "split-forbidden": with_options(split_backward=False),
    "split-placement-forbidden": with_split(APART_STAGE, split_placement=False),
    "split-replicated": with_split(make_split("w x @ a | d", weight_grad="c")),
    "split-recomputes": with_split(make_split("w x @ a", weight_grad="c", recompute=True)),
    "share-wide": with_split(make_split("w x @ a", weight_grad="c+d")),
    "share-device-unknown": with_split(make_split("w x @ a", weight_grad="q")),
    "share-count": with_split(make_split("w x @ a", input_grad="a 1/3, c 1/3, d 1/3")),
    "share-sum": with_split(make_split("w x @ a", input_grad="a 1/2, c 1/3")),
    "share-cut": halved(microbatch_size=3),
    "share-unmeasured": halved(microbatch_size=2, scaling="measured"),
    "share-repeated": with_split(make_split("w x @ a", input_grad="c 1/2, c 1/2")),
    "share-needless": with_split(make_split("w x @ a", weight_grad="a")),
    "weight-share-foreign": weight_share_of_frozen_stage,
    "action-misplaced": with_split(APART_STAGE, a="0F0 0F1 0I0 0I1 0W1"),
    "split-fused": with_split(APART_STAGE, a="0F0 0F1 0B0 0I1"),
    "device-idle": with_options(idle_devices=False),
    "layer-pinned": with_options(pinned=(PinnedLayer(layer="w", device="c"),)),
    "partition-given": with_options(partition=(("w",), ("x", "y", "z"))),
    "placement-given": with_options(partition=(("w", "x"), ("y", "z")), placement=((("a",),), (("c",),))),
    "route-missing": unlinked_devices,
    "list-missing": without_list,
    "list-foreign": with_words(c=""),
    "action-foreign": with_words(a="0F0 0F1 0I0 0W0 0B1 1F0"),
    "action-repeated": with_words(a="0F0 0F1 0F1 0I0 0W0 0B1"),
    "action-missing": with_words(a="0F0 0F1 0I0 0B1"),
    "backward-mixed": with_words(a="0F0 0F1 0I0 0B0 0W0 0B1"),
    "weight-grad-foreign": frozen_stage,
    "group-order": disordered_group,
    "loop-stages": in_a_loop("w @ a", "x @ b", "y z @ b", a="0F0 0F1 0B0 0B1", b="1F0 2F0 2B0 1B0 1F1 2F1 2B1 1B1"),
    "loop-order": in_a_loop("w x @ a", "y z @ b", a="0F0 0B0 0F1 0B1", b="1F0 1B0 1F1 1B1"),
    "forward-first": with_words(b="1I0 1F0 1W0 1F1 1B1"),
    "input-grad-first": with_words(a="0F0 0F1 0W0 0I0 0B1"),
    "deadlock": with_words(a="0F0 0I0 0W0 0F1 0B1", b="1F1 1B1 1F0 1I0 1W0"),
    "memory-exceeded": too_little_memory,
    "evidence-makespan": with_evidence_field(makespan_ns=1),
    "evidence-span": with_evidence_field(span_ns=1),
    "evidence-peaks": with_evidence_field(peak_bytes={"a": 1, "b": 1}),
    "evidence-bubble": with_evidence_field(bubble=0.5),
    "evidence-lower-bound": with_evidence_field(lower_bound_ns=10**6),
    "evidence-schedule-bound": with_evidence_field(schedule_bound_ns=10**6),
    "evidence-gap": with_evidence_field(gap=0.5),
    "evidence-status": with_evidence_field(solution_status="optimal"),
    "evidence-proof": with_evidence_field(proved_by="certificate"),
    "evidence-rental": of_cost(is_stated=False),
    "evidence-rented": of_cost(devices=("a",)),
    "evidence-cost": of_cost(cost=1.0),
    "evidence-cost-bound": of_cost(lower_bound=1.0),
    "deadline-missed": of_cost(late=True),
    "evidence-search-params": with_evidence_field(search_params={"multistart.pool_size": "large"}),
}

DISAGREEING = {"timeline-broken", "span-differs", "bubble-differs", "peaks-differ"}
"""Rules that a plan cannot break, only our own evaluations; tested below."""


def broken_rules(problem: Problem, plan: Plan) -> list[str]:
    return sorted({violation.rule for violation in verify(problem, plan).violations})


def only_violation(problem: Problem, plan: Plan) -> Violation:
    (violation,) = verify(problem, plan).violations
    return violation


def test_every_rule_is_tested():
    """Tests that the table below has a plan for every rule there is, and every rule a sentence."""
    assert set(BROKEN) | DISAGREEING == set(RULES)
    assert all(sentence.endswith(".") and "\n" not in sentence for sentence in RULES.values())


def test_the_cut_of_a_batch_is_told():
    """Tests that size, number and batch are named, that a plan that cuts it well passes, and others may not cut."""
    assert only_violation(*of_batch(microbatch_size=1)()).message == (
        "The plan has 2 microbatches of 1 samples, which are not 4."
    )
    assert only_violation(*of_batch(allowed=(1,))()).message == (
        "The plan has microbatches of 2 samples, none of the sizes [1]."
    )
    assert verify(*of_batch()()).passed
    assert verify(*of_batch(allowed=(1, 2))()).passed
    assert broken_rules(*with_reference_field(microbatch_size=2)()) == ["batch-size"]
    assert broken_rules(*of_batch(microbatch_size=0)()) == ["malformed"]
    assert broken_rules(*of_batch(microbatch_size="2")()) == ["malformed"]
    assert broken_rules(*of_batch(microbatch_size=2**30)()) >= ["batch-cut", "size-unmeasured"]


def test_a_cut_sample_is_told():
    """Tests that stage, number of replicas and size of the microbatch are named, and that r = b is whole."""
    violation = only_violation(*cut_sample())
    assert violation.message == "Stage 0 has 2 replicas, which does not divide microbatch_size = 3 samples."
    problem, plan = cut_sample()
    whole = replace(problem, profile=replace(problem.profile, microbatch_size=2))
    assert verify(whole, with_reference(whole, plan)).passed


def test_an_unmeasured_share_is_told():
    """Tests that half a microbatch needs a cost of its own unless costs scale linearly."""
    problem, plan = cut_sample()
    profile = replace(problem.profile, microbatch_size=2, scaling="measured")
    violations = verify(problem := replace(problem, profile=profile), with_reference(problem, plan)).violations
    assert {violation.rule for violation in violations} == {"width-unmeasured"}
    assert "was not measured on 'gpu' at width 1 for 1/2 of a microbatch." in violations[0].message


def test_the_base_plan_is_valid():
    """Tests that the plan that the table breaks has nothing wrong with it, with and without evidence."""
    problem = base_problem()
    verdict = verify(problem, base_plan(problem))
    assert verdict.passed
    assert verdict.timeline == simulate(problem, base_plan(problem))
    assert verdict.summary() == {"passed": True, "violations": []}
    assert verify(problem, with_evidence(problem, base_plan(problem))).passed


def test_split_placement_is_valid():
    """Tests that the stage that the rules of split placement are tested with has nothing wrong with it otherwise."""
    assert verify(*with_split(APART_STAGE)()).passed


@pytest.mark.parametrize("rule", BROKEN)
def test_rule(rule: str):
    """Tests that a plan that breaks exactly one rule is rejected for that, in one readable sentence."""
    verdict = verify(*BROKEN[rule]())
    assert {violation.rule for violation in verdict.violations} == {rule}
    assert not verdict.passed
    for violation in verdict.violations:
        assert violation.message.endswith(".")
        assert "\n" not in violation.message
        assert violation.expected != violation.actual


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("timeline-broken", {"makespan_ns": 1}),
        ("timeline-broken", {"actions": {}}),
        ("span-differs", {"span_ns": 1}),
        ("bubble-differs", {"bubble": 0.123}),
        ("peaks-differ", {"peak_bytes": {}}),
    ],
)
def test_disagreeing_evaluations(rule: str, change: dict[str, object], monkeypatch: pytest.MonkeyPatch):
    """Tests that a simulator whose figures the judge does not confirm is not believed."""

    def simulate_wrongly(*arguments: object, **keywords: object) -> Timeline:
        return replace(simulate(*arguments, **keywords), **change)

    monkeypatch.setattr(planner.verify, "simulate", simulate_wrongly)
    problem = base_problem()
    assert broken_rules(problem, base_plan(problem)) == [rule]


def test_a_simulator_that_gives_up_is_reported(monkeypatch: pytest.MonkeyPatch):
    """Tests that a plan without fault that the simulator cannot play is rejected, not a traceback."""

    def give_up(*arguments: object, **keywords: object) -> Timeline:
        raise PlanError("no")

    monkeypatch.setattr(planner.verify, "simulate", give_up)
    problem = base_problem()
    assert broken_rules(problem, base_plan(problem)) == ["timeline-broken"]


def test_deadlock_names_its_cycle():
    """Tests that the cycle is told as a chain of actions, each with its device."""
    violation = only_violation(*BROKEN["deadlock"]())
    assert violation.message == (
        "The schedule deadlocks: 0I0 on a, which waits for 1I0 on b, which waits for 1F1 on b, "
        "which waits for 0F1 on a, which waits for 0I0 on a."
    )


def test_deadlock_between_groups_is_found():
    """Tests that two groups that share their devices and meet in opposite order are a deadlock."""
    problem = base_problem(max_width=2)
    words = {"b": "1F0 1F1 1B0 1B1 0F0 0F1 0B0 0B1", "c": "0F0 0F1 1F0 1F1 1B0 1B1 0B0 0B1"}
    layers = tuple(replace(layer, wider=problem.profile.layers[2].wider) for layer in problem.profile.layers)
    problem = replace(problem, profile=replace(problem.profile, layers=layers))
    violation = only_violation(problem, make_plan(problem, ["w x @ b+c", "y z @ b+c"], words))
    assert violation.rule == "deadlock"
    assert "1F0 on b" in violation.message
    assert "0F0 on c" in violation.message


def test_long_cycles_are_shortened():
    """Tests that of a cycle through twelve devices the first and the last steps are told."""
    layers = [make_layer(f"l{i}") for i in range(13)]
    problem = make_problem(layers, [make_link(f"d{i} d{i + 1}") for i in range(11)])
    words = {f"d{i}": f"{i}F0 {i}B0" for i in range(1, 12)} | {"d0": "12F0 0F0 0B0 12B0"}
    plan = make_plan(problem, [f"l{i} @ d{i % 12}" for i in range(13)], words)
    assert only_violation(problem, plan).actual == (
        "1F0 on d1 <- 0F0 on d0 <- 12F0 on d0 <- 11F0 on d11 <- 10F0 on d10 <- 9F0 on d9 <- ... <- "
        "5F0 on d5 <- 4F0 on d4 <- 3F0 on d3 <- 2F0 on d2 <- 1F0 on d1"
    )


def test_memory_names_the_first_action_over_the_limit():
    """Tests that the message says how much, the limit, and during which action it is first exceeded."""
    violation = only_violation(*BROKEN["memory-exceeded"]())
    assert violation.message == "Device a holds up to 10 bytes, above its 9, first during 0F1."


def test_memory_that_is_full_from_the_start():
    """Tests that state and buffers alone may exceed the limit, and that no action is blamed then."""
    problem = with_memory(base_problem(), {"a": 1})
    assert "before its first action" in only_violation(problem, base_plan(problem)).message


def test_rules_report_no_more_than_their_share():
    """Tests that a schedule in which everything is missing is not told action by action."""
    problem = make_problem([make_layer("x")], [], more_devices="a", num_microbatches=100)
    assert len(verify(problem, make_plan(problem, ["x @ a"], {"a": ""})).violations) == MAX_VIOLATIONS_PER_RULE


def test_options_at_their_defaults_need_not_be_listed():
    """Tests that an option that the plan lists at its default is as good as one it leaves out, and types count."""
    problem = base_problem()
    plan = base_plan(problem)
    listed = replace(plan, problem=replace(plan.problem, options={"max_width": 1, "partition": None}))
    assert verify(problem, listed).passed
    for options in ({"max_width": True}, {"max_width": 1.0}, {"max_width": "1"}, {"unheard": 1}, {"pinned": [1]}):
        assert broken_rules(problem, replace(plan, problem=replace(plan.problem, options=options))) == [
            "options-differ"
        ]


def test_given_options_that_are_kept():
    """Tests that a plan that keeps its pinned layers, partition and placement has nothing wrong with it."""
    problem = base_problem(
        partition=(("x", "w"), ("y", "z")),
        placement=((("a",),), (("b",),)),
        pinned=(PinnedLayer(layer="z", device="b"),),
    )
    assert verify(problem, base_plan(problem)).passed


def test_pinned_layer_is_on_its_device_alone():
    """Tests that a pinned layer whose stage has a replica elsewhere is not where it must be."""
    problem = base_problem(pinned=(PinnedLayer(layer="z", device="b"),))
    assert broken_rules(problem, base_plan(problem, "w x @ a", "y z @ b | c", **REPLICATED)) == ["layer-pinned"]


def test_bounds_follow_the_objective():
    """Tests that bound and gap are judged by the span where the span is minimised."""
    problem = base_problem(objective="span")
    problem = replace(problem, profile=replace(problem.profile, optimizer_ns=100))
    span = simulate(problem, base_plan(problem)).span_ns
    fields = {"lower_bound_ns": span, "gap": 0.0, "solution_status": "optimal"}
    assert verify(problem, with_evidence(problem, base_plan(problem), **fields)).passed
    too_high = with_evidence(problem, base_plan(problem), lower_bound_ns=span + 1)
    assert broken_rules(problem, too_high) == ["evidence-lower-bound"]


def test_memory_that_is_just_enough_is_enough():
    """Tests that a peak equal to the limit passes, and one byte less does not."""
    problem = base_problem()
    peaks = simulate(problem, base_plan(problem)).peak_bytes
    exact = with_memory(problem, dict(peaks))
    assert verify(exact, base_plan(exact)).passed
    short = with_memory(problem, {"b": peaks["b"] - 1})
    assert broken_rules(short, base_plan(short)) == ["memory-exceeded"]


@given(case=cases())
def test_random_plans_are_valid(case: tuple[Problem, Plan]):
    """Tests that plans that are valid by construction pass, with their true evidence as well."""
    problem, plan = case
    assert verify(problem, plan).violations == ()
    assert verify(problem, with_evidence(problem, plan)).violations == ()


@given(case=cases(), data=st.data())
def test_memory_limits_are_exact(case: tuple[Problem, Plan], data: st.DataObject):
    """Tests that a device with exactly its peak suffices, and that with a byte less its plan is rejected."""
    problem, plan = case
    peaks = simulate(problem, plan).peak_bytes
    exact = with_memory(problem, dict(peaks))
    assert verify(exact, with_reference(exact, plan)).passed
    device = data.draw(st.sampled_from(sorted(peaks)))
    if peaks[device]:
        short = with_memory(problem, {device: peaks[device] - 1})
        assert broken_rules(short, with_reference(short, plan)) == ["memory-exceeded"]


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.just(10**400),
    st.just(math.nan),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.just(object()),
)


@given(field=st.sampled_from([*Evidence.__dataclass_fields__]), value=JUNK)
def test_evidence_may_be_anything(field: str, value: object):
    """Tests that whatever stands in the evidence is judged, not raised about."""
    problem = base_problem()
    verdict = verify(problem, with_evidence(problem, base_plan(problem), **{field: value}))
    assert {violation.rule.split("-")[0] for violation in verdict.violations} <= {"evidence"}


@given(
    field=st.sampled_from(["profile", "profile_sha256", "cluster_sha256", "num_microbatches", "options"]), value=JUNK
)
def test_reference_may_be_anything(field: str, value: object):
    """Tests that whatever a plan calls its problem is compared, not raised about."""
    problem = base_problem()
    plan = base_plan(problem)
    verify(problem, replace(plan, problem=replace(plan.problem, **{field: value})))


@given(
    part=st.sampled_from(["problem", "stages", "schedule", "layers", "replicas", "recompute", "samples", "word"]),
    value=JUNK,
)
def test_parts_may_be_anything(part: str, value: object):
    """Tests that a plan made of the wrong things is malformed, or at least judged."""
    problem = base_problem()
    plan = base_plan(problem)
    if part == "word":
        plan = replace(plan, schedule={**plan.schedule, "a": value})
    elif part in Plan.__dataclass_fields__:
        plan = replace(plan, **{part: value})
    else:
        plan = replace(plan, stages=(replace(plan.stages[0], **{part: value}), plan.stages[1]))
    verify(problem, plan)


@given(
    kind=st.sampled_from(["F", "I", "W", "B", "Q", "", None, 1]),
    stage=st.one_of(st.integers(), st.none(), st.text(max_size=2)),
    microbatch=st.one_of(st.integers(), st.floats(), st.none()),
    at=st.integers(0, 5),
)
def test_actions_may_be_anything(kind: object, stage: object, microbatch: object, at: int):
    """Tests that an action more, whatever it is, makes the plan invalid and nothing worse."""
    problem = base_problem()
    plan = base_plan(problem)
    word = plan.schedule["a"]
    word = (*word[:at], Action(kind, stage, microbatch), *word[at:])
    assert not verify(problem, replace(plan, schedule={**plan.schedule, "a": word})).passed


def large_case() -> tuple[Problem, Plan]:
    """64 stages on 64 devices, 256 microbatches, 1F1B with the backward split: 49,152 actions."""
    count, total = 64, 256
    links = [make_link(f"d{i:02} d{i + 1:02}", latency=5) for i in range(count - 1)]
    layers = [make_layer(f"l{i}", (100 + i, 110 - i, 90)) for i in range(count)]
    problem = make_problem(layers, links, num_microbatches=total, edge_bytes=9)
    schedule = {}
    for s in range(count):
        warm = min(total, count - s)
        text = [f"{s}F{m}" for m in range(warm)]
        for m in range(total):
            text += [f"{s}I{m}", f"{s}W{m}", *([f"{s}F{m + warm}"] if m + warm < total else [])]
        schedule[f"d{s:02}"] = tuple(map(parse_action, text))
    stages = tuple(make_stage(f"l{i} @ d{i:02}") for i in range(count))
    return problem, Plan(problem=problem.reference(), stages=stages, schedule=schedule)


def test_large_plans_are_verified_at_once():
    """Tests that 49,152 actions take seconds even on a busy machine (0.8 s on an idle core)."""
    problem, plan = large_case()
    begin = time.process_time()
    assert verify(problem, plan).passed
    assert time.process_time() - begin < 5


def test_devices_of_other_types_are_known():
    """Tests that a cluster may hold devices that a plan does not use."""
    problem = base_problem()
    devices = (*problem.cluster.devices, Device(name="spare", type="cpu", memory_bytes=1, host="h"))
    links = (*problem.cluster.links, make_link("a spare"))
    problem = replace(problem, cluster=replace(problem.cluster, devices=devices, links=links))
    assert verify(problem, base_plan(problem)).passed
