"""What went wrong, as `application/problem+json` (RFC 9457): short, without a word of the input's own values."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, TypeVar

from profiles.documents.schema_rules import Stated

_T = TypeVar("_T")

_MAX_ERRORS = 20
"""Entries of `errors` that an answer lists."""

_MAX_DETAIL = 300
"""Characters of a detail."""

_TITLES = {
    400: "The request cannot be read",
    401: "No valid credentials",
    403: "Not allowed",
    404: "Not found",
    405: "Not a method of this resource",
    406: "Not available in that form",
    408: "The request came too slowly",
    409: "In conflict with what is there",
    410: "Gone",
    413: "The request is too large",
    415: "Not a form that is read here",
    422: "The request asks for something impossible",
    429: "Too many requests",
    431: "The request's header is too large",
    500: "An internal error",
    501: "Not supported",
    503: "Not available now",
    507: "No room left",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """One thing that is wrong in a request."""

    pointer: str
    """JSON pointer to it; empty: the request as a whole."""
    code: str
    """A word for programs."""
    detail: str
    """A sentence for people: what to do about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemDetails:
    """The body of an answer that is none (RFC 9457)."""

    type: str
    title: str
    status: int
    code: str
    """A word for programs."""
    detail: str = ""
    """A sentence for people."""
    errors: Annotated[tuple[Complaint, ...], Stated(maxItems=_MAX_ERRORS)] = ()
    """What is wrong, one by one; left out where there is nothing to list."""


class ServiceError(Exception):
    """Ends a request with a problem document."""

    def __init__(
        self,
        status: int,
        code: str,
        *,
        detail: str = "",
        errors: tuple[Complaint, ...] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail or code)
        self.status, self.code, self.detail, self.errors = status, code, detail, errors
        self.headers = dict(headers or {})

    def document(self) -> dict[str, Any]:
        """The body of the answer."""
        document = asdict(
            ProblemDetails(
                type=f"urn:pipeplan:problem:{self.code}",
                title=_TITLES.get(self.status, "An error"),
                status=self.status,
                code=self.code,
                detail=self.detail[:_MAX_DETAIL],
                errors=self.errors[:_MAX_ERRORS],
            )
        )
        if not self.errors:
            del document["errors"]
        return document


def not_found(pointer: str = "") -> ServiceError:
    """For what is not there and for what is another tenant's: nobody can tell which. `pointer`: a field with its id."""
    detail = "there is nothing here that you may see; check address and key"
    said = Complaint(pointer=pointer, code="not_found", detail="names no plan that you may see; give one's id")
    return ServiceError(404, "not_found", detail=detail, errors=(said,) if pointer else ())


def found(thing: _T | None, pointer: str = "") -> _T:
    """What was looked for, at the address or by a field of the body; raises ServiceError 404 where that is None."""
    if thing is None:
        raise not_found(pointer)
    return thing


def invalid(pointer: str, detail: str, *, code: str = "invalid") -> ServiceError:
    """For one thing that cannot be."""
    return ServiceError(422, "invalid", errors=(Complaint(pointer=pointer, code=code, detail=detail),))


_CODES = (
    ("is missing", "missing"),
    ("not a known field", "unknown_field"),
    ("not JSON", "not_json"),
    ("UTF-8", "encoding"),
    ("UTF-16", "encoding"),
    ("byte order mark", "encoding"),
    ("NUL", "encoding"),
    ("gzip", "encoding"),
    ("twice", "repeated_key"),
    ("too deeply", "too_deep"),
    ("too large", "too_large"),
    ("too small", "too_small"),
    ("more than", "too_large"),
)
_OWNER = re.compile(r"(?:problem|submission): ")
"""Classes that speak of a field of the body itself."""
_PART = re.compile(r"(workload|options|plan|other)(?: document)?: ")
_PATH = re.compile(r"((?:[A-Za-z_]\w*|\[\d+\])(?:\.[A-Za-z_]\w*|\[\d+\])*)(?= |:)")
_STATED = re.compile(r" = .{0,300}?(?= (?:is|are|asks|has|holds|does|needs|names|was)\b)")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_PLAIN = re.compile(r"^['\"](?:[\w.:/-]{1,60}|[^\w\s])['\"]$", re.ASCII)


def complaints_of(error: Exception, *, source: str = "body") -> tuple[Complaint, ...]:
    """The lines of a refusal, each with its pointer and code."""
    return tuple(_complaints(str(error), source=source))


def _complaints(text: str, *, source: str) -> Iterator[Complaint]:
    for line in text.splitlines()[:_MAX_ERRORS]:
        told = _OWNER.sub("", line.removeprefix(f"{source}: "), count=1)
        part = _PART.match(told)
        told = told[part.end() :] if part else told
        path = _PATH.match(told)
        is_named = path is not None and told[path.end() :].startswith((" =", ":", " is missing"))
        pointer = (f"/{part[1]}" if part else "") + (_pointer(path[1]) if path and is_named else "")
        code = next((code for phrase, code in _CODES if phrase in told), "invalid")
        yield Complaint(pointer=pointer, code=code, detail=_redact(told))


def _pointer(path: str) -> str:
    """`layers[3].name` as `/layers/3/name`."""
    return "/" + re.sub(r"\[(\d+)\]", r".\1", path).lstrip(".").replace(".", "/")


def _redact(text: str) -> str:
    """The message without the values of the input; names are kept where they are short and plain."""
    bare = _STATED.sub("", text)
    bare = _QUOTED.sub(lambda quoted: quoted[0] if _PLAIN.match(quoted[0]) else "(a name)", bare)
    return "".join(letter if letter.isprintable() else "?" for letter in bare)[:_MAX_DETAIL]
