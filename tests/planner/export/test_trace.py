"""The Chrome trace of a played plan."""

import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given

from planner.actions import KIND_NAMES
from planner.export.trace import microseconds, render_trace
from planner.plan import Plan
from planner.problem import Problem
from planner.simulation.simulate import Timeline, simulate
from tests.planner.export.chains import make_chain, make_plan
from tests.strategies import cases

Event = dict[str, Any]

TWO_STAGES = """
d0: 0F0 0F1 0I0 0W0 0I1 0W1
d1: 1F0 1I0 1F1 1I1 1W0 1W1
"""


def trace_of(problem: Problem, plan: Plan) -> tuple[list[Event], Timeline]:
    timeline = simulate(problem, plan)
    document = json.loads(render_trace(problem, plan, timeline=timeline))
    assert document["displayTimeUnit"] == "ms"
    return document["traceEvents"], timeline


def nanoseconds(value: float) -> int:
    """Exact: a trace states times to the nanosecond."""
    rounded = round(value * 1000)
    assert value == rounded / 1000
    return rounded


def slices(events: list[Event]) -> dict[tuple[int, int], list[tuple[int, int, Event]]]:
    """(start, end, event) of every slice per process and thread, in order."""
    found = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            start = nanoseconds(event["ts"])
            found[event["pid"], event["tid"]].append((start, start + nanoseconds(event["dur"]), event))
    return {track: sorted(items, key=lambda item: item[:2]) for track, items in found.items()}


def names(events: list[Event], what: str) -> dict[tuple[int, int], str]:
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == what}


def test_two_devices_and_a_link():
    """Tests that a small plan gives exactly the slices of its drawing, on named tracks."""
    problem = make_chain("ww", num_devices=2, num_microbatches=2)
    events, _ = trace_of(problem, make_plan(problem, TWO_STAGES, stages="0@d0 1@d1"))
    processes, threads = names(events, "process_name"), names(events, "thread_name")
    drawn = {
        f"{processes[process, 0]} / {threads[process, thread]}": [
            f"{event['name']} {start}-{end}" for start, end, event in items
        ]
        for (process, thread), items in slices(events).items()
    }
    assert drawn == {
        "d0 (gpu) / compute": [
            "0F0 0-1000", "0F1 1000-2000", "0I0 3200-4200", "0W0 4200-5200", "0I1 5200-6200", "0W1 6200-7200",
        ],
        "d1 (gpu) / compute": [
            "1F0 1100-2100", "1I0 2100-3100", "1F1 3100-4100", "1I1 4100-5100", "1W0 5100-6100", "1W1 6100-7100",
        ],
        "links / d0 -> d1": ["activation 0 to 1, 0 1000-1100", "activation 0 to 1, 1 2000-2100"],
        "links / d1 -> d0": ["gradient 1 to 0, 0 3100-3200", "gradient 1 to 0, 1 5100-5200"],
    }  # fmt: skip


@given(case=cases())
def test_tracks_hold_together(case: tuple[Problem, Plan]):
    """Tests that in any trace every slice stands on a named track, and no track holds two slices at once."""
    events, timeline = trace_of(*case)
    processes, threads = names(events, "process_name"), names(events, "thread_name")
    for (process, thread), items in slices(events).items():
        assert (process, 0) in processes
        assert (process, thread) in threads
        for (_, end, _), (start, _, _) in pairwise(items):
            assert end <= start
    assert all(0 <= nanoseconds(event["ts"]) <= timeline.makespan_ns for event in events if "ts" in event)


@given(case=cases())
def test_durations_add_up(case: tuple[Problem, Plan]):
    """Tests that the slices of every kind on a device last as long as its actions, to the nanosecond."""
    events, timeline = trace_of(*case)
    processes = {name.split(" ")[0]: process for (process, _), name in names(events, "process_name").items()}
    for device, word in timeline.actions.items():
        for kind, category in KIND_NAMES.items():
            drawn = [e for e in events if e["ph"] == "X" and e["pid"] == processes[device] and e["cat"] == category]
            played = [timed for timed in word if timed.action.kind == kind]
            assert [e["name"] for e in drawn] == [str(timed.action) for timed in played]
            assert sum(nanoseconds(e["dur"]) for e in drawn) == sum(t.end_ns - t.start_ns for t in played)
    for synchronisation in timeline.synchronisations:
        (drawn,) = [e for e in events if e["name"] == f"synchronise stage {synchronisation.stage}"]
        assert nanoseconds(drawn["dur"]) == synchronisation.end_ns - synchronisation.start_ns


@given(case=cases())
def test_every_transfer_has_its_arrow(case: tuple[Problem, Plan]):
    """Tests that an arrow leads from the maker of every transferred tensor over its first link to the user."""
    events, timeline = trace_of(*case)
    arrows = defaultdict(dict)
    for event in events:
        if event["ph"] in "stf":
            arrows[event["id"]][event["ph"]] = event
    assert len(arrows) == len(timeline.transfers)
    tracks = slices(events)
    for number, transfer in enumerate(timeline.transfers):
        times = [nanoseconds(arrows[number][step]["ts"]) for step in "stf"]
        assert times == sorted(times)
        user = arrows[number]["f"]
        starts = {start for start, _, _ in tracks[user["pid"], user["tid"]]}
        assert times[2] in starts
        assert times[1] == transfer.start_ns
        assert user["bp"] == "e"


@given(case=cases())
def test_memory_counter_follows_the_timeline(case: tuple[Problem, Plan]):
    """Tests that the counter of a device has, at each time it states, what the device holds from then on."""
    events, timeline = trace_of(*case)
    processes = {name.split(" ")[0]: process for (process, _), name in names(events, "process_name").items()}
    for device, points in timeline.memory.items():
        counted = {
            nanoseconds(e["ts"]): e["args"]["bytes"] for e in events if e["ph"] == "C" and e["pid"] == processes[device]
        }
        assert counted == {point.time_ns: point.num_bytes for point in points}


@pytest.mark.parametrize("time", [0, 1, 999, 1_001, 123_456_789_123, 10**13 - 1, 10**15 + 1])
def test_microseconds_keep_the_nanosecond(time: int):
    """Tests that times survive the way through microseconds and text."""
    assert nanoseconds(json.loads(json.dumps(microseconds(time)))) == time


def test_names_stay_as_they_are():
    """Tests that quotes, markup and other scripts in a name survive the way through the document."""
    problem = make_chain("ww", num_devices=2, num_microbatches=2)
    name = 'the "größte" </script> モデル'
    problem = replace(problem, profile=replace(problem.profile, name=name))
    plan = make_plan(problem, TWO_STAGES, stages="0@d0 1@d1")
    assert json.loads(render_trace(problem, plan, timeline=simulate(problem, plan)))["otherData"]["profile"] == name
