"""The classes bound: tests of planner/bounds/classes/classes_bound.py."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.generate import parse_family
from planner.bounds.classes.classes_bound import Sequence, applies_to, is_exact, raise_bound
from planner.bounds.classes.device_classes import Classes, propose
from planner.bounds.heaviest_path import Trunk
from planner.bounds.minimum_costs import Least
from planner.evidence.certificate import check_certificate
from planner.layout.costs import CostModel
from planner.problem import Problem
from profiles.cluster import Cluster, Device, Link
from tests.long_runs import examples
from tests.planner.bounds.classes.test_device_classes import ONE_EACH, is_ruled_out, unlike
from tests.planner.brute_force import brute_force
from tests.planner.evidence.test_certificate import bound_of, make_chain, plans_of
from tests.planner.generated_chains import make_one_by_one
from tests.strategies import chain_problems, random_problem, with_memory


def one_each(problem: Problem) -> Problem:
    """The problem with one stage per device and no replicas, for the makespan."""
    options = replace(problem.options, max_stages_per_device=1, max_replicas=1, max_width=1, objective="makespan")
    return replace(problem, options=options)


def random_division(rng: Random, problem: Problem) -> list[list[str]]:
    """The devices in classes at random, types mixed."""
    classes: list[list[str]] = [[] for _ in range(rng.randint(1, 3))]
    for device in problem.cluster.devices:
        rng.choice(classes).append(device.name)
    return [names for names in classes if names]


@settings(max_examples=examples(200), deadline=None)
@given(problem=chain_problems(max_layers=5), rng=st.randoms(use_true_random=False))
def test_the_best_plan_is_never_ruled_out(problem, rng):
    """Tests that the optimum of tiny problems is not denied, whatever the classes, nor below the bound."""
    best = brute_force(problem)
    if best is not None:
        assert not is_ruled_out(problem, best, members=random_division(rng, problem))
        assert not is_ruled_out(problem, best, members=[[device.name] for device in problem.cluster.devices])
        assert bound_of(problem).value_ns <= best


@settings(max_examples=examples(100), deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_no_plan_is_ruled_out(rng):
    """Tests that no random plan of graphs, frozen layers, recomputation and shared links is denied, in any memory."""
    problem = one_each(random_problem(rng))
    for tight, _, value in plans_of(rng, problem, tries=6):
        assert not is_ruled_out(tight, value, members=random_division(rng, tight))
        assert bound_of(tight).value_ns <= value


@settings(max_examples=examples(60), deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_reach_grows_with_time_memory_and_coarser_classes(rng):
    """Tests that more time, more memory and fewer classes put nothing out of reach that was within."""
    problem = with_memory(one_each(random_problem(rng)), {f"d{i}": rng.randint(1, 200) for i in range(4)})
    roomy = with_memory(problem, {device.name: 2 * device.memory_bytes for device in problem.cluster.devices})
    fine = [[device.name] for device in problem.cluster.devices]
    coarse = [[device.name for device in problem.cluster.devices]]
    if not applies_to(Least(problem, CostModel(problem))):
        return
    deadlines = sorted(rng.randint(1, 300) + problem.profile.optimizer_ns for _ in range(5))
    out = [is_ruled_out(problem, deadline, members=fine) for deadline in deadlines]
    assert out == sorted(out, reverse=True)
    for deadline, was_out in zip(deadlines, out, strict=True):
        assert was_out or not is_ruled_out(roomy, deadline, members=fine)
        assert was_out or not is_ruled_out(problem, deadline, members=coarse)


def hosts(count: int, *, per_host: int) -> Cluster:
    """Devices with fast links inside a host and slow ones between hosts."""
    devices = tuple(
        Device(name=f"d{i}", type="gpu", memory_bytes=2**40, host=f"h{i // per_host}") for i in range(count)
    )
    links = tuple(
        Link(a=a.name, b=b.name, bandwidth_bytes_per_s=10**9, latency_ns=1 if a.host == b.host else 500)
        for i, a in enumerate(devices)
        for b in devices[i + 1 :]
    )
    return Cluster(name="hosts", devices=devices, links=links)


def test_links_between_hosts_are_seen():
    """Tests that four heavy layers on two hosts of two cross the slow link once, there and back."""
    problem = make_chain([(100, 100, 0)] * 4, num_devices=4, num_microbatches=2, options=ONE_EACH)
    problem = replace(problem, cluster=hosts(4, per_host=2))
    least = Least(problem, CostModel(problem))
    alike, apart = (
        raise_bound(Classes(Trunk(least), members), 1, figures=10**9)
        for members in ([["d0", "d1", "d2", "d3"]], [["d0", "d1"], ["d2", "d3"]])
    )
    assert propose(Trunk(least)) == [[["d0", "d1", "d2", "d3"]], [["d0", "d1"], ["d2", "d3"]]]
    assert alike < apart <= brute_force(problem)


@pytest.mark.parametrize("factor", [2, 7, 1000])
def test_scaled_times_scale_the_bound(factor):
    """Tests that with all times a factor larger the bound is as much larger."""
    times = [(10, 12, 7), (31, 29, 11), (5, 6, 4), (17, 20, 9), (23, 19, 13)]
    small, large = (
        unlike(
            make_chain(
                [(k * f, k * i, k * w) for f, i, w in times], num_devices=3, num_microbatches=4, options=ONE_EACH
            ),
            slow=1,
        )
        for k in (1, factor)
    )
    low, high = (
        raise_bound(Classes(Trunk(Least(p, CostModel(p))), [["d0", "d1"], ["d2"]]), 1, figures=10**9)
        for p in (small, large)
    )
    assert factor * (low - 1) <= high <= factor * low


def test_devices_wait_for_a_slower_one_before_them():
    """Tests that a device is seen to stand idle while a stage with a longer F fills it, though it has work later."""
    problem = make_one_by_one(parse_family("chain-96x16-m32-loose-homogeneous-equal"))
    trunk = Trunk(Least(problem, CostModel(problem)))
    head_and_work = 784_200_000
    assert Sequence(Classes(trunk, propose(trunk)[0]), head_and_work + 16_000_000).is_out_of_reach()


def test_sums_stay_within_64_bits():
    """Tests that times and bytes whose sums would wrap around are refused, not added up."""
    problem = make_chain(
        [(10**13, 10**13, 10**13)] * 40, num_devices=4, num_microbatches=64, memory=2**50, stash=(2**50, 2**49),
        options=ONE_EACH,
    )  # fmt: skip
    classes = Classes(Trunk(Least(problem, CostModel(problem))), [["d0", "d1", "d2", "d3"]])
    assert not is_exact(classes, 10**16)
    with pytest.raises(ValueError, match="64 bits"):
        check_certificate(problem, {"kind": "classes", "value_ns": 10**16, "classes": [["d0", "d1", "d2", "d3"]]})
