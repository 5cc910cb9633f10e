"""Every baseline on every kind of problem: it is a valid plan but for memory, or it says why there is none."""

from dataclasses import replace
from itertools import pairwise, product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.baselines.registry import Baseline, make_baselines, play_baseline
from planner.layout.costs import CostModel
from planner.plan import BaselineResult
from planner.problem import Options, PinnedLayer, Problem
from planner.verify import verify
from profiles.cluster import Cluster, Device, Link
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile
from tests.long_runs import shortened
from tests.strategies import AMPLE, random_cluster, random_edges, random_layer, random_problem


def chain_problem(
    *, num_layers: int = 8, num_devices: int = 4, num_microbatches: int = 4, options: Options | None = None
) -> Problem:
    """Equal layers on linked devices, all of them in a row."""
    cost = LayerCost(device_type="x", forward_ns=10, input_grad_ns=10, weight_grad_ns=10)
    names = [f"l{number}" for number in range(num_layers)]
    devices = [f"d{number}" for number in range(num_devices)]
    layers = tuple(Layer(name=n, costs=(cost,), parameter_bytes=8, stash_bytes=2, weight_stash_bytes=1) for n in names)
    return Problem(
        profile=ModelProfile(
            name="chain", layers=layers, edges=tuple(Edge(producer=a, consumer=b, bytes=2) for a, b in pairwise(names))
        ),
        cluster=Cluster(
            name="row",
            devices=tuple(Device(name=name, type="x", memory_bytes=1000) for name in devices),
            links=tuple(Link(a=a, b=b, bandwidth_bytes_per_s=10**9) for a, b in pairwise(devices)),
        ),
        num_microbatches=num_microbatches,
        options=options or Options(),
    )


def baselines(problem: Problem) -> dict[str, Baseline]:
    return {baseline.name: baseline for baseline in make_baselines(problem, CostModel(problem))}


def notes(problem: Problem) -> dict[str, str]:
    """Why there is no plan, for the methods that have none."""
    return {name.partition(" (")[0]: b.note for name, b in baselines(problem).items() if b.plan is None}


def assert_valid_but_for_memory(problem: Problem) -> None:
    costs = CostModel(problem)
    for baseline in make_baselines(problem, costs):
        row, timeline = play_baseline(problem, baseline, costs=costs)
        assert row.name == baseline.name
        if baseline.plan is None:
            assert row.note
            assert timeline is None
            continue
        rules = {violation.rule for violation in verify(problem, baseline.plan).violations}
        assert rules <= {"memory-exceeded"}, baseline.name
        assert row.fits_memory == (not rules), baseline.name
        assert row.makespan_ns is not None


@given(rng=st.randoms(use_true_random=False))
def test_every_baseline_is_valid(rng: Random):
    """Tests that on random graphs and clusters every plan has no violation but memory, and none deadlocks."""
    assert_valid_but_for_memory(random_problem(rng))


@given(rng=st.randoms(use_true_random=False))
def test_every_baseline_is_valid_when_deep(rng: Random):
    """Tests that the same holds with many layers per device, more microbatches, and little memory."""
    layers = tuple(
        random_layer(rng, f"l{i}", types=("fast", "slow"), widths=(1,), size=1) for i in range(rng.randint(8, 12))
    )
    cluster = random_cluster(rng, ("fast", "slow"))
    memory = rng.choice([0, 100, AMPLE])
    devices = tuple(replace(device, memory_bytes=memory) for device in cluster.devices)
    problem = Problem(
        profile=ModelProfile(
            name="deep",
            layers=layers,
            edges=random_edges(rng, [layer.name for layer in layers]),
            microbatch_size=1,
        ),
        cluster=replace(cluster, devices=devices),
        num_microbatches=rng.randint(1, 12),
    )
    assert_valid_but_for_memory(problem)


