"""Orders that CP-SAT is given between the rounds of the search."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from api.inputs import make_problem
from benchmarks.capped_uniform import make_uniform
from benchmarks.neighbours import with_transfers
from planner.evidence.certificate import schedule_bound
from planner.plan import Stage
from planner.planning import make_plan
from planner.planning.improvers import cp_sat_orders
from planner.planning.improvers.cp_sat_orders import SingleOrders, order_by_cp_sat
from planner.planning.improvers.improver import Leader
from planner.planning.improvers.order_sessions import key_of
from planner.planning.runs.run import bound
from planner.planning.search_state import SearchState
from planner.planning.starts.conversions import plan_of, rate
from planner.progress import Limits
from profiles.load import load_workload
from solver_models.local_search.multistart import JointSearch


def begin(cuts: Sequence[int], *, num_microbatches: int) -> tuple[SearchState, JointSearch]:
    """A run on a measured GPT over two processes whose search knows it cut behind so many layers."""
    problem = make_problem(load_workload("demo:gpt2-two-processes"), num_microbatches=num_microbatches)
    limits = Limits(time_limit_s=600, max_rounds=1, threads=1)
    run = SearchState(problem, limits, on_progress=lambda _: None, should_stop=lambda: False)
    bound(run)
    search, names = JointSearch(run.instance), problem.profile.topological_order
    first, second = (((device.name,),) for device in problem.cluster.devices)
    for cut in cuts:
        stages = Stage(layers=names[:cut], replicas=first), Stage(layers=names[cut:], replicas=second)
        search.add([rate(problem, search.searcher, stages=stages)])
    Leader(run, search).propose("balanced seeds")
    return run, search


def test_the_best_stages_are_not_the_only_ones():
    """Tests that every known cut gets its turn, the best first, and each of them once."""
    run, search = begin((4, 5), num_microbatches=4)
    single, keys = SingleOrders(run, search), [key_of(each) for each in search.pool]
    for asked in (keys[:1], keys, keys):
        list(single.take_step())
        run.window.drain()
        assert single.ordered == set(asked)


def test_whole_backwards_for_a_part_of_the_microbatches():
    """Tests that an order is found that runs B for some microbatches of a stage, and I and W for others.

    process 1:  F I F F B F I B F B W W     whole backwards are shorter, an early gradient is worth more
    """
    run, search = begin((5,), num_microbatches=5)
    before = run.incumbent_ns
    single = SingleOrders(run, search)
    list(single.take_step())
    run.window.drain()
    assert before is not None
    assert run.incumbent_ns is not None
    assert run.incumbent_ns < before
    assert run.plan is not None
    kinds = {(action.stage, action.kind) for order in run.plan.schedule.values() for action in order}
    assert {(1, "B"), (1, "I"), (1, "W")} <= kinds
    (known,) = search.polished  # from which the search continues
    assert plan_of(run.problem, search.searcher, candidate=known).schedule == run.plan.schedule


def test_nothing_is_asked_where_no_order_could_be_better():
    """Tests that stages whose schedule bound is no better than the incumbent are left to nobody."""
    run, search = begin((5, 7), num_microbatches=4)
    single = SingleOrders(run, search)
    for _ in range(2):
        list(single.take_step())
        run.window.drain()
    assert run.plan is not None
    assert [len(stage.layers) for stage in run.plan.stages] == [5, 3]


def test_it_has_a_share_of_the_time():
    """Tests that it pauses after it has used more than its share, unless rounds are counted."""
    run, search = begin((5,), num_microbatches=4)
    single = SingleOrders(run, search)
    assert [rounds for rounds in range(16) if single.is_due(rounds)] == [12, 14]
    run.limits = replace(run.limits, method="ilp")
    assert [rounds for rounds in range(6) if single.is_due(rounds)] == [2, 4]
    single.used_s = 1000.0
    assert single.is_due(12)
    run.limits = replace(run.limits, max_rounds=None)
    assert not single.is_due(12)


def test_it_begins_early_where_time_counts():
    """Tests that it waits for fewer rounds where they take seconds: 12 of them may be most of a minute."""
    run, search = begin((5,), num_microbatches=4)
    run.limits = replace(run.limits, max_rounds=None)
    single = SingleOrders(run, search)
    assert [rounds for rounds in range(8) if single.is_due(rounds)] == [4, 6]


def test_short_transfers_in_little_memory():
    """Tests that the order of stages that are given is optimal where short transfers break the greedy orders."""
    base = make_uniform(6, num_microbatches=9, room=5)
    for share, best in ((0.01, 331_000_000), (0.05, 335_000_000)):
        problem = with_transfers(share)(base, Random(0))
        evidence = make_plan(problem, limits=Limits(time_limit_s=600, max_rounds=4, threads=2)).evidence
        assert evidence is not None
        assert evidence.lower_bound_ns == best
        assert evidence.makespan_ns == best


def test_half_of_the_gap_is_asked_for(monkeypatch: pytest.MonkeyPatch):
    """Tests that an order has to be less than the incumbent, or half way from there to the bound."""
    run, _ = begin((5,), num_microbatches=4)
    assert run.plan is not None
    assert run.incumbent_ns is not None
    asked = []
    monkeypatch.setattr(cp_sat_orders, "start_orders", lambda *_, **given: asked.append(given["most_ns"]))
    for halves_gap in (None, False, True):
        assert order_by_cp_sat(run, run.plan, source="", work=1.0, halves_gap=halves_gap)
    bound_ns, below = schedule_bound(run.problem, run.plan.stages, costs=run.costs), run.incumbent_ns - 1
    assert bound_ns < below - 1
    assert asked == [below, below, (bound_ns + below) // 2]
