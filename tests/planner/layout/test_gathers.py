"""Replicas that shard the optimizer's state: what they hold, when they end, and what plans and bounds make of it."""

from dataclasses import replace
from functools import partial
from random import Random

import pytest

from planner.bounds.cases.case_tables import CaseTables, TooManyCasesError
from planner.bounds.minimum_costs import Least
from planner.evidence.certificate import check_certificate, make_bound, prove_infeasible, schedule_bound
from planner.layout.costs import CostModel
from planner.lowering import make_instance, make_schedule_instance, make_stages, modes_of
from planner.option_values import ShardChoice
from planner.plan import Plan, Stage
from planner.plan_kind import describe_kind, differences, kind_of
from planner.planning.complete.complete_question import require_covered
from planner.planning.improvers.branch_and_check import is_small
from planner.problem import Problem
from planner.progress import Limits
from planner.simulation.explain import explain
from planner.simulation.simulate import simulate
from planner.verify import verify
from profiles.model_profile import Layer, WidthBytes
from solver_models.schedule.evaluation import play
from solver_models.simulation.columns import SHARDABLE_ROW
from solver_models.simulation.evaluator import TAIL
from tests.long_runs import shortened
from tests.planner.brute_force import brute_force
from tests.planner.builders import make_layer, make_link, make_plan, make_problem, make_stage
from tests.planner.exactly import search_exactly
from tests.planner.hasty import make_plan as find_plan
from tests.planner.judge.test_sizes import with_parts
from tests.planner.judge.test_synchronisation import with_long_steps
from tests.planner.judged import judged
from tests.solver_models.nets import Case, random_exact_problem
from tests.strategies import random_plan, random_problem, tiny_problem, with_memory

PARTS = {"parameter_bytes": 6, "gradient_bytes": 8, "optimizer_bytes": 25, "state_bytes": 40}


def stepping(name: str, step: int, **fields: object) -> Layer:
    """A layer with all parts of its state told apart, and a step."""
    layer = make_layer(name, (4, 4, 4), **(PARTS | fields))
    return replace(layer, costs=tuple(replace(cost, optimizer_ns=step) for cost in layer.costs))


def sharded(text: str) -> Stage:
    """A stage whose replicas shard."""
    return replace(make_stage(text), shard="optimizer")


def randomly_sharded(rng: Random, plan: Plan) -> Plan:
    """Some of its replicated stages shard."""
    stages = tuple(
        replace(stage, shard="optimizer") if len(stage.replicas) > 1 and rng.random() < 0.7 else stage
        for stage in plan.stages
    )
    return replace(plan, stages=stages)


def random_case(seed: int) -> tuple[Problem, Plan]:
    """A random problem with parts of state, wide layers among them, and long steps, and a plan that shards."""
    rng = Random(seed)
    problem = with_long_steps(with_parts(random_problem(rng), Random(seed)), Random(seed))
    problem = replace(problem, options=replace(problem.options, shard_optimizer="allow"))
    return problem, randomly_sharded(rng, random_plan(rng, problem))


def test_replicas_hold_step_and_gather_a_part_each():
    """Tests that two replicas hold and take what a hand count says: once round 8 bytes, half a step, once round 6."""
    problem = make_problem([stepping("x", 9)], [make_link("a b", latency=10)], shard_optimizer="allow")
    words = {"a": "0F0 0B0", "b": "0F0 0B0"}
    whole = simulate(problem, make_plan(problem, ["x @ a | b"], words))
    plan = make_plan(problem, [sharded("x @ a | b")], words)
    played = simulate(problem, plan)
    assert whole.makespan_ns == 6 + (8 + 2 * 10) + 9
    assert played.makespan_ns == 6 + (4 + 10) + 5 + (3 + 10)
    assert (whole.peak_bytes["a"], played.peak_bytes["a"]) == (40, 40 - 25 + 13)
    assert played.synchronisations[0].end_ns == 6 + 14
    assert verify(problem, plan).violations == ()


