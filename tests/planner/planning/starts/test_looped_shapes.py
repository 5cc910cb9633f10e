"""Pipelines in a loop on groups of one width, and what their stages recompute: against every plan of small problems."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise, product
from random import Random

import numpy
import pytest

from planner.actions import Action
from planner.evidence.certificate import check_certificate, make_bound
from planner.export.looped_pipelines import as_looped
from planner.export.megatron import make_megatron_job
from planner.export.model_parts import is_block
from planner.export.targets import TARGETS, restrict
from planner.layout.costs import CostModel
from planner.plan import DeviceGroup, Plan, RecomputeMap, Stage
from planner.planning import Limits
from planner.planning.search_state import SearchState
from planner.planning.starts.looped_layouts import LoopedSearch
from planner.problem import Options, Problem
from planner.simulation.simulate import simulate
from planner.verify import verify
from profiles.cluster import Cluster, Device, Link
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile, RecomputeBytes, RecomputeTime, WidthBytes
from solver_models.moves.annealing import Cooling
from solver_models.starts.looped_construction import anneal_cut
from tests.long_runs import shortened
from tests.planner.hasty import make_plan

AS_IT_IS = Cooling(steps=0, first=1.0, last=1.0, seed=0)
MEGATRON = TARGETS["megatron"]


def make_layer(rng: Random, name: str, *, widths: tuple[int, ...], has_kind: bool) -> Layer:
    """Uneven times at every width and share; recomputation gives back half of the stash, selectively a quarter."""
    costs = [
        LayerCost(
            device_type="gpu",
            width=width,
            microbatch_size=size,
            forward_ns=rng.randint(4, 40) * size // width + 1,
            input_grad_ns=rng.randint(4, 40) * size // width + 1,
            weight_grad_ns=rng.randint(4, 40) * size // width + 1,
            recompute_ns=rng.randint(1, 9),
            recompute_kinds=(RecomputeTime(kind="selective", recompute_ns=rng.randint(1, 3)),) if has_kind else (),
        )
        for width in widths
        for size in (1, 2)
    ]
    stash = rng.randint(8, 24)

    def sizes(width: int) -> dict[str, object]:
        kinds = (RecomputeBytes(kind="selective", checkpoint_bytes=stash * 3 // 4 // width),) if has_kind else ()
        return {
            "state_bytes": 60 // width,
            "stash_bytes": stash // width,
            "checkpoint_bytes": stash // 2 // width,
            "recompute_kinds": kinds,
        }

    wider = tuple(WidthBytes(width=width, **sizes(width)) for width in widths if width > 1)
    return Layer(name=name, costs=tuple(costs), parameter_bytes=20, wider=wider, **sizes(1))


def random_loop(rng: Random, *, has_kind: bool = False, **given: object) -> Problem:
    """A small language model on two to four devices of one host, measured at widths 1 and 2, or at 2 alone."""
    widths = rng.choice([(1, 2), (1, 2), (2,)])
    names = ["embedding", *(f"block{number}" for number in range(rng.randint(2, 4))), "head"]
    layers = tuple(make_layer(rng, name, widths=widths, has_kind=has_kind and is_block(name)) for name in names)
    edges = tuple(Edge(producer=a, consumer=b, bytes=rng.randint(0, 9)) for a, b in pairwise(names))
    devices = tuple(
        Device(name=f"d{number}", type="gpu", memory_bytes=rng.choice([10**6, 400, 250]), host="host")
        for number in range(rng.choice([2, 4]))
    )
    devices = tuple(replace(device, memory_bytes=devices[0].memory_bytes) for device in devices)
    links = tuple(
        Link(a=a.name, b=b.name, bandwidth_bytes_per_s=10**9, latency_ns=1) for a, b in combinations(devices, 2)
    )
    options = Options(max_width=2, max_stages_per_device=3, receive_buffers=rng.choice([0, 1]), **given)
    return Problem(
        profile=ModelProfile(name="model", layers=layers, edges=edges, microbatch_size=2),
        cluster=Cluster(name="host", devices=devices, links=links),
        num_microbatches=rng.choice([2, 4]),
        options=restrict(options, MEGATRON),
    )


def search_of(problem: Problem, *, rounds: int = 8) -> LoopedSearch:
    run = SearchState(problem, Limits(max_rounds=rounds), on_progress=lambda _: None, should_stop=lambda: False)
    return LoopedSearch(run)


def first_blocks(names: tuple[str, ...], number: int) -> bool | RecomputeMap:
    """What recomputes where so many of the first blocks of a stage do."""
    return tuple((name, "full") for name in names if is_block(name))[:number] or False


def every_plan(problem: Problem) -> Iterator[Plan]:
    """All widths, replicas, chunks, cuts and numbers of recomputed blocks on all devices, written from the contract."""
    names = problem.profile.topological_order
    devices = [device.name for device in problem.cluster.devices]
    measured = {1, 2}.intersection(*({cost.width for cost in layer.costs} for layer in problem.profile.layers))
    numbers = range(len(names)) if problem.options.recompute_layers else (0,)
    for width, replicas, chunks, blocks in product((1, 2), (1, 2), (1, 2, 3), numbers):
        ranks, rest = divmod(len(devices), width * replicas)
        if rest or not ranks or (chunks > 1 and (ranks == 1 or problem.num_microbatches % ranks)):
            continue
        groups: list[DeviceGroup] = [tuple(devices[k * width : (k + 1) * width]) for k in range(ranks * replicas)]
        for inner in combinations(range(1, len(names)), ranks * chunks - 1):
            stages = []
            for number, (begin, end) in enumerate(pairwise((0, *inner, len(names)))):
                rank = number % ranks
                layers = names[begin:end]
                stages.append(
                    Stage(
                        layers=layers,
                        replicas=tuple(groups[rank * replicas : (rank + 1) * replicas]),
                        recompute=first_blocks(layers, blocks),
                    )
                )
            plan = Plan(problem=problem.reference(), stages=tuple(stages), schedule={})
            if width in measured:
                yield as_looped(problem, plan, has_widths=True)


def best_of_all(problem: Problem) -> tuple[int, Plan] | None:
    """The fastest plan that the verifier passes."""
    plans = [plan for plan in every_plan(problem) if verify(problem, plan).passed]
    rated = [(simulate(problem, plan).makespan_ns, number) for number, plan in enumerate(plans)]
    return (min(rated)[0], plans[min(rated)[1]]) if rated else None


@pytest.mark.parametrize("seed", range(shortened(2, whole=60)))
def test_compiled_order_and_memory_at_every_width(seed: int):
    """Tests that of every shape a cut takes what the simulator says, and fits exactly if the verifier says so."""
    rng = Random(seed)
    problem = random_loop(rng, has_kind=rng.random() < 0.5, recompute=True, recompute_layers=rng.random() < 0.7)
    for shape in search_of(problem).shapes:
        size = len(problem.profile.layers)
        cuts = [(0, *inner, size) for inner in combinations(range(1, size), len(shape.cut) - 2)]
        for cut in rng.sample(cuts, min(3, len(cuts))):
            bounds = numpy.array(cut, numpy.int64)
            missing, value = anneal_cut(shape.loop, bounds, len(shape.ranks), AS_IT_IS)
            shape.cut = bounds
            plan = search_of(problem).plan_of(shape)
            rules = {violation.rule for violation in verify(problem, plan).violations}
            assert rules <= {"memory-exceeded"}
            assert (missing > 0) == ("memory-exceeded" in rules)
            if not missing:
                assert value == simulate(problem, plan).makespan_ns


@pytest.mark.parametrize("seed", range(shortened(2, whole=80)))
@pytest.mark.parametrize("has_layers", [False, True])
def test_search_finds_the_best_of_all_widths(seed: int, has_layers: bool):
    """Tests that a plan for Megatron is as fast as the fastest of all, whose bound no plan is below."""
    problem = random_loop(Random(seed), recompute=has_layers, recompute_layers=has_layers)
    best = best_of_all(problem)
    if best is None:
        return
    found = [simulate(problem, plan).makespan_ns for plan in search_of(problem).plans(share=1.0)]
    assert found[-1] <= best[0]
    bound = make_bound(problem, CostModel(problem))
    assert check_certificate(problem, bound.certificate) == bound.value_ns <= best[0]


def test_plan_and_flags_carry_the_width():
    """Tests that where layers run on pairs alone, the plan for Megatron is on pairs, and its flags say so."""
    problem = next(
        problem
        for problem in (random_loop(Random(seed)) for seed in range(99))
        if problem.profile.layers[0].costs[0].width == 2 and len(problem.cluster.devices) == 4
    )
    devices = tuple(replace(device, memory_bytes=10**6) for device in problem.cluster.devices)
    problem = replace(problem, cluster=replace(problem.cluster, devices=devices))
    plan = make_plan(problem, limits=Limits(time_limit_s=60, max_rounds=1), target=MEGATRON)
    assert {len(group) for stage in plan.stages for group in stage.replicas} == {2}
    flags = {words[0]: words[1] for words in make_megatron_job(problem, plan).arguments if len(words) > 1}
    assert flags["--tensor-model-parallel-size"] == "2"
    best = best_of_all(problem)
    assert best is not None
    assert simulate(problem, plan).makespan_ns <= best[0]


def test_judge_refuses_mixed_widths_and_shared_devices():
    """Tests that under an order in a loop groups of two widths, and devices of two ranks, are named."""
    problem = next(
        problem
        for problem in (random_loop(Random(seed)) for seed in range(99))
        if problem.profile.layers[0].costs[0].width == 1 and len(problem.cluster.devices) == 4
    )
    names = problem.profile.topological_order
    numbers = range(problem.num_microbatches)
    parts = [
        (0, [Action("F", 0, m) for m in numbers]),
        (1, [Action(kind, 1, m) for m in numbers for kind in "FB"]),
        (0, [Action("B", 0, m) for m in numbers]),
    ]
    for groups, wanted in (
        (((("d0", "d1"),), (("d2",),)), "groups of one width"),
        (((("d0", "d1"),), (("d1", "d2"),)), "every device in one rank"),
    ):
        stages = tuple(
            Stage(layers=layers, replicas=replicas)
            for layers, replicas in zip((names[:2], names[2:]), groups, strict=True)
        )
        devices = {stage: {name for group in groups[stage] for name in group} for stage in (0, 1)}
        schedule = {
            name: tuple(action for stage, part in parts if name in devices[stage] for action in part)
            for name in sorted(devices[0] | devices[1])
        }
        plan = Plan(problem=problem.reference(), stages=stages, schedule=schedule)
        found = [each for each in verify(problem, plan).violations if each.rule == "loop-stages"]
        assert wanted in {each.expected for each in found}


def test_first_blocks_recompute_where_that_is_enough():
    """Tests that of memory for all but a part of one stash the first block of every stage recomputes, and no other."""
    cost = LayerCost(device_type="gpu", forward_ns=10, input_grad_ns=10, weight_grad_ns=10, recompute_ns=1)
    names = ["embedding", *(f"block{number}" for number in range(4)), "head"]
    layers = [Layer(name=name, costs=(cost,), stash_bytes=20, checkpoint_bytes=10, parameter_bytes=1) for name in names]
    devices = tuple(Device(name=f"d{number}", type="gpu", memory_bytes=112) for number in range(2))
    edges = tuple(Edge(producer=a, consumer=b, bytes=0) for a, b in pairwise(names))
    options = Options(recompute=True, recompute_layers=True, receive_buffers=0, max_replicas=1)
    problem = Problem(
        profile=ModelProfile(name="model", layers=tuple(layers), edges=edges, microbatch_size=2),
        cluster=Cluster(name="pair", devices=devices, links=(Link(a="d0", b="d1", bandwidth_bytes_per_s=10**9),)),
        num_microbatches=2,
        options=restrict(options, MEGATRON),
    )
    *_, plan = search_of(problem).plans(share=1.0)
    best = best_of_all(problem)
    assert best is not None
    assert simulate(problem, plan).makespan_ns == best[0]
    flags = {words[0]: words[1:] for words in make_megatron_job(problem, plan).arguments}
    assert flags["--recompute-num-layers"] == ("1",)
    assert flags["--recompute-method"] == ("block",)
