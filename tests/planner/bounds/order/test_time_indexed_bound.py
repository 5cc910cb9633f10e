"""Counts of actions over time: never above the best plan, near it where memory binds, and refused where changed."""

from dataclasses import replace
from functools import partial
from random import Random

import pytest

from planner.bounds.order.time_indexed_bound import TimeIndexed, applies_to, choose_cells, raise_bound
from planner.evidence.certificate import Bound, check_certificate
from planner.layout.costs import CostModel
from planner.problem import Problem
from solver_models.time_indexed import find_multipliers, is_impossible
from tests.long_runs import shortened
from tests.planner.decisions.recompute_microbatches.test_option import least_of
from tests.planner.recomputed_chain import recomputed_chain


def bound_of(problem: Problem, *, most: int) -> Bound | None:
    """The bound up to a value that some plan has."""
    solve = partial(find_multipliers, time_limit_s=60)
    found = raise_bound(problem, CostModel(problem), start_ns=1, most_ns=most, solve=solve, most_cells=1_000)
    if found is None:
        return None
    certificate = {"kind": "time-indexed", "value_ns": found[0], **found[1]}
    return Bound(kind="time-indexed", value_ns=found[0], certificate=certificate)


@pytest.mark.parametrize(("kept", "value"), [(4, 270), (3, 280), (2, 290), (1, 350)])
def test_recomputation_has_a_price(kept: int, value: int):
    """Tests that four stages with room for `kept` of eight microbatches take at least so long, by their certificate.

    The best take 270, 280, 300 and 360.
    """
    problem = recomputed_chain(4, num_microbatches=8, kept=kept)
    bound = bound_of(problem, most=380)
    assert bound is not None
    assert bound.value_ns == check_certificate(problem, bound.certificate) == value


@pytest.mark.slow
@pytest.mark.parametrize(("kept", "best"), [(3, 280), *shortened([], whole=[(2, 300), (1, 360)])])
def test_whole_numbers_close_the_gap(kept: int, best: int):
    """Tests that a solver claims the optimum, and not more."""
    problem = recomputed_chain(4, num_microbatches=8, kept=kept)
    model = TimeIndexed(problem, CostModel(problem), cell_ns=10)
    for value, is_out in ((best, True), (best + 1, False)):
        cells = model.cells(value - 1)
        rows = model.rows(cells)
        assert is_impossible(rows, ((model.num_columns(cells), model.count)), time_limit_s=60) == is_out


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


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"value_ns": 291}, "does not exclude 290 ns"),
        ({"cell_ns": 0}, "cell_ns"),
        ({"cell_ns": 10.0}, "cell_ns"),
        ({"multipliers": []}, "does not exclude"),
        ({"multipliers": [[0, -1]]}, "not pairs"),
        ({"multipliers": [[0, True]]}, "not pairs"),
        ({"multipliers": [[10**6, 1]]}, "rows that are not there"),
        ({"multipliers": {"0": 1}}, "not pairs"),
        ({"multipliers": None}, "not pairs"),
    ],
)
def test_certificates_that_prove_less_are_refused(fields: dict, what: str):
    """Tests that a larger value, other cells and other multipliers are named."""
    problem = recomputed_chain(4, num_microbatches=8, kept=2)
    bound = bound_of(problem, most=300)
    assert bound is not None
    with pytest.raises(ValueError, match=what):
        check_certificate(problem, {**bound.certificate, **fields})


def test_it_holds_for_given_stages_alone():
    """Tests that where stages are open, or layers choose, there is no such bound."""
    problem = recomputed_chain(4, num_microbatches=8, kept=2)
    assert applies_to(problem)
    for options in ({"partition": None, "placement": None}, {"recompute_layers": True}):
        other = replace(problem, options=replace(problem.options, **options))
        assert not applies_to(other)
        with pytest.raises(ValueError, match="does not hold for this problem"):
            check_certificate(other, {"kind": "time-indexed", "value_ns": 1, "cell_ns": 1, "multipliers": []})


def test_cells_lose_little():
    """Tests that cells divide durations where these have a common part."""
    problem = recomputed_chain(4, num_microbatches=8, kept=2)
    assert choose_cells(problem, CostModel(problem), value_ns=300, most_cells=100)[0] == 10
