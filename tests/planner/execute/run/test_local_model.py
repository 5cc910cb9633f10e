"""What layers may not remember from one microbatch to the next, by the plan."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from planner.actions import parse_action
from planner.execute.model.cut.outside_state import find_outside
from planner.execute.model.layer_run import OwnPlace
from planner.execute.run.local_model import LocalModel
from planner.execute.table.layout import make_layout
from planner.plan import Plan
from tests.planner.execute.orders import make_random_plan

SEEN = [0]


class Counting(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        SEEN[0] += 1
        return x * SEEN[0]


def in_order(plan: Plan, words: str) -> Plan:
    return replace(plan, schedule=dict.fromkeys(plan.schedule, tuple(map(parse_action, words.split()))))


ALONE = make_random_plan("0", num_microbatches=2)
PLANS = {
    "alone": (ALONE, ""),
    "another order": (in_order(ALONE, "0F1 0B1 0F0 0B0"), "runs microbatch 1 before 0; keep nothing"),
    "replicas": (make_random_plan("0/1", num_microbatches=2), "each replica sees others; .*--max-replicas 1"),
    "two processes": (make_random_plan("0 1", num_microbatches=2), "layers on other processes use one of their own"),
    "two stages of one": (make_random_plan("0 0", num_microbatches=2), ""),
}


@pytest.mark.parametrize("name", PLANS)
def test_what_one_process_would_not_see_may_not_be_remembered(name: str):
    """Tests that variables outside, attributes and buffers are asked for where the plan makes a difference, and only
    there: buffers of replicas are compared anyway.
    """
    plan, reason = PLANS[name]
    layout, layer = make_layout(plan), Counting()
    (variable,) = find_outside(layer)
    preparation = SimpleNamespace(outside=(frozenset([variable]),) * layout.num_stages)
    trial = LocalModel._find_trial(SimpleNamespace(layout=layout, rank=0, preparation=preparation), 0)
    assert (trial is None) == (reason == "")
    if trial is not None:
        attribute, buffer = OwnPlace(layer, "seen", False), OwnPlace(layer, "seen", True)
        asked = [trial.is_asked(place) for place in (variable, attribute, buffer)]
        assert asked == [True, name != "two processes", name == "another order"]
        assert re.search(reason, trial.reason)