@pytest.mark.parametrize(
    ("num_devices", "num_microbatches"),
    shortened(
        [(1, 1), (1, 5), (2, 2), (2, 20), (3, 2), (3, 9), (5, 1), (5, 3), (5, 5)],
        whole=list(product([1, 2, 3, 5], [1, 2, 3, 5, 9, 20])),
    ),
)
def test_every_size_works(num_devices: int, num_microbatches: int):
    """Tests that fewer, as many and more microbatches than stages all make valid plans."""
    assert_valid_but_for_memory(
        chain_problem(num_layers=11, num_devices=num_devices, num_microbatches=num_microbatches)
    )


def test_order_and_names():
    """Tests that the simplest method comes first, and that each cut is named once per method."""
    names = list(baselines(chain_problem()))
    assert names[:4] == [
        "data parallel",
        "GPipe (even layers)",
        "GPipe (largest stage minimised)",
        "1F1B (even layers)",
    ]
    assert len(names) == 38


def test_cut_for_slow_links():
    """Tests that a third cut appears where a slow link changes it, and that it avoids that link."""
    problem = chain_problem(num_layers=4, num_devices=2)
    edges = (*problem.profile.edges[:1], replace(problem.profile.edges[1], bytes=1000), *problem.profile.edges[2:])
    slow = replace(problem, profile=replace(problem.profile, edges=edges))
    third = baselines(slow)["1F1B (largest stage or transfer minimised)"].plan
    assert third is not None
    assert ("l0", "l1") not in [stage.layers for stage in third.stages]


def test_fewer_layers_than_devices():
    """Tests that a pipeline takes as many devices as there are layers for, in listed order."""
    made = baselines(chain_problem(num_layers=3, num_devices=5))
    one_f_one_b, zb_v = made["1F1B (even layers)"].plan, made["ZB-V (even layers)"].plan
    assert one_f_one_b is not None
    assert one_f_one_b.devices == ("d0", "d1", "d2")
    assert zb_v is not None
    assert zb_v.devices == ("d0",)


SPLIT = {"ZB-H1", "ZB-H2", "ZB automatic", "ZB-V", "V-Half", "V-Min"}
SPLIT |= {"capped greedy", "capped loop", "capped V", "interleaved ZB"}
"""Methods whose I and W are apart."""

CHUNKED = {"interleaved 1F1B", "ZB-V", "V-Half", "V-Min", "breadth-first", "interleaved ZB"}
CHUNKED |= {"capped loop", "capped loop 1F1B", "capped V", "capped V 1F1B"}
"""Methods with two or more stages per device."""


@pytest.mark.parametrize(
    ("options", "methods", "reason"),
    [
        (
            Options(split_backward=False),
            SPLIT | {"OOO fast-forward", "OOO modulo"},
            "needs split_backward",
        ),
        (
            Options(max_stages_per_device=1),
            CHUNKED,
            "needs 2 stages per device, max_stages_per_device = 1",
        ),
        (Options(max_replicas=2), {"data parallel"}, "needs 4 replicas, max_replicas = 2"),
        (
            Options(pinned=(PinnedLayer(layer="l0", device="d1"),)),
            SPLIT
            | CHUNKED
            | {"data parallel", "GPipe", "1F1B", "capped 1F1B", "SPP", "OOO fast-forward", "OOO modulo"},
            "does not put layer 'l0' on 'd1', where it is pinned",
        ),
        (
            Options(partition=(("l0", "l1", "l2"), ("l3", "l4", "l5"), ("l6", "l7"))),
            CHUNKED,
            "the given partition has 3 stages, the method 2 per device",
        ),
    ],
    ids=["split", "chunks", "replicas", "pinned", "partition"],
)
def test_what_does_not_apply(options: Options, methods: set[str], reason: str):
    """Tests that a method which the options exclude says so, and that the others stand."""
    found = notes(chain_problem(options=options))
    assert {name for name, note in found.items() if note == reason} == methods


def test_interleaved_needs_whole_rounds():
    """Tests that the interleaved methods in rounds refuse five microbatches on four devices, and no other does."""
    found = notes(chain_problem(num_microbatches=5))
    assert found == dict.fromkeys(
        ("interleaved 1F1B", "interleaved ZB"), "5 microbatches are not a multiple of 4 devices"
    )


