"""Replicas that take unequal shares of whole samples: drawn by hand, at random, and against brute force."""

from dataclasses import replace
from random import Random
from types import SimpleNamespace

import pytest
from hypothesis import given, settings

from planner.document import parse_plan, plan_to_plain, render_plan
from planner.errors import PipeplanError
from planner.evidence.certificate import check_certificate, make_bound, prove_infeasible, raise_bound, schedule_bound
from planner.export.targets import TARGETS, restrict
from planner.fidelity.calibration import calibrate_profile
from planner.judge.reading import Reading
from planner.layout.costs import CostModel
from planner.plan import Evidence, Plan, Stage
from planner.problem import Options, Problem
from planner.progress import Limits
from planner.simulation.simulate import Timeline, simulate
from planner.verify import verify
from profiles.cluster import Cluster, Device
from profiles.model_profile import ActionOverhead, LayerCost, ModelProfile
from solver_models.covering import Covering
from tests.long_runs import examples, shortened
from tests.planner.brute_force import brute_force
from tests.planner.builders import draw, make_edge, make_layer, make_link, make_plan, make_stage, picture
from tests.planner.hasty import make_plan as make_planned
from tests.planner.judged import judged
from tests.strategies import random_unequal_case, tiny_problem, unequal_cases, with_memory


def on_two_types(*, microbatch_size: int = 4, **options: object) -> Problem:
    """Layers x and y on a fast device a, a slow b, and a fast c; a sample takes 1 ns in each action, or 3 ns on b."""
    costs = tuple(
        LayerCost(device_type=kind, microbatch_size=n, forward_ns=n * t, input_grad_ns=n * t, weight_grad_ns=n * t)
        for kind, t in (("fast", 1), ("slow", 3))
        for n in range(1, microbatch_size + 1)
    )
    fields = {"costs": costs, "parameter_bytes": 2, "state_bytes": 10, "stash_bytes": 8, "weight_stash_bytes": 4}
    kinds = {"a": "fast", "b": "slow", "c": "fast"}
    devices = tuple(Device(name=name, type=kind, memory_bytes=1000) for name, kind in kinds.items())
    links = (make_link("a b"), make_link("a c"), make_link("b c"))
    return Problem(
        profile=ModelProfile(
            name="profile",
            layers=(make_layer("x", **fields), make_layer("y", **fields)),
            edges=(make_edge("x y", num_bytes=4),),
            microbatch_size=microbatch_size,
            scaling="measured",
        ),
        cluster=Cluster(name="cluster", devices=devices, links=links),
        num_microbatches=1,
        options=Options(**{"unequal_shares": True, "receive_buffers": 1} | options),
    )


def shared(samples: tuple[int, ...] = (3, 1), text: str = "x @ a | b") -> Stage:
    return replace(make_stage(text), samples=samples)


def play(problem: Problem, plan: Plan) -> Timeline:
    """The timeline, after the judge has agreed with it."""
    verdict = verify(problem, plan)
    assert verdict.violations == ()
    assert verdict.timeline is not None
    judged(problem, plan, timeline=verdict.timeline)
    return verdict.timeline


def three_to_one() -> tuple[Problem, Plan]:
    problem = on_two_types()
    words = {"a": "0F0 0B0", "b": "0F0 0B0", "c": "1F0 1I0 1W0"}
    return problem, make_plan(problem, [shared(), "y @ c"], words)


def test_every_replica_works_on_its_own_samples():
    """Tests that 3 samples on the fast device take as long as 1 on the slow one, and that 3 and 1 bytes are sent."""
    problem, plan = three_to_one()
    timeline = play(problem, plan)
    assert draw(problem, timeline) == picture("""
        a   |0F0-------- .   .   .   .   .   .   .   .   .   .   .   .   .   .   0B0--------------------
        b   |0F0-------- .   .   .   .   .   .   .   .   .   .   .   .   0B0--------------------
        c   |.   .   .   .   .   .   1F0------------ 1I0------------ 1W0------------
        a>c |.   .   .   0f0--------
        b>c |.   .   .   0f0
        c>a |.   .   .   .   .   .   .   .   .   .   .   .   .   .   1b0--------
        c>b |.   .   .   .   .   .   .   .   .   .   .   .   .   .   1b0
    """)


