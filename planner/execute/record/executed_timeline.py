"""What was executed, process by process, as one document and as a Chrome trace (Perfetto, chrome://tracing)."""

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from planner.actions import KIND_NAMES

_Executed = tuple[str, int, int]
"""One action of one process: its name, start and end, in nanoseconds of its host's wall clock."""


class IterationTimes(NamedTuple):
    """What lies around the actions of one iteration on one process, in nanoseconds of its host's clock."""

    taken_up_ns: tuple[int, ...]
    """Per action when the process took it up; from then until its start it waited for what it needs."""
    begin_ns: int
    """When the process began the iteration."""
    reduced_ns: int
    """When its gradients were put together: the optimizer starts."""
    end_ns: int
    """Nanoseconds when the process ended the iteration."""


class MemoryUsed(NamedTuple):
    """Bytes of one process on its device, beyond what it held before the model's first weight."""

    source: Literal["resident set", "cuda allocator"]
    """Who counted: the host's kernel (pages, so a little more than tensors), or torch's allocator."""
    peak_bytes: int
    """The most at any moment of the run."""
    rest_bytes: int
    """After the last iteration: weights, gradients, optimizer, buffers; nothing is under way."""
    reserved_bytes: int | None
    """The most that torch's allocator had asked the device for; None on a host."""


def render_rank(
    rank: int,
    device: str,
    *,
    iterations: Sequence[Sequence[_Executed]],
    times: Sequence[IterationTimes] = (),
    memory: MemoryUsed | None = None,
    of_run: Mapping[str, int] = MappingProxyType({}),
) -> str:
    """The document of one process: every action of every iteration, times of its host's wall clock, and its memory.

    `of_run`: what all ranks' documents say alike, by which readers miss one, or find one of another run.
    """
    document: dict[str, Any] = {
        "rank": rank,
        "device": device,
        **of_run,
        "iterations": [list(map(list, row)) for row in iterations],
        "times": [entry._asdict() for entry in times],
    }
    if memory is not None:
        document["memory"] = memory._asdict()
    return json.dumps(document) + "\n"


def render_executed_trace(iterations: Sequence[Mapping[str, Sequence[_Executed]]]) -> str:
    """All iterations one after the other, each from its own first action on any device; times in microseconds, hosts'
    clocks as they are.
    """
    events: list[dict[str, Any]] = []
    offset = 0
    for number, iteration in enumerate(iterations):
        origin = min((start for row in iteration.values() for _, start, _ in row), default=0) - offset
        for process, (device, row) in enumerate(iteration.items(), start=1):
            if number == 0:
                events.append({"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": device}})
            events += [_event(action, process=process, origin=origin, iteration=number) for action in row]
        offset = max((end for row in iteration.values() for _, _, end in row), default=0) - origin
    lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in events)
    return f'{{"displayTimeUnit":"ms",\n"traceEvents":[\n{lines}\n]}}\n'


def _event(action: _Executed, *, process: int, origin: int, iteration: int) -> dict[str, Any]:
    name, start, end = action
    kind = name.rstrip("0123456789")[-1:]
    return {
        "ph": "X",
        "name": name,
        "cat": KIND_NAMES.get(kind, "other"),
        "ts": (start - origin) / 1000,
        "dur": (end - start) / 1000,
        "pid": process,
        "tid": 1,
        "args": {"iteration": iteration},
    }
