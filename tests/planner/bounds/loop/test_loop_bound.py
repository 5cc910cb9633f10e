"""The loop bound: against every layout of random problems, on a known layout, against made-up certificates."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise, permutations, product
from random import Random

import pytest

from benchmarks.layouts import RECIPES, read_problem
from planner.bounds import counting
from planner.bounds.loop import loop_bound
from planner.bounds.minimum_costs import Least
from planner.evidence.certificate import REFUTED_NS, check_certificate, make_bound
from planner.export.looped_pipelines import as_looped
from planner.export.model_parts import is_block
from planner.export.targets import TARGETS, restrict
from planner.layout.costs import CostModel
from planner.plan import Plan, RecomputeMap, Stage
from planner.planning import Limits
from planner.problem import Options, Problem
from planner.simulation.simulate import simulate
from planner.verify import verify
from profiles.model_profile import Edge
from tests.long_runs import shortened
from tests.planner.evidence.test_certificate import make_chain
from tests.planner.hasty import make_plan
from tests.planner.planning.starts.test_looped_shapes import every_plan, random_loop
from tests.strategies import random_problem

MEGATRON = TARGETS["megatron"]


def any_chain(rng: Random) -> Problem:
    """Up to six layers of every kind on up to three devices, replicated or not, in a loop."""
    problem = random_problem(rng)
    profile, cluster = problem.profile, problem.cluster
    edges = tuple(
        Edge(producer=a.name, consumer=b.name, bytes=rng.randint(0, 9), gradient_bytes=rng.choice([None] * 3 + [0]))
        for a, b in pairwise(profile.layers)
    )
    options = replace(
        problem.options,
        objective="makespan",
        max_stages_per_device=rng.randint(1, 3),
        shard_optimizer=rng.choice(["never", "allow"]),
        idle_devices=rng.random() < 0.8,
    )
    devices = tuple(replace(device, memory_bytes=10**9) for device in cluster.devices[:3])
    names = {device.name for device in devices}
    linked = {end for link in cluster.links for end in (link.a, link.b)}
    cluster = replace(cluster, devices=devices if linked <= names else cluster.devices)
    return replace(
        problem,
        profile=replace(profile, edges=edges),
        cluster=cluster,
        options=restrict(options, MEGATRON),
    )


def blocks_with_heavy_ends(rng: Random) -> Problem:
    """Equal blocks, and heavier layers at either end, where the devices of a layer matter."""
    times = [(10, 10, 10)] * rng.randint(3, 5)
    times = [*[(rng.randint(1, 30),) * 3] * rng.randint(0, 1), *times, *[(rng.randint(1, 30),) * 3] * rng.randint(1, 2)]
    options = replace(restrict(Options(max_stages_per_device=3), MEGATRON), max_replicas=1, receive_buffers=0)
    return make_chain(
        times, num_devices=rng.randint(2, 3), num_microbatches=rng.randint(1, 6), options=options, edge_bytes=0
    )


def every_layout(problem: Problem) -> Iterator[Plan]:
    """The stages of every plan in a loop that there is."""
    names, options = problem.profile.topological_order, problem.options
    devices = [device.name for device in problem.cluster.devices]
    shards = ("none", "optimizer") if problem.may_shard else ("none",)
    num_ranks = range(1, min(len(devices), len(names)) + 1)
    for replicas, ranks_used, shard in product(problem.allowed_replicas, num_ranks, shards):
        used = replicas * ranks_used
        if used > len(devices) or not (options.idle_devices or used == len(devices)):
            continue
        for chunks in range(1, options.max_stages_per_device + 1):
            num_stages = chunks * ranks_used
            if (chunks > 1 and problem.num_microbatches % ranks_used) or (replicas == 1 and shard != "none"):
                continue
            for inner in combinations(range(1, len(names)), num_stages - 1):
                cut = list(pairwise((0, *inner, len(names))))
                for chosen in permutations(devices, used):
                    ranks = [chosen[k * replicas : (k + 1) * replicas] for k in range(ranks_used)]
                    stages = tuple(
                        Stage(
                            layers=tuple(names[a:b]),
                            replicas=tuple((name,) for name in ranks[number % ranks_used]),
                            shard=shard,
                        )
                        for number, (a, b) in enumerate(cut)
                    )
                    yield Plan(problem=problem.reference(), stages=stages, schedule={})


def proved(problem: Problem, *, way=loop_bound) -> int:
    """The largest makespan below which this bound denies every plan."""
    least = Least(problem, CostModel(problem))
    found = way.raise_bound(least, 0) if way.applies_to(least) else None
    return 0 if found is None else found[0] + least.optimizer_ns


@pytest.mark.parametrize("make", [any_chain, blocks_with_heavy_ends])
def test_no_layout_is_denied(make):
    """Tests that on random problems no layout, of all there are, is below the bound, and that the judge allows all."""
    rng, above, count = Random(7), 0, 0
    while count < shortened(8, whole=700):
        problem = make(rng)
        costs = CostModel(problem)
        plans = []
        for stages in every_layout(problem):
            try:
                plan = as_looped(problem, stages)
                plans.append((simulate(problem, plan, costs=costs).makespan_ns, plan))
            except ValueError:  # not measured at that share, or a route is missing
                continue
        if not plans:
            continue
        count += 1
        best, plan = min(plans, key=lambda pair: pair[0])
        value = proved(problem)
        assert value <= best
        bound = make_bound(problem, costs)
        assert check_certificate(problem, bound.certificate) == bound.value_ns <= best
        assert not {violation.rule for violation in verify(problem, plan).violations} - {"memory-exceeded"}
        above += value > proved(problem, way=counting)
    assert above


def test_a_heavy_layer_stands_on_the_last_ranks():
    """Tests that what the last ranks wait for is counted where a heavy layer can stand on them only."""
    times = [(10, 10, 10)] * 9 + [(26, 25, 25), (10, 10, 10)]
    options = replace(restrict(Options(max_stages_per_device=3), MEGATRON), max_replicas=1, receive_buffers=0)
    problem = make_chain(times, num_devices=4, num_microbatches=12, options=options)
    assert (proved(problem, way=counting), proved(problem)) == (12 * 106, 12 * 106 + 2 * 30)
    assert loop_bound.open_ranks(11, [0, 4, 9, 10], ranks=4) == [range(1), range(4), range(2, 4), range(3, 4)]
    bound = make_bound(problem, CostModel(problem), time_limit_s=0.0)
    assert (bound.kind, bound.value_ns) == ("loop", 1332) < ("loop", make_bound(problem, CostModel(problem)).value_ns)
    far = make_chain(times, num_devices=4, num_microbatches=12, options=options, edge_bytes=5)
    assert proved(far) == 12 * 106 + 2 * (30 + 5 + 5)
    anywhere = replace(problem, options=replace(problem.options, order="any"))
    with pytest.raises(ValueError, match="'loop' does not hold"):
        check_certificate(anywhere, bound.certificate)


def any_map(rng: Random, plan: Plan) -> Plan:
    """The same with some layers that recompute, by any kinds that they have in `make_layer`'s problems."""

    def recomputed(stage: Stage) -> bool | RecomputeMap:
        kinds = {name: rng.choice([None, "full", "selective" if is_block(name) else "full"]) for name in stage.layers}
        return tuple((name, kind) for name, kind in kinds.items() if kind is not None) or False

    stages = tuple(replace(stage, recompute=recomputed(stage)) for stage in plan.stages)
    return replace(plan, stages=stages)


