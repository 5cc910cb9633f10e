"""Compiles the kernels once, so that every later start finds them on disk.

`python -m solver_models.precompile [--first | GROUP ...]`: they come in groups, each compiled by a process of its own,
as many at a time as there are cores, what a first plan needs first. Who wants a group waits for whoever is at work on
it.
"""

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from solver_models.instance import Instance
from solver_models.jit import cache_folder, is_compiled, module_folder
from solver_models.search import Candidate, Searcher


def toy_instance() -> Instance:
    """Two layers, two devices, two microbatches: every kernel runs on it."""
    ones = np.ones(2, np.int64)
    return Instance(
        num_microbatches=2,
        work=np.full((1, 5, 1, 2), 10, np.int64),
        table_of_replicas=np.zeros(3, np.int64),
        overhead=np.zeros((1, 4), np.int64),
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


def _joint_search(searcher: Searcher, candidate: Candidate) -> None:
    searcher.anneal(candidate, iterations=20, heat=(0.1, 0.01), seed=0)


def _order_search(searcher: Searcher, candidate: Candidate) -> None:
    from solver_models.order_search import OrderSearch

    searcher.floor(candidate.stage_of, candidate.groups, recompute=candidate.recompute)
    order = OrderSearch(searcher, candidate)
    order.warm_up()
    searcher.polish(candidate, iterations=20, heat=0.0, seed=0)
    words, _ = searcher.words(candidate)
    order = OrderSearch(searcher, candidate)
    order.add([words])


def _cuts(searcher: Searcher, candidate: Candidate) -> None:
    from solver_models.partition import candidates, make_partition_instance, solve_partition

    searcher.exact_floor(candidate)
    partition = make_partition_instance(searcher.instance)
    found = candidates(partition, limit=1, uneven=True)
    solve_partition(partition, incumbent=found[0], time_limit_s=1.0, seed=0, should_stop=lambda: False)


def _large(searcher: Searcher, candidate: Candidate) -> None:
    from solver_models.large_construction import large_seeds

    del candidate
    list(large_seeds(searcher, most_plays=1, until=time.monotonic()))


def _looped(searcher: Searcher, candidate: Candidate) -> None:
    """Anneal the cuts of four layers in a loop of two ranks."""
    from solver_models.looped_construction import Loop, anneal_cut

    del searcher, candidate
    sums = np.arange(5, dtype=np.int64)
    loop = Loop(
        times=np.tile(sums, (3, 2, 1)),
        sizes=np.tile(sums, (3, 1)),
        crossing=np.zeros((2, 2, 5), np.int64),
        buffers=np.zeros(5, np.int64),
        budget=np.full(2, 100, np.int64),
        microbatches=2,
    )
    anneal_cut(loop, np.array([0, 2, 4], np.int64), 2, 5, 0.01, 0.001, 0, False)


def _split_placement(searcher: Searcher, candidate: Candidate) -> None:
    from solver_models.split_placement_search import ApartSearcher

    apart = ApartSearcher(searcher)
    found = apart.anneal(apart.begin(candidate), iterations=20, heat=(0.1, 0.01), seed=0)
    apart.order(found, iterations=20, heat=0.0, seed=0)


def _branch_and_bound(searcher: Searcher, candidate: Candidate) -> None:
    searcher.exact_floor(candidate)
    searcher.enumerate_orders(candidate, threshold=10**9, most_words=100, most_plays=10_000)
    searcher.sequence(candidate, threshold=10**9, most_nodes=10)


def _enumeration(searcher: Searcher, candidate: Candidate) -> None:
    from solver_models.joint.search_space import make_space
    from solver_models.joint.subproblems import open_cases

    del candidate
    space = make_space(searcher.instance)
    assert space is not None
    open_cases(searcher, space)


FIRST: dict[str, Callable[[Searcher, Candidate], None]] = {
    "joint": _joint_search,
    "orders": _order_search,
    "cuts": _cuts,
}
"""Groups that every plan needs."""

LATER: dict[str, Callable[[Searcher, Candidate], None]] = {
    "enumeration": _enumeration,
    "branch-and-bound": _branch_and_bound,
    "split-placement": _split_placement,
    "large": _large,
    "looped": _looped,
}
"""Groups that come into play on small or very large problems, and where placement may be split."""


def warm_up(*groups: str) -> float:
    """Compile, or load from disk, what the groups need, in this process; returns the seconds it took."""
    begin = time.perf_counter()
    known = FIRST | LATER
    searcher = Searcher(toy_instance())
    for group in groups or known:
        with _locked(group):
            candidate = searcher.rate(np.array([0, 1], np.int64), ((0,), (1,)))
            known[group](searcher, candidate)
            _mark(group).touch()
    return time.perf_counter() - begin


def is_warm(*groups: str) -> bool:
    """Whether everything that the groups need has been compiled on this machine."""
    return not is_compiled() or all(_mark(group).exists() for group in groups or FIRST | LATER)


def compile_groups(*groups: str) -> float:
    """Compile what is missing of `groups`, each in a process of its own; returns the seconds it took.

    Raises RuntimeError if a process ends with an error, naming the group.
    """
    begin = time.perf_counter()
    missing = [group for group in groups if not is_warm(group)]
    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        list(pool.map(_compile_apart, missing))
    return time.perf_counter() - begin


def _compile_apart(group: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "solver_models.precompile", group],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        raise RuntimeError(f"the kernels of {group!r} could not be compiled:\n{ended.stderr}")


def _mark(group: str) -> Path:
    return cache_folder() / f"{group}-{module_folder('solver_models.precompile').name}"


@contextmanager
def _locked(group: str) -> Iterator[None]:
    """Hold the group, so that nobody else compiles it meanwhile."""
    with _mark(group).with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main(arguments: list[str]) -> None:
    """Compile the groups named; without a name all of them, with `--first` those that every plan needs."""
    known = FIRST | LATER
    if len(arguments) == 1 and arguments[0] in known:
        warm_up(arguments[0])
        return
    groups = FIRST if arguments == ["--first"] else arguments or known
    if unknown := [group for group in groups if group not in known]:
        sys.exit(f"no group of kernels is called {unknown[0]!r}; choose from {', '.join(known)}, or --first")
    sys.stderr.write("compiling the search kernels (once) ...\n")
    sys.stderr.write(f"kernels ready in {compile_groups(*groups):.1f} s, kept in {cache_folder()}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
