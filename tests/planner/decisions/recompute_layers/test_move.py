"""Tests of planner/decisions/recompute_layers/move.py."""

import pytest

from planner.decisions.max_active_stages.move import GatherImprover
from planner.decisions.offload.move import OffloadImprover
from planner.decisions.recompute_layers.move import RecomputeImprover
from planner.decisions.recompute_microbatches.move import MicrobatchRecomputeImprover
from planner.decisions.split_placement.move import SplitPlacementImprover
from planner.decisions.unequal_shares.move import ShareImprover
from planner.planning import SearchParams
from planner.planning.improvers.bound_improver import BoundImprover
from planner.planning.improvers.cp_sat_orders import SingleOrders
from planner.planning.improvers.exact_improver import ExactImprover
from planner.planning.improvers.order_sessions import Sessions
from planner.planning.planning_params import PARTS
from planner.planning.starts.class_pipelines import CLASS_PIPELINES
from planner.planning.starts.interval_cuts import INTERVAL_CUTS


def test_parts_are_checked():
    """Tests that a part that does not exist cannot be left out, and that those that exist are named like improvers."""
    with pytest.raises(ValueError, match="no part 'joint search' of the search; choose from class pipelines, dynamic"):
        SearchParams(without=("joint search",))
    improvers = (
        BoundImprover, SingleOrders, ExactImprover, GatherImprover, MicrobatchRecomputeImprover, OffloadImprover,
        Sessions, RecomputeImprover, ShareImprover, SplitPlacementImprover,
    )  # fmt: skip
    others = {CLASS_PIPELINES, INTERVAL_CUTS, "sequential planner"}
    assert {each.name for each in improvers} | others == set(PARTS)
