"""Plans side by side: each is played and verified on the same problem."""

from collections.abc import Sequence
from dataclasses import dataclass

from api.failures import InputError
from api.inputs import is_plan, play, question_of, read_plan, read_plan_and_problem, read_workload
from planner.baselines.registry import make_baselines
from planner.layout.costs import CostModel
from planner.plan import Plan
from planner.problem import Problem
from planner.verify import verify


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One plan of a comparison."""

    name: str
    """Its file, or the baseline's name."""
    makespan_ns: int
    """End of the iteration."""
    span_ns: int
    """Longest time from first to last action of a device."""
    bubble: float
    """1 - total work / (devices used x makespan)."""
    num_stages: int
    num_devices: int
    """Devices that hold a stage."""
    peak_fraction: float
    """Peak memory over the limit, on the device where that is largest."""
    num_violations: int
    """Rules that the plan breaks."""


def compare(
    files: Sequence[str], *, workload: str | None, cluster: str | None = None, has_baselines: bool = False
) -> tuple[Problem, tuple[Contender, ...]]:
    """The first plan's question, and every plan played on its own; without `workload` the last file is it."""
    questions = read_contenders(files, workload=workload, cluster=cluster)
    contenders = [_make_contender(problem, plan, name=name) for name, (plan, problem) in questions.items()]
    problem = next(iter(questions.values()))[1]
    if has_baselines:
        made = make_baselines(problem, CostModel(problem))
        contenders += [_make_contender(problem, row.plan, name=row.name) for row in made if row.plan is not None]
    return problem, tuple(contenders)


def read_contenders(
    files: Sequence[str], *, workload: str | None, cluster: str | None = None
) -> dict[str, tuple[Plan, Problem]]:
    """Every plan with the question it answers, by file.

    Without `workload` the last file is the workload; if that is a plan, each answers the question that it brings along.
    """
    if workload is None and is_plan(files[-1]):
        return _on_their_own(files, cluster=cluster)
    *plans, source = [*files, workload] if workload is not None else files
    if not plans:
        raise InputError("give at least one plan, then the workload (or --workload WORKLOAD)")
    stated = read_workload(source, cluster=cluster)
    answers = {name: read_plan(name) for name in plans}
    return {name: (plan, question_of(plan, stated)) for name, plan in answers.items()}


def _on_their_own(files: Sequence[str], *, cluster: str | None) -> dict[str, tuple[Plan, Problem]]:
    """The same of plans that bring their questions along, all of one model on one machine."""
    found = {name: read_plan_and_problem(name, None, cluster=cluster) for name in files}
    kinds = {name: (problem.profile_sha256, problem.cluster_sha256) for name, (_, problem) in found.items()}
    if other := next((name for name in kinds if kinds[name] != kinds[files[0]]), None):
        raise InputError(
            f"{other}: is for another profile or cluster than {files[0]}; name a workload after the plans, which all "
            "are played on"
        )
    return found


def _make_contender(problem: Problem, plan: Plan, *, name: str) -> Contender:
    verdict = verify(problem, plan)
    timeline = verdict.timeline or play(problem, plan, source=name)
    devices = problem.cluster.by_name
    return Contender(
        name=name,
        makespan_ns=timeline.makespan_ns,
        span_ns=timeline.span_ns,
        bubble=timeline.bubble,
        num_stages=len(plan.stages),
        num_devices=len(plan.schedule),
        peak_fraction=max((n / max(1, devices[d].usable_bytes) for d, n in timeline.peak_bytes.items()), default=0.0),
        num_violations=len(verdict.violations),
    )
