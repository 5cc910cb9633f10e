"""What a user gives beside the plan: tests of planner/execute/training.py."""

import re

import pytest

from tests.planner.execute.run.test_execution import SAMPLES, WORKER


def test_plans_are_made_for_the_samples_of_the_models():
    """Tests that the number of samples written here is that of `execute_models`."""
    models = WORKER.with_name("execute_models.py").read_text(encoding="utf-8")
    assert re.findall(r"^WIDTH, SAMPLES = \d+, (\d+)$", models, flags=re.MULTILINE) == [str(SAMPLES)]


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("form", ["sparse", "sparse_csr"])
def test_sparse_tensors_are_not_sent(form: str):
    """Tests that they are refused by their layout, alone or among others."""
    torch = pytest.importorskip("torch")
    from planner.execute.training import as_tuple

    sparse = getattr(torch.eye(3), f"to_{form}")()
    for given in (sparse, (torch.eye(3), sparse)):
        with pytest.raises(ValueError, match=r"layout torch.sparse_\w+ cannot be sent between stages; give"):
            as_tuple(given)
