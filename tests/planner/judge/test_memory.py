"""Rules of memory that options turn on: the judge and the core read them alike."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings

from planner.bounds.cases.case_tables import CaseTables, TooManyCasesError
from planner.errors import InfeasibleProblemError, NoPlanFoundError
from planner.layout.costs import CostModel
from planner.plan import Plan
from planner.planning.complete.complete_question import require_covered
from planner.problem import Options, Problem
from planner.progress import Limits
from planner.verify import verify
from tests.long_runs import examples, shortened
from tests.planner.brute_force import brute_force
from tests.planner.builders import make_layer, make_link, make_plan, make_problem
from tests.planner.hasty import make_plan as plan_for
from tests.planner.judged import judged
from tests.strategies import RANDOMS, random_chain, random_plan, random_problem, with_memory, with_reference


def peaks(problem: Problem, plan: Plan) -> dict[str, int]:
    """Peak bytes per device, on which the judge and the core agree."""
    asked = with_reference(problem, plan)
    assert verify(problem, asked).passed
    return dict(judged(problem, asked).peak_bytes)


def keeping(problem: Problem, *, keeps: bool = True) -> Problem:
    """The problem in which I keeps its workspace, or does not."""
    return replace(problem, options=replace(problem.options, keep_workspace=keeps))


@settings(max_examples=examples(300), deadline=None)
@given(rng=RANDOMS)
def test_kept_workspace_is_read_alike(rng: Random):
    """Tests that all agree where I keeps its workspace, which never needs less, and as much where all is B."""
    problem = random_problem(rng)
    plan = random_plan(rng, problem)
    kept, given_back = (peaks(keeping(problem, keeps=keeps), plan) for keeps in (True, False))
    assert all(kept[device] >= given_back[device] for device in kept)
    for device, word in plan.schedule.items():
        if all(action.kind in "FB" for action in word):
            assert kept[device] == given_back[device]


def with_bucket(problem: Problem, bucket_bytes: int) -> Problem:
    """The problem whose profile states this size of a bucket."""
    return replace(problem, profile=replace(problem.profile, bucket_bytes=bucket_bytes))


@settings(max_examples=examples(300), deadline=None)
@given(rng=RANDOMS)
def test_buckets_are_read_alike(rng: Random):
    """Tests that all agree on what reductions hold: at most a bucket, on devices of replicated stages alone."""
    problem = random_problem(rng)
    plan = random_plan(rng, problem)
    bucket_bytes = rng.choice([1, 5, 30])
    with_it, without = (peaks(with_bucket(problem, size), plan) for size in (bucket_bytes, 0))
    reducing = {d for stage in plan.stages for group in stage.replicas for d in group if len(stage.replicas) > 1}
    assert all(0 <= with_it[device] - without[device] <= bucket_bytes * (device in reducing) for device in with_it)


@pytest.mark.parametrize(
    ("bucket_bytes", "expected"),
    [
        (0, {"a": 100, "b": 60, "c": 40}),
        (6, {"a": 106, "b": 66, "c": 46}),
        (9, {"a": 109, "b": 68, "c": 49}),
        (50, {"a": 120, "b": 68, "c": 60}),
    ],
)
def test_the_largest_bucket_of_a_device_counts(bucket_bytes: int, expected: dict[str, int]):
    """Tests that x (8 bytes of gradients, on a and b) and y (20, on a and c) share a's bucket."""
    layers = [
        make_layer("x", parameter_bytes=8, state_bytes=60),
        make_layer("y", parameter_bytes=20, state_bytes=40),
        make_layer("z", (1, 1, 0), parameter_bytes=70, state_bytes=0, frozen=True),
    ]
    problem = with_bucket(make_problem(layers, [make_link("a b"), make_link("a c"), make_link("b c")]), bucket_bytes)
    words = {"a": "0F0 1F0 1B0 0B0", "b": "0F0 2F0 2I0 0B0", "c": "1F0 2F0 2I0 1B0"}
    plan = make_plan(problem, ["x @ a | b", "y @ a | c", "z @ b | c"], words)
    assert peaks(problem, plan) == expected


