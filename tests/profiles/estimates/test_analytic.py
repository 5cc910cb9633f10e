"""Times by a data sheet, and plans for the demos that are estimates."""

import pytest

from planner.batch_problem import question_of_workload
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
SAMPLES = ("lora-13b-estimate", "vocabulary-256k-estimate", "two-towers-estimate")


def test_time_is_the_larger_of_computing_and_moving():
    """Tests that 500 operations take a nanosecond at half of 10^12 per second, and a byte at 10^9, rounded up."""
    assert SHEET.time_ns(5000) == 10
    assert SHEET.time_ns(5001) == 11
    assert SHEET.time_ns(5000, 25) == 25


def test_a_sheet_without_sense_is_refused():
    """Tests that more than all of the peak is refused with the name of the sheet."""
    with pytest.raises(ValueError, match=r"'X': achieved_percent = 101"):
        DeviceSheet(name="X", operations_per_s=1, achieved_percent=101, bandwidth_bytes_per_s=1)


@pytest.mark.parametrize("name", SAMPLES)
def test_estimated_demos_say_so(name: str):
    """Tests that demos that are estimates say that nothing was measured."""
    assert "nothing was measured" in load_workload(f"demo:{name}").profile.provenance


@pytest.fixture(scope="module")
def plans() -> dict[str, tuple[Problem, Plan]]:
    """A quick plan of every estimated demo."""
    found = {}
    for name in SAMPLES:
        problem = question_of_workload(load_workload(f"demo:{name}"), Options())
        assert isinstance(problem, Problem)
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
    workload = load_workload("demo:lora-13b-estimate")
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
