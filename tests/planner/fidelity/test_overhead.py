"""What a short run says that actions and messages cost."""

import json
from dataclasses import replace
from typing import Any

import pytest

from planner.fidelity.overhead import (
    DEVICES,
    Overheads,
    find_overheads,
    make_probe,
    make_probe_plan,
    make_replicated_plan,
)
from planner.layout.costs import CostModel
from planner.plan import Plan
from planner.problem import Problem
from planner.simulation.simulate import simulate
from planner.verify import verify
from profiles.cluster import Link
from profiles.model_profile import ActionOverhead, ModelProfile
from tests.planner.builders import make_edge, make_layer


def make_case(num_microbatches: int, *, has_weights: bool = True) -> tuple[Problem, Plan]:
    times = (20, 30, 10) if has_weights else (20, 30, 0)
    fields: dict[str, Any] = {"parameter_bytes": 4 if has_weights else 0}
    layers = tuple(make_layer(name, times, **fields) for name in "abc")
    profile = ModelProfile(name="net", layers=layers, edges=(make_edge("a b", num_bytes=5), make_edge("b c")))
    link = Link(a="x", b="y", bandwidth_bytes_per_s=10**9, latency_ns=2)
    problem = make_probe(profile, device_type="gpu", num_microbatches=num_microbatches, link=link)
    return problem, make_probe_plan(problem)


def run(problem: Problem, plan: Plan, *, inside: int, between: int, message: int, ending: int) -> list[dict[str, Any]]:
    """What two processes would write: every action `inside` longer than its layers and begun `between` after the last,
    every message `message` longer than its link; the timeline is played with just that.
    """
    slow = make_probe(
        problem.profile, device_type="gpu", num_microbatches=problem.num_microbatches, link=problem.cluster.links[0]
    )
    link = Link(a="probe0", b="probe1", bandwidth_bytes_per_s=10**9, latency_ns=2 + message)
    entry = ActionOverhead(
        device_type="gpu",
        **dict.fromkeys(("forward_ns", "input_grad_ns", "weight_grad_ns", "backward_ns"), inside + between),
    )
    profile = ModelProfile(
        name="net", layers=slow.profile.layers, edges=slow.profile.edges, action_overhead_ns=(entry,)
    )
    slow = make_probe(profile, device_type="gpu", num_microbatches=problem.num_microbatches, link=link)
    played = simulate(slow, Plan(problem=slow.reference(), stages=plan.stages, schedule=plan.schedule))
    ranks = []
    for device, word in played.actions.items():
        spans = [[str(timed.action), timed.start_ns + between, timed.end_ns] for timed in word]
        starts = _packed(spans, between=between)
        packed = [[name, at, at + end - begin] for (name, begin, end), at in zip(spans, starts, strict=True)]
        rows: dict[str, Any] = {}
        for clock, actions in (("wall", spans), ("thread", packed)):
            last = actions[-1][2]
            asked = [actions[0][1], *[0] * (len(actions) - 1)]
            times: dict[str, Any] = {"taken_up_ns": asked, "begin_ns": actions[0][1]}
            times |= {"reduced_ns": last, "end_ns": last + ending}
            rows[clock] = [{"actions": actions, "times": times}] * 3
        ranks.append(
            {
                "device": device,
                "exchanges": {"a": [1, 1], "b": [1, 0], "c": [0, 0]},
                "replicated": [],
                "replicated_thread": [],
                "replicated_served": [],
                "replicated_peak_bytes": None,
                "whole": [],
                "whole_thread": [],
                "whole_served": [],
                "whole_peak_bytes": None,
                "serving": [6 * 36] * 3,
                "peak_bytes": played.peak_bytes[device] + (100 if device == DEVICES[0] else 70),
                **rows,
            }
        )
    return ranks


def _packed(spans: list[list[Any]], *, between: int) -> list[int]:
    """Starts on the thread's own clock, on which waiting takes no time."""
    starts, now = [], 100
    for _, begin, end in spans:
        starts.append(now + between)
        now = starts[-1] + end - begin
    return starts


FOUR_EACH = ActionOverhead(device_type="gpu", forward_ns=4, input_grad_ns=4, weight_grad_ns=4, backward_ns=4)


