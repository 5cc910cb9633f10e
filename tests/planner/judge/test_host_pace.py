"""A host that asks and a card that works: simulator, judge, and an emulated card with a queue of kernels agree."""

from collections import deque
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.actions import Action
from planner.plan import Plan, Stage
from planner.problem import Problem
from planner.simulation.simulate import simulate
from profiles.cluster import Cluster, Device
from profiles.host_times import HostTime
from profiles.model_profile import Layer, LayerCost, ModelProfile, RecomputeBytes, RecomputeTime
from tests.long_runs import examples
from tests.planner.builders import make_link, make_plan, make_problem
from tests.planner.judged import judged
from tests.strategies import random_chain, random_plan, random_problem, with_host_times, with_reference


def asks(**host_ns: int) -> tuple[HostTime, ...]:
    """Host times by action."""
    return tuple(HostTime(action=action, host_ns=ns) for action, ns in host_ns.items())


def timed_layer(name: str, card: tuple[int, int, int], host: tuple[int, int, int], **fields: object) -> Layer:
    """A layer with F, I and W of the card, and of the host."""
    cost = LayerCost(
        device_type="gpu",
        forward_ns=card[0],
        input_grad_ns=card[1],
        weight_grad_ns=card[2],
        host=asks(**dict(zip("FIW", host, strict=True))),
    )
    return Layer(**({"name": name, "costs": (cost,), "parameter_bytes": 1 if card[2] else 0} | fields))


def ends_of(problem: Problem, plan: Plan) -> dict[str, int]:
    """When every action ends, after the judge has agreed."""
    timeline = simulate(problem, plan)
    judged(problem, plan, timeline=timeline)
    return {str(timed.action): timed.end_ns for order in timeline.actions.values() for timed in order}


def on_one_device(layers: list[Layer], stages: list[str], order: str) -> dict[str, int]:
    """The same on a device alone."""
    problem = make_problem(layers, [], more_devices="a")
    return ends_of(problem, make_plan(problem, stages, {"a": order}))


def test_host_that_is_slower_sets_the_pace():
    """Tests that two actions end when the host has asked for the first, and for both."""
    layers = [timed_layer("x", (2, 2, 0), (5, 5, 0)), timed_layer("y", (2, 2, 0), (5, 5, 0))]
    ends = on_one_device(layers, ["x @ a", "y @ a"], "0F0 1F0 1I0 0I0")
    assert ends == {"0F0": 5, "1F0": 10, "1I0": 15, "0I0": 20}


def test_host_gets_ahead_while_the_card_works():
    """Tests that a backward takes 36 where the card alone says 56.9: its host began while the card was busy."""
    block = timed_layer("block", (100, 300, 0), (19_900, 44_400, 0))
    head = timed_layer("head", (8_900, 12_500, 0), (0, 0, 0))
    ends = on_one_device([block, head], ["block head @ a"], "0F0 0I0")
    assert ends["0F0"] == 28_800
    assert ends["0I0"] - ends["0F0"] == 19_900 + 44_400 - 28_800  # the block's I waits for a host that began at 19.9


def test_host_is_at_most_two_actions_ahead():
    """Tests that the host asks for the fourth action when the first has ended."""
    layers = [timed_layer(name, (10, 0, 0), (1, 0, 0)) for name in "wxyz"]
    slow = timed_layer("last", (2, 0, 0), (50, 0, 0))
    stages = ["w @ a", "x @ a", "y @ a", "last @ a", "z @ a"]
    problem = make_problem([*layers[:3], slow, layers[3]], [], more_devices="a")
    order = "0F0 1F0 2F0 3F0 4F0 4I0 3I0 2I0 1I0 0I0"
    ends = ends_of(problem, make_plan(problem, stages, {"a": order}))
    assert [ends[f"{stage}F0"] for stage in range(3)] == [10, 20, 30]
    assert ends["3F0"] == 10 + 50, "asked for once the first had ended, not at 3"


