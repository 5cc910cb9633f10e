"""Evidence of a plan document, read by the types of its classes: unknown keys and wrong types are refused.

What the figures say is for the verifier to recompute. Standard library only, so executors can read them.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from planner.documents.document_reader import DocumentReader
from planner.documents.plan_values import ALLOWED_VALUES, PARAMETER_NAME, TIMINGS, range_of
from planner.plan import Evidence

T = TypeVar("T")

_DEPTH = 3
"""So deep may lists stand in lists in a parameter of the search."""


def read_evidence(reader: DocumentReader) -> Evidence:
    """The evidence of a plan; raises ValueError with what is unknown, missing, of a wrong type or out of range."""
    evidence = _read_record(Evidence, reader)
    for name, values in ALLOWED_VALUES.items():
        _one_of(reader.get(name, str), values)
    _read_verdict(reader.get("verdict", dict))
    if (timings := reader.optional("timings", dict)) is not None:
        _known_keys(timings, TIMINGS)
        for name in timings.value:
            _one_of(timings.get(name, str), TIMINGS[name])
    if (params := reader.optional("search_params", dict)) is not None:
        for name in params.value:
            if re.match(PARAMETER_NAME, name) is None:
                raise params.error(f"names {name[:40]!r}, which is not a group.field; see `pipeplan search-params`")
            if params.value[name] is not None:
                _read_param(params.get(name, object), depth=_DEPTH)
    return evidence


def _read_record(kind: type[T], reader: DocumentReader) -> T:
    """An object of a class from a document with the same keys; null counts as left out where a field has a default."""
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    _known_keys(reader, known)
    values = {}
    for name, hint in _hints(cast("Any", kind)).items():
        if reader.value.get(name) is not None or _is_required(known[name]):
            values[name] = _read(hint, reader.get(name, object), name=name)
    return kind(**values)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """The types of a class's fields."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _is_required(field: "Field[Any]") -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _known_keys(reader: DocumentReader, known: Mapping[str, object]) -> None:
    for key in reader.value:
        if key not in known:
            raise reader.error(f"has the unknown key {key[:40]!r}; remove it, or use the release that wrote the plan")


def _read(hint: Any, reader: DocumentReader, *, name: str) -> Any:
    """A value of the type that a field has; `name` says what range its numbers have."""
    origin, parts = get_origin(hint), get_args(hint)
    if hint is Any:
        return reader.value
    if origin in (Union, UnionType):
        kinds = [part for part in parts if part is not NoneType]
        return None if reader.value is None else _read(kinds[0], reader, name=name)
    if origin is Literal:
        return _one_of(reader.as_a(str), parts)
    if origin is tuple:
        return tuple(_read(parts[0], item, name=name) for item in reader.as_a(list).items(object))
    if origin is Mapping:
        whole = reader.as_a(dict)
        return {key: _read(parts[1], whole.get(key, object), name=name) for key in whole.value}
    if is_dataclass(hint):
        return _read_record(hint, reader.as_a(dict))  # type: ignore[arg-type]
    return _read_number(reader, hint, name=name) if hint in (int, float) else reader.as_a(hint).value


def _read_number(reader: DocumentReader, kind: type, *, name: str) -> int | float:
    number: int | float = reader.as_a(int if type(reader.value) is int else kind).value
    if isinstance(number, float) and not math.isfinite(number):
        raise reader.error("is not a finite number; see the plan format")
    least, most, _ = range_of(name) or (None, None, "")
    if (least is not None and number < least) or (most is not None and number > most):
        limits = f"{least} or more" if most is None else f"from {least} to {most}"
        raise reader.error(f"is not {limits}; see the plan format")
    return number


def _one_of(reader: DocumentReader, values: tuple[str, ...]) -> str:
    if reader.value not in values:
        raise reader.error(f"is none of {', '.join(values)}; see the plan format")
    return str(reader.value)


def _read_verdict(reader: DocumentReader) -> None:
    reader.get("passed", bool)
    reader.get("violations", list)


def _read_param(reader: DocumentReader, *, depth: int) -> None:
    """A parameter of the search is null, a number, or a list of numbers, nulls and lists."""
    if isinstance(reader.value, list) and reader.value and depth:
        for item in reader.items(object):
            if item.value is not None:
                _read_param(item, depth=depth - 1)
    elif not isinstance(reader.value, list):
        _read_number(reader, float, name="")
    else:
        raise reader.error("is neither a number nor a list of numbers; see `pipeplan search-params`")
