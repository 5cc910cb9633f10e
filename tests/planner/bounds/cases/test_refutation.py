"""Refutations: they hold against brute force, say what they prove, and those that were tampered with are refused."""

import time
from copy import deepcopy
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from planner.bounds.cases.refutation import MAX_EFFORT, MAX_NODES
from planner.bounds.cases.tree_codes import TreeCodes
from planner.evidence.certificate import Bound, check_certificate, refute
from planner.evidence.check_evidence import rederive
from planner.layout.costs import CostModel
from planner.plan import Stage
from planner.planning import Limits
from planner.problem import Options, Problem
from planner.simulation.simulate import simulate
from tests.long_runs import shortened
from tests.planner.brute_force import brute_force, brute_force_plan
from tests.planner.eager_plans import eager_plan, varied_problem, with_memory_of
from tests.planner.evidence.test_certificate import make_chain
from tests.planner.hasty import make_plan
from tests.planner.plan_in_cases import follow
from tests.strategies import random_chain, random_links, random_plan, random_problem, tiny_problem

EFFORT = 400_000


def hard() -> Problem:
    """Three layers, a stage on each device, with room for few microbatches: orders are branched on."""
    options = Options(receive_buffers=0, max_stages_per_device=1, max_replicas=1)
    times = [(4, 3, 7), (6, 6, 8), (5, 2, 2)]
    return make_chain(times, num_devices=3, num_microbatches=4, memory=35, stash=(10, 6), edge_bytes=1, options=options)


def proved(problem: Problem, value: int) -> Bound | None:
    """The refutation of everything below `value`."""
    return refute(problem, CostModel(problem), value=value, effort=EFFORT)


@pytest.fixture(scope="module")
def optimum() -> tuple[Problem, Bound]:
    """A problem whose refutation has a tree, and that refutation."""
    problem = hard()
    best = brute_force(problem)
    assert best is not None
    bound = proved(problem, best)
    assert bound is not None
    assert any(len(tree) > 1 for tree in bound.certificate["trees"])
    return problem, bound


def small_problem(rng: Random) -> Problem:
    """A chain with unlike devices and scarce memory, or a graph with replicas, chunks and recomputation."""
    problem = tiny_problem(rng) if rng.random() < 0.6 else random_chain(rng, sizes=(4, 3, 3), tight=True)
    return replace(problem, options=replace(problem.options, objective="makespan"))


def test_an_optimum_is_never_refuted():
    """Tests that no refutation goes beyond the best of all plans, and that most reach it."""
    num_proved = num_problems = 0
    for seed in range(shortened(40, whole=1_500)):
        problem = small_problem(Random(seed))
        best = brute_force(problem)
        if not best:
            continue
        assert proved(problem, best + 1) is None, f"seed {seed}"
        bound = proved(problem, best)
        num_problems += 1
        if bound is not None:
            num_proved += 1
            assert check_certificate(problem, bound.certificate) == best, f"seed {seed}"
    assert num_proved >= 0.7 * num_problems


def test_what_is_proposed_wrongly_costs_nothing_but_time():
    """Tests that trees of any codes are replaced, node by node, where they close nothing, and the bound is the same."""
    problem = hard()
    best = brute_force(problem)
    assert best is not None
    rng = Random(0)

    def propose(stages: tuple[Stage, ...], codes: TreeCodes) -> list[int]:
        return [1 + rng.randrange(codes.end + 100), 1 + codes.start(0, rng.randrange(codes.actions), what=0), 0, 0, 0]

    bound = refute(problem, CostModel(problem), value=best, effort=EFFORT, propose=propose)
    assert bound is not None
    assert check_certificate(problem, bound.certificate) == best
    assert refute(problem, CostModel(problem), value=best + 1, effort=EFFORT, propose=propose) is None


def test_no_plan_is_refuted():
    """Tests that no refutation denies a random plan of a problem of any kind."""
    for seed in range(shortened(15, whole=500)):
        rng = Random(seed)
        problem = random_problem(rng)
        problem = replace(problem, options=replace(problem.options, objective="makespan", max_width=1))
        plan = random_plan(rng, problem)
        value = simulate(problem, plan).makespan_ns
        assert refute(problem, CostModel(problem), value=value + 1, effort=EFFORT) is None, f"seed {seed}"


def test_a_plan_is_certified():
    """Tests that a plan that the complete search closed has a refutation, and its evidence is derived again.

    What part of the search raised the bound, and how many cases each closed, stands in its ledger.
    """
    problem = hard()
    plan = make_plan(problem, limits=Limits(max_rounds=6))
    evidence = plan.evidence
    assert evidence is not None
    assert (evidence.bound_kind, evidence.proved_by, evidence.solution_status) == (
        "refutation",
        "certificate",
        "optimal",
    )
    assert evidence.lower_bound_ns == evidence.makespan_ns == brute_force(problem)
    assert evidence.stopped_by == "proof"
    assert rederive(problem, plan).passed
    did = {tally.name: tally for tally in evidence.improvers}
    assert did["exact search"].cases_closed > 0
    assert (did["refutation"].bounds_raised, did["refutation"].cases_closed) == (1, len(evidence.certificate["trees"]))
    raised = sum(tally.bound_gain_ns for tally in evidence.improvers)
    assert 0 < did["refutation"].bound_gain_ns <= raised < evidence.lower_bound_ns