def test_a_stage_gathers_once_all_its_devices_have_stepped():
    """Tests that a device waits for the steps of another stage on a device that it shares a stage with."""
    layers = [stepping("x", 8), stepping("y", 50)]
    problem = make_problem(layers, [make_link("a b")], shard_optimizer="allow")
    words = {"a": "0F0 0B0", "b": "0F0 1F0 1B0 0B0"}
    plan = make_plan(problem, [sharded("x @ a | b"), "y @ b"], words)
    assert CostModel(problem).steps_ns(plan.stages) == {"a": 4 + 50 + 3, "b": 4 + 50 + 3}
    assert verify(problem, plan).violations == ()
    judged(problem, plan)


def test_a_bucket_has_room_for_what_is_sent_and_what_comes():
    """Tests that a reduce-scatter holds twice the gradients where buckets are large, and a bucket otherwise."""
    problem = make_problem([stepping("x", 0)], [make_link("a b")], shard_optimizer="allow")
    plan = make_plan(problem, [sharded("x @ a | b")], {"a": "0F0 0B0", "b": "0F0 0B0"})
    for bucket, held in ((0, 0), (11, 11), (100, 16)):
        known = replace(problem, profile=replace(problem.profile, bucket_bytes=bucket))
        again = replace(plan, problem=known.reference())
        assert simulate(known, again).peak_bytes["b"] == 28 + held
        assert verify(known, again).violations == ()


def test_core_and_judge_agree_on_sharded_stages():
    """Tests that random plans with sharded stages take and hold the same by core and judge, on groups as well."""
    shards = 0
    for seed in range(shortened(60, whole=3000)):
        problem, plan = random_case(seed)
        played = judged(problem, plan)
        assert {each.rule for each in verify(problem, plan).violations} <= {"memory-exceeded"}
        objective = played.span_ns if problem.options.objective == "span" else played.makespan_ns
        assert schedule_bound(problem, plan.stages, costs=CostModel(problem)) <= objective
        shards += any(stage.is_sharded for stage in plan.stages)
    assert shards > shortened(60, whole=3000) // 10


def test_the_search_counts_what_replicas_shard():
    """Tests that the optimizer's state and the weights stand in the search's tables, as stated and in equal parts."""
    wide = WidthBytes(width=2, stash_bytes=0, state_bytes=20, optimizer_bytes=7)
    layer = stepping("x", 0, wider=(wide,))
    layer = replace(layer, costs=(*layer.costs, replace(layer.costs[0], width=2)))
    problem = make_problem([layer], [make_link("a b")], max_width=2, shard_optimizer="together")
    instance = make_instance(problem, CostModel(problem))
    assert instance.shard_choice == "together"
    assert instance.layers.sizes[:, SHARDABLE_ROW].tolist() == [[25], [7]]
    assert instance.layers.weights.tolist() == [[[6], [0]], [[0], [6]]]
    whole = make_instance(make_problem([layer], [make_link("a b")]), CostModel(problem))
    assert (whole.shard_choice, whole.layers.weights.any()) == ("never", False)
    assert modes_of([sharded("x @ a | b"), make_stage("y @ a | b", recompute=True)]).tolist() == [2, 1]


@pytest.mark.parametrize(
    ("choice", "shards", "wrong"),
    [
        ("never", (True, False), [0]),
        ("always", (True, False), [1]),
        ("together", (True, False), [1]),
        ("together", (False, False), []),
        ("together", (True, True), []),
        ("allow", (True, False), []),
    ],
)
def test_the_judge_knows_who_may_shard(choice: str, shards: tuple[bool, bool], wrong: list[int]):
    """Tests that sharded stages are refused where they are not allowed, and unsharded ones where all have to."""
    layers = [stepping("x", 0), stepping("y", 0), stepping("z", 0)]
    links = [make_link(f"{a} {b}") for a, b in ("ab", "bc", "cd", "de")]
    problem = make_problem(layers, links, shard_optimizer=choice)
    make = [sharded if each else make_stage for each in shards]
    stages = [make[0]("x @ a | b"), make[1]("y @ c | d"), "z @ e"]
    words = {d: f"{s}F0 {s}B0" for s, ds in enumerate(("ab", "cd", "e")) for d in ds}
    found = verify(problem, make_plan(problem, stages, words)).violations
    assert [(each.rule, each.subject) for each in found] == [("shard-option", f"stage {number}") for number in wrong]


