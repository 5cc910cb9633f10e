"""How long CP-SAT searches, and how: tests of solver_models/schedule/effort.py."""

import time

import pytest

from planner.actions import KINDS, Action
from planner.layout.costs import CostModel
from planner.lowering import make_schedule_instance
from planner.plan import Plan, ProblemReference, Stage
from planner.problem import Problem
from planner.simulation.simulate import simulate
from profiles.cluster import Cluster, Device, Link
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile
from solver_models.schedule.effort import SolveEffort
from solver_models.schedule.evaluation import play
from solver_models.schedule.serial_schedule import one_by_one
from solver_models.schedule.solve import solve_order
from tests.solver_models.schedule.test_solve import big
from tests.solver_models.schedule.test_tails import TINY


def test_hint_is_returned_without_search():
    """Tests that with next to no effort the answer is at least as good as the hint."""
    problem = big()
    hint = one_by_one(problem)
    result = solve_order(problem, hint=hint, effort=SolveEffort(deterministic_limit=0.02))
    assert result.status == "feasible"
    assert result.objective is not None
    assert result.objective <= play(problem, hint).objective
    assert result.bound is not None
    assert 0 < result.bound < result.objective


def test_time_limit_is_kept():
    """Tests that a search of minutes ends soon after its time limit, whatever of it a busy core has carried out."""
    problem = big()
    hint, start = one_by_one(problem), time.process_time()
    result = solve_order(problem, hint=hint, effort=SolveEffort(time_limit_s=0.5))
    assert time.process_time() - start < 2
    assert result.status in ("feasible", "unknown")


def test_same_seed_same_words():
    """Tests that one worker under a deterministic limit gives the same answer twice."""
    problem = big(stages=4, microbatches=12, budget=2)
    first, second = (
        solve_order(
            problem, hint=one_by_one(problem), effort=SolveEffort(deterministic_limit=0.2, seed=5, time_limit_s=60)
        )
        for _ in "ab"
    )
    assert first == second


def test_a_hundred_actions_are_proved_in_a_second():
    """Tests that optimality is proved for a hundred actions in a second, loose and tight."""
    for budget in (2, 4):
        problem = big(stages=4, microbatches=8, budget=budget)
        solve_order(TINY["even"])
        start = time.process_time()
        result = solve_order(problem, hint=one_by_one(problem), effort=SolveEffort(time_limit_s=20))
        assert result.status == "optimal"
        assert time.process_time() - start < 5  # a second on an idle core


def real_problem(memory_bytes: int) -> Problem:
    """Four layers for two devices, the second half of the stash kept until W."""
    layers = tuple(
        Layer(
            name=f"l{n}",
            costs=(LayerCost(device_type="x", forward_ns=2 + n, input_grad_ns=3, weight_grad_ns=4 - n),),
            parameter_bytes=1,
            state_bytes=3,
            stash_bytes=4,
            weight_stash_bytes=2,
            workspace_bytes=n,
        )
        for n in range(4)
    )
    edges = tuple(Edge(producer=f"l{n}", consumer=f"l{n + 1}", bytes=1) for n in range(3))
    devices = tuple(Device(name=name, type="x", memory_bytes=memory_bytes) for name in "ab")
    return Problem(
        profile=ModelProfile(name="p", layers=layers, edges=edges, microbatch_size=1),
        cluster=Cluster(name="c", devices=devices, links=(Link(a="a", b="b", bandwidth_bytes_per_s=10**9),)),
        num_microbatches=4,
    )


@pytest.mark.parametrize("memory_bytes", [20, 24, 31, 99])
@pytest.mark.parametrize("shape", ["ab", "aabb", "abba"])
def test_words_play_in_the_simulator(shape: str, memory_bytes: int):
    """Tests that decoded words, played by the planner's simulator, take the claimed time and stay within memory."""
    problem = real_problem(memory_bytes)
    each = 4 // len(shape)
    stages = tuple(
        Stage(layers=tuple(f"l{n}" for n in range(each * s, each * (s + 1))), replicas=((device,),))
        for s, device in enumerate(shape)
    )
    costs = CostModel(problem)
    result = solve_order(make_schedule_instance(problem, stages, costs=costs), effort=SolveEffort(time_limit_s=20))
    if result.device_orders is None:
        assert result.status == "infeasible"
        assert memory_bytes < 24
        return
    schedule = {"ab"[d]: tuple(Action(KINDS[k], s, m) for k, s, m in word) for d, word in result.device_orders.items()}
    reference = ProblemReference(profile="p", profile_sha256="", cluster_sha256="", num_microbatches=4, options={})
    timeline = simulate(problem, Plan(problem=reference, stages=stages, schedule=schedule), costs=costs)
    assert timeline.makespan_ns == result.objective
    assert max(timeline.peak_bytes.values()) <= memory_bytes
