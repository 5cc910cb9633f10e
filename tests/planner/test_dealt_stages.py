"""The stages of a plan, as a dealing wants them."""

import itertools
from dataclasses import replace

import pytest

from planner.dealing import StageTimes, deal
from planner.dealt_stages import stages_of_plan
from planner.execute.data.dealt_rows import make_1f1b
from planner.plan import Plan, Stage
from planner.problem import Options, Problem
from planner.verify import verify
from profiles.cluster import Cluster, Device, Link
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile

SIZES, NAMES = (2, 4, 8), ("a", "b", "c", "d")


def make_layer(name: str, factor: int) -> Layer:
    """A layer whose times grow faster than its samples."""
    costs = tuple(
        LayerCost(
            device_type="t", microbatch_size=size, forward_ns=factor * size * size, input_grad_ns=factor * size,
            weight_grad_ns=factor * size, backward_ns=2 * factor * size,
        )
        for size in SIZES
    )  # fmt: skip
    return Layer(name=name, costs=costs, stash_bytes=80, workspace_bytes=16, state_bytes=100, parameter_bytes=40)


def make_question(*, memory_bytes: int = 10_000) -> Problem:
    """Four layers on two pipelines of two devices."""
    profile = ModelProfile(
        name="p",
        microbatch_size=8,
        layers=tuple(make_layer(name, factor) for factor, name in enumerate(NAMES, 1)),
        edges=tuple(Edge(producer=a, consumer=b, bytes=8) for a, b in itertools.pairwise(NAMES)),
    )
    devices = tuple(Device(name=f"d{k}", type="t", memory_bytes=memory_bytes) for k in range(4))
    links = tuple(Link(a=f"d{i}", b=f"d{j}", bandwidth_bytes_per_s=10**12) for i in range(4) for j in range(i + 1, 4))
    cluster = Cluster(name="c", devices=devices, links=links)
    return Problem(
        profile=profile, cluster=cluster, num_microbatches=4, options=Options(max_stages_per_device=1, max_replicas=2)
    )


def make_plan(question: Problem) -> Plan:
    """Two stages, two replicas of each."""
    stages = (
        Stage(layers=("a", "b"), replicas=(("d0",), ("d1",))),
        Stage(layers=("c", "d"), replicas=(("d2",), ("d3",))),
    )
    return Plan(problem=question.reference(), stages=stages, schedule={})


def test_stages_take_what_was_measured():
    """Tests that times and bytes are sums over a stage's layers, whole, at every measured size."""
    question = make_question()
    first, second = stages_of_plan(make_plan(question), question)
    assert first.lengths == second.lengths == SIZES
    assert first.forward_ns == tuple(3 * size * size for size in SIZES)
    assert second.backward_ns == tuple(14 * size for size in SIZES)
    assert first.held_bytes == (40, 80, 160)


@pytest.mark.parametrize("slack", [0, -1])
def test_room_is_what_the_judge_leaves(slack: int):
    """Tests that equal microbatches have room in just the memory that the judge counts for them, and not in less."""
    question, sizes = make_question(), (8,) * 6
    plan = dealt_plan(question, sizes=sizes, stages=stages_of_plan(make_plan(question), question))
    judgement = verify(listed(question, sizes), plan).judgement
    assert judgement is not None
    tight = make_question(memory_bytes=max(judgement.peak_bytes.values()) + slack)
    stages = stages_of_plan(make_plan(tight), tight)
    if slack:
        with pytest.raises(ValueError, match="bytes in flight there"):
            deal(sizes, 2, stages=stages)
        return
    assert verify(listed(tight, sizes), dealt_plan(tight, sizes=sizes, stages=stages)).passed


def listed(question: Problem, sizes: tuple[int, ...]) -> Problem:
    """The question for these microbatches."""
    return replace(question, microbatches=sizes, num_microbatches=len(sizes))


def dealt_plan(question: Problem, *, sizes: tuple[int, ...], stages: tuple[StageTimes, ...]) -> Plan:
    """The plan with a dealing, each pipeline in 1F1B."""
    hands = deal(sizes, 2, stages=stages).pipelines
    plan = make_plan(question)
    schedule = {
        stage.replicas[k][0]: make_1f1b(hand, stage=number, num_stages=2)
        for number, stage in enumerate(plan.stages)
        for k, hand in enumerate(hands)
    }
    return replace(plan, problem=listed(question, sizes).reference(), schedule=schedule, dealing=hands)


def test_long_and_short_take_turns_where_room_is_scarce():
    """Tests that what does not fit longest first is run in another order, and never without room."""
    times = StageTimes(lengths=(1, 10), forward_ns=(1, 10), backward_ns=(1, 10), held_bytes=(1, 10), room_bytes=12)
    stages = (times, replace(times, room_bytes=None, held_bytes=()))
    (hand,) = deal((10, 10, 1, 1), 1, stages=stages).pipelines
    held = [(10, 10, 1, 1)[number] for number in hand]
    assert max(a + b for a, b in itertools.pairwise(held)) <= 12
    with pytest.raises(ValueError, match="room_bytes = 12 on stage 0"):
        deal((10, 10, 10), 1, stages=stages)


def test_other_plans_are_refused():
    """Tests that chunks, unlike numbers of replicas and plans without a profile are refused with the remedy."""
    question = make_question()
    plan = make_plan(question)
    chunked = replace(plan, stages=(plan.stages[0], replace(plan.stages[1], replicas=(("d0",), ("d1",)))))
    for other in (chunked, replace(plan, stages=(plan.stages[0], replace(plan.stages[1], replicas=(("d2",),))))):
        with pytest.raises(ValueError, match="max_stages_per_device = 1"):
            stages_of_plan(other, question)
    with pytest.raises(ValueError, match="give `problem`"):
        stages_of_plan(plan)
