"""The recipe: better than every baseline, verified, within the limits and the options, and honest about all of it."""

import subprocess
import sys
import time
from dataclasses import replace
from functools import cache
from itertools import pairwise
from random import Random
from threading import Timer

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.baselines.registry import make_baselines, play_baseline
from planner.document import parse_plan, render_plan
from planner.errors import InfeasibleProblemError, NoPlanFoundError
from planner.layout.costs import CostModel
from planner.plan import Evidence, Plan
from planner.planning.planning_params import FirstPlansParams, SearchParams
from planner.problem import PinnedLayer, Problem
from planner.progress import Limits, Progress
from planner.simulation.simulate import simulate
from planner.verify import verify
from tests.long_runs import long_only, shortened
from tests.planner.builders import make_layer, make_link, make_problem
from tests.planner.hasty import make_plan
from tests.solver_models.nets import random_exact_problem, random_restrictions, tighten
from tests.strategies import random_plan, random_problem

randoms = st.randoms(use_true_random=False)

QUICK = Limits(time_limit_s=30, max_rounds=2)


def make_row(num_layers: int = 8, num_devices: int = 3, **fields: object) -> Problem:
    """A chain of unequal layers on devices in a row; no plan for it reaches its lower bound."""
    layers = [
        make_layer(f"l{i}", (3 + i % 4, 4 + i % 3, 2 + i % 5), state_bytes=5, stash_bytes=3, weight_stash_bytes=1)
        for i in range(num_layers)
    ]
    links = [make_link(f"d{a} d{b}", latency=1) for a, b in pairwise(range(num_devices))]
    return make_problem(
        layers, links, edge_bytes=4, **({"num_microbatches": 6, "memory_bytes": 10_000, "max_replicas": 1} | fields)
    )


@cache
def plan_of_row(rounds: int) -> Plan:
    """A plan of the row after so many rounds; several tests compare others with it."""
    return make_plan(make_row(), limits=Limits(time_limit_s=600, max_rounds=rounds))


def evidence_of(plan: Plan) -> Evidence:
    assert plan.evidence is not None
    return plan.evidence


def assert_honest(problem: Problem, plan: Plan) -> None:
    """The plan passes the verifier, its figures are true, and no baseline that fits is better."""
    assert verify(problem, plan).passed
    evidence, timeline = evidence_of(plan), simulate(problem, plan)
    assert (evidence.makespan_ns, evidence.span_ns) == (timeline.makespan_ns, timeline.span_ns)
    objective = timeline.objective_ns(problem.options.objective)
    assert evidence.lower_bound_ns <= objective
    assert (evidence.solution_status == "optimal") == (evidence.proved_by is not None)
    assert (evidence.proved_by == "certificate") == (evidence.lower_bound_ns == objective)
    assert evidence.proved_by != "complete search" or evidence.solver_bound_ns == objective
    costs = CostModel(problem)
    baselines = list(make_baselines(problem, costs))
    assert [row.name for row in evidence.baselines] == [baseline.name for baseline in baselines]
    for baseline in baselines:
        row, played = play_baseline(problem, baseline, costs=costs)
        if played is not None and row.fits_memory and baseline.plan is not None:
            assert objective <= played.objective_ns(problem.options.objective), row.name


def plan_or_none(problem: Problem, limits: Limits = QUICK) -> Plan | None:
    """None if nothing fits, or nothing was found that does."""
    try:
        return make_plan(problem, limits=limits)
    except (InfeasibleProblemError, NoPlanFoundError):
        return None


@pytest.mark.slow
@settings(max_examples=shortened(3, whole=25))
@given(randoms)
def test_plans_of_all_kinds_are_honest(rng: Random):
    """Tests that problems of every kind get a verified plan that no fitting baseline beats."""
    problem = random_problem(rng)
    plan = plan_or_none(problem)
    assert plan is not None
    assert_honest(problem, plan)


@pytest.mark.slow
@settings(max_examples=shortened(3, whole=25))
@given(randoms)
def test_plans_within_restrictions_are_honest(rng: Random):
    """Tests that whatever the options forbid, a plan keeps it, and that it still beats the baselines."""
    problem = random_restrictions(rng)
    plan = plan_or_none(problem)
    if plan is not None:
        assert_honest(problem, plan)


@pytest.mark.slow
@settings(max_examples=shortened(3, whole=25))
@given(randoms)
def test_plans_with_little_memory_are_honest(rng: Random):
    """Tests that a plan stays within a memory that a plan is known to need."""
    problem = random_exact_problem(rng)
    known = random_plan(rng, problem)
    problem = tighten(rng, problem, simulate(problem, known))
    plan = plan_or_none(problem)
    if plan is not None:
        assert_honest(problem, plan)


