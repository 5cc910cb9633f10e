"""What a run of a plan took: the documents that the executor writes per rank, read and set on one axis of time."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.actions import Action, parse_action
from planner.plan import Plan
from planner.simulation.timeline import TimedAction
from profiles.importers.own_trace import OF_RUN


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
    documents = {path: _read(path) for path in sorted(folder.glob("rank*.json"))}
    if not documents:
        raise ValueError(f"{folder}: contains no rank0.json; give the folder that the executor's --trace wrote")
    by_device: dict[str, tuple[Path, dict[str, Any]]] = {}
    for path, document in documents.items():
        if (name := str(document["device"])) in by_device:
            raise ValueError(
                f"{path}: is of device {name!r}, as {by_device[name][0]} is; keep the documents of one run"
            )
        by_device[name] = path, document
    if other := find_other_run((str(path), of_run(document)) for path, document in documents.items()):
        raise ValueError(other)
    if missing := sorted(set(plan.devices) - set(by_device)):
        raise ValueError(f"{folder}: no document is of device {missing[0]!r} of the plan; compare the plan that ran")
    counts = {len(document["iterations"]) for _, document in by_device.values()}
    if len(counts) != 1 or 0 in counts:
        raise ValueError(f"{folder}: the ranks' numbers of iterations are {sorted(counts)}; run the plan again")
    return tuple(
        make_iteration(
            number,
            plan=plan,
            rows={
                device: _entries(document, number, path=path)
                for device, (path, document) in by_device.items()
                if device in plan.schedule
            },
        )
        for number in range(counts.pop())
    )


def of_run(document: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a document states that those of all ranks of a run state alike."""
    return tuple(document.get(name) for name in OF_RUN)


def find_other_run(stated: Iterable[tuple[str, tuple[Any, ...]]]) -> str:
    """Of (document, its `of_run`) which one is of another run than the first, with the remedy; empty if none is."""
    documents = tuple(stated)
    other = next((name for name, run in documents if run != documents[0][1]), "")
    return f"{other}: is of another run than {documents[0][0]}; give the documents of one run" if other else ""


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if not {"device", "iterations"} <= set(document):
            raise ValueError("no device or no iterations")
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: is not what the executor's --trace writes ({error}); run the plan again") from None
    if len(document.get("times", ())) != len(document["iterations"]):
        raise ValueError(f"{path}: does not state when actions began; run the plan again with this version")
    return dict(document)


def _entries(document: Mapping[str, Any], number: int, *, path: Path) -> tuple[Sequence[Any], Mapping[str, Any]]:
    spans, times = document["iterations"][number], document["times"][number]
    try:
        if len(spans) != len(times["taken_up_ns"]) or not all(len(span) == 3 for span in spans):
            raise ValueError("actions and times do not match")
        numbers = [*times["taken_up_ns"], times["begin_ns"], times["reduced_ns"], times["end_ns"]]
        if not all(isinstance(value, int) for value in (*numbers, *(time for span in spans for time in span[1:]))):
            raise ValueError("a time is not an integer")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: iteration {number} cannot be read ({error}); run the plan again") from None
    return spans, times


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
            TimedAction(wanted, start, end) if _is_run_as(wanted, ran) else TimedAction(ran, start, end)
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


def _is_run_as(wanted: Action, ran: Action) -> bool:
    return wanted.kind == "I" and ran == wanted._replace(kind="B")


def typical(iterations: Sequence[ExecutedIteration]) -> ExecutedIteration:
    """The one of median duration (the faster of the two middle ones if their number is even)."""
    return sorted(iterations, key=lambda iteration: (iteration.duration_ns, iteration.number))[
        (len(iterations) - 1) // 2
    ]