def mutate(certificate: dict[str, Any], rng: Random) -> dict[str, Any]:
    """The certificate with one thing changed."""
    changed = deepcopy(certificate)
    trees = changed["trees"]
    tree = rng.choice([each for each in trees if len(each) > 1])
    place = rng.randrange(len(tree))
    kind = rng.randrange(9)
    if kind == 0:
        changed["value_ns"] += rng.randint(1, 50)
    elif kind == 1:
        changed["effort"] += rng.choice([-1, 1]) * rng.randint(1, 50)
    elif kind == 2:
        trees.remove(tree)
    elif kind == 3:
        trees.insert(rng.randrange(len(trees) + 1), rng.choice([[0], [1, 0, 0], []]))
    elif kind == 4:
        del tree[place]
    elif kind == 5:
        tree.insert(place, rng.choice([0, 1, tree[0]]))
    elif kind == 6:
        tree[place] = 0 if tree[place] else rng.randint(1, 500)
    elif kind == 7:
        tree[place] = rng.choice([-1, 1 << 40, True, 0.5, None, "1", [0]])
    else:
        tree[rng.choice([n for n, code in enumerate(tree) if code])] = 10_000 + rng.randrange(10**6)
    return changed


def test_mutated_refutations_are_refused(optimum):
    """Tests that no certificate proves anything once a number of it has been changed."""
    problem, bound = optimum
    rng = Random(shortened(time.time_ns(), whole=1))
    for _ in range(shortened(40, whole=10_000)):
        changed = mutate(bound.certificate, rng)
        with pytest.raises(ValueError, match=r"^certificate: "):
            check_certificate(problem, changed)


def test_a_refutation_of_another_problem_is_refused(optimum):
    """Tests that a bound of one problem is none of a problem that is faster, or has more memory."""
    problem, bound = optimum
    devices = tuple(replace(each, memory_bytes=10**6) for each in problem.cluster.devices)
    other = replace(problem, cluster=replace(problem.cluster, devices=devices))
    with pytest.raises(ValueError, match=r"^certificate: "):
        check_certificate(other, bound.certificate)


@pytest.mark.parametrize(
    "fields",
    [
        {"effort": MAX_EFFORT + 1},
        {"effort": -1},
        {"effort": 1.0},
        {"trees": {}},
        {"trees": [0]},
        {"trees": [[0]] * (MAX_NODES + 1)},
        {"trees": [[1] * (MAX_NODES + 1)]},
        {"value_ns": 1 << 59},
    ],
)
def test_what_is_too_large_is_refused_before_work_begins(optimum, fields):
    """Tests that a certificate that states more than is ever needed costs nothing."""
    problem, bound = optimum
    begin = time.process_time()
    with pytest.raises(ValueError, match=r"^certificate: "):
        check_certificate(problem, bound.certificate | fields)
    assert time.process_time() - begin < 1


def test_large_problems_are_refused(optimum):
    """Tests that 40 layers on 8 devices are refused by their size, whatever the certificate says."""
    problem = make_chain([(3, 3, 3)] * 40, num_devices=8, num_microbatches=4)
    begin = time.process_time()
    with pytest.raises(ValueError, match=r"^certificate: a refutation of 40 layers"):
        check_certificate(problem, {"kind": "refutation", "value_ns": 500, "effort": MAX_EFFORT, "trees": []})
    assert time.process_time() - begin < 1
    assert proved(problem, 10**9) is None


def test_a_plan_that_exists_survives_every_rule():
    """Tests that no rule, table, window or order contradicts a plan at its own makespan, whatever its shape."""
    num_plans = num_replicated = 0
    for seed in range(shortened(15, whole=2_000)):
        rng = Random(f"survivor {seed}")
        problem = varied_problem(rng)
        for _ in range(3):
            plan = eager_plan(rng, problem)
            own = with_memory_of(rng, problem, plan) if rng.random() < 0.6 else problem
            follow(own, plan, depth=4)
            num_plans += 1
            num_replicated += any(len(stage.replicas) > 1 for stage in plan.stages)
    assert num_plans == 3 * shortened(15, whole=2_000)
    assert num_replicated >= 0.1 * num_plans


def replicated(rng: Random) -> Problem:
    """One or two layers on three or four devices, with replicas."""
    problem = tiny_problem(rng)
    num_devices = rng.randint(3, 4)
    profile, layers = problem.profile, problem.profile.layers[:2]
    names = {layer.name for layer in layers}
    edges = tuple(edge for edge in profile.edges if {edge.producer, edge.consumer} <= names)
    first = problem.cluster.devices[0]
    devices = tuple(replace(first, name=f"d{n}") for n in range(num_devices))
    cluster = replace(
        problem.cluster, devices=devices, switches=(), links=random_links(rng, [each.name for each in devices])
    )
    options = replace(
        problem.options,
        objective="makespan",
        max_stages_per_device=rng.randint(1, shortened(1, whole=2)),
        recompute=False,
    )
    return Problem(
        profile=replace(profile, layers=layers, edges=edges), cluster=cluster, num_microbatches=1, options=options
    )


def test_replicas_on_more_devices_hold_against_brute_force():
    """Tests that with replicas on three and four devices no refutation goes beyond the best of all plans."""
    num_proved = num_replicated = 0
    for seed in range(shortened(12, whole=300)):
        problem = replicated(Random(seed))
        found = brute_force_plan(problem)
        if found is None or not found[0]:
            continue
        best, plan = found
        assert proved(problem, best + 1) is None, f"seed {seed}"
        bound = proved(problem, best)
        num_proved += bound is not None
        num_replicated += any(len(stage.replicas) > 1 for stage in plan.stages)
    assert num_proved >= shortened(6, whole=150)
    assert num_replicated >= shortened(1, whole=30)
