"""The table of parameters: what is halved and doubled, which runs ask for what, and how outcomes are compared."""

from pathlib import Path

import pytest

from benchmarks.search_params import (
    Record,
    Records,
    asked_for,
    changes,
    effects,
    rows_of,
    scaled,
    seeds_of,
)
from benchmarks.search_workloads import JOINT_GROUPS, TIMED, WORKLOADS
from planner.planning import SearchParams
from planner.planning.named_params import describe_params

JOINT, LARGE = WORKLOADS[-1], WORKLOADS[-3]

EVERY = {param.name for param in describe_params()}


def record(objective: int, bound: int | None = None, **fields: object) -> Record:
    known = {"workload": "w", "seed": 0, "parameter": "", "value": None, "cpu_s": 1.0}
    return Record(objective=objective, bound=bound, **known | fields)


def test_values_are_scaled():
    """Tests that whole numbers stay whole and positive, and that lists are scaled number by number."""
    assert scaled(12, 0.5) == 6
    assert scaled(1, 0.5) == 1
    assert scaled(0.7, 2.0) == pytest.approx(1.4)
    assert scaled([[0.5, 4]], 2.0) == [[1.0, 8]]
    assert scaled([None, 3], 2.0) == [None, 6]


def test_changes_are_possible_ones():
    """Tests that every change is of a group that a workload is for, and within its range."""
    found = list(changes(JOINT, EVERY))
    assert {name.partition(".")[0] for name, _ in found} == set(JOINT_GROUPS)
    assert ("multistart.pool_size", 24) in found
    assert [value for name, value in found if name == "multistart.rank_weight"] == [0.35]


def test_changes_begin_with_what_the_workload_has():
    """Tests that a workload with a value of its own has that one halved and doubled."""
    found = [value for name, value in changes(LARGE, EVERY) if name == "first_plans.large_actions"]
    assert found == [50, 200]


def test_every_parameter_has_a_workload():
    """Tests that runs under a time limit and counted ones are for every parameter that there is."""
    named = {name for workload in TIMED for name in workload.parameters}
    assert named <= EVERY
    counted = {group for workload in WORKLOADS for group in workload.groups}
    assert {name for name in EVERY if name.partition(".")[0] not in counted} <= named


def test_under_a_time_limit_only_named_ones_are_changed():
    """Tests that a run that asks for all parameters has its own changed alone."""
    for workload in TIMED:
        assert {name for name, _ in changes(workload, EVERY)} == set(workload.parameters)


def test_only_what_is_asked_for_is_changed():
    """Tests that a run's reads are noticed, that reading all to name them is none, and that others are not changed."""
    params = SearchParams()
    asked = asked_for(lambda: (params.multistart.pool_size, params.bound.steps, list(describe_params())))
    assert asked == {"multistart.pool_size", "bound.steps"}
    assert {name for name, _ in changes(JOINT, asked)} == {"multistart.pool_size"}
    assert params.multistart.pool_size == SearchParams().multistart.pool_size


def test_every_group_is_tried_somewhere():
    """Tests that the groups of the workloads are those of the parameters, but for two that other questions need."""
    groups = {name.partition(".")[0] for name in EVERY}
    assert {group for workload in WORKLOADS for group in workload.groups} == groups - {
        "archive",
        "transition",
    }  # several plans, and one that takes over
    assert len({workload.name for workload in WORKLOADS}) == len(WORKLOADS)


def test_outcomes_are_compared_with_the_same_seed():
    """Tests that a change is compared with the default on the same workload with the same seed, and no bound is 1."""
    known = [record(100, 50), record(110, 50, seed=1), record(90, 60, parameter="bound.steps", value=8, cpu_s=2.0)]
    known += [record(7, workload="other"), record(7, workload="other", parameter="bound.steps", value=8)]
    first, second = effects(known)["bound.steps", "8"]
    assert (first.plan, first.bound, first.cpu) == (0.9, 1.2, 2.0)
    assert first.noise == pytest.approx(5 / 105)
    assert second.is_none
    (row,) = rows_of(known)
    assert row[:4] == ["`bound.steps`", "8", "16", "w, other"]
    assert seeds_of(known) == "w 4.76 %; other 0.00 %"


def test_records_are_kept(tmp_path: Path):
    """Tests that what a file of records holds is known again, value and all, and not asked for anew."""
    path = tmp_path / "records.jsonl"
    kept = record(3, workload=JOINT.name, parameter="anneal.polish_heats", value=[0.0, 0.5])
    Records(path).add(kept)
    again = Records(path)
    assert again.of(JOINT) == [kept]
    assert again.has(JOINT, parameter="anneal.polish_heats", value=[0.0, 0.5], seed=0)
    assert not again.has(JOINT, parameter="anneal.polish_heats", value=[0.0, 0.5], seed=1)
