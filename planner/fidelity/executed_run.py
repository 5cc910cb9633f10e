"""What a run of a plan took: the documents that the executor writes per rank, read and set on one axis of time."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.actions import Action, Kind, parse_action
from planner.plan import Plan
from planner.simulation.timeline import TimedAction, TimedTransfer
from profiles.importers.own_trace import OwnTrace, read_own_trace


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutedRow:
    """One device in one iteration, in nanoseconds since the iteration began."""

    actions: tuple[TimedAction, ...]
    """In the plan's order."""
    taken_up_ns: tuple[int, ...]
    """Per action when the process took it up; from then until its start it waited for what it needs."""
    reduced_ns: int
    """When its gradients were put together and the optimizer started."""
    end_ns: int
    """When it was done with the iteration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutedIteration:
    """One iteration on all devices. It begins when the first device that waits for nobody begins."""

    number: int
    """Its place in the run, from 0."""
    rows: Mapping[str, ExecutedRow]
    """Per device of the plan."""

    @property
    def duration_ns(self) -> int:
        """Until the last device is done."""
        return max(row.end_ns for row in self.rows.values())


def read_run(folder: Path, plan: Plan) -> tuple[ExecutedIteration, ...]:
    """All iterations in the `rankN.json` documents of `folder`.

    Raises ValueError that names the document if one is missing, broken, or that of another plan.
    """
    traces = {path: _read(path) for path in sorted(folder.glob("rank*.json"))}
    if not traces:
        raise ValueError(f"{folder}: contains no rank0.json; give the folder that the executor's --trace wrote")
    by_device: dict[str, tuple[Path, OwnTrace]] = {}
    for path, trace in traces.items():
        if trace.device in by_device:
            raise ValueError(
                f"{path}: is of device {trace.device!r}, as {by_device[trace.device][0]} is; keep the documents of one "
                "run"
            )
        by_device[trace.device] = path, trace
    if other := find_other_run((str(path), trace) for path, trace in traces.items()):
        raise ValueError(other)
    if missing := sorted(set(plan.devices) - set(by_device)):
        raise ValueError(f"{folder}: no document is of device {missing[0]!r} of the plan; compare the plan that ran")
    counts = {len(trace.rows) for _, trace in by_device.values()}
    if len(counts) != 1:
        raise ValueError(f"{folder}: the ranks' numbers of iterations are {sorted(counts)}; run the plan again")
    return tuple(
        make_iteration(
            number,
            plan=plan,
            rows={
                device: entries_of(trace, number, path=path)
                for device, (path, trace) in by_device.items()
                if device in plan.schedule
            },
        )
        for number in range(counts.pop())
    )


def find_other_run(traces: Iterable[tuple[str, OwnTrace]]) -> str:
    """Of (document, what it says) which one is of another run than the first, with the remedy; empty if none is."""
    told = tuple(traces)
    other = next((name for name, trace in told if trace.of_run != told[0][1].of_run), "")
    return f"{other}: is of another run than {told[0][0]}; give the documents of one run" if other else ""


def _read(path: Path) -> OwnTrace:
    trace = read_own_trace(path)
    if trace is None or not trace.device:
        raise ValueError(f"{path}: is not what the executor's --trace writes; run the plan again")
    if len(trace.times) != len(trace.rows):
        raise ValueError(f"{path}: does not state when actions began; run the plan again with this version")
    return trace


def entries_of(trace: OwnTrace, number: int, *, path: Path) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """What `make_iteration` takes of a rank; ValueError where it does not tell when each action was taken up."""
    actions, taken_up = trace.rows.as_written(number), trace.taken_up[number]
    if len(taken_up) != len(actions):
        raise ValueError(
            f"{path}: iteration {number} states {len(taken_up)} times of {len(actions)} actions; run the plan again"
        )
    spans = [(f"{stage}{kind}{microbatch}", start, end) for start, end, kind, stage, microbatch in actions]
    return spans, {"taken_up_ns": taken_up} | trace.times[number]._asdict()


def make_iteration(
    number: int, *, plan: Plan, rows: Mapping[str, tuple[Sequence[Any], Mapping[str, Any]]]
) -> ExecutedIteration:
    """`rows`: per device its (name, start, end) and the fields of the executor's `IterationTimes`, host clock."""
    actions = {device: _read_actions(spans, plan=plan, device=device) for device, (spans, _) in rows.items()}
    first = [device for device, order in actions.items() if order and order[0].action[:2] == ("F", 0)]
    if not first:
        raise ValueError(f"iteration {number}: no device begins with the forward of stage 0; compare the plan that ran")
    origin = min(int(rows[device][1]["begin_ns"]) for device in first)
    return ExecutedIteration(
        number=number,
        rows={
            device: ExecutedRow(
                actions=tuple(TimedAction(action, start - origin, end - origin) for action, start, end in order),
                taken_up_ns=tuple(time - origin for time in rows[device][1]["taken_up_ns"]),
                reduced_ns=rows[device][1]["reduced_ns"] - origin,
                end_ns=rows[device][1]["end_ns"] - origin,
            )
            for device, order in actions.items()
        },
    )


def _read_actions(spans: Sequence[Any], *, plan: Plan, device: str) -> list[TimedAction]:
    """The plan's order with the times of the run; a stage without W runs torch's B where the plan says I."""
    planned = plan.schedule[device]
    timed = [TimedAction(parse_action(name), start, end) for name, start, end in spans]
    if len(timed) == len(planned):
        timed = [
            TimedAction(wanted if wanted.kind == "I" and ran == wanted._replace(kind="B") else ran, start, end)
            for (ran, start, end), wanted in zip(timed, planned, strict=True)
        ]
    for place, wanted in enumerate(planned):
        if place >= len(timed) or timed[place].action != wanted:
            ran_instead = str(timed[place].action) if place < len(timed) else "nothing"
            raise ValueError(
                f"device {device!r} ran {ran_instead} where the plan says {wanted} (action {place}); compare the plan "
                "that ran (with the deferred split, and without rebalancing in every iteration)"
            )
    if len(timed) > len(planned):
        raise ValueError(
            f"device {device!r} ran {len(timed)} actions, the plan has {len(planned)} for it; compare the plan that ran"
        )
    return timed


Ran = tuple[str, Action]
"""A device, and what it ran."""


def ends_of(sent: TimedTransfer, ran: Container[Ran]) -> tuple[Ran, Ran]:
    """Who made what is sent and who uses it, in an action of whichever kind the plan has there."""
    kinds: tuple[Kind, ...] = ("F",) if sent.direction == "forward" else ("I", "B")
    made, used = (
        next(each for kind in kinds if (each := (device, Action(kind, stage, sent.microbatch))) in ran)
        for device, stage in ((sent.sender, sent.from_stage), (sent.receiver, sent.to_stage))
    )
    return made, used


def typical(iterations: Sequence[ExecutedIteration]) -> ExecutedIteration:
    """The one of median duration (the faster of the two middle ones if their number is even)."""
    return sorted(iterations, key=lambda iteration: (iteration.duration_ns, iteration.number))[
        (len(iterations) - 1) // 2
    ]
