"""What a run of the whole batch at once says of layers, of reductions and of what is held."""

from dataclasses import replace
from typing import Any

import pytest

from planner.fidelity.calibration import with_held
from planner.fidelity.overhead import DEVICES, make_probe, make_replicated_plan
from planner.fidelity.whole_batch import (
    WholeBatchRun,
    batch_at_once,
    fully_sharded,
    held_permille,
    plan_whole_batch,
    reduction_ns,
    sharding_ns,
    with_whole_batch,
)
from planner.layout.costs import CostModel
from planner.plan import Plan
from planner.problem import Problem
from planner.simulation.simulate import simulate
from planner.verify import verify
from profiles.cluster import Link
from profiles.model_profile import LayerCost, ModelProfile
from tests.planner.builders import make_edge, make_layer


def make_case(num_microbatches: int = 8) -> tuple[Problem, Plan]:
    """Microbatches of two samples, timed at 1, 2 and 16, each sample 1,000 ns of F and 2,000 of B per layer."""
    link = Link(a="x", b="y", bandwidth_bytes_per_s=10**9, latency_ns=2)
    costs = tuple(
        LayerCost(device_type="gpu", microbatch_size=size, forward_ns=1000 * size, input_grad_ns=1000 * size,
                  weight_grad_ns=1000 * size)
        for size in (1, 2, 16)
    )  # fmt: skip
    layers = tuple(
        replace(make_layer(name, (1, 1, 1), stash_bytes=600, parameter_bytes=4), costs=costs) for name in "ab"
    )
    profile = ModelProfile(name="net", layers=layers, edges=(make_edge("a b"),), microbatch_size=2)
    problem = make_probe(profile, device_type="gpu", num_microbatches=num_microbatches, link=link)
    plan = make_replicated_plan(problem)
    assert plan is not None
    return problem, plan


def make_run(
    problem: Problem, plan: Plan, *, times: dict[str, int], held: dict[str, int] | None = None
) -> WholeBatchRun:
    whole = plan_whole_batch(problem, plan, memory_bytes=None)
    assert whole is not None
    entry: dict[str, Any] = {"actions": [["0F0", 0, times["F"]], ["0B0", times["F"], times["F"] + times["B"]]]}
    return WholeBatchRun(problem=batch_at_once(problem), plan=whole, entries=[entry] * 3, peak_bytes=held or {})


def test_the_whole_batch_is_a_plan_where_it_fits():
    """Tests that it verifies, and is none for one microbatch, without replicas, or beyond half of the memory."""
    problem, plan = make_case()
    whole = plan_whole_batch(problem, plan, memory_bytes=None)
    assert whole is not None
    assert [str(action) for action in whole.schedule[DEVICES[0]]] == ["0F0", "0B0"]
    assert verify(batch_at_once(problem), whole).passed
    held = max(simulate(batch_at_once(problem), whole).peak_bytes.values())
    assert plan_whole_batch(problem, plan, memory_bytes=2 * held) == whole
    assert plan_whole_batch(problem, plan, memory_bytes=2 * held - 1) is None
    assert plan_whole_batch(problem, None, memory_bytes=None) is None
    assert plan_whole_batch(*make_case(1), memory_bytes=None) is None


def test_large_microbatches_take_what_they_took_and_small_ones_what_they_did():
    """Tests that the run's time comes out, that one sample keeps its time, and that what is more lies on a line.

    A replica takes 8 samples: F 20 us instead of 16, 2 of them besides its layers, so 2 us more for 7 samples more;
    at two samples that is a seventh of it for both layers.
    """
    problem, plan = make_case()
    run = make_run(problem, plan, times={"F": 20_000, "B": 32_000})
    layers = with_whole_batch(
        problem, run, device_type="gpu", planned={"F": 16_000, "B": 32_000}, beyond={"F": 2_000}, parts=2
    )
    made = replace(problem, profile=replace(problem.profile, layers=layers))
    cost = CostModel(batch_at_once(made)).stage_cost(run.plan.stages[0], 0)
    assert cost.duration_ns("F") == pytest.approx(18_000, rel=0.01)
    assert cost.duration_ns("B") == 32_000
    one, two, most = layers[0].costs
    assert (one.forward_ns, most.forward_ns) == (1000, 18_000)
    assert two.forward_ns == pytest.approx(2000 + 2000 / 7 / 2, abs=2)


def test_what_says_nothing_changes_nothing():
    """Tests that layers stay where overheads alone take longer than the run did."""
    problem, plan = make_case()
    run = make_run(problem, plan, times={"F": 20_000, "B": 32_000})
    assert (
        with_whole_batch(
            problem, run, device_type="gpu", planned={"F": 16_000, "B": 32_000}, beyond={"F": 20_000}, parts=2
        )
        == problem.profile.layers
    )


def test_reductions_end_with_the_last_process():
    """Tests that the wait for the slower process is no part of it, and that the median of iterations counts."""
    first = [{"actions": [["0B0", 0, 10]], "times": {"reduced_ns": end}} for end in (30, 31, 90)]
    second = [{"actions": [["0B0", 0, 20]], "times": {"reduced_ns": end}} for end in (28, 33, 90)]
    assert reduction_ns([first, second]) == 13
    assert reduction_ns([[], []]) is None


def test_a_full_shard_is_compared_with_its_layers_and_messages():
    """Tests that the lower quartile counts, and that what takes less than is said of it adds nothing."""
    problem, plan = make_case()
    whole = plan_whole_batch(problem, plan, memory_bytes=None)
    assert whole is not None
    at_once, sharded = batch_at_once(problem), fully_sharded(whole)
    cost = CostModel(at_once).stage_cost(sharded.stages[0], 0)
    assert cost.forward_ns > 2 * 8000  # gathers
    lengths = [(cost.forward_ns + more, cost.backward_ns - 9) for more in (40, 30, 900, 50, 35)]
    entries = [{"actions": [["0F0", 7, 7 + f], ["0B0", 7 + f, 7 + f + b]]} for f, b in lengths]
    assert sharding_ns(at_once, sharded, entries=entries) == (35, 0)


@pytest.mark.parametrize(("permille", "found"), [(1000, 1000), (1150, 1150), (700, 1000), (1500, 1200)])
def test_the_stash_is_what_larger_microbatches_hold_more(permille: int, found: int):
    """Tests that the part is found whatever processes hold besides, also where one grows by more and the other by less,
    and that a wild one is not believed.
    """
    problem, plan = make_case()
    runs = []
    for at, order in ((problem, plan), (batch_at_once(problem), plan_whole_batch(problem, plan, memory_bytes=None))):
        assert order is not None
        layers = tuple(with_held(layer, permille) for layer in at.profile.layers)
        peaks = simulate(replace(at, profile=replace(at.profile, layers=layers)), order).peak_bytes
        held = {device: peak + 12_345 for device, peak in peaks.items()}
        runs.append(WholeBatchRun(problem=at, plan=order, entries=(), peak_bytes=held))
    assert abs(held_permille(*runs) - found) <= 1
    assert held_permille(replace(runs[0], peak_bytes={}), runs[1]) == 1000
    first, second = runs[1].peak_bytes
    apart = {first: runs[1].peak_bytes[first] + 5_000, second: runs[1].peak_bytes[second] - 5_000}
    assert abs(held_permille(runs[0], replace(runs[1], peak_bytes=apart)) - found) <= 1