def test_nobody_shards_alone():
    """Tests that a stage with one replica that is said to shard is refused."""
    problem = make_problem([stepping("x", 0)], [make_link("a b")], shard_optimizer="allow")
    plan = make_plan(problem, [sharded("x @ a")], {"a": "0F0 0B0"})
    assert [each.rule for each in verify(problem, plan).violations] == ["shard-alone"]
    assert not plan.stages[0].is_sharded


def test_order_models_end_with_the_gathering():
    """Tests that the model that orders are sought with ends when the plan does."""
    problem = make_problem([stepping("x", 9)], [make_link("a b", latency=10)], shard_optimizer="allow")
    plan = make_plan(problem, [sharded("x @ a | b")], {"a": "0F0 0B0", "b": "0F0 0B0"})
    instance = make_schedule_instance(problem, plan.stages, costs=CostModel(problem))
    assert (instance.synchronisation, instance.tail) == ((14,), 5 + 13)
    played = play(instance, {0: [(0, 0, 0), (3, 0, 0)], 1: [(0, 0, 0), (3, 0, 0)]})
    assert played is not None


def test_kernels_play_sharded_stages_as_the_simulator():
    """Tests that orders of random sharded stages take in the search what the simulator says, and hold as much."""
    for seed in range(shortened(60, whole=1000)):
        rng = Random(seed)
        problem = with_long_steps(with_parts(random_exact_problem(rng), Random(seed)), Random(seed))
        problem = replace(problem, options=replace(problem.options, shard_optimizer="allow"))
        plan = randomly_sharded(rng, random_plan(rng, problem))
        case = Case(problem, plan.stages)
        words = case.device_orders(plan.schedule)
        candidate = case.candidate(words=words)
        played = simulate(problem, case.plan(words))
        assert case.searcher.device_orders(candidate)[1] == played.objective_ns(problem.options.objective), seed
        instance = make_schedule_instance(problem, plan.stages, costs=case.costs)
        assert case.net.devices.tolist() == list(map(list, instance.devices))
        assert case.net.synchronisation.tolist() == list(instance.synchronisation)
        assert case.net.scalars[TAIL] == instance.tail
        assert make_stages(problem, candidate.stage_of, groups=candidate.groups, modes=candidate.modes) == plan.stages


def sharding_problem(seed: int) -> Problem:
    """A tiny problem with parts of state and long steps, where any or all stages shard, often with little memory."""
    rng = Random(seed)
    problem = with_long_steps(with_parts(tiny_problem(rng), Random(seed)), Random(seed))
    choice: ShardChoice = rng.choice(["together", "allow", "allow", "always"])
    sizes = {device.name: rng.choice([150, 300, 2000]) for device in problem.cluster.devices}
    problem = with_memory(problem, sizes) if rng.random() < 0.6 else problem
    return replace(problem, options=replace(problem.options, shard_optimizer=choice))


@pytest.mark.slow
def test_no_plan_is_below_bounds_where_replicas_may_shard():
    """Tests that for tiny problems no bound is above the best of all plans, nor a problem infeasible that has one."""
    checked = 0
    for seed in range(shortened(5, whole=1000)):
        problem = sharding_problem(seed)
        costs, best = CostModel(problem), brute_force(problem)
        if best is not None:
            bound = make_bound(problem, costs)
            assert bound.value_ns <= best, seed
            assert check_certificate(problem, bound.certificate) == bound.value_ns
            assert prove_infeasible(problem, costs) is None, seed
            checked += problem.may_shard
    assert checked > shortened(1, whole=3)


