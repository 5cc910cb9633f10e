"""Structured logs: one JSON object a line on standard error, with the request that everything goes back to.

Names of tenants, keys (not their secrets), jobs and routes are logged; bodies, plans, paths and secrets are not.
Whatever else comes to standard error becomes such a line as well: what is printed, warnings, and what nobody caught.
"""

import io
import json
import logging
import re
import sys
import threading
from contextvars import ContextVar
from typing import Any, Literal

from api.jobs.moments import moment

LogFormat = Literal["text", "json"]

VARIABLE = "PIPEPLAN_LOG_FORMAT"
"""Environment variable that names the form; solver processes hear of it that way."""

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
"""Of the request that is being answered."""

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
"""What may stand in logs as it is."""

_activity = logging.getLogger("api.activity")
"""Events: requests, jobs, solves. Silent unless logs are structured."""

printed = logging.getLogger("api.printed")
"""What was written to standard error past the log: by us, by libraries, by a solver process."""

failures = logging.getLogger("api.failures")
"""Exceptions that nobody caught."""


MOST_LETTERS = 10_000
"""Of a printed line."""


class _JsonLines(logging.Formatter):
    """A record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """`at`, `level`, `event`, then whatever the record brings along; what is a line already stays as it is."""
        if hasattr(record, "line"):
            return str(record.line)
        line: dict[str, Any] = {
            "at": moment(record.created, timespec="microseconds"),  # lines of solvers may come late
            "level": record.levelname.lower(),
            "event": _message_of(record),
        }
        if record.name != _activity.name:
            line["logger"] = record.name
        line |= getattr(record, "fields", {})
        if "request_id" not in line and request_id.get() is not None:
            line["request_id"] = request_id.get()
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return render_line(line)


def _message_of(record: logging.LogRecord) -> str:
    """The message; where it does not fit its arguments, both as they are."""
    try:
        return record.getMessage()
    except Exception:
        return f"{record.msg} {record.args!r}"


def render_line(line: dict[str, Any]) -> str:
    """ASCII, so that it can be written under every encoding; numbers that JSON does not know become texts."""
    try:
        return json.dumps(line, default=str, allow_nan=False)
    except (TypeError, ValueError):
        return json.dumps({str(name): value if isinstance(value, str) else str(value) for name, value in line.items()})


class _PrintedLines(io.TextIOBase):
    """Stands for standard error: each line that is printed there is logged."""

    def __init__(self) -> None:
        self._part = ""
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        """Log the lines that are whole now."""
        with self._lock:
            *lines, self._part = (self._part + text).split("\n")
        for line in lines:
            log_printed(line)
        return len(text)


def log_printed(line: str, **fields: Any) -> None:
    """Log a line that somebody printed; one that comes from a log of ours is passed on as it is."""
    line = line.rstrip()
    if line:
        extra: dict[str, Any] = {"line": line} if _is_logged(line) else {"fields": fields}
        printed.warning("%s", line[:MOST_LETTERS], extra=extra)


def _is_logged(line: str) -> bool:
    """Whether it is a line of a structured log."""
    try:
        tree = json.loads(line) if line.startswith("{") else None
    except (ValueError, RecursionError):
        return False
    return isinstance(tree, dict) and {"at", "level", "event"} <= set(tree)


def configure(form: LogFormat) -> None:
    """Say in this form what this process logs: as text warnings only, as JSON everything, and nothing but JSON."""
    if form != "json" or isinstance(sys.stderr, _PrintedLines):
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    _activity.setLevel(logging.INFO)
    logging.raiseExceptions = False  # what the log cannot write it cannot say either
    logging.captureWarnings(True)
    sys.stderr = _PrintedLines()
    sys.excepthook = lambda kind, error, trace: _log_failure("uncaught error", (kind, error, trace))
    sys.unraisablehook = lambda failed: _log_failure(
        str(failed.err_msg or "nobody could be told of this"), (failed.exc_type, failed.exc_value, failed.exc_traceback)
    )
    threading.excepthook = lambda failed: _log_failure(
        f"the thread {failed.thread.name if failed.thread else '?'} ended",
        (failed.exc_type, failed.exc_value, failed.exc_traceback),
    )


def _log_failure(event: str, failure: Any) -> None:
    failures.error(event, exc_info=failure)


def tell(event: str, **fields: Any) -> None:
    """Log that something happened; what is None is left out."""
    if _activity.isEnabledFor(logging.INFO):
        known = {name: value for name, value in fields.items() if value is not None}
        _activity.info(event, extra={"fields": known})