def tight_loop(rng: Random) -> Problem:
    """A small language model at widths 1 and 2, on memory that some plans fit into only by recomputation."""
    problem = random_loop(rng, has_kind=True, recompute=True, recompute_layers=True)
    return replace(with_memory(problem, rng.choice([60, 90, 120, 180, 10**6])), num_microbatches=rng.choice([2, 4, 6]))


def with_memory(problem: Problem, memory_bytes: int) -> Problem:
    devices = tuple(replace(device, memory_bytes=memory_bytes) for device in problem.cluster.devices)
    return replace(problem, cluster=replace(problem.cluster, devices=devices))


def test_no_width_or_recomputation_is_denied():
    """Tests that no plan of any width, replicas, chunks, cut and map that fits into memory is below the bound."""
    rng, num_above, num_near = Random(3), 0, 0
    for _ in range(shortened(12, whole=1200)):
        problem, near = tight_loop(rng), list[int]()
        value, anywhere = proved(problem), proved(with_memory(problem, 10**9))
        costs = CostModel(problem)
        plain = replace(problem, options=replace(problem.options, recompute_layers=False))
        for plan in (replace(each, problem=problem.reference()) for each in every_plan(plain)):
            for each in (plan, any_map(rng, plan), any_map(rng, plan)):
                makespan = simulate(problem, each, costs=costs).makespan_ns
                is_near = 9 * makespan <= 10 * value and not near
                if (makespan < value or is_near) and verify(problem, each).passed:
                    near.append(makespan)
        assert value <= min(near, default=value)
        assert value >= anywhere
        num_above += value > anywhere
        num_near += bool(near)
    assert num_above
    assert num_near


