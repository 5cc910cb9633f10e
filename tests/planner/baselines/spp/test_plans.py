"""SPP: the order of devices, the dynamic programme against every division, and the bound of the slotted order."""

import os
import subprocess
import sys
from itertools import combinations, pairwise
from random import Random

import pytest

from benchmarks.topologies import TOPOLOGIES, connect
from planner.baselines.applicability import DoesNotApplyError
from planner.baselines.spp.plans import make_attempts, make_spp_plan
from planner.layout.costs import CostModel
from planner.problem import Options, Problem
from planner.verify import verify
from profiles.cluster import Cluster, Device, Link
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile


def random_spp_problem(rng: Random, *, num_layers: int, num_devices: int, num_microbatches: int) -> Problem:
    """A chain of unlike layers on devices of up to two speeds, every two of them joined by a link of their own."""
    types = ("fast", "slow")[: rng.randint(1, 2)]
    sizes = [rng.choice([0, rng.randint(1, 300)]) for _ in range(num_layers)]
    layers = tuple(
        Layer(
            name=f"l{number}",
            costs=tuple(
                LayerCost(
                    device_type=name,
                    forward_ns=rng.randint(0, 200),
                    input_grad_ns=rng.randint(0, 200),
                    weight_grad_ns=rng.randint(0, 200) if size else 0,
                )
                for name in types
            ),
            parameter_bytes=size,
        )
        for number, size in enumerate(sizes)
    )
    edges = tuple(Edge(producer=a.name, consumer=b.name, bytes=rng.randint(0, 300)) for a, b in pairwise(layers))
    devices = tuple(Device(name=f"d{n}", type=rng.choice(types), memory_bytes=2**40) for n in range(num_devices))
    links = tuple(
        Link(
            a=a.name,
            b=b.name,
            bandwidth_bytes_per_s=rng.choice([10**9, 2 * 10**9, 5 * 10**8]),
            latency_ns=rng.choice([0, 20]),
        )
        for a, b in combinations(devices, 2)
    )
    return Problem(
        profile=ModelProfile(name="chain", layers=layers, edges=edges),
        cluster=Cluster(name="mesh", devices=devices, links=links),
        num_microbatches=num_microbatches,
    )


def test_every_order_is_a_valid_plan():
    """Tests that slotted, greedy and GPipe order pass the verifier on random divisions of random machines."""
    rng = Random(6)
    for _ in range(60):
        problem = random_spp_problem(
            rng, num_layers=rng.randint(1, 6), num_devices=rng.randint(1, 6), num_microbatches=rng.randint(1, 6)
        )
        for attempt in make_attempts(CostModel(problem)):
            verdict = verify(problem, attempt.plan)
            assert verdict.passed, verdict.violations
            assert verdict.timeline is not None
            assert verdict.timeline.makespan_ns == attempt.makespan_ns


def test_the_order_is_the_same_in_every_process():
    """Tests that which of several equal cuts is taken does not depend on how a process hashes the devices' names."""
    code = (
        "import networkx\n"
        "from planner.baselines.spp.device_arrangement import minimum_cut\n"
        "graph = networkx.relabel_nodes(networkx.complete_graph(9), lambda number: f'gpu{number}')\n"
        "networkx.set_edge_attributes(graph, 1, 'weight')\n"
        "print(minimum_cut(graph, [f'gpu{number}' for number in (1, 2, 5, 7)]))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in range(5)
    }
    assert len(found) == 1


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_any_connectivity_can_be_planned(topology: str):
    """Tests that SPP has a valid plan on each of the machines that its table shows."""
    problem = random_spp_problem(Random(8), num_layers=10, num_devices=8, num_microbatches=6)
    cluster = connect(problem.cluster.devices, topology)
    problem = Problem(profile=problem.profile, cluster=cluster, num_microbatches=6)
    assert verify(problem, make_spp_plan(CostModel(problem))).passed


def test_options_are_honoured():
    """Tests that without replicas, or with equal numbers of them, SPP keeps to that, and says where it cannot."""
    problem = random_spp_problem(Random(9), num_layers=6, num_devices=4, num_microbatches=4)
    for options in (Options(max_replicas=1), Options(uneven_replication=False), Options(idle_devices=False)):
        asked = Problem(profile=problem.profile, cluster=problem.cluster, num_microbatches=4, options=options)
        assert verify(asked, make_spp_plan(CostModel(asked))).passed
    given = Options(partition=tuple((name,) for name in problem.profile.topological_order))
    asked = Problem(profile=problem.profile, cluster=problem.cluster, num_microbatches=4, options=given)
    with pytest.raises(DoesNotApplyError, match="a partition is given"):
        make_spp_plan(CostModel(asked))
