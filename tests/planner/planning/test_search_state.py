"""When a run stops: patience in rounds, deadlines that every part asks for, and a clock that waits for the compiler."""

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest

from benchmarks.generate import Family, make_workload
from planner.baselines.registry import make_baselines
from planner.evidence.certificate import make_bound
from planner.evidence.check_evidence import rederive
from planner.layout.costs import CostModel
from planner.plan import NO_TIME
from planner.planning.search_state import REPORT_EVERY_S, SearchState
from planner.problem import Problem
from planner.progress import COMPILING, Limits, Progress
from solver_models.local_search.search import Searcher
from solver_models.starts.first_candidates import make_seeds
from tests.planner.builders import make_layer, make_link, make_problem
from tests.planner.hasty import make_plan


def make_row(num_microbatches: int = 3) -> Problem:
    """Four unlike layers on two devices."""
    layers = [make_layer(f"l{i}", (3 + i, 4, 2), state_bytes=5, stash_bytes=3) for i in range(4)]
    link = make_link("d0 d1", latency=1)
    return make_problem(layers, [link], edge_bytes=4, num_microbatches=num_microbatches, memory_bytes=1_000)


def asked(most: int) -> Callable[[], bool]:
    """A clock that grants so many questions."""
    numbers = count()
    return lambda: next(numbers) < most


def make_run(limits: Limits, heard: list[Progress] | None = None) -> SearchState:
    """A run that has an incumbent."""
    problem = make_row()
    run = SearchState(
        problem,
        limits,
        on_progress=lambda step: None if heard is None else heard.append(step),
        should_stop=lambda: False,
    )
    plan = next(iter(make_baselines(problem, run.costs))).plan
    assert plan is not None
    assert run.offer(plan, None, source="data parallel")
    return run


def test_nothing_is_verified_beyond_the_limit():
    """Tests that a further plan is not looked at whose verification, being long, would end too late; counted, it is."""
    for limits, is_looked_at in ((Limits(time_limit_s=20.0), False), (Limits(time_limit_s=20.0, max_rounds=1), True)):
        run = make_run(limits)
        size = run.offered_actions
        assert run.has_time_to_verify(size)
        run.begin -= 12
        run.offer_s = 0.5
        assert run.has_time_to_verify(size)
        run.offer_s = 7.0
        assert run.has_time_to_verify(size) is is_looked_at
        run.plan = None
        assert run.has_time_to_verify(size)


def test_plans_with_more_actions_take_longer_to_verify():
    """Tests that a plan is not verified which has so many times the actions of the last one that it would end late."""
    run = make_run(Limits(time_limit_s=20.0))
    run.begin -= 12
    run.offer_s = 3.5
    assert run.has_time_to_verify(run.offered_actions)
    assert not run.has_time_to_verify(2 * run.offered_actions)


def test_the_clock_stands_still_while_kernels_compile():
    """Tests that seconds of compilation, on nested calls counted once, are no seconds of the run, and are told of."""
    heard: list[Progress] = []
    run = make_run(Limits(time_limit_s=10**6), heard)
    begin = run.elapsed_s
    run.watch.on_start(None)
    run.watch.on_start(None)
    time.sleep(0.05)
    run.watch.on_end(None)
    assert run.watch.seconds > 0.04
    run.watch.on_end(None)
    total = run.watch.seconds
    time.sleep(0.01)
    assert run.watch.seconds == total
    assert heard[-1].phase == COMPILING
    assert run.elapsed_s - begin <= time.monotonic() - run.begin - total


def test_the_caller_hears_of_a_long_search():
    """Tests that a search without news is reported all the same, though not at every step."""
    heard: list[Progress] = []
    run = make_run(Limits(time_limit_s=10**6), heard)
    run.report("search")
    run.report_if_due("search")
    assert len(heard) == 1
    run.begin -= REPORT_EVERY_S
    run.report_if_due("search")
    assert [step.phase for step in heard] == ["search"] * 2


@pytest.mark.parametrize("most", [0, 1, 3, 10, 40])
def test_baselines_stop_within_a_method(most: int):
    """Tests that baselines for which time is over are listed without a plan, those that try many orders included."""
    family = Family(
        shape="chain", num_layers=8, num_devices=2, num_microbatches=4, memory="loose", links="homogeneous",
        speeds="equal",
    )  # fmt: skip
    workload = make_workload(family)
    problem = Problem(profile=workload.profile, cluster=workload.cluster, num_microbatches=4)
    costs = CostModel(problem)
    everything = [row.name for row in make_baselines(problem, costs)]
    rows = list(make_baselines(problem, costs, has_time=asked(most)))
    assert {row.name for row in rows} <= set(everything)
    late = [row for row in rows if row.note == NO_TIME]
    assert late
    assert all(row.plan is None for row in late)
    assert any("V-Min" in row.name for row in late)


def test_baselines_left_out_state_nothing():
    """Tests that evidence is derived again although baselines were left out for want of time."""
    problem = make_row()
    plan = make_plan(problem, limits=Limits(time_limit_s=60, max_rounds=0))
    assert plan.evidence is not None
    rows = tuple(
        replace(row, makespan_ns=None, span_ns=None, bubble=None, peak_fraction=None, fits_memory=False, note=NO_TIME)
        if number
        else row
        for number, row in enumerate(plan.evidence.baselines)
    )
    short = replace(plan, evidence=replace(plan.evidence, baselines=rows))
    outcome = rederive(problem, short, with_baselines=True)
    assert outcome.passed
    assert [note.names for note in outcome.notes] == [tuple(row.name for row in rows[1:])]


def test_bounds_stop_between_steps():
    """Tests that a bound without time is one all the same, and no larger than with time."""
    problem = make_row()
    costs = CostModel(problem)
    hasty, whole = (make_bound(problem, costs, has_time=has_time) for has_time in (lambda: False, lambda: True))
    assert 0 < hasty.value_ns <= whole.value_ns


def test_seeds_stop_and_the_best_floors_come_first():
    """Tests that as many seeds are rated as there is time for, and without a limit the same ones as ever."""
    searcher = Searcher(make_run(Limits()).instance)
    fewest = 6
    usual = {(seed.stage_of.tobytes(), seed.groups) for seed in make_seeds(searcher)}
    patient = make_seeds(searcher, has_time=lambda: True)
    assert {(seed.stage_of.tobytes(), seed.groups) for seed in patient} == usual
    assert len(make_seeds(searcher, has_time=asked(2))) == fewest + 2
    assert len(usual) > fewest + 2
    floors = [searcher.lower_bound(seed.stage_of, seed.groups, modes=seed.modes) for seed in patient]
    known = [floor for seed, floor in zip(patient, floors, strict=True) if floor is not None and seed.is_feasible]
    assert known == sorted(known)
