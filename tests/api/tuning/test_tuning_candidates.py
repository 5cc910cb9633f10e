"""The plans that are worth a run: tests of api/tuning/tuning_candidates.py."""

from dataclasses import replace

from api.tuning.tuning_candidates import make_candidates
from tests.api.worlds import make_workload


def test_candidates_are_of_several_kinds():
    """Tests that what is predicted to be fastest comes first, and plans with and without replicas are among them."""
    workload = replace(make_workload(), options={"uneven_replication": False})
    found = make_candidates(workload, seconds=1, should_stop=lambda: False, hear=lambda name: None)
    assert "unrestricted" in {candidate.name for candidate in found}
    counts = {max(len(stage.replicas) for stage in candidate.plan.stages) for candidate in found}
    assert counts == {1, 2}
    assert len({candidate.key for candidate in found}) == len(found)
    assert found[0].predicted_ns == min(candidate.predicted_ns for candidate in found)
