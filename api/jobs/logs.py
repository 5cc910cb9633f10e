"""Structured logs: one JSON object a line on standard error, with the request that everything goes back to.

Names of tenants, keys (not their secrets), jobs and routes are logged; bodies, plans, paths and secrets are not.
"""

import json
import logging
import re
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal

LogFormat = Literal["text", "json"]

VARIABLE = "PIPEPLAN_LOG_FORMAT"
"""Environment variable that names the form; solver processes hear of it that way."""

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
"""Of the request that is being answered."""

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)

activity = logging.getLogger("api.activity")
"""What goes on: requests, jobs, solves. Silent unless logs are structured."""


class JsonLines(logging.Formatter):
    """A record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """`at`, `level`, `event`, then whatever the record brings along."""
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        if record.name != activity.name:
            line["logger"] = record.name
        line |= getattr(record, "fields", {})
        if "request_id" not in line and request_id.get() is not None:
            line["request_id"] = request_id.get()
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def configure(form: LogFormat) -> None:
    """Say in this form what this process logs: as text warnings only, as JSON everything."""
    if form != "json":
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    activity.setLevel(logging.INFO)


def tell(event: str, **fields: Any) -> None:
    """Log that something happened; what is None is left out."""
    if activity.isEnabledFor(logging.INFO):
        known = {name: value for name, value in fields.items() if value is not None}
        activity.info(event, extra={"fields": known})


def is_request_id(text: str) -> bool:
    """Whether it may stand in logs as it is."""
    return _ID.fullmatch(text) is not None
