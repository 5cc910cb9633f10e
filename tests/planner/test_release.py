"""What runs from its source alone plans all the same, and says so."""

from importlib.metadata import PackageNotFoundError
from unittest.mock import patch

from planner import release
from planner.evidence.check_evidence import rederive
from planner.planning import Limits, make_plan
from planner.problem import Options
from tests.planner.evidence.test_certificate import make_chain


def test_a_source_tree_plans():
    """Tests that no search is lost for want of a version, and that its plan is not another release's."""
    problem = make_chain([(4, 3, 7), (6, 6, 8)], num_devices=2, num_microbatches=2, options=Options(receive_buffers=0))
    with patch.object(release, "version", side_effect=PackageNotFoundError):
        plan = make_plan(problem, limits=Limits(max_rounds=2))
        assert plan.evidence is not None
        assert plan.evidence.planner_version == release.UNINSTALLED
        assert rederive(problem, plan).passed
    assert release.release() != release.UNINSTALLED
