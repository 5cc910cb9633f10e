"""What a profile assumes of the program that runs its plan, as that program is told it.

Each program has a table: a field of `Assumptions` to what states it. A field without an entry, or a value that the
program cannot be told, is refused: the plan's times and bytes would not be those of the run.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from planner.plan import Plan
from planner.problem import Problem
from profiles.assumptions import Assumptions
from profiles.degrees import Degrees

OWN_CODE = ("attention", "fused_loss", "sequence_length")
"""What is decided by the code of the model where that is the user's own."""

_WITHIN_GROUPS = ("sequence_parallel", "expert_parallel", "hidden_exchanges")
"""What says nothing where no devices share products."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedRun:
    """A plan that is to be run elsewhere."""

    assumptions: Assumptions
    """Of its profile; nothing is stated where the profile states none."""
    degrees: Degrees
    """Of a group."""
    names_degrees: bool
    """Whether the profile states them by name."""
    replicas: int
    """Of a stage, at most."""
    is_sharded: bool
    """Whether replicas divide the optimizer's state."""
    has_selective: bool
    """Whether any layer recomputes selectively."""


def degrees_of(problem: Problem, plan: Plan) -> Degrees:
    """What the devices of a group share; all groups of a plan that a program runs are alike."""
    return problem.profile.degrees_at(len(plan.stages[0].replicas[0]))


def run_of(problem: Problem, plan: Plan) -> ExportedRun:
    """What of a plan decides which assumptions matter."""
    width = max(len(group) for stage in plan.stages for group in stage.replicas)
    return ExportedRun(
        assumptions=problem.profile.assumptions or Assumptions(),
        degrees=problem.profile.degrees_at(width),
        names_degrees=any(each.width == width for each in problem.profile.degrees),
        replicas=max(len(stage.replicas) for stage in plan.stages),
        is_sharded=any(stage.shard != "none" for stage in plan.stages),
        has_selective=any("selective" in stage.recomputed.values() for stage in plan.stages),
    )


def _that_matter(run: ExportedRun) -> dict[str, Any]:
    """The assumptions on which this plan rests: those about groups need groups, and so on."""
    stated = run.assumptions.stated()
    if run.degrees.tensor == 1:
        stated = {field: value for field, value in stated.items() if field not in _WITHIN_GROUPS}
    if run.names_degrees:
        stated.pop("expert_parallel", None)
    if not run.has_selective:
        stated.pop("selective_modules", None)
    if run.replicas == 1 or stated.get("distributed_optimizer") is False:
        stated.pop("distributed_optimizer", None)
    if stated.get("context_parallel") == 1:
        stated.pop("context_parallel")
    return stated


States = Mapping[str, Callable[[Any, "ExportedRun"], Any]]
"""How a program is told a field: value and run to what states it; raises ValueError with the reason why not."""


def state(problem: Problem, plan: Plan, *, how: States, what: str) -> Iterator[tuple[str, Any]]:
    """Every field that matters, with what states it; raises ValueError with field, value and remedy for the others."""
    run = run_of(problem, plan)
    for field, value in _that_matter(run).items():
        owner = f"profile {problem.profile.name!r}: assumptions.{field} = {value!r}"
        if field == "distributed_optimizer":  # the plan's own shards state it
            _require_shards(run, owner)
            continue
        if field not in how:
            raise ValueError(
                f"{owner}, which {what} does not support; profile without it, or choose another program (pipeplan "
                "targets)"
            )
        try:
            told = how[field](value, run)
        except ValueError as reason:
            raise ValueError(f"{owner}, and {what} {reason}") from None
        yield field, told


def _require_shards(run: ExportedRun, owner: str) -> None:
    if not run.is_sharded:
        raise ValueError(
            f"{owner}: the plan's replicas do not divide the optimizer's state; plan with shard_optimizer = 'always' "
            "or 'together', or profile without it"
        )


def told_in_notes(problem: Problem, plan: Plan, *, what: str) -> tuple[str, ...]:
    """For programs that run the user's own model and have no settings for it: how the model has to be run, a line each.

    Raises ValueError for what no model's code decides.
    """
    fields = ("precision", "gradients", *OWN_CODE)
    how: States = dict.fromkeys(fields, lambda value, _: value)
    told = state(problem, plan, how=how, what=what)
    return tuple(f"times and bytes hold for {field} = {value!r}: run the model so" for field, value in told)


def unstated_note(problem: Problem, plan: Plan, *, what: str) -> tuple[str, ...]:
    """A line for profiles that do not state what matters most: whose defaults hold."""
    run = run_of(problem, plan)
    wanted = ("precision", "attention", *(_WITHIN_GROUPS[:1] if run.degrees.tensor > 1 else ()))
    missing = [name for name in wanted if getattr(run.assumptions, name) is None]
    if not missing:
        return ()
    return (
        f"profile {problem.profile.name!r} does not state {', '.join(missing)} (field assumptions): {what} runs by its "
        "defaults, for which times and bytes may not hold; state them in the profile and export again",
    )