@pytest.mark.parametrize(("bucket_bytes", "held"), [(0, 0), (6, 6), (50, 20)])
def test_views_of_buckets_are_held_once(bucket_bytes: int, held: int):
    """Tests that an all-reduce holds nothing twice where gradients lie in their buckets, and a reduce-scatter does."""
    layers = [make_layer("x", parameter_bytes=8, state_bytes=60), make_layer("y", parameter_bytes=10, state_bytes=40)]
    links = [make_link("a b")]
    problem = with_bucket(make_problem(layers, links, shard_optimizer="allow"), bucket_bytes)
    problem = replace(problem, profile=replace(problem.profile, gradient_as_bucket_view=True))
    words = {"a": "0F0 1F0 1B0 0B0", "b": "0F0 1F0 1B0 0B0"}
    plan = make_plan(problem, ["x @ a | b", "y @ a | b"], words)
    assert peaks(problem, plan) == {"a": 100, "b": 100}
    sharded = replace(plan, stages=(plan.stages[0], replace(plan.stages[1], shard="optimizer")))
    assert peaks(problem, sharded) == {"a": 100 + held, "b": 100 + held}


def with_reduction(problem: Problem, reduction_bytes: int) -> Problem:
    """The problem whose profile says that any reduction holds so much."""
    return replace(problem, profile=replace(problem.profile, reduction_bytes=reduction_bytes))


@settings(max_examples=examples(300), deadline=None)
@given(rng=RANDOMS)
def test_what_any_reduction_holds_is_read_alike(rng: Random):
    """Tests that all agree that it counts once per device of replicated stages, beside the bucket."""
    problem = with_bucket(random_problem(rng), rng.choice([0, 5]))
    plan = random_plan(rng, problem)
    with_it, without = (peaks(with_reduction(problem, size), plan) for size in (17, 0))
    replicated = {d for stage in plan.stages for group in stage.replicas for d in group if len(stage.replicas) > 1}
    assert with_it == {device: held + 17 * (device in replicated) for device, held in without.items()}


@pytest.mark.parametrize(("reduction_bytes", "num_replicas"), [(0, 2), (20, 2), (21, 1)])
def test_the_search_knows_what_any_reduction_holds(reduction_bytes: int, num_replicas: int):
    """Tests that replicas of a single layer are planned as long as what their reduction holds fits."""
    problem = make_problem([make_layer("x", (9, 9, 9), state_bytes=60)], [make_link("a b")], num_microbatches=4)
    problem = with_reduction(with_memory(problem, {"a": 80, "b": 80}), reduction_bytes)
    plan = plan_for(problem, limits=Limits(time_limit_s=10, max_rounds=1))
    assert [len(stage.replicas) for stage in plan.stages] == [num_replicas]
    assert verify(problem, plan).passed


def test_a_single_device_reduces_nothing():
    """Tests that a stage without replicas holds no bucket, and nothing else for reductions."""
    problem = make_problem([make_layer("x", parameter_bytes=8, state_bytes=60)], [], more_devices="a")
    plan = make_plan(problem, ["x @ a"], {"a": "0F0 0B0"})
    for asked in (problem, with_bucket(problem, 50), with_reduction(problem, 50)):
        assert peaks(asked, plan) == {"a": 60}


@settings(max_examples=examples(100), deadline=None)
@given(rng=RANDOMS)
def test_kept_workspace_has_to_fit(rng: Random):
    """Tests that a plan is refused with a byte less than its peak where I keeps its workspace, and not with all."""
    problem = keeping(random_problem(rng))
    plan = random_plan(rng, problem)
    for device, peak in peaks(problem, plan).items():
        for memory, fits in ((peak, True), (peak - 1, False)) if peak > 0 else ():
            tight = with_memory(problem, {device: memory})
            assert verify(tight, with_reference(tight, plan)).passed == fits


