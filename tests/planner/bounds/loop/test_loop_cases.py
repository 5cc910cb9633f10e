"""Cases of how the stages of a loop are filled: against every filling, every layout, and made-up certificates."""

from dataclasses import replace
from itertools import product
from random import Random

import numpy
import pytest

from benchmarks.layouts import read_problem
from planner.bounds.loop import loop_bound
from planner.bounds.loop.loop_cases import ActionsLeft, LoopFilling, is_refuted
from planner.bounds.loop.loop_order import order_of
from planner.bounds.minimum_costs import Least
from planner.evidence.certificate import check_certificate
from planner.export.looped_pipelines import as_looped
from planner.layout.costs import CostModel
from planner.simulation.simulate import simulate
from tests.long_runs import shortened
from tests.planner.bounds.loop.test_loop_bound import any_chain, blocks_with_heavy_ends, every_layout

MUCH = 10**7
"""More effort than any of these problems needs."""


def any_filling(rng: Random) -> LoopFilling:
    """Up to six stages on two or three ranks, of which some hold more than others."""
    ranks = rng.randint(2, 3)
    chunks = rng.randint(1, 3 if ranks == 2 else 2)
    stages = ranks * chunks
    lower = numpy.array([rng.randint(0, 1) for _ in range(stages)])
    return LoopFilling(
        order=order_of(ranks=ranks, chunks=chunks, count=ranks * rng.randint(1, 3)),
        base=numpy.array([[rng.choice([0, 0, 3, 17]) for _ in range(stages)] for _ in range(2)]),
        unit=numpy.array([rng.randint(1, 9), rng.randint(1, 19)]),
        lower=lower,
        upper=lower + numpy.array([rng.randint(0, 3) for _ in range(stages)]),
        rooms=numpy.array([rng.randint(1, 5) for _ in range(ranks)]),
        units=rng.randint(2, 9),
        hops=(rng.randint(0, 2), rng.randint(0, 2)),
    )


def least_of(filling: LoopFilling) -> int | None:
    """The shortest time of all fillings there are, one after the other."""
    ranks, found = filling.order.ranks, []
    for sizes in product(*(range(a, b + 1) for a, b in zip(filling.lower, filling.upper, strict=True))):
        fits = all(sum(sizes[rank::ranks]) <= room for rank, room in enumerate(filling.rooms))
        if sum(sizes) == filling.units and fits:
            times = filling.base + filling.unit[:, None] * numpy.array(sizes)
            found.append(int(filling.order.play(times[:, :, None], hops=filling.hops)[0]))
    return min(found, default=None)


def test_cases_are_exact():
    """Tests that with enough effort a time is refuted exactly if all fillings, looked at one by one, take longer."""
    rng, num_split = Random(11), 0
    for _ in range(shortened(150, whole=6000)):
        filling = any_filling(rng)
        least = least_of(filling)
        if least is None:
            assert is_refuted(filling, 10**9, effort=ActionsLeft(MUCH))
            continue
        assert not is_refuted(filling, least, effort=ActionsLeft(MUCH))
        assert is_refuted(filling, least - 1, effort=ActionsLeft(MUCH))
        num_split += not is_refuted(filling, least - 1, effort=ActionsLeft(len(filling.order.steps)))
    assert num_split


@pytest.mark.parametrize(("ranks", "count"), [(2, 2), (3, 3), (3, 12), (8, 64)])
def test_ranks_that_act_at_once_make_a_play_no_dearer(ranks: int, count: int):
    """Tests that a play takes no more of the effort than action by action, so that old certificates suffice."""
    filling = replace(any_filling(Random(1)), order=order_of(ranks=ranks, chunks=2, count=count))
    for cases in (0, 1, 255, 256, 600, 1_024, 1_025, 4_096):
        in_a_row, at_once = ActionsLeft(MUCH), ActionsLeft(MUCH)
        assert in_a_row.take(filling.num_actions, cases=cases)
        assert at_once.take_play(filling, cases=cases)
        assert at_once.left >= in_a_row.left
        assert at_once.left > in_a_row.left or ranks < 8 or cases > 600


@pytest.mark.parametrize("make", [any_chain, blocks_with_heavy_ends])
def test_no_layout_is_denied_by_cases(make):
    """Tests that on random problems cases, as earlier releases stated them, deny no layout, and more than without."""
    rng, above, count = Random(9), 0, 0
    while count < shortened(6, whole=1000):
        problem = make(rng)
        costs, times = CostModel(problem), []
        for stages in every_layout(problem):
            try:
                times.append(simulate(problem, as_looped(problem, stages), costs=costs).makespan_ns)
            except ValueError:  # not measured at that share, or a route is missing
                continue
        least = Least(problem, costs)
        found = loop_bound.raise_bound(least, 0) if times and loop_bound.applies_to(least) else None
        if found is None:
            continue
        count += 1
        ways = [{**way, "effort": MUCH} for way in found[1]["ways"]]
        refutes = loop_bound.read(least, {"ways": ways})
        assert not refutes.is_out_of_reach(min(times) - least.optimizer_ns)
        above += refutes.is_out_of_reach(found[0])
    assert above


def test_what_the_interleaved_order_makes_idle():
    """Tests that a recipe's problem has a bound that knows how unlike chunks of neighbours wait for each other."""
    problem = read_problem("deepseek-v3", ranks=16)
    certificate = {"kind": "loop", "value_ns": 9_700 * 10**6, "ways": [{**WAY, "effort": 40_000}]}
    assert check_certificate(problem, certificate) == 9_700 * 10**6
    with pytest.raises(ValueError, match="does not exclude"):
        check_certificate(problem, certificate | {"ways": [WAY]})
    with pytest.raises(ValueError, match="does not exclude"):
        check_certificate(problem, certificate | {"value_ns": 9_950 * 10**6})


WAY = {"width": 1, "replicas": 1, "unit": 30 * 10**6, "special": ["mtp", "head"]}
"""How its layers are counted."""


@pytest.mark.parametrize("effort", [-1, 1.5, True, "much", 10**9])
def test_made_up_efforts_are_refused(effort: object):
    """Tests that an effort is an integer within limits."""
    problem = read_problem("deepseek-v3", ranks=16)
    with pytest.raises(ValueError, match="effort = "):
        check_certificate(problem, {"kind": "loop", "value_ns": 10, "ways": [{**WAY, "effort": effort}]})
