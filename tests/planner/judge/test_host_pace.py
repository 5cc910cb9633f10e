"""A host that asks and a card that works: simulator, judge, and an emulated card with a queue of kernels agree."""

from collections import deque
from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from planner.actions import Action
from planner.plan import Plan, Stage
from planner.problem import Problem
from planner.simulation.simulate import simulate
from profiles.host_times import HostTime
from profiles.model_profile import LayerCost, ModelProfile
from tests.long_runs import examples
from tests.planner.judged import judged
from tests.strategies import random_chain, random_plan, random_problem, with_host_times, with_reference


def asks(**host_ns: int) -> tuple[HostTime, ...]:
    """Host times by action."""
    return tuple(HostTime(action=action, host_ns=ns) for action, ns in host_ns.items())


def ends_of(problem: Problem, plan: Plan) -> dict[str, int]:
    """When every action ends, after the judge has agreed."""
    timeline = simulate(problem, plan)
    judged(problem, plan, timeline=timeline)
    return {str(timed.action): timed.end_ns for order in timeline.actions.values() for timed in order}


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
