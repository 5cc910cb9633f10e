"""Out-of-order backprop: the expected unit-cost ratios, and reverse first-k against playing every order."""

from random import Random

import pytest

from planner.baselines.applicability import DoesNotApplyError
from planner.baselines.out_of_order.first_k import backward_order, make_first_k_plan, make_first_k_stages
from planner.layout.costs import CostModel
from planner.planning import Limits
from planner.problem import Problem
from planner.simulation.simulate import simulate
from planner.verify import verify
from tests.planner.baselines.out_of_order.first_k_periods import LayerTimes, period_ns, times_of
from tests.planner.builders import make_layer, make_link, make_problem
from tests.planner.hasty import make_plan as plan_jointly
from tests.strategies import AMPLE


def test_backward_order():
    """Tests that the first k weight gradients come last and ascend, and that k = 0 is the usual order."""
    shown = [" ".join(f"{kind}{layer}" for kind, layer in backward_order(4, k)) for k in (0, 2, 4)]
    assert shown == [
        "I3 W3 I2 W2 I1 W1 I0 W0",
        "I3 W3 I2 W2 I1 I0 W0 W1",
        "I3 I2 I1 I0 W0 W1 W2 W3",
    ]


def test_period_by_hand():
    """Tests that a period is as on paper: four equal layers, synchronised in three times their W."""
    times = LayerTimes(
        forward_ns=(1,) * 4, input_grad_ns=(1,) * 4, weight_grad_ns=(1,) * 4, synchronisation_ns=(3,) * 4
    )
    # k = 0: the links are busy from 2 to 14, then all forwards; k = 2: W0 is ready at 7 and on the links from 8 to 11
    periods = [period_ns(times, k) for k in range(5)]
    assert periods[0] == 2 + 12 + 4
    assert periods[2] == max(11 + 1, 14) + 1 + 2
    assert periods.index(min(periods)) in (1, 2)


def test_optimum_is_interior():
    """Tests that on equal layers with slow links neither the usual order nor delaying every layer is best."""
    times = LayerTimes(
        forward_ns=(10,) * 16, input_grad_ns=(10,) * 16, weight_grad_ns=(10,) * 16, synchronisation_ns=(30,) * 16
    )
    periods = [period_ns(times, k) for k in range(17)]
    assert min(periods) < min(periods[0], periods[-1])


def test_buckets():
    """Tests that one bucket for all makes every k alike but for W."""
    times = LayerTimes(forward_ns=(2, 3), input_grad_ns=(4, 5), weight_grad_ns=(6, 7), synchronisation_ns=(10, 20))
    assert [period_ns(times, k, buckets=[0, 0]) for k in range(3)] == [22 + 30 + 5] * 3


def test_lengths_must_agree():
    """Tests that layer times of different lengths are refused."""
    with pytest.raises(ValueError, match="differ"):
        LayerTimes(forward_ns=(1,), input_grad_ns=(1,), weight_grad_ns=(1,), synchronisation_ns=(1, 2))


def first_k_problem(rng: Random, **options: object) -> Problem:
    layers = [
        make_layer(f"l{n}", tuple(rng.randint(1, 20) for _ in range(3)), parameter_bytes=rng.randint(1, 40))
        for n in range(6)
    ]
    links = [make_link("d0 d1"), make_link("d1 d2"), make_link("d0 d2")]
    return make_problem(layers, links, num_microbatches=2, memory_bytes=AMPLE, max_stages_per_device=6, **options)


@pytest.mark.slow
def test_plan_of_first_k():
    """Tests that every k is a valid plan with bucketed synchronisation, and that the best of them is taken."""
    for seed in range(10):
        problem = first_k_problem(Random(seed), synchronisation="bucketed")
        costs = CostModel(problem)
        spans = []
        for k in range(7):
            verdict = verify(problem, make_first_k_plan(costs, k=k))
            assert verdict.passed
            assert verdict.timeline is not None
            spans.append(verdict.timeline.makespan_ns)
        assert simulate(problem, make_first_k_plan(costs)).makespan_ns == min(spans)
        times = times_of(costs, make_first_k_stages(costs))
        assert period_ns(times, 0) <= sum(
            map(sum, (times.forward_ns, times.input_grad_ns, times.weight_grad_ns))
        ) + sum(times.synchronisation_ns)


@pytest.mark.slow
def test_planner_decides_k():
    """Tests that where the first bucket is large k is neither 0 nor all, and the plan at least as short as with it."""
    rng = Random(3)
    layers = []
    for n in range(6):
        times = tuple(rng.randint(1, 20) for _ in range(3))
        size = rng.randint(20, 50) if n == 0 else rng.randint(1, 2) if n < 4 else 14
        layers.append(make_layer(f"l{n}", times, parameter_bytes=size))
    links = [make_link("d0 d1"), make_link("d1 d2"), make_link("d0 d2")]
    problem = make_problem(
        layers, links, num_microbatches=2, memory_bytes=AMPLE, max_stages_per_device=6, synchronisation="bucketed"
    )
    costs = CostModel(problem)
    curve_ns = [simulate(problem, make_first_k_plan(costs, k=k)).makespan_ns for k in range(7)]
    plan = plan_jointly(problem, limits=Limits(max_rounds=1, time_limit_s=120))
    assert plan.evidence is not None
    (row,) = [row for row in plan.evidence.baselines if row.name == "OOO reverse first-k"]
    assert row.makespan_ns == min(curve_ns) < min(curve_ns[0], curve_ns[-1])
    assert plan.evidence.makespan_ns <= min(curve_ns)


def test_first_k_needs_buckets():
    """Tests that without bucketed synchronisation the method says that it does not apply."""
    with pytest.raises(DoesNotApplyError, match="needs synchronisation = bucketed"):
        make_first_k_plan(CostModel(first_k_problem(Random(0))))
