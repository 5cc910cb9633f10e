"""What torchtitan takes as copies of a pipeline: tests of planner/export/torchtitan_copies.py."""

from dataclasses import replace

import pytest

from planner.export.targets import TARGETS
from tests.planner.export.test_targets import copied, cut, language_model


def test_what_are_no_copies_of_a_pipeline():
    """Tests that other numbers of replicas, company, orders, shards, active stages and sizes are refused by name."""
    problem = language_model(num_devices=4)
    plan = copied(cut(problem, [4, 5], "0 1"), 2)
    first, second = plan.stages
    crossed = copied(cut(problem, [2, 2, 2, 3], "0 1 0 1"), 2)
    turned = replace(crossed.stages[2], replicas=(("d0",), ("d3",)))
    gathered = copied(cut(problem, [2, 2, 2, 3], "0 1 0 1"), 2, shard="weights")
    fewer = {device: order for device, order in plan.schedule.items() if device != "d3"}
    alone = replace(plan, stages=(first, replace(second, replicas=(("d2",),))), schedule=fewer)
    wrong = [
        (alone, "1 replicas, shard = 'none' but stage 0"),
        (replace(plan, stages=(replace(first, shard="weights"), second)), "stage 0 2 replicas, shard = 'weights'"),
        (replace(plan, stages=(replace(first, shard="optimizer"), second)), "shard = 'optimizer', but torchtitan"),
        (replace(crossed, stages=(*crossed.stages[:2], turned, crossed.stages[3])), "'d0' is in other company"),
        (replace(plan, schedule=plan.schedule | {"d1": plan.schedule["d1"][::-1]}), "'d1' and 'd0' run other orders"),
        (replace(plan, dealing=((0, 1), (2, 3))), "dealing gives pipelines whole microbatches"),
        (replace(gathered, max_active_stages=1), "max_active_stages = 1, but torchtitan 0.3 keeps 3 of 2 stages"),
        (copied(cut(problem, [4, 5], "0 1"), 3), "cannot be cut for"),
        (cut(problem, [4, 5], "0 0"), "one rank holds 2 stages, but torchtitan has pipelines on two ranks or more"),
    ]
    for each, said in wrong:
        with pytest.raises(ValueError, match=said):
            TARGETS["torchtitan"].fit(problem, each)
