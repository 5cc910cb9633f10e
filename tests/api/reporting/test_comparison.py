"""Plans side by side: tests of api/reporting/comparison.py."""

import json
from pathlib import Path

import pytest

from api.failures import InputError
from api.reporting.comparison import compare, read_contenders
from api.reporting.what_if import read_base

EXAMPLES = Path(__file__).parents[3] / "examples"
PLAN = EXAMPLES / "tutorial" / "plan.json"


@pytest.fixture
def in_other_order(tmp_path: Path) -> str:
    """The same plan as other programs write it: keys in order of the alphabet, the format far behind."""
    file = tmp_path / "sorted.json"
    file.write_text(json.dumps(json.loads(PLAN.read_bytes()), sort_keys=True, indent=2))
    return str(file)


def test_plans_bring_their_questions(in_other_order: str):
    """Tests that plans of one model are compared without a workload, whatever the order of their fields."""
    _, (one, other) = compare([str(PLAN), in_other_order], workload=None)
    assert one.makespan_ns == other.makespan_ns
    assert one.num_violations == other.num_violations == 0


def test_plans_of_two_models_are_not_compared():
    """Tests that makespans of two questions do not stand side by side without a word."""
    with pytest.raises(InputError, match=r"two-ranks\.json: is for another profile or cluster than .*plan\.json"):
        read_contenders([str(PLAN), str(EXAMPLES / "two-ranks.json")], workload=None)


def test_a_change_of_a_plan_in_another_order(in_other_order: str):
    """Tests that a plan is not taken for a workload because its format does not come first."""
    assert read_base(in_other_order, None, cluster=None, num_microbatches=None)[1] is not None
