"""The executed timeline as documents."""

import json

from planner.execute.record.executed_timeline import IterationTimes, render_executed_trace, render_rank

FIRST = {"d0": (("0F0", 1_000_000, 1_002_000),), "d1": (("1F0", 1_003_000, 1_004_500), ("1B0", 1_005_000, 1_009_000))}
SECOND = {"d0": (("0F0", 9_000_000, 9_001_000),), "d1": ()}


def test_the_trace_lines_iterations_up():
    """Tests that each device is a process with its name, and that an iteration begins where the one before ended,
    with the earliest action of any device.
    """
    events = json.loads(render_executed_trace([FIRST, SECOND]))["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    spans = [(names[e["pid"]], e["name"], e["cat"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert spans == [
        ("d0", "0F0", "forward", 0.0, 2.0),
        ("d1", "1F0", "forward", 3.0, 1.5),
        ("d1", "1B0", "backward", 5.0, 4.0),
        ("d0", "0F0", "forward", 9.0, 1.0),
    ]


def test_a_rank_writes_all_it_did():
    """Tests that the document of a rank holds every iteration as it was noted, and what lies around its actions."""
    times = [
        IterationTimes((2_000_000, 5), begin_ns=1, reduced_ns=6, end_ns=7),
        IterationTimes((), begin_ns=8, reduced_ns=8, end_ns=9),
    ]
    document = json.loads(render_rank(1, "d1", iterations=[FIRST["d1"], SECOND["d1"]], times=times))
    assert document["iterations"] == [[list(row) for row in FIRST["d1"]], []]
    assert document["times"][0] == {"taken_up_ns": [2_000_000, 5], "begin_ns": 1, "reduced_ns": 6, "end_ns": 7}
    assert (document["rank"], document["device"], len(document["times"])) == (1, "d1", 2)
