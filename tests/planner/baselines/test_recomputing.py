"""Baselines with recomputation: rows of their own, where the plain ones break the memory."""

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from planner.baselines.recomputing import breaks_memory
from planner.baselines.registry import make_baselines, play_baseline
from planner.layout.costs import CostModel
from planner.plan import Plan
from planner.simulation.simulate import simulate
from tests.planner.builders import make_layer, make_link, make_problem
from tests.solver_models.nets import tighten
from tests.strategies import random_problem, random_schedule, random_stages

randoms = st.randoms(use_true_random=False)


@given(randoms)
def test_memory_is_that_of_the_simulator(rng: Random):
    """Tests that orders break the memory exactly where the simulator finds a peak above it."""
    problem = random_problem(rng)
    stages = random_stages(rng, problem)
    schedule = random_schedule(rng, problem, stages=stages)
    plan = Plan(problem=problem.reference(), stages=stages, schedule=schedule)
    problem = tighten(rng, problem, simulate(problem, plan))
    peaks = simulate(problem, plan).peak_bytes
    memory = {device.name: device.memory_bytes for device in problem.cluster.devices}
    assert breaks_memory(CostModel(problem), plan) == any(peak > memory[name] for name, peak in peaks.items())


def test_rows():
    """Tests that only what breaks the memory, or finds no room in it, is tried again with the same stages, and fits."""
    layers = [make_layer(name, stash_bytes=10, checkpoint_bytes=1) for name in "xyz"]
    problem = make_problem(
        layers, [make_link("a b"), make_link("b c")], num_microbatches=6, memory_bytes=25, recompute=True
    )
    costs = CostModel(problem)
    rows = {baseline.name: baseline for baseline in make_baselines(problem, costs)}
    again = {name.removesuffix(", recomputing") for name in rows if name.endswith(", recomputing")}
    broken = {
        name
        for name, baseline in rows.items()
        if not name.endswith("recomputing")
        and (
            baseline.lacks_room
            if baseline.plan is None
            else not play_baseline(problem, baseline, costs=costs)[0].fits_memory
        )
    }
    assert again == broken
    assert "GPipe (even layers)" in again
    plain, recomputing = rows["GPipe (even layers)"].plan, rows["GPipe (even layers), recomputing"]
    assert plain is not None
    assert recomputing.plan is not None
    assert recomputing.plan.stages == tuple(replace(stage, recompute=True) for stage in plain.stages)
    assert play_baseline(problem, recomputing, costs=costs)[0].fits_memory


def test_no_rows_without_the_option():
    """Tests that nothing recomputes unless the options offer it."""
    layers = [make_layer(name, stash_bytes=10, checkpoint_bytes=1) for name in "xyz"]
    problem = make_problem(layers, [make_link("a b")], num_microbatches=6, memory_bytes=25)
    assert not [row.name for row in make_baselines(problem, CostModel(problem)) if "recomputing" in row.name]
