"""One planning run: progress told, Ctrl+C heard, a rejected plan kept as a bundle."""

import json
import platform
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from api.failures import InputError
from api.interrupts import Interrupts
from api.progress import Reporter, ReportStyle, RunSummary
from planner.batch_problem import Question, workload_of_question
from planner.document import plan_to_plain
from planner.errors import NoPlanFoundError, PlanError
from planner.export.targets import Target
from planner.plan import Plan
from planner.progress import Limits
from planner.release import RELEASE
from profiles.documents.canonical_json import to_plain
from profiles.workload import workload_to_plain

if TYPE_CHECKING:
    from api.dask_workers import DaskWorkers
    from planner.planning import SearchParams
    from planner.planning.runs.run import PlanningOptions
    from planner.replanning.transition import Transition


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Limits and reporting of a planning run."""

    limits: Limits
    """When it stops, its seed and its method."""
    style: ReportStyle
    """A live line, plain lines, JSON or nothing."""
    wants_gap: bool = False
    """Whether a gap was asked for, be it 0."""
    workers: str | None = None
    """Where tasks of the search are done: a Dask scheduler, or so many processes of this machine."""
    top: int = 1
    """Plans of different kinds that are wanted."""
    params: "SearchParams | None" = None
    """What steers the search, where it is not the default."""

    @property
    def needs_complete_model(self) -> bool:
        """Whether a solver gets one model of everything, which is not there for every problem."""
        return self.limits.method in ("cp-sat", "ilp")

    def is_missed_by(self, plan: Plan) -> bool:
        """Whether a gap was asked for that the plan does not reach."""
        return self.wants_gap and plan.evidence is not None and plan.evidence.objective_gap > self.limits.gap


def run_plan(
    problem: Question,
    effort: Effort,
    *,
    console: Console,
    target: Target | None = None,
    start: Plan | None = None,
    transition: "Transition | None" = None,
) -> tuple[Plan, RunSummary]:
    """The best plan found under `effort`, and how the run went; raises as `make_plan` does, or KeyboardInterrupt."""
    with Reporter(console, effort.style) as reporter, _attended(problem, effort, reporter=reporter) as how:
        from planner.planning import make_plans

        how |= {"target": target, "start": start, "transition": transition}
        plan, *others = make_plans(problem, top=effort.top, **how)
    summary = RunSummary(
        elapsed_s=reporter.elapsed_s, first_plan_s=reporter.first_plan_s, top=effort.top, others=tuple(others)
    )
    return plan, summary if target is None else replace(summary, target=target.name)


@contextmanager
def _attended(problem: Question, effort: Effort, *, reporter: Reporter) -> Iterator["PlanningOptions"]:
    """The options of a run that tells its progress and hears Ctrl+C; a rejected plan is kept as a bundle."""
    with Interrupts(on_first=reporter.stop) as interrupts, ExitStack() as stack:
        from planner.planning import SearchParams  # the solvers come with it, so the live line comes first

        workers = None if effort.workers is None else stack.enter_context(_workers(effort.workers))
        limits = _limits_left(effort, reporter)
        try:
            yield {
                "limits": limits,
                "on_progress": reporter.hear,
                "should_stop": interrupts.is_asked_to_stop,
                "params": effort.params or SearchParams(),
                "workers": workers,
            }
        except NoPlanFoundError:
            if interrupts.is_asked_to_stop():
                raise KeyboardInterrupt from None
            raise
        except PlanError as error:
            path = _save_bundle(_render_bundle(problem, limits, error=error))
            raise PlanError(f"{error}; the inputs to reproduce it are in {path}") from error


def _limits_left(effort: Effort, reporter: Reporter) -> Limits:
    """Importing the solvers belongs to the time that the caller waits."""
    limits = effort.limits
    left_s = max(limits.time_limit_s - reporter.elapsed_s, limits.time_limit_s / 2)
    return limits if limits.max_rounds is not None else replace(limits, time_limit_s=left_s)


@contextmanager
def _workers(where: str) -> Iterator["DaskWorkers"]:
    """The workers; raises InputError with field, value and remedy if there are none."""
    from api.dask_workers import open_workers

    with ExitStack() as stack:
        try:
            found = stack.enter_context(open_workers(where))
        except ValueError as error:
            raise InputError(f"--{error}") from None
        yield found


_BUNDLE_FORMAT = "pipeplan-bundle/1"


def _render_bundle(problem: Question, limits: Limits, *, error: BaseException) -> str:
    """All that is needed to see it happen again, with the rejected plan where the error carries it."""
    plan = getattr(error, "plan", None)
    bundle = {
        "format": _BUNDLE_FORMAT,
        "message": str(error),
        "limits": to_plain(limits),
        "versions": {"python": platform.python_version(), "pipeline-planner": RELEASE, **_versions()},
        "workload": workload_to_plain(workload_of_question(problem)),
        "rejected_plan": plan_to_plain(plan) if isinstance(plan, Plan) else None,
    }
    return json.dumps(bundle, ensure_ascii=False) + "\n"


def _versions() -> dict[str, str]:
    found = {}
    for name in ("ortools", "highspy", "pulp", "numba"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _save_bundle(text: str) -> Path:
    """Write the bundle beside the user, or in the temporary folder where that is not allowed."""
    for folder in (Path.cwd(), Path(tempfile.gettempdir())):
        path = folder / "pipeplan-bundle.json"
        try:
            path.write_text(text, encoding="utf-8")
        except OSError:
            continue
        return path
    raise OSError("no folder to write the bundle to; set TMPDIR to one that can be written")
