"""Stashes that travel to host memory and back: times, memory, and what the rules reject."""

import json

from planner.export.trace import render_trace
from planner.plan_kind import describe_kind, differences, kind_of
from planner.simulation.explain import explain
from planner.simulation.simulate import simulate
from tests.planner.offloads import chain


def test_an_explanation_names_the_host_link():
    """Tests that an action that waits for its stash is on the critical chain behind it."""
    problem, plan = chain("0 0F2 0B0", "", speed=25 * 10**7)
    found = explain(problem, plan, timeline=simulate(problem, plan))
    assert ("transfer", "its host → d0", 60, 100) in [(s.kind, s.place, s.start_ns, s.end_ns) for s in found.path]
    assert (found.devices[0].transfer_ns, found.devices[0].order_ns) == (50, 20)


def test_traces_show_stashes():
    """Tests that each stash is an event of its device, on the row of its direction."""
    problem, plan = chain("0 0F2 0B0", "")
    events = json.loads(render_trace(problem, plan, timeline=simulate(problem, plan)))["traceEvents"]
    assert [(each["tid"], each["ts"]) for each in events if each["name"] == "stash 0, 0"] == [(2, 0.01), (3, 0.03)]


def test_kinds_of_plans_tell_of_offload():
    """Tests that plans which differ in that alone are of two kinds."""
    kinds = [kind_of(chain(text, "")[1]) for text in ("", "0 0F2 0B0")]
    assert "activations in host memory" in describe_kind(kinds[1])
    assert list(differences(kinds[1], kinds[0])) == ["nothing in host memory"]
