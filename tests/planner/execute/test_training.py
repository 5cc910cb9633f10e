"""What a user gives beside the plan: tests of planner/execute/training.py."""

import re
from collections.abc import Callable
from typing import Any

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


def _next_of(pool: Any) -> Callable[[int], Any]:
    return lambda _: next(pool)


_NUMBERED = ("numbered", "with nan", "sparse", "without data")


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("kind", [*_NUMBERED, "loader", "drawn", "loader into one tensor"])
def test_batches_hang_on_their_number_alone(kind: str, steps: int):
    """Tests that a function that gives what a loader has next, or draws anew, is refused, also where it fills one
    tensor. One that gives the same for a number passes; tensors that cannot be compared, or sent, are told later.
    """
    torch = pytest.importorskip("torch")
    from planner.execute.training import require_numbered

    same, rows = torch.zeros(2), iter(torch.arange(20.0).view(10, 2))
    kinds: dict[str, Callable[[int], Any]] = {
        "numbered": lambda number: ({"x": torch.full((2,), number), "how": "right"}, torch.ones(2)),
        "with nan": lambda number: (torch.full((2,), float("nan")), torch.tensor([True, False])),
        "loader": _next_of((torch.full((2,), number), torch.ones(2)) for number in range(10)),
        "drawn": lambda number: (torch.randn(2), torch.ones(2)),
        "loader into one tensor": lambda number: (same.copy_(next(rows)), torch.ones(2)),
        "sparse": lambda number: (torch.eye(2).to_sparse(), torch.ones(2)),
        "without data": lambda number: (torch.ones(2, device="meta"), torch.ones(2)),
    }
    if kind in _NUMBERED:
        require_numbered(kinds[kind], steps=steps)
        return
    with pytest.raises(ValueError, match="gives other samples when it is called for iteration 0 again"):
        require_numbered(kinds[kind], steps=steps)
