"""Bounds where stashes may travel: tests of planner/bounds/roomier.py."""

from dataclasses import replace
from itertools import product
from random import Random

from planner.actions import Action, Offload
from planner.evidence.certificate import check_certificate, make_bound, prove_infeasible, refute, schedule_bound
from planner.layout.costs import CostModel
from planner.plan import Plan
from planner.problem import Problem
from planner.simulation.simulate import simulate
from planner.verify import verify
from profiles.held_once import HeldOnce
from solver_models.covering import Covering
from tests.long_runs import shortened
from tests.planner.brute_force import brute_force_plan
from tests.planner.builders import make_layer, make_problem
from tests.planner.offloads import with_host_links
from tests.planner.recomputed_chain import every_order, given_stages, recomputed_chain
from tests.strategies import random_chain, tiny_problem, with_shared


def test_no_bound_is_above_the_best_of_all_plans():
    """Tests that of two stages with room for a stash, and any orders and offload of the first, the best is as drawn,
    shorter than without, and no bound is above it.

    time   0    10   20   30   40   50   60   70   80   90
    d0   | F0 | F1 |         | B0      |    | B1      |      a stash travels for a nanosecond
    d1        | F0 | B0      | F1 | B1      |
    """
    problem = recomputed_chain(2, num_microbatches=2, kept=1, recompute=False, recompute_microbatches=False)
    problem = with_host_links(problem, bandwidth=10**12)
    costs, found = CostModel(problem), {False: [], True: []}
    for plan in _orders(problem):
        order = plan.schedule["d0"]
        for chosen in product(*(_offloads(order, microbatch) for microbatch in range(2))):
            first = replace(plan.stages[0], offload=tuple(filter(None, chosen)))
            timeline = simulate(problem, replace(plan, stages=(first, plan.stages[1])), costs=costs)
            if max(timeline.peak_bytes.values()) <= 10:
                found[bool(first.offload)].append(timeline.makespan_ns)
    best = min(found[True])
    assert (best, min(found[False])) == (90, 120)
    bound = make_bound(problem, costs, time_limit_s=1).value_ns
    assert max(bound, schedule_bound(problem, given_stages(problem), costs=costs)) <= best


def _orders(problem: Problem) -> list[Plan]:
    """All orders of F and B of the given stages in which microbatch 0 is the first, wherever it can be."""
    stages, orders = given_stages(problem), [every_order(number, 2, kinds="FB") for number in range(2)]
    ascending = [[order for order in each if order[0].microbatch == 0] for each in orders]
    plans = [
        Plan(problem=problem.reference(), stages=stages, schedule={"d0": first, "d1": second})
        for first, second in product(*ascending)
    ]
    return [plan for plan in plans if not any(each.rule == "deadlock" for each in verify(problem, plan).violations)]


def _offloads(order: tuple[Action, ...], microbatch: int) -> list[Offload | None]:
    """None, and all pairs of actions between F and B."""
    places = {(action.kind, action.microbatch): place for place, action in enumerate(order)}
    first, last = places["F", microbatch] + 1, places["B", microbatch]
    pairs = [(a, b) for a in range(first, last + 1) for b in range(a, last + 1)]
    return [None, *(Offload(microbatch=microbatch, freed_before=order[a], fetched_before=order[b]) for a, b in pairs)]


def test_bounds_count_the_memory_of_hosts():
    """Tests that bounds are those of devices that have what their hosts keep, too, and can be derived again.

    With room for one of four stashes each F of stage 0 waits for the B before it; with room for two none waits.
    """
    values = []
    for room in (0, 10, 40):
        problem = recomputed_chain(2, num_microbatches=4, kept=1, recompute=False, recompute_microbatches=False)
        problem = with_host_links(problem, room=room)
        bound = make_bound(problem, CostModel(problem), time_limit_s=1)
        assert check_certificate(problem, bound.certificate) == bound.value_ns
        values.append((bound.value_ns, schedule_bound(problem, given_stages(problem), costs=CostModel(problem))))
    assert values == [(200, 200), (130, 130), (130, 130)]
    alone = replace(problem, options=replace(problem.options, offload=False))
    assert make_bound(alone, CostModel(alone), time_limit_s=1).value_ns == 200


def test_no_bound_is_above_the_best_where_layers_hold_bytes_together():
    """Tests that no bound, of all plans or of given stages, is above the best of all there are, and none is refuted;
    that what the best plan holds is within memory by the judge, too; and that some fit because they share.
    """
    num_shared = 0
    for seed in range(shortened(40, whole=800)):
        rng = Random(seed)
        problem = tiny_problem(rng) if seed % 2 else random_chain(rng, sizes=(5, 3, 3), tight=True)
        plain, problem = problem, with_shared(problem)
        costs, best = CostModel(problem), brute_force_plan(problem)
        if best is None:
            continue
        assert prove_infeasible(problem, costs) is None
        assert verify(problem, best[1]).violations == ()
        bound = make_bound(problem, costs, time_limit_s=0.2, make_covering=Covering)
        assert bound.value_ns == check_certificate(problem, bound.certificate) <= best[0]
        assert schedule_bound(problem, best[1].stages, costs=costs) <= best[0]
        assert refute(problem, costs, value=best[0] + 1, effort=10_000) is None
        other = brute_force_plan(plain)
        num_shared += other is None or other[0] > best[0]
    assert num_shared > 0


def test_a_plan_that_fits_because_layers_share_is_no_contradiction():
    """Tests that layers whose state and stash fit one device only together are not said to be infeasible."""
    sizes = {"state_bytes": 10, "stash_bytes": 8}
    problem = make_problem([make_layer(name, **sizes) for name in "xy"], [], more_devices="a", memory_bytes=22)
    assert prove_infeasible(problem, CostModel(problem)) is not None
    once = (HeldOnce(first="x", second="y", state_bytes=1),)
    small = replace(problem, profile=replace(problem.profile, held_once=once))
    assert "counted 1 bytes larger" in str(prove_infeasible(small, CostModel(small)))
    once = (HeldOnce(first="x", second="y", state_bytes=10, stash_bytes=4),)
    problem = replace(problem, profile=replace(problem.profile, held_once=once))
    assert prove_infeasible(problem, CostModel(problem)) is None
    found = brute_force_plan(problem)
    assert found is not None
    assert max(simulate(problem, found[1]).peak_bytes.values()) == 22
