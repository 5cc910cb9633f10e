"""Tests of planner/bounds/cases/case_enumeration.py."""

from dataclasses import replace

from planner.bounds.cases.case_enumeration import CaseEnumeration
from planner.bounds.cases.case_tables import CaseTables, WorkCount
from planner.layout.costs import CostModel
from planner.problem import Options
from tests.planner.bounds.cases.test_case_tables import TIMES
from tests.planner.evidence.test_certificate import make_chain


def test_every_sequence_of_stages_is_looked_at():
    """Tests that with all the time in the world the cases of equal devices are counted as by hand: sets of cuts."""
    options = Options(receive_buffers=0, max_stages_per_device=1, max_replicas=1)
    problem = make_chain(TIMES, num_devices=3, num_microbatches=1, options=options)
    tables = CaseTables(problem, CostModel(problem))
    assert len(tables.images) == 6
    found = CaseEnumeration(tables, 10**9, effort=WorkCount(10**6)).cases()
    lengths = [row.shape[1] for rows, _ in found for row in rows[:, None]]
    assert [lengths.count(stages) for stages in (1, 2, 3)] == [1, 3, 3]


def test_unlike_devices_are_not_taken_for_each_other():
    """Tests that a slow link is no symmetry, and that every way to seat stages is looked at then."""
    options = Options(receive_buffers=0, max_stages_per_device=1, max_replicas=1)
    problem = make_chain(TIMES, num_devices=3, num_microbatches=1, options=options)
    slow = replace(problem.cluster.links[0], bandwidth_bytes_per_s=10**8)
    cluster = replace(problem.cluster, links=(slow, *problem.cluster.links[1:]))
    tables = CaseTables(replace(problem, cluster=cluster), CostModel(replace(problem, cluster=cluster)))
    assert len(tables.images) == 2
    found = [len(rows) for rows, _ in CaseEnumeration(tables, 10**9, effort=WorkCount(10**6)).cases()]
    assert sum(found) == 2 + 3 * 3 + 3 * 3
