"""Stages that equal shares do not allow: their neighbours, their plain orders, and the search against brute force."""

from contextlib import closing
from dataclasses import replace
from random import Random

import pytest

from planner.decisions.unequal_shares.share_layout_search import ShareLayouts
from planner.decisions.unequal_shares.share_layouts import (
    BACKWARDS,
    WARMUPS,
    Backward,
    Warmup,
    compositions,
    moved_samples,
    neighbours,
    plain_plan,
    plain_stages,
    with_samples,
)
from planner.plan import Plan
from planner.planning import SearchParams
from planner.planning.runs.run import begin_run, ignore, never
from planner.problem import Options, Problem
from planner.progress import Limits
from planner.simulation.simulate import simulate
from planner.verify import verify
from profiles.cluster import Cluster, Device
from profiles.model_profile import LayerCost, ModelProfile
from tests.long_runs import shortened
from tests.planner.brute_force import brute_force
from tests.planner.builders import make_edge, make_layer, make_link, make_stage

LIMITS = Limits(time_limit_s=600, max_rounds=1)


def chain(
    layers: list[tuple[int, int, int, int | None]],
    *,
    size: int,
    devices: str,
    num_microbatches: int = 2,
    links: list[str] | None = None,
    **options: object,
) -> Problem:
    """Layers of (F, I, W, B) ns a sample on devices all linked at 1 byte/ns; B None: I + W."""
    costs = [
        tuple(
            LayerCost(
                device_type="g", microbatch_size=n, forward_ns=n * f, input_grad_ns=n * i, weight_grad_ns=n * w,
                backward_ns=None if b is None else n * b,
            )
            for n in range(1, size + 1)
        )
        for f, i, w, b in layers
    ]  # fmt: skip
    pairs = [f"{a} {b}" for a in devices for b in devices if a < b] if links is None else links
    return Problem(
        profile=ModelProfile(
            name="profile",
            layers=tuple(
                make_layer(f"l{n}", costs=each, parameter_bytes=1, stash_bytes=size) for n, each in enumerate(costs)
            ),
            edges=tuple(make_edge(f"l{n} l{n + 1}", num_bytes=1) for n in range(len(layers) - 1)),
            microbatch_size=size,
            scaling="measured",
        ),
        cluster=Cluster(
            name="cluster",
            devices=tuple(Device(name=name, type="g", memory_bytes=10_000) for name in devices),
            links=tuple(make_link(pair) for pair in pairs),
        ),
        num_microbatches=num_microbatches,
        options=Options(**{"unequal_shares": True, "max_replicas": 2, "max_stages_per_device": 1} | options),
    )


def shown(stages: tuple[object, ...]) -> set[str]:
    """Stages as text: layers @ groups, one after the other."""
    return {
        " / ".join(
            f"{' '.join(s.layers)} @ {' | '.join(','.join(g) for g in s.replicas)}{' r' if s.recompute else ''}"
            for s in each
        )
        for each in stages
    }


def test_neighbours_differ_by_one_move():
    """Tests that a replica joins or leaves, devices change places, borders move, and stages are cut and joined."""
    problem = chain([(1, 1, 1, None)] * 3, size=3, devices="abc")
    stages = (make_stage("l0 l1 @ a"), make_stage("l2 @ b"))
    assert shown(tuple(neighbours(problem, stages))) == {
        "l0 l1 @ a | c / l2 @ b",
        "l0 l1 @ a / l2 @ b | c",
        "l0 l1 @ b / l2 @ a",
        "l0 l1 @ c / l2 @ b",
        "l0 l1 @ a / l2 @ c",
        "l0 @ a / l1 l2 @ b",
        "l0 l1 l2 @ a | b",
        "l0 l1 l2 @ a",
        "l0 l1 l2 @ b",
        "l0 @ a / l1 @ c / l2 @ b",
        "l0 @ c / l1 @ a / l2 @ b",
    }
    two = (make_stage("l0 l1 @ a | c"), make_stage("l2 @ b"))
    assert {"l0 l1 @ a / l2 @ b", "l0 l1 @ c / l2 @ b | a", "l0 @ a / l1 @ c / l2 @ b"} < shown(
        tuple(neighbours(problem, two))
    )


def test_neighbours_follow_the_options():
    """Tests that devices with a stage take another, and stages recompute, only where that may be."""
    problem = chain([(1, 1, 1, None)] * 2, size=3, devices="ab", max_stages_per_device=2, recompute=True)
    stages = (make_stage("l0 @ a"), make_stage("l1 @ b"))
    found = shown(tuple(neighbours(problem, stages)))
    assert {"l0 @ a | b / l1 @ b", "l0 @ a r / l1 @ b"} < found
    once = replace(problem, options=replace(problem.options, max_stages_per_device=1, recompute=False))
    assert not {"l0 @ a | b / l1 @ b", "l0 @ a r / l1 @ b"} & shown(tuple(neighbours(once, stages)))


def test_all_shares_are_listed():
    """Tests that all sums from 1 are there, and equal ones are not stated."""
    assert list(compositions(4, 2)) == [(1, 3), (2, 2), (3, 1)]
    assert list(compositions(2, 3)) == []
    assert list(moved_samples((3, 1))) == [(2, 2)]
    assert list(moved_samples((2, 1, 1))) == [(1, 2, 1), (1, 1, 2)]
    stage = make_stage("l0 @ a | b")
    assert with_samples((stage,), {0: (3, 1)})[0].samples == (3, 1)
    assert with_samples((stage,), {0: (2, 2)})[0].samples == ()


