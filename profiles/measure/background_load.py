"""Layers timed by several fresh processes at once, as the processes of a run share their host.

Each process goes through the model again and again, all microbatch sizes in turns, in the threads and with the
allocator that a process started by torchrun has. Who is done goes on until the last one is: nobody is timed alone.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from typing import Any

import torch

from profiles.measure.clocks import Samples
from profiles.measure.load_model import load_model
from profiles.measure.repeated_runs import RepeatedRuns

TORCHRUN_THREADS = "1"
"""What torchrun sets OMP_NUM_THREADS to where it is not set."""


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


def time_busy(work: BusyWork, *, processes: int) -> dict[int, dict[str, Samples]]:
    """Samples of F, I, W and B (and R) per size and layer, of all processes together.

    Raises ValueError if a process does not come to its end.
    """
    environment = os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", TORCHRUN_THREADS)}
    command = [sys.executable, "-m", "profiles.measure.background_load", json.dumps(asdict(work))]
    pipe = subprocess.PIPE
    with ExitStack() as stack:
        started = [
            stack.enter_context(subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True))
            for _ in range(processes)
        ]
        for process in started:
            stack.callback(process.kill)
        for process in started:
            _hear(process, model=work.model)
        for process in started:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        return _pool([json.loads(_hear(process, model=work.model)) for process in started])


def _hear(process: "subprocess.Popen[str]", *, model: str) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise ValueError(f"a process that timed {model!r} beside others broke off and said why above; try --alone")
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
