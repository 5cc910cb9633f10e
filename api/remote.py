"""What the command line asks of a service: `--server URL`."""

import json
import os
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from api.client import Client, JobDocument, ServerError, ServerEvent
from api.failures import as_input_errors
from api.interrupts import Interrupts
from api.planning_run import Effort
from api.progress import Reporter, RunSummary
from planner.batch_problem import Question
from planner.errors import InfeasibleProblemError, NoPlanFoundError, PlanError
from planner.plan import Plan
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


def check_remotely(url: str) -> list[tuple[str, bool, str]]:
    """Whether the service lives, is ready, and knows us."""
    found = []
    for what, path in (("alive", "/livez"), ("ready", "/readyz"), ("capabilities", "/v1/capabilities")):
        try:
            found.append((what, True, json.dumps(connect(url)._json("GET", path))[:200]))
        except ServerError as error:
            found.append((what, False, str(error)))
    return found