@pytest.mark.parametrize(
    ("backward", "warmup", "order"),
    [
        ("B", "least", "0F0 0F1 0B0 0F2 0B1 0B2"),
        ("IW", "least", "0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2"),
        ("I..W", "all", "0F0 0F1 0F2 0I0 0I1 0I2 0W0 0W1 0W2"),
        ("B", "twice", "0F0 0F1 0F2 0B0 0B1 0B2"),
    ],
)
def test_orders_are_plain(backward: Backward, warmup: Warmup, order: str):
    """Tests that forwards before the first backward, and how backward runs, are what is asked for."""
    problem = chain([(1, 1, 1, None)] * 2, size=3, devices="ab", num_microbatches=3)
    stages = (make_stage("l0 @ a"), make_stage("l1 @ b"))
    plan = plain_plan(problem, stages, has_weights=[True, True], backwards=(backward, "B"), warmup=warmup)
    assert " ".join(map(str, plan.schedule["a"])) == order
    assert verify(problem, plan).passed


def test_plain_orders_are_valid_on_shared_devices():
    """Tests that a device with two stages runs both, in every way, without a deadlock."""
    problem = chain([(1, 1, 1, None)] * 3, size=3, devices="ab", max_stages_per_device=2)
    stages = with_samples((make_stage("l0 @ a | b"), make_stage("l1 @ b"), make_stage("l2 @ a")), {0: (2, 1)})
    for backward in BACKWARDS:
        for warmup in WARMUPS:
            plan = plain_plan(
                problem, stages, has_weights=[True] * 3, backwards=(backward, "B", backward), warmup=warmup
            )
            assert verify(problem, plan).passed, (backward, warmup)


def test_plain_stages_are_cut_evenly():
    """Tests that there is a start for every number of devices."""
    problem = chain([(1, 1, 1, None)] * 3, size=3, devices="ab")
    assert shown(tuple(plain_stages(problem))) == {"l0 l1 l2 @ a", "l0 @ a / l1 l2 @ b"}


FOUND = {
    "one layer on two of three devices": (
        chain([(1000, 2000, 0, None)], size=3, devices="abc"), [(2, 1)], 2 * 2 * 3000 + 1,
    ),
    "five samples on two devices": (
        chain([(1000, 1000, 1000, None)], size=5, devices="ab"), [(3, 2)], 2 * 3 * 3000 + 1,
    ),
    "seven samples on three devices": (
        chain([(100, 100, 100, None)], size=7, devices="abc", max_replicas=3, num_microbatches=1), None, 902,
    ),
    "a heavy layer shared, a light one alone": (
        chain([(100, 100, 100, None), (50, 50, 50, None)], size=3, devices="abc", num_microbatches=1), None, None,
    ),
    "one stage splits, one fuses": (
        chain([(10, 10, 10, 20), (10, 10, 20, 11)], size=3, devices="abc"), None, None,
    ),
    "two stages on a device": (
        chain([(30, 30, 30, 60), (10, 10, 10, 15)], size=3, devices="ab", max_stages_per_device=2), None, None,
    ),
}  # fmt: skip
"""Problems with the samples and the makespan of their best plans; None: as brute force says."""


def laid_out(problem: Problem, *, turns: int) -> Plan:
    """The best plan of this part of the search alone."""
    run = begin_run(
        problem, LIMITS, on_progress=ignore, should_stop=never, target=None, params=SearchParams()
    )  # fmt: skip
    with run.watch, closing(run.window):
        layouts = ShareLayouts(run)
        for _ in range(turns):
            for _ in layouts.take_step(()):
                pass
        run.window.drain()
    assert run.plan is not None
    return run.plan


@pytest.mark.slow
@pytest.mark.parametrize("name", FOUND)
def test_the_search_finds_numbers_that_do_not_divide(name: str):
    """Tests that the best plan of all shares is found where no equal ones are among the best."""
    problem, samples, makespan_ns = FOUND[name]
    plan = laid_out(problem, turns=4)
    found = simulate(problem, plan).makespan_ns
    assert found == (brute_force(problem) if makespan_ns is None else makespan_ns)
    if samples is not None:
        assert [tuple(sorted(stage.samples, reverse=True)) for stage in plan.stages] == samples


def random_case(seed: int) -> Problem:
    """One or two layers on two or three devices, with microbatches of 3 or 5 samples, B cheaper than I and W or not."""
    rng = Random(seed)
    times = [[10 * rng.randint(1, 9) for _ in "FIW"] for _ in range(rng.randint(1, 2))]
    return chain(
        [(f, i, w, i + w - rng.choice([0, 0, w // 3])) for f, i, w in times],
        size=rng.choice([3, 5]),
        devices=rng.choice(["ab", "abc"]),
        num_microbatches=rng.randint(1, 2),
        split_backward=rng.random() < 0.8,
        max_stages_per_device=rng.choice([1, 1, 2]),
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(shortened(4, whole=60)))
def test_random_problems_have_the_plan_of_brute_force(seed: int):
    """Tests that what the search finds for a small problem is the best of all partitions, shares and orders."""
    problem = random_case(seed)
    plan = laid_out(problem, turns=12)
    assert simulate(problem, plan).makespan_ns == brute_force(problem)
