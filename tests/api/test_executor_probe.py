"""What the short real run found finds its place in the workload."""

from dataclasses import replace

from api.executor_probe import with_overheads
from planner.fidelity.overhead import Overheads
from profiles.cluster import MessageTime
from profiles.model_profile import ActionOverhead, ProbeRun
from profiles.workload import Workload
from tests.planner.builders import make_layer, make_link, make_problem

ACTION = ActionOverhead(device_type="gpu", forward_ns=3, exchange_ns=7)


def make_case() -> tuple[Workload, Overheads]:
    """Two layers on two devices, of which the second states its reserve; every layer took twice as long in the run."""
    problem = make_problem([make_layer("a", (1, 2, 3)), make_layer("b", (1, 2, 3))], [make_link("x y")])
    first, second = problem.cluster.devices
    cluster = replace(problem.cluster, devices=(first, replace(second, reserved_bytes=5)))
    profile = replace(problem.profile, optimizer_ns=20)
    found = Overheads(
        layers=(make_layer("a", (2, 4, 6)), make_layer("b", (2, 4, 6))),
        action=ACTION,
        message_ns=9,
        exchanges={"b": (2, 1)},
        iteration_ns=30,
        stages_iteration_ns=12,
        reserved_bytes=11,
        reduction_bytes=13,
        reduction_ns=401,
        reduced_bytes=1001,
        num_actions=4,
        predicted_ns=2_000_000,
        measured_ns=2_300_000,
    )
    return Workload(profile=profile, cluster=cluster, num_microbatches=2), found


def test_what_was_found_is_in_the_workload():
    """Tests that layers, their exchanges, overheads, the end of an iteration and bytes held are those of the run."""
    workload, found = make_case()
    made = with_overheads(workload, found)
    assert [layer.costs[0].forward_ns for layer in made.profile.layers] == [2, 2]
    counts = [(layer.forward_exchanges, layer.backward_exchanges) for layer in made.profile.layers]
    assert counts == [(0, 0), (2, 1)]
    assert made.profile.action_overhead_ns == (ACTION,)
    assert (made.profile.optimizer_ns, made.profile.stages_optimizer_ns) == (30, 12)
    assert made.profile.reduction_bytes == 13
    assert made.cluster is not None
    assert [link.message_overhead_ns for link in made.cluster.links] == [9]
    assert made.cluster.links[0].reduction_times == (MessageTime(bytes=501, time_ns=201),)
    assert [device.reserved_bytes for device in made.cluster.devices] == [11, 5]
    assert "from 4 actions" in made.profile.provenance
    assert made.profile.probe == ProbeRun(predicted_ns=2_000_000, measured_ns=2_300_000)
    assert "what stages add is stated apart" in made.profile.provenance
    assert "takes 2.0 ms by these figures and took 2.3 ms" in made.profile.provenance


def test_a_reserve_is_no_larger_than_the_memory():
    """Tests that a small device is full of its reserve, and that an unknown reserve is not stated."""
    workload, found = make_case()
    made = with_overheads(workload, replace(found, reserved_bytes=2**50)).cluster
    assert made is not None
    assert made.devices[0].usable_bytes == 0
    unknown = with_overheads(workload, replace(found, reserved_bytes=None)).cluster
    assert unknown is not None
    assert unknown.devices[0].reserved_bytes is None


def test_rings_of_other_sizes_are_scaled_to_the_run():
    """Tests that steps timed by themselves keep their ratio to the run's, and that none falls below a smaller one.

    Alone 500 bytes take 110 ns on the line, in the run 220: twice as long, as everything else.
    """
    workload, found = make_case()
    assert workload.cluster is not None
    times = tuple(MessageTime(bytes=size, time_ns=time) for size, time in ((100, 70), (900, 150)))
    links = tuple(replace(link, reduction_times=times) for link in workload.cluster.links)
    workload = replace(workload, cluster=replace(workload.cluster, links=links))
    made = with_overheads(workload, replace(found, reduction_ns=440, reduced_bytes=1000)).cluster
    assert made is not None
    assert [(each.bytes, each.time_ns) for each in made.links[0].reduction_times] == [
        (100, 140),
        (500, 220),
        (900, 300),
    ]
    untouched = with_overheads(workload, replace(found, reduction_ns=None)).cluster
    assert untouched is not None
    assert untouched.links[0].reduction_times == times


def test_what_full_shards_take_more_stands_beside_the_overheads():
    """Tests that gathers stay as they were timed, and that what a sharded run took beyond them is added to F and B."""
    workload, found = make_case()
    assert workload.cluster is not None
    times = (MessageTime(bytes=1, time_ns=100),)
    links = tuple(replace(each, gather_times=times, scatter_times=times) for each in workload.cluster.links)
    profile = replace(workload.profile, microbatch_size=2, scaling="linear")
    workload = replace(workload, profile=profile, cluster=replace(workload.cluster, links=links))
    entries = tuple({"actions": [["0F0", 0, 1000 + more], ["0B0", 2000, 4000 + more]]} for more in (0, 0, 0, 500))
    assert found.action.sharded_forward_ns == 0
    made = with_overheads(workload, replace(found, sharded=entries))
    assert made.cluster is not None
    assert made.cluster.links[0].gather_times == made.cluster.links[0].scatter_times == times
    (action,) = made.profile.action_overhead_ns
    assert replace(action, sharded_forward_ns=0, sharded_backward_ns=0) == ACTION
    assert 0 < action.sharded_forward_ns < 1000
    assert 0 < action.sharded_backward_ns < 2000
    nothing = tuple({"actions": [["0F0", 0, 1], ["0B0", 1, 2]]} for _ in range(4))
    assert with_overheads(workload, replace(found, sharded=nothing)).profile.action_overhead_ns == (ACTION,)
