"""Bounds of problems on two clocks: the host's own, and those of the card, which hold as they are."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations, product
from random import Random

import pytest

from planner.actions import Action
from planner.errors import PlanError
from planner.evidence.certificate import check_certificate, make_bound
from planner.layout.costs import CostModel
from planner.plan import Plan, Stage
from planner.problem import Problem
from planner.simulation.simulate import simulate
from tests.long_runs import shortened
from tests.planner.brute_force import every_mapping
from tests.planner.builders import make_link, make_problem
from tests.planner.layout.test_two_clocks import timed_layer
from tests.strategies import random_chain, with_host_times


def test_hosts_bound_what_cards_do_not():
    """Tests that four layers of 10 and 10 of the host, on two devices, take at least 2 x 20 per microbatch."""
    layers = [timed_layer(name, (1, 1, 0), (10, 10, 0)) for name in "vwxy"]
    problem = make_problem(layers, [make_link("a b")], num_microbatches=3)
    bound = make_bound(problem, CostModel(problem))
    assert (bound.kind, bound.value_ns) == ("host", 3 * 40)
    assert check_certificate(problem, bound.certificate) == 3 * 40


def test_a_stage_in_which_nothing_trains_asks_for_no_w():
    """Tests that what a layer without weights states of W, which it never runs, is in no bound."""
    layers = [timed_layer("v", (1, 1, 1), (10, 10, 0)), timed_layer("w", (1, 1, 0), (10, 10, 50))]
    problem = make_problem(layers, [make_link("a b")], num_microbatches=2)
    bound = make_bound(problem, CostModel(problem))
    stages = tuple(Stage(layers=(name,), replicas=((device,),)) for name, device in zip("vw", "ab", strict=True))
    found = [play(problem, stages, schedule) for schedule in every_schedule(problem, stages)]
    assert bound.value_ns <= min(each for each in found if each is not None)


def test_card_bounds_hold_where_the_host_is_fast():
    """Tests that a host that takes no time leaves bounds as they are."""
    layers = [timed_layer(name, (5, 5, 0), (0, 0, 0)) for name in "vwxy"]
    problem = make_problem(layers, [make_link("a b")], num_microbatches=3)
    free = replace(problem, profile=problem.profile.without_host_times())
    assert make_bound(problem, CostModel(problem)).value_ns == make_bound(free, CostModel(free)).value_ns


@pytest.mark.parametrize("seed", range(shortened(6, whole=60)))
def test_no_plan_is_below_the_bound(seed: int):
    """Tests that every order of every mapping of a small problem takes at least its bound."""
    rng = Random(seed)
    problem = with_host_times(rng, random_chain(rng, sizes=(3, 2, 2), tight=False))
    problem = replace(problem, options=replace(problem.options, split_backward=False, max_replicas=2))
    bound = make_bound(problem, CostModel(problem)).value_ns
    found = [
        makespan
        for stages in every_mapping(problem)
        for schedule in every_schedule(problem, stages)
        if (makespan := play(problem, stages, schedule)) is not None
    ]
    assert bound <= min(found)


def every_schedule(problem: Problem, stages: tuple[Stage, ...]) -> Iterator[dict[str, tuple[Action, ...]]]:
    """All device orders of at most four actions in which F comes before B; of longer ones, that of a loop."""
    orders: dict[str, list[tuple[Action, ...]]] = {}
    for number, stage in enumerate(stages):
        back = "B" if problem.profile.trains(stage.layers) else "I"
        own = [Action(kind, number, m) for m in range(problem.num_microbatches) for kind in ("F", back)]
        for (device,) in stage.replicas:
            orders[device] = [each for each in permutations(own) if _is_ordered(each)]
    for chosen in product(*orders.values()):
        yield dict(zip(orders, chosen, strict=True))


def _is_ordered(order: tuple[Action, ...]) -> bool:
    started = set[int]()
    for action in order:
        if action.kind == "F":
            started.add(action.microbatch)
        elif action.microbatch not in started:
            return False
    return True


def play(problem: Problem, stages: tuple[Stage, ...], schedule: dict[str, tuple[Action, ...]]) -> int | None:
    """The makespan; None if the orders wait for each other."""
    try:
        return simulate(problem, Plan(problem=problem.reference(), stages=stages, schedule=schedule)).makespan_ns
    except PlanError:
        return None
