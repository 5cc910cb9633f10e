"""What the check of a packing certificate may cost: tests of planner/bounds/device_packing/packing_effort.py."""

from typing import Any

import pytest

from planner.bounds.device_packing import packing_effort
from planner.evidence.certificate import check_certificate
from planner.problem import Problem
from tests.planner.bounds.device_packing.test_packing_bound import heavy, packed


def cut_in_two() -> tuple[Problem, dict[str, Any]]:
    """A problem whose bound takes several cases, and their certificate."""
    problem = heavy(7, 3)
    return problem, dict(packed(problem).certificate)


def test_no_more_is_made_than_is_checked(monkeypatch):
    """Tests that whatever may be looked at, what is made is checked with that, and what takes more is refused."""
    problem, whole = cut_in_two()
    values, factor = [], packing_effort.SMALL_FACTOR
    for most in (25, 250, 2_500):
        monkeypatch.setattr(packing_effort, "MAX_EFFORT", most)
        bound = packed(problem)
        values.append(bound.value_ns)
        assert check_certificate(problem, bound.certificate) == bound.value_ns
        if bound.kind != "packing":
            with pytest.raises(ValueError, match=f"^certificate: cases .* more than {factor * most:,} steps; .* again"):
                check_certificate(problem, whole)
    assert values == sorted(values)
    assert values[0] < values[-1] == whole["value_ns"]
