"""Profiles from shapes: the arithmetic by hand, what training changes, and plans for the demos made so."""

import pytest

from benchmarks.estimates import A10, SAMPLES
from benchmarks.layer_shapes import BlockShape, embedding, language_head, projection, transformer_block
from planner.evidence.check_evidence import rederive
from planner.layout.costs import CostModel
from planner.plan import Plan
from planner.planning import SearchParams
from planner.planning.named_params import params_with
from planner.problem import Options, Problem
from planner.progress import Limits
from planner.simulation.simulate import simulate
from profiles.estimates.analytic import DeviceSheet
from profiles.load import load_workload
from tests.long_runs import shortened
from tests.planner.hasty import make_plan

HASTY, USUAL = params_with({"bound.max_s": 1.0}), SearchParams()

SHEET = DeviceSheet(name="X", operations_per_s=10**12, achieved_percent=50, bandwidth_bytes_per_s=10**9)
SHAPE = BlockShape(hidden=64, key_value=32, feed_forward=256, is_gated=True, tokens=100, sequence=50)


def test_time_is_the_larger_of_computing_and_moving():
    """Tests that 500 operations take a nanosecond at half of 10^12 per second, and a byte at 10^9, rounded up."""
    assert SHEET.time_ns(5000) == 10
    assert SHEET.time_ns(5001) == 11
    assert SHEET.time_ns(5000, 25) == 25


def test_a_block_by_hand():
    """Tests that parameters, operations and state of a small block are those worked out by hand."""
    parameters = 2 * 64 * (64 + 32) + 3 * 64 * 256
    assert SHAPE.parameters == parameters == 61_440
    cost = transformer_block("b", SHAPE, sheet=SHEET).costs[0]
    weights_ns = 2 * parameters
    forward = (2 * parameters * 100 + 4 * 50 * 100 * 64) // 500
    assert cost.forward_ns == max(forward, weights_ns) == weights_ns
    assert cost.weight_grad_ns == 2 * parameters * 100 // 500
    layer = transformer_block("b", SHAPE, sheet=SHEET)
    assert (layer.parameter_bytes, layer.state_bytes) == (2 * parameters, 16 * parameters)
    assert layer.checkpoint_bytes == SHAPE.boundary_bytes == 2 * 100 * 64


def test_less_training_costs_less():
    """Tests that full, LoRA, frozen and input blocks need ever less time, state and stash, and what each leaves out."""
    full, lora, frozen, silent = (
        transformer_block("b", SHAPE, sheet=A10, training=training) for training in ("full", "lora", "frozen", "input")
    )
    assert full.stash_bytes > lora.stash_bytes > frozen.stash_bytes > silent.stash_bytes == 0
    assert full.state_bytes > lora.state_bytes > frozen.state_bytes == silent.state_bytes == 2 * SHAPE.parameters
    assert full.weight_stash_bytes > lora.weight_stash_bytes > frozen.weight_stash_bytes == 0
    assert full.costs[0].weight_grad_ns > lora.costs[0].weight_grad_ns > frozen.costs[0].weight_grad_ns == 0
    assert frozen.costs[0].input_grad_ns > silent.costs[0].input_grad_ns == 0
    assert lora.synchronised_bytes == 2 * 2 * 16 * (3 * 64 + 32)
    assert (frozen.synchronised_bytes, silent.synchronised_bytes) == (0, 0)
    assert full.costs[0].forward_ns == frozen.costs[0].forward_ns == silent.costs[0].forward_ns


def test_the_other_layers():
    """Tests that an embedding moves bytes only, that a head's logits dominate it, and what freezing takes away."""
    sizes = {"vocabulary": 1000, "hidden": 64, "tokens": 100, "sheet": SHEET}
    table, frozen_table = (embedding("e", **sizes, trained=trained) for trained in (True, False))
    assert table.costs[0].forward_ns == 2 * 2 * 100 * 64
    assert table.costs[0].input_grad_ns == 0
    assert frozen_table.costs[0].weight_grad_ns == frozen_table.stash_bytes == 0
    head, frozen_head = (language_head("h", **sizes, trained=trained) for trained in (True, False))
    assert head.stash_bytes == frozen_head.stash_bytes == 2 * 100 * 64 + 6 * 100 * 1000
    assert (head.costs[0].weight_grad_ns > 0, frozen_head.costs[0].weight_grad_ns) == (True, 0)
    assert projection("p", inner=8, outer=16, tokens=10, sheet=SHEET).parameter_bytes == 2 * 8 * 16


