"""What a user gives beside the plan: tests of planner/execute/training.py."""

import re

from tests.planner.execute.run.test_execution import SAMPLES, WORKER


def test_plans_are_made_for_the_samples_of_the_models():
    """Tests that the number of samples written here is that of `execute_models`."""
    models = WORKER.with_name("execute_models.py").read_text(encoding="utf-8")
    assert re.findall(r"^WIDTH, SAMPLES = \d+, (\d+)$", models, flags=re.MULTILINE) == [str(SAMPLES)]
