"""A new plan from the present one on: for drifted costs, or for the devices that are left."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from rich.console import Console

from api.planning_run import Effort, run_plan
from planner.costs import CostModel
from planner.export.targets import TARGETS, restrict_problem
from planner.plan import Plan
from planner.problem import Problem
from planner.replanning.migration import Recipe, make_recipe, restore_ns
from planner.simulate import simulate
from planner.verify import verify
from planner.what_if.device_loss import adapt_plan, find_lost, without_devices

TOP = 3
"""Plans of different kinds among which the cost of going over to them decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """What going over to a new plan costs, and how long it pays."""

    steps_left: int
    """Iterations under the new plan."""
    bytes_per_s: float
    """What the storage of checkpoints gives to all devices together."""
    is_restart: bool
    """Whether all processes end, so that state comes from the checkpoint on every device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """What came out."""

    plan: Plan
    """The new plan."""
    recipe: Recipe
    """What has to move for it."""
    present_ns: int | None
    """The makespan of the present plan on what is left; None if it cannot go on there."""
    elapsed_s: float
    """How long planning took."""

    def describe(self) -> list[str]:
        """For people, a line each."""
        evidence = self.plan.evidence
        assert evidence is not None
        saved = "" if self.present_ns is None else f", {(self.present_ns - evidence.makespan_ns) / 1e6:,.3f} ms saved"
        lines = [
            f"new plan: {evidence.makespan_ns / 1e6:,.3f} ms{saved}; no plan can be below "
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
            f"{self.recipe.moved_bytes:,} bytes move, in {self.recipe.duration_ns / 1e6:,.3f} ms at least; "
            f"{self.recipe.restored_bytes:,} bytes only the checkpoint has"
        )
        return lines


def plan_again(
    problem: Problem,
    present: Plan,
    *,
    lost: Sequence[str],
    effort: Effort,
    target: str | None,
    console: Console,
    transition: Transition | None = None,
) -> Again:
    """Plan for what is left, from the present plan on; ValueError for names that are neither device nor host.

    With a `transition`, of the plans of different kinds that the search ends with the one is taken whose iterations and
    restoring together take least.
    """
    gone = find_lost(problem, lost)
    program = None if target is None else TARGETS[target]
    problem = problem.at_its_size()
    left = without_devices(problem, gone) if gone else problem
    if program is not None:
        left = restrict_problem(left, program)
    stays = _stays(left, present, gone=gone)
    if transition is not None:
        effort = replace(effort, top=TOP)
    plan, run = run_plan(left, effort, console=console, target=program, start=stays)
    absent = set(present.devices) if transition is not None and transition.is_restart else gone
    recipe = make_recipe(left, before=present, after=plan, lost=absent)
    if transition is not None:
        choices = [(each, make_recipe(left, before=present, after=each, lost=absent)) for each in (plan, *run.others)]
        plan, recipe = min(
            choices, key=lambda choice: _total_ns(left, choice[0], recipe=choice[1], transition=transition)
        )
    return Again(
        plan=plan,
        recipe=recipe,
        present_ns=None if stays is None else simulate(left, stays, costs=CostModel(left)).makespan_ns,
        elapsed_s=run.elapsed_s,
    )


def _stays(left: Problem, present: Plan, *, gone: Collection[str]) -> Plan | None:
    """The present plan on what is left, if it can go on there."""
    start = adapt_plan(present, gone) if gone else present
    if start is None:
        return None
    start = replace(start, problem=left.reference(), evidence=None)
    return start if verify(left, start).passed else None


def _total_ns(problem: Problem, plan: Plan, *, recipe: Recipe, transition: Transition) -> int:
    """What is left of the job takes so long, restoring included."""
    iteration = simulate(problem, plan).objective_ns(problem.options.objective)
    return transition.steps_left * iteration + restore_ns(recipe, bytes_per_s=transition.bytes_per_s)
