"""Measured times, what they mean for a plan, and what is left of one when devices are lost."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.evidence.certificate import make_bound
from planner.layout.costs import CostModel
from planner.plan import Plan
from planner.problem import Options, PinnedLayer, Problem
from planner.replanning.as_measured import exactly
from planner.replanning.diagnosis import diagnose, find_limit_ns
from planner.replanning.observations import Observations, read_observations
from planner.simulation.simulate import simulate
from planner.what_if.device_loss import without_devices
from profiles.cluster import Link
from tests.planner.export.chains import make_chain, make_plan
from tests.planner.replanning.slowed_runs import read_documents

DRAWING = """
d0: 0F0 0F1 0I0 0W0 0I1 0W1
d1: 1F0 1I0 1F1 1I1 1W0 1W1
"""


def example() -> tuple[Problem, Plan]:
    """Two stages of two layers; F, I and W of a stage take 2 microseconds each."""
    problem = make_chain("wwww", num_devices=3, num_microbatches=2)
    return problem, make_plan(problem, DRAWING, stages="0,1@d0 2,3@d1")


def rank(device: str, *rows: list[list[object]]) -> tuple[str, str]:
    """What a rank would write down without saying when its iterations began."""
    return f"{device}.json", json.dumps({"device": device, "iterations": rows})


def seen(**spans: int) -> Observations:
    """`F0=5`: F of stage 0 took 5 ns, on the device with the stage's number."""
    cells = {(f"d{key[1:]}", int(key[1:]), key[0]): ((value,),) for key, value in spans.items()}
    return Observations(durations_ns=cells)  # type: ignore[arg-type]


def test_the_executors_timings_are_read():
    """Tests that the first iteration is left out where there are more; an iteration counts by its mean."""
    _, plan = example()
    rows = [[["0F0", 0, 900], ["0I0", 900, 999]], [["0F0", 0, 10], ["0F1", 10, 40]], [["0F0", 0, 20]]]
    found = read_documents([rank("d0", *rows)], plan)
    assert found.durations_ns == {("d0", 0, "F"): ((10, 30), (20,))}
    assert found.typical_ns(("d0", 0, "F")) == 20
    single = read_documents([rank("d0", rows[0])], plan)
    assert single.durations_ns == {("d0", 0, "F"): ((900,),), ("d0", 0, "I"): ((99,),)}


def test_profiler_traces_are_read():
    """Tests that Kineto's complete events named as torch marks actions count, in microseconds, and no others."""
    _, plan = example()
    events = [
        {"ph": "X", "name": "PP:1I0", "ts": 1.5, "dur": 2.25, "pid": 7},
        {"ph": "X", "name": "PP:1SEND_F0", "ts": 1, "dur": 9},
        {"ph": "X", "name": "aten::mm", "ts": 1, "dur": 9},
        {"ph": "M", "name": "1F0"},
        {"ph": "X", "name": "1F1", "ts": 1, "dur": 4},
    ]
    for text in (json.dumps({"traceEvents": events}), json.dumps(events)):
        found = read_documents([("trace.json", text)], plan).durations_ns
        assert found == {("d1", 1, "I"): ((2250,),), ("d1", 1, "F"): ((4000,),)}


def test_compressed_traces_are_read(tmp_path: Path):
    """Tests that a profiler's trace as it is often kept, compressed, says what it says otherwise."""
    _, plan = example()
    text = json.dumps({"traceEvents": [{"ph": "X", "name": "PP:1I0", "ts": 1.5, "dur": 2.25}]})
    (tmp_path / "trace.json.gz").write_bytes(gzip.compress(text.encode()))
    assert read_observations([tmp_path / "trace.json.gz"], plan) == read_documents([("trace.json", text)], plan)


MERGED = json.dumps([{"ph": "X", "name": f"PP:{pid - 7}F0", "ts": 1, "dur": 2, "pid": pid} for pid in (7, 8)])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "t.json: has no traceEvents"),
        ('{"plan": 1}', "t.json: has no traceEvents"),
        ('{"iterations": [[["0F0"]]]}', "t.json: is not what the executor's --trace writes"),
        ('{"iterations": [[["0F0", 1, 2]]]', "t.json: is cut off or broken"),
        ('{"traceEvents": [{"ph": "X", "name": "0F0"}]}', "t.json: action 0F0 has no times"),
        ('{"traceEvents": []}', "t.json: holds no events, but no marked action"),
        ("3", "t.json: has no traceEvents"),
        (MERGED, "t.json: has actions of processes 7 and 8; give a file per rank"),
    ],
)
def test_other_documents_are_refused(text: str, message: str):
    """Tests that what is no measurement is refused with its name and the remedy."""
    with pytest.raises(ValueError, match=message):
        read_documents([("t.json", text)], example()[1])


def test_stages_of_another_plan_are_refused():
    """Tests that a stage that the plan does not have is no measurement of it."""
    _, plan = example()
    with pytest.raises(ValueError, match="stage 5 was measured, but the plan has 2"):
        read_documents([rank("d0", [["5F0", 0, 1]])], plan)


@given(st.lists(st.integers(1, 10_000), min_size=6, max_size=6))
def test_measured_costs_are_those_of_the_stages(spans: list[int]):
    """Tests that in the replay every measured action takes what was measured, up to a nanosecond per layer."""
    problem, plan = example()
    keys = [f"{kind}{stage}" for stage in (0, 1) for kind in "FIW"]
    found = diagnose(problem, plan, seen=seen(**dict(zip(keys, spans, strict=True))))
    again = exactly(problem, plan, scales=found.scales)
    costs = CostModel(again)
    for key, span in zip(keys, spans, strict=True):
        assert abs(costs.stage_cost(plan.stages[int(key[1])], 0).duration_ns(key[0]) - span) <= 2


def test_the_limit_of_replanning_holds_at_measured_costs():
    """Tests that the limit is below the present plan as measured, and moves with what was measured."""
    problem = make_chain("wwww", num_devices=2, num_microbatches=2)
    plan = make_plan(problem, DRAWING, stages="0,1@d0 2,3@d1")
    found = diagnose(problem, plan, seen=seen(F0=20_000, I0=20_000, W0=20_000, F1=20_000, I1=20_000, W1=20_000))
    limit = find_limit_ns(problem, plan, found=found)
    assert make_bound(problem, CostModel(problem)).value_ns < limit <= found.present_ns
    assert found.present_ns > simulate(problem, plan).makespan_ns + 20_000


def test_what_is_left_is_a_problem():
    """Tests that links and pins of lost devices go with them, and that what falls apart is refused."""
    problem, _ = example()
    pins = (PinnedLayer(layer="l0", device="d0"), PinnedLayer(layer="l1", device="d1"))
    left = without_devices(replace(problem, options=Options(pinned=pins)), {"d0"})
    assert [device.name for device in left.cluster.devices] == ["d1", "d2"]
    assert [(link.a, link.b) for link in left.cluster.links] == [("d2", "d1")]
    assert [pin.device for pin in left.options.pinned] == ["d1"]
    with pytest.raises(ValueError, match="devices is empty"):
        without_devices(problem, {"d0", "d1", "d2"})
    chain = (Link(a="d0", b="d1", bandwidth_bytes_per_s=1), Link(a="d1", b="d2", bandwidth_bytes_per_s=1))
    with pytest.raises(ValueError, match="no route from device 'd0' to device 'd2'"):
        without_devices(replace(problem, cluster=replace(problem.cluster, links=chain)), {"d1"})
