"""What a stage of a small problem can be: tests of planner/bounds/cases/case_tables.py."""

from dataclasses import replace

from planner.bounds.cases.case_tables import CaseTables
from planner.layout.costs import CostModel
from planner.problem import Options
from tests.planner.evidence.test_certificate import make_chain

TIMES = [(7, 9, 6), (5, 8, 5), (9, 6, 8), (4, 7, 3)]


def test_only_replicas_with_whole_samples_are_cases():
    """Tests that of 16 samples three replicas are no case, as no plan may have them."""
    options = Options(receive_buffers=0, max_stages_per_device=1)
    problem = make_chain(TIMES, num_devices=4, num_microbatches=1, options=options)
    problem = replace(problem, profile=replace(problem.profile, microbatch_size=16, scaling="linear"))
    tables = CaseTables(problem, CostModel(problem))
    assert {len(members) for members, _ in tables.assignments} == {1, 2, 4}