def test_a_sheet_without_sense_is_refused():
    """Tests that more than all of the peak is refused with the name of the sheet."""
    with pytest.raises(ValueError, match=r"'X': achieved_percent = 101"):
        DeviceSheet(name="X", operations_per_s=1, achieved_percent=101, bandwidth_bytes_per_s=1)


@pytest.mark.parametrize("name", SAMPLES)
def test_demos_are_what_the_module_writes(name: str):
    """Tests that the estimated demos are those of benchmarks/estimates.py, and say that they are estimates."""
    workload = load_workload(f"demo:{name}")
    assert workload == SAMPLES[name]()
    assert "nothing was measured" in workload.profile.provenance


@pytest.fixture(scope="module")
def plans() -> dict[str, tuple[Problem, Plan]]:
    """A quick plan of every estimated demo."""
    found = {}
    for name, make in SAMPLES.items():
        workload = make()
        assert workload.cluster is not None
        assert workload.num_microbatches is not None
        problem = Problem(
            profile=workload.profile, cluster=workload.cluster, num_microbatches=workload.num_microbatches
        )
        limits, params = Limits(time_limit_s=60, max_rounds=shortened(1, whole=2)), shortened(HASTY, whole=USUAL)
        found[name] = problem, make_plan(problem, limits=limits, params=params)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLES)
def test_uneven_layers_are_worth_planning(plans: dict[str, tuple[Problem, Plan]], name: str):
    """Tests that the plan is at least 5 % faster than every baseline with even layers that fits, and proves itself."""
    problem, plan = plans[name]
    assert plan.evidence is not None
    even = [row.makespan_ns for row in plan.evidence.baselines if "even layers" in row.name and row.fits_memory]
    assert even
    assert plan.evidence.makespan_ns < 0.95 * min(each for each in even if each is not None)
    assert rederive(problem, plan).passed


@pytest.mark.slow
def test_frozen_layers_leave_no_trace(plans: dict[str, tuple[Problem, Plan]]):
    """Tests that stages of frozen layers have no W and no synchronisation, and that no gradient is sent below them."""
    problem, plan = plans["lora-13b-estimate"]
    layers, timeline = problem.profile.by_name, simulate(problem, plan)
    frozen = {number for number, stage in enumerate(plan.stages) if all(layers[name].frozen for name in stage.layers)}
    actions = {(action.stage, action.kind) for word in plan.schedule.values() for action in word}
    assert not {(stage, kind) for stage, kind in actions if stage in frozen and kind in "WB"}
    assert {stage for stage, kind in actions if kind in "WB"} == set(range(len(plan.stages))) - frozen
    assert not {sync.stage for sync in timeline.synchronisations if sync.end_ns > sync.start_ns} & frozen
    below = {
        number
        for number, stage in enumerate(plan.stages)
        if "block.20" not in stage.layers
        and number <= min(n for n, s in enumerate(plan.stages) if "block.20" in s.layers)
    }
    assert not [sent for sent in timeline.transfers if sent.direction == "backward" and sent.to_stage in below]


@pytest.mark.slow
def test_frozen_prefix_with_stages_of_its_own():
    """Tests that one stage per device puts whole stages below the adapters: an empty I, no W, no gradient sent."""
    workload = SAMPLES["lora-13b-estimate"]()
    assert workload.cluster is not None
    problem = Problem(
        profile=workload.profile,
        cluster=workload.cluster,
        num_microbatches=4,
        options=Options(max_stages_per_device=1, max_replicas=1, idle_devices=False),
    )
    plan = make_plan(problem, limits=Limits(time_limit_s=60, max_rounds=1))
    costs, timeline = CostModel(problem), simulate(problem, plan)
    first = plan.stages[0]
    assert all(name == "embedding" or int(name.removeprefix("block.")) < 20 for name in first.layers)
    assert {action.kind for action in plan.schedule[first.replicas[0][0]]} == {"F", "I"}
    assert costs.stage_cost(first, 0).input_grad_ns == 0
    assert costs.stage_cost(first, 0).held_bytes == 0
    assert not [sent for sent in timeline.transfers if sent.direction == "backward" and sent.to_stage == 0]