@long_only
def test_what_fits_one_microbatch_at_a_time_only_is_found():
    """Tests that the search finds its way to one of the few cuts whose stages, two on a device, fit at all."""
    states = (1194, 8, 95, 427, 1026, 8, 5, 38, 6, 715, 15, 134, 0, 5, 0, 8, 93, 24, 0, 165, 0, 1108, 196, 248)
    stashes = (10, 52, 88, 16, 84, 23, 66, 22, 138, 18, 91, 207, 246, 34, 142, 45, 296, 90, 114, 17, 53, 36, 19, 20)
    layers = [
        make_layer(f"l{number}", state_bytes=state, stash_bytes=stash)
        for number, (state, stash) in enumerate(zip(states, stashes, strict=True))
    ]
    links = [make_link(ends) for ends in ("a b", "a c", "a d", "b c", "b d", "c d")]
    problem = make_problem(layers, links, num_microbatches=8, memory_bytes=1985, receive_buffers=0)
    found: list[int] = []  # one is enough
    plan = make_plan(
        problem,
        limits=Limits(time_limit_s=60, max_rounds=12),
        on_progress=lambda step: found.extend([] if step.incumbent_ns is None else [step.incumbent_ns]),
        should_stop=lambda: bool(found),
    )
    assert verify(problem, plan).passed


def test_incumbents_on_the_way_are_valid():
    """Tests that every incumbent that is reported is a valid plan with the objective that is reported."""
    problem = make_row()
    seen: list[Progress] = []
    make_plan(problem, limits=QUICK, on_progress=seen.append)
    for step in seen:
        if step.incumbent is not None:
            verdict = verify(problem, step.incumbent)
            assert verdict.passed
            assert verdict.timeline is not None
            assert verdict.timeline.makespan_ns == step.incumbent_ns


def test_the_user_stops_the_search():
    """Tests that a wish to stop ends the search at once, with the best plan so far."""
    params = SearchParams(first_plans=FirstPlansParams(min_baseline_s=60.0))  # a busy machine needs longer for them
    problem = make_row()
    plan = make_plan(problem, limits=Limits(time_limit_s=60), params=params, should_stop=lambda: True)
    assert evidence_of(plan).stopped_by == "user"
    assert_honest(problem, plan)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "num_microbatches"), [((24, 6), 24), ((64, 32), 256)], ids=["small", "large"])
def test_the_time_limit_is_kept_beside_a_busy_process(size: tuple[int, int], num_microbatches: int):
    """Tests that a search which could go on stops for time, with 5 % of it and a second of work left at most.

    Work, not time: how much of a core it gets is for others to say.
    """
    problem, limit_s = make_row(*size, num_microbatches=num_microbatches), shortened(1.5, whole=10.0)
    worked: list[float] = []
    over = Timer(limit_s, lambda: worked.append(time.process_time()))
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            over.start()
            plan = make_plan(problem, limits=Limits(time_limit_s=limit_s, threads=1))
        finally:
            over.cancel()
            busy.kill()
    assert evidence_of(plan).stopped_by == "time"
    assert not worked or time.process_time() - worked[0] < 0.05 * limit_s + 1


def test_a_gap_that_is_good_enough_ends_the_search():
    """Tests that the search ends once the gap asked for is reached."""
    plan = make_plan(make_row(), limits=Limits(gap=0.9))
    assert evidence_of(plan).stopped_by == "gap"
    assert 0 < evidence_of(plan).gap <= 0.9


def test_a_proof_ends_the_search():
    """Tests that a plan that reaches the lower bound is optimal, and that nothing is searched after it."""
    problem = make_problem([make_layer("x")], [], more_devices="a", num_microbatches=3)
    plan = make_plan(problem)
    assert evidence_of(plan).stopped_by == "proof"
    assert evidence_of(plan).solution_status == "optimal"
    assert evidence_of(plan).gap == 0
    assert evidence_of(plan).makespan_ns == 9


@pytest.mark.slow
@pytest.mark.parametrize("seed", shortened([7], whole=[0, 7]))
def test_rounds_are_deterministic(seed: int):
    """Tests that the same seed and number of rounds give the same document, byte for byte."""
    problem = make_row(*shortened((8, 3), whole=(12, 4)))
    limits = Limits(time_limit_s=600, max_rounds=shortened(1, whole=2), seed=seed)
    first, second = (render_plan(make_plan(problem, limits=limits)) for _ in range(2))
    assert first == second
    assert parse_plan(first).evidence == parse_plan(second).evidence


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "options", "rounds"),
    [((12, 4), {"split_placement": True}, shortened(2, whole=5)), ((4, 2), {"num_microbatches": 3}, 4)],
)
def test_threads_decide_nothing_but_the_time(size: tuple[int, int], options: dict[str, object], rounds: int):
    """Tests that 1, 2 and 16 threads give the same document, byte for byte, where tasks overlap; exact search included.

    The exact search has its first turn after three rounds, and closes the smaller problem in it.
    """
    problem = make_row(*size, **options)
    limits = [Limits(time_limit_s=600, max_rounds=rounds, threads=threads) for threads in (1, 2, 16)]
    first, *others = [render_plan(make_plan(problem, limits=each)) for each in limits]
    assert all(other == first for other in others)


