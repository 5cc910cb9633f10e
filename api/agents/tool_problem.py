"""What went wrong in a tool, for the agent that called it: every complaint with its field, value and remedy."""

from collections.abc import Mapping, Sequence
from typing import Any

_MOST_LETTERS = 200
"""Of a value that is shown."""


class ToolProblem(Exception):
    """Ends a call with an error that the agent reads."""

    def __init__(self, code: str, *, detail: str, errors: Sequence[Mapping[str, str]] = (), status: int = 422) -> None:
        super().__init__(detail)
        self.code, self.detail, self.errors, self.status = code, detail, tuple(errors), status

    def document(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The error as data; values are those of the arguments."""
        return {
            "code": self.code,
            "detail": self.detail,
            "status": self.status,
            "errors": [_entry(error, arguments) for error in self.errors],
        }


def _entry(error: Mapping[str, str], arguments: Mapping[str, Any]) -> dict[str, Any]:
    field = error["pointer"].strip("/").replace("/", ".")
    remedy = error["detail"].removeprefix(f"{field}: ")
    return {"field": field, "value": _value_at(arguments, error["pointer"]), "remedy": remedy}


def problem_of(answer: Mapping[str, Any]) -> ToolProblem:
    """The problem document of a service as one of a tool."""
    detail = str(answer.get("detail") or answer.get("title") or "the service refused")
    errors = answer.get("errors", ())
    code, status = str(answer.get("code", "http_error")), int(answer["status"])
    return ToolProblem(code, detail=detail, errors=errors, status=status)


def _value_at(arguments: Any, pointer: str) -> str | int | float | bool | None:
    """What stands there, if it is short: None for objects, and where nothing stands."""
    found = arguments
    for name in pointer.strip("/").split("/"):
        if isinstance(found, Mapping):
            found = found.get(name)
        elif isinstance(found, list) and name.isdigit() and int(name) < len(found):
            found = found[int(name)]
        else:
            return None
    if isinstance(found, str):
        return found[:_MOST_LETTERS]
    return found if isinstance(found, int | float) else None
