"""The verbs of the command line, carried out by a service: `--server URL`."""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from api.client import Client, JobDocument, ServerError, ServerEvent
from api.failures import as_input_errors
from api.interrupts import Interrupts
from api.planning_run import Effort
from api.progress import Reporter, RunSummary
from api.reporting.screen_table import make_table
from planner.batch_problem import Question
from planner.errors import InfeasibleProblemError, NoPlanFoundError, PlanError
from planner.plan import Plan
from planner.problem import Problem
from planner.progress import Progress

KEY = "PIPEPLAN_KEY"
"""Environment variable that holds the API key."""

_FAILURES = {"infeasible": InfeasibleProblemError, "no_plan_found": NoPlanFoundError, "plan_rejected": PlanError}


def connect(url: str) -> Client:
    """The service at `url`, with the key of the environment."""
    with as_input_errors():
        return Client(url, key=os.environ.get(KEY))


def run_remotely(problem: Question, effort: Effort, *, console: Console, url: str) -> tuple[Plan, RunSummary]:
    """As `run_plan`, but the service solves; Ctrl+C asks it for its best plan."""
    client = connect(url)
    job = client.submit(problem, limits=effort.limits)

    def stop() -> None:
        reporter.stop()
        client.stop(job["id"])

    with Reporter(console, effort.style) as reporter, Interrupts(on_first=stop):
        if job["state"] in ("queued", "running"):
            _follow(client, job, reporter=reporter)
        done = client.job(job["id"])
    if done["state"] != "succeeded":
        raise _failure_of(done)
    return client.fetch_plan(job["id"]), RunSummary(elapsed_s=reporter.elapsed_s, first_plan_s=reporter.first_plan_s)


def _follow(client: Client, job: JobDocument, *, reporter: Reporter) -> None:
    """Tells every step as if it were taken here."""
    known: dict[str, Any] = {"incumbent_ns": None, "lower_bound_ns": None, "gap": None, "source": "", "phase": "queued"}
    for event in client.follow(job["id"]):
        known |= {name: value for name, value in event["data"].items() if name in known and value is not None}
        if event["kind"] in ("incumbent", "bound", "started"):
            reporter.hear(_progress(event, known, elapsed_s=reporter.elapsed_s))


def _progress(event: ServerEvent, known: Mapping[str, Any], *, elapsed_s: float) -> Progress:
    phase = "started" if event["kind"] == "started" else known["phase"]
    return Progress(
        elapsed_s=elapsed_s,
        phase=phase,
        incumbent=None,
        incumbent_ns=known["incumbent_ns"],
        lower_bound_ns=known["lower_bound_ns"],
        gap=known["gap"],
        source=known["source"],
    )


def _failure_of(job: JobDocument) -> Exception:
    """What a job's failure would have been here."""
    error = job["error"] or {"code": job["state"], "detail": "it was cancelled before there was a plan"}
    if job["state"] == "cancelled":
        return NoPlanFoundError(error["detail"])
    kind = _FAILURES.get(error["code"])
    return ServerError(0, error) if kind is None else kind(error["detail"])


def compare_remotely(url: str, plans: Mapping[str, tuple[Plan, Problem]]) -> list[dict[str, Any]]:
    """Every plan played and verified by the service."""
    client = connect(url)
    rows = []
    for name, (plan, problem) in plans.items():
        played = json.loads(client.play(plan, problem, what="simulation"))
        verdict = client.verify(plan, problem)
        figures = {key: played[key] for key in ("makespan_ns", "span_ns", "bubble")}
        rows.append({"name": name, **figures, "num_violations": len(verdict.get("violations", ()))})
    return rows


def check_remotely(url: str) -> list[tuple[str, bool, str]]:
    """Whether the service lives, is ready, and knows us."""
    found = []
    for what, path in (("alive", "/livez"), ("ready", "/readyz"), ("capabilities", "/v1/capabilities")):
        try:
            found.append((what, True, json.dumps(connect(url)._json("GET", path))[:200]))
        except ServerError as error:
            found.append((what, False, str(error)))
    return found


_LONGEST_PART = 40
"""Letters between two blanks that no table breaks."""


def render_summary(summary: Any) -> RenderableType:
    """Plain data as tables: a row per field, and a table below for every list of rows."""
    if isinstance(summary, list):
        return _render_rows(summary)
    plain = make_table("", "")
    below: list[RenderableType] = []
    for name, value in summary.items():
        if isinstance(value, dict) and value and all(isinstance(row, dict) for row in value.values()):
            below += ["", Text(name, style="bold"), _render_rows([{"": key, **row} for key, row in value.items()])]
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            below += ["", Text(name, style="bold"), _render_rows(value)]
        else:
            plain.add_row(name, _cell(value))
    return Group(plain, *below)


def _render_rows(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = make_table(*names)
    texts = [[_cell(row.get(name)) for name in names] for row in rows]
    for name, column, cells in zip(names, table.columns, zip(*texts, strict=True), strict=False):
        column.overflow = "fold"
        parts = " ".join((name, *cells)).split()
        column.min_width = min(_LONGEST_PART, max(map(len, parts), default=0))  # half a time or an id is of no use
    for row_texts in texts:
        table.add_row(*row_texts)
    return table


def _cell(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}" if isinstance(value, float) else str(value)[:200]