def in_turn(problem: Problem, *, turns: bool = True) -> Problem:
    """The problem in which stages may recompute, layer by layer or all layers at once."""
    return replace(problem, options=replace(problem.options, recompute=True, recompute_in_turn=turns))


@settings(max_examples=examples(300), deadline=None)
@given(rng=RANDOMS)
def test_recomputation_in_turn_is_read_alike(rng: Random):
    """Tests that all agree where layers recompute in turn, which never needs more, and as much where there is no B."""
    problem = in_turn(random_problem(rng))
    plan = random_plan(rng, problem)
    once, turns = (peaks(in_turn(problem, turns=each), plan) for each in (False, True))
    assert all(turns[device] <= once[device] for device in once)
    for device, word in plan.schedule.items():
        if not any(action.kind == "B" for action in word):
            assert turns[device] == once[device]


@pytest.mark.parametrize(("turns", "word", "peak"), [
    (False, "0F0 0F1 0B0 0B1", 100 + 2 * 5 + (60 - 5) + 4),
    (True, "0F0 0F1 0B0 0B1", 100 + 2 * 5 + (40 - 2) + 4),
    (True, "0F0 0F1 0I0 0W0 0I1 0W1", 100 + 2 * 5 + (60 - 5) + 4),
])  # fmt: skip
def test_one_layer_at_a_time_by_hand(turns: bool, word: str, peak: int):
    """Tests that a stage that recomputes, of stashes of 20 and 40 bytes and checkpoints of 3 and 2, holds this much."""
    sizes = {"parameter_bytes": 8, "state_bytes": 50, "workspace_bytes": 4, "weight_stash_bytes": 1}
    layers = [
        make_layer("x", stash_bytes=20, checkpoint_bytes=3, **sizes),
        make_layer("y", stash_bytes=40, checkpoint_bytes=2, **sizes),
    ]
    problem = in_turn(make_problem(layers, [], more_devices="a", num_microbatches=2), turns=turns)
    plan = make_plan(problem, ["x y @ a"], {"a": word})
    recomputing = replace(plan, stages=(replace(plan.stages[0], recompute=True),))
    assert peaks(problem, recomputing) == {"a": peak}


@pytest.mark.parametrize("first", range(0, shortened(20, whole=1000), 20))
def test_no_bound_is_above_the_best_in_turn(first: int):
    """Tests that on tight chains the planner stays between its bound and the best of all, and finds that mostly."""
    num_best = num_all = 0
    for seed in range(first, first + 20):
        chain = random_chain(Random(seed), sizes=(3, 2, 2), tight=True)
        problem = in_turn(replace(chain, options=replace(chain.options, max_stages_per_device=2)))
        best = brute_force(problem)
        try:
            evidence = plan_for(problem, limits=Limits(time_limit_s=20, max_rounds=2)).evidence
        except InfeasibleProblemError:
            assert best is None, f"seed {seed}"
            continue
        except NoPlanFoundError:
            num_all += best is not None
            continue
        assert evidence is not None
        assert best is not None, f"seed {seed}"
        assert evidence.lower_bound_ns is None or evidence.lower_bound_ns <= best <= evidence.makespan_ns
        assert evidence.solver_bound_ns is None or evidence.solver_bound_ns <= best, f"seed {seed}"
        num_best, num_all = num_best + (evidence.makespan_ns == best), num_all + 1
    assert num_best >= 0.9 * num_all


def test_complete_searches_refuse_turns():
    """Tests that the complete model and refutations, which know whole stages, say that they do not hold."""
    problem = in_turn(random_chain(Random(1), sizes=(3, 2, 2), tight=True))
    with pytest.raises(ValueError, match="recompute_in_turn = true is not in the complete model"):
        require_covered(problem)
    with pytest.raises(TooManyCasesError, match="does not hold with recompute_in_turn = true"):
        CaseTables(problem, CostModel(problem))
    with pytest.raises(ValueError, match="recompute_in_turn = true with recompute = false"):
        Options(recompute_in_turn=True)
