"""Candidates whose first plans and bounds workers make: as good as made here, and nothing is believed unseen."""

from dataclasses import replace
from typing import Any

import pytest

from planner.batch_problem import problem_for
from planner.evidence.check_evidence import rederive
from planner.plan import Plan
from planner.planning import Limits, make_plans
from planner.planning.planning_params import SearchParams
from planner.planning.runs.spread_steps import Contents
from planner.problem import Problem
from planner.verify import verify
from solver_models.local_search.portable_tasks import PortableTask, Workers
from tests.planner.builders import make_layer, make_link, make_problem
from tests.planner.hasty import HASTY
from tests.planner.test_batch_problem import make_batch
from tests.planner.test_batch_problem import make_layer as make_sized_layer
from tests.planner.workers_here import WorkersHere

ROUND = Limits(time_limit_s=60, max_rounds=1, threads=1)
PATIENT, HURRIED = (Limits(time_limit_s=seconds, patience=2, threads=1) for seconds in (60, 2))


def planned(question: Any, workers: Workers | None, *, limits: Limits = ROUND, **how: Any) -> Plan:
    return make_plans(question, top=1, limits=limits, workers=workers, **{"params": HASTY, **how})[0]


def alike(plan: Plan) -> Plan:
    """The plan without what says who did how much of the work."""
    assert plan.evidence is not None
    evidence = replace(plan.evidence, workers=None, worker_tasks=None, improvers=(), sizes=())
    return replace(plan, evidence=evidence)


def chain(num_layers: int = 6, *, num_microbatches: int = 4) -> Problem:
    """Unlike layers on three devices."""
    layers = [make_layer(f"l{i}", (500 + 70 * i, 500, 400), state_bytes=300) for i in range(num_layers)]
    links = [make_link("s a"), make_link("s b"), make_link("s c")]
    return make_problem(layers, links, switches=("s",), num_microbatches=num_microbatches, edge_bytes=10)


def sized() -> Any:
    return make_batch([make_sized_layer(name, {1: 10, 2: 14, 4: 24}) for name in "xyz"])


def test_rounds_on_workers_are_the_same_rounds():
    """Tests that with a number of rounds workers change nothing but who did them."""
    problem = chain()
    workers = WorkersHere()
    plan = planned(problem, workers)
    assert alike(plan) == alike(planned(problem, None))
    assert (plan.evidence.workers, plan.evidence.worker_tasks) == (2, workers.num_tasks)
    assert workers.num_tasks > 0


def test_sizes_are_planned_by_workers():
    """Tests that the sizes of microbatches have first plans and bounds of workers, and the answer is as good."""
    question, workers = sized(), WorkersHere()
    plan = planned(question, workers)
    assert workers.num_tasks >= 2 * len(question.sizes)
    assert plan.evidence.makespan_ns == planned(question, None).evidence.makespan_ns
    assert verify(problem_for(question, plan), plan).passed
    assert rederive(problem_for(question, plan), plan).passed
    assert [each.microbatch_size for each in plan.evidence.sizes] == list(question.sizes)


def lie(found: Any) -> Any:
    """A plan without its last stage, and a bound above every plan."""
    if not isinstance(found, Contents):
        return found
    plan = None if found.plan is None else replace(found.plan, stages=found.plan.stages[:-1])
    bound = found.bound and replace(
        found.bound, value_ns=10**9, certificate={**found.bound.certificate, "value_ns": 10**9}
    )
    return replace(found, plan=plan, bound=bound)


def test_what_workers_say_is_not_believed():
    """Tests that a plan that breaks a rule and a bound that is not proved change no answer."""
    question = sized()
    plan = planned(question, WorkersHere(change=lie))
    honest = planned(question, None)
    assert plan.evidence.makespan_ns == honest.evidence.makespan_ns
    assert plan.evidence.lower_bound_ns <= honest.evidence.lower_bound_ns
    assert rederive(problem_for(question, plan), plan).passed


@pytest.mark.parametrize(
    ("question", "limits", "params", "least"),
    [(chain(4, num_microbatches=2), PATIENT, HASTY, 6), (chain(), HURRIED, SearchParams(), 1)],
)
def test_baselines_of_large_problems_are_played_beside(
    question: Problem, limits: Limits, params: SearchParams, least: int
):
    """Tests that a worker plays them while the search begins, and that no plan is worse than the best of them."""
    params = replace(params, first_plans=replace(params.first_plans, large_actions=1))
    plan = planned(question, WorkersHere(), limits=limits, params=params)
    fitting = [row.makespan_ns for row in plan.evidence.baselines if row.fits_memory and row.makespan_ns is not None]
    assert len(fitting) >= least
    assert all(plan.evidence.makespan_ns <= makespan for makespan in fitting)


def test_what_nobody_waits_for_is_left():
    """Tests that tasks are left once the caller wants an end, and that there is a plan all the same."""
    asked: list[PortableTask] = []

    class Idle(WorkersHere):
        def submit(self, task: PortableTask, *, may_start: Any, is_over: Any) -> Any:
            asked.append(task)
            return super().submit(task, may_start=may_start, is_over=lambda: True)

    plan = planned(chain(), Idle())
    assert asked
    assert plan.evidence.worker_tasks == 0
