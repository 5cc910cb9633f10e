"""Steps between numbers of replicas that one device more or less does not lead between."""

import numpy as np

from planner.layout.costs import CostModel
from planner.lowering import make_instance
from solver_models.local_search.search import Searcher
from tests.planner.builders import make_layer, make_link, make_problem


def make_searcher(*, batch: int, num_devices: int, num_layers: int, most_stages: int = 2) -> Searcher:
    """A chain of even layers on devices in a row, whose replicas take whole samples of a microbatch."""
    layers = [make_layer(f"l{i}", (60, 60, 60)) for i in range(num_layers)]
    links = [make_link(f"d{i} d{i + 1}") for i in range(num_devices - 1)]
    problem = make_problem(
        layers,
        links,
        num_microbatches=4,
        microbatch_size=batch,
        scaling="linear",
        max_stages_per_device=most_stages,
        memory_bytes=10**9,
    )
    return Searcher(make_instance(problem, CostModel(problem)))


def test_annealing_finds_replicas_from_single_devices():
    """Tests that annealing from one device per stage finds data parallelism of three, which is nearly twice as fast."""
    searcher = make_searcher(batch=3, num_devices=3, num_layers=1)
    start = searcher.rate(np.zeros(1, np.int64), ((0,),), modes=np.zeros(1, np.int64))
    found = searcher.anneal(start, iterations=400, temperature=(0.1, 0.001), seed=0)
    assert sorted(found.groups[0]) == [0, 1, 2]
    assert 2 * found.objective < start.objective
