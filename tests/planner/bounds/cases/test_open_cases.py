"""Whole partitions and mappings as cases whose orders are open: tests of planner/bounds/cases/open_cases.py."""

from dataclasses import replace
from random import Random

import pytest

from planner.bounds.cases import order_windows
from planner.bounds.cases.case_enumeration import CaseEnumeration
from planner.bounds.cases.case_tables import CaseTables
from planner.bounds.cases.open_cases import CaseMaker
from tests.planner.eager_plans import eager_plan, queued_plan, queued_problem, varied_problem, with_memory_of
from tests.planner.plan_in_cases import ContradictedError, follow


@pytest.mark.parametrize(
    ("owner", "name", "fault"),
    [
        (CaseTables, "duration", lambda real: lambda self, *ends, size: real(self, *ends, size=size) + 2),
        (CaseMaker, "_add_buffers", lambda real: lambda *args, **named: [real(*args, **named) for _ in range(2)]),
        (CaseMaker, "_late_steps", lambda real: lambda self, steps: real(self, steps) + 1),
        (CaseEnumeration, "_least_transfer", lambda real: lambda self, *ends, num_bytes: 3 + real(
            self, *ends, num_bytes=num_bytes)),
        (CaseMaker, "_serialise_sends", lambda real: lambda self, transfers, rank: real(self, transfers, -rank)),
        (order_windows, "_queue", lambda real: lambda orders, cases: real(orders, replace(cases, sent=2 * cases.sent))),
        (order_windows, "_least_held", lambda real: lambda *args, **named: real(*args, **named) + 1),
    ],
)  # fmt: skip
def test_a_rule_that_is_wrong_contradicts_a_plan(monkeypatch, owner, name, fault):
    """Tests that the plans would find longer transfers, wrong queues, larger buffers or stashes, a later optimizer."""
    monkeypatch.setattr(owner, name, fault(getattr(owner, name)))
    with pytest.raises(ContradictedError):
        follow_some()


def test_no_rule_contradicts_a_plan():
    """Tests that windows hold what was played, where memory is scarce and where transfers queue."""
    follow_some()


def follow_some() -> None:
    """Follow plans that need all the memory that there is, and such as queue on links, to their windows."""
    for seed in range(100):
        rng = Random(f"survivor {seed}")
        problem = varied_problem(rng)
        plan = eager_plan(rng, problem)
        follow(with_memory_of(rng, problem, plan), plan, depth=0)
        queued = queued_problem(rng, num_microbatches=3)
        follow(queued, queued_plan(rng, queued), depth=0)
