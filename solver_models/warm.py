"""Compiles the kernels once, so that every later start finds them on disk: `python -m solver_models.warm`."""

import sys
import time

import numpy as np

from solver_models.apart_search import ApartSearcher
from solver_models.compiled import cache_folder
from solver_models.instance import Instance
from solver_models.joint.cases import open_cases
from solver_models.joint.space import make_space
from solver_models.large import large_seeds
from solver_models.ordering import OrderSearch
from solver_models.search import Searcher


def toy_instance() -> Instance:
    """Two layers, two devices, two microbatches: every kernel runs on it."""
    ones = np.ones(2, np.int64)
    return Instance(
        num_microbatches=2,
        work=np.full((1, 5, 1, 2), 10, np.int64),
        table_of_replicas=np.zeros(3, np.int64),
        gradient=ones,
        state=ones,
        stash=ones,
        weight_stash=ones,
        checkpoint=ones,
        workspace=ones,
        trainable=ones,
        frozen=0 * ones,
        edges=np.array([[0, 1, 1, 1, 1, 0]], np.int64),
        device_type=0 * ones,
        capacity=1000 * ones,
        latency=np.array([[0, 1], [1, 0]], np.int64),
        bandwidth=np.full((2, 2), 10**9, np.int64),
        route_start=np.array([0, 0, 1, 2, 2], np.int64),
        route_links=np.array([0, 1], np.int64),
        num_links=2,
        receive_buffers=2,
        tail=0,
        can_split=True,
        max_stages_per_device=2,
        uneven_replication=True,
        skip_edges=True,
        idle_devices=True,
        recompute=False,
        pinned=-ones,
        given_stages=None,
        given_groups=None,
        objective="makespan",
    )


def warm_up() -> float:
    """Compile, or load from disk, everything the search needs; returns the seconds it took."""
    begin = time.perf_counter()
    searcher = Searcher(toy_instance())
    candidate = searcher.rate(np.array([0, 1], np.int64), ((0,), (1,)))
    candidate = searcher.anneal(candidate, iterations=20, heat=(0.1, 0.01), seed=0)
    searcher.polish(candidate, iterations=20, heat=0.0, seed=0)
    apart = ApartSearcher(searcher)
    found = apart.anneal(apart.begin(candidate), iterations=20, heat=(0.1, 0.01), seed=0)
    apart.order(found, iterations=20, heat=0.0, seed=0)
    order = OrderSearch(searcher, candidate, num_threads=1)
    words, _ = searcher.words(candidate)
    order.add([words])
    order.warm_up()
    order.close()
    list(large_seeds(searcher, most_plays=1, until=time.monotonic()))
    searcher.floor(candidate.stage_of, candidate.groups, recompute=candidate.recompute)
    searcher.enumerate_orders(candidate, threshold=10**9, most_words=100, most_plays=10_000)
    searcher.sequence(candidate, threshold=10**9, most_nodes=10)
    space = make_space(searcher.instance)
    assert space is not None
    open_cases(searcher, space)
    return time.perf_counter() - begin


if __name__ == "__main__":
    sys.stderr.write("compiling the search kernels (once) ...\n")
    sys.stderr.write(f"kernels ready in {warm_up():.1f} s, kept in {cache_folder()}\n")
