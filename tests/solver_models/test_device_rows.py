"""Devices as models have them: tests of solver_models/device_rows.py."""

from dataclasses import replace
from inspect import unwrap

import numpy as np
import pytest

from planner.layout.costs import CostModel
from planner.layout.device_groups import device_rows
from planner.lowering import make_instance
from solver_models.device_rows import KIND, DeviceRow, as_one, device_table, free_from, placed
from solver_models.joint.search_space import automorphisms
from solver_models.joint.symmetry import colour
from solver_models.partition.partition_instance import make_partition_instance
from tests.planner.evidence.test_certificate import make_chain
from tests.solver_models.schedule.test_solve import instance, lane

FIELDS = pytest.mark.parametrize("field", DeviceRow._fields)


def with_more(row: DeviceRow, field: str) -> DeviceRow:
    """The row with one more of a field."""
    return row._replace(**{field: getattr(row, field) + 1})


@FIELDS
def test_whatever_differs_tells_devices_apart(field: str):
    """Tests that no field may differ between devices that change places, share a colour, or form a class."""
    problem = make_instance(pair := make_chain([(1, 1, 1)] * 2, num_devices=2, num_microbatches=1), CostModel(pair))
    one, other = (DeviceRow(*row) for row in problem.layers.devices.tolist())
    layers = problem.layers._replace(devices=device_table([one, with_more(other, field)]))
    unlike = replace(problem, layers=layers)
    assert (len(automorphisms(problem)), len(automorphisms(unlike))) == (1, 0)
    if field != "kind":  # the costs of one type are all that there is
        assert [len(make_partition_instance(each).class_sizes) for each in (problem, unlike)] == [1, 2]
    alike = instance([lane(0, 0, (1, 1, 1)), lane(0, 1, (1, 1, 1))], transfers=())
    apart = replace(alike, devices=(alike.devices[0], with_more(alike.devices[1], field)))
    assert [len(set(colour(each))) for each in (alike, apart)] == [1, 2]


@FIELDS
def test_every_field_is_in_some_unit(field: str):
    """Tests that a coarser row has less of whatever is counted in ticks or units, and the same kind."""
    row = DeviceRow(*range(100, 100 + len(DeviceRow._fields)))
    coarse = row.coarser(ticks=10, units=10)
    assert getattr(coarse, field) == getattr(row, field) // (1 if field == "kind" else 10)


def test_units_may_be_rounded_up():
    """Tests that 101 bytes are 11 units of ten where no plan may be lost, and ten of them otherwise."""
    row = DeviceRow(kind=3, memory=101)
    found = [row.coarser(ticks=1, units=10, rounds_up=up).memory for up in (False, True)]
    assert found == [10, 11]


def test_a_group_has_what_its_smallest_member_has():
    """Tests that devices which act as one have the least of their memory and the first one's costs."""
    assert as_one([DeviceRow(kind=2, memory=9), DeviceRow(kind=2, memory=7)]) == DeviceRow(kind=2, memory=7)


def test_tables_say_what_rows_say():
    """Tests that kernels place devices and find them free as the rows do."""
    rows = list(device_rows(make_chain([(1, 1, 1)], num_devices=3, num_microbatches=1).cluster).values())
    units, table = np.array([1, 0, 5]), device_table(rows)
    left = [row.placed(each) for row, each in zip(rows, units.tolist(), strict=True)]
    assert unwrap(placed)(table, units).tolist() == device_table(left).tolist()
    assert unwrap(free_from)(table).tolist() == [row.free_from for row in rows]
    assert not any(row[KIND] for row in left)