def test_memory_is_that_of_its_own_samples():
    """Tests that a replica holds state, bucket and all, and its own part of the stash and of the receive buffers."""
    problem, plan = three_to_one()
    peaks = play(problem, plan).peak_bytes
    assert peaks == {"a": 10 + 6 + 3, "b": 10 + 2 + 1, "c": 10 + 8 + 4}
    exact = with_memory(problem, dict(peaks))
    assert verify(exact, replace(plan, problem=exact.reference())).passed
    short = with_memory(problem, {"a": peaks["a"] - 1})
    assert {v.rule for v in verify(short, replace(plan, problem=short.reference())).violations} == {"memory-exceeded"}


def test_unlike_shares_meet():
    """Tests that between 3 + 1 and 1 + 3 samples replicas send what they have in common: 1, 2 and 1 samples."""
    problem = on_two_types(max_stages_per_device=2)
    stages = [shared(), shared((1, 3), "y @ c | b")]
    words = {"a": "0F0 0B0", "b": "0F0 1F0 1B0 0B0", "c": "1F0 1B0"}
    plan = make_plan(problem, stages, words)
    play(problem, plan)
    flows = Reading(problem, plan).channels
    assert [flow.num_bytes for flow in flows if not flow.is_backward] == [1, 2, 1]


def test_an_odd_microbatch_is_shared():
    """Tests that two replicas take 2 and 1 of three samples, which equal shares could not."""
    problem = on_two_types(microbatch_size=3)
    words = dict.fromkeys("ac", "0F0 0B0") | {"b": "1F0 1B0"}
    play(problem, make_plan(problem, [shared((2, 1), "x @ a | c"), "y @ b"], words))
    assert (problem.max_replicas, problem.most_replicas) == (3, 3)
    assert CostModel(problem).stage_cost(shared((2, 1), "x @ a | c"), 0).forward_ns == 2


def test_the_document_states_the_samples():
    """Tests that a document has the samples of a stage where they are unequal, and is read as it was written."""
    _, plan = three_to_one()
    plain = plan_to_plain(plan)
    assert [stage.get("samples") for stage in plain["stages"]] == [[3, 1], None]
    assert parse_plan(render_plan(plan)) == plan
    with pytest.raises(ValueError, match=r"stages\[0\].samples\[1\] = 'one' is not an integer"):
        parse_plan(render_plan(plan).replace('"samples": [3, 1]', '"samples": [3, "one"]'))


def test_what_rests_on_few_measurements_is_said():
    """Tests that the evidence names the shares whose costs were not measured, each on its type."""
    problem = on_two_types()
    few = tuple(
        replace(layer, costs=tuple(cost for cost in layer.costs if cost.microbatch_size in (1, 4)))
        for layer in problem.profile.layers
    )
    problem = replace(problem, profile=replace(problem.profile, layers=few))
    assert CostModel(problem).unmeasured_costs((shared(), make_stage("y @ c"))) == (
        "1 layers on fast at width 1: interpolated to 3/4 of the microbatch",
    )
    whole = tuple(replace(layer, costs=(layer.costs[1], *layer.costs[2:])) for layer in few)
    costs = CostModel(replace(problem, profile=replace(problem.profile, layers=whole)))
    with pytest.raises(ValueError, match=r"no cost on 'fast' at width 1 for 3/4 of the microbatch"):
        costs.stage_cost(shared(), 0)


def test_whoever_cannot_run_them_refuses():
    """Tests that targets switch the option off or refuse, and that programs in a loop go without it."""
    problem = on_two_types()
    off = {name for name, target in TARGETS.items() if not restrict(problem.options, target).unequal_shares}
    assert off == {"torch", "torchtitan", "megatron", "deepspeed", "deepspeed-dualpipev"}
    whole = make_plan(problem, [shared((3, 1), "x y @ a | b")], dict.fromkeys("ab", "0F0 0B0"))
    for name in ("megatron", "deepspeed"):
        with pytest.raises(ValueError, match=r"samples = \[3, 1\]|no letter|letter"):
            TARGETS[name].fit(problem, whole)
    with pytest.raises(ValueError, match=r"unequal_shares = true with order = looped"):
        Options(order="looped", split_backward=False, unequal_shares=True)


def test_a_profile_is_not_calibrated_with_unlike_actions():
    """Tests that a run whose replicas took unequal shares is refused as a calibration, with what to do instead."""
    problem, plan = three_to_one()
    with pytest.raises(ValueError, match=r"stage 0 has samples = \[3, 1\].*unequal_shares = false"):
        calibrate_profile(problem.profile, SimpleNamespace(plan=plan), source="run")


