"""Every rule of the verifier, by a plan that breaks it and no other."""

import math
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import planner.verify
from planner.actions import Action, parse_action
from planner.errors import PlanError
from planner.plan import Evidence, Plan
from planner.problem import PinnedLayer, Problem
from planner.simulation.simulate import Timeline, simulate
from planner.verify import GROUPS, MAX_VIOLATIONS_PER_RULE, RULES, verify
from profiles.cluster import Device
from tests.planner.builders import (
    make_layer,
    make_link,
    make_plan,
    make_problem,
    make_stage,
    with_evidence,
)
from tests.planner.judge.broken_plans import (
    APART_STAGE,
    BROKEN,
    DISAGREEING,
    REPLICATED,
    base_plan,
    base_problem,
    broken_rules,
    cut_sample,
    of_batch,
    only_violation,
    with_reference_field,
    with_split,
)
from tests.strategies import cases, with_memory, with_reference


def test_every_rule_is_tested(repository_root: Path):
    """Tests that a plan breaks every rule there is, in the tests of its module, and that every rule has a sentence."""
    for module in {rule.__module__ for _, group in GROUPS for rule in group}:
        folder, _, name = module.replace(".", "/").rpartition("/")
        text = (repository_root / "tests" / folder / f"test_{name}.py").read_text(encoding="utf-8")
        assert f"of_module({name})" in text
    assert set(BROKEN) | DISAGREEING == set(RULES)
    assert all(sentence.endswith(".") and "\n" not in sentence for sentence in RULES.values())


def test_the_cut_of_a_batch_is_told():
    """Tests that size, number and batch are named, that a plan that cuts it well passes, and others may not cut."""
    assert only_violation(*of_batch(microbatch_size=1)()).message == (
        "The plan has 2 microbatches of 1 samples, which are not 4."
    )
    assert only_violation(*of_batch(allowed=(1,))()).message == (
        "The plan has microbatches of 2 samples, none of the sizes [1]."
    )
    assert verify(*of_batch()()).passed
    assert verify(*of_batch(allowed=(1, 2))()).passed
    assert broken_rules(*with_reference_field(microbatch_size=2)()) == ["batch-size"]
    assert broken_rules(*of_batch(microbatch_size=0)()) == ["malformed"]
    assert broken_rules(*of_batch(microbatch_size="2")()) == ["malformed"]
    assert broken_rules(*of_batch(microbatch_size=2**30)()) >= ["batch-cut", "size-unmeasured"]


def test_a_cut_sample_is_told():
    """Tests that stage, number of replicas and size of the microbatch are named, and that r = b is whole."""
    violation = only_violation(*cut_sample())
    assert violation.message == "Stage 0 has 2 replicas, which does not divide microbatch_size = 3 samples."
    problem, plan = cut_sample()
    whole = replace(problem, profile=replace(problem.profile, microbatch_size=2))
    assert verify(whole, with_reference(whole, plan)).passed


def test_an_unmeasured_share_is_told():
    """Tests that half a microbatch needs a cost of its own unless costs scale linearly."""
    problem, plan = cut_sample()
    profile = replace(problem.profile, microbatch_size=2, scaling="measured")
    violations = verify(problem := replace(problem, profile=profile), with_reference(problem, plan)).violations
    assert {violation.rule for violation in violations} == {"width-unmeasured"}
    assert "was not measured on 'gpu' at width 1 for 1/2 of a microbatch." in violations[0].message


def test_the_base_plan_is_valid():
    """Tests that the plan that the table breaks has nothing wrong with it, with and without evidence."""
    problem = base_problem()
    verdict = verify(problem, base_plan(problem))
    assert verdict.passed
    assert verdict.timeline == simulate(problem, base_plan(problem))
    assert verdict.summary() == {"passed": True, "violations": []}
    assert verify(problem, with_evidence(problem, base_plan(problem))).passed


