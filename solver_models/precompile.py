"""Compiles the kernels once, so that every later start finds them on disk.

`python -m solver_models.precompile [--first | GROUP ...]`: they come in groups, what a first plan needs first. A
process per core takes one group after the other that nobody else has taken, and finds on disk what they share (`jit`).
"""

import fcntl
import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from solver_models.device_rows import MEMORY, DeviceRow, column, device_table
from solver_models.instance import Instance, Integers, Layers, ShortIntegers
from solver_models.jit import cache_folder, is_compiled, module_folder
from solver_models.local_search.critical_path_search import TabuSearch, follows_orders, improve, polish
from solver_models.local_search.list_policies import Tuning, play_filled, tune
from solver_models.local_search.search import Candidate, Searcher, encode, solution_of
from solver_models.moves.annealing import Cooling, longest_order
from solver_models.moves.dealt_annealing import Assignments, BalancedTimes, anneal_assignments
from solver_models.moves.neighbourhood import neighbour
from solver_models.simulation.columns import ONCE, SIZES, WEIGHT_STASH_ONCE
from solver_models.simulation.evaluator import FAR, OPTIONS, Net
from solver_models.simulation.list_schedule import list_schedule
from solver_models.simulation.preferences import BACKWARD_FIRST
from solver_models.simulation.recorded_play import PlayableSchedule, play_schedule
from solver_models.simulation.weight_filling import FillHabit, fill_orders

SHARE = "--share"
"""The switch of a process that compiles with others."""

POLL_EVERY_S = 0.1
"""Seconds between two looks for a core to compile on."""

FEW_COLLECTIONS = 200_000
"""Objects between two collections of garbage: at 700, Python's own, they take a twentieth of the time to compile."""


def _toy_instance() -> Instance:
    """Two layers, two devices, two microbatches: every kernel runs on it."""
    two, numbers = np.ones(2, np.int64), np.arange(3)
    rules = dict.fromkeys(("split_backward", "uneven_replication", "skip_edges", "idle_devices"), 1)
    rules |= {"max_stages_per_device": 2, "receive_buffers": 2}
    figures = rules | {"num_microbatches": 2, "num_links": 2}
    layers = Layers(
        work=np.full((1, 5, 1, 2), 10, np.int64),
        host=np.zeros((2, 0, 5, 1, 2), np.int64),
        measured=np.ones((1, 1, 2), np.int64),
        table_of_replicas=0 * numbers,
        overhead=np.zeros((2, 1, 4), np.int64),
        once=np.zeros((len(ONCE), 1, 2), np.int64),
        sizes=np.ones((1, len(SIZES), 2), np.int64),
        gradient=np.ones((1, 2, 2), np.int64),
        weights=np.zeros((1, 2, 2), np.int64),
        together=np.zeros((0, WEIGHT_STASH_ONCE + 1), np.int64),
        trainable=two,
        frozen=0 * two,
        edges=np.array([[0, 1, 1, 1, 1, 0]], np.int64),
        devices=device_table([DeviceRow(memory=1000)] * 2),
        width_row=0 * two,
        member_start=numbers,
        members=numbers[:2],
        latency=1 - np.eye(2, dtype=np.int64),
        bandwidth=np.full((2, 2), 10**9, np.int64),
        route_start=np.array([0, 0, 1, 2, 2], np.int64),
        route_links=numbers[:2],
        options=column([figures.get(name, 0) for name in OPTIONS]),
    )
    return Instance(
        layers=layers,
        num_microbatches=2,
        rules=rules,
        pinned=-two,
        given_stages=None,
        given_groups=None,
        objective="makespan",
    )


def toy_search() -> tuple[Searcher, Candidate]:
    """A searcher and a candidate on which all kernels are compiled."""
    searcher = Searcher(_toy_instance())
    return searcher, searcher.make_candidate(np.array([0, 1]), ((0,), (1,)), modes=np.zeros(2, np.int64))


