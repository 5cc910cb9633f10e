"""Steps from one joint plan to a neighbour: tests of solver_models/moves/neighbourhood.py."""

from dataclasses import replace

import numba
import numpy as np
import pytest

from solver_models.local_search.search import Candidate, Searcher, candidate_of, solution_of
from solver_models.moves.neighbourhood import neighbour
from tests.solver_models.moves.test_replica_counts import make_searcher

STEPS = 4_000


@numba.njit
def set_seed(seed: int) -> None:
    """The moves draw from numba's own generator."""
    np.random.seed(seed)


def make_candidate(searcher: Searcher, groups: list[tuple[int, ...]]) -> Candidate:
    """Stages with as many layers as their devices count."""
    count = searcher.instance.num_layers
    weights = np.cumsum([0, *(len(group) for group in groups)])
    ends = weights * count // weights[-1]
    stage_of = np.repeat(np.arange(len(groups)), np.diff(ends))
    return searcher.make_candidate(stage_of, tuple(groups), modes=np.zeros(len(groups), np.int64))


def steps_from(searcher: Searcher, candidate: Candidate) -> list[Candidate]:
    """What single steps lead to, and the rules allow."""
    set_seed(1)
    found = []
    for _ in range(STEPS):
        step = neighbour(searcher.layers, searcher.rules, solution_of(candidate))
        each = replace(candidate_of(step, objective=0, fit=candidate.fit), policy_params=candidate.policy_params)
        if searcher.is_allowed(each):
            found.append(each)
    return found


def layers_of(candidate: Candidate) -> list[int]:
    """Layers per stage."""
    return np.bincount(candidate.stage_of).tolist()


def test_stages_that_fill_all_devices_become_one_with_as_many_replicas():
    """Tests that stages of a V, two per device, become one with three replicas: three of them, or five at its turn."""
    searcher = make_searcher(batch=3, num_devices=6, num_layers=24)
    vee = make_candidate(searcher, [(d,) for d in (*range(6), *reversed(range(6)))])
    merged = [each for each in steps_from(searcher, vee) if max(map(len, each.groups)) == 3]
    assert {len(each.groups) for each in merged} == {10, 8}
    assert any(each.groups[1] == (1, 2, 3) and layers_of(each) == [2, 6, *[2] * 8] for each in merged)


def test_a_stage_of_three_replicas_becomes_three_stages():
    """Tests that three replicas are cut into stages on one device each, with a third of the layers each."""
    searcher = make_searcher(batch=3, num_devices=4, num_layers=12)
    start = make_candidate(searcher, [(0, 1, 2), (3,)])
    cut = {tuple(layers_of(each)) for each in steps_from(searcher, start) if len(each.groups) == 4}
    assert any(sum(sizes) == 12 and sizes[-1] == 3 and min(sizes[:3]) >= 2 for sizes in cut)


@pytest.mark.parametrize(("batch", "before", "after"), [(8, 4, 8), (8, 8, 4), (8, 2, 4), (3, 1, 3), (3, 3, 1)])
def test_counts_that_one_device_does_not_lead_to(batch: int, before: int, after: int):
    """Tests that one step leads from a number of replicas to the next one up and down, with no stage cut or merged."""
    searcher = make_searcher(batch=batch, num_devices=8, num_layers=4)
    start = make_candidate(searcher, [tuple(range(before)), (7,)])
    found = steps_from(searcher, start)
    same = [each for each in found if len(each.groups) == 2 and layers_of(each) == layers_of(start)]
    assert after in {len(each.groups[0]) for each in same}
    for each in found:
        assert all(len(group) in searcher.instance.allowed_replicas for group in each.groups)


def test_no_device_gets_more_stages_than_it_may():
    """Tests that what is added to reach an allowed number of replicas keeps to the stages that a device may hold."""
    searcher = make_searcher(batch=3, num_devices=3, num_layers=6, most_stages=1)
    start = make_candidate(searcher, [(0,), (1,), (2,)])
    for each in steps_from(searcher, start):
        held = [device for group in each.groups for device in group]
        assert len(held) == len(set(held))