def found(num_microbatches: int = 6, *, has_weights: bool = True, **more: bool) -> Overheads:
    problem, plan = make_case(num_microbatches, has_weights=has_weights)
    ranks = run(problem, plan, inside=7, between=4, message=50, ending=9)
    return find_overheads(problem, plan, ranks=ranks, device_type="gpu", **more)


def test_overheads_are_found_again():
    """Tests that what a run adds before actions, at its end and per message is what comes out.

    The threads of a process that serve its 12 messages work 216 ns per iteration: 18 for every action that has one.
    """
    result = found()
    action = result.action
    assert (action.forward_ns, action.input_grad_ns, action.weight_grad_ns, action.backward_ns) == (22, 22, 4, 22)
    assert result.iteration_ns == 9 + 2 * (2 + 54)
    assert result.message_ns == 50 + 4  # what lies before the receiving action is part of its message's way
    assert result.num_actions == 3 * 2 * (6 + 3 + 3 + 3)


def test_what_processes_hold_beyond_the_plan_is_reserved():
    """Tests that the reserve is the mean of what both held beyond the plan, unknown where nobody counts; layers hold
    what they did.
    """
    problem, plan = make_case(6)
    ranks = run(problem, plan, inside=7, between=4, message=50, ending=9)
    where: dict[str, Any] = {"device_type": "gpu"}
    result = find_overheads(problem, plan, ranks=ranks, **where)
    assert result.reserved_bytes == (100 + 70) // 2
    assert [each.state_bytes for each in result.layers] == [each.state_bytes for each in problem.profile.layers]
    small = [rank | {"peak_bytes": 0} for rank in ranks]
    assert find_overheads(problem, plan, ranks=small, **where).reserved_bytes == 0
    unknown = [rank | {"peak_bytes": None} for rank in ranks]
    assert find_overheads(problem, plan, ranks=unknown, **where).reserved_bytes is None


def test_the_run_is_held_against_what_was_found():
    """Tests that the run, whose messages pay for nobody's threads, is predicted within a nanosecond per action.

    Layers are rounded up, and what lies before an action that waits is part of its message as well.
    """
    result = found(has_idle_cores=True)
    assert 0 <= result.predicted_ns - result.measured_ns <= 2 * 6 * 4 * 2 + 2 * 56


def test_idle_cores_serve_messages():
    """Tests that actions do not pay for threads that have cores of their own."""
    assert found(has_idle_cores=True).action == replace(FOUR_EACH, backward_ns=4)


def test_layers_take_what_they_took_in_the_run():
    """Tests that the actions of the run, each 7 ns longer than the sum of its layers, are predicted as long."""
    problem, plan = make_case(6)
    layers = found().layers
    costs = CostModel(replace(problem, profile=replace(problem.profile, layers=layers)))
    before = CostModel(problem)
    for stage in plan.stages:
        for kind in "FIW":
            longer = costs.stage_cost(stage, 0).duration_ns(kind) - before.stage_cost(stage, 0).duration_ns(kind)
            assert 7 <= longer <= 7 + len(stage.layers)  # each rounded up
        whole = costs.stage_cost(stage, 0).backward_ns - before.stage_cost(stage, 0).backward_ns
        assert 7 <= whole <= 7 + len(stage.layers)


def test_what_forwards_note_for_split_backwards_is_counted_with_these():
    """Tests that of forwards that are 10 ns longer where an I follows, F knows nothing, and I has it on top."""
    problem, plan = make_case(6)
    ranks = run(problem, plan, inside=7, between=4, message=50, ending=9)
    split = {
        str(each)[:1] + "F" + str(each)[2:] for word in plan.schedule.values() for each in word if each.kind == "I"
    }
    noting = json.loads(json.dumps(ranks))
    for entry in (entry for rank in noting for entry in rank["thread"]):
        entry["actions"] = [[name, start - 10 * (name in split), end] for name, start, end in entry["actions"]]
    where: dict[str, Any] = {"device_type": "gpu"}
    plain, longer = (find_overheads(problem, plan, ranks=each, **where).layers for each in (ranks, noting))
    costs = [CostModel(replace(problem, profile=replace(problem.profile, layers=each))) for each in (plain, longer)]
    for stage in plan.stages:
        before, after = (each.stage_cost(stage, 0) for each in costs)
        assert (after.forward_ns, after.weight_grad_ns) == (before.forward_ns, before.weight_grad_ns)
        assert abs(after.input_grad_ns - before.input_grad_ns - 10) <= len(stage.layers)  # each rounded up