def _recorded_plays(searcher: Searcher, candidate: Candidate) -> None:
    """What `simulate` plays, and with it every baseline: a forward action."""
    del searcher, candidate
    nothing = np.zeros(1, np.int64)
    play_schedule(
        PlayableSchedule(
            num_microbatches=1,
            stage=nothing,
            devices=[DeviceRow()],
            groups=[(0,)],
            duration=np.ones((1, 4), np.int64),
            transfers=[],
            waits=np.zeros((1, 2), np.int64),
            waits_once=nothing,
            first=np.array([0, 1], np.int64),
            replica=nothing,
            kind=nothing,
            microbatch=nothing,
        )
    )


def _published_orders(searcher: Searcher, candidate: Candidate) -> None:
    """What baselines order their actions by."""
    net, _, lengths = _orders(searcher, candidate)
    orders, limits = np.zeros(0, np.int64), net.devices[:, MEMORY].copy()
    fill_orders(net, orders, 0 * np.append(lengths, 0), FillHabit(4, False, False), limits, FAR)
    list_schedule(net, np.ones(len(net.replica_stage), np.int64), kinds=BACKWARD_FIRST)


def _moves(searcher: Searcher, candidate: Candidate) -> None:
    searcher.is_allowed(candidate)
    neighbour(searcher.layers, searcher.rules, solution_of(candidate))


def _tabu_search(searcher: Searcher, candidate: Candidate) -> None:
    net, device_orders, lengths = _orders(searcher, candidate)
    follows_orders(net)
    search = TabuSearch(steps=2, samples=2, patience=2, lower_bound=0, seed=0)
    improve(net, device_orders, lengths, search, searcher.by_span, np.zeros(1, np.int64))


def _polishes(searcher: Searcher, candidate: Candidate) -> None:
    polish(
        *_orders(searcher, candidate),
        Cooling(steps=20, first=0.0, last=0.0, seed=0),
        searcher.by_span,
        np.zeros(1, np.int64),
    )


def _policies(searcher: Searcher, candidate: Candidate) -> None:
    tuning = Tuning(slope=4, steps=2, temperature=0.02, lower_bound=0, seed=0)
    tune(*_orders(searcher, candidate), tuning, searcher.by_span)
    play_filled(*_orders(searcher, candidate), 0, searcher.by_span)


def _orders(searcher: Searcher, candidate: Candidate) -> tuple[Net, ShortIntegers, Integers]:
    """The net of a candidate, its device orders by device and their lengths."""
    net, orders = searcher.net_of(candidate), searcher.device_orders(candidate)[0]
    device_orders, lengths = np.zeros((2, longest_order(net)), np.int32), np.zeros(2, np.int64)
    encode(net, orders, device_orders=device_orders, lengths=lengths, first=searcher.first_member)
    return net, device_orders, lengths


def _cuts(searcher: Searcher, candidate: Candidate) -> None:
    from solver_models.partition.candidates import candidates
    from solver_models.partition.partition_instance import make_partition_instance

    del candidate
    candidates(make_partition_instance(searcher.instance), limit=1, uneven=True)


def _large(searcher: Searcher, candidate: Candidate) -> None:
    from solver_models.starts.large_construction import large_seeds
    from solver_models.starts.link_spread import spread_groups

    spread_groups(searcher.instance, candidate.stage_of, groups=candidate.groups, steps=2)
    list(large_seeds(searcher, most_plays=1, until=time.monotonic()))


def _looped(searcher: Searcher, candidate: Candidate) -> None:
    """Anneal the cuts of four layers in a loop of two ranks."""
    from solver_models.starts.looped_construction import Loop, anneal_cut

    del searcher, candidate
    sums = np.arange(5, dtype=np.int64)
    loop = Loop(
        times=np.tile(sums, (4, 2, 1)),
        fixed=np.zeros((3, 2), np.int64),
        sizes=np.tile(sums, (4, 1)),
        replicas=1,
        sharers=1,
        until=np.arange(5, dtype=np.int64),
        crossing=np.zeros((2, 2, 5), np.int64),
        buffers=np.zeros(5, np.int64),
        budget=np.full(2, 100, np.int64),
        microbatches=2,
    )
    anneal_cut(loop, np.array([0, 2, 4], np.int64), 2, Cooling(steps=5, first=0.01, last=0.001, seed=0))


