"""The judge believes a timeline only if every equation holds."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.actions import parse_action
from planner.judge.reading import Reading
from planner.judge.times import MAX_INCONSISTENCIES, Judgement, check_times
from planner.plan import Plan
from planner.problem import Problem
from planner.simulation.simulate import TimedSynchronisation, Timeline, simulate
from tests.planner.builders import make_layer, make_link, make_plan, make_problem
from tests.strategies import cases, split_cases


def make_case(**fields: object) -> tuple[Problem, Plan]:
    """x on a; y on b and c, whose transfers share the link from a to s; two microbatches."""
    links = [make_link("a s"), make_link("s b"), make_link("s c")]
    layers = [make_layer("x"), make_layer("y", (2, 2, 2), parameter_bytes=4)]
    problem = make_problem(layers, links, switches=("s",), num_microbatches=2, edge_bytes=4, **fields)
    words = {"a": "0F0 0F1 0I0 0W0 0B1", "b": "1F0 1B0 1F1 1B1", "c": "1F0 1B0 1F1 1B1"}
    return problem, make_plan(problem, ["x @ a", "y @ b | c"], words)


def judged(change: Callable[[Timeline], Timeline], **fields: object) -> Judgement:
    """The judgement of a timeline that has been tampered with."""
    problem, plan = make_case(**fields)
    return check_times(Reading(problem, plan), change(simulate(problem, plan)))


def with_action(device: str, index: int, **fields: object) -> Callable[[Timeline], Timeline]:
    """Change one timed action."""

    def change(timeline: Timeline) -> Timeline:
        word = list(timeline.actions[device])
        word[index] = word[index]._replace(**fields)
        return replace(timeline, actions={**timeline.actions, device: tuple(word)})

    return change


def with_transfer(index: int, **fields: object) -> Callable[[Timeline], Timeline]:
    """Change one transfer."""

    def change(timeline: Timeline) -> Timeline:
        sent = list(timeline.transfers)
        sent[index] = sent[index]._replace(**fields)
        return replace(timeline, transfers=tuple(sent))

    return change


def test_true_timelines_are_believed():
    """Tests that the timeline of the simulator has no inconsistency, and that its figures come out again."""
    problem, plan = make_case(optimizer_ns=3)
    timeline = simulate(problem, plan)
    second = check_times(Reading(problem, plan), timeline)
    assert second.inconsistencies == ()
    assert (second.makespan_ns, second.span_ns) == (timeline.makespan_ns, timeline.span_ns)
    assert second.peak_bytes == timeline.peak_bytes
    assert second.bubble == pytest.approx(timeline.bubble)


TAMPERED: dict[str, tuple[Callable[[Timeline], Timeline], str]] = {
    "a device too few": (lambda t: replace(t, actions={}), "devices are not the plan's"),
    "another action": (with_action("a", 0, action=parse_action("0F1")), "actions on a are not the plan's"),
    "a shorter action": (with_action("a", 4, end_ns=1), "0B1 on a takes"),
    "a transfer of another size": (with_transfer(0, num_bytes=1), "wrong size, route or duration"),
    "a transfer over other links": (with_transfer(0, links=(0,)), "wrong size, route or duration"),
    "a faster transfer": (with_transfer(0, end_ns=2), "wrong size, route or duration"),
    "a transfer ready too soon": (with_transfer(0, ready_ns=0), "is ready at 0 ns, but its action ends at 1 ns"),
    "a transfer twice": (
        lambda t: replace(t, transfers=(*t.transfers, *t.transfers)),
        "is not needed, or occurs twice",
    ),
    "a transfer to nobody": (with_transfer(0, receiver="a"), "is not needed, or occurs twice"),
    "a transfer too few": (lambda t: replace(t, transfers=t.transfers[1:]), "from a to b for microbatch 0 is missing"),
    "no synchronisation": (lambda t: replace(t, synchronisations=()), "synchronisation of stage 1 does not take 4 ns"),
    "a synchronisation twice": (
        lambda t: replace(t, synchronisations=t.synchronisations * 2),
        "a synchronisation too many",
    ),
    "a synchronisation of nothing": (
        lambda t: replace(t, synchronisations=(*t.synchronisations, TimedSynchronisation(0, 1, 2))),
        "does not take 0 ns",
    ),
    "a synchronisation too soon": (
        lambda t: replace(t, synchronisations=(TimedSynchronisation(1, 1, 5),)),
        "does not start at the end of its last action",
    ),
    "another makespan": (lambda t: replace(t, makespan_ns=1), "says makespan 1 ns"),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_tampering_is_noticed(what: str):
    """Tests that a timeline in which one thing is wrong is not believed, and that the thing is named."""
    change, expected = TAMPERED[what]
    (text, *_) = judged(change).inconsistencies
    assert expected in text


def test_order_on_links_is_checked():
    """Tests that a timeline in which two transfers of equal rank have changed places on their link is not believed."""
    problem, plan = make_case()
    timeline = simulate(problem, plan)
    first, second = timeline.transfers[:2]
    assert (first.receiver, second.receiver, first.ready_ns) == ("b", "c", second.ready_ns)
    swapped = (
        first._replace(start_ns=second.start_ns, end_ns=second.end_ns),
        second._replace(start_ns=first.start_ns, end_ns=first.end_ns),
    )
    found = check_times(Reading(problem, plan), replace(timeline, transfers=(*swapped, *timeline.transfers[2:])))
    assert any("sends for microbatch 0" in text for text in found.inconsistencies)


def test_idling_is_noticed():
    """Tests that an action that could have started earlier is found, even if everything after it fits."""
    found = judged(lambda t: with_action("a", 4, start_ns=t.actions["a"][4].start_ns + 9, end_ns=t.makespan_ns + 9)(t))
    assert found.inconsistencies
    (text,) = judged(
        lambda t: with_action("a", 4, start_ns=t.actions["a"][4].start_ns + 9, end_ns=t.actions["a"][4].end_ns + 9)(
            replace(t, makespan_ns=t.actions["a"][4].end_ns + 9)
        )
    ).inconsistencies
    assert text.startswith("0B1 on a starts at")


def test_bucketed_synchronisation_is_checked():
    """Tests that a synchronisation that queues has to start when its links are free."""
    wrong = judged(
        lambda t: replace(
            t,
            synchronisations=tuple(
                s._replace(start_ns=s.start_ns + 1, end_ns=s.end_ns + 1) for s in t.synchronisations
            ),
        ),
        synchronisation="bucketed",
    )
    assert any("stage 1 sends for microbatch 2" in text for text in wrong.inconsistencies)


def test_no_more_than_a_few_inconsistencies_are_listed():
    """Tests that a timeline that is wrong everywhere is not told in full."""
    problem = make_problem([make_layer("x")], [], more_devices="a", num_microbatches=50)
    plan = make_plan(problem, ["x @ a"], {"a": " ".join(f"0F{m} 0B{m}" for m in range(50))})
    timeline = simulate(problem, plan)
    late = tuple(timed._replace(start_ns=timed.start_ns + 1) for timed in timeline.actions["a"])
    found = check_times(Reading(problem, plan), replace(timeline, actions={"a": late}))
    assert len(found.inconsistencies) == MAX_INCONSISTENCIES


@given(case=st.one_of(cases(), split_cases()), data=st.data())
def test_no_time_can_be_changed_unnoticed(case: tuple[Problem, Plan], data: st.DataObject):
    """Tests that whichever single time of a timeline is changed, the timeline is no longer believed."""
    problem, plan = case
    timeline = simulate(problem, plan)
    delta = data.draw(st.sampled_from([-3, -1, 1, 2]))
    kinds = [
        "action",
        "makespan",
        *["transfer"] * bool(timeline.transfers),
        *["sync"] * bool(timeline.synchronisations),
    ]
    kind = data.draw(st.sampled_from(kinds))
    if kind == "action":
        device = data.draw(st.sampled_from(sorted(timeline.actions)))
        index = data.draw(st.integers(0, len(timeline.actions[device]) - 1))
        field = data.draw(st.sampled_from(["start_ns", "end_ns"]))
        wrong = with_action(device, index, **{field: getattr(timeline.actions[device][index], field) + delta})(timeline)
    elif kind == "transfer":
        index = data.draw(st.integers(0, len(timeline.transfers) - 1))
        field = data.draw(st.sampled_from(["ready_ns", "start_ns", "end_ns", "num_bytes", "microbatch"]))
        wrong = with_transfer(index, **{field: getattr(timeline.transfers[index], field) + delta})(timeline)
    elif kind == "sync":
        first, *others = timeline.synchronisations
        wrong = replace(timeline, synchronisations=(first._replace(end_ns=first.end_ns + delta), *others))
    else:
        wrong = replace(timeline, makespan_ns=timeline.makespan_ns + delta)
    assert check_times(Reading(problem, plan), wrong).inconsistencies


@given(case=st.one_of(cases(), split_cases()), data=st.data())
def test_no_action_can_be_moved_unnoticed(case: tuple[Problem, Plan], data: st.DataObject):
    """Tests that an action moved as a whole, on all devices of its group, is no longer believed."""
    problem, plan = case
    timeline = simulate(problem, plan)
    device = data.draw(st.sampled_from(sorted(timeline.actions)))
    index = data.draw(st.integers(0, len(timeline.actions[device]) - 1))
    action, delta = timeline.actions[device][index].action, data.draw(st.sampled_from([-1, 1]))
    mates = next(group for group in plan.stages[action.stage].groups if device in group)
    moved = {
        name: tuple(
            timed._replace(start_ns=timed.start_ns + delta, end_ns=timed.end_ns + delta)
            if name in mates and timed.action == action
            else timed
            for timed in word
        )
        for name, word in timeline.actions.items()
    }
    assert check_times(Reading(problem, plan), replace(timeline, actions=moved)).inconsistencies


def slow_link(layer_ns: int, *, bandwidth: int) -> tuple[Problem, Plan]:
    """Two stages and a pebibyte between them."""
    layers = [make_layer(name, (layer_ns, layer_ns, layer_ns), stash_bytes=2**50) for name in "xy"]
    problem = make_problem(
        layers, [make_link("a b", bandwidth=bandwidth)], num_microbatches=2, edge_bytes=2**50, memory_bytes=2**50
    )
    return problem, make_plan(problem, ["x @ a", "y @ b"], {"a": "0F0 0F1 0B0 0B1", "b": "1F0 1B0 1F1 1B1"})


def stretched(timeline: Timeline, factor: int) -> Timeline:
    """All of it, but for what is held, at other times."""

    def times(each: Any) -> Any:
        return each._replace(**{name: factor * getattr(each, name) for name in each._fields if name.endswith("_ns")})

    return replace(
        timeline,
        actions={device: tuple(map(times, row)) for device, row in timeline.actions.items()},
        transfers=tuple(map(times, timeline.transfers)),
        makespan_ns=factor * timeline.makespan_ns,
        span_ns=factor * timeline.span_ns,
    )


def test_figures_beyond_64_bits_are_exact():
    """Tests that years on a link of one byte per second, and more bytes than 64 bits hold, are judged all the same.

    The core and the question refuse such times; here they are those of a faster world, every one 2**30 times as long.
    """
    with mock.patch.object(Problem, "_require_moderate_bytes"):
        problem, plan = slow_link(9000 * 2**30, bandwidth=1)
    timeline = stretched(simulate(*slow_link(9000, bandwidth=2**30)), 2**30)
    found = check_times(Reading(problem, plan), timeline)
    assert found.inconsistencies == ()
    assert found.makespan_ns == timeline.makespan_ns > 2**64
    assert found.peak_bytes == timeline.peak_bytes
    late = with_transfer(-1, end_ns=timeline.transfers[-1].end_ns + 1)(timeline)
    assert check_times(Reading(problem, plan), late).inconsistencies