def test_memory_alone_rules_out():
    """Tests that a bound without end is proved where no rank has room for its layers, and is derived again."""
    small = with_memory(tight_loop(Random(5)), 30)
    value, found = loop_bound.raise_bound(Least(small, CostModel(small)), 0)
    assert value >= REFUTED_NS
    assert check_certificate(small, {"kind": "loop", "value_ns": value + 3, **found}) == value + 3


def test_one_stage_per_rank_waits_for_the_whole_pipeline():
    """Tests that the time in which a rank of 1F1B waits for others is counted: here the bound is what a plan takes."""
    options = replace(restrict(Options(max_stages_per_device=1), MEGATRON), max_replicas=1, receive_buffers=0)
    problem = make_chain([(10, 10, 10)] * 4, num_devices=4, num_microbatches=6, options=options, edge_bytes=0)
    plan = make_plan(problem, limits=Limits(time_limit_s=60, max_rounds=1))
    assert proved(problem) == plan.evidence.makespan_ns == (6 + 3) * 30


MADE_UP = {
    "unit is not an integer": {"unit": 0},
    "not a short list of layers": {"special": ["nobody"]},
    "not a list of a way for every width": {"replicas": 2},
    "ways = ": {"value_ns": 1},
}


@pytest.mark.parametrize("message", MADE_UP)
def test_made_up_ways_are_refused(message: str):
    """Tests that what is no counting, or is not of every width and number of replicas, is refused."""
    problem = blocks_with_heavy_ends(Random(1))
    value, found = loop_bound.raise_bound(Least(problem, CostModel(problem)), 0)
    certificate = {"kind": "loop", "value_ns": value, **found}
    assert check_certificate(problem, certificate) == value
    way = found["ways"][0] | MADE_UP[message]
    with pytest.raises(ValueError, match=message):
        check_certificate(problem, certificate | {"ways": [way]})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ways": []}, "not a list of a way"),
        ({"ways": 7}, "not a list of a way"),
        ({"value_ns": 10**6}, "does not exclude"),
        ({"replicas": 1}, "fields missing or too many"),
    ],
)
def test_made_up_certificates_are_refused(change, message):
    """Tests that what has no ways to count, or proves less than it states, is refused."""
    problem = blocks_with_heavy_ends(Random(1))
    value, found = loop_bound.raise_bound(Least(problem, CostModel(problem)), 0)
    with pytest.raises(ValueError, match=message):
        check_certificate(problem, {"kind": "loop", "value_ns": value, **found, **change})


def test_the_hand_layout_with_a_block_of_its_own():
    """Tests that a recipe whose second head takes three blocks has a bound above counting by what it waits for."""
    problem = read_problem(RECIPES[1].problem, ranks=RECIPES[1].ranks)
    assert proved(problem) == 16_550_473_248 > proved(problem, way=counting)
