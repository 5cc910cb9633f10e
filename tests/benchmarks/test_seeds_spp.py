"""SPP's rivals as the table plays them, and the plans of the table of exactness."""

import pytest

from benchmarks.seeds_spp import RIVALS, shortest, spp
from planner.execute.table.layout import make_layout
from planner.layout.costs import CostModel
from planner.problem import Options
from planner.verify import verify
from tests.planner.export.chains import make_chain


@pytest.mark.parametrize("num_devices", [2, 4])
def test_rivals_play_plans_that_the_judge_accepts(num_devices: int):
    """Tests that every plan of every method is valid, and that the shortest of SPP's is among what is compared."""
    problem = make_chain("w" * 8, num_devices=num_devices, num_microbatches=4, options=Options())
    costs = CostModel(problem)
    for name, method in RIVALS.items():
        plans = list(method(costs))
        assert bool(plans) is (name != "HetPipe-style" or num_devices == 4)
        for plan in plans:
            assert verify(problem, plan).passed
        if plans:
            found = shortest(costs, method)
            assert found is not None
            assert found.makespan_ns > 0
    assert shortest(costs, spp) is not None


def test_a_method_that_does_not_apply_has_no_time():
    """Tests that fewer layers than devices leave GPipe out."""
    problem = make_chain("ww", num_devices=4, num_microbatches=4, options=Options(idle_devices=True))
    assert shortest(CostModel(problem), RIVALS["GPipe"]) is None


def test_every_kind_of_plan_can_be_laid_out():
    """Tests that kinds have as many processes as they say, and every layer once."""
    kinds = pytest.importorskip("benchmarks.exactness", reason="needs transformers").KINDS
    names = [f"l{number}" for number in range(6)]
    for kind in kinds:
        plan = kind.make(names)
        assert make_layout(plan).world_size == kind.num_processes
        assert [name for stage in plan.stages for name in stage.layers] == names
        assert any(stage.shard == "optimizer" for stage in plan.stages) is kind.is_sharded