def test_split_placement_is_valid():
    """Tests that the stage that the rules of split placement are tested with has nothing wrong with it otherwise."""
    assert verify(*with_split(APART_STAGE)()).passed


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("timeline-broken", {"makespan_ns": 1}),
        ("timeline-broken", {"actions": {}}),
        ("span-differs", {"span_ns": 1}),
        ("bubble-differs", {"bubble": 0.123}),
        ("peaks-differ", {"peak_bytes": {}}),
    ],
)
def test_disagreeing_evaluations(rule: str, change: dict[str, object], monkeypatch: pytest.MonkeyPatch):
    """Tests that a simulator whose figures the judge does not confirm is not believed."""

    def simulate_wrongly(*arguments: object, **keywords: object) -> Timeline:
        return replace(simulate(*arguments, **keywords), **change)

    monkeypatch.setattr(planner.verify, "simulate", simulate_wrongly)
    problem = base_problem()
    assert broken_rules(problem, base_plan(problem)) == [rule]


def test_a_simulator_that_gives_up_is_reported(monkeypatch: pytest.MonkeyPatch):
    """Tests that a plan without fault that the simulator cannot play is rejected, not a traceback."""

    def give_up(*arguments: object, **keywords: object) -> Timeline:
        raise PlanError("no")

    monkeypatch.setattr(planner.verify, "simulate", give_up)
    problem = base_problem()
    assert broken_rules(problem, base_plan(problem)) == ["timeline-broken"]


def test_deadlock_names_its_cycle():
    """Tests that the cycle is told as a chain of actions, each with its device."""
    violation = only_violation(*BROKEN["deadlock"]())
    assert violation.message == (
        "The schedule deadlocks: 0I0 on a, which waits for 1I0 on b, which waits for 1F1 on b, "
        "which waits for 0F1 on a, which waits for 0I0 on a."
    )


def test_deadlock_between_groups_is_found():
    """Tests that two groups that share their devices and meet in opposite order are a deadlock."""
    problem = base_problem(max_width=2)
    words = {"b": "1F0 1F1 1B0 1B1 0F0 0F1 0B0 0B1", "c": "0F0 0F1 1F0 1F1 1B0 1B1 0B0 0B1"}
    layers = tuple(replace(layer, wider=problem.profile.layers[2].wider) for layer in problem.profile.layers)
    problem = replace(problem, profile=replace(problem.profile, layers=layers))
    violation = only_violation(problem, make_plan(problem, ["w x @ b+c", "y z @ b+c"], words))
    assert violation.rule == "deadlock"
    assert "1F0 on b" in violation.message
    assert "0F0 on c" in violation.message


def test_long_cycles_are_shortened():
    """Tests that of a cycle through twelve devices the first and the last steps are told."""
    layers = [make_layer(f"l{i}") for i in range(13)]
    problem = make_problem(layers, [make_link(f"d{i} d{i + 1}") for i in range(11)])
    words = {f"d{i}": f"{i}F0 {i}B0" for i in range(1, 12)} | {"d0": "12F0 0F0 0B0 12B0"}
    plan = make_plan(problem, [f"l{i} @ d{i % 12}" for i in range(13)], words)
    assert only_violation(problem, plan).actual == (
        "1F0 on d1 <- 0F0 on d0 <- 12F0 on d0 <- 11F0 on d11 <- 10F0 on d10 <- 9F0 on d9 <- ... <- "
        "5F0 on d5 <- 4F0 on d4 <- 3F0 on d3 <- 2F0 on d2 <- 1F0 on d1"
    )


def test_memory_names_the_first_action_over_the_limit():
    """Tests that the message says how much, the limit, and during which action it is first exceeded."""
    violation = only_violation(*BROKEN["memory-exceeded"]())
    assert violation.message == "Device a holds up to 10 bytes, above its 9, first during 0F1."


def test_memory_that_is_full_from_the_start():
    """Tests that state and buffers alone may exceed the limit, and that no action is blamed then."""
    problem = with_memory(base_problem(), {"a": 1})
    assert "before its first action" in only_violation(problem, base_plan(problem)).message


