"""What of a tenant's plans is listed: the query parameters of `GET /v1/plans`, checked."""

import re
from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, get_args

from api.jobs.job import LABEL, Search, State
from api.service.http.problem_json import Complaint, ServiceError
from profiles.field_rules import MAX_NAME_LENGTH

_MOST_NAME = 100
"""Letters of a part of a name."""

_MOST_LISTED = 100
"""Plans of one page."""


def _text(pattern: str, **limits: int) -> dict[str, Any]:
    return {"type": "string", **limits, "pattern": f"^{pattern}$"}


def _name(most: int) -> dict[str, Any]:
    return _text("[ -~]+", minLength=1, maxLength=most)


_DAY = (
    _text("20[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"),
    "a date or moment, e.g. 2026-01-31 or 2026-01-31T12:00:00Z",
)
PARAMETERS: dict[str, tuple[dict[str, Any], str]] = {
    "limit": ({"type": "integer", "minimum": 1, "maximum": _MOST_LISTED}, f"a number from 1 to {_MOST_LISTED}"),
    "project": (_text(LABEL.pattern), "a project's name"),
    "tag": (_text(LABEL.pattern), "a tag"),
    "name": (_name(_MOST_NAME), "part of a name, at most 100 letters"),
    "model": (_name(MAX_NAME_LENGTH), "a model's whole name, at most 300 letters"),
    "sha256": (
        _text("[0-9a-f]{6,64}"),
        "at least 6 hexadecimal digits that a plan's or a profile's SHA-256 begins with",
    ),
    "state": ({"enum": list(get_args(State))}, f"one of {', '.join(get_args(State))}"),
    "since": _DAY,
    "until": _DAY,
    "after": (
        _text(r"[0-9a-f]{32}(@[0-9]{1,10}(\.[0-9]{1,9})?)?"),
        "what stands in `next`, or the id of a plan that is there: the last of the page before",
    ),
}
"""By name: the schema that the interface's document publishes, and what a message proposes."""


def read_search(query: Mapping[str, str]) -> Search:
    """What is asked for; raises ServiceError 422 for what cannot be."""
    values: dict[str, Any] = {}
    for field in fields(Search):
        text = query.get(field.name)
        if text is not None:
            values[field.name] = _read(field.name, text)
            if values[field.name] is None:
                raise unfit(field.name)
    return Search(**values)


def read_limit(query: Mapping[str, str]) -> int:
    """How many are asked for; raises ServiceError 422 for what cannot be."""
    text = query.get("limit", "20")
    if not (
        text.isascii() and text.isdigit() and len(text) <= len(str(_MOST_LISTED)) and 1 <= int(text) <= _MOST_LISTED
    ):
        raise unfit("limit")
    return int(text)


def _read(name: str, text: str) -> Any:
    if name in ("since", "until"):
        return _moment(text)
    schema = PARAMETERS[name][0]
    if "enum" in schema:
        return text if text in schema["enum"] else None
    if "maxLength" in schema:  # names may hold printable letters that are not ASCII
        return text if 0 < len(text) <= schema["maxLength"] and text.isprintable() else None
    return text if re.fullmatch(schema["pattern"], text) else None


def _moment(text: str) -> float | None:
    """Seconds since 1970; without a zone it is UTC."""
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def unfit(name: str) -> ServiceError:
    """What refuses the value of a parameter."""
    complaint = Complaint(pointer=f"/{name}", code="invalid", detail=f"give {PARAMETERS[name][1]}")
    return ServiceError(422, "invalid", errors=(complaint,))