def test_layers_without_weights_have_no_split():
    """Tests that what did not run has no overhead."""
    action = found(has_weights=False).action
    assert (action.weight_grad_ns, action.backward_ns) == (0, 22)


@pytest.mark.parametrize("num_microbatches", [1, 2, 5])
def test_the_probe_is_a_plan(num_microbatches: int):
    """Tests that the verifier passes the probe's plan, which has every kind of action where there is more than one."""
    problem, plan = make_case(num_microbatches)
    assert verify(problem, plan).passed
    kinds = {action.kind for word in plan.schedule.values() for action in word}
    assert kinds == (set("FIWB") if num_microbatches > 1 else set("FIW"))


def test_replicas_need_two_equal_parts():
    """Tests that a stage on both devices is only run where a microbatch has two halves, and is a plan there."""
    problem, _ = make_case(3)
    assert make_replicated_plan(problem) is None
    even = replace(problem, profile=replace(problem.profile, microbatch_size=4, scaling="linear"))
    plan = make_replicated_plan(even)
    assert plan is not None
    assert verify(even, plan).passed
    assert make_replicated_plan(replace(even, profile=replace(even.profile, microbatch_size=3))) is None


def test_what_replicas_take_beyond_layers_is_shared_out_among_exchanges():
    """Tests that actions of replicas that take 3 x 40 ns more in all, for 3 exchanges, say that one takes 40."""
    problem, plan = make_case(3)
    problem = replace(problem, profile=replace(problem.profile, microbatch_size=4, scaling="linear"))
    plan, both = make_probe_plan(problem), make_replicated_plan(problem)
    assert both is not None
    ranks = run(problem, plan, inside=7, between=4, message=50, ending=9)
    layers = find_overheads(problem, plan, ranks=ranks, device_type="gpu").layers
    as_run = replace(problem, profile=replace(problem.profile, layers=layers))
    cost = CostModel(as_run).stage_cost(both.stages[0], 0)
    length = {"F": cost.forward_ns + 2 * 40, "B": cost.backward_ns + 40}
    actions = [[str(a), 5, 5 + length[a.kind]] for a in both.schedule[DEVICES[0]]]
    for rank, reduced in zip(ranks, (70, 90), strict=True):
        rank["replicated"] = [{"actions": actions, "times": {"reduced_ns": actions[-1][2] + reduced}}] * 2
    found = find_overheads(problem, plan, ranks=ranks, device_type="gpu")
    assert found.exchanges == {"a": (1, 1), "b": (1, 0)}
    assert found.action.exchange_ns == 40
    assert (found.reduction_ns, found.reduced_bytes) == (90, 3 * 4)