def test_rules_report_no_more_than_their_share():
    """Tests that a schedule in which everything is missing is not told action by action."""
    problem = make_problem([make_layer("x")], [], more_devices="a", num_microbatches=100)
    assert len(verify(problem, make_plan(problem, ["x @ a"], {"a": ""})).violations) == MAX_VIOLATIONS_PER_RULE


def test_options_at_their_defaults_need_not_be_listed():
    """Tests that an option that the plan lists at its default is as good as one it leaves out, and types count."""
    problem = base_problem()
    plan = base_plan(problem)
    listed = replace(plan, problem=replace(plan.problem, options={"max_width": 1, "partition": None}))
    assert verify(problem, listed).passed
    for options in ({"max_width": True}, {"max_width": 1.0}, {"max_width": "1"}, {"unheard": 1}, {"pinned": [1]}):
        assert broken_rules(problem, replace(plan, problem=replace(plan.problem, options=options))) == [
            "options-differ"
        ]


def test_given_options_that_are_kept():
    """Tests that a plan that keeps its pinned layers, partition and placement has nothing wrong with it."""
    problem = base_problem(
        partition=(("x", "w"), ("y", "z")),
        placement=((("a",),), (("b",),)),
        pinned=(PinnedLayer(layer="z", device="b"),),
    )
    assert verify(problem, base_plan(problem)).passed


def test_pinned_layer_is_on_its_device_alone():
    """Tests that a pinned layer whose stage has a replica elsewhere is not where it must be."""
    problem = base_problem(pinned=(PinnedLayer(layer="z", device="b"),))
    assert broken_rules(problem, base_plan(problem, "w x @ a", "y z @ b | c", **REPLICATED)) == ["layer-pinned"]


def test_bounds_follow_the_objective():
    """Tests that bound and gap are judged by the span where the span is minimised."""
    problem = base_problem(objective="span")
    problem = replace(problem, profile=replace(problem.profile, optimizer_ns=100))
    span = simulate(problem, base_plan(problem)).span_ns
    fields = {"lower_bound_ns": span, "gap": 0.0, "solution_status": "optimal"}
    assert verify(problem, with_evidence(problem, base_plan(problem), **fields)).passed
    too_high = with_evidence(problem, base_plan(problem), lower_bound_ns=span + 1)
    assert broken_rules(problem, too_high) == ["evidence-lower-bound"]


def test_memory_that_is_just_enough_is_enough():
    """Tests that a peak equal to the limit passes, and one byte less does not."""
    problem = base_problem()
    peaks = simulate(problem, base_plan(problem)).peak_bytes
    exact = with_memory(problem, dict(peaks))
    assert verify(exact, base_plan(exact)).passed
    short = with_memory(problem, {"b": peaks["b"] - 1})
    assert broken_rules(short, base_plan(short)) == ["memory-exceeded"]


@given(case=cases())
def test_random_plans_are_valid(case: tuple[Problem, Plan]):
    """Tests that plans that are valid by construction pass, with their true evidence as well."""
    problem, plan = case
    assert verify(problem, plan).violations == ()
    assert verify(problem, with_evidence(problem, plan)).violations == ()


@given(case=cases(), data=st.data())
def test_memory_limits_are_exact(case: tuple[Problem, Plan], data: st.DataObject):
    """Tests that a device with exactly its peak suffices, and that with a byte less its plan is rejected."""
    problem, plan = case
    peaks = simulate(problem, plan).peak_bytes
    exact = with_memory(problem, dict(peaks))
    assert verify(exact, with_reference(exact, plan)).passed
    device = data.draw(st.sampled_from(sorted(peaks)))
    if peaks[device]:
        short = with_memory(problem, {device: peaks[device] - 1})
        assert broken_rules(short, with_reference(short, plan)) == ["memory-exceeded"]


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.just(10**400),
    st.just(math.nan),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.just(object()),
)


