"""Where the time goes: every part on a plan drawn by hand, and sums on random ones."""

import dataclasses
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.actions import parse_action
from planner.baselines.registry import make_baselines
from planner.layout.costs import CostModel
from planner.plan import Plan, Stage
from planner.problem import Options, Problem
from planner.simulation.explain import DeviceTime, Explanation, explain
from planner.simulation.simulate import simulate
from profiles.cluster import Cluster, Device, Link
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile
from tests.strategies import cases

PARTS = {field.name for field in dataclasses.fields(DeviceTime)} - {"device"}


def layer(
    name: str, *, times: tuple[int, int, int] = (10, 10, 10), stash_bytes: int = 0, parameter_bytes: int = 8
) -> Layer:
    forward, input_grad, weight_grad = times
    cost = LayerCost(device_type="x", forward_ns=forward, input_grad_ns=input_grad, weight_grad_ns=weight_grad)
    return Layer(name=name, costs=(cost,), parameter_bytes=parameter_bytes, stash_bytes=stash_bytes)


def chain(*layers: Layer, edge_bytes: int = 0, optimizer_ns: int = 0) -> ModelProfile:
    edges = pairwise(layers)
    return ModelProfile(
        name="chain",
        layers=layers,
        edges=tuple(Edge(producer=a.name, consumer=b.name, bytes=edge_bytes) for a, b in edges),
        optimizer_ns=optimizer_ns,
    )


def line_of(num_devices: int, *, memory_bytes: int = 10**6, overlap: bool = True) -> Cluster:
    """Neighbours are linked; one byte takes one nanosecond."""
    return Cluster(
        name="line",
        devices=tuple(Device(name=f"d{i}", type="x", memory_bytes=memory_bytes) for i in range(num_devices)),
        links=tuple(Link(a=f"d{i}", b=f"d{i + 1}", bandwidth_bytes_per_s=10**9) for i in range(num_devices - 1)),
        overlap=overlap,
    )


def explained(
    profile: ModelProfile,
    cluster: Cluster,
    *,
    words: dict[str, str],
    num_microbatches: int = 1,
    stages: tuple[Stage, ...] = (),
) -> Explanation:
    """One stage per layer and device, unless `stages` says otherwise; words such as `{"d0": "0F0 0I0 0W0"}`."""
    problem = Problem(
        profile=profile, cluster=cluster, num_microbatches=num_microbatches, options=Options(receive_buffers=0)
    )
    single = tuple(Stage(layers=(layer.name,), replicas=((f"d{i}",),)) for i, layer in enumerate(profile.layers))
    schedule = {device: tuple(parse_action(text) for text in word.split()) for device, word in words.items()}
    plan = Plan(problem=problem.reference(), stages=stages or single, schedule=schedule)
    return explain(problem, plan, timeline=simulate(problem, plan))


def idle(row: DeviceTime) -> dict[str, int]:
    """The parts that are not work and not zero."""
    work = {"forward_ns", "input_grad_ns", "weight_grad_ns", "backward_ns"}
    return {name.removesuffix("_ns"): getattr(row, name) for name in sorted(PARTS - work) if getattr(row, name)}


def path(explanation: Explanation) -> str:
    return " ".join(f"{step.kind}{'' if step.stage is None else step.stage}" for step in explanation.path)


def test_fill_drain_and_others():
    """Tests that waiting for a neighbour's work is told from fill and drain.

    d0  FFF......IIIWWW
    d1  ...FFFIIIWWW...
    """
    words = {"d0": "0F0 0I0 0W0", "d1": "1F0 1I0 1W0"}
    result = explained(chain(layer("a"), layer("b")), line_of(2), words=words)
    first, second = result.devices
    assert (first.work_ns, idle(first)) == (30, {"others": 20})
    assert (second.work_ns, idle(second)) == (30, {"fill": 10, "drain": 10})
    assert path(result) == "F0 transfer0 F1 I1 transfer1 I0 W0"


def test_transfers():
    """Tests that the way of the last input counts as transfer, and the work it comes from as others' work."""
    words = {"d0": "0F0 0I0 0W0", "d1": "1F0 1I0 1W0"}
    result = explained(chain(layer("a"), layer("b"), edge_bytes=5), line_of(2), words=words)
    assert idle(result.devices[0]) == {"others": 25, "transfer": 5}
    assert idle(result.devices[1]) == {"fill": 15, "drain": 15}
    assert path(result) == "F0 transfer0 F1 I1 transfer1 I0 W0"


def test_busy_link():
    """Tests that waiting for a link that another transfer occupies is told from the transfer itself.

    a on d0 and b on d1 both feed c on d2 through one link of a switch; F takes 1, a transfer 5:

    link  .aaaaabbbbbaaaaabbbbb...
    d2    ...........FIW.......FIW
    """
    quick = {name: layer(name, times=(1, 1, 1)) for name in "abc"}
    profile = ModelProfile(
        name="join",
        layers=tuple(quick.values()),
        edges=tuple(Edge(producer=name, consumer="c", bytes=5, gradient_bytes=0) for name in "ab"),
    )
    cluster = Cluster(
        name="star",
        devices=tuple(Device(name=f"d{i}", type="x", memory_bytes=10**6) for i in range(3)),
        links=tuple(Link(a=f"d{i}", b="hub", bandwidth_bytes_per_s=10**9) for i in range(3)),
        switches=("hub",),
    )
    words = {f"d{i}": f"{i}F0 {i}F1 {i}I0 {i}I1 {i}W0 {i}W1" for i in range(2)} | {"d2": "2F0 2I0 2W0 2F1 2I1 2W1"}
    result = explained(profile, cluster, words=words, num_microbatches=2)
    assert idle(result.devices[2]) == {"fill": 11, "transfer": 5, "link": 2}
    assert path(result).startswith("F1 F1 link1 transfer1 F2")


