"""The search for the largest value that a test still rules out: tests of planner/bounds/bisection.py."""

import pytest

from planner.bounds.bisection import REFUTED_NS, largest_refuted, next_above
from planner.evidence.certificate import make_bound, rules_out_every_deadline
from planner.layout.costs import CostModel
from profiles.field_rules import MAX_NANOSECONDS
from tests.planner.evidence.test_certificate import make_chain


def test_no_deadline_beyond_the_last_is_tried():
    """Tests that strides end at the last deadline, and that one that is out of reach ends the search."""
    asked = list[int]()

    def is_out(deadline: int) -> bool:
        asked.append(deadline)
        return True

    assert largest_refuted(is_out, 5, steps=200) == REFUTED_NS + 1
    assert max(asked) == REFUTED_NS
    assert next_above(REFUTED_NS, 1) == REFUTED_NS
    assert next_above(REFUTED_NS + 7, 1) == REFUTED_NS + 7


def test_times_longer_than_the_last_deadline_are_no_proof():
    """Tests that no bound on a plan longer than every deadline tried is taken for a refutation."""
    count = REFUTED_NS // MAX_NANOSECONDS + 1
    problem = make_chain([(MAX_NANOSECONDS, MAX_NANOSECONDS, 0)], num_devices=1, num_microbatches=count, gradient=0)
    bound = make_bound(problem, CostModel(problem))
    assert bound.value_ns > REFUTED_NS
    assert not rules_out_every_deadline(problem, bound.value_ns)
    assert problem.longest_work_ns == 2 * count * MAX_NANOSECONDS


def test_what_a_plan_has_reached_is_tried_first():
    """Tests that one question suffices where nothing below a plan is possible; else halves lie below it."""
    asked = list[int]()

    def is_out(deadline: int) -> bool:
        asked.append(deadline)
        return deadline < 700

    assert largest_refuted(is_out, 500, steps=14, reached=600) == 600
    assert asked == [499, 599]
    assert largest_refuted(is_out, 500, steps=14, reached=900) == 700
    assert max(asked) == 899


@pytest.mark.parametrize("reached", [None, 2_000_000])
def test_where_nothing_is_raised_few_questions_are_asked(reached: int | None):
    """Tests that the nearest of all values comes second, and that the answer is that of halves alone."""
    asked = list[int]()
    start, steps = 10**6, 16

    def search(last: int) -> int:
        asked.clear()
        return largest_refuted(
            lambda deadline: asked.append(deadline) or deadline <= last, start, steps=steps, reached=reached
        )

    assert search(start - 1) == start
    assert len(asked) <= 4
    for last in (start + 1, start + 500, start + 10**5):
        low, high = start - 1, asked[1] if reached is None else reached - 1
        found = search(last)
        assert last - found < (high - low) >> (steps - 8)
        assert found <= last + 1
