"""Other degrees of an audited configuration, each a problem of its own with a plan, a bound and a share of time."""

from collections.abc import Iterator
from dataclasses import dataclass

from api.auditing.audited_problem import AuditedProblem, make_audited_problem
from planner.errors import InfeasibleProblemError, NoPlanFoundError
from planner.plan import Plan
from planner.planning import Limits
from planner.planning.runs.alternatives import make_best_plan
from planner.problem import Problem
from profiles.configurations.other_degrees import other_degrees
from profiles.configurations.run_configuration import RunConfiguration
from profiles.estimates.even_stages import EvenPipeline

MOST_PLANNED = 6
"""Degrees that are planned for, the run's own first; of the others the work of all devices is a bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BetterDegrees:
    """The best degrees found."""

    audited: AuditedProblem
    """The configuration at these degrees."""
    plan: Plan
    """With evidence for these degrees."""
    lower_bound_ns: int | None
    """No plan at any of the degrees looked at is shorter."""
    looked_at: int
    """Number of choices of degrees that the program takes."""
    impossible: int
    """How many of them hold more than fits, whatever the stages."""
    planned: int
    """How many of them were planned for."""


def find_better_degrees(audited: AuditedProblem, *, time_limit_s: float) -> BetterDegrees | None:
    """None: no plan was found at any degrees.

    Raises ValueError for a measured profile, which holds for its own degrees, and for a program without such degrees.
    """
    if not audited.figures:
        raise ValueError("--other-degrees: a profile was measured at its own degrees; leave out --profile")
    runs = {name_of(run): run for run in other_degrees(audited.run, node=audited.sheet.node)}
    problems = {name: make_audited_problem(run, gpu=audited.sheet) for name, run in runs.items()}
    even = {name: _even(each.problem) for name, each in problems.items()}
    fitting = [name for name, each in even.items() if each.may_fit]
    own = name_of(audited.run)
    ranked = sorted(fitting, key=lambda name: (name != own, even[name].estimate_ns))
    chosen = ranked[:MOST_PLANNED]
    try:
        best = make_best_plan(
            {name: problems[name].problem for name in reversed(chosen)},  # first plans are made of the last first
            limits=Limits(time_limit_s=time_limit_s),
            target=audited.target,
        )
    except (InfeasibleProblemError, NoPlanFoundError):
        return None
    others = [even[name].least_ns for name in ranked[MOST_PLANNED:]]
    return BetterDegrees(
        audited=problems[best.name],
        plan=best.plan,
        lower_bound_ns=None if best.lower_bound_ns is None else min([best.lower_bound_ns, *others]),
        looked_at=len(problems),
        impossible=len(problems) - len(fitting),
        planned=len(chosen),
    )


def name_of(run: RunConfiguration) -> str:
    """`t 2, c 1, e 8, p 4`."""
    experts = "" if run.experts is None else f"e {run.experts}, "
    return f"t {run.tensor}, c {run.context}, {experts}p {run.pipeline}"


def _even(problem: Problem) -> EvenPipeline:
    return EvenPipeline(
        profile=problem.profile,
        devices=len(problem.cluster.devices),
        usable_bytes=problem.cluster.devices[0].usable_bytes,
        microbatches=problem.num_microbatches,
        recomputes=problem.options.recompute,
    )


def degree_flags(run: RunConfiguration, *, before: RunConfiguration) -> Iterator[str]:
    """Lines that state degrees to the run's program, which had others before; the plan tells torchtitan's ranks."""
    if run.program == "torchtitan":
        names = ("tensor_parallel", "context_parallel", "expert_parallel")
        values = (run.tensor, run.context, run.experts or 1)
        yield from (f"{name}_degree = {value}" for name, value in zip(names, values, strict=True))
        return
    yield f"--tensor-model-parallel-size {run.tensor}"
    yield f"--context-parallel-size {run.context}"
    yield f"--pipeline-model-parallel-size {run.pipeline}"
    if run.experts is not None:
        yield f"--expert-model-parallel-size {run.experts}"
        yield "--expert-tensor-parallel-size 1"
    if run.tensor > 1 and not before.sequence_parallel:
        yield "--sequence-parallel"
