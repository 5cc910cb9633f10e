"""The interval formulation against enumeration and the dynamic programme, rule by rule."""

import time

import numpy as np
import pytest

from solver_models.instance import NO_TABLE
from solver_models.partition.dynamic import Partitioner
from solver_models.partition.ilp import IntervalProgram, solve_partition
from solver_models.partition.partition_instance import PartitionInstance
from tests.long_runs import shortened
from tests.solver_models.partitions import least_largest_load, least_load, make_instance, with_transfers


def cases() -> list[PartitionInstance]:
    """Small instances of every kind, receive buffers and tight memory included."""
    found = []
    for seed in range(4):
        found.append(make_instance(5, (3,), seed=seed))
        found.append(make_instance(5, (2, 1), seed=seed, **with_transfers(5, seed=seed)))
        found.append(make_instance(4, (1, 1, 1), seed=seed))
        tight = {"capacity": np.array([65])}
        found.append(make_instance(6, (4,), seed=seed, **tight, **with_transfers(6, seed=seed)))
    return found


@pytest.mark.parametrize("number", range(16))
def test_optimum_equals_enumeration(number: int):
    """Tests that the optimum is the least largest load of all partitions that fit, or that there is none."""
    instance = cases()[number]
    best = least_load(instance)
    result = solve_partition(instance)
    assert (result.status, result.objective) == ("infeasible" if best is None else "optimal", best)
    assert result.bound == best
    if result.stages is not None:
        assert Partitioner(instance).is_feasible(result.stages)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_layers", "counts"),
    shortened([(26, (4,)), (20, (3, 2)), (16, (1,) * 6)], whole=[(40, (4,)), (30, (3, 2)), (24, (1,) * 6)]),
)
def test_optimum_equals_dynamic_programme(num_layers: int, counts: tuple[int, ...]):
    """Tests that integer and dynamic programme agree on chains, with and without an incumbent to beat."""
    instance = make_instance(num_layers, counts, seed=num_layers)
    own = Partitioner(instance)
    stages = least_largest_load(own)
    assert stages is not None
    proved = solve_partition(instance, incumbent=stages, time_limit_s=60)
    assert (proved.status, proved.stages) == ("optimal", stages)
    found = solve_partition(instance, time_limit_s=60)
    assert (found.status, found.objective) == ("optimal", own.largest_load(stages))


@pytest.mark.parametrize("rule", IntervalProgram.NAMES)
def test_every_rule_binds(rule: str, monkeypatch: pytest.MonkeyPatch):
    """Tests that without a rule HiGHS comes back with something that is no partition, and is not believed."""
    instance = make_instance(5, (2, 1))
    assert solve_partition(instance).status == "optimal"
    monkeypatch.setattr(IntervalProgram, rule, lambda self: None)
    assert solve_partition(instance).status == "unknown"


def test_allowed_replicas_are_kept():
    """Tests that only the numbers of replicas that are allowed occur."""
    instance = make_instance(4, (4,), table_of_replicas=np.array([NO_TABLE, NO_TABLE, 0, NO_TABLE, NO_TABLE]))
    result = solve_partition(instance)
    assert result.stages is not None
    assert {replicas for *_, replicas in result.stages} == {2}


def test_a_better_incumbent_is_kept():
    """Tests that an optimal incumbent is proved, and one that does not fit is ignored."""
    instance = make_instance(6, (3,))
    best = solve_partition(instance)
    assert solve_partition(instance, incumbent=best.stages) == best
    assert solve_partition(instance, incumbent=best.stages[:1]) == best


def test_stop_is_obeyed_within_half_a_second():
    """Tests that HiGHS works no longer than half a second after it is told to stop; bound and incumbent survive."""
    instance = make_instance(120, tuple([1] * 12), seed=3)
    own = Partitioner(instance)
    incumbent = own.least_load_in_order([(c, 1) for c in range(12)])
    asked: list[float] = []

    def should_stop() -> bool:
        asked.append(time.process_time())
        return len(asked) > 12

    result = solve_partition(instance, incumbent=incumbent, time_limit_s=60, should_stop=should_stop)
    assert time.process_time() - asked[12] < 0.5
    assert result.objective <= own.largest_load(incumbent)
    assert result.status in ("feasible", "optimal")


def test_time_limit_is_kept():
    """Tests that without time there is no claim but that of the incumbent."""
    instance = make_instance(60, (1,) * 8)
    start = time.process_time()
    result = solve_partition(instance, time_limit_s=0.0)
    assert time.process_time() - start < 1
    assert (result.status, result.objective, result.stages) == ("unknown", None, None)


def test_scaling():
    """Tests that all times times a thousand give the same stages and a thousand times the load."""
    fields = {"gradient": np.zeros(8, np.int64)}
    small = make_instance(8, (2, 1), **fields)
    large = make_instance(8, (2, 1), work=1000 * small.work, **fields)
    slow, fast = solve_partition(large), solve_partition(small)
    assert slow.status == fast.status == "optimal"
    assert 999 * fast.objective <= slow.objective <= 1000 * fast.objective
