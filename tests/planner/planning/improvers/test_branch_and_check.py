"""Where a problem is small enough to try everything, the planner finds the best there is.

`make test-long` runs thousands of random problems more: PIPEPLAN_EXACT_CASES says how many of each kind.
"""

import os
from collections.abc import Iterable
from dataclasses import replace
from random import Random
from time import sleep

import pytest

from planner.errors import InfeasibleProblemError
from planner.layout.costs import CostModel
from planner.lowering import make_instance
from planner.planning.improvers.branch_and_check import ExactSearch, is_small
from planner.problem import Problem
from planner.progress import Limits
from planner.verify import verify
from profiles.model_profile import Layer, ModelProfile
from solver_models.instance import Integers
from solver_models.local_search.search import Candidate, Searcher
from tests.long_runs import shortened
from tests.planner import builders
from tests.planner.brute_force import brute_force
from tests.planner.builders import make_edge, make_layer, make_link, make_problem, with_times
from tests.planner.exactly import search_exactly, solve_exactly
from tests.planner.hasty import make_plan
from tests.solver_models.nets import random_exact_cluster, random_exact_problem
from tests.strategies import (
    AMPLE,
    random_chain,
    random_edges,
    random_layer,
    scaled_overheads,
    tiny_problem,
    with_shared,
)

BATCH = shortened(2, whole=10)
"""Seeds per test; the odd ones have ample memory."""

NUM_RANDOM = int(os.environ.get("PIPEPLAN_EXACT_CASES", shortened("6", whole="12")))
"""Random problems of each kind that are compared with brute force."""


def planned(problem: Problem) -> int | None:
    """The planner's makespan; None if it says that there is no plan."""
    try:
        plan = make_plan(problem, limits=Limits(time_limit_s=60, patience_s=60))
    except InfeasibleProblemError:
        return None
    assert plan.evidence is not None
    assert plan.evidence.solver_bound_ns is None or plan.evidence.solver_bound_ns <= plan.evidence.makespan_ns
    return plan.evidence.makespan_ns


def assert_optimal(seeds: range, *, sizes: tuple[int, int, int], **options: object) -> None:
    """The planner's best equals the best of all, and claims no bound above it."""
    for seed in seeds:
        chain = random_chain(Random(seed), sizes=sizes, tight=seed % 2 == 0)
        problem = replace(chain, options=replace(chain.options, **options))
        assert planned(problem) == brute_force(problem), f"seed {seed}"


@pytest.mark.parametrize("first", range(0, shortened(2, whole=60), BATCH))
def test_one_stage_per_device(first: int):
    """Tests that nothing beats the plan for a chain on at most three devices with one stage each."""
    assert_optimal(range(first, first + BATCH), sizes=(6, 3, 3))


@pytest.mark.parametrize("first", range(100, shortened(102, whole=140), BATCH))
def test_replication(first: int):
    """Tests that nothing beats the plan where stages may be replicated."""
    assert_optimal(range(first, first + BATCH), sizes=(6, 3, 3), max_replicas=None)


@pytest.mark.parametrize("first", range(200, shortened(202, whole=240), BATCH))
def test_several_stages_per_device(first: int):
    """Tests that nothing beats the plan where a device may hold two stages."""
    assert_optimal(range(first, first + BATCH), sizes=(3, 2, 2), max_stages_per_device=2)


def chain_of(kind: str, seed: int) -> Problem:
    """A random chain of a kind; the even seeds have tight memory."""
    sizes = {"one stage": (5, 3, 3), "replicas": (4, 3, 2), "chunks": (4, 2, 2), "both": (3, 2, 2)}[kind]
    options: dict[str, object] = {
        "one stage": {},
        "replicas": {"max_replicas": None},
        "chunks": {"max_stages_per_device": 2},
        "both": {"max_replicas": None, "max_stages_per_device": 2},
    }[kind]
    chain = random_chain(Random(seed), sizes=sizes, tight=seed % 2 == 0)
    return replace(chain, options=replace(chain.options, **options))


@pytest.mark.parametrize("kind", ["one stage", "replicas", "chunks", "both"])
def test_exact_search_agrees_with_brute_force_on_chains(kind: str):
    """Tests that the exact search alone finds on random chains what brute force finds, and proves it."""
    assert_agreement(chain_of(kind, seed) for seed in range(1000, 1000 + NUM_RANDOM))


@pytest.mark.parametrize("kind", ["one stage", "replicas"])
def test_exact_search_agrees_with_brute_force_on_kept_workspaces(kind: str):
    """Tests that it does where I keeps its workspace and memory is tight."""
    chains = [chain_of(kind, seed) for seed in range(1100, 1100 + NUM_RANDOM, 2)]
    assert_agreement(replace(chain, options=replace(chain.options, keep_workspace=True)) for chain in chains)