@given(case=unequal_cases())
@settings(max_examples=shortened(40, whole=2000), deadline=None)
def test_judge_and_core_agree(case: tuple[Problem, Plan]):
    """Tests that random plans with unequal shares are played alike by core and judge."""
    problem, plan = case
    verdict = verify(problem, plan)
    assert verdict.violations == ()
    assert verdict.timeline is not None
    judged(problem, plan, timeline=verdict.timeline)
    objective = verdict.timeline.objective_ns(problem.options.objective)
    assert schedule_bound(problem, plan.stages, costs=CostModel(problem)) <= objective
    assert make_bound(problem, CostModel(problem)).value_ns <= objective


def test_the_random_cases_have_unequal_shares():
    """Tests that many of the random plans have stages with unequal shares, some of them before and after another."""
    stages = [random_unequal_case(Random(seed))[1].stages for seed in range(60)]
    assert sum(any(stage.samples for stage in own) for own in stages) >= 15
    assert sum(sum(bool(stage.samples) for stage in own) > 1 for own in stages) >= 4


def rounded(times: tuple[int, ...], *, overhead: int) -> Problem:
    """Layers that take so long for two of three samples, and half of that, rounded up, for one, on devices a and b."""
    layers = tuple(
        make_layer(
            f"l{number}",
            costs=tuple(
                LayerCost(device_type="g", microbatch_size=n, forward_ns=ns, input_grad_ns=ns, weight_grad_ns=ns)
                for n, ns in ((1, -(-time // 2)), (2, time), (3, 2 * time))
            ),
        )
        for number, time in enumerate(times)
    )
    known = (ActionOverhead(device_type="g", **dict.fromkeys(KINDS, overhead)),) if overhead else ()
    devices = tuple(Device(name=name, type="g", memory_bytes=1000) for name in "ab")
    return Problem(
        profile=ModelProfile(
            name="profile", layers=layers, edges=(), microbatch_size=3, scaling="measured", action_overhead_ns=known
        ),
        cluster=Cluster(name="cluster", devices=devices, links=(make_link("a b"),)),
        num_microbatches=1,
        options=Options(unequal_shares=True),
    )


KINDS = ("forward_ns", "input_grad_ns", "weight_grad_ns", "backward_ns")


@pytest.mark.parametrize(
    ("times", "samples", "overhead", "expected"),
    [
        ((7,), (2, 1), 0, (8, 4)),  # work 11 and 3 x 4: 22 / 3 and 12 / 3
        ((7, 7), (2, 1), 0, (15, 8)),  # work 11 + 11: 44 / 3, not 2 x 8
        ((7, 7, 7), (2, 1), 5, (27, 17)),  # 66 / 3 and 36 / 3, and the overhead
        ((6, 9), (1, 2), 0, (8, 16)),  # work 9 + 15 and 9 + 14: 24 / 3 and 46 / 3
        ((8,), (2, 1), 0, (8, 4)),  # 12 and 12: nothing to round
    ],
)
def test_shares_are_rounded_by_one_rule(
    times: tuple[int, ...], samples: tuple[int, ...], overhead: int, expected: tuple[int, ...]
):
    """Tests that work is rounded up by layer and an action's share of the sum once more, by core and judge alike."""
    problem = rounded(times, overhead=overhead)
    stage = Stage(layers=problem.profile.topological_order, replicas=(("a",), ("b",)), samples=samples)
    costs = CostModel(problem)
    found = [costs.stage_cost(stage, replica) for replica in range(2)]
    assert tuple(cost.forward_ns for cost in found) == expected
    plan = Plan(problem=problem.reference(), stages=(stage,), schedule={})
    judged_times = [tuple(row) for row in Reading(problem, plan).own_durations]
    assert [tuple(getattr(cost, kind) for kind in KINDS) for cost in found] == judged_times


def tiny(seed: int) -> Problem:
    """At most three layers on two devices, with shares of two to four samples."""
    rng = Random(seed)
    problem = tiny_problem(rng)
    size = rng.choice([2, 3, 4])
    profile = replace(problem.profile, microbatch_size=size)
    sizes = {cost.microbatch_size for layer in profile.layers for cost in layer.costs} - {None}
    scaling = problem.profile.scaling if not sizes else rng.choice(["linear", "measured"])
    profile = replace(profile, scaling=scaling)
    shard = rng.choice(["never", "never", "allow"])
    options = replace(problem.options, unequal_shares=True, recompute=False, shard_optimizer=shard)
    try:
        return replace(problem, profile=profile, options=options)
    except ValueError:  # a whole microbatch was not measured
        return replace(problem, profile=replace(profile, scaling="linear"), options=options)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(examples(40)))
def test_no_bound_is_above_the_best_plan(seed: int):
    """Tests that no bound exceeds what brute force finds over all shares, and that its certificate is derived again."""
    problem = tiny(seed)
    best = brute_force(problem)
    bound = make_bound(problem, CostModel(problem))
    assert check_certificate(problem, bound.certificate) == bound.value_ns
    assert prove_infeasible(problem, CostModel(problem)) is None
    assert best is None or bound.value_ns <= best


def unlike_pair(**options: object) -> Problem:
    """One layer on a device that takes 1 ns per sample, and on one that takes 3 ns, in each of its actions."""
    problem = on_two_types(**options)
    devices = tuple(Device(name=name, type=kind, memory_bytes=1000) for name, kind in (("a", "fast"), ("b", "slow")))
    profile = ModelProfile(
        name="profile",
        layers=tuple(replace(layer, parameter_bytes=1) for layer in problem.profile.layers[:1]),
        edges=(),
        microbatch_size=4,
        scaling="measured",
    )
    cluster = Cluster(name="cluster", devices=devices, links=(make_link("a b"),))
    return replace(problem, profile=profile, cluster=cluster, num_microbatches=4)


def test_bounds_of_equal_shares_are_not_used():
    """Tests that 3 + 1 samples beat what equal shares are bounded by, and that such certificates are refused."""
    free = unlike_pair()
    fixed = replace(free, options=replace(free.options, unequal_shares=False))
    known = make_bound(fixed, CostModel(fixed))
    best, equal = brute_force(free), brute_force(fixed)
    assert best is not None
    assert equal is not None
    assert best < equal
    bound = make_bound(free, CostModel(free))
    assert bound.value_ns <= best
    assert list(raise_bound(CostModel(free), bound, make_covering=Covering, reached=lambda: None)) == []
    if known.kind not in ("work", "layer", "path"):
        with pytest.raises(ValueError, match="does not hold where unequal_shares is allowed"):
            check_certificate(free, known.certificate)
    certificate = {"kind": "counting", "value_ns": 1, "ways": []}
    with pytest.raises(ValueError, match=r"unequal_shares is allowed|fields missing"):
        check_certificate(free, certificate)


def test_simulate_knows_shares():
    """Tests that the simulator alone gives the makespan of the drawing: 23 ns and the all-reduce of two bytes."""
    problem, plan = three_to_one()
    assert simulate(problem, plan).makespan_ns == 23 + 2


LIMITS = Limits(time_limit_s=600, max_rounds=2)


def planned(problem: Problem) -> Plan:
    return make_planned(problem, limits=LIMITS)


def evidence(plan: Plan) -> Evidence:
    assert plan.evidence is not None
    return plan.evidence


def without_option(problem: Problem) -> Problem:
    return replace(problem, options=replace(problem.options, unequal_shares=False))


@pytest.mark.slow
def test_the_search_finds_unequal_shares():
    """Tests that on two unlike devices the search takes 3 + 1 samples, as brute force does, and the fast one alone
    where shares are equal."""
    free = unlike_pair()
    plan, equal = planned(free), planned(without_option(free))
    assert [stage.samples for stage in plan.stages] == [(3, 1)]
    assert (evidence(plan).makespan_ns, evidence(equal).makespan_ns) == (37, 48)
    assert evidence(plan).makespan_ns == brute_force(free)
    assert evidence(plan).source == "unequal shares"
    assert (evidence(plan).bound_kind, evidence(plan).lower_bound_ns) == ("work", 36)
    assert evidence(plan).solution_status == "feasible"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(shortened(6, whole=60)))
def test_the_option_does_not_hurt(seed: int):
    """Tests that plans with the option are verified, no worse than those without, and not below the best there is."""
    free = tiny(seed)
    try:
        equal = planned(without_option(free))
    except PipeplanError:
        return
    plan, best = planned(free), brute_force(free)
    assert verify(free, plan).violations == ()
    objective = simulate(free, plan).objective_ns(free.options.objective)
    assert best is not None
    assert best <= objective <= simulate(without_option(free), equal).objective_ns(free.options.objective)
