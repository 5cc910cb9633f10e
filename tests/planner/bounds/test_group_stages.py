"""Figures of stages on groups: rings of their width, steps, transfers that occupy devices, and what memory asks for."""

from dataclasses import replace

import pytest

from planner.bounds.group_stages import StageFigures, StageLayouts
from planner.bounds.heaviest_path import NEVER, Trunk
from planner.bounds.minimum_costs import Least
from planner.layout.costs import CostModel
from planner.problem import Options, Problem
from profiles.model_profile import WidthBytes
from tests.planner.evidence.test_certificate import make_chain

ONE_EACH = Options(receive_buffers=0, max_stages_per_device=1, split_backward=False)


def chain(**how: object) -> Problem:
    """Two layers of F 10 and B 20 for two samples, on four devices with links of a byte per nanosecond."""
    options = {"num_devices": 4, "num_microbatches": 4, "options": ONE_EACH, **how}
    problem = make_chain([(10, 10, 10)] * 2, **options)  # type: ignore[arg-type]
    return replace(problem, profile=replace(problem.profile, microbatch_size=2, scaling="linear"))


def figures(problem: Problem, *, taken: int, replicas: int = 1) -> StageFigures:
    """Of stages with so many devices and replicas, for all intervals of layers."""
    least = Least(problem, CostModel(problem))
    layouts = StageLayouts(least, Trunk(least))
    pairs = zip(layouts.alike, layouts.stages(), strict=True)
    (found,) = [each for (count, *_), (numbers, each) in pairs if (count, numbers) == (replicas, [(taken,)])]
    return found


def test_a_ring_carries_the_gradients_of_its_width():
    """Tests that replicas of one device synchronise whole gradients, where groups of two have the half of them."""
    plain = chain(gradient=40)
    layers = tuple(
        replace(
            layer,
            costs=(*layer.costs, replace(layer.costs[0], width=2)),
            wider=(WidthBytes(width=2, parameter_bytes=20, state_bytes=0, stash_bytes=0),),
        )
        for layer in plain.profile.layers
    )
    problem = replace(plain, profile=replace(plain.profile, layers=layers), options=replace(ONE_EACH, max_width=2))
    narrow, wide = (figures(problem, taken=taken, replicas=2) for taken in (2, 4))
    assert [int(each.closing[0, 1] - each.back[0, 1]) for each in (narrow, wide)] == [40, 20]


def test_a_stage_steps_all_of_its_layers():
    """Tests that the step of two layers follows the work of a stage that holds both, beyond what every plan has."""
    plain = chain()
    layers = tuple(replace(each, costs=(replace(each.costs[0], optimizer_ns=6),)) for each in plain.profile.layers)
    problem = replace(plain, profile=replace(plain.profile, layers=layers))
    least, found = Least(problem, CostModel(problem)), figures(problem, taken=1)
    assert least.optimizer_ns == 6
    assert [int(found.work[0, end]) for end in (1, 2)] == [4 * 30, 4 * 60 + 6]


@pytest.mark.parametrize(("overlap", "work", "returned"), [(True, 120, 120), (False, 120 + 4 * 16, 120 + 4 * 16)])
def test_transfers_occupy_devices_where_the_cluster_says_so(overlap: bool, work: int, returned: int):
    """Tests that what the first stage sends and receives of 24 bytes, over links of 3 in all, is time of its device."""
    plain = chain(edge_bytes=24)
    problem = replace(plain, cluster=replace(plain.cluster, overlap=overlap))
    found = figures(problem, taken=1)
    assert (int(found.work[0, 1]), int(found.returned[0, 1])) == (work, returned)


def test_turnarounds_follow_each_other_where_memory_holds_few():
    """Tests that three of four microbatches fit: two turnarounds, and one F beside the second."""
    found = figures(chain(stash=(30, 0), memory=100), taken=1)
    assert (int(found.rounds[0, 1]), int(found.turned[0, 1])) == (2, 2 * 30)
    assert (int(found.filled[0, 1]), int(found.drained[0, 1])) == (2 * 10, 2 * 20)
    assert (int(found.rounds[0, 2]), int(found.turned[0, 2])) == (4, 4 * 60)


def test_a_stage_without_room_is_never_done():
    """Tests that two layers whose stashes exceed the device make no stage, and one layer does."""
    found = figures(chain(stash=(60, 0), memory=100), taken=1)
    assert int(found.work[0, 1]) == 120
    assert int(found.work[0, 2]) == NEVER
