"""Layers that take nearly equal times: the bound of the same problem where they take equal ones, none longer.

Certificates of earlier releases name it; `planner.bounds.loop.cuts_bound` is stronger.
"""

from dataclasses import replace

from planner.problem import Problem
from profiles.model_profile import LayerCost

MAX_TOLERANCE = 1_000
"""Of a time, the thousandths by which others of its class may be longer, at most."""

_BACKWARD = ("input_grad_ns", "weight_grad_ns")
_TIMES = ("forward_ns", *_BACKWARD)
"""Each has classes of its own."""


def rounded_problem(problem: Problem, tolerance: int) -> Problem:
    """The problem with the F, I and W of all layers in classes, each at the least of its class.

    Classes are cut from the least time on.

    Proof that what the kinds `counting` and `loop` show of it holds for the problem itself. Play a plan, and let every
    action end sooner by what its layers take less, its start kept: no two actions of a device overlap, none starts
    before what it waits for, and orders and memory are the same. Both proofs count work in stretches of time and follow
    paths of actions that wait for each other, for any such timetable, not only for the one where all start as early as
    they can: queues of transfers, which could be longer where actions are shorter, they leave out. So the plan, which
    ends no later, ends no earlier than they say.
    """
    costs = [cost for layer in problem.profile.layers for cost in layer.costs]
    least = {name: _least_of_classes({getattr(cost, name) for cost in costs}, tolerance) for name in _TIMES}
    layers = tuple(
        replace(layer, costs=tuple(_rounded(cost, least) for cost in layer.costs)) for layer in problem.profile.layers
    )
    return replace(problem, profile=replace(problem.profile, layers=layers))


def _least_of_classes(times: set[int], tolerance: int) -> dict[int, int]:
    """By time, the least of its class."""
    found: dict[int, int] = {}
    least = 0
    for time in sorted(times):
        if 1_000 * time > (1_000 + tolerance) * least:
            least = time
        found[time] = least
    return found


def _rounded(cost: LayerCost, least: dict[str, dict[int, int]]) -> LayerCost:
    """A fused backward pass loses as much as its parts do."""
    forward, *backward = (least[name][getattr(cost, name)] for name in _TIMES)
    lost = sum(getattr(cost, name) for name in _BACKWARD) - sum(backward)
    return replace(
        cost,
        forward_ns=forward,
        input_grad_ns=backward[0],
        weight_grad_ns=backward[1],
        backward_ns=None if cost.backward_ns is None else max(0, cost.backward_ns - lost),
    )