@given(field=st.sampled_from([*Evidence.__dataclass_fields__]), value=JUNK)
def test_evidence_may_be_anything(field: str, value: object):
    """Tests that whatever stands in the evidence is judged, not raised about."""
    problem = base_problem()
    verdict = verify(problem, with_evidence(problem, base_plan(problem), **{field: value}))
    assert {violation.rule.split("-")[0] for violation in verdict.violations} <= {"evidence"}


@given(
    field=st.sampled_from(["profile", "profile_sha256", "cluster_sha256", "num_microbatches", "options"]), value=JUNK
)
def test_reference_may_be_anything(field: str, value: object):
    """Tests that whatever a plan calls its problem is compared, not raised about."""
    problem = base_problem()
    plan = base_plan(problem)
    verify(problem, replace(plan, problem=replace(plan.problem, **{field: value})))


@given(
    part=st.sampled_from(["problem", "stages", "schedule", "layers", "replicas", "recompute", "samples", "word"]),
    value=JUNK,
)
def test_parts_may_be_anything(part: str, value: object):
    """Tests that a plan made of the wrong things is malformed, or at least judged."""
    problem = base_problem()
    plan = base_plan(problem)
    if part == "word":
        plan = replace(plan, schedule={**plan.schedule, "a": value})
    elif part in Plan.__dataclass_fields__:
        plan = replace(plan, **{part: value})
    else:
        plan = replace(plan, stages=(replace(plan.stages[0], **{part: value}), plan.stages[1]))
    verify(problem, plan)


@given(
    kind=st.sampled_from(["F", "I", "W", "B", "Q", "", None, 1]),
    stage=st.one_of(st.integers(), st.none(), st.text(max_size=2)),
    microbatch=st.one_of(st.integers(), st.floats(), st.none()),
    at=st.integers(0, 5),
)
def test_actions_may_be_anything(kind: object, stage: object, microbatch: object, at: int):
    """Tests that an action more, whatever it is, makes the plan invalid and nothing worse."""
    problem = base_problem()
    plan = base_plan(problem)
    word = plan.schedule["a"]
    word = (*word[:at], Action(kind, stage, microbatch), *word[at:])
    assert not verify(problem, replace(plan, schedule={**plan.schedule, "a": word})).passed


def large_case() -> tuple[Problem, Plan]:
    """64 stages on 64 devices, 256 microbatches, 1F1B with the backward split: 49,152 actions."""
    count, total = 64, 256
    links = [make_link(f"d{i:02} d{i + 1:02}", latency=5) for i in range(count - 1)]
    layers = [make_layer(f"l{i}", (100 + i, 110 - i, 90)) for i in range(count)]
    problem = make_problem(layers, links, num_microbatches=total, edge_bytes=9)
    schedule = {}
    for s in range(count):
        warm = min(total, count - s)
        text = [f"{s}F{m}" for m in range(warm)]
        for m in range(total):
            text += [f"{s}I{m}", f"{s}W{m}", *([f"{s}F{m + warm}"] if m + warm < total else [])]
        schedule[f"d{s:02}"] = tuple(map(parse_action, text))
    stages = tuple(make_stage(f"l{i} @ d{i:02}") for i in range(count))
    return problem, Plan(problem=problem.reference(), stages=stages, schedule=schedule)


def test_large_plans_are_verified_at_once():
    """Tests that 49,152 actions take seconds even on a busy machine (0.8 s on an idle core)."""
    problem, plan = large_case()
    begin = time.process_time()
    assert verify(problem, plan).passed
    assert time.process_time() - begin < 5


def test_devices_of_other_types_are_known():
    """Tests that a cluster may hold devices that a plan does not use."""
    problem = base_problem()
    devices = (*problem.cluster.devices, Device(name="spare", type="cpu", memory_bytes=1, host="h"))
    links = (*problem.cluster.links, make_link("a spare"))
    problem = replace(problem, cluster=replace(problem.cluster, devices=devices, links=links))
    assert verify(problem, base_plan(problem)).passed