@pytest.mark.slow
def test_evidence_says_what_every_improver_found():
    """Tests that improvements and gains add up to the way from the first plan to the last one."""
    heard: list[int] = []
    plan = make_plan(
        make_row(12, 4),
        limits=Limits(time_limit_s=shortened(3, whole=8), patience=2, threads=2),
        on_progress=lambda step: heard.append(step.incumbent_ns or 0),
    )
    evidence = evidence_of(plan)
    assert evidence.threads == 2
    assert sum(tally.gain_ns for tally in evidence.improvers) == max(heard) - evidence.makespan_ns
    assert all(tally.seconds is not None and tally.seconds >= 0 for tally in evidence.improvers)
    known = {tally.name: tally for tally in evidence.improvers}
    assert known["baselines"].turns == 1
    assert known["joint search"].turns >= 1
    assert (known["bound"].bounds_raised, known["bound"].bound_gain_ns) == (1, 0)
    assert known.get(evidence.source, known["baselines"]).improvements >= 1
    assert parse_plan(render_plan(plan)).evidence == evidence


@pytest.mark.slow
def test_more_rounds_never_hurt():
    """Tests that the plan of more rounds is at least as good."""
    problem = make_row(*shortened((8, 3), whole=(12, 4)))
    found = [
        evidence_of(make_plan(problem, limits=Limits(time_limit_s=600, max_rounds=rounds))).makespan_ns
        for rounds in shortened((0, 1), whole=(0, 1, 2))
    ]
    assert found == sorted(found, reverse=True)


def test_what_cannot_fit_is_infeasible():
    """Tests that a problem whose state exceeds all memory is refused with the reason."""
    with pytest.raises(InfeasibleProblemError, match="bytes"):
        make_plan(make_row(memory_bytes=4))


def test_what_a_bound_rules_out_for_every_deadline_is_infeasible():
    """Tests that a limit no sum shows is named: two devices hold all layers, but no cut into two stages fits them."""
    layers = [make_layer(name, state_bytes=size) for name, size in zip("xyz", (60, 30, 60), strict=True)]
    problem = make_problem(layers, [make_link("a b")], max_stages_per_device=1, max_replicas=1)
    found = []
    for small in (55, 60):
        sizes = zip(problem.cluster.devices, (100, small), strict=True)
        devices = tuple(replace(device, memory_bytes=size) for device, size in sizes)
        uneven = replace(problem, cluster=replace(problem.cluster, devices=devices))
        try:
            found.append(make_plan(uneven, limits=Limits(time_limit_s=60, max_rounds=0)).evidence is not None)
        except InfeasibleProblemError as error:
            found.append(str(error))
    first, second = found
    assert "rules out every deadline on 2 devices of 55 to 100 usable bytes (max_stages_per_device = 1," in first
    assert second is True


def test_what_no_order_fits_is_infeasible():
    """Tests that a small problem is refused once every partition, mapping and order has been tried."""
    layers = [make_layer(name, state_bytes=6, stash_bytes=6) for name in "xy"]
    problem = make_problem(layers, [make_link("a b")], memory_bytes=13, edge_bytes=1, max_replicas=1, receive_buffers=2)
    with pytest.raises(InfeasibleProblemError):
        make_plan(problem, limits=Limits(time_limit_s=30))


@pytest.mark.slow
def test_the_objective_is_chosen():
    """Tests that asking for the span gives a span at least as small as asking for the makespan."""
    by_makespan = evidence_of(plan_of_row(2))
    by_span = evidence_of(make_plan(make_row(objective="span"), limits=QUICK))
    assert by_span.span_ns <= by_makespan.span_ns
    assert by_makespan.makespan_ns <= by_span.makespan_ns
    assert by_span.lower_bound_ns <= by_span.span_ns


PARTITION = (("l0", "l1"), ("l2",), ("l3", "l4", "l5", "l6"), ("l7",))
PINS = (PinnedLayer(layer="l0", device="d2"), PinnedLayer(layer="l7", device="d0"))


