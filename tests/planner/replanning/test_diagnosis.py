"""Whose fault it is that a running plan is not as planned: by construction, and what follows for re-planning."""

import json
import statistics
from dataclasses import replace
from random import Random

import pytest

from planner.plan import Plan
from planner.problem import Problem
from planner.progress import Limits
from planner.replanning.diagnosis import Culprit, Diagnosis, Suspect, diagnose, find_limit_ns
from planner.simulation.simulate import simulate
from tests.long_runs import shortened
from tests.planner.brute_force import brute_force
from tests.planner.export.chains import make_chain, make_plan
from tests.planner.hasty import make_plan as plan_anew
from tests.planner.replanning.slowed_runs import (
    Truth,
    can_be_told,
    observe,
    random_chain,
    random_running_plan,
    random_truth,
    read_documents,
    slowed,
    traces,
)

NUM_CASES = shortened(40, whole=320)
"""Of the random runs, a quarter each with slow devices, slow links, slow layers, and several of these at once."""

NUM_TINY = shortened(10, whole=200)
"""Of the random runs that are held against the best of all plans."""

KINDS = ("devices", "links", "stages")

AS_PLANNED = Truth(devices={}, links={}, stages={})


def random_case(seed: int) -> tuple[Problem, Plan, Truth]:
    """One to three slow devices, links or stages, or a mixture that can be told, with factors from 1.05 to 5."""
    rng = Random(seed)
    num_devices = rng.randint(2, 6)
    problem = random_chain(rng, num_devices=num_devices, num_layers=rng.randint(2 * num_devices, 2 * num_devices + 6))
    plan = random_running_plan(rng, problem)
    kinds = ((KINDS[0],), (KINDS[1],), (KINDS[2],), KINDS)[seed % 4]
    while not can_be_told(plan, truth := random_truth(rng, problem, plan, kinds=kinds)) and len(kinds) > 1:
        pass
    return problem, plan, truth


def tiny_case(seed: int) -> tuple[Problem, Plan, Truth]:
    """Up to three layers on two devices, with replicas or chunks, and any mixture of what may be slow."""
    rng = Random(seed)
    problem = random_chain(rng, num_devices=2, num_layers=rng.randint(2, 3))
    options = replace(problem.options, max_stages_per_device=2)
    problem = replace(problem, num_microbatches=rng.randint(1, 2), options=options)
    plan = random_running_plan(rng, problem)
    kinds = ((KINDS[0],), (KINDS[1],), (KINDS[2],), KINDS, ("devices", "stages"))[seed % 5]
    return problem, plan, random_truth(rng, problem, plan, kinds=kinds)


def name_truth(problem: Problem, truth: Truth) -> dict[tuple[str, str], float]:
    """By kind and name of a suspect its factor."""
    links = {number: f"{link.a} - {link.b}" for number, link in enumerate(problem.cluster.links)}
    return (
        {("device", name): factor for name, factor in truth.devices.items()}
        | {("stage", str(number)): factor for number, factor in truth.stages.items()}
        | {("link", links[number]): factor for number, factor in truth.links.items()}
    )


def without(truth: Truth, kind: str, key: object) -> Truth:
    return replace(truth, **{kind: {each: by for each, by in getattr(truth, kind).items() if each != key}})


def accuses_rightly(culprit: Culprit, true: dict[tuple[str, str], float]) -> bool:
    """Whether one of its alternatives is true."""

    def is_true(suspect: Suspect) -> bool:
        if suspect.kind == "everything":
            return all(abs(suspect.factor / factor - 1) < 0.05 for factor in true.values())
        factor = true.get((suspect.kind, suspect.name))
        return factor is not None and abs(suspect.factor / factor - 1) < 0.05

    return any(all(map(is_true, alternative)) for alternative in culprit.alternatives)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, NUM_CASES, 40))
