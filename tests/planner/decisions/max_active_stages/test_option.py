"""What gathered stages exclude: tests of planner/decisions/max_active_stages/option.py."""

import pytest

from planner.document import parse_plan, render_plan
from planner.export.targets import TARGETS, restrict
from planner.problem import Options
from tests.planner.judge.rules.test_gathered import ORDER, one_rank


def test_documents_say_how_many_stages_are_active():
    """Tests that a plan comes back from its document, and that a plan without gathered stages does not mention them."""
    _, plan = one_rank(ORDER, active=2)
    assert parse_plan(render_plan(plan)) == plan
    assert '"shard": "weights"' in render_plan(plan)
    whole = render_plan(one_rank(ORDER, active=None)[1])
    assert "max_active_stages" not in whole[whole.index('"stages"') :]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"shard_optimizer": "never"}, "whoever shards weights shards the optimizer's state: set shard_optimizer"),
        ({"synchronisation": "bucketed"}, "synchronisation = bucketed"),
        ({"split_placement": True}, "split_placement = true"),
        ({"unequal_shares": True}, "unequal_shares = true"),
        ({"order": "looped", "split_backward": False}, "order = looped"),
    ],
)
def test_what_gathered_stages_exclude(options: dict[str, object], reason: str):
    """Tests that options which gathered stages have no rule for are refused, with a remedy."""
    with pytest.raises(ValueError, match=rf"max_active_stages = 2 with .*{reason}.* or leave max_active_stages out"):
        Options(**{"shard_optimizer": "allow", "max_active_stages": 2} | options)


@pytest.mark.parametrize("target", sorted(set(TARGETS) - {"executor", "torchtitan"}))
def test_other_programs_are_not_planned_for(target: str):
    """Tests that a question with gathered stages is refused for programs that cannot be told of them."""
    with pytest.raises(ValueError, match=f"target {target}: options ask for max_active_stages = 2"):
        restrict(Options(shard_optimizer="allow", max_active_stages=2), TARGETS[target])
