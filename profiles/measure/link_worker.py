"""One process of a link measurement: `torchrun --nproc-per-node N -m profiles.measure.link_worker FILE`.

Started once per device on every host by torchrun, or on one host by `pipeplan profile`. Rank 0 writes the tables.
"""

import argparse
import itertools
import os
import platform
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from profiles.documents.whole_file import write_whole
from profiles.measure.devices import free_bytes
from profiles.measure.links import (
    CollectiveTime,
    Contention,
    LinkTables,
    PairTable,
    Place,
    choose_counts,
    choose_pairs,
    dump_links,
)

SIZES = (1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28)
"""Bytes of the messages: 1 KiB to 256 MiB; `LARGEST` says where to stop."""

LARGEST = {"cpu": 1 << 24, "cuda": 1 << 28}
"""Between hosts' processors 16 MiB is far on the plateau; NVLink and InfiniBand reach theirs at 64 MiB or more."""

REDUCED, SIDE, BESIDE = 1 << 22, 256, 3
"""Bytes of an all-reduce beside which products of matrices with so many rows are computed, for so many times as long
as it takes."""

_MAX_CONTENTIONS = 120
"""Most pairs of transfers that are tried at once; more are sampled evenly."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and let rank 0 write."""
    options = _parser().parse_args(arguments)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    on_cuda = options.device == "cuda"
    if on_cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank)))
    else:
        torch.set_num_threads(1)
    distributed.init_process_group(
        "cpu:gloo,cuda:nccl" if on_cuda else "gloo",
        init_method=options.rendezvous,
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=options.timeout),
    )
    try:
        tables = LinkSweep(options).run()
        if rank == 0:
            write_whole(options.output, dump_links(tables))
    finally:
        distributed.destroy_process_group()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="profiles.measure.link_worker", description=__doc__)
    parser.add_argument("output", type=Path, help="where rank 0 writes the tables")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--device-type", default="", help="what layer costs call the devices")
    parser.add_argument("--memory", type=int, default=0, help="bytes of each device; 0: an equal part of what is free")
    parser.add_argument("--cores", type=int, default=1, help="cores of each device")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument(
        "--largest", type=int, default=0, help="bytes of the largest message; 0: 16 MiB, or 256 MiB on accelerators"
    )
    parser.add_argument("--rendezvous", default="env://")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds")
    parser.add_argument("--progress", type=Path, help="rank 0 appends a line per pair here")
    return parser


