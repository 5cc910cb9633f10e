"""Microbatches that differ: tests of planner/planning/runs/variable_microbatches.py."""

from dataclasses import replace

import pytest

from planner.errors import NoPlanFoundError
from planner.planning.runs import variable_microbatches as listed_run
from tests.planner.bounds.listed.test_listed_bound import FEW, QUICK
from tests.planner.hasty import make_plan
from tests.planner.judge.test_microbatches import listed


def test_layouts_are_tried_for_as_long_as_there_is_time(monkeypatch: pytest.MonkeyPatch):
    """Tests that where nothing fits no more layouts are tried than the limit has time for."""
    problem = listed(8, 8, 1, 1, 2, 2, max_stages_per_device=1, split_backward=False)
    devices = tuple(replace(device, memory_bytes=10) for device in problem.cluster.devices)
    problem = replace(problem, cluster=replace(problem.cluster, devices=devices))
    tried: list[object] = []

    def try_it(_: object, stages: object) -> list[object]:
        tried.append(stages)
        return []

    monkeypatch.setattr(listed_run, "_balanced", try_it)
    monkeypatch.setattr(listed_run, "_has_time", lambda *_: len(tried) < 2)
    with pytest.raises(NoPlanFoundError):
        make_plan(problem, limits=QUICK, params=FEW)
    assert len(tried) == 2