@pytest.mark.parametrize(
    "options",
    [
        {"partition": PARTITION, "max_stages_per_device": 2},
        {"partition": PARTITION, "max_stages_per_device": 2, "max_replicas": None},
        {
            "partition": PARTITION,
            "placement": ((("d1",),), (("d0",), ("d2",)), (("d2",),), (("d1",),)),
            "max_replicas": 2,
        },
        {"pinned": PINS},
        {"pinned": PINS, "max_replicas": None, "max_stages_per_device": 1},
        {"max_replicas": 2},
        {"max_replicas": None, "uneven_replication": False},
        {"max_stages_per_device": 1},
        {"max_stages_per_device": 4},
        {"idle_devices": False, "max_stages_per_device": 1},
        {"skip_edges": False},
        {"split_backward": False},
        {"receive_buffers": 0},
        {"synchronisation": "bucketed", "max_replicas": None},
    ],
    ids=lambda options: " ".join(options),
)
def test_options_are_respected(options: dict[str, object]):
    """Tests that a plan keeps every option and still beats the baselines, which keep them too."""
    problem = make_row(**options)
    limits = replace(QUICK, max_rounds=shortened(1, whole=QUICK.max_rounds))
    assert_honest(problem, make_plan(problem, limits=limits))


def test_given_stages_are_searched():
    """Tests that a partition no baseline can use is planned all the same."""
    partition = (*PARTITION[:2], ("l3",), ("l4", "l5", "l6"), ("l7",))
    problem = make_row(partition=partition, max_stages_per_device=3)
    plan = make_plan(problem, limits=QUICK)
    assert tuple(stage.layers for stage in plan.stages) == partition
    assert all(row.makespan_ns is None for row in evidence_of(plan).baselines)


def test_given_devices_are_kept():
    """Tests that with stages and devices given only the order is searched."""
    placement = ((("d1",),), (("d0",),), (("d2",),), (("d1",),))
    problem = make_row(partition=PARTITION, placement=placement, max_stages_per_device=2)
    plan = make_plan(problem, limits=QUICK)
    assert tuple(stage.replicas for stage in plan.stages) == placement


@pytest.mark.slow
def test_it_starts_from_a_plan():
    """Tests that a plan to start from is never lost: not on its own question, nor where there is more of something."""
    problem, first = make_row(), plan_of_row(2)
    again = make_plan(problem, limits=Limits(time_limit_s=30, max_rounds=0), start=first)
    assert evidence_of(again).makespan_ns <= evidence_of(first).makespan_ns
    assert_honest(problem, again)
    roomier = replace(
        problem,
        cluster=replace(
            problem.cluster,
            devices=tuple(replace(device, memory_bytes=2 * device.memory_bytes) for device in problem.cluster.devices),
        ),
    )
    better = make_plan(roomier, limits=Limits(time_limit_s=30, max_rounds=1), start=first)
    assert evidence_of(better).makespan_ns <= evidence_of(first).makespan_ns
    assert better.problem.cluster_sha256 != first.problem.cluster_sha256
    assert_honest(roomier, better)


@pytest.mark.slow
def test_a_start_that_does_not_fit_is_left_aside():
    """Tests that a plan of another question, which the verifier rejects here, changes nothing but is no mistake."""
    problem, other = make_row(), make_row(num_layers=5)
    start = make_plan(other, limits=Limits(time_limit_s=30, max_rounds=0))
    limits = Limits(time_limit_s=600, max_rounds=1)
    assert make_plan(problem, limits=limits, start=start).stages == plan_of_row(1).stages


@pytest.mark.slow
def test_given_stages_and_devices_are_ordered_reproducibly():
    """Tests that with partition and placement given all rounds go into the order, the same for the same seed."""
    layers = [make_layer(f"l{i}", (5 + i % 3, 6, 4 - i % 2), stash_bytes=10, weight_stash_bytes=10) for i in range(6)]
    problem = make_problem(
        layers,
        [make_link("d0 d1"), make_link("d1 d2")],
        num_microbatches=5,
        edge_bytes=1,
        memory_bytes=45,
        receive_buffers=0,
        partition=tuple((layer.name,) for layer in layers),
        placement=tuple(((f"d{d}",),) for d in (0, 1, 2, 2, 1, 0)),
    )
    limits = Limits(time_limit_s=600, max_rounds=2, seed=5)
    first, second = make_plan(problem, limits=limits), make_plan(problem, limits=limits)
    assert first.schedule == second.schedule
    assert first.evidence is not None
    fitting = [row.makespan_ns for row in first.evidence.baselines if row.fits_memory and row.makespan_ns is not None]
    assert all(first.evidence.makespan_ns <= theirs for theirs in fitting)
    assert first.evidence.makespan_ns >= first.evidence.lower_bound_ns
