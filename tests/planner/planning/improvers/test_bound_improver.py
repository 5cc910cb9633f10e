"""The packing bound in turns with the joint search: it rises, and plans that it lets pass are tried."""

from dataclasses import replace

import pytest

from benchmarks.generate import parse_family
from planner.bounds.bound_params import BoundParams
from planner.evidence.certificate import check_certificate
from planner.plan import Stage
from planner.planning.improvers.bound_improver import BoundImprover, packs_later, raises_bound
from planner.planning.improvers.improver import Leader
from planner.planning.runs.run import bound
from planner.planning.search_state import SearchState
from planner.problem import Options
from planner.progress import Limits
from solver_models.local_search.multistart import JointSearch
from solver_models.starts.first_candidates import make_seeds
from tests.planner.generated_chains import make_one_by_one

STARVED = "chain-24x4-m8-scarce-homogeneous-classes"
"""Little memory, unlike devices."""

REACHED_NS = 526_598_063
"""What the best order of the stages of `passed` takes."""


def begin(limits: Limits) -> tuple[SearchState, BoundImprover]:
    """A run in little memory, where no policy has a plan, whose first bound is known."""
    problem = replace(make_one_by_one(parse_family(STARVED)), options=Options())
    run = SearchState(problem, limits, on_progress=lambda _: None, should_stop=lambda: False)
    bound(run)
    search = JointSearch(run.instance)
    search.add(make_seeds(search.searcher))
    return run, BoundImprover(run, search, leader=Leader(run, search))


def passed(run: SearchState) -> tuple[Stage, ...]:
    """Stages that the packing bound lets pass for 500 ms, which no policy plays well."""
    names, start, stages = [layer.name for layer in run.problem.profile.layers], 0, []
    for length, device in zip((1, 2, 3, 4, 3, 3, 5, 3), (2, 3, 0, 1, 2, 0, 1, 3), strict=True):
        stages.append(Stage(layers=tuple(names[start : start + length]), replicas=((f"gpu{device}",),)))
        start += length
    return tuple(stages)


def take_turn(run: SearchState, turns: BoundImprover) -> None:
    """A turn, to the end of its tasks."""
    for _ in turns.take_step():
        pass
    run.window.drain()


@pytest.mark.slow
def test_the_bound_rises_in_turns():
    """Tests that the bound rises turn by turn up to what plans reach, and that its certificate is derived again."""
    run, turns = begin(Limits(time_limit_s=600.0, threads=1))
    assert run.lower_bound is not None
    first, run.rival_ns = run.lower_bound.value_ns, 600_000_000
    for _ in range(60):
        take_turn(run, turns)
        if run.lower_bound.value_ns > first:
            break
    assert first < run.lower_bound.value_ns <= REACHED_NS
    assert check_certificate(run.problem, run.lower_bound.certificate) == run.lower_bound.value_ns


@pytest.mark.slow
def test_what_passes_is_tried_once():
    """Tests that orders are searched for stages that the bound lets pass, and that these are not taken up again."""
    run, turns = begin(Limits(time_limit_s=600.0, threads=1))
    stages = passed(run)
    assert run.incumbent_ns is None
    assert run.lower_bound is not None
    turns._take(replace(run.lower_bound, timely=(stages, stages)))
    assert turns.found == [stages]
    take_turn(run, turns)
    assert run.incumbent_ns is not None
    assert run.incumbent_ns < 1.1 * REACHED_NS
    assert run.plan is not None
    assert (run.plan.stages, run.source) == (stages, "packing bound")
    turns._take(replace(run.lower_bound, timely=(stages,)))
    assert not turns.found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("begun_s", "used_s", "step_s"), [(5.0, 0.5, 1.5), (5.0, 1.9, 0.5), (5.0, 9.0, 0.5), (90.0, 1.0, 2.0)]
)
def test_a_step_takes_what_is_left_of_its_share(
    begun_s: float, used_s: float, step_s: float, monkeypatch: pytest.MonkeyPatch
):
    """Tests that without a plan it gets 0.4 of the time: half a second at least, and two at most, in one step."""
    run, turns = begin(Limits(time_limit_s=600.0, threads=1))
    monkeypatch.setattr(run, "rests_since", 0.0)
    turns.begin_s, turns.used_s = run.elapsed_s - begun_s, used_s
    assert turns._step_s == pytest.approx(step_s)


@pytest.mark.slow
def test_it_waits_for_its_share():
    """Tests that it is due after the first rounds, not beyond its share of the time, and not where rounds count."""
    run, turns = begin(Limits(time_limit_s=600.0, threads=1))
    assert raises_bound(run)
    assert not turns.is_due(0)
    assert not turns.is_due(2)
    turns.quiet_s = 0.0
    assert turns.is_due(2)
    turns.used_s = run.elapsed_s
    assert not turns.is_due(2)
    counted = replace(run.limits, max_rounds=3)
    run.limits = counted
    assert not raises_bound(run)


def test_the_first_bound_leaves_packing_to_the_search():
    """Tests that a run alone packs later, in one step that uses up what is left, and others at once."""
    problem = replace(make_one_by_one(parse_family(STARVED)), options=Options())
    run = SearchState(problem, Limits(time_limit_s=8.0, threads=1), on_progress=print, should_stop=lambda: False)
    assert packs_later(run)
    run.num_runs = 2
    assert not packs_later(run)
    run.num_runs, run.limits = 1, replace(run.limits, gap=0.1)
    assert not packs_later(run)
    run.limits = Limits(time_limit_s=2.0, threads=1)
    assert not packs_later(run)
    run.limits = Limits(time_limit_s=600.0, threads=1, patience_s=3.0)
    run.params = replace(run.params, bound=BoundParams(max_s=0.01))
    bound(run)
    assert run.pending_effort > 0
    search = JointSearch(run.instance)
    turns = BoundImprover(run, search, leader=Leader(run, search))
    assert turns.quiet_s == 1.5
    for _ in turns.take_step():
        assert (run.pending_effort, turns.used_s) == (0, 0.0)