def test_whoever_is_slow_is_named(first: int):
    """Tests that slow devices, links and layers are named with their factors, or cost less than 2 % of the iteration.

    Tests that nobody else is accused of what would matter, and that the replay takes what the run took.
    """
    for seed in range(first, first + 40):
        problem, plan, truth = random_case(seed)
        real = slowed(problem, plan, truth)
        found = diagnose(problem, plan, seen=observe(real, plan))
        taken = simulate(real, plan).makespan_ns
        named: dict[tuple[str, str], list[float]] = {}
        for suspect in (each for culprit in found.culprits for way in culprit.alternatives for each in way):
            named.setdefault((suspect.kind, suspect.name), []).append(suspect.factor)
        true = name_truth(problem, truth)
        keys = [(kind, key) for kind in ("devices", "stages", "links") for key in getattr(truth, kind)]
        for key, (name, factor) in zip(keys, true.items(), strict=True):
            costs = taken - simulate(slowed(problem, plan, without(truth, *key)), plan).makespan_ns
            said = [*named.get(name, ()), *named.get(("everything", ""), ())]
            if not any(abs(each / factor - 1) < 0.05 for each in said):
                assert costs < 0.02 * taken, (seed, name, factor, found.culprits)
        for culprit in found.culprits:
            if abs(culprit.effect_ns) > 0.01 * taken:
                assert accuses_rightly(culprit, true), (seed, culprit, true)
        assert abs(found.present_ns - taken) <= 0.005 * taken, seed
        assert abs(found.unexplained_ns) <= 0.005 * taken, seed


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, NUM_TINY, 10))
def test_the_limit_is_below_the_best_of_all_plans(first: int):
    """Tests that no plan at all, of a run with slow devices, links and layers, is below the limit.

    Tests that none gains more than was said, and that the limit says something: most are close to the best plan.
    """
    close = []
    for seed in range(first, first + 10):
        problem, plan, truth = tiny_case(seed)
        real = slowed(problem, plan, truth)
        best = brute_force(real)
        assert best is not None
        found = diagnose(problem, plan, seen=observe(real, plan))
        limit = find_limit_ns(problem, plan, found=found)
        assert limit <= best, (seed, truth)
        taken = simulate(real, plan).makespan_ns
        assert max(found.present_ns, found.measured_ns or 0) - limit >= taken - best, (seed, truth)
        close.append(limit / best)
    assert statistics.median(close) > 0.6, close


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(shortened(2, whole=12)))
def test_the_limit_is_below_a_plan_made_with_true_costs(seed: int):
    """Tests that no plan made anew, knowing what is really slow, is below the limit, nor gains more than was said."""
    rng = Random(seed)
    problem = random_chain(rng, num_devices=2 + seed % 2, num_layers=5)
    plan = random_running_plan(rng, problem)
    truth = random_truth(rng, problem, plan, kinds=(("devices",), KINDS)[seed // 2 % 2])
    real = slowed(problem, plan, truth)
    found = diagnose(problem, plan, seen=observe(real, plan))
    limit = find_limit_ns(problem, plan, found=found)
    best = plan_anew(real, limits=Limits(time_limit_s=60, max_rounds=2))
    assert best.evidence is not None
    assert limit <= best.evidence.makespan_ns
    taken = simulate(real, plan).makespan_ns
    assert max(found.present_ns, found.measured_ns or 0) - limit >= taken - best.evidence.makespan_ns


def balanced() -> tuple[Problem, Plan]:
    """Four equal layers on two devices, in 1F1B."""
    problem = make_chain("wwww", num_devices=2, num_microbatches=8)
    words = {"d0": "0F0 0F1 " + " ".join(f"0B{m} 0F{m + 2}" for m in range(6)) + " 0B6 0B7"}
    words["d1"] = " ".join(f"1F{m} 1B{m}" for m in range(8))
    drawing = "\n".join(f"{device}: {word}" for device, word in words.items())
    return problem, make_plan(problem, drawing, stages="0,1@d0 2,3@d1")


def one_alternative(found: Diagnosis) -> list[Suspect]:
    (culprit,) = found.culprits
    assert culprit.num_likely == 1
    return list(culprit.alternatives[0])


@pytest.mark.slow
def test_a_slow_device_is_not_slow_layers():
    """Tests that where device and layers cannot be told apart both are named, and the limit holds for the device.

    With the device three times slower a plan gives it fewer layers; if its layers were slow, no plan could.
    """
    problem, plan = balanced()
    truth = replace(AS_PLANNED, devices={"d1": 3.0})
    real = slowed(problem, plan, truth)
    found = diagnose(problem, plan, seen=observe(real, plan))
    (culprit,) = found.culprits
    assert [[(each.kind, each.name, round(each.factor, 3)) for each in way] for way in culprit.alternatives] == [
        [("device", "d1", 3.0)],
        [("stage", "1", 3.0)],
    ]
    assert found.is_ambiguous
    better = plan_anew(real, limits=Limits(time_limit_s=60, max_rounds=2))
    assert better.evidence is not None
    limit = find_limit_ns(problem, plan, found=found)
    assert limit <= better.evidence.makespan_ns < simulate(real, plan).makespan_ns
    layers_only = slowed(problem, plan, replace(AS_PLANNED, stages={1: 3.0}))
    again = plan_anew(layers_only, limits=Limits(time_limit_s=60, max_rounds=2)).evidence
    assert again is not None
    assert limit <= again.makespan_ns


def test_chunks_tell_device_from_layers():
    """Tests that a device whose two stages are equally slow is named alone, and so is one slow stage of the two."""
    problem = make_chain("wwww", num_devices=2, num_microbatches=2)
    drawing = "d0: 0F0 0F1 2F0 2B0 2F1 2B1 0B0 0B1\nd1: 1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1"
    plan = make_plan(problem, drawing, stages="0@d0 1@d1 2@d0 3@d1")
    for truth, expected in (
        (replace(AS_PLANNED, devices={"d1": 2.0}), ("device", "d1")),
        (replace(AS_PLANNED, stages={1: 2.0}), ("stage", "1")),
    ):
        found = diagnose(problem, plan, seen=observe(slowed(problem, plan, truth), plan))
        (suspect,) = one_alternative(found)
        assert (suspect.kind, suspect.name, round(suspect.factor, 3)) == (*expected, 2.0)


def test_everything_is_said_once():
    """Tests that a cluster that is slower as a whole is no list of slow devices."""
    problem, plan = balanced()
    truth = replace(AS_PLANNED, devices={"d0": 1.4, "d1": 1.4})
    (suspect,) = one_alternative(diagnose(problem, plan, seen=observe(slowed(problem, plan, truth), plan)))
    assert (suspect.kind, round(suspect.factor, 3)) == ("everything", 1.4)


def test_nothing_drifted_is_silence():
    """Tests that a run as planned has no culprits, and nothing that is not explained."""
    problem, plan = balanced()
    found = diagnose(problem, plan, seen=observe(problem, plan))
    assert found.culprits == ()
    assert found.measured_ns == found.present_ns == found.planned_ns
    assert not found.is_ambiguous


def test_time_that_no_action_explains_is_told():
    """Tests that an iteration three times as long as its actions explain is not taken for one as planned."""
    problem, plan = balanced()
    documents = []
    for name, text in traces(problem, plan):
        document = json.loads(text)
        for row, times in zip(document["iterations"], document["times"], strict=True):
            begin = times["begin_ns"]
            for span in row:
                # The process does something else before it takes an action up.
                span[1:] = [begin + 3 * (span[1] - begin), begin + 3 * (span[1] - begin) + span[2] - span[1]]
            times["taken_up_ns"] = [start for _, start, _ in row]
            times["reduced_ns"] = times["end_ns"] = begin + 3 * (times["end_ns"] - begin)
        documents.append((name, json.dumps(document)))
    found = diagnose(problem, plan, seen=read_documents(documents, plan))
    assert found.present_ns < 1.1 * found.planned_ns
    assert found.measured_ns is not None
    assert found.measured_ns > 2.5 * found.planned_ns
    assert found.unexplained_ns == found.measured_ns - found.present_ns
    assert sum(found.parts_ns.values()) == pytest.approx(found.unexplained_ns, rel=0.1)


def test_noise_is_no_drift():
    """Tests that actions that vary by some per cent around what was planned accuse nobody."""
    problem, plan = balanced()
    rng = Random(3)
    for _ in range(20):
        documents = []
        for name, text in traces(problem, plan, num_iterations=8):
            document = json.loads(text)
            for row in document["iterations"]:
                for span in row:
                    span[2] = span[1] + round((span[2] - span[1]) * rng.gauss(1, 0.03))
            documents.append((name, json.dumps(document)))
        found = diagnose(problem, plan, seen=read_documents(documents, plan))
        assert all(abs(culprit.largest_factor - 1) < 0.05 for culprit in found.culprits)


def test_the_spread_of_observations():
    """Tests that a device that stalls in one action of four is slow, by the mean of an iteration."""
    problem, plan = balanced()
    documents = []
    for name, text in traces(problem, plan):
        document = json.loads(text)
        for row in document["iterations"] if document["device"] == "d1" else ():
            for span in row[::8]:
                span[2] += 8_000
        documents.append((name, json.dumps(document)))
    seen = read_documents(documents, plan)
    spans = [span for row in seen.durations_ns["d1", 1, "F"] for span in row]
    assert seen.typical_ns(("d1", 1, "F")) > statistics.median(spans)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"device": "d9"}, "device 'd9' ran stages"),
        ({"iterations": [[["7F0", 0, 1]]]}, "stage 7 was measured, but the plan has 2"),
        ({"iterations": [[["0F0", 5, 1]]]}, "0F0 lasts from 5 to 1"),
        ({"iterations": []}, "contains no iteration"),
    ],
)
def test_traces_of_something_else_are_refused(change: dict[str, object], message: str):
    """Tests that documents of another plan, and broken ones, are refused by name."""
    problem, plan = balanced()
    name, text = traces(problem, plan)[0]
    document = json.dumps(json.loads(text) | change)
    with pytest.raises(ValueError, match=message):
        read_documents([(name, document)], plan)


