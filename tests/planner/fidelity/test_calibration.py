"""What a run teaches a profile and a cluster."""

from dataclasses import replace

import pytest

from planner.fidelity.calibration import calibrate_cluster, calibrate_profile, find_all
from planner.plan import Plan
from planner.problem import Problem
from planner.simulation.simulate import simulate
from profiles.documents.canonical_json import to_plain
from profiles.documents.validation import validate
from profiles.model_profile import ActionOverhead, ModelProfile, ProbeRun
from tests.planner.builders import make_layer, make_link, make_plan, make_problem
from tests.planner.fidelity.runs import compare, run


def two_stages(backward: str) -> tuple[Problem, Plan]:
    """Two layers, then one; a transfer takes 2 ns."""
    layers = [make_layer("l0", (4, 4, 4)), make_layer("l1", (8, 6, 2)), make_layer("l2", (4, 4, 4, 6))]
    problem = make_problem(layers, [make_link("a b", latency=2)], num_microbatches=2, optimizer_ns=1)
    second = {n: " ".join(f"1{cell[1:]}" for cell in backward.split() if cell.endswith(n)) for n in "01"}
    words = {"a": f"0F0 0F1 {backward}", "b": f"1F0 {second['0']} 1F1 {second['1']}"}
    return problem, make_plan(problem, ["l0 l1 @ a", "l2 @ b"], words)


@pytest.mark.parametrize("backward", ["0B0 0B1", "0I0 0W0 0I1 0W1"])
def test_a_calibrated_plan_is_predicted_as_it_ran(backward: str):
    """Tests that a run whose times and overheads are the same every time is predicted to the nanosecond afterwards."""
    problem, plan = two_stages(backward)
    predicted = compare(problem, plan)
    usual = predicted.predicted()
    factor = {"F": 3, "B": 2, "I": 5, "W": 2}
    kinds = {key: predicted.device_orders[key[0]][key[1]].kind for key in predicted.order}
    slow = replace(
        usual,
        duration_ns={key: factor[kinds[key]] * value for key, value in usual.duration_ns.items()},
        lag_ns={key: tuple(9 for _ in lags) for key, lags in usual.lag_ns.items()},
        optimizer_ns=dict.fromkeys(usual.optimizer_ns, 7),
    )
    comparison = compare(problem, plan, run(predicted, slow))
    profile = calibrate_profile(problem.profile, comparison, source="a run")
    cluster = calibrate_cluster(problem.cluster, comparison)
    calibrated = replace(problem, profile=profile, cluster=cluster)
    assert cluster.links[0].latency_ns == 9
    assert simulate(calibrated, plan).makespan_ns == comparison.iterations[0].duration_ns


def test_overheads_stand_in_the_profile():
    """Tests that the time before every action becomes the overhead of its kind, and stands there with its spread."""
    problem, plan = two_stages("0B0 0B1")
    predicted = compare(problem, plan)
    usual = predicted.predicted()
    late = {key: 12 if plan.schedule[key[0]][key[1]].kind == "F" else 0 for key in usual.overhead_ns}
    comparison = compare(problem, plan, run(predicted, replace(usual, overhead_ns=late)))
    (device_type,) = {device.type for device in problem.cluster.devices}
    sharded = ActionOverhead(device_type=device_type, forward_ns=3, sharded_forward_ns=4, sharded_backward_ns=5)
    own = replace(problem.profile, probe=ProbeRun(predicted_ns=9, measured_ns=8), action_overhead_ns=(sharded,))
    profile = calibrate_profile(own, comparison, source="a run")
    (made,) = profile.action_overhead_ns
    assert (made.forward_ns, made.sharded_forward_ns, made.sharded_backward_ns) == (12, 4, 5)
    assert profile.probe is None
    assert [profile.by_name[name].costs[0].forward_ns for name in ("l0", "l1")] == [4, 8]
    assert [profile.overhead_ns(problem.cluster.devices[0].type, kind, has_stages=True) for kind in "FIWB"] == [
        12,
        0,
        0,
        0,
    ]
    (entry,) = (m for m in profile.measurements if (m.what, m.subject) == ("overhead", "0F"))
    assert (entry.count, entry.median_ns, entry.low_ns, entry.high_ns, entry.source) == (2, 12, 12, 12, "a run")
    assert profile.provenance.startswith("Calibrated with a run")
    assert validate(ModelProfile, to_plain(profile), source="test") == profile


def test_what_one_stage_needs_more_goes_to_its_layers():
    """Tests that the overhead is what all actions have in common, and the rest of a slower stage its layers' time."""
    problem, plan = two_stages("0B0 0B1")
    predicted = compare(problem, plan)
    usual = predicted.predicted()
    late = {key: 14 if plan.schedule[key[0]][key[1]][:2] == ("F", 0) else 2 for key in usual.overhead_ns}
    comparison = compare(problem, plan, run(predicted, replace(usual, overhead_ns=late)))
    profile = calibrate_profile(problem.profile, comparison, source="a run")
    assert profile.overhead_ns(problem.cluster.devices[0].type, "F", has_stages=True) == 2
    assert [profile.by_name[name].costs[0].forward_ns for name in ("l0", "l1", "l2")] == [8, 16, 4]


