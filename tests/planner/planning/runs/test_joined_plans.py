"""Runs that search for one question at once: plans of others are judged and taken in, and one answer joins them all."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from random import Random

import pytest

from planner.errors import PlanError
from planner.evidence.certificate import make_bound
from planner.evidence.check_evidence import rederive
from planner.layout.costs import CostModel
from planner.plan import Evidence, Plan
from planner.planning.runs.joined_plans import join_plans
from planner.planning.runs.run import ISLAND
from planner.problem import Problem
from planner.progress import Limits
from planner.verify import verify
from tests.planner.hasty import HASTY, make_plan, make_plans
from tests.strategies import random_chain


@cache
def problem() -> Problem:
    """One whose best plan is not found at once, nor proved by its bound."""
    return random_chain(Random(6), sizes=(9, 4, 8), tight=True)


@cache
def searched(rounds: int) -> Plan:
    return make_plan(problem(), limits=Limits(max_rounds=rounds, threads=1))


def tell(problem: Problem, told: Iterator[Plan]) -> Plan:
    """The plan of a run that hardly searches, and is told of these."""
    limits = Limits(max_rounds=0, threads=1)
    return make_plans(problem, top=1, limits=limits, others=lambda: next(told, None), params=HASTY)[0]


def evidence_of(plan: Plan) -> Evidence:
    assert plan.evidence is not None
    return plan.evidence


def with_evidence(plan: Plan, **changes: object) -> Plan:
    return replace(plan, evidence=replace(evidence_of(plan), **changes))


def weakly_bounded(plan: Plan) -> Plan:
    """The plan with the bound that is there at once."""
    bound = make_bound(problem(), CostModel(problem()), time_limit_s=0.0)
    objective = evidence_of(plan).makespan_ns
    weak = {"lower_bound_ns": bound.value_ns, "bound_kind": bound.kind, "gap": 1 - bound.value_ns / objective}
    enclosed = {"enclosed": evidence_of(plan).certificate["enclosed"]}
    weak |= {"certificate": {**bound.certificate, **enclosed}, "schedule_bound_ns": None, "solver_bound_ns": None}
    return with_evidence(plan, **weak, proved_by=None, solution_status="feasible", stopped_by="time")


def test_a_better_plan_of_others_is_taken_in():
    """Tests that a run that is told of a better plan ends with one at least as good, and says where it is from."""
    alone, better = searched(0), searched(3)
    assert evidence_of(better).makespan_ns < evidence_of(alone).makespan_ns
    told: Iterator[Plan] = iter([better])
    plan = tell(problem(), told)
    assert evidence_of(plan).makespan_ns == evidence_of(better).makespan_ns
    assert evidence_of(plan).source == ISLAND
    assert [tally.improvements for tally in evidence_of(plan).improvers if tally.name == ISLAND] == [1]
    assert verify(problem(), plan).passed


def test_what_the_verifier_rejects_is_not_taken_in():
    """Tests that a plan that breaks a rule changes nothing but the ledger, however good its evidence says it is."""
    better = searched(3)
    broken = replace(with_evidence(better, makespan_ns=1, span_ns=1), stages=better.stages[:-1])
    told = iter([broken])
    plan = tell(problem(), told)
    assert (plan.stages, plan.schedule) == (searched(0).stages, searched(0).schedule)


def test_the_best_plan_and_the_best_bound():
    """Tests that one answer has the best plan of one run and the best bound of another, all of it re-derivable."""
    worse, better = searched(0), weakly_bounded(searched(3))
    assert evidence_of(worse).lower_bound_ns > evidence_of(better).lower_bound_ns
    joined = join_plans(problem(), [worse, better], gap=0.0, stopped_by="time")
    assert joined.schedule == better.schedule
    evidence = evidence_of(joined)
    assert evidence.lower_bound_ns == evidence_of(worse).lower_bound_ns
    assert evidence.stopped_by == ("proof" if evidence.gap <= 0 else "time")
    assert rederive(problem(), joined).differences == ()
    content = join_plans(problem(), [worse, better], gap=0.9, stopped_by="time")
    assert evidence_of(content).stopped_by == ("proof" if evidence.gap <= 0 else "gap")


def test_a_bound_that_is_not_proved_does_not_count():
    """Tests that a run whose certificate states more than it proves does not raise the bound of the answer."""
    boast, honest = searched(0), weakly_bounded(searched(3))
    value = evidence_of(honest).makespan_ns
    stated, gap = {**evidence_of(boast).certificate, "value_ns": value}, 1 - value / evidence_of(boast).makespan_ns
    boast = with_evidence(boast, certificate=stated, lower_bound_ns=value, gap=gap)
    joined = join_plans(problem(), [boast, honest], gap=0.0, stopped_by="time")
    assert evidence_of(joined).lower_bound_ns == evidence_of(honest).lower_bound_ns


def test_a_rejected_plan_is_no_answer():
    """Tests that plans that break a rule are left out, and that nothing is answered where all do."""
    broken = replace(searched(3), stages=searched(3).stages[:-1])
    assert join_plans(problem(), [broken, searched(0)], gap=0.0, stopped_by="time").stages == searched(0).stages
    with pytest.raises(PlanError, match="every plan of every island"):
        join_plans(problem(), [broken], gap=0.0, stopped_by="time")
