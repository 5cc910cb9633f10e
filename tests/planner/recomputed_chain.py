"""Equal stages of which each microbatch may recompute, and then leaves nothing; half of the stash waits for W."""

from dataclasses import replace
from itertools import product

from planner.actions import Action
from planner.plan import Plan, Stage
from planner.problem import Problem
from profiles.model_profile import Layer
from tests.planner.builders import make_layer, make_link, make_problem

STASH = 10
"""Units of a microbatch that is kept."""


def recomputed_chain(stages: int, *, num_microbatches: int, kept: float, **options: object) -> Problem:
    """A chain of `stages` layers, one per device, F = I = W = recomputation = 10; each device keeps `kept` stashes."""
    layers = [_layer(f"l{n}") for n in range(stages)]
    links = [make_link(f"d{n} d{n + 1}") for n in range(stages - 1)]
    names = [(f"l{n}",) for n in range(stages)]
    return make_problem(
        layers,
        links,
        num_microbatches=num_microbatches,
        memory_bytes=int(STASH * kept),
        more_devices="d0",
        **{
            "recompute": True,
            "recompute_microbatches": True,
            "receive_buffers": 0,
            "max_stages_per_device": 1,
            "max_replicas": 1,
            "partition": tuple(names),
            "placement": tuple(((f"d{n}",),) for n in range(stages)),
        }
        | options,
    )


def _layer(name: str) -> Layer:
    plain = make_layer(name, (10, 10, 10), stash_bytes=STASH, weight_stash_bytes=STASH // 2, checkpoint_bytes=0)
    return replace(plain, costs=tuple(replace(cost, recompute_ns=10) for cost in plain.costs))


def every_choice(problem: Problem, stages: tuple[Stage, ...]) -> list[tuple[Stage, ...]]:
    """The stages with every set of microbatches that recompute."""
    count = problem.num_microbatches
    sets = [tuple(m for m in range(count) if bits >> m & 1) for bits in range(2**count)]
    return [
        tuple(
            Stage(layers=stage.layers, replicas=stage.replicas, recompute=bool(own), recompute_microbatches=own)
            for stage, own in zip(stages, chosen, strict=True)
        )
        for chosen in product(sets, repeat=len(stages))
    ]


def every_order(number: int, count: int, *, kinds: str) -> list[tuple[Action, ...]]:
    """All orders of a device's actions, of each microbatch in the order of `kinds`."""
    found: list[tuple[Action, ...]] = []

    def extend(done: list[int], order: tuple[Action, ...]) -> None:
        if len(order) == count * len(kinds):
            found.append(order)
        for m in range(count):
            if done[m] < len(kinds):
                action = Action(kinds[done[m]], number, m)
                extend([each + (n == m) for n, each in enumerate(done)], (*order, action))

    extend([0] * count, ())
    return found


def given_stages(problem: Problem) -> tuple[Stage, ...]:
    """The stages that the options give."""
    pairs = zip(problem.options.partition or (), problem.options.placement or (), strict=True)
    return tuple(Stage(layers=layers, replicas=groups) for layers, groups in pairs)


def every_plan(problem: Problem, *, kinds: str) -> list[Plan]:
    """All plans of the given stages: any microbatches recompute, in any order (microbatch 0 first on the first)."""
    stages, count = given_stages(problem), problem.num_microbatches
    orders = [every_order(number, count, kinds=kinds) for number in range(len(stages))]
    devices = [stage.replicas[0][0] for stage in stages]
    return [
        Plan(problem=problem.reference(), stages=chosen, schedule=dict(zip(devices, taken, strict=True)))
        for chosen in every_choice(problem, stages)
        for taken in product(*orders)
    ]
