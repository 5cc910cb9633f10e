"""Which rank drives which device, on which host."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.execute.table.layout import make_layout
from planner.execute.table.placement import HOST_VARIABLES, find_position
from planner.launch.rank_mapping import place_ranks
from planner.plan import Plan
from tests.planner.execute.orders import make_random_plan


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Plan, dict[str, tuple[str, int]]]:
    """A plan of up to four devices per replica, each stage with up to three, on hosts that mix them.

    The numbers of replicas are those of pipelines side by side, or differ from stage to stage.
    """
    num_devices, most = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    counts = [draw(st.integers(1, 3)) for _ in range(num_devices)] if draw(st.booleans()) else [most] * num_devices
    owners = list(draw(st.permutations(range(num_devices))))
    owners += draw(st.lists(st.sampled_from(owners), max_size=2))
    names = draw(st.permutations(range(12)))
    groups = ["/".join(str(names[3 * owner + replica]) for replica in range(counts[owner])) for owner in owners]
    placement = " ".join(groups)
    cluster = draw(st.permutations([f"d{number}" for number in range(12)]))
    hosts: dict[str, tuple[str, int]] = {}
    counts = [0, 0, 0]
    for device in cluster:
        host = draw(st.integers(0, 2))
        hosts[device] = (f"h{host}", counts[host])
        counts[host] += 1
    return make_random_plan(placement, num_microbatches=1), hosts


@given(worlds())
def test_every_replica_of_every_stage_has_its_rank(world: tuple[Plan, dict[str, tuple[str, int]]]):
    """Tests that the device of every replica has one rank, whose host and local device are its own."""
    plan, hosts = world
    placement = place_ranks(plan, hosts)
    for stage in plan.stages:
        for (device,) in stage.replicas:
            (seat,) = [seat for seat in placement.slots if seat.device == device]
            assert (seat.host, seat.index) == hosts[device]


@given(worlds())
def test_ranks_and_slots_are_numbered_without_gaps(world: tuple[Plan, dict[str, tuple[str, int]]]):
    """Tests that ranks count the plan's devices as the executor does, and slots the processes of a host by device."""
    plan, hosts = world
    placement = place_ranks(plan, hosts)
    assert [seat.rank for seat in placement.slots] == list(range(len(plan.devices)))
    assert tuple(seat.device for seat in placement.slots) == make_layout(plan).devices
    assert sorted(seat.device for host in placement.hosts for seat in placement.on(host)) == sorted(plan.devices)
    for host in placement.hosts:
        here = placement.on(host)
        assert [seat.slot for seat in here] == list(range(len(here)))
        assert [seat.index for seat in here] == sorted({seat.index for seat in here})


@given(worlds())
def test_a_process_finds_the_seat_that_it_was_given(world: tuple[Plan, dict[str, tuple[str, int]]]):
    """Tests that host and slot alone lead every process to its rank, whatever rank its launcher counted."""
    plan, hosts = world
    placement = place_ranks(plan, hosts)
    size = len(placement.slots)
    for seat in placement.slots:
        told = {HOST_VARIABLES[0]: seat.host, "LOCAL_RANK": str(seat.slot), "WORLD_SIZE": str(size)}
        found = find_position(make_layout(plan).devices, told | {"RANK": str(size - 1 - seat.rank)}, hosts=hosts)
        assert (found.rank, found.host, found.index) == (seat.rank, seat.host, seat.index)


def test_hosts_follow_their_first_rank():
    """Tests that the host of rank 0 comes first, as torchrun wants its master there."""
    plan = make_random_plan("2 0 1", num_microbatches=1)
    placement = place_ranks(plan, {"d0": ("a", 0), "d1": ("b", 0), "d2": ("b", 1)})
    assert placement.hosts == ("b", "a")
    assert [(seat.rank, seat.slot) for seat in placement.on("b")] == [(2, 0), (0, 1)]


def test_a_device_outside_the_cluster_is_refused():
    """Tests that a plan for another cluster is refused with the device's name."""
    with pytest.raises(ValueError, match="device 'd1' of the plan is not in the cluster"):
        place_ranks(make_random_plan("0 1", num_microbatches=1), {"d0": ("a", 0)})
