"""Fully sharded data parallelism: a row without a plan, reckoned by the same costs and links."""

from dataclasses import replace
from io import StringIO
from itertools import pairwise

import pytest
from rich.console import Console

from api.progress import RunSummary
from api.reporting.screen import render_screen
from planner.baselines.fully_sharded import NAME, NOTE, ShardedLayer, play, reckon
from planner.baselines.registry import make_baselines, play_baseline
from planner.evidence.check_evidence import rederive
from planner.layout.costs import CostModel
from planner.plan import Plan
from planner.problem import Problem
from planner.progress import Limits
from tests.planner.builders import make_link, make_problem
from tests.planner.hasty import make_plan as find_plan
from tests.planner.layout.test_gathers import stepping


def sharded_problem(num_microbatches: int = 2, **options: object) -> Problem:
    """Two layers on two devices, whose state is told apart."""
    layers = [stepping("x", 8, stash_bytes=10), stepping("y", 8, stash_bytes=4)]
    chosen = {"shard_optimizer": "allow"} | options
    return make_problem(layers, [make_link("a b", latency=1)], num_microbatches=num_microbatches, **chosen)


def test_weights_come_one_layer_ahead():
    """Tests that the ring gathers while layers compute, but no more than one layer ahead, as counted by hand."""
    times = [ShardedLayer(10, 20, 4, 6), ShardedLayer(10, 20, 15, 6)]
    clock = play(times, num_microbatches=1, overhead=(1, 2))
    # ring: gather x 0-4, y 4-19 (x begins at 4), x again 31-35 (y's B begins at 31), y's scatter 51-57, x's 71-77
    # device: x 4-14, y 19-29, B of y 31-51, of x 51-71
    assert clock == (71, 77, 51)


@pytest.mark.parametrize("overhead", [(0, 0), (3, 5)])
def test_many_microbatches_are_one_after_the_other(overhead: tuple[int, int]):
    """Tests that leaping over microbatches that are all alike ends where going through them one by one does."""
    times = [ShardedLayer(10, 20, 9, 30), ShardedLayer(7, 12, 25, 2), ShardedLayer(3, 6, 0, 0)]
    ends = [play(times, num_microbatches=number, overhead=overhead).device for number in range(1, 12)]
    steps = {b - a for a, b in pairwise(ends[3:])}
    assert len(steps) == 1
    assert play(times, num_microbatches=1000, overhead=overhead).device == ends[-1] + 989 * steps.pop()


def test_without_links_to_wait_for_it_is_as_fast_as_the_work():
    """Tests that layers whose weights take no time are computed one after the other."""
    assert play([ShardedLayer(3, 5, 0, 0)] * 4, num_microbatches=6, overhead=(0, 0)).device == 6 * 4 * 8


def test_a_row_has_time_and_memory():
    """Tests that a row states times over the ring, and the memory of a part of state and of two layers' weights."""
    problem = sharded_problem(num_microbatches=1)
    row = reckon(CostModel(problem))
    gather, scatter = 3 + 1, 4 + 1
    clock = play([ShardedLayer(2, 4, gather, scatter)] * 2, num_microbatches=1, overhead=(0, 0))
    assert row.makespan_ns == max(clock.device, clock.ring) + 8
    assert row.peak_fraction == (2 * 1 + (2 * 39 + 1) // 2 + 2 * 6 + 8 + 7) / 1000
    assert (row.name, row.note, row.fits_memory) == (NAME, NOTE, True)


def test_the_row_stands_where_sharding_may_be_chosen():
    """Tests that the row comes last, with the option only, and with recomputation as well where it is too large."""
    rows = {choice: names_of(sharded_problem(shard_optimizer=choice)) for choice in ("never", "allow")}
    assert NAME not in rows["never"]
    assert rows["allow"][-1] == NAME
    small = sharded_problem(memory_bytes=60, recompute=True)
    assert names_of(small)[-2:] == [NAME, f"{NAME}, recomputing"]
    given = sharded_problem(partition=(("x",), ("y",)))
    row, _ = play_baseline(given, [*make_baselines(given, CostModel(given))][-1], costs=CostModel(given))
    assert (row.makespan_ns, row.note) == (None, "the given partition has 2 stages, the method 1")


def names_of(problem: Problem) -> list[str]:
    return [baseline.name for baseline in make_baselines(problem, CostModel(problem))]


def shown(problem: Problem, plan: Plan) -> str:
    """The screen as text."""
    console = Console(width=200, record=True, file=StringIO())
    console.print(render_screen(problem, plan, run=RunSummary(elapsed_s=1.0)))
    return console.export_text()


def test_where_it_wins_the_screen_says_so():
    """Tests that a plan slower than the row is called so, and that the row is derived again with the evidence."""
    problem = sharded_problem()
    plan = find_plan(problem, limits=Limits(time_limit_s=10.0, max_rounds=1))
    assert plan.evidence is not None
    assert rederive(problem, plan, with_baselines=True).differences == ()
    rows = plan.evidence.baselines
    fast = replace(rows[-1], makespan_ns=plan.evidence.makespan_ns // 2)
    beaten = replace(plan, evidence=replace(plan.evidence, baselines=(*rows[:-1], fast)))
    assert f"more than {NAME}, which the executor cannot run" in shown(problem, beaten)
    assert "which wins" not in shown(problem, replace(plan, evidence=replace(plan.evidence, baselines=rows[:-1])))
