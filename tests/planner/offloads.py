"""Problems whose devices have host links, and random plans that use them."""

from dataclasses import replace
from random import Random

from planner.actions import Action, Offload, parse_action
from planner.plan import Plan
from planner.problem import Problem
from profiles.cluster import Cluster, Host, HostLink, Link
from tests.planner.builders import make_layer, make_link, make_plan, make_problem

ROOM = 10**6
"""Of every host."""


def with_host_links(
    problem: Problem, *, bandwidth: int = 10**9, latency: int = 0, duplex: bool = True,
    shared: int = 1, room: int = ROOM,
) -> Problem:  # fmt: skip
    """The problem with a host of `shared` devices each, and a link to its memory that these share."""
    devices = tuple(
        replace(device, host=device.host or f"h{number // shared}", host_link=f"pcie{number // shared}")
        for number, device in enumerate(problem.cluster.devices)
    )
    cluster = replace(
        problem.cluster,
        devices=devices,
        host_links=tuple(
            HostLink(name=name, bandwidth_bytes_per_s=bandwidth, latency_ns=latency, duplex=duplex)
            for name in dict.fromkeys(device.host_link for device in devices)
        ),
        hosts=tuple(Host(name=host, memory_bytes=room) for host in dict.fromkeys(device.host for device in devices)),
        overlap=True,
    )
    return replace(problem, cluster=cluster, options=replace(problem.options, offload=True))


def make_offload(text: str) -> Offload:
    """From microbatch, action that it is freed for and action that it is fetched for, as `0 0F2 0B0`."""
    microbatch, *actions = text.split()
    freed, fetched = map(parse_action, actions)
    return Offload(microbatch=int(microbatch), freed_before=freed, fetched_before=fetched)


def random_host_links(rng: Random, problem: Problem) -> Problem:
    """Host links of devices alone or together, or those that messages take as well: a star around one host."""
    speed, latency = rng.choice([10**9, 3 * 10**8]), rng.randint(0, 3)
    if rng.random() < 0.6:
        shared, duplex = rng.randint(1, 3), rng.random() < 0.5
        return with_host_links(problem, bandwidth=speed, latency=latency, duplex=duplex, shared=shared)
    devices = tuple(replace(device, host="h", host_link="h") for device in problem.cluster.devices)
    links = tuple(
        Link(a=each.name, b="h", bandwidth_bytes_per_s=speed, latency_ns=latency, duplex=rng.random() < 0.5)
        for each in devices
    )
    cluster = Cluster(name="star", devices=devices, links=links, hosts=(Host(name="h", memory_bytes=ROOM),))
    return replace(problem, cluster=cluster, options=replace(problem.options, offload=True))


def random_offloads(rng: Random, plan: Plan, *, count: int, share: float = 0.6) -> Plan:
    """The plan with stashes that travel wherever a coin says so and orders allow."""
    stages = []
    for number, stage in enumerate(plan.stages):
        orders = [plan.schedule[device] for group in stage.replicas for device in group]
        kept = [m for m in range(count) if not stage.recomputes(m) and rng.random() < share]
        found = (None if stage.is_split else random_offload(rng, number, m, orders=orders) for m in kept)
        stages.append(replace(stage, offload=tuple(filter(None, found))))
    return replace(plan, stages=tuple(stages))


def random_offload(rng: Random, stage: int, microbatch: int, *, orders: list[tuple[Action, ...]]) -> Offload | None:
    """Any two actions that stand in turn between F and I or B in all orders."""
    places = [{action: place for place, action in enumerate(order)} for order in orders]

    def is_in_turn(*actions: Action) -> bool:
        own = [[at.get(action, -1) for action in actions] for at in places]
        return all(row[0] < row[1] <= row[2] <= row[3] for row in own)

    first, last = Action("F", stage, microbatch), Action("B", stage, microbatch)
    last = last if last in places[0] else last._replace(kind="I")
    pairs = [(a, b) for a in orders[0] for b in orders[0] if is_in_turn(first, a, b, last)]
    if not pairs:
        return None
    freed, fetched = rng.choice(pairs)
    return Offload(microbatch=microbatch, freed_before=freed, fetched_before=fetched)


ORDERS = {"d0": "0F0 0F1 0F2 0B0 0B1 0B2", "d1": "1F0 1B0 1F1 1B1 1F2 1B2"}


def chain(*offloads: str, speed: int = 10**9, **link: object) -> tuple[Problem, Plan]:
    """Two stages of three microbatches, F 10 and B 20, a stash of 10; two devices of one host."""
    layers = [make_layer(f"l{n}", (10, 10, 10), stash_bytes=10) for n in range(2)]
    problem = make_problem(layers, [make_link("d0 d1")], num_microbatches=3, receive_buffers=0, memory_bytes=30)
    problem = with_host_links(problem, bandwidth=speed, shared=2, **link)
    plan = make_plan(problem, ["l0 @ d0", "l1 @ d1"], ORDERS)
    lists = [tuple(map(make_offload, text.split(", ") if text else ())) for text in offloads]
    stages = tuple(replace(stage, offload=moved) for stage, moved in zip(plan.stages, lists, strict=True))
    return problem, replace(plan, stages=stages)