@pytest.mark.parametrize(("memory_bytes", "part"), [(7, "memory"), (14, "order")])
def test_memory_and_order(memory_bytes: int, part: str):
    """Tests that a forward that could have run meanwhile counts for the memory if it does not fit, else for the order.

    d0  F0..........I0W0F1..........I1W1
    d1  ..F0I0W0........................
    """
    words = {"d0": "0F0 0I0 0W0 0F1 0I1 0W1", "d1": "1F0 1I0 1W0 1F1 1I1 1W1"}
    profile = chain(layer("a", stash_bytes=7), layer("b"))
    result = explained(profile, line_of(2, memory_bytes=memory_bytes), words=words, num_microbatches=2)
    assert idle(result.devices[0]) == {part: 10, "others": 30}


def test_action_fills_once():
    """Tests that one action is not counted for two gaps, and what is longer than the gap not at all."""
    long = chain(layer("a", times=(25, 10, 10), stash_bytes=7), layer("b"))
    words = {"d0": "0F0 0I0 0W0 0F1 0I1 0W1", "d1": "1F0 1I0 1W0 1F1 1I1 1W1"}
    assert idle(explained(long, line_of(2), words=words, num_microbatches=2).devices[0]) == {"others": 40}


def test_synchronisation_and_optimizer():
    """Tests that the all-reduce of a replicated stage and the optimizer step have parts of their own."""
    both = (Stage(layers=("a", "b"), replicas=(("d0",), ("d1",))),)
    words = {"d0": "0F0 0I0 0W0", "d1": "0F0 0I0 0W0"}
    result = explained(chain(layer("a"), layer("b"), optimizer_ns=3), line_of(2), words=words, stages=both)
    assert [idle(row) for row in result.devices] == [{"synchronisation": 16, "optimizer": 3}] * 2
    assert path(result) == "F0 I0 W0 synchronisation0 optimizer"


def test_no_overlap():
    """Tests that without overlap the device's own sending counts as transfer, whatever it would wait for."""
    words = {"d0": "0F0 0F1 0I0 0I1 0W0 0W1", "d1": "1F0 1F1 1I0 1I1 1W0 1W1"}
    profile = chain(layer("a"), layer("b"), edge_bytes=5)
    result = explained(profile, line_of(2, overlap=False), words=words, num_microbatches=2)
    assert idle(result.devices[0])["transfer"] == 20
    assert {step.kind for step in result.path} <= {"F", "I", "W", "transfer", "link"}


def assert_sound(problem: Problem, plan: Plan):
    """Parts add up to the makespan; the critical chain leads from 0 to the makespan without holes or mere waiting."""
    timeline = simulate(problem, plan)
    result = explain(problem, plan, timeline=timeline)
    assert [row.device for row in result.devices] == list(timeline.actions)
    for row in result.devices:
        assert row.total_ns == timeline.makespan_ns, row
        assert all(getattr(row, name) >= 0 for name in PARTS), row
        assert row.work_ns == sum(t.end_ns - t.start_ns for t in timeline.actions[row.device]), row
    assert result.path[0].start_ns == 0
    assert result.path[-1].end_ns == timeline.makespan_ns
    assert all(a.end_ns == b.start_ns for a, b in pairwise(result.path)), result.path
    assert "wait" not in {step.kind for step in result.path}, result.path
    assert sum(result.path_shares().values()) == timeline.makespan_ns


@given(cases())
def test_sound_on_random_plans(case: tuple[Problem, Plan]):
    """Tests that parts add up and the chain has no holes on random plans of every kind the model knows."""
    assert_sound(*case)


@given(cases())
def test_sound_where_reductions_occupy_devices(case: tuple[Problem, Plan]):
    """Tests that parts add up and the chain has no holes where actions lose time to reductions beside them."""
    problem, plan = case
    occupied = replace(problem, cluster=replace(problem.cluster, collective_occupancy=1000))
    assert_sound(occupied, replace(plan, problem=occupied.reference()))


chains = st.builds(
    lambda times, sizes, devices, count, overlap: Problem(
        profile=chain(
            *(layer(f"l{i}", times=t, stash_bytes=s) for i, (t, s) in enumerate(zip(times, sizes, strict=False))),
            edge_bytes=sizes[0],
            optimizer_ns=sizes[1],
        ),
        cluster=line_of(devices, memory_bytes=600, overlap=overlap),
        num_microbatches=count,
    ),
    times=st.lists(st.tuples(*[st.integers(0, 40)] * 3), min_size=4, max_size=8),
    sizes=st.lists(st.integers(0, 30), min_size=8, max_size=8),
    devices=st.integers(1, 4),
    count=st.integers(1, 6),
    overlap=st.booleans(),
)


@pytest.mark.slow
@given(chains)
def test_sound_on_baselines(problem: Problem):
    """Tests that parts add up and the chain has no holes for every baseline of random chains."""
    for baseline in make_baselines(problem, CostModel(problem)):
        if baseline.plan is not None:
            assert_sound(problem, baseline.plan)