@pytest.mark.parametrize("kind", ["one stage", "replicas"])
def test_exact_search_agrees_with_brute_force_on_what_is_held_once(kind: str):
    """Tests that it does where layers of a stage hold bytes together and memory is tight."""
    assert_agreement(with_shared(chain_of(kind, seed)) for seed in range(1200, 1200 + NUM_RANDOM, 2))


@pytest.mark.parametrize("part", range(4))
def test_exact_search_agrees_with_brute_force_on_graphs(part: int):
    """Tests that it does on graphs, with replicas, chunks, recomputation, frozen layers, shared links and B."""
    seeds = range(2000 + part * 10**6, 2000 + part * 10**6 + NUM_RANDOM)
    assert_agreement(problem for problem in map(exact_tiny_problem, seeds) if is_small(problem))


@pytest.mark.parametrize("part", range(4))
def test_exact_search_agrees_with_brute_force_on_widths(part: int):
    """Tests that it does where groups of several devices of unlike memory may share stages, replicas and flags."""
    first = 5000 + part * 10**6
    assert_agreement(wide_problem(Random(seed)) for seed in range(first, first + NUM_RANDOM))


def wide_problem(rng: Random) -> Problem:
    """At most three layers measured at several widths, now and then not at all of them, on two to four devices."""
    num_devices = rng.choice([2, 2, 3, 3, 3, 4])
    layers = wide_layers(rng, most=3 if num_devices < 4 else 2)
    chunks = 2 if num_devices < 4 and len(layers) < 3 and rng.random() < 0.3 else 1
    problem = random_exact_problem(rng, num_layers=1, num_microbatches=2)
    cluster = random_exact_cluster(rng, num_devices, is_shared=rng.random() < 0.3)
    needed = max(sum(layer.state_bytes + 2 * layer.stash_bytes for layer in layers), 1)
    types = ("fast", "slow")[: rng.choice([1, 1, 2])]
    memory = rng.choice([(needed // 2, needed + 10), (needed, needed), (AMPLE, AMPLE)])
    devices = tuple(
        replace(d, type=rng.choice(types), memory_bytes=rng.randint(*memory), host=rng.choice(["", "host"]))
        for d in cluster.devices
    )
    return replace(
        problem,
        profile=ModelProfile(
            name="wide",
            layers=layers,
            edges=random_edges(rng, [layer.name for layer in layers]),
            microbatch_size=problem.profile.microbatch_size,
            optimizer_ns=problem.profile.optimizer_ns,
        ),
        cluster=replace(cluster, devices=devices),
        options=replace(
            problem.options,
            max_width=rng.choice([2, 2, 3]),
            max_replicas=rng.choice([None, 1, 2]),
            max_stages_per_device=chunks,
            recompute=rng.random() < 0.4,
            uneven_replication=rng.random() < 0.8,
            skip_edges=rng.random() < 0.8,
            idle_devices=rng.random() < 0.8,
        ),
    )


def wide_layers(rng: Random, *, most: int) -> tuple[Layer, ...]:
    """Layers with figures at widths 1, 2 and 3; some were not measured at some of them, some state their gradients."""
    layers = tuple(
        random_layer(rng, f"l{i}", types=("fast", "slow"), widths=(1, 2, 3), size=2)
        for i in range(rng.randint(1, most))
    )
    return tuple(
        replace(
            layer,
            costs=tuple(cost for cost in layer.costs if cost.width == 1 or rng.random() < 0.9),
            wider=tuple(replace(entry, parameter_bytes=rng.choice([None, 3])) for entry in layer.wider),
        )
        for layer in layers
    )


def assert_agreement(problems: Iterable[Problem]) -> None:
    """The search closes every problem at the objective of brute force, unless links may be shared.

    Where two flows take one link, CP-SAT orders them freely, the rule does not: a case whose orders are too many to be
    played one by one may then stay open, and the best of all lies between the bound and the plan found.
    """
    num_open = 0
    for number, problem in enumerate(problems):
        (value, bound), best = search_exactly(problem), brute_force(problem)
        if value == bound or not may_share_links(problem):
            assert (value, bound) == (best, best), f"problem {number}"
            continue
        assert value is not None
        assert bound is not None
        assert best is not None
        assert bound <= best <= value, f"problem {number}"
        num_open += 1
    assert num_open <= 1 + NUM_RANDOM // 20


def may_share_links(problem: Problem) -> bool:
    """Whether some plan sends two flows over one link the same way: one device with two stages, or crossing routes."""
    names = [device.name for device in problem.cluster.devices]
    pairs = [(a, b) for a in names for b in names if a != b]
    used = [link for a, b in pairs for link in problem.cluster.route(a, b, num_bytes=1).links]
    return problem.options.max_stages_per_device != 1 or len(used) > len(set(used))


@pytest.mark.parametrize(("kind", "seed"), [("one stage", 1371), ("replicas", 1300)])
def test_cases_like_a_settled_one_are_closed_with_it(kind: str, seed: int):
    """Tests that the bound hears of cases that are closed since another one with their signature was settled."""
    assert_agreement([chain_of(kind, seed)])


def test_nothing_is_begun_once_time_is_over(monkeypatch: pytest.MonkeyPatch):
    """Tests that cases whose turn comes when time is over are neither branched on nor given to a solver."""
    problem = chain_of("replicas", 1300)
    costs = CostModel(problem)
    left, late, begun = [600.0], list[object](), list[object]()
    searcher = Searcher(make_instance(problem, costs))
    exact = ExactSearch(costs, searcher=searcher, incumbent_ns=lambda: None, seconds_left=lambda: left[0])
    attack = exact._attack

    def attack_late(case: object, **how: object) -> object:
        left[0] = 0.0
        late.append(case)
        monkeypatch.setattr(exact, "_sequence", lambda each, **_: begun.append(each))
        return attack(case, **how)

    monkeypatch.setattr(exact, "_attack", attack_late)
    monkeypatch.setattr(exact, "_sequence_all", lambda *_, **__: iter(()))
    monkeypatch.setattr(exact, "_find", lambda *_: iter(()))
    monkeypatch.setattr(exact, "_settle", lambda each, *_, **__: begun.append(each))
    assert list(exact.proposals(least=lambda: 0)) == []
    assert late
    assert begun == []


def test_polishing_ends_once_time_is_over(monkeypatch: pytest.MonkeyPatch):
    """Tests that what polishes the orders of a promising case, or of a solver, is told to stop."""
    problem = chain_of("replicas", 1300)
    costs, left, told = CostModel(problem), [600.0], list[int]()
    searcher = Searcher(make_instance(problem, costs))
    exact = ExactSearch(costs, searcher=searcher, incumbent_ns=lambda: None, seconds_left=lambda: left[0])

    def polish_for_long(candidate: Candidate, *, stop: Integers, **_: object) -> Candidate:
        left[0] = 0.0
        for _ in range(1_000):
            if stop[0]:
                break
            sleep(0.01)
        told.append(int(stop[0]))
        return candidate

    monkeypatch.setattr(searcher, "polish", polish_for_long)
    found = next(plan for plan in exact.proposals(least=lambda: 0) if plan is not None)
    assert told == [1]
    left[0] = 600.0
    exact._polished(exact.cases[0], found)
    assert told == [1, 1]


def exact_tiny_problem(seed: int) -> Problem:
    """A tiny problem of any kind in which transfers take the links as the kernels think they do."""
    problem = tiny_problem(Random(seed))
    return replace(
        problem,
        cluster=replace(problem.cluster, overlap=True),
        options=replace(problem.options, synchronisation="after"),
    )


@pytest.mark.parametrize("seed", [0, 1, 3, 4, 5, 7, 8, 9])
def test_more_than_kernels_see_is_not_claimed(seed: int):
    """Tests that without overlap, or with bucketed synchronisation, no bound above the best of all is claimed."""
    problem = tiny_problem(Random(seed))
    expected = brute_force(problem)
    try:
        evidence = make_plan(problem, limits=Limits(time_limit_s=shortened(1, whole=3), threads=1)).evidence
    except InfeasibleProblemError:
        assert expected is None
        return
    assert evidence is not None
    assert expected is not None
    assert evidence.solver_bound_ns is None or evidence.solver_bound_ns <= expected
    assert evidence.lower_bound_ns <= expected


def metamorphic_problem(seed: int) -> Problem:
    """A chain small enough to be closed at once, with replicas and chunks now and then."""
    return chain_of(("one stage", "replicas", "chunks", "both")[seed % 4], seed)


@pytest.mark.parametrize("seed", range(3000, shortened(3004, whole=3012)))
def test_scaled_times_scale_the_optimum(seed: int):
    """Tests that with all times twice as long the optimum is twice as long.

    Times are even, and a byte takes whole nanoseconds, so that halves for two replicas are never rounded.
    """
    problem = metamorphic_problem(seed)
    most = None if problem.options.max_replicas == 1 else 2
    problem = replace(problem, options=replace(problem.options, max_replicas=most or 1))
    best = solve_exactly(scaled(problem, 2))
    assert solve_exactly(scaled(problem, 4)) == (None if best is None else 2 * best)


def scaled(problem: Problem, factor: int) -> Problem:
    """The problem with every action `factor` times as long, and `factor` nanoseconds per byte on every link."""
    layers = tuple(with_times(layer, factor) for layer in problem.profile.layers)
    overheads = scaled_overheads(problem.profile, factor)
    profile = replace(problem.profile, layers=layers, action_overhead_ns=overheads)
    return replace(with_slower_links(problem, factor), profile=profile)


def with_slower_links(problem: Problem, factor: int) -> Problem:
    """Latencies `factor` times as long, and `factor` nanoseconds per byte."""
    links = tuple(
        replace(
            link,
            latency_ns=factor * link.latency_ns,
            bandwidth_bytes_per_s=10**9 // factor,
            message_overhead_ns=factor * (link.message_overhead_ns or 0),
        )
        for link in problem.cluster.links
    )
    return replace(problem, cluster=replace(problem.cluster, links=links))


@pytest.mark.parametrize("seed", range(3100, shortened(3104, whole=3112)))
def test_more_memory_never_hurts(seed: int):
    """Tests that the optimum with more memory on every device is no larger."""
    problem = metamorphic_problem(seed)
    more = tuple(replace(d, memory_bytes=d.memory_bytes * 5 // 4 + 1) for d in problem.cluster.devices)
    before, after = (
        solve_exactly(problem),
        solve_exactly(replace(problem, cluster=replace(problem.cluster, devices=more))),
    )
    assert before is None or (after is not None and after <= before)


@pytest.mark.parametrize("seed", range(3200, shortened(3204, whole=3212)))
def test_an_idle_device_never_hurts(seed: int):
    """Tests that one more device, with links to all others, makes the optimum no larger."""
    problem = metamorphic_problem(seed)
    devices, links = problem.cluster.devices, problem.cluster.links
    if len(devices) < 2 or not have_links(devices[:-1], links):
        pytest.skip("there is nothing to leave out, or routes would change")
    fewer = replace(problem, cluster=replace(problem.cluster, devices=devices[:-1], links=only(links, devices[:-1])))
    before, after = solve_exactly(fewer), solve_exactly(problem)
    assert before is None or (after is not None and after <= before)


def only(links, devices):
    """The links between these devices."""
    names = {device.name for device in devices}
    return tuple(link for link in links if {link.a, link.b} <= names)


def have_links(devices, links) -> bool:
    """Whether every two devices have a link of their own, so that routes stay what they were."""
    pairs = {frozenset((link.a, link.b)) for link in links}
    return all(frozenset((a.name, b.name)) in pairs for a in devices for b in devices if a != b)


@pytest.mark.parametrize("seed", range(3300, shortened(3304, whole=3312)))
def test_names_and_their_order_do_not_matter(seed: int):
    """Tests that renamed layers, and devices listed and named the other way round, have the same optimum."""
    problem = metamorphic_problem(seed)
    devices = tuple(replace(d, name=f"x{d.name}") for d in reversed(problem.cluster.devices))
    links = tuple(replace(link, a=f"x{link.a}", b=f"x{link.b}") for link in problem.cluster.links)
    renamed = replace(
        problem,
        profile=with_names(problem.profile),
        cluster=replace(problem.cluster, devices=devices, links=links),
    )
    assert solve_exactly(renamed) == solve_exactly(problem)


def with_names(profile: ModelProfile) -> ModelProfile:
    """The profile with its layers renamed, against the alphabet."""
    names = {layer.name: f"z{99 - number}" for number, layer in enumerate(profile.layers)}
    layers = tuple(replace(layer, name=names[layer.name]) for layer in profile.layers)
    edges = tuple(replace(e, producer=names[e.producer], consumer=names[e.consumer]) for e in profile.edges)
    return replace(profile, layers=layers, edges=edges)


def test_no_claim_on_the_span_forbids_a_later_microbatch_first():
    """Tests that what is claimed of all plans is no more than the span of one whose microbatches come out of order.

    Device b starts at 19, when the second microbatch has come, and is busy from there on; with the first one it starts
    at 10 and waits.
    """
    problem = make_problem(
        [make_layer("x", (1, 1, 1)), make_layer("y", (1, 2, 1))], [make_link("a b")],
        edges=[make_edge("x y", num_bytes=9, gradient_bytes=0)], num_microbatches=2, objective="span", max_replicas=1,
        partition=(("x",), ("y",)), placement=((("a",),), (("b",),)),
    )  # fmt: skip
    plan = builders.make_plan(problem, ["x @ a", "y @ b"], {"a": "0F0 0F1 0B0 0B1", "b": "1F1 1F0 1B1 1B0"})
    verdict = verify(problem, plan)
    assert verdict.passed
    assert verdict.timeline is not None
    assert verdict.timeline.span_ns == 8
    found, claimed = search_exactly(problem, seconds=60)
    assert found is not None
    assert claimed == 8 <= found
