"""Layers timed by several processes at once, as the processes of a run share their host.

Each process goes through the model again and again, all microbatch sizes in turns, in the threads and with the
allocator that a process started by torchrun has. Who is done goes on until the last one is: nobody is timed alone.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from typing import IO, Any

import torch

from profiles.measure.clocks import Samples
from profiles.measure.host_processes import HostProcesses
from profiles.measure.load_model import load_model
from profiles.measure.repeated_runs import RepeatedRuns

WORKER = "profiles.measure.background_load"


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyWork:
    """What every process is to do."""

    model: str
    """The name it is loaded by."""
    takes: Mapping[str, Sequence[str]]
    """The layers to go through, in order, each with the producers that it takes."""
    sizes: tuple[int, ...]
    """Samples per microbatch, timed in turns."""
    device: str
    dtype: str | None
    repetitions: int
    """Rounds that count, per size."""
    recomputes: bool
    defer: str
    """`module:function` that puts weight gradients off (`model.Defer`), by name: it has to reach other processes."""
    cut: str
    """Likewise what cuts modules (`load_model.Cut`)."""


def time_busy(work: BusyWork, *, processes: int, host: HostProcesses) -> dict[int, dict[str, Samples]]:
    """Samples of F, I, W and B (and R) per size and layer, of all processes together.

    Raises ValueError if a process does not come to its end.
    """
    about = json.dumps(asdict(work))
    with ExitStack() as stack:
        ranks = [{"LOCAL_RANK": str(k), "LOCAL_WORLD_SIZE": str(processes)} for k in range(processes)]
        started = [_start(about, environment=each, host=host, stack=stack) for each in ranks]
        for _, said in started:
            _hear(said, model=work.model)
        for orders, _ in started:
            orders.write("go\n")
            orders.flush()
        return _pool([json.loads(_hear(said, model=work.model)) for _, said in started])


def _start(
    about: str, *, environment: Mapping[str, str], host: HostProcesses, stack: ExitStack
) -> tuple[IO[str], IO[str]]:
    """A process: where it takes orders, and where it answers; the stack ends it."""
    orders, go = os.pipe()
    said, answers = os.pipe()
    own = stack.enter_context(os.fdopen(go, "w")), stack.enter_context(os.fdopen(said))
    with open(orders), open(answers, "w"):
        stack.callback(host.start(WORKER, about, environment=environment, files=(orders, answers, 2)).kill)
    return own


def _hear(said: IO[str], *, model: str) -> str:
    line = said.readline()
    if not line:
        raise ValueError(f"a process that timed {model!r} beside others failed (see above); try --alone")
    return line


def _pool(answers: Sequence[dict[str, dict[str, Any]]]) -> dict[int, dict[str, Samples]]:
    pooled: dict[int, dict[str, Samples]] = {}
    for answer in answers:
        for size, layers in answer.items():
            for name, samples in layers.items():
                add_samples(pooled.setdefault(int(size), {}).setdefault(name, {}), samples)
    return pooled


def add_samples(total: Samples, more: Mapping[str, Sequence[Sequence[int | None]]]) -> None:
    """Put the samples of every phase behind those that are there."""
    for phase, taken in more.items():
        total.setdefault(phase, []).extend((int(wall or 0), thread) for wall, thread in taken)


def main(about: str) -> None:
    """One process: ready, go, the samples as a line, and on until killed, or until nobody is there any more."""
    work = BusyWork(**json.loads(about))
    model = load_model(work.model, cut=_find(work.cut)).model
    model = replace(model, layers={name: model.layers[name] for name in work.takes}, inputs=_tuples(work.takes))
    dtype = None if work.dtype is None else getattr(torch, work.dtype)
    where: dict[str, Any] = {"device": torch.device(work.device), "dtype": dtype}
    defer = _find(work.defer)
    rounds = {size: RepeatedRuns(model, size=size, defer=defer, **where) for size in work.sizes}
    parent = os.getppid()
    _go_through(rounds, times=1, recomputes=work.recomputes)
    _say("ready")
    sys.stdin.readline()
    _say(json.dumps(_go_through(rounds, times=work.repetitions, recomputes=work.recomputes)))
    while os.getppid() == parent:
        _go_through(rounds, times=1, recomputes=False)


def _find(name: str) -> Any:
    """What is called `module:function`."""
    module, _, function = name.partition(":")
    return getattr(import_module(module), function)


def _tuples(takes: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    return {name: tuple(sources) for name, sources in takes.items()}


def _go_through(rounds: Mapping[int, RepeatedRuns], *, times: int, recomputes: bool) -> dict[int, dict[str, Samples]]:
    found: dict[int, dict[str, Samples]] = {size: {} for size in rounds}
    for _ in range(times):
        for size, each in rounds.items():
            for name, samples in each.repeat(1, recomputes=recomputes).items():
                add_samples(found[size].setdefault(name, {}), samples)
    return found


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
