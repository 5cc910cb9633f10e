"""Best fits of layers to unlike devices."""

from itertools import combinations, pairwise, permutations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.problem import Problem
from profiles.cluster import Cluster, Device, Link
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile
from solver_models.device_rows import KIND
from solver_models.instance import Instance
from solver_models.simulation.columns import STASH_ROW, STATE_ROW
from solver_models.starts.best_fit import best_fits
from solver_models.starts.first_candidates import make_seeds
from tests.solver_models.nets import Case

randoms = st.randoms(use_true_random=False)


def unlike(rng: Random, num_layers: int, *, num_devices: int, memory: int = 10**9, slow_links: bool = False) -> Problem:
    """A chain on devices of different speeds, every two of them linked."""
    speeds = rng.sample(range(50, 101), num_devices)
    times = [rng.randint(100, 1000) for _ in range(num_layers)]
    layers = tuple(
        Layer(
            name=f"l{n}",
            costs=tuple(
                LayerCost(
                    device_type=f"s{speed}",
                    forward_ns=time * 100 // speed,
                    input_grad_ns=time * 100 // speed,
                    weight_grad_ns=time * 50 // speed,
                )
                for speed in speeds
            ),
            parameter_bytes=1,
            state_bytes=10,
            stash_bytes=rng.randint(1, 5),
        )
        for n, time in enumerate(times)
    )
    edges = tuple(Edge(producer=f"l{n}", consumer=f"l{n + 1}", bytes=1000) for n in range(num_layers - 1))
    names = [f"d{n}" for n in range(num_devices)]
    rates = (10**9, 10**12) if slow_links else (10**12,)
    links = [Link(a=a, b=b, bandwidth_bytes_per_s=rng.choice(rates), latency_ns=1) for a, b in combinations(names, 2)]
    devices = tuple(
        Device(name=name, type=f"s{speed}", memory_bytes=memory) for name, speed in zip(names, speeds, strict=True)
    )
    return Problem(
        profile=ModelProfile(name="unlike", layers=layers, edges=edges),
        cluster=Cluster(name="unlike", devices=devices, links=tuple(links)),
        num_microbatches=3,
    )


def loads_of(instance: Instance, devices: tuple[int, ...], bounds: tuple[int, ...]) -> list[int]:
    """Ticks per microbatch of every stage."""
    work = instance.work[0, [0, 1, 2]].sum(axis=0)[instance.device_type]
    return [int(work[d, a:b].sum()) for d, (a, b) in zip(devices, pairwise(bounds), strict=True)]


def transfers_of(instance: Instance, devices: tuple[int, ...]) -> list[int]:
    """Ticks of the transfers of the chain, 1000 units each, from stage to stage."""
    return [
        int(instance.layers.latency[a, b] + 1000 * 10**9 // instance.layers.bandwidth[a, b])
        for pair in pairwise(devices)
        for a, b in (pair, pair[::-1])
    ]


def least_period(instance: Instance) -> int:
    """The least period over all cuts and all orders of devices, by enumeration."""
    num_layers, all_devices = instance.num_layers, range(instance.num_devices)
    found = []
    for count in range(1, min(num_layers, len(all_devices)) + 1):
        cuts = [(0, *cut, num_layers) for cut in combinations(range(1, num_layers), count - 1)]
        for devices in permutations(all_devices, count):
            link = max(transfers_of(instance, devices), default=0)
            found += [max(link, *loads_of(instance, devices, bounds)) for bounds in cuts]
    return min(found)


@given(randoms)
def test_fits_are_near_the_least_period(rng: Random):
    """Tests that the best fit of a small case is at most 2 % above the least period of all cuts and device orders."""
    instance = Case(unlike(rng, 7, num_devices=4), ()).instance
    fit, least = best_fits(instance)[0], least_period(instance)
    assert least <= fit.period <= 1.02 * least


@given(randoms)
def test_fits_are_what_they_say(rng: Random):
    """Tests that fits cover the layers in order on different devices with the stated period, the least one first."""
    instance = Case(unlike(rng, rng.randint(1, 12), num_devices=rng.randint(2, 6), slow_links=True), ()).instance
    fits = best_fits(instance)
    for fit in fits:
        assert fit.bounds[0] == 0
        assert fit.bounds[-1] == instance.num_layers
        assert all(a < b for a, b in pairwise(fit.bounds))
        assert len(set(fit.devices)) == len(fit.devices) == len(fit.bounds) - 1
        loads = loads_of(instance, fit.devices, fit.bounds)
        assert fit.period == max([*loads, *transfers_of(instance, fit.devices)])
    assert [fit.period for fit in fits] == sorted(fit.period for fit in fits)
    assert best_fits(instance) == fits


@given(randoms)
def test_fits_hold_one_microbatch(rng: Random):
    """Tests that every stage has room for its state and at least one microbatch where memory is scarce."""
    instance = Case(unlike(rng, 9, num_devices=4, memory=rng.randint(30, 60)), ()).instance
    for fit in best_fits(instance):
        for device, (a, b) in zip(fit.devices, pairwise(fit.bounds), strict=True):
            assert int((instance.sizes[STATE_ROW] + instance.sizes[STASH_ROW])[a:b].sum()) <= instance.capacity[device]


def test_devices_that_are_alike_need_no_fit():
    """Tests that nothing is looked for where all devices are of one type."""
    instance = Case(unlike(Random(1), 5, num_devices=3), ()).instance
    assert best_fits(instance)
    instance.layers.devices[:, KIND] = 0
    assert best_fits(instance) == []


def test_fits_are_seeds():
    """Tests that the least period of all fits is among the seeds of the joint search."""
    case = Case(unlike(Random(5), 16, num_devices=6), ())
    fit = best_fits(case.instance)[0]
    groups = tuple((device,) for device in fit.devices)
    assert groups in [seed.groups for seed in make_seeds(case.searcher)]


@pytest.mark.parametrize("num_devices", [8, 16])
def test_many_fine_layers_are_balanced_closely(num_devices: int):
    """Tests that ten layers per device leave at most 1.5 % over perfect balance."""
    instance = Case(unlike(Random(2), 10 * num_devices, num_devices=num_devices), ()).instance
    slowness = instance.work[0, [0, 1, 2]].sum(axis=(0, 2))[instance.device_type]
    assert best_fits(instance)[0].period <= 1.015 / (1 / slowness).sum()
