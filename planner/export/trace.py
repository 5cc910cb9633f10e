"""A played plan as Chrome trace events, for Perfetto and chrome://tracing.

One process per device (thread `compute`, counter `memory`), one for the links (a thread per link and direction), one
for the synchronisations; arrows lead from the action that made a tensor over its transfer to the one that needs it.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from planner.actions import KIND_NAMES, Action, Kind
from planner.layout.costs import CostModel
from planner.layout.split_placement import BEFORE_FIRST
from planner.plan import Plan
from planner.problem import Problem
from planner.simulation.simulate import TimedAction, TimedTransfer, Timeline

Event = dict[str, Any]
_Key = tuple[str, Action]

_COMPUTE = 1
"""Thread of a device on which its actions are."""


def render_trace(problem: Problem, plan: Plan, *, timeline: Timeline) -> str:
    """The trace as JSON, one event per line; times in microseconds, exact to the nanosecond."""
    events = _Tracer(problem, plan, timeline=timeline).events()
    lines = ",\n".join(json.dumps(event, ensure_ascii=False, separators=(",", ":")) for event in events)
    about = {
        "profile": problem.profile.name,
        "cluster": problem.cluster.name,
        "num_microbatches": problem.num_microbatches,
        "makespan_ns": timeline.makespan_ns,
    }
    return f'{{"displayTimeUnit":"ms",\n"otherData":{json.dumps(about)},\n"traceEvents":[\n{lines}\n]}}\n'


def microseconds(nanoseconds: int) -> float:
    """The unit of the format."""
    return nanoseconds / 1000


class _Tracer:
    """Numbers the processes and writes their events."""

    def __init__(self, problem: Problem, plan: Plan, *, timeline: Timeline) -> None:
        self.problem, self.plan, self.timeline = problem, plan, timeline
        self.process = {device: number for number, device in enumerate(timeline.actions, start=1)}
        self.links = len(self.process) + 1
        self.synchronisation = len(self.process) + 2
        self.steps_ns = CostModel(problem).steps_ns(plan.stages)

    def events(self) -> Iterator[Event]:
        """Names first, then everything that happens, process by process."""
        yield from self._device_names()
        yield from self._link_names()
        yield from self._synchronisation_names()
        for device, order in self.timeline.actions.items():
            yield from (self._action(device, timed) for timed in order)
            yield from self._optimizer(device)
            yield from self._memory(device)
        for transfer in self.timeline.transfers:
            yield from self._transfer(transfer)
        yield from self._arrows()
        yield from self._synchronisations()
        yield from self._offloads()

    def _device_names(self) -> Iterator[Event]:
        for device, process in self.process.items():
            about = self.problem.cluster.by_name[device]
            yield from _process_names(process, f"{device} ({about.type})")
            yield _metadata("thread_name", process, thread=_COMPUTE, name="compute")

    def _link_names(self) -> Iterator[Event]:
        used = sorted({link for transfer in self.timeline.transfers for link in transfer.links})
        if used:
            yield from _process_names(self.links, "links")
        for resource in used:
            yield _metadata("thread_name", self.links, thread=resource + 1, name=self._link_name(resource))
            yield _metadata("thread_sort_index", self.links, thread=resource + 1, sort_index=resource)

    def _link_name(self, resource: int) -> str:
        link = self.problem.cluster.links[resource // 2]
        if not link.duplex:
            return f"{link.a} - {link.b}"
        return f"{link.a} -> {link.b}" if resource % 2 == 0 else f"{link.b} -> {link.a}"

    def _synchronisation_names(self) -> Iterator[Event]:
        stages = sorted({stage for _, stage, *_ in self._collectives()})
        if stages:
            yield from _process_names(self.synchronisation, "synchronisation")
        for stage in stages:
            yield _metadata("thread_name", self.synchronisation, thread=stage + 1, name=f"stage {stage}")

    def _action(self, device: str, timed: TimedAction) -> Event:
        kind, stage, microbatch = timed.action
        layers = self.plan.stages[stage].layers
        return {
            "ph": "X",
            "name": str(timed.action),
            "cat": KIND_NAMES[kind],
            **_span(timed.start_ns, timed.end_ns),
            "pid": self.process[device],
            "tid": _COMPUTE,
            "args": {"stage": stage, "microbatch": microbatch, "layers": f"{layers[0]} to {layers[-1]}"},
        }

    def _optimizer(self, device: str) -> Iterator[Event]:
        if step := self.steps_ns.get(device, 0):
            start = self.timeline.makespan_ns - max(self.steps_ns.values())
            where = {"pid": self.process[device], "tid": _COMPUTE}
            yield {"ph": "X", "name": "optimizer", "cat": "optimizer", **_span(start, start + step), **where}

    def _memory(self, device: str) -> Iterator[Event]:
        points = {point.time_ns: point.num_bytes for point in self.timeline.memory[device]}
        for time, num_bytes in points.items():
            where = {"ts": microseconds(time), "pid": self.process[device]}
            yield {"ph": "C", "name": "memory", **where, "args": {"bytes": num_bytes}}

    def _transfer(self, transfer: TimedTransfer) -> Iterator[Event]:
        """It is on every link of its route for all of its time."""
        what = _content(transfer)
        for link in transfer.links:
            yield {
                "ph": "X",
                "name": f"{what} {transfer.from_stage} to {transfer.to_stage}, {transfer.microbatch}",
                "cat": f"transfer {what}",
                **_span(transfer.start_ns, transfer.end_ns),
                "pid": self.links,
                "tid": link + 1,
                "args": {
                    "from": transfer.sender,
                    "to": transfer.receiver,
                    "microbatch": transfer.microbatch,
                    "bytes": transfer.num_bytes,
                    "queued_us": microseconds(transfer.start_ns - transfer.ready_ns),
                },
            }

    def _arrows(self) -> Iterator[Event]:
        spans = {
            (device, timed.action): (timed.start_ns, timed.end_ns)
            for device, order in self.timeline.actions.items()
            for timed in order
        }
        for number, transfer in enumerate(self.timeline.transfers):
            maker = _first(spans, transfer.sender, stage=transfer.from_stage, transfer=transfer)
            user = _first(spans, transfer.receiver, stage=transfer.to_stage, transfer=transfer)
            if maker is None or user is None:
                continue
            arrow = {"cat": "flow", "name": transfer.direction, "id": number}
            sender, receiver = (
                {"pid": self.process[device], "tid": _COMPUTE} for device in (transfer.sender, transfer.receiver)
            )
            yield {"ph": "s", **arrow, "ts": _inside(*spans[maker]), **sender}
            on_link = {"pid": self.links, "tid": transfer.links[0] + 1}
            yield {"ph": "t", **arrow, "ts": microseconds(transfer.start_ns), **on_link}
            yield {"ph": "f", "bp": "e", **arrow, "ts": microseconds(spans[user][0]), **receiver}

    def _offloads(self) -> Iterator[Event]:
        """Stashes that travel, a row of the device for each direction."""
        rows = [("to the host", _COMPUTE + 1), ("from the host", _COMPUTE + 2)]
        for device, is_back in sorted({(timed.device, timed.is_back) for timed in self.timeline.offloads}):
            name, thread = rows[is_back]
            yield _metadata("thread_name", self.process[device], thread=thread, name=name)
        for timed in self.timeline.offloads:
            yield {
                "ph": "X",
                "name": f"stash {timed.stage}, {timed.microbatch}",
                "cat": "offload",
                **_span(timed.start_ns, timed.end_ns),
                "pid": self.process[timed.device],
                "tid": rows[timed.is_back][1],
                "args": {"bytes": timed.num_bytes},
            }

    def _synchronisations(self) -> Iterator[Event]:
        for name, stage, start, end in self._collectives():
            yield {
                "ph": "X",
                "name": f"{name} stage {stage}",
                "cat": "synchronisation",
                **_span(start, end),
                "pid": self.synchronisation,
                "tid": stage + 1,
                "args": {"replicas": len(self.plan.stages[stage].replicas)},
            }

    def _collectives(self) -> Iterator[tuple[str, int, int, int]]:
        """What the replicas of a stage do together, beside actions: what, stage, start and end."""
        for timed in self.timeline.synchronisations:
            yield "synchronise", *timed
        for gather in self.timeline.gathers:
            yield "gather", gather.stage, gather.start_ns, gather.end_ns


def _content(transfer: TimedTransfer) -> str:
    """What a transfer carries; with split placement a stage also sends to itself."""
    if transfer.from_stage != transfer.to_stage:
        return "activation" if transfer.direction == "forward" else "gradient"
    if transfer.direction == "forward":
        return "weights" if transfer.microbatch == BEFORE_FIRST else "stash"
    return "weight stash or finished gradient"


def _first(spans: Mapping[_Key, Any], device: str, *, stage: int, transfer: TimedTransfer) -> _Key | None:
    """The action on `device` that made the tensor of a transfer, or that needs it."""
    kinds: tuple[Kind, ...] = ("F",) if transfer.direction == "forward" else ("I", "B")
    keys = ((device, Action(kind, stage, transfer.microbatch)) for kind in kinds)
    return next((key for key in keys if key in spans), None)


def _span(start_ns: int, end_ns: int) -> Event:
    return {"ts": microseconds(start_ns), "dur": microseconds(end_ns - start_ns)}


def _inside(start_ns: int, end_ns: int) -> float:
    """An arrow belongs to the slice that covers its time; a slice does not cover its own end."""
    return microseconds(max(start_ns, end_ns - 1))


def _process_names(process: int, name: str) -> Iterator[Event]:
    yield _metadata("process_name", process, name=name)
    yield _metadata("process_sort_index", process, sort_index=process)


def _metadata(what: str, process: int, *, thread: int = 0, **args: str | int) -> Event:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": args}