def test_first_and_last_kernels_count():
    """Tests that the card begins after the first kernel was asked for, and ends a kernel after the last was."""
    early = HostTime(action="F", host_ns=10, first_ns=4, last_ns=3)
    cost = LayerCost(
        device_type="gpu", forward_ns=20, input_grad_ns=5, weight_grad_ns=0,
        host=(early, HostTime(action="I", host_ns=30, last_ns=2)),
    )  # fmt: skip
    ends = on_one_device([Layer(name="x", costs=(cost,))], ["x @ a"], "0F0 0I0")
    assert ends == {"0F0": 4 + 20, "0I0": 10 + 30 + 2}


def test_backward_goes_through_the_layers_backwards_and_recomputes_in_between():
    """Tests that the order of layers within an action counts, and that of recomputation."""
    slow = timed_layer("slow", (1, 1, 0), (9, 9, 0), checkpoint_bytes=0, stash_bytes=0)
    busy = timed_layer("busy", (9, 9, 0), (1, 1, 0))
    # F: the host asks slow until 9, the card then works 9 for busy
    assert on_one_device([slow, busy], ["slow busy @ a"], "0F0 0I0")["0F0"] == 18
    # I: busy is asked for at 11, works from 18 to 27; slow is asked for at 20
    assert on_one_device([slow, busy], ["slow busy @ a"], "0F0 0I0")["0I0"] == 28


def test_recomputation_of_any_kind_is_asked_for():
    """Tests that full and other kinds of recomputation have host times of their own."""
    cost = LayerCost(
        device_type="gpu", forward_ns=1, input_grad_ns=1, weight_grad_ns=0, recompute_ns=1,
        recompute_kinds=(RecomputeTime(kind="part", recompute_ns=1),),
        host=asks(F=0, I=0, full=40, part=20),
    )  # fmt: skip
    layer = Layer(
        name="x", costs=(cost,), stash_bytes=1, recompute_kinds=(RecomputeBytes(kind="part", checkpoint_bytes=0),)
    )
    problem = make_problem([layer], [], more_devices="a", recompute=True, recompute_layers=True)
    found = []
    for recompute in (False, True, (("x", "part"),)):
        plan = make_plan(problem, [Stage(layers=("x",), replicas=(("a",),), recompute=recompute)], {"a": "0F0 0I0"})
        found.append(ends_of(problem, plan)["0I0"])
    assert found == [2, 41, 21]


@given(st.randoms(use_true_random=False))
@settings(max_examples=examples(150))
def test_judge_and_simulator_agree(rng: Random):
    """Tests that the judge's matrices and the simulator's clocks say the same of random plans and hosts."""
    problem = with_host_times(rng, random_problem(rng))
    plan = random_plan(rng, problem)
    judged(problem, with_reference(problem, plan))


@given(st.randoms(use_true_random=False))
@settings(max_examples=examples(60))
def test_no_host_time_is_one_clock(rng: Random):
    """Tests that a host that takes no time changes nothing, and that one that takes some never makes a plan shorter."""
    problem = replace(random_problem(rng), microbatches=None)
    problem = replace(problem, cluster=replace(problem.cluster, overlap=True))
    plan = random_plan(rng, problem)
    timeline = simulate(problem, plan)
    idle = replace(problem, profile=with_idle_hosts(problem.profile))
    assert simulate(idle, plan).makespan_ns == timeline.makespan_ns
    timed = simulate(with_host_times(rng, problem), plan)
    assert all(
        late.end_ns - late.start_ns >= early.end_ns - early.start_ns
        for device in timeline.actions
        for late, early in zip(timed.actions[device], timeline.actions[device], strict=True)
    )


def with_idle_hosts(profile: ModelProfile) -> ModelProfile:
    """The profile with host times of 0 everywhere."""
    idle = asks(F=0, I=0, W=0, B=0, full=0)
    layers = (replace(each, costs=tuple(replace(cost, host=idle) for cost in each.costs)) for each in profile.layers)
    return replace(profile, layers=tuple(layers))


