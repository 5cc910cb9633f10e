"""Recomputation begins where it loses the least time per byte."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from planner.layout.costs import CostModel
from planner.plan import Stage
from planner.problem import Problem
from profiles.model_profile import Layer, LayerCost
from solver_models.moves.annealing import UNRATED
from solver_models.starts.first_candidates import make_seeds
from solver_models.starts.recomputing import greedy_flags, recompute_variants
from tests.planner.builders import make_link, make_problem, make_stage
from tests.solver_models.nets import Case
from tests.solver_models.starts.test_replica_groups import random_wide_problem


def recomputing_layer(name: str, recompute_ns: int) -> Layer:
    """A layer that stashes 100 bytes, or 10 and recomputes."""
    cost = LayerCost(device_type="gpu", forward_ns=10, input_grad_ns=10, weight_grad_ns=0, recompute_ns=recompute_ns)
    return Layer(name=name, costs=(cost,), parameter_bytes=0, stash_bytes=100, checkpoint_bytes=10)


@pytest.mark.parametrize(
    ("memory_bytes", "expected"), [(500, [0, 0, 0]), (499, [0, 1, 0]), (410, [0, 1, 0]), (409, [1, 1, 0])]
)
def test_greedy_recomputation(memory_bytes: int, expected: list[int]):
    """Tests that recomputation goes where it loses the least time per byte, and no farther than the memory asks.

    Device a holds 3 + 2 microbatches of 100 bytes. Recomputing l1 frees 90 bytes for 1 tick, l0 180 bytes for 50.
    """
    layers = [recomputing_layer("l0", 50), recomputing_layer("l1", 1), recomputing_layer("l2", 1)]
    stages = (make_stage("l0 @ a"), make_stage("l1 @ a"), make_stage("l2 @ b"))
    problem = make_problem(
        layers, [make_link("a b")], num_microbatches=4, memory_bytes=memory_bytes, recompute=True,
        max_stages_per_device=2, receive_buffers=0,
    )  # fmt: skip
    case = Case(problem, stages)
    assert greedy_flags(case.searcher, case.candidate()).tolist() == expected
    variants = [tuple(c.modes.tolist()) for c in recompute_variants(case.searcher, [case.candidate()])]
    assert (tuple(expected) in variants) == any(expected)


@pytest.mark.parametrize("seed", range(60))
def test_greedy_recomputation_leaves_nothing_to_free(seed: int):
    """Tests that afterwards each device has room for 1F1B, or none of its stages would free any bytes."""
    rng = Random(seed)
    problem = random_wide_problem(rng, num_layers=6)
    problem = replace(problem, options=replace(problem.options, recompute=True))
    devices = tuple(replace(device, memory_bytes=rng.randint(20, 400)) for device in problem.cluster.devices)
    problem = replace(problem, cluster=replace(problem.cluster, devices=devices), num_microbatches=6)
    case = Case(problem, ())
    for seed_candidate in make_seeds(case.searcher):
        if seed_candidate.fit == UNRATED or seed_candidate.modes.any():
            continue
        flags = greedy_flags(case.searcher, seed_candidate)
        names = problem.profile.topological_order
        holders = [*((d.name,) for d in devices), *[tuple(devices[m].name for m in case.instance.members_of(h))
                   for h in range(len(devices), len(case.searcher.layers.devices))]]  # fmt: skip
        stages = tuple(
            Stage(
                layers=tuple(n for n, s in zip(names, seed_candidate.stage_of, strict=True) if s == number),
                replicas=tuple(holders[holder] for holder in group),
                recompute=bool(flags[number]),
            )
            for number, group in enumerate(seed_candidate.groups)
        )
        for device in problem.cluster.devices:
            if needed_bytes(problem, stages, device.name) > device.memory_bytes:
                for number, stage in enumerate(stages):
                    if device.name in {name for group in stage.replicas for name in group} and not stage.recompute:
                        more = tuple(replace(s, recompute=s.recompute or s is stage) for s in stages)
                        assert needed_bytes(problem, more, device.name) >= needed_bytes(problem, stages, device.name)
                        assert not flags[number]


def needed_bytes(problem: Problem, stages: tuple[Stage, ...], device: str) -> int:
    """What a device holds with min(M, S - s) microbatches of stage s in flight, and one of each in its backward."""
    costs, workspace = CostModel(problem), [0]
    total = costs.static_bytes(stages).get(device, 0)
    for number, stage in enumerate(stages):
        for replica, group in enumerate(stage.replicas):
            if device in group:
                cost = costs.stage_cost(stage, replica)
                total += cost.held_bytes * min(problem.num_microbatches, len(stages) - number)
                total += max(cost.stash_bytes - cost.held_bytes, 0)
                workspace.append(cost.workspace_bytes)
    return total + max(workspace)


def test_seeds_hold_a_greedy_choice():
    """Tests that the seeds of a tight problem have one where some stages recompute, and that it fits."""
    layers = [recomputing_layer(f"l{i}", 5) for i in range(8)]
    links = [make_link(f"d{i} d{i + 1}") for i in range(3)]
    problem = make_problem(layers, links, num_microbatches=8, memory_bytes=700, recompute=True, receive_buffers=0)
    case = Case(problem, ())
    whole_pipeline = [c for c in make_seeds(case.searcher) if c.groups == ((0,), (1,), (2,), (3,))]
    flags = {tuple(candidate.modes.tolist()) for candidate in whole_pipeline if candidate.is_feasible}
    assert (1, 0, 0, 0) in flags
    assert np.all([candidate.is_feasible for candidate in whole_pipeline])
