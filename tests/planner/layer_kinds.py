"""Random problems whose layers state several kinds of recomputation, and plans that say which layers recompute."""

from dataclasses import replace
from random import Random

from planner.plan import Plan, Stage
from planner.problem import Problem
from profiles.model_profile import Layer, RecomputeBytes, RecomputeTime, WidthBytes
from tests.strategies import random_schedule, random_stages

KINDS = ("selective", "norms only")


def with_kinds(rng: Random, problem: Problem) -> Problem:
    """The problem with other kinds of recomputation in some layers, and every layer free to choose."""
    layers = tuple(_with_kinds(rng, layer) for layer in problem.profile.layers)
    options = replace(problem.options, recompute=True, recompute_layers=True)
    return replace(problem, profile=replace(problem.profile, layers=layers), options=options)


def _with_kinds(rng: Random, layer: Layer) -> Layer:
    kinds = [kind for kind in KINDS if rng.random() < 0.5]

    def leaves(entry: Layer | WidthBytes) -> tuple[RecomputeBytes, ...]:
        return tuple(RecomputeBytes(kind=k, checkpoint_bytes=rng.randint(0, entry.stash_bytes)) for k in kinds)

    costs = tuple(
        replace(cost, recompute_kinds=tuple(RecomputeTime(kind=k, recompute_ns=rng.randint(0, 4)) for k in kinds))
        for cost in layer.costs
    )
    wider = tuple(replace(entry, recompute_kinds=leaves(entry)) for entry in layer.wider)
    return replace(layer, costs=costs, wider=wider, recompute_kinds=leaves(layer))


def random_map(rng: Random, problem: Problem, stage: Stage) -> Stage:
    """The stage with a random choice for every layer; now and then one of the plain two."""
    if rng.random() < 0.2:
        return replace(stage, recompute=rng.random() < 0.5)
    pairs = []
    for name in stage.layers:
        kinds = ["", "full", *(entry.kind for entry in problem.profile.by_name[name].recompute_kinds)]
        if kind := rng.choice(kinds):
            pairs.append((name, kind))
    return replace(stage, recompute=tuple(pairs))


def random_mapped_plan(rng: Random, problem: Problem) -> Plan:
    """A plan that can be played to its end, whose stages say which layers recompute."""
    stages = tuple(random_map(rng, problem, stage) for stage in random_stages(rng, problem))
    return Plan(problem=problem.reference(), stages=stages, schedule=random_schedule(rng, problem, stages=stages))