# An emulated card: a queue of kernels, which a host fills action by action.


class Card:
    """A host and its card: the host asks kernel by kernel, the card works through what was asked for."""

    def __init__(self) -> None:
        self.host = self.card = 0
        self.ends: list[int] = []

    def run(self, kernels: list[tuple[int, int]], *, arrived: int) -> tuple[int, int]:
        """Ask for an action: (ticks of the host before a kernel, ticks of the kernel); when the card had it."""
        if len(self.ends) > 2:
            self.host = max(self.host, self.ends[-3])
        self.card = start = max(self.card, arrived)
        queue = deque[tuple[int, int]]()
        for asking, working in kernels:
            self.host += asking
            queue.append((self.host, working))
        while queue:
            asked, working = queue.popleft()
            self.card = max(self.card, asked) + working
        self.ends.append(self.card)
        return start, self.card


def kernels_of(problem: Problem, stage: Stage, kind: str) -> list[tuple[int, int]]:
    """Two kernels per layer and action: the second is the last, the first all the rest."""
    found = []
    for name in stage.layers if kind == "F" else stage.layers[::-1]:
        device = problem.cluster.by_name[stage.replicas[0][0]]
        cost = next(cost for cost in problem.profile.by_name[name].costs if cost.device_type == device.type)
        whole = {"F": cost.forward_ns, "I": cost.input_grad_ns, "W": cost.weight_grad_ns, "B": cost.fused_backward_ns}
        if stage.recompute and kind in "IB":
            found += _two_kernels(cost, "full", cost.recompute_ns)
        found += _two_kernels(cost, kind, whole[kind])
    return found


def _two_kernels(cost: LayerCost, action: str, card: int) -> list[tuple[int, int]]:
    stated = {each.action: each for each in cost.host}
    if stated and "B" not in stated:
        before, after = stated["I"], stated["W"]
        both = before.host_ns + after.host_ns
        stated["B"] = replace(before, action="B", host_ns=both, last_ns=after.last_ns)
    if action not in stated:
        return [(0, card)]
    entry = stated[action]
    last = min(entry.last_ns, card)
    return [(entry.first_ns, card - last), (entry.host_ns - entry.first_ns, last)]


def emulate(problem: Problem, plan: Plan) -> dict[str, int]:
    """When every action ends, messages taking no time: devices go on in turns until nothing moves."""
    cards = {device: Card() for device in plan.schedule}
    place = dict.fromkeys(cards, 0)
    ends: dict[Action, int] = {}
    last = len(plan.stages) - 1
    while any(place[device] < len(order) for device, order in plan.schedule.items()):
        for device, order in plan.schedule.items():
            while place[device] < len(order):
                action = order[place[device]]
                needs = _needs(action, last, ends)
                if needs is None:
                    break
                kernels = kernels_of(problem, plan.stages[action.stage], action.kind)
                _, ends[action] = cards[device].run(kernels, arrived=needs)
                place[device] += 1
    return {str(action): end for action, end in ends.items()}


def _needs(action: Action, last: int, ends: dict[Action, int]) -> int | None:
    """When what an action of a chain needs from other stages is there; None: not yet."""
    stage, m = action.stage, action.microbatch
    if action.kind == "W":
        return 0
    if action.kind == "F":
        needed = [[Action("F", stage - 1, m)]] if stage else []
    else:
        needed = [[Action(kind, stage + 1, m) for kind in "IB"]] if stage < last else []
    found = [[ends[each] for each in options if each in ends] for options in needed]
    return max((options[0] for options in found if options), default=0) if all(found) else None


