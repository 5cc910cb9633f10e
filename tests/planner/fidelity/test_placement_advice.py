"""Devices at other places: found against all permutations, bounded against the best of them."""

from types import SimpleNamespace

import pytest

from planner.dealing import Durations
from planner.fidelity.advice import advise
from planner.fidelity.balance_advice import order_1f1b
from planner.fidelity.placement_advice import Placement, describe_placing, place_anew
from planner.fidelity.run_pipelines import find_shape
from profiles.importers.straggler import RunStep
from tests.planner.test_dealing import make_step


def placed_anew(step: RunStep) -> Placement | None:
    """With the factors of the step itself."""
    shape = find_shape(step)
    assert shape is not None
    return place_anew([step], step, shape=shape, order=order_1f1b)


def test_one_pipeline_has_no_peers():
    """Tests that of one pipeline nothing is said, for nothing tells a slow device from a heavy stage."""
    step = make_step([[Durations(forward_ns=(1000, 2000), backward_ns=(2000, 4000))] * 4])
    assert placed_anew(step) is None
    assert not any("placed" in each.what for each in advise([step], blocks_per_stage=2).remedies)


@pytest.mark.parametrize(
    ("moved", "reordered", "words"),
    [
        (0, 0, "none of 3 devices elsewhere (orders as run, in no pipelines by hand;"),
        (2, 1, "2 of 3 devices elsewhere (orders as run, in 1 pipeline by hand;"),
        (3, 2, "3 of 3 devices elsewhere (orders as run, in 2 pipelines by hand;"),
    ],
)
def test_placing_is_told(moved: int, reordered: int, words: str):
    """Tests that numbers have their plurals, and that both figures are those of the placement."""
    placed = SimpleNamespace(
        num_moved=moved, num_reordered=reordered, device_of=(0, 1, 2), makespan_ns=9, lower_bound_ns=8
    )
    remedy = describe_placing(placed, orders="hand")  # type: ignore[arg-type]
    assert remedy.what.startswith(f"placed again: {words}")
    assert (remedy.makespan_ns, remedy.lower_bound_ns) == (9, 8)
