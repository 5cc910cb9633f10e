"""Layers timed by several processes at once, as the processes of a run share their host.

Each process goes through the model again and again, all microbatch sizes in turns, in the threads and with the
allocator that a process started by torchrun has. Who is done continues until the last one is: nobody is timed alone.
Sizes share one copy of the weights, as those of a run do.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Self

import torch

from profiles.measure.clocks import Samples
from profiles.measure.host_processes import HostProcesses
from profiles.measure.load_model import load_model
from profiles.measure.repeated_runs import Modules, RepeatedRuns

WORKER = "profiles.measure.background_load"
COMPARES = "PIPEPLAN_COMPARES"
"""`0`: another process holds the layers against the whole model (`planner.execute.model.cut.whole_model`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyWork:
    """What every process is to do."""

    model: str
    """The name it is loaded by."""
    takes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The layers to go through, in order, each with the producers that it takes."""
    device: str
    dtype: str | None
    recomputes: bool
    defer: str
    """`module:function` that puts weight gradients off (`model.Defer`), by name: it has to reach other processes."""
    cut: str
    """Likewise what cuts modules (`load_model.Cut`)."""


class BusyProcesses:
    """Processes that time a model at once, as often as they are asked; within a `with` block, which ends them."""

    def __init__(self, work: BusyWork, *, count: int, host: HostProcesses) -> None:
        self._work, self._count, self._host = work, count, host
        self._stack = ExitStack()
        self._started: list[Connection] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def time(self, takes: Mapping[str, Sequence[str]], rounds: Mapping[int, int]) -> dict[int, dict[str, Samples]]:
        """Samples of F, I, W and B (and R) per size and layer, of all processes together; `rounds`: per size how many.

        `takes`: the same in every call. Raises ValueError if a process does not come to its end.
        """
        work = replace(self._work, takes=takes)
        if not self._started:
            ranks = [{"LOCAL_RANK": str(k), "LOCAL_WORLD_SIZE": str(self._count)} for k in range(self._count)]
            about = json.dumps(asdict(work))
            self._started = [_start(about, environment=each, host=self._host, stack=self._stack) for each in ranks]
        answers: list[dict[int, dict[str, Samples]]] = []
        for order in (dict(rounds), "go"):
            for process in self._started:
                with suppress(ConnectionError):  # who broke off is heard of below
                    process.send(order)
            answers = [_hear(process, model=work.model) for process in self._started]
        return _pool(answers)


def _start(about: str, *, environment: Mapping[str, str], host: HostProcesses, stack: ExitStack) -> Connection:
    """A process, which takes orders where its standard input is; the stack ends it."""
    own, theirs = Pipe()
    stack.enter_context(own)
    with theirs:
        process = host.start(WORKER, about, environment=environment, files=(theirs.fileno(), 2, 2))
    stack.callback(process.kill)
    return own


def _hear(process: Connection, *, model: str) -> Any:
    try:
        return process.recv()
    except (ConnectionError, EOFError):
        raise ValueError(f"a process that timed {model!r} beside others failed (see above); try --alone") from None


def _pool(answers: Sequence[dict[int, dict[str, Samples]]]) -> dict[int, dict[str, Samples]]:
    pooled: dict[int, dict[str, Samples]] = {}
    for answer in answers:
        for size, layers in answer.items():
            for name, samples in layers.items():
                add_samples(pooled.setdefault(size, {}).setdefault(name, {}), samples)
    return pooled


def add_samples(total: Samples, more: Samples) -> None:
    """Put the samples of every phase behind those that are there."""
    for phase, taken in more.items():
        total.setdefault(phase, []).extend(taken)


def main(about: str) -> None:
    """One process: per order ready, go, the samples; on until killed, or until nobody is there any more."""
    work = BusyWork(**json.loads(about))
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"):  # has its cores by now; accelerate would look for a launch
        os.environ.pop(name, None)
    os.environ[COMPARES] = "0"
    model = load_model(work.model, cut=_find(work.cut)).model
    takes = {name: tuple(sources) for name, sources in work.takes.items()}
    model = replace(model, layers={name: model.layers[name] for name in takes}, inputs=takes)
    dtype = None if work.dtype is None else getattr(torch, work.dtype)
    where: dict[str, Any] = {"device": torch.device(work.device), "dtype": dtype}
    defer = _find(work.defer)
    modules: Modules = {}
    runs: dict[int, RepeatedRuns] = {}
    with Connection(sys.stdin.fileno()) as orders, suppress(ConnectionError, EOFError):
        while True:
            rounds = _next_order(orders, runs)
            for size in [size for size in rounds if size not in runs]:
                runs[size] = RepeatedRuns(model, size=size, defer=defer, modules=modules, **where)
                _go_through(runs, {size: 1}, recomputes=False)  # to warm up
            orders.send("ready")
            orders.recv()
            orders.send(_go_through(runs, rounds, recomputes=work.recomputes))


def _next_order(orders: Connection, runs: Mapping[int, RepeatedRuns]) -> dict[int, int]:
    """The next rounds; until they come, the first size is run on and on, as a neighbour's load.

    Raises EOFError when nobody is there any more.
    """
    while runs and not orders.poll():
        _go_through(runs, {next(iter(runs)): 1}, recomputes=False)
    rounds: dict[int, int] = orders.recv()
    return rounds


def _find(name: str) -> Any:
    """What is called `module:function`."""
    module, _, function = name.partition(":")
    return getattr(import_module(module), function)


def _go_through(
    runs: Mapping[int, RepeatedRuns], rounds: Mapping[int, int], *, recomputes: bool
) -> dict[int, dict[str, Samples]]:
    """So many rounds of each size, all sizes in turns."""
    found: dict[int, dict[str, Samples]] = {size: {} for size in rounds}
    for number in range(max(rounds.values(), default=0)):
        for size in (each for each, count in rounds.items() if number < count):
            for name, samples in runs[size].repeat(1, recomputes=recomputes).items():
                add_samples(found[size].setdefault(name, {}), samples)
    return found


if __name__ == "__main__":
    main(sys.argv[1])