def _split_placement(searcher: Searcher, candidate: Candidate) -> None:
    from solver_models.local_search.split_placement_search import SplitSearcher

    split_searcher = SplitSearcher(searcher)
    found = split_searcher.anneal(split_searcher.begin(candidate), iterations=20, temperature=(0.1, 0.01), seed=0)
    split_searcher.order(found, iterations=20, temperature=0.0, seed=0)


def _microbatch_orders(searcher: Searcher, candidate: Candidate) -> None:
    """Order a stage on a device, of which both microbatches may recompute."""
    from solver_models.instance import ScheduleInstance, StageReplica
    from solver_models.recomputation.beam_starts import make_beams
    from solver_models.recomputation.microbatch_recomputation import MicrobatchRecomputation

    del searcher, candidate
    sizes = dict.fromkeys(StageReplica.SIZES, 0) | dict.fromkeys(("held", "stash", "whole_backward"), 1)
    times = {"forward": 1, "input_grad": 1, "weight_grad": 1, "backward": 2}
    replica = StageReplica(stage=0, device=0, has_weight_grad=True, **times, **sizes)
    instance = ScheduleInstance(
        num_microbatches=2, replicas=(replica,), transfers=(), devices=(DeviceRow(memory=1),), synchronisation=(0,),
        tail=0, can_split=True, objective="makespan",
    )  # fmt: skip
    search = MicrobatchRecomputation(instance, instance)
    search.anneal(next(search.greedy()), iterations=5, seed=0, temperature=0.1)
    for beams in make_beams(search):
        next(beams.search_all(width=2, seed=0, has_time=lambda: False), None)
    _path_prices()


def _path_prices() -> None:
    """Price the end of a path that waits for a cell."""
    from solver_models.recomputation.path_prices import (
        WARM,
        PricedPaths,
        PricedRows,
        PriceState,
        improve_prices,
        least_sum,
    )

    whole, parts = np.zeros(0, np.int64), np.zeros(1)
    rows = PricedRows(np.array([0, 1]), np.zeros(1, np.int64), -np.ones(1), parts, np.ones(1, np.bool_))
    paths = PricedPaths(
        np.array([0, 1]), np.zeros(2, np.int64), whole, whole, np.ones((1, 1), np.int64), np.zeros(1, np.int64),
        np.zeros((1, 1, 2), np.int64),
    )  # fmt: skip
    improve_prices(rows, paths, PriceState(parts, 0 * parts, 0 * parts), (1, 2), WARM, (0, 1, 1))
    least_sum(rows, paths, parts, (1, 2))


def _branch_and_bound(searcher: Searcher, candidate: Candidate) -> None:
    from solver_models.exact_order.order_trees import find_tree
    from solver_models.joint.case_trees import refute_case

    searcher.exact_lower_bound(candidate)
    searcher.sequence(candidate, threshold=10**9, most_nodes=10)
    net, stop = searcher.net_of(candidate), np.zeros(1, np.int64)
    refute_case(searcher, candidate, threshold=10, most_nodes=10, stop=stop)
    find_tree(net, np.zeros((3 * len(net.replica_stage), 2), np.int64), 10, 10, 10, stop)  # sets of several words


def _enumeration(searcher: Searcher, candidate: Candidate) -> None:
    from solver_models.joint.search_space import make_space
    from solver_models.joint.subproblems import open_cases

    del candidate
    space = make_space(searcher.instance)
    assert space is not None
    open_cases(searcher, space)


def _balanced(searcher: Searcher, candidate: Candidate) -> None:
    del searcher, candidate
    times, numbers = np.ones((2, 2), np.int64), np.arange(2, dtype=np.int64)
    assignments = Assignments(numbers.reshape(2, 1).repeat(2, axis=1), np.ones(2, np.int64))
    anneal_assignments(BalancedTimes(times, times, 0, 1), assignments, Cooling(steps=5, first=0.01, last=0.001, seed=0))


BASELINE_KERNELS: dict[str, Callable[[Searcher, Candidate], object]] = {
    "recorded-plays": _recorded_plays,
    "published-orders": _published_orders,
}
"""Groups of the baselines, which are the first plans."""

