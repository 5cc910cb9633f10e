"""Plans that break one rule of the verifier and no other, by the rule's name."""

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

from planner.decisions.price.device_kinds import PER_UNIT
from planner.plan import Plan, RentalResult, Stage
from planner.problem import GlobalBatch, PinnedLayer, Problem
from planner.simulation.simulate import simulate
from planner.verify import GROUPS, Violation, verify
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
from tests.strategies import with_memory

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


def fully_sharded(
    *stages: str, order: str = "0F0 0B0 0F1 0B1", is_allowed: bool = True
) -> Callable[[], tuple[Problem, Plan]]:
    """The first stage fully sharded over a and c; `order`: that of c."""

    def make() -> tuple[Problem, Plan]:
        problem = base_problem(shard_optimizer="always", fully_shard=is_allowed)
        first, *others = stages or ("w x y z @ a | c",)
        words = {"a": "0F0 0B0 0F1 0B1", "c": order} | dict.fromkeys("b" * len(others), "1F0 1B0 1F1 1B1")
        return problem, make_plan(problem, [replace(make_stage(first), shard="full"), *others], words)

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
    "gathered-limit": gathered(None),
    "gathered-forbidden": gathered(2),
    "gathered-ranks": gathered(beside="optimizer"),
    "gathered-order": gathered(c="0F1 0F0 0B0 0B1"),
    "full-shard-forbidden": fully_sharded(is_allowed=False),
    "full-shard-alone": fully_sharded("w x @ a | c", "y z @ b"),
    "full-shard-order": fully_sharded(order="0F0 0F1 0B0 0B1"),
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


def of_module(module: ModuleType) -> list[str]:
    """The rules of one module that a plan can break."""
    rules = (rule for _, group in GROUPS for rule in group if rule.__module__ == module.__name__)
    return [name for rule in rules if (name := rule.__name__.strip("_").replace("_", "-")) in BROKEN]


def require_alone(rule: str) -> None:
    """The plan that breaks a rule is rejected for that and nothing else, in one readable sentence."""
    verdict = verify(*BROKEN[rule]())
    assert {violation.rule for violation in verdict.violations} == {rule}
    assert not verdict.passed
    for violation in verdict.violations:
        assert violation.message.endswith(".")
        assert "\n" not in violation.message
        assert violation.expected != violation.actual