def free_messages(problem: Problem) -> Problem:
    """The problem with edges of no bytes and links without latency."""
    edges = tuple(replace(edge, bytes=0, gradient_bytes=None) for edge in problem.profile.edges)
    links = tuple(
        replace(link, latency_ns=0, message_overhead_ns=None, message_times=()) for link in problem.cluster.links
    )
    profile = replace(problem.profile, edges=edges, action_overhead_ns=())
    return replace(problem, profile=profile, cluster=replace(problem.cluster, links=links))


@given(st.integers(0, 2**32))
@settings(max_examples=examples(150))
def test_emulated_cards_end_when_the_simulator_says(seed: int):
    """Tests that a queue of kernels on emulated cards ends every action when the matrices say."""
    rng = Random(seed)
    problem = random_chain(rng, sizes=(6, 3, 4), tight=False)
    options = replace(problem.options, max_stages_per_device=6, recompute=True, recompute_in_turn=True)
    problem = free_messages(with_host_times(rng, replace(problem, options=options)))
    plan = random_plan(rng, problem)
    if any(len(stage.replicas) > 1 for stage in plan.stages):
        return
    assert emulate(problem, plan) == ends_of(problem, with_reference(problem, plan))


# What cannot be understood is refused.


@pytest.mark.parametrize(
    ("host", "message"),
    [
        (asks(F=1), "states no time for 'I'"),
        (asks(F=1, I=1), "states no time for 'W'"),
        (asks(F=1, I=1, W=1, X=1), "states 'X', which is none of its actions"),
        (asks(F=1, I=1, W=1) + asks(F=2), "host time of 'F' occurs twice"),
    ],
)
def test_host_times_that_do_not_fit(host: tuple[HostTime, ...], message: str):
    """Tests that a cost says of all its actions what the host takes, and of no others."""
    with pytest.raises(ValueError, match=message):
        LayerCost(device_type="gpu", forward_ns=1, input_grad_ns=1, weight_grad_ns=1, host=host)


def test_first_kernel_is_not_asked_for_after_the_last():
    """Tests that first_ns is a part of host_ns."""
    with pytest.raises(ValueError, match="first_ns = 2 exceeds host_ns = 1"):
        HostTime(action="F", host_ns=1, first_ns=2)


def test_all_costs_of_a_device_type_state_host_times():
    """Tests that a layer without host times among others is refused."""
    layers = [timed_layer("x", (1, 1, 0), (1, 1, 0)), replace(timed_layer("y", (1, 1, 0), (1, 1, 0)), name="y")]
    layers[1] = replace(layers[1], costs=tuple(replace(cost, host=()) for cost in layers[1].costs))
    with pytest.raises(ValueError, match="layer 'x' states host times and 'y' has a cost without"):
        make_problem(layers, [], more_devices="a")


@pytest.mark.parametrize("change", [{"overlap": False}, {"split_placement": True}])
def test_what_has_no_two_clocks_is_refused(change: dict[str, object]):
    """Tests that devices which do not compute while they send, and split placement, know no host times."""
    with pytest.raises(ValueError, match="states host times with"):
        make_problem([timed_layer("x", (1, 1, 0), (1, 1, 0))], [], more_devices="a", **change)


def test_device_of_another_type_needs_no_host():
    """Tests that a processor without host times runs beside cards that have them."""
    card = timed_layer("x", (1, 1, 0), (5, 5, 0))
    cpu = LayerCost(device_type="cpu", forward_ns=3, input_grad_ns=3, weight_grad_ns=0)
    layers = (replace(card, costs=(*card.costs, cpu)),)
    devices = (Device(name="c", type="cpu", memory_bytes=9), Device(name="g", type="gpu", memory_bytes=9))
    problem = Problem(
        profile=ModelProfile(name="mixed", layers=layers, edges=()),
        cluster=Cluster(name="two", devices=devices, links=(make_link("c g"),)),
        num_microbatches=1,
    )
    for device, end in (("c", 6), ("g", 10)):
        assert ends_of(problem, make_plan(problem, [f"x @ {device}"], {device: "0F0 0I0"}))["0I0"] == end