JOINT: dict[str, Callable[[Searcher, Candidate], object]] = BASELINE_KERNELS | {
    "moves": _moves,
    "nets": Searcher.net_of,
    "plays": Searcher.device_orders,
    "floors": lambda searcher, it: searcher.lower_bound(it.stage_of, it.groups, modes=it.modes),
    "ratings": lambda searcher, it: searcher.rate(it.stage_of, it.groups),
    "anneals": lambda searcher, it: searcher.anneal(it, iterations=20, temperature=(0.1, 0.01), seed=0),
    "cuts": _cuts,
}
"""Groups of all until the first rounds of joint search end."""

FIRST: dict[str, Callable[[Searcher, Candidate], object]] = JOINT | {
    "schedule-floors": Searcher.exact_lower_bound,
    "tabu-search": _tabu_search,
    "policies": _policies,
    "polishes": _polishes,
}
"""Groups that every plan needs which is not found in the first rounds."""

LATER: dict[str, Callable[[Searcher, Candidate], object]] = {
    "branch-and-bound": _branch_and_bound,
    "enumeration": _enumeration,
    "split-placement": _split_placement,
    "microbatch-orders": _microbatch_orders,
    "large": _large,
    "looped": _looped,
    "dealt": _balanced,
}
"""Groups that come into play on small or very large problems, where placement may be split, and for advice."""


def is_warm(*groups: str) -> bool:
    """Whether everything that the groups need has been compiled on this machine."""
    return not is_compiled() or all(_mark(group).exists() for group in groups or FIRST | LATER)


def compile_groups(*groups: str) -> float:
    """Compile what is missing of `groups`, a process for every core; returns the seconds it took.

    Raises RuntimeError if a process ends with an error, with what it wrote.
    """
    begin = time.perf_counter()
    missing = [group for group in groups if not is_warm(group)]
    with ThreadPoolExecutor(max_workers=_num_cores()) as pool:
        list(pool.map(_compile_split, [missing] * min(len(missing), _num_cores())))
    return time.perf_counter() - begin


def _compile_split(groups: list[str]) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "solver_models.precompile", SHARE, *groups],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        raise RuntimeError(f"the kernels of {', '.join(groups)} could not be compiled; report this:\n{ended.stderr}")


def take_share(*groups: str) -> None:
    """Compile the groups that nobody else is at work on, and then wait for the others."""
    with _compile_slot(until=lambda: is_warm(*groups)) as has_slot:
        if not has_slot:
            return
        searcher, candidate = toy_search()
        for is_patient in (False, True):
            for group in groups:
                with _locked(_mark(group), is_patient=is_patient) as is_ours:
                    if is_ours and not is_warm(group):
                        (FIRST | LATER)[group](searcher, candidate)
                        _mark(group).touch()


def _num_cores() -> int:
    return len(os.sched_getaffinity(0))


def _mark(group: str) -> Path:
    return cache_folder() / f"{group}-{module_folder('solver_models.precompile').name}"


@contextmanager
def _compile_slot(*, until: Callable[[], bool]) -> Iterator[bool]:
    """Wait until fewer processes than there are cores compile on this machine: two would have to share a core.

    Not beyond `until`; whether there is a free core then.
    """
    with ExitStack() as held:
        while not (
            has_slot := any(
                held.enter_context(_locked(cache_folder() / f"seat-{number}", is_patient=False))
                for number in range(_num_cores())
            )
        ):
            if until():
                break
            time.sleep(POLL_EVERY_S)
        yield has_slot


@contextmanager
def _locked(path: Path, *, is_patient: bool) -> Iterator[bool]:
    """Hold the file's lock, so that nobody else does; whether that came about, which it always does with patience."""
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if is_patient else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True


def main(arguments: list[str]) -> None:
    """Compile the groups named; without a name all of them, with `--first` those that every plan needs."""
    known = FIRST | LATER
    is_share = arguments[:1] == [SHARE]
    groups = FIRST if arguments == ["--first"] else arguments[is_share:] or known
    if unknown := [group for group in groups if group not in known]:
        sys.exit(f"no group of kernels is called {unknown[0]!r}; choose from {', '.join(known)}, or --first")
    if is_share:
        gc.set_threshold(FEW_COLLECTIONS)
        take_share(*groups)
        return
    sys.stderr.write("compiling the search kernels (once) ...\n")
    sys.stderr.write(f"kernels ready in {compile_groups(*groups):.1f} s, kept in {cache_folder()}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