def test_least_costs_allow_for_sharding():
    """Tests that the least step, synchronisation and state are those of replicas that share, as the best plan does."""
    make = partial(make_problem, [stepping("x", 40)], [make_link("a b", latency=3)], num_microbatches=2)
    problem, apart = make(shard_optimizer="allow"), make()
    least, whole = Least(problem, CostModel(problem)), Least(apart, CostModel(apart))
    assert (brute_force(problem), brute_force(apart)) == (12 + (4 + 3) + 20 + (3 + 3), 24 + 40)
    assert (least.optimizer_ns, whole.optimizer_ns) == (20, 40)
    assert (least.synchronisation_ns(8, 2), whole.synchronisation_ns(8, 2)) == (4 + 3, 8 + 6)
    assert (least.state_bytes, whole.state_bytes) == ([40 - 25 + 12], [40])
    assert make_bound(problem, CostModel(problem)).value_ns <= 45


def test_only_sharded_plans_fit_a_small_memory():
    """Tests that a memory that no whole optimizer's state fits into is infeasible only where nobody may shard."""
    layers = [stepping("x", 0)]
    link = [make_link("a b")]
    problem = make_problem(layers, link, memory_bytes=30, shard_optimizer="allow")
    assert prove_infeasible(problem, CostModel(problem)) is None
    assert brute_force(problem) == 6 + 4 + 3
    never = make_problem(layers, link, memory_bytes=30)
    assert "layer 'x' alone needs 40 bytes" in str(prove_infeasible(never, CostModel(never)))


def test_given_stages_may_still_shard():
    """Tests that the bound of given stages and devices is not one over all plans where they may shard or not."""
    problem = make_problem(
        [stepping("x", 50)], [make_link("a b")], partition=(("x",),), placement=((("a",), ("b",)),),
        shard_optimizer="allow",
    )  # fmt: skip
    bound = make_bound(problem, CostModel(problem))
    assert bound.kind not in ("schedule", "windows")
    assert bound.value_ns <= brute_force(problem)


def test_complete_models_say_nothing_of_sharding():
    """Tests that the complete model and refutations refuse the option."""
    problem = make_problem([stepping("x", 9)], [make_link("a b")], shard_optimizer="allow")
    with pytest.raises(ValueError, match="shard_optimizer = allow is not in the complete model; set it to never"):
        require_covered(problem)
    with pytest.raises(TooManyCasesError, match="no replicas shard"):
        CaseTables(problem, CostModel(problem))
    require_covered(replace(problem, options=replace(problem.options, max_replicas=1)))


SEARCHED = range(shortened(13, whole=0), shortened(23, whole=300))
"""Seeds of problems that are searched exactly."""


@pytest.mark.slow
def test_the_exact_search_agrees_with_brute_force():
    """Tests that the exact search alone finds the best of all plans that may shard, or have to, and mostly proves it.

    What stays open are shared links, and devices that compute and send in turns.
    """
    gains, still_open, problems = 0, 0, filter(is_small, map(sharding_problem, SEARCHED))
    for problem in problems:
        (value, bound), best = search_exactly(problem), brute_force(problem)
        assert value == best
        assert best is None or (bound is not None and bound <= best)
        still_open += value != bound
        never = replace(problem, options=replace(problem.options, shard_optimizer="never"))
        gains += problem.may_shard and best != brute_force(never)
    assert gains
    assert still_open <= 1 + len(SEARCHED) // 20


def test_the_exact_search_proves_a_plan_that_shards():
    """Tests that a plan whose stages shard is called optimal, by the complete search."""
    layers = [stepping("x", 9), stepping("y", 30)]
    problem = make_problem(layers, [make_link("a b", latency=1)], shard_optimizer="allow", num_microbatches=2)
    plan = find_plan(problem, limits=Limits(time_limit_s=60.0))
    assert plan.evidence is not None
    assert (plan.evidence.solution_status, plan.evidence.proved_by) == ("optimal", "complete search")
    assert plan.evidence.makespan_ns == brute_force(problem)
    assert all(stage.is_sharded for stage in plan.stages)


def planned(problem: Problem, *, rounds: int = 2) -> Plan:
    """What the planner finds; the verifier has passed it."""
    plan = find_plan(problem, limits=Limits(time_limit_s=10.0, max_rounds=rounds))
    assert plan.evidence is not None
    assert plan.evidence.verdict["passed"]
    return plan


