"""Tests of planner/decisions/price/bound.py."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

from planner.decisions.price.bound import check_subsets, write_boxes
from planner.decisions.price.device_kinds import price_of
from planner.decisions.price.subsets import Subsets
from planner.planning import SearchParams
from planner.planning.planning_params import SubsetsParams
from planner.problem import Problem
from profiles.cluster import Cluster, Link
from tests.long_runs import shortened
from tests.planner.brute_force import LIMIT, every_mapping, explore, make_tables
from tests.planner.decisions.price.test_subsets import priced_batch
from tests.strategies import random_chain

SPEED = 10**9


def small_problem(rng: Random) -> Problem:
    """A chain on up to three devices with prices, some of them alike, on random links or around a switch."""
    problem = random_chain(rng, sizes=(3, 3, 2), tight=rng.random() < 0.5)
    types = {name: rng.choice([0, 0.5, 1, 1, 2, 3.25]) for name in problem.cluster.device_types}
    memory = max(device.memory_bytes for device in problem.cluster.devices)
    devices = tuple(
        replace(
            device,
            memory_bytes=memory if rng.random() < 0.7 else device.memory_bytes,
            price_per_hour=types[device.type],
        )
        for device in problem.cluster.devices
    )
    cluster = replace(problem.cluster, devices=devices)
    if rng.random() < 0.6:
        link = Link(a="s", b="s0", bandwidth_bytes_per_s=rng.choice([SPEED, 4 * SPEED]), latency_ns=rng.randint(0, 3))
        links = tuple(replace(link, b=device.name) for device in devices)
        cluster = replace(cluster, links=links, switches=("s",))
    return replace(problem, cluster=cluster, options=replace(problem.options, objective="cost"))


def every_cost(problem: Problem) -> Iterator[tuple[int, int, tuple[Any, ...]]]:
    """Of every partition and mapping: a bound on its makespan, the price of its devices, and what `explore` needs."""
    times = replace(problem, options=replace(problem.options, objective="makespan", deadline_ns=None))
    for stages in every_mapping(replace(times, cluster=unlike(times.cluster))):
        tables = make_tables(times, stages)
        if tables is not None:
            used = {name for stage in stages for group in stage.replicas for name in group}
            yield int(explore(*tables, LIMIT, True)[0]), price_of(problem.cluster, used), tables


def unlike(cluster: Cluster) -> Cluster:
    """The same devices with memories that all differ, above what anything needs, so that no mapping is left out."""
    devices = tuple(replace(device, memory_bytes=10**9 + number) for number, device in enumerate(cluster.devices))
    return replace(cluster, devices=devices)


def least_cost(problem: Problem) -> int | None:
    """The least cost over all subsets, partitions, mappings and orders by the deadline; None if no plan fits."""
    latest = LIMIT if problem.options.deadline_ns is None else problem.options.deadline_ns + 1
    best: int | None = None
    for bound, price, tables in sorted(every_cost(problem), key=lambda each: each[0] * each[1]):
        limit = latest if best is None or not price else min(latest, -(-best // price))
        if bound < limit and (best is None or price * bound < best):
            found = int(explore(*tables, limit, False)[0])
            if found < limit:
                best = price * found
    return best


def test_bound_on_money_against_brute_force():
    """Tests that no plan on any subset of a random problem is below the bound, which its certificate proves anew."""
    rng, num_tight = Random(5), 0
    for _ in range(shortened(40, whole=1000)):
        problem = small_problem(rng)
        if rng.random() < 0.4:
            problem = replace(problem, options=replace(problem.options, deadline_ns=rng.randint(5, 120)))
        least = least_cost(problem)
        subsets = Subsets(problem, SearchParams(subsets=SubsetsParams(max_boxes=rng.randint(1, 9))))
        subsets.branch(below=None, wanted=1_000, has_time=lambda: True)
        if subsets.lower_bound is None:
            assert least is None
            continue
        certificate = write_boxes(subsets.kinds, subsets.boxes, deadline_ns=problem.options.deadline_ns)
        assert check_subsets(problem, certificate) == certificate["value"]
        assert least is None or certificate["value"] <= least
        num_tight += certificate["value"] == least
    assert num_tight > shortened(5, whole=100)


def test_bound_on_money_over_sizes_against_brute_force():
    """Tests that no plan of any size on any subset is below the bound of a global batch, which is proved anew."""
    rng, num_tight = Random(8), 0
    for _ in range(shortened(12, whole=1000)):
        question = priced_batch(rng)
        costs = [least_cost(problem.at_its_size()) for problem in question.candidates]
        least = min((cost for cost in costs if cost is not None), default=None)
        subsets = Subsets(question, SearchParams(subsets=SubsetsParams(max_boxes=rng.randint(1, 5))))
        subsets.branch(below=None, wanted=1_000, has_time=lambda: True)
        if subsets.lower_bound is None:
            assert least is None
            continue
        certificate = write_boxes(subsets.kinds, subsets.boxes, deadline_ns=question.options.deadline_ns)
        for problem in question.candidates:
            assert check_subsets(problem, certificate) == certificate["value"]
        assert least is None or certificate["value"] <= least
        num_tight += certificate["value"] == least
    assert num_tight > shortened(2, whole=100)
