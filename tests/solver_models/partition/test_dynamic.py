"""The dynamic programmes and the closed form against enumeration."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from solver_models.partition.candidates import candidates
from solver_models.partition.closed_form import schedule_bound
from solver_models.partition.device_assignment import assign_devices
from solver_models.partition.dynamic import Partitioner
from solver_models.partition.partition_instance import Interval, PartitionInstance
from tests.solver_models.partitions import (
    every_partition,
    least_largest_load,
    least_load,
    make_instance,
    with_transfers,
)

LINE = make_instance(3, (1,), work=np.array([[[[2, 3, 4]], [[1, 1, 1]], [[3, 2, 5]]]]), workspace=np.array([0, 7, 2]))
"""Three layers, F 2 3 4, I 1 1 1, whole backward 3 2 5."""


def test_load_adds_up():
    """Tests that the load of a stage is F and the whole backward, per replica and rounded up kind by kind."""
    assert Partitioner(LINE).load(Interval(0, 2, 0, 1)) == (2 + 3) + (3 + 2)
    pair = make_instance(3, (2,), work=LINE.work, gradient=np.zeros(3, np.int64))
    assert Partitioner(pair).load(Interval(0, 2, 0, 2)) == 3 + 3


def test_load_has_the_all_reduce():
    """Tests that a replicated stage carries its ring all-reduce, spread over the microbatches."""
    ring = np.array([[[0, 1], [0, 1], [7, 10**9]]])
    pair = make_instance(3, (2,), work=0 * LINE.work, gradient=np.array([100, 50, 0]), ring=ring)
    assert Partitioner(pair).load(Interval(0, 2, 0, 2)) == -(-(2 * 150 // 2 + 2 * 7) // 8)
    assert Partitioner(pair).load(Interval(2, 3, 0, 2)) == 0


def test_load_is_that_of_the_link_if_it_is_slower():
    """Tests that the transfer over the first cut of a stage counts, per replica, forward or backward."""
    ticks = np.array([[0, 40, 0, 0], [0, 60, 0, 0]])
    pair = make_instance(3, (2,), work=LINE.work, gradient=np.zeros(3, np.int64), cut_ticks=ticks)
    assert [Partitioner(pair).load(Interval(1, 3, 0, r)) for r in (1, 2)] == [60, 30]


@pytest.mark.parametrize(
    ("capacity", "changes"),
    [
        (9 + 8 + 7, {}),
        (9 + 2 * 8 + 7, {"in_flight": np.array([1, 2])}),
        (9 + 4 + 7, {"replicas": 2}),
        (9 + 8 + 7 + 6, {"cut_units": np.array([[0, 6, 0, 0], [0, 0, 0, 0]])}),
        (9 + 8 + 7 + 5, {"cut_units": np.array([[0, 0, 0, 0], [0, 0, 5, 0]])}),
    ],
    ids=["one", "two in flight", "replicas", "activations", "gradients"],
)
def test_memory_adds_up(capacity: int, changes: dict[str, object]):
    """Tests that state, stashes in flight, the largest workspace and receive buffers must fit, to the unit."""
    replicas = int(changes.pop("replicas", 1))
    fields = {"state": np.array([1, 9, 1]), "stash": np.array([1, 8, 1]), "workspace": np.array([0, 7, 0])} | changes
    stages = (Interval(0, 1, 0, 1), Interval(1, 2, 0, replicas), Interval(2, 3, 0, 1))
    for slack in (0, -1):
        own = make_instance(3, (4,), capacity=np.array([capacity + slack]), **fields)
        assert Partitioner(own).is_feasible(stages) == (slack == 0)


def test_feasible_means_covered_and_seated():
    """Tests that partitions with gaps, missing ends or too many devices are refused."""
    own = Partitioner(make_instance(3, (2,)))
    assert own.is_feasible((Interval(0, 1, 0, 1), Interval(1, 3, 0, 1)))
    assert not own.is_feasible((Interval(0, 1, 0, 1), Interval(2, 3, 0, 1)))
    assert not own.is_feasible((Interval(0, 2, 0, 1),))
    assert not own.is_feasible((Interval(0, 1, 0, 2), Interval(1, 3, 0, 1)))


def cases() -> list[PartitionInstance]:
    """Small instances of every kind."""
    found = []
    for seed in range(6):
        found.append(make_instance(5, (3,), seed=seed))
        found.append(make_instance(5, (2, 1), seed=seed))
        found.append(make_instance(4, (1, 1, 1), seed=seed))
        ticks = {"cut_ticks": with_transfers(5, seed=seed)["cut_ticks"]}
        found.append(make_instance(5, (2, 1), seed=seed, **ticks))
        tight = {"capacity": np.array([75]), "in_flight": np.array([1, 2, 3])}
        found.append(make_instance(6, (4,), seed=seed, **tight))
    return found


@pytest.mark.parametrize("number", range(30))
def test_least_largest_load_equals_enumeration(number: int):
    """Tests that the programme over used devices finds the least largest load of all partitions that fit."""
    instance = cases()[number]
    stages = least_largest_load(Partitioner(instance))
    best = least_load(instance)
    assert (stages is None) == (best is None)
    if stages is not None:
        assert Partitioner(instance).is_feasible(stages)
        assert Partitioner(instance).largest_load(stages) == best >= Partitioner(instance).lower_bound()


@pytest.mark.parametrize("number", range(30))
def test_given_order_equals_enumeration(number: int):
    """Tests that the programme for a given order of devices finds the least largest load of that order."""
    instance = cases()[number]
    own = Partitioner(instance)
    order = [(c, 1) for c, count in enumerate(instance.count.tolist()) for _ in range(count)]
    partitions = [s for s in every_partition(instance) if own.is_feasible(s)]
    seats = [(s, [(stage.device_class, stage.replicas) for stage in s]) for s in partitions]
    most = min((own.largest_load(s) for s, used in seats if is_part_of(used, order)), default=None)
    found = own.least_load_in_order(order)
    assert (found and own.largest_load(found)) == most


def is_part_of(some: list[tuple[int, int]], order: list[tuple[int, int]]) -> bool:
    """Whether `some` is `order` with entries left out."""
    rest = iter(order)
    return all(entry in rest for entry in some)


def test_shifting_cuts_by_bound():
    """Tests that cutting again by fill, work and drain equals enumeration on a plain chain."""
    work = np.full((1, 3, 1, 9), 10)
    work[0, 2] = 10
    instance = make_instance(9, (3,), work=work, gradient=np.zeros(9, np.int64), num_microbatches=2)
    own = Partitioner(instance)
    cuts = itertools.combinations(range(1, 9), 2)
    every = [tuple(Interval(a, b, 0, 1) for a, b in itertools.pairwise((0, *cut, 9))) for cut in cuts]
    least = min(schedule_bound(own, stages) for stages in every)
    balanced = tuple(Interval(a, a + 3, 0, 1) for a in (0, 3, 6))
    shifted = own.shift_cuts(balanced, radius=9, within=schedule_bound(own, balanced), tolerance=0)
    assert schedule_bound(own, shifted) == least
    assert own.shift_cuts(balanced, radius=0, within=10**6, tolerance=0) == balanced


def test_schedule_bound_adds_up():
    """Tests that the closed form is fill + F and I + drain, or the round trips that memory allows, on two stages."""
    work = np.array([[[[2, 5]], [[3, 7]], [[7, 8]]]])
    ticks = np.array([[0, 10, 0], [0, 20, 0]])
    plain = {"gradient": np.zeros(2, np.int64), "cut_ticks": ticks, "workspace": np.zeros(2, np.int64)}
    stages = (Interval(0, 1, 0, 1), Interval(1, 2, 0, 1))
    instance = make_instance(2, (2,), work=work, num_microbatches=10, **plain)
    second = (2 + 10) + 10 * (5 + 7) + (20 + 3) + (7 - 3)
    assert schedule_bound(Partitioner(instance), stages) == second
    one_fits = {"state": np.array([0, 0]), "stash": np.array([9, 0]), "capacity": np.array([9])}
    tight = make_instance(2, (2,), work=work, num_microbatches=10, **plain, **one_fits)
    assert schedule_bound(Partitioner(tight), stages) == 10 * (2 + 10 + 5 + 7 + 20 + 3) + (7 - 3)
    none_fits = replace(tight, capacity=np.array([8]))
    assert schedule_bound(Partitioner(none_fits), stages) is None


@pytest.mark.parametrize(("counts", "uneven"), [((4,), True), ((4,), False), ((2, 2), True), ((1,) * 5, True)])
def test_candidates_are_different_and_fit(counts: tuple[int, ...], uneven: bool):
    """Tests that candidates are distinct, feasible and sorted, and that the least largest load is among them."""
    instance = make_instance(24, counts, capacity=np.full(len(counts), 250))
    own = Partitioner(instance)
    found = candidates(instance, limit=30, uneven=uneven)
    bounds = [schedule_bound(own, stages) for stages in found]
    assert len(set(found)) == len(found) >= 3
    assert all(own.is_feasible(stages) for stages in found)
    assert bounds == sorted(bounds)
    if uneven:
        least = own.largest_load(least_largest_load(own))
        assert min(own.largest_load(stages) for stages in found) <= 1.003 * least
    else:
        assert all(len({stage.replicas for stage in stages}) == 1 for stages in found)


def test_candidates_when_nothing_fits():
    """Tests that there are no candidates if no device can hold a layer."""
    assert candidates(make_instance(5, (3,), capacity=np.array([0])), limit=5) == []


def test_seats_are_neighbours():
    """Tests that the stages of a class take its devices in the order listed."""
    instance = make_instance(4, (3, 2))
    stages = (Interval(0, 1, 0, 2), Interval(1, 2, 1, 1), Interval(2, 4, 0, 1))
    stage_of, groups = assign_devices(instance, stages)
    assert stage_of.tolist() == [0, 1, 2, 2]
    assert groups == ((0, 1), (10,), (2,))