@pytest.mark.parametrize(
    ("choice", "best", "shards"),
    [("never", 64, None), ("allow", 45, "optimizer"), ("together", 45, "optimizer"), ("always", 45, "optimizer")],
)
def test_the_search_shards_where_that_is_best(choice: ShardChoice, best: int, shards: str | None):
    """Tests that a dear step makes two replicas that share it the best plan, and that it is found wherever allowed."""
    link = make_link("a b", latency=3)
    problem = make_problem([stepping("x", 40)], [link], num_microbatches=2, shard_optimizer=choice)
    plan = planned(problem)
    assert plan.evidence is not None
    assert plan.evidence.makespan_ns == best
    assert [stage.shard for stage in plan.stages if len(stage.replicas) > 1] == ([shards] if shards else [])


def test_the_search_shards_to_fit():
    """Tests that the only plan that fits is found: replicas that share the optimizer's state."""
    problem = make_problem([stepping("x", 0)], [make_link("a b")], memory_bytes=30, shard_optimizer="allow")
    assert planned(problem).stages == (sharded("x @ a | b"),)


def test_a_given_placement_leaves_sharding_open():
    """Tests that of decided stages on decided devices those shard that had better."""
    layers = [stepping("x", 60), stepping("y", 0, gradient_bytes=0, parameter_bytes=400, state_bytes=500)]
    problem = make_problem(
        layers, [make_link("a b"), make_link("b c"), make_link("c d")], shard_optimizer="allow",
        partition=(("x",), ("y",)), placement=((("a",), ("b",)), (("c",), ("d",))),
    )  # fmt: skip
    assert [stage.shard for stage in planned(problem).stages] == ["optimizer", "none"]
    together = replace(problem, options=replace(problem.options, shard_optimizer="together"))
    assert len({stage.shard for stage in planned(together).stages}) == 1


@pytest.mark.slow
def test_no_found_plan_is_below_the_best_of_all():
    """Tests that plans found for tiny problems that may shard are no better than the best of all, and most as good."""
    checked = reached = 0
    for seed in range(shortened(3, whole=200)):
        problem = sharding_problem(seed)
        best = brute_force(problem)
        if best is None or not problem.may_shard:
            continue
        evidence = planned(problem, rounds=4).evidence
        assert evidence is not None
        found = evidence.span_ns if problem.options.objective == "span" else evidence.makespan_ns
        assert evidence.lower_bound_ns <= best <= found, seed
        checked, reached = checked + 1, reached + (found == best)
    assert checked
    assert reached >= checked * 3 // 4


def test_baselines_shard_where_they_may():
    """Tests that data parallelism has a row with and one without sharding where both are allowed, else one row."""
    for choice, wanted in (
        ("never", ["data parallel"]),
        ("allow", ["data parallel", "data parallel, sharded optimizer"]),
        ("always", ["data parallel, sharded optimizer"]),
    ):
        problem = make_problem([stepping("x", 40)], [make_link("a b")], shard_optimizer=choice)
        evidence = planned(problem).evidence
        assert evidence is not None
        assert [row.name for row in evidence.baselines if row.name.startswith("data parallel")] == wanted


def test_kinds_of_plans_tell_who_shards():
    """Tests that a plan whose replicas shard is another kind of plan, and says so."""
    problem = make_problem([stepping("x", 40)], [make_link("a b")], shard_optimizer="allow")
    words = {"a": "0F0 0B0", "b": "0F0 0B0"}
    kinds = [kind_of(make_plan(problem, [make("x @ a | b")], words)) for make in (sharded, make_stage)]
    assert [kind.shard for kind in kinds] == ["all", "none"]
    assert "sharded optimizer" in describe_kind(kinds[0])
    assert list(differences(*kinds)) == ["no sharded optimizer"]


def test_explained_times_of_sharded_plans_add_up():
    """Tests that the parts of every device of random plans with sharded stages add up to the makespan."""
    for seed in range(40):
        problem, plan = random_case(seed)
        if any(stage.is_sharded for stage in plan.stages):
            explanation = explain(problem, plan, timeline=simulate(problem, plan))
            assert {row.total_ns for row in explanation.devices} == {explanation.makespan_ns}