def test_a_missing_rank_is_told():
    """Tests that with one rank's trace only its device is judged, and no iteration."""
    problem, plan = balanced()
    seen = read_documents(traces(problem, plan)[:1], plan)
    assert seen.missing_devices == ("d1",)
    found = diagnose(problem, plan, seen=seen)
    assert (found.measured_ns, found.missing_devices) == (None, ("d1",))


def test_profiler_traces_find_their_devices():
    """Tests that traces without a device are given to the devices that hold their stages."""
    problem, plan = balanced()
    documents = []
    for name, text in traces(problem, plan):
        events = [
            {"ph": "X", "name": f"PP:{action}", "ts": start / 1000, "dur": (end - start) / 1000}
            for row in json.loads(text)["iterations"]
            for action, start, end in row
        ]
        documents.append((name, json.dumps({"traceEvents": events})))
    seen = read_documents(documents[::-1], plan)
    assert seen.missing_devices == ()
    assert {device for device, _, _ in seen.durations_ns} == {"d0", "d1"}
    assert diagnose(problem, plan, seen=seen).culprits == ()


def test_waits_within_marks_are_no_computing():
    """Tests that what torch's runtime waits within its marks on a host, and a GPU's second marks, drift nowhere."""
    problem, plan = balanced()
    documents = []
    for name, text in traces(problem, plan):
        events = []
        for action, start, end in (each for row in json.loads(text)["iterations"] for each in row):
            waited = start - 1_000_000
            span = {"ph": "X", "tid": 1, "ts": waited / 1000}
            events.append(span | {"name": f"PP:{action}", "cat": "user_annotation", "dur": (end - waited) / 1000})
            events.append(span | {"name": "gloo:recv", "dur": (start - waited) / 1000, "args": {}})
        documents.append((name, json.dumps({"traceEvents": events})))
    seen = read_documents(documents, plan)
    assert seen.durations_ns == read_documents(traces(problem, plan), plan).durations_ns
    assert diagnose(problem, plan, seen=seen).culprits == ()
    both = [each | {"cat": "gpu_user_annotation", "ts": each["ts"] + 1} for each in events if "PP" in each["name"]]
    assert len(read_documents([("t.json", json.dumps(events + both))], plan).durations_ns) == len(
        {cell for cell in seen.durations_ns if cell[0] == "d1"}
    )