def test_the_overhead_of_the_model_is_the_prediction_of_launch_overhead():
    """Tests that a run which costs what the profile's overhead says differs in neither durations nor overheads."""
    layers = [make_layer(f"l{n}", (4, 4, 4)) for n in range(2)]
    problem = make_problem(layers, [make_link("a b")], num_microbatches=2)
    overhead = ActionOverhead(
        device_type=problem.cluster.devices[0].type, forward_ns=5, input_grad_ns=3, weight_grad_ns=3, backward_ns=3
    )
    problem = replace(problem, profile=replace(problem.profile, action_overhead_ns=(overhead,)))
    plan = make_plan(problem, ["l0 @ a", "l1 @ b"], {"a": "0F0 0F1 0B0 0B1", "b": "1F0 1B0 1F1 1B1"})
    usual = compare(problem, plan)
    comparison = compare(problem, plan, run(usual, usual.predicted()))
    found = {(finding.what, finding.subject): finding for finding in find_all(comparison)}
    assert (found["overhead", "0F"].predicted_ns, found["duration", "0F"].predicted_ns) == (5, 4)
    assert found["duration", "0F"].samples == (4, 4)
    attribution = comparison.attribute(comparison.iterations[0])
    assert attribution.measured_ns == attribution.predicted_ns
    assert dict(attribution.parts)["compute"] == 0


def _filled(*stages: int) -> str:
    """All forwards of a stage after the other, then all backwards."""
    forwards = [f"{stage}F{m}" for stage in stages for m in range(8)]
    return " ".join([*forwards, *(f"{stage}B{m}" for stage in reversed(stages) for m in range(8))])


def test_overheads_count_for_every_action_of_finer_plans():
    """Tests that a plan of twice the stages is predicted with twice the overheads."""
    layers = [make_layer(f"l{n}", (4, 4, 4)) for n in range(4)]
    problem = make_problem(layers, [make_link("a b")], num_microbatches=8)
    halves = {device: _filled(stage) for stage, device in enumerate("ab")}
    quarters = {device: _filled(stage, stage + 2) for stage, device in enumerate("ab")}
    coarse = make_plan(problem, ["l0 l1 @ a", "l2 l3 @ b"], halves)
    fine = make_plan(problem, ["l0 @ a", "l1 @ b", "l2 @ a", "l3 @ b"], quarters)
    ran = {}
    for plan in (coarse, fine):
        predicted = compare(problem, plan)
        usual = predicted.predicted()
        late = dict.fromkeys(usual.overhead_ns, 6)
        ran[len(plan.stages)] = compare(problem, plan, run(predicted, replace(usual, overhead_ns=late)))
    profile = calibrate_profile(problem.profile, ran[2], source="a run")
    measured = ran[4].iterations[0].duration_ns
    assert simulate(problem, fine).makespan_ns < 0.85 * measured
    assert abs(simulate(replace(problem, profile=profile), fine).makespan_ns - measured) < 0.05 * measured


def test_everything_is_found():
    """Tests that every stage and kind, way and device is among the findings, with as many samples as there were."""
    problem, plan = two_stages("0B0 0B1")
    usual = compare(problem, plan)
    comparison = compare(problem, plan, *(run(usual, usual.predicted(), number=number) for number in range(3)))
    counts = {(finding.what, finding.subject): len(finding.samples) for finding in find_all(comparison)}
    assert counts["duration", "0F"] == counts["overhead", "1B"] == 6
    assert counts["transfer", "a to b, 0 to 1"] + counts["transfer", "b to a, 1 to 0"] > 3
    assert counts["optimizer", "a"] == counts["synchronisation", "b"] == 3
    assert all(finding.predicted_ns == finding.median_ns for finding in find_all(comparison))


def test_another_models_profile_is_refused():
    """Tests that the figures of a run do not go into the profile of another model."""
    problem, plan = two_stages("0B0 0B1")
    comparison = compare(problem, plan, run(compare(problem, plan), compare(problem, plan).predicted()))
    other = make_problem([make_layer("other")], [make_link("a b")])
    with pytest.raises(ValueError, match="has no layer 'l0'"):
        calibrate_profile(other.profile, comparison, source="a run")


def test_exchanges_of_replicas_are_not_scaled():
    """Tests that replicas whose layers took twice as long still exchange as fast, and that the profile keeps it."""
    layers = [replace(make_layer("l0", (4, 4, 4)), forward_exchanges=2, backward_exchanges=1)]
    problem = make_problem(layers, [make_link("a b")], num_microbatches=1)
    overhead = ActionOverhead(device_type=problem.cluster.devices[0].type, exchange_ns=5)
    problem = replace(problem, profile=replace(problem.profile, action_overhead_ns=(overhead,)))
    plan = make_plan(problem, ["l0 @ a | b"], {"a": "0F0 0B0", "b": "0F0 0B0"})
    usual = compare(problem, plan)
    predicted = usual.predicted()
    layers_only = {key: ns - (10 if key[1] == 0 else 5) for key, ns in predicted.duration_ns.items()}
    slow = {key: ns + layers_only[key] for key, ns in predicted.duration_ns.items()}
    comparison = compare(problem, plan, run(usual, replace(predicted, duration_ns=slow)))
    profile = calibrate_profile(problem.profile, comparison, source="a run")
    assert profile.exchange_ns(overhead.device_type) == 5
    assert profile.by_name["l0"].costs[0].forward_ns == 8
