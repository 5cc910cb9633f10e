"""Random plans whose microbatches differ, some of them dealt whole to pipelines."""

from dataclasses import replace
from itertools import pairwise
from random import Random

from planner.actions import Action
from planner.layout.costs import CostModel
from planner.plan import DeviceGroup, Plan, Stage
from planner.problem import Problem
from profiles.microbatch_sizes import why_no_cost
from tests.strategies import random_groups_for, random_problem, random_schedule, random_stages, random_topological_order

LARGEST = 12
"""Of the sizes that are drawn."""


def random_listed_problem(rng: Random) -> Problem:
    """A problem of any kind whose microbatches have sizes of their own."""
    while True:
        problem = random_problem(rng)
        profile, types = problem.profile, problem.cluster.device_types
        if profile.microbatch_size is not None:
            known = [size for size in range(1, LARGEST + 1) if why_no_cost(profile, size, device_types=types) is None]
            listed = tuple(rng.choice(known) for _ in range(rng.randint(1, 5)))
            return replace(problem, num_microbatches=len(listed), microbatches=listed)


def random_listed_case(rng: Random) -> tuple[Problem, Plan]:
    """Such a problem with a valid plan: its microbatches are cut over replicas, or dealt to pipelines."""
    problem = random_listed_problem(rng)
    return problem, random_dealt_plan(rng, problem) if rng.random() < 0.6 else random_cut_plan(rng, problem)


def random_cut_plan(rng: Random, problem: Problem) -> Plan:
    """A plan that deals nothing: a stage has replicas only where they cut every size into samples with a cost."""
    smallest = problem.at_size(problem.sizes[0])
    stages = tuple(_as_cut(problem, stage) for stage in random_stages(rng, smallest))
    return Plan(problem=problem.reference(), stages=stages, schedule=random_schedule(rng, smallest, stages=stages))


def _as_cut(problem: Problem, stage: Stage) -> Stage:
    """The stage, with its first replica alone where some size cannot be cut."""
    count = len(stage.replicas)
    for costs in (CostModel(problem.at_size(size)) for size in problem.sizes):
        places = {(costs.group_type(group), len(group)) for group in stage.replicas}
        works = [
            costs.layer_work(name, device_type, width=width, replicas=count)
            for name in stage.layers
            for device_type, width in places
        ]
        if (costs.problem.profile.microbatch_size or 1) % count or None in works:
            return _on_one(problem, stage)
    return stage


def _on_one(problem: Problem, stage: Stage) -> Stage:
    return replace(stage, replicas=((problem.cluster.devices[0].name,),))


def random_dealt_plan(rng: Random, problem: Problem) -> Plan:
    """A plan of one or more pipelines, each on devices of its own."""
    names = [device.name for device in problem.cluster.devices]
    rng.shuffle(names)
    pipelines = rng.randint(1, min(3, len(names), problem.num_microbatches))
    homes = [set(names[k::pipelines]) for k in range(pipelines)]
    numbers = list(range(problem.num_microbatches))
    rng.shuffle(numbers)
    ends = [0, *sorted(rng.sample(range(1, len(numbers)), pipelines - 1)), len(numbers)]
    hands = [numbers[a:b] for a, b in pairwise(ends)]
    stages = [
        Stage(
            layers=layers,
            replicas=_same_width([_group(rng, problem, layers, home=home) for home in homes]),
            recompute=problem.options.recompute and rng.random() < 0.5,
        )
        for layers in _cut_layers(rng, problem)
    ]
    schedule: dict[str, tuple[Action, ...]] = {}
    dealing = []
    for number, hand in enumerate(hands):
        alone = tuple(replace(stage, replicas=(stage.replicas[number],)) for stage in stages)
        own = random_schedule(rng, problem.at_size(problem.sizes[0], count=len(hand)), stages=alone)
        words = {d: tuple(a._replace(microbatch=hand[a.microbatch]) for a in word) for d, word in own.items()}
        begun = words[alone[0].replicas[0][0]]
        dealing.append(tuple(a.microbatch for a in begun if a.kind == "F" and a.stage == 0))
        schedule |= words
    return Plan(problem=problem.reference(), stages=tuple(stages), schedule=schedule, dealing=tuple(dealing))


def _cut_layers(rng: Random, problem: Problem) -> list[tuple[str, ...]]:
    order = random_topological_order(rng, problem.profile)
    position = {name: index for index, name in enumerate(problem.profile.topological_order)}
    cuts = sorted(rng.sample(range(1, len(order)), rng.randint(0, min(3, len(order) - 1))))
    parts = zip([0, *cuts], [*cuts, len(order)], strict=True)
    return [tuple(sorted(order[start:end], key=position.__getitem__)) for start, end in parts]


def _group(rng: Random, problem: Problem, layers: tuple[str, ...], *, home: set[str]) -> DeviceGroup:
    """Devices of one pipeline, on which all of these layers have a cost at every size."""
    devices = tuple(device for device in problem.cluster.devices if device.name in home)
    for _ in range(5):
        costs = CostModel(problem.at_size(rng.choice(problem.sizes)))
        (group, *_) = random_groups_for(rng, costs, layers)
        types = {problem.cluster.by_name[name].type for name in group}
        measured = all(
            CostModel(problem.at_size(size)).layer_work(name, next(iter(types)), width=len(group), replicas=1)
            for size in problem.sizes
            for name in layers
        )
        if set(group) <= home and measured:
            return group
    return (rng.choice(devices).name,)


def _same_width(groups: list[DeviceGroup]) -> tuple[DeviceGroup, ...]:
    """All of them, with their first devices alone where the numbers of devices differ."""
    return tuple(groups) if len(set(map(len, groups))) == 1 else tuple((group[0],) for group in groups)
