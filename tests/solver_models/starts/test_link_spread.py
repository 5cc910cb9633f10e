"""Stages on other devices of their types: who does what changes, how many do what does not, and links carry less."""

from random import Random

import numpy as np

from benchmarks.generate import make_workload, parse_family
from planner.batch_problem import question_of_workload
from planner.layout.costs import CostModel
from planner.lowering import make_instance
from planner.problem import Options, Problem
from solver_models.device_rows import MEMORY
from solver_models.instance import Instance
from solver_models.simulation.evaluator import LINKS
from solver_models.starts.link_spread import spread_groups

STAGE_OF = np.arange(12) // 2


def make_sparse() -> Instance:
    """Twelve layers and 32 devices of four types on hosts and spines."""
    problem = question_of_workload(make_workload(parse_family("chain-12x32-m8-loose-sparse-four")), Options())
    assert isinstance(problem, Problem)
    return make_instance(problem, CostModel(problem))


def busiest_link(instance: Instance, groups: tuple[tuple[int, ...], ...]) -> float:
    """Ticks per microbatch of the busiest link, every pair of replicas added up one by one."""
    loads = np.zeros(instance.layers.options[LINKS])
    for producer, consumer, forward, backward in instance.layers.edges[:, :4].tolist():
        senders, receivers = groups[STAGE_OF[producer]], groups[STAGE_OF[consumer]]
        if senders == receivers:
            continue
        for i, a in enumerate(senders):
            for j, b in enumerate(receivers):
                ends = min((i + 1) / len(senders), (j + 1) / len(receivers))
                part = max(0.0, ends - max(i / len(senders), j / len(receivers)))
                for source, target, size in ((a, b, forward), (b, a, backward)) if part else ():
                    layers, route = instance.layers, source * len(instance.device_type) + target
                    links = layers.route_links[layers.route_start[route] : layers.route_start[route + 1]]
                    time = layers.latency[source, target] + size * part * 1e9 / layers.bandwidth[source, target]
                    loads[links] += time
    return float(loads.max())


def test_links_carry_less():
    """Tests that the busiest link of random groups has less to do, on devices of the same types."""
    instance, rng = make_sparse(), Random(0)
    devices = list(range(32))
    for _ in range(3):
        rng.shuffle(devices)
        groups, left = [], list(devices)
        for count in (4, 2, 1, 4, 8, 2):
            groups.append(tuple(left[:count]))
            del left[:count]
        moved = spread_groups(instance, STAGE_OF, groups=tuple(groups), steps=20_000)
        assert busiest_link(instance, moved) < busiest_link(instance, tuple(groups))
        flat = [device for group in moved for device in group]
        assert len(set(flat)) == len(flat)
        before = [instance.device_type[list(group)].tolist() for group in groups]
        assert before == [instance.device_type[list(group)].tolist() for group in moved]


def test_unlike_memory_is_not_exchanged():
    """Tests that devices of a type whose memory differs keep their stages."""
    instance = make_sparse()
    instance.layers.devices[:, MEMORY] += np.arange(32)
    groups = tuple((device,) for device in range(6))
    assert spread_groups(instance, STAGE_OF, groups=groups, steps=1_000) == groups


def test_one_stage_stays():
    """Tests that nothing is moved where nothing is sent."""
    assert spread_groups(make_sparse(), np.zeros(12, np.int64), groups=((0, 1),), steps=10) == ((0, 1),)
