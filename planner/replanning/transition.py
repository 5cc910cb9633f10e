"""What a plan costs that takes over from a running one: the iterations that are left, and what moves before them."""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.plan import Plan, Stage
from planner.problem import Problem
from planner.replanning.migration import Recipe, make_recipe, restore_ns

DEFAULT_STEPS_LEFT = 1_000
"""Iterations that a plan is taken to run where nobody says how many are left, until devices come or go again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """What going over from a running plan costs, and how long it pays."""

    before: tuple[Stage, ...]
    """What ran so far, lost devices included."""
    absent: frozenset[str]
    """Devices whose state is gone: those that are lost, or all where every process ends."""
    steps_left: int
    """Iterations under the new plan."""
    bytes_per_s: float
    """What the storage of checkpoints gives to all devices together."""

    def __post_init__(self) -> None:
        if self.steps_left < 1:
            raise ValueError(f"steps_left = {self.steps_left} is not positive; give the number of iterations left")
        if not self.bytes_per_s > 0:
            raise ValueError(
                f"bytes_per_s = {self.bytes_per_s}: is not positive; give the read rate of the checkpoint storage"
            )

    def recipe(self, problem: Problem, stages: Sequence[Stage]) -> Recipe:
        """What moves for these stages, on the links that `problem` has left."""
        return make_recipe(problem, before=self.before, after=stages, lost=self.absent)

    def moving_ns(self, problem: Problem, stages: Sequence[Stage]) -> int:
        """Nanoseconds of the slowest device's moves."""
        return restore_ns(self.recipe(problem, stages), bytes_per_s=self.bytes_per_s)

    def total_ns(self, *, iteration_ns: int, moving_ns: int) -> int:
        """All that is left of the job, from the loss to its end."""
        return self.steps_left * iteration_ns + moving_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class GoingOver:
    """Time of moving to a plan and of all remaining iterations under it."""

    num_bytes: int
    """State that its devices have to get, from each other or from a checkpoint."""
    moving_ns: int
    """How long that takes at least."""
    iteration_ns: int
    """Its iteration, by what is minimised."""
    total_ns: int
    """The iterations that are left and moving together: the least is best."""


def going_over(problem: Problem, plan: Plan, *, iteration_ns: int, transition: Transition) -> GoingOver:
    """What a plan with iterations of this length costs."""
    recipe = transition.recipe(problem, plan.stages)
    moving_ns = restore_ns(recipe, bytes_per_s=transition.bytes_per_s)
    return GoingOver(
        num_bytes=recipe.moved_bytes + recipe.restored_bytes,
        moving_ns=moving_ns,
        iteration_ns=iteration_ns,
        total_ns=transition.total_ns(iteration_ns=iteration_ns, moving_ns=moving_ns),
    )
