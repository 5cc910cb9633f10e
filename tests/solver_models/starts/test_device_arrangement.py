"""Orders of the devices by recursive cuts."""

from itertools import groupby
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.problem import Problem
from profiles.cluster import Cluster, Device, Link
from solver_models.instance import Integers
from solver_models.starts.device_arrangement import MOST_EXACT, cut_order, device_orders, least_cut
from solver_models.starts.first_candidates import make_seeds
from tests.planner.builders import make_layer, make_link, make_problem
from tests.solver_models.nets import Case, random_exact_problem

randoms = st.randoms(use_true_random=False)


def two_level(sizes: tuple[int, ...], *, rng: Random | None = None, fast: int = 12, slow: int = 3) -> Problem:
    """Hosts of so many devices, named after them, with fast links inside; listed in random order if asked."""
    names = [f"h{host}d{number}" for host, size in enumerate(sizes) for number in range(size)]
    if rng is not None:
        rng.shuffle(names)
    links = [
        Link(a=a, b=b, bandwidth_bytes_per_s=(fast if a[:2] == b[:2] else slow) * 10**9, latency_ns=10)
        for n, a in enumerate(names)
        for b in names[n + 1 :]
    ]
    base = make_problem([make_layer(f"l{i}") for i in range(8)], [make_link("a b")])
    devices = tuple(Device(name=name, type=base.cluster.devices[0].type, memory_bytes=10**9) for name in names)
    return Problem(
        profile=base.profile, cluster=Cluster(name="hosts", devices=devices, links=tuple(links)), num_microbatches=4
    )


def hosts_in_order(problem: Problem, order: Integers) -> list[str]:
    """The hosts along the order, each as often as one begins anew."""
    return [host for host, _ in groupby(problem.cluster.devices[device].name[:2] for device in order)]


def mean_rate(rates: Integers, side: tuple[bool, ...]) -> float:
    """The mean rate across a cut."""
    inside = np.array(side)
    return float(rates[np.ix_(inside, ~inside)].mean())


@given(randoms, st.lists(st.integers(1, 9), min_size=2, max_size=5))
def test_hosts_stay_together(rng: Random, sizes: list[int]):
    """Tests that the devices of a host stand side by side however the devices are listed and whatever the hosts' sizes.

    No host is so small beside the others that the sides of a cut would be too uneven.
    """
    sizes = [size + sum(sizes) // 8 for size in sizes]
    problem = two_level(tuple(sizes), rng=rng)
    order = cut_order(Case(problem, ()).instance)
    assert sorted(order.tolist()) == list(range(sum(sizes)))
    assert len(hosts_in_order(problem, order)) == len(sizes)


@pytest.mark.parametrize("sizes", [(4, 4), (2, 2, 2, 2), (4, 4, 4), (3, 3, 3, 3, 3), (8, 8, 8, 8), (1, 1, 1)])
def test_a_well_listed_cluster_keeps_its_order(sizes: tuple[int, ...]):
    """Tests that equal hosts listed one after the other stay as they are, which costs no further seeds."""
    instance = Case(two_level(sizes), ()).instance
    assert cut_order(instance).tolist() == list(range(sum(sizes)))
    assert len(device_orders(instance)) == 1


def test_links_all_alike_keep_the_listed_order():
    """Tests that nothing is cut where all links are alike."""
    assert cut_order(Case(two_level((5, 7), slow=12), ()).instance).tolist() == list(range(12))


@given(randoms)
def test_every_order_has_every_device_once(rng: Random):
    """Tests that all orders of a random cluster are permutations, different from each other, the listed one first."""
    instance = Case(random_exact_problem(rng, num_devices=7, is_shared=rng.random() < 0.5), ()).instance
    orders = [order.tolist() for order in device_orders(instance, slowest_first=True)]
    listed = list(range(instance.num_devices))
    assert orders[0] == listed
    assert all(sorted(order) == listed for order in orders)
    assert len({tuple(order) for order in orders}) == len(orders)


def random_rates(rng: Random, count: int) -> Integers:
    """Symmetric rates with ties."""
    rates = np.zeros((count, count), np.int64)
    for a in range(count):
        for b in range(a):
            rates[a, b] = rates[b, a] = rng.choice([1, 2, 7, 30, rng.randint(1, 100)])
    return rates


@given(randoms)
def test_small_cuts_are_exact(rng: Random):
    """Tests that up to `MOST_EXACT` devices no cut has a smaller mean rate across it."""
    count = rng.randint(2, 7)
    rates = random_rates(rng, count)
    masks = [tuple(bool(mask >> n & 1) for n in range(count)) for mask in range(1, (1 << count) - 1)]
    assert count <= MOST_EXACT
    assert mean_rate(rates, tuple(least_cut(rates))) == pytest.approx(min(mean_rate(rates, side) for side in masks))


@given(randoms)
def test_larger_cuts_cannot_be_bettered_by_one_device(rng: Random):
    """Tests that a larger set is cut so that no device changes sides for the better, sides of an eighth left aside."""
    count = rng.randint(MOST_EXACT + 1, 24)
    rates = random_rates(rng, count)
    side = least_cut(rates)
    least = count // 8
    assert least <= sum(side) <= count - least
    for device in range(count):
        other = tuple(flag != (n == device) for n, flag in enumerate(side))
        if least <= sum(other) <= count - least:
            assert mean_rate(rates, other) >= mean_rate(rates, tuple(side)) - 1e-9


def test_shuffled_hosts_get_seeds_that_stay_inside_them():
    """Tests that on a shuffled cluster some seed has a pipeline that crosses between two hosts only once."""
    problem = two_level((4, 4), rng=Random(3))
    case = Case(problem, ())
    listed = [device.name[:2] for device in problem.cluster.devices]
    assert len(list(groupby(listed))) > 2
    chains = [seed.groups for seed in make_seeds(case.searcher) if len(seed.groups) == 8]
    hosts = [hosts_in_order(problem, np.array([group[0] for group in groups])) for groups in chains]
    assert 2 in map(len, hosts)
