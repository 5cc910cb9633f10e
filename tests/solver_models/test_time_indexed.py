"""Linear programmes over counts, as HiGHS solves them: tests of solver_models/time_indexed.py."""

from dataclasses import replace
from functools import partial
from random import Random

import pytest

from planner.bounds.order.time_indexed_bound import TimeIndexed
from planner.evidence.certificate import check_certificate
from planner.layout.costs import CostModel
from planner.problem import Problem
from solver_models.time_indexed import find_multipliers
from tests.long_runs import shortened
from tests.planner.bounds.order.test_time_indexed_bound import bound_of
from tests.planner.decisions.recompute_microbatches.test_option import least_of
from tests.planner.recomputed_chain import recomputed_chain


def uneven_chain(rng: Random, *, kinds: str) -> Problem:
    """Two stages and two microbatches, with any times, bytes and memory."""
    problem = recomputed_chain(2, num_microbatches=2, kept=1, split_backward="I" in kinds)
    layers = []
    for layer in problem.profile.layers:
        stash, cost = rng.randint(2, 12), layer.costs[0]
        parts = rng.randint(1, 9), rng.randint(0, 9)
        whole = sum(parts) if "I" in kinds else rng.randint(max(parts), sum(parts))
        times = {"input_grad_ns": parts[0], "weight_grad_ns": parts[1], "backward_ns": whole}
        cost = replace(cost, forward_ns=rng.randint(1, 9), recompute_ns=rng.randint(0, 9), **times)
        sizes = {"weight_stash_bytes": rng.randint(0, stash), "checkpoint_bytes": rng.randint(0, stash // 2)}
        layers.append(replace(layer, stash_bytes=stash, workspace_bytes=rng.randint(0, 3), costs=(cost,), **sizes))
    links = tuple(replace(link, latency_ns=rng.choice([0, 1, 5])) for link in problem.cluster.links)
    most = max(layer.stash_bytes + layer.workspace_bytes for layer in layers)
    devices = tuple(replace(each, memory_bytes=rng.randint(most, 2 * most)) for each in problem.cluster.devices)
    cluster = replace(problem.cluster, devices=devices, links=links)
    return replace(problem, profile=replace(problem.profile, layers=tuple(layers)), cluster=cluster)


@pytest.mark.slow
def test_no_plan_is_below_it():
    """Tests that no order and no choice of what recomputes ends sooner, for cells of any length."""
    num_tight = 0
    for seed in range(shortened(6, whole=200)):
        rng = Random(seed)
        problem = uneven_chain(rng, kinds="FB")
        costs, best = CostModel(problem), least_of(problem, kinds="FB")
        solve = partial(find_multipliers, time_limit_s=60)
        for cell in (1, rng.randint(2, 9)):
            model = TimeIndexed(problem, costs, cell_ns=cell)
            cells = model.cells(best)
            missed, _ = solve(model.rows(cells), (model.num_columns(cells), model.count)) or (0.0, [])
            assert missed < 1e-6, f"seed {seed}"
        bound = bound_of(problem, most=best)
        assert bound is None or check_certificate(problem, bound.certificate) <= best, f"seed {seed}"
        num_tight += bound is not None and bound.value_ns == best
    assert num_tight > shortened(1, whole=50)