class LinkSweep:
    """All processes call the same methods in the same order; those that are not meant wait."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.rank, self.world = distributed.get_rank(), distributed.get_world_size()
        self.device = torch.device(options.device)
        largest = options.largest or LARGEST[options.device]
        self.sizes = [size for size in SIZES if size <= largest] or [largest]
        self.buffers: list[torch.Tensor] = []

    def run(self) -> LinkTables:
        """Everything: pairs alone, both directions, several at once, all-reduce."""
        places = self._gather(self._place())
        pairs = [self._pair(a, b) for a, b in choose_pairs([place.host for place in places])]
        alone = {(pair.a, pair.b): pair.one_way[-1][1] for pair in pairs}
        return LinkTables(
            places=tuple(places),
            pairs=tuple(pairs),
            contention=tuple(self._contention(*both, alone=alone) for both in self._plan(list(alone))),
            **self._collectives(),
            collective_occupancy=self._occupancy(),
            sharding_occupancy=1000 if self.world > 1 and self.device.type == "cpu" else 0,
            provenance=f"{'NCCL' if self.device.type == 'cuda' else 'gloo'}, torch {torch.__version__}, Python "
            f"{platform.python_version()}, the least of {self.options.repetitions} repetitions each",
        )

    def _place(self) -> Place:
        host = os.environ.get("PLAN_NODE") or os.environ.get("SLURMD_NODENAME") or os.environ.get("NODE_NAME")
        host = host or socket.gethostname()
        slot = int(os.environ.get("LOCAL_RANK", self.rank))
        cuda = self.device.type == "cuda"
        memory = self.options.memory or (
            torch.cuda.mem_get_info()[1] if cuda else (free_bytes(self.device) or 2**33)
            // int(os.environ.get("LOCAL_WORLD_SIZE", self.world))
        )  # fmt: skip
        return Place(
            name=f"{host}/{'gpu' if cuda else 'cpu'}{slot}",
            host=host,
            type=self.options.device_type or (torch.cuda.get_device_name() if cuda else "cpu"),
            memory_bytes=memory,
            cores=self.options.cores,
            reserved_bytes=None if self.options.memory or not cuda else memory - torch.cuda.mem_get_info()[0],
        )

    def _gather(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.world
        distributed.all_gather_object(values, value)
        return values

    def _shared(self, value: Any, *, source: int) -> Any:
        box = [value]
        distributed.broadcast_object_list(box, src=source)
        return box[0]

    def _pair(self, a: int, b: int) -> PairTable:
        """Ping-pong at every size, then both directions at once."""
        samples: list[list[int]] = []
        for size in self.sizes:
            distributed.barrier()
            samples.append(self._repeat(partial(self._ping_pong, a, b), size, halves=True, who=(a, b)))
        distributed.barrier()
        both = self._repeat(partial(self._exchange, a, b), self.sizes[-1], who=(a, b))
        samples, both = self._shared((samples, both), source=a)
        if self.rank == 0 and self.options.progress is not None:
            with open(self.options.progress, "a", encoding="utf-8") as file:
                file.write(f"{a} {b}\n")
        least = [max(1, min(taken)) for taken in samples]
        return PairTable(
            a=a,
            b=b,
            one_way=tuple(zip(self.sizes, least, strict=True)),
            both_ways_ns=min(both),
            spread=max(_spread(taken) for taken in samples),
        )

    def _repeat(self, run: Callable[[], None], size: int, *, who: Sequence[int], halves: bool = False) -> list[int]:
        """Nanoseconds of each repetition after two that do not count; empty for those who are not meant."""
        if self.rank not in who:
            return []
        times = []
        self.buffers = [self._tensor(size) for _ in range(2)]  # before the clock: an allocation is no transfer
        for number in range(self.options.repetitions + 2):
            self._settle()
            started = time.perf_counter_ns()
            run()
            self._settle()
            if number > 1:
                times.append((time.perf_counter_ns() - started) // (2 if halves else 1))
        return times

    def _settle(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def _tensor(self, count: int) -> torch.Tensor:
        return torch.zeros(count, dtype=torch.uint8, device=self.device)

    def _ping_pong(self, a: int, b: int) -> None:
        tensor = self.buffers[0]
        if self.rank == a:
            distributed.send(tensor, b)
            distributed.recv(tensor, b)
        else:
            distributed.recv(tensor, a)
            distributed.send(tensor, a)

    def _exchange(self, a: int, b: int) -> None:
        other = b if self.rank == a else a
        works = distributed.batch_isend_irecv(
            [
                distributed.P2POp(distributed.isend, self.buffers[0], other),
                distributed.P2POp(distributed.irecv, self.buffers[1], other),
            ]
        )
        for work in works:
            work.wait()

    def _plan(self, pairs: list[tuple[int, int]]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        """Transfers of disjoint pairs, and of pairs with a common sender, of those that were timed alone."""
        both = [(p, q) for p, q in itertools.combinations(pairs, 2) if not set(p) & set(q)]
        both += [(p, q) for p, q in itertools.combinations(pairs, 2) if p[0] == q[0]]
        step = -(-len(both) // _MAX_CONTENTIONS) or 1
        return both[::step]

    def _contention(
        self, first: tuple[int, int], second: tuple[int, int], *, alone: dict[tuple[int, int], int]
    ) -> Contention:
        distributed.barrier()
        size = self.sizes[-1]
        if first[0] == second[0]:
            times = self._repeat(partial(self._fan, first, second), size, who=(*first, *second))
            taken = self._gather(min(times, default=0))
            slowdown = taken[first[0]] / max(alone[first], alone[second])
        else:
            mine = first if self.rank in first else second
            times = self._repeat(partial(self._ping_pong, *mine), size, halves=True, who=(*first, *second))
            taken = self._gather(min(times, default=0))
            slowdown = max(taken[first[0]] / alone[first], taken[second[0]] / alone[second])
        return Contention(first=first, second=second, slowdown=round(slowdown, 3))

    def _fan(self, first: tuple[int, int], second: tuple[int, int]) -> None:
        """One sends to two; each answers with a byte, so that the sender knows when both have it."""
        sender = first[0]
        if self.rank == sender:
            works = [distributed.isend(self.buffers[0], to) for to in (first[1], second[1])]
            answers = [
                distributed.irecv(self.buffers[1][at : at + 1], to) for at, to in enumerate((first[1], second[1]))
            ]
            for work in (*works, *answers):
                if work is not None:
                    work.wait()
        else:
            distributed.recv(self.buffers[0], sender)
            distributed.send(self.buffers[1][:1], sender)

    def _all_reduce(self, group: Any) -> None:
        distributed.all_reduce(self.buffers[0].view(torch.float32), group=group)

    def _all_gather(self, group: Any) -> None:
        """As `fully_shard` does it: weights are copied out of what was gathered."""
        whole, weights = (buffer.view(torch.float32) for buffer in self.buffers)
        distributed.all_gather_into_tensor(whole, weights[: whole.numel() // group.size()], group=group)
        weights.copy_(whole)

    def _reduce_scatter(self, group: Any) -> None:
        """As `fully_shard` does it: gradients are copied to where they lie as they are sent."""
        whole, gradients = (buffer.view(torch.float32) for buffer in self.buffers)
        whole.copy_(gradients)
        distributed.reduce_scatter_tensor(gradients[: whole.numel() // group.size()], whole, group=group)

    def _collectives(self) -> dict[str, tuple[CollectiveTime, ...]]:
        """By name, and by number of places and bytes."""
        runs = {"all_reduce": self._all_reduce, "all_gather": self._all_gather, "reduce_scatter": self._reduce_scatter}
        found: dict[str, list[CollectiveTime]] = {name: [] for name in runs}
        for places in choose_counts(self.world):
            group = distributed.new_group(list(range(places)))
            for size, (name, run) in itertools.product(self.sizes, runs.items()):
                whole = -(-size // (4 * places)) * 4 * places
                distributed.barrier()
                times = self._repeat(partial(run, group), whole, who=range(places))
                slowest = max(self._gather(min(times, default=0)))
                found[name].append(CollectiveTime(places=places, num_bytes=size, duration_ns=round(slowest)))
        return {name: tuple(times) for name, times in found.items()}

    def _occupancy(self) -> int:
        """How much longer computing takes beside an all-reduce over all, in thousandths of that; 0 on accelerators."""
        if self.world == 1 or self.device.type != "cpu":
            return 0
        self.buffers = [self._tensor(min(REDUCED, max(self.sizes)))]
        matrix = torch.ones(SIDE, SIDE)
        message = min(self._timed(self._start_reducing, count=0, matrix=matrix) for _ in range(3))
        once = min(self._timed(None, count=1, matrix=matrix) for _ in range(3))
        count = max(self._gather(-(-BESIDE * message // once)))
        works: list[tuple[Callable[[], Any] | None, int]] = [
            (self._start_reducing, 0), (None, count), (self._start_reducing, count),
        ]  # fmt: skip
        rows = [
            [self._timed(start, count=more, matrix=matrix) for start, more in works]
            for _ in range(self.options.repetitions)
        ]
        message, alone, both = (min(times) for times in zip(*rows, strict=True))  # others here only ever add
        share: float = max(self._gather((both - alone) / message))
        return round(1000 * min(1.0, max(0.0, share)))

    def _start_reducing(self) -> Any:
        return distributed.all_reduce(self.buffers[0].view(torch.float32), async_op=True)

    def _timed(self, start: Callable[[], Any] | None, *, count: int, matrix: torch.Tensor) -> int:
        """Nanoseconds of so many products, beside what is started before them."""
        distributed.barrier()
        begin = time.perf_counter_ns()
        work = None if start is None else start()
        for _ in range(count):
            torch.mm(matrix, matrix)
        if work is not None:
            work.wait()
        return time.perf_counter_ns() - begin


def _spread(times: Sequence[int]) -> float:
    if len(times) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(times, n=4, method="inclusive")
    return round((high - low) / middle, 4) if middle else 0.0


if __name__ == "__main__":
    main()
