"""A new plan from the present one on: for drifted costs, or for the devices that are left."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.console import Console

from api.planning_run import Effort, run_plan
from planner.export.targets import TARGETS, restrict_problem
from planner.layout.costs import CostModel
from planner.plan import Plan
from planner.problem import Problem
from planner.replanning.migration import Recipe
from planner.replanning.transition import DEFAULT_STEPS_LEFT, GoingOver, Transition, going_over
from planner.simulation.simulate import simulate
from planner.verify import verify
from planner.what_if.device_loss import adapt_plan, find_lost, without_devices

_DEFAULT_BYTES_PER_S = 1e9
"""What the storage of checkpoints is taken to give to all devices together where nobody says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """What is left of a job, and how its state is restored."""

    steps_left: int = DEFAULT_STEPS_LEFT
    """Iterations under the new plan."""
    bytes_per_s: float = _DEFAULT_BYTES_PER_S
    """What the storage of checkpoints gives to all devices together."""
    is_restart: bool = False
    """Whether all processes end, so that state comes from the checkpoint on every device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replanned:
    """A new plan for what is left, and what going over to it costs."""

    plan: Plan
    """The new plan."""
    recipe: Recipe
    """What has to move for it."""
    cost: GoingOver
    """What going over to it and the iterations that are left take."""
    leanest: GoingOver
    """The same of the plan for which least has to move, of those that were found."""
    rest: Rest
    present_ns: int | None
    """The makespan of the present plan on what is left, at the costs of the new one; None if it cannot continue
    there."""
    elapsed_s: float
    """Seconds of planning."""

    def describe(self) -> list[str]:
        """For people, a line each."""
        evidence = self.plan.evidence
        assert evidence is not None
        at_its_costs = (
            "" if self.present_ns is None else f" (the present one at the same costs: {self.present_ns / 1e6:,.3f})"
        )
        lines = [
            f"new plan: {evidence.makespan_ns / 1e6:,.3f} ms{at_its_costs}; no plan can be below "
            f"{evidence.lower_bound_ns / 1e6:,.3f} ms; planned in {self.elapsed_s:.1f} s"
        ]
        for move in self.recipe.moves:
            layers = f"{len(move.layers)} layers ({move.layers[0]} … {move.layers[-1]})"
            if move.source is None:
                lines.append(f"from the checkpoint to {move.target}: {layers}, {move.num_bytes:,} bytes")
            else:
                took = (move.duration_ns or 0) / 1e6
                lines.append(f"{move.source} to {move.target}: {layers}, {move.num_bytes:,} bytes, {took:,.3f} ms")
        lines.append(
            f"{self.recipe.moved_bytes:,} bytes move between devices, in {self.recipe.duration_ns / 1e6:,.3f} ms at "
            f"least; {self.recipe.restored_bytes:,} bytes come from the checkpoint"
        )
        return [*lines, describe_cost(self)]

    def summarise_cost(self) -> Mapping[str, Any]:
        """For programs: what was minimised, and what the plan would have cost for which least has to move."""
        return {
            "steps_left": self.rest.steps_left,
            "storage_bytes_per_s": self.rest.bytes_per_s,
            **asdict(self.cost),
            "moving_least": asdict(self.leanest),
        }


def describe_cost(again: Replanned) -> str:
    """The cost of going over to the new plan, as one line for people."""
    cost, leanest = again.cost, again.leanest
    line = f"{again.rest.steps_left:,} iterations and moving {cost.num_bytes:,} bytes: {_seconds(cost)}"
    if leanest.moving_ns >= cost.moving_ns:
        return f"{line}; no plan found moves less"
    return f"{line}; the plan that moves least, {leanest.num_bytes:,} bytes: {_seconds(leanest)}"


def _seconds(cost: GoingOver) -> str:
    return f"{cost.total_ns / 1e9:,.3f} s, {cost.moving_ns / 1e9:,.3f} s of it for the move"


def plan_again(
    problem: Problem,
    present: Plan,
    *,
    lost: Sequence[str],
    effort: Effort,
    target: str | None,
    console: Console,
    rest: Rest,
) -> Replanned:
    """Plan for what is left, from the present plan on; ValueError for names that are neither device nor host.

    Of all plans found it is the one whose iterations that are left and whose moving together take least, or where
    money is minimised cost least.
    """
    gone = find_lost(problem, lost)
    program = None if target is None else TARGETS[target]
    problem = problem.at_its_size()
    left = without_devices(problem, gone) if gone else problem
    if program is not None:
        left = restrict_problem(left, program)
    stays = _stays(left, present, gone=gone)
    transition = Transition(
        before=present.stages,
        absent=frozenset(present.devices) if rest.is_restart else frozenset(gone),
        steps_left=rest.steps_left,
        bytes_per_s=rest.bytes_per_s,
    )
    plan, run = run_plan(left, effort, console=console, target=program, start=stays, transition=transition)
    played = [(each, simulate(left, each).objective_ns(left.options.objective)) for each in (plan, *run.others)]
    costs = [going_over(left, each, iteration_ns=time_ns, transition=transition) for each, time_ns in played]
    return Replanned(
        plan=plan,
        recipe=transition.recipe(left, plan.stages),
        cost=costs[0],
        leanest=min(costs, key=lambda cost: (cost.moving_ns, cost.total_ns)),
        rest=rest,
        present_ns=None if stays is None else simulate(left, stays, costs=CostModel(left)).makespan_ns,
        elapsed_s=run.elapsed_s,
    )


def _stays(left: Problem, present: Plan, *, gone: Collection[str]) -> Plan | None:
    """The present plan if it uses none of the lost devices and fits the remaining ones, else None."""
    start = adapt_plan(present, gone) if gone else present
    if start is None:
        return None
    start = replace(start, problem=left.reference(), evidence=None)
    return start if verify(left, start).passed else None