def test_no_device_may_stay_idle():
    """Tests that a pipeline with fewer layers than devices is refused where none may idle."""
    found = notes(chain_problem(num_layers=3, options=Options(idle_devices=False)))
    assert found["1F1B"] == "leaves 1 of 4 devices idle"
    assert "data parallel" not in found


def test_no_tensor_may_skip():
    """Tests that a skip edge over a stage is refused where the executor cannot send it."""
    problem = chain_problem(options=Options(skip_edges=False))
    assert notes(problem) == {}
    edges = (*problem.profile.edges, Edge(producer="l0", consumer="l7", bytes=1))
    found = notes(replace(problem, profile=replace(problem.profile, edges=edges)))
    assert found["1F1B"] == "a tensor would skip from stage 0 to stage 3, skip_edges = false"
    assert "data parallel" not in found


def test_given_placement():
    """Tests that a given placement is honoured by the methods it suits, replicas included, and by no other."""
    options = Options(
        partition=(("l0", "l1", "l2"), ("l3", "l4", "l5", "l6", "l7")), placement=((("d2",), ("d0",)), (("d3",),))
    )
    problem = chain_problem(options=options)
    made = baselines(problem)
    assert {name.partition(" (")[2] for name in made} == {"", "given partition)"}
    plan = made["1F1B (given partition)"].plan
    assert plan is not None
    assert [stage.replicas for stage in plan.stages] == list(options.placement or ())
    assert notes(problem)["ZB-V"] == "the given placement is not stages d and 2D-1-d on device d"
    assert notes(problem)["data parallel"] == "the given partition has 2 stages, the method 1"
    assert_valid_but_for_memory(problem)


def test_what_breaks_the_memory_is_reported():
    """Tests that GPipe with sixteen microbatches in memory for four is a row that says what it needs."""
    problem = chain_problem(num_microbatches=16, options=Options(receive_buffers=0))
    devices = tuple(replace(device, memory_bytes=16) for device in problem.cluster.devices)
    problem = replace(problem, cluster=replace(problem.cluster, devices=devices))
    costs = CostModel(problem)
    row, timeline = play_baseline(problem, baselines(problem)["GPipe (even layers)"], costs=costs)
    assert timeline is not None
    assert (row.fits_memory, row.peak_fraction, row.note) == (False, 4.0, "needs 4.00 x the memory of d0")
    row, _ = play_baseline(problem, baselines(problem)["1F1B (even layers)"], costs=costs)
    assert (row.fits_memory, row.peak_fraction, row.note) == (True, 1.0, "")


def test_what_the_choice_among_twins_has_played_counts_for_that_plan_alone():
    """Tests that its timeline gives the row of a fresh play, and none to another plan of the same baseline."""
    problem = random_problem(Random(11))
    costs = CostModel(problem)
    made = list(make_baselines(problem, costs))
    known = [each for each in made if each.played is not None and each.played[0] is each.plan]
    assert known
    for each in known:
        assert play_baseline(problem, each, costs=costs)[0] == played_anew(problem, each)
    other = replace(next(each for each in made if each.plan is not None), played=known[0].played)
    assert play_baseline(problem, other, costs=costs)[0] == played_anew(problem, other)


def played_anew(problem: Problem, baseline: Baseline) -> BaselineResult:
    return play_baseline(problem, replace(baseline, played=None), costs=CostModel(problem))[0]


def test_equal_stages_are_ordered_once():
    """Tests that two cuts into the same stages share the plan of a method, and that a method's plan is no other's."""
    made = baselines(chain_problem())
    names = {name.partition(" (")[0] for name in made if "(even layers)" in name}
    assert len(names) > 5
    plans = [(made[f"{name} (even layers)"].plan, made[f"{name} (largest stage minimised)"].plan) for name in names]
    assert all(one is not None and one is other for one, other in plans)
    assert len({id(one) for one, _ in plans}) == len(names)