def test_a_stage_that_is_the_whole_model_tells_what_layers_take():
    """Tests that layers take what they take without messages, and what stages add stands with actions of several.

    The pipeline's actions take 7 ns more inside and 4 before; the whole model half of what is said of F, 2 before.
    """
    problem, plan = make_case(4)
    problem = replace(problem, profile=replace(problem.profile, microbatch_size=4, scaling="linear"))
    plan, both = make_probe_plan(problem), make_replicated_plan(problem)
    assert both is not None
    ranks = run(problem, plan, inside=7, between=4, message=50, ending=9)
    for rank in ranks:
        rank["exchanges"] = {}
    where: dict[str, Any] = {"device_type": "gpu"}
    before = find_overheads(problem, plan, ranks=ranks, **where)
    as_run = replace(problem, profile=replace(problem.profile, layers=before.layers))
    cost = CostModel(as_run).stage_cost(both.stages[0], 0)
    length = {"F": cost.forward_ns // 2, "B": cost.backward_ns}
    actions, now = [], 10
    for action in both.schedule[DEVICES[0]]:
        actions.append([str(action), now + 2, now + 2 + length[action.kind]])
        now += 2 + length[action.kind]
    times = {"taken_up_ns": [10], "begin_ns": 9, "reduced_ns": now, "end_ns": now + 5}
    for rank in ranks:
        rank["replicated_thread"] = [{"actions": actions, "times": times}] * 2
    found = find_overheads(problem, plan, ranks=ranks, **where)
    layers = [sum(each.costs[0].forward_ns for each in made.layers) for made in (before, found)]
    assert layers[1] == pytest.approx(layers[0] / 2, abs=3)
    assert [found.action.of(kind, has_stages=False) for kind in "FB"] == [2, 2]
    both_stages = found.action.forward_ns + found.action.stages_forward_ns
    assert both_stages == pytest.approx(before.action.forward_ns + layers[0] / 4, abs=3)
    assert found.action.backward_ns + found.action.stages_backward_ns == before.action.backward_ns
    assert found.iteration_ns == 1 + 5
    assert found.iteration_ns + found.stages_iteration_ns == before.iteration_ns
    assert found.predicted_ns == pytest.approx(before.predicted_ns, rel=0.05)


@pytest.mark.parametrize(("more", "expected"), [({}, 90 + 40 + 15), ({"has_idle_cores": True}, 90 + 15)])
def test_a_reduction_takes_what_it_takes_from_the_actions_above_it(more: dict[str, bool], expected: int):
    """Tests that threads that serve the last backward count where no core is idle, and waits for the slower process.

    One process computes 30 ns longer than the other by the thread's clock: the mean is 15 less.
    """
    problem, plan = make_case(3)
    problem = replace(problem, profile=replace(problem.profile, microbatch_size=4, scaling="linear"))
    ranks = run(problem, plan, inside=7, between=4, message=50, ending=9)
    for rank, (worked, passed) in zip(ranks, ((100, 150), (130, 200)), strict=True):
        for name, length in (("replicated_thread", worked), ("replicated", passed)):
            actions = [["0F0", 5, 25], ["0B0", 25, 5 + length]]
            times = {"taken_up_ns": [5], "begin_ns": 5, "reduced_ns": 205 + 90, "end_ns": 300}
            rank[name] = [{"actions": actions, "times": times}] * 2
        rank |= {"replicated_served": [40, 40], "exchanges": {"a": [0, 0]}}
    where: dict[str, Any] = {"device_type": "gpu"} | more
    assert find_overheads(problem, make_probe_plan(problem), ranks=ranks, **where).reduction_ns == expected
    for rank in ranks:
        rank["exchanges"] = {"a": [1, 1]}  # within actions, so nothing is sent early
    without = expected - 40 * (not more)
    assert find_overheads(problem, make_probe_plan(problem), ranks=ranks, **where).reduction_ns == without


@pytest.mark.parametrize(("more", "expected"), [((500, 300), 400), ((-40, -1), 0), ((500, None), 0)])
def test_what_replicas_hold_beyond_the_plan_and_its_reserve(more: tuple[int, int | None], expected: int):
    """Tests that the mean of the processes counts, that less is nothing, and that half a measurement is none."""
    problem, _ = make_case(3)
    problem = replace(problem, profile=replace(problem.profile, microbatch_size=4, scaling="linear"))
    plan, both = make_probe_plan(problem), make_replicated_plan(problem)
    assert both is not None
    ranks = run(problem, plan, inside=7, between=4, message=50, ending=9)
    before = find_overheads(problem, plan, ranks=ranks, device_type="gpu")
    assert before.reduction_bytes == 0
    assert before.reserved_bytes is not None
    by_then = replace(problem, profile=replace(problem.profile, layers=before.layers))
    peaks = simulate(by_then, both).peak_bytes
    for rank, size in zip(ranks, more, strict=True):
        held = None if size is None else peaks[rank["device"]] + before.reserved_bytes + size
        rank["replicated_peak_bytes"] = held
    found = find_overheads(problem, plan, ranks=ranks, device_type="gpu")
    assert found.reduction_bytes == expected
    replicated = replace(by_then, profile=replace(by_then.profile, reduction_bytes=found.reduction_bytes))
    assert simulate(replicated, both).peak_bytes == {device: size + expected for device, size in peaks.items()}
    assert verify(replicated, replace(both, problem=replicated.reference())).passed
