"""A plain tree to frozen data: pydantic checks the shape, the classes check themselves, every refusal is explained."""

import difflib
import json
import re
import threading
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, SchemaValidator

from profiles.documents.refusal import TOO_DEEP, DocumentPath, refusal, render_path, render_value

T = TypeVar("T")

_REMEDIES = {
    "int_type": "is not an integer; give {unit}",
    "float_type": "is not a number; give one, without quotes",
    "string_type": "is not a string; put it in double quotes",
    "bool_type": "is neither true nor false; give one of them, without quotes",
    "tuple_type": "is not a list; give [...]",
    "list_type": "is not a list; give [...]",
    "dict_type": "is not an object; give {{...}}",
    "dataclass_type": "is not an object; give {{...}}",
    "greater_than_equal": "is too small; give at least {ge}",
    "literal_error": "is not known; give {expected}",
    "less_than_equal": "is too large; give at most {le}",
}

_UNITS = {
    "_ns": "whole nanoseconds (1 ms = 1,000,000)",
    "_ms": "milliseconds",
    "_bytes": "whole bytes",
    "_bytes_per_s": "whole bytes per second",
}


def validate(kind: type[T], tree: object, *, source: str) -> T:
    """The instance of the dataclass `kind` that `tree` describes, strictly: no conversion, no unknown field.

    Raises ValueError that names the source, the path inside it, the value and the remedy.
    """
    try:
        result: T = _validate_json(kind, json.dumps(tree))
    except RecursionError:
        raise refusal(source, TOO_DEEP) from None
    except ValidationError as failure:
        problems = (_explain(error, kind, source=source) for error in failure.errors(include_url=False))
        raise refusal(source, *problems) from None
    return result


def _validate_json(kind: type, text: str) -> Any:
    with _BUILDING:
        validator = _validator(kind)
    return validator.validate_json(text, strict=True)


_BUILDING = threading.Lock()
"""Validators are built by one thread at a time: pydantic's building of them is not safe in several at once."""


@cache
def _validator(kind: type) -> SchemaValidator:
    """That of `TypeAdapter(kind)`, but one bad entry of a list hides the next: a mistake may repeat a million times."""
    return SchemaValidator(_with_fail_fast(TypeAdapter(kind).core_schema))


def _with_fail_fast(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_with_fail_fast(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    copied = {key: _with_fail_fast(part) for key, part in schema.items()}
    return copied | {"fail_fast": True} if schema.get("type") == "tuple" else copied


def _explain(error: ErrorDetails, kind: type, *, source: str) -> str:
    path, value, context = error["loc"], error["input"], error.get("ctx", {})
    if error["type"] == "value_error":
        own = f"{path[-1] if path else source}: "
        return _explain_own(path, value, message=str(context["error"]).removeprefix(own))
    unit = _unit(str(path[-1])) if path else ""
    if error["type"] == "missing":
        return f"{render_path(path)} is missing; add it{unit and f', in {unit}'}"
    if error["type"] == "unexpected_keyword_argument":
        return f"{render_path(path)} = {render_value(value)} is not a known field; {_suggest(kind, path)}"
    if error["type"] == "json_invalid":
        return TOO_DEEP
    remedy = _REMEDIES.get(error["type"], "is refused; {message}")
    remedy = remedy.format(message=error["msg"], unit=unit or "a whole number", **context)
    return f"{render_path(path)} = {render_value(value)} {remedy}"


def _explain_own(path: DocumentPath, tree: object, *, message: str) -> str:
    """What a class said about its own fields, behind the path of the field it spoke of."""
    spoken = re.search(r"(?:^|: )(\w+) = ", message)
    if spoken and isinstance(tree, dict) and spoken[1] in tree:
        path = (*path, spoken[1])
        if spoken.start() == spoken.start(1):
            return f"{render_path(path)}{message.removeprefix(spoken[1])}"
    return f"{render_path(path)}: {message}" if path else message


def _unit(field: str) -> str:
    return next((unit for ending, unit in _UNITS.items() if field.endswith(ending)), "")


def _suggest(kind: type, path: DocumentPath) -> str:
    """The field that was probably meant by the last key of `path`, with its unit; else all that there are."""
    known = [field.name for field in fields(_class_at(kind, path[:-1]))]
    wrong = str(path[-1])[:100]
    stem = wrong.rpartition("_")[0] or wrong
    alike = [name for name in known if name.rpartition("_")[0] == stem] or difflib.get_close_matches(wrong, known, n=1)
    if alike:
        unit = _unit(alike[0])
        return f"did you mean {alike[0]}{unit and f', in {unit}'}?"
    return f"remove it, or use one of: {', '.join(known)}" if known else "remove it"


def _class_at(kind: Any, path: DocumentPath) -> Any:
    """The dataclass that a path leads to, by the field types of the dataclass `kind`."""
    names = (part for part in path if isinstance(part, str))
    for name in names:
        hint = get_type_hints(kind)[name]
        kind = next(part for part in (hint, *get_args(hint)) if is_dataclass(part))
        if get_origin(hint) is dict:
            next(names, None)  # its key
    return kind
