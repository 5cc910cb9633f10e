"""Classes of a plan to plain values and back, by the types of their fields. Standard library only.

A field that has its default is left out. Pairs of a name and a value (`tuple[tuple[str, X], ...]`) are an object, and
actions are texts.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from planner.actions import Action, parse_action
from planner.documents.document_reader import DocumentReader
from planner.documents.plan_values import range_of
from planner.plan import BaselineResult, Plan, Share, SizeResult, Stage

T = TypeVar("T")

_ALWAYS: dict[type, frozenset[str]] = {
    Plan: frozenset({"evidence"}),
    Stage: frozenset({"recompute"}),
    SizeResult: frozenset({"rounds"}),
    BaselineResult: frozenset(each.name for each in fields(BaselineResult)),
}
"""Fields that are written though they have their default."""


def to_plain(value: Any) -> dict[str, Any]:
    """An object of a class as plain dictionaries and lists, by the order of its fields."""
    if isinstance(value, Share):
        return {"group": list(value.group), "share": [value.numerator, value.denominator]}
    kept, hints = _ALWAYS.get(type(value), ()), _hints(cast("Any", type(value)))
    stated = {each.name: getattr(value, each.name) for each in fields(value)}
    return {
        each.name: _plain(hints[each.name], stated[each.name])
        for each in fields(value)
        if each.name in kept or _is_required(each) or stated[each.name] != _default(each)
    }


def _plain(hint: Any, value: Any) -> Any:
    """A value of the type that a field has."""
    if hint is Any:
        return value
    if is_dataclass(value):
        return to_plain(value)
    if isinstance(value, Action):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _plain(get_args(hint)[1], each) for key, each in value.items()}
    if not isinstance(value, tuple):
        return value
    (part, *_) = get_args(_of_kind(hint, list, dict))
    if part is Action:
        return list(map(str, value))
    return dict(value) if _is_pair(part) else [_plain(part, each) for each in value]


def _default(of: "Field[Any]") -> Any:
    return of.default if of.default_factory is MISSING else of.default_factory()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordReader:
    """Reads records of classes; raises ValueError with what is unknown, missing, of a wrong type or out of range."""

    has_ranges: bool
    """Whether numbers must be in range; those that the verifier looks at need not be."""
    forms: Mapping[type, Callable[[DocumentReader], Any]] = field(default_factory=dict)
    """How classes are read that have a form of their own."""

    def read(self, kind: type[T], reader: DocumentReader) -> T:
        """An object of a class from a document with its keys; null counts as left out where a field has a default."""
        known = {each.name: each for each in fields(kind)}  # type: ignore[arg-type]
        require_known(reader, known)
        values = {}
        for name, hint in _hints(cast("Any", kind)).items():
            if reader.value.get(name) is not None or _is_required(known[name]):
                values[name] = self._read(hint, reader.get(name, object), name=name)
        return kind(**values)

    def _read(self, hint: Any, reader: DocumentReader, *, name: str) -> Any:
        """A value of the type that a field has; `name` says what range its numbers have."""
        if hint is Any:
            return reader.value
        if hint in self.forms:
            return self.forms[hint](reader)
        origin, parts = get_origin(hint), get_args(hint)
        if origin in (Union, UnionType):
            return None if reader.value is None else self._read(_of_kind(hint, type(reader.value)), reader, name=name)
        if origin is Literal:
            return one_of(reader.as_a(str), parts)
        if origin is Mapping or (origin is tuple and _is_pair(parts[0])):
            whole, part = reader.as_a(dict), parts[1] if origin is Mapping else get_args(parts[0])[1]
            found = {key: self._read(part, whole.get(key, object), name=name) for key in whole.value}
            return found if origin is Mapping else tuple(found.items())
        if hint == tuple[Action, ...]:
            listed = reader.as_a(list)
            try:
                return tuple(map(parse_action, listed.value))
            except (TypeError, ValueError):
                return tuple(item.action() for item in listed.items(str))
        if origin is tuple:
            return tuple(self._read(parts[0], item, name=name) for item in reader.as_a(list).items(object))
        if is_dataclass(hint):
            return self.read(hint, reader.as_a(dict))  # type: ignore[arg-type]
        return self.number(reader, hint, name=name) if hint in (int, float) else reader.as_a(hint).value

    def number(self, reader: DocumentReader, kind: type, *, name: str) -> int | float:
        """A finite number, in the range of its name."""
        number: int | float = reader.as_a(int if type(reader.value) is int else kind).value
        if isinstance(number, float) and not math.isfinite(number):
            raise reader.error("is not a finite number; see the plan format")
        least, most, _ = (self.has_ranges and range_of(name)) or (None, None, "")
        if (least is not None and number < least) or (most is not None and number > most):
            limits = f"{least} or more" if most is None else f"from {least} to {most}"
            raise reader.error(f"is not {limits}; see the plan format")
        return number


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """The types of a class's fields."""
    hints = get_type_hints(kind)
    return {each.name: hints[each.name] for each in fields(kind)}


def _is_required(of: "Field[Any]") -> bool:
    return of.default is MISSING and of.default_factory is MISSING


def _is_pair(hint: Any) -> bool:
    return get_origin(hint) is tuple and ... not in get_args(hint)


def _of_kind(hint: Any, *kinds: type) -> Any:
    """The part of a union that documents write as a value of one of some kinds, or its first."""
    if get_origin(hint) not in (Union, UnionType):
        return hint
    parts = [part for part in get_args(hint) if part is not NoneType]
    return next((part for part in parts if _kind_of(part) in kinds), parts[0])


def _kind_of(hint: Any) -> Any:
    """What JSON has for a type."""
    if get_origin(hint) is tuple:
        return dict if _is_pair(get_args(hint)[0]) else list
    return dict if get_origin(hint) is Mapping or is_dataclass(hint) else hint


def require_known(reader: DocumentReader, known: Mapping[str, object]) -> None:
    """ValueError for a key that is not known."""
    for key in reader.value:
        if key not in known:
            raise reader.error(f"has the unknown key {key[:40]!r}; remove it, or use the release that wrote the plan")


def one_of(reader: DocumentReader, values: tuple[str, ...]) -> str:
    """The value; ValueError if it is none of some."""
    if reader.value not in values:
        raise reader.error(f"is none of {', '.join(values)}; see the plan format")
    return str(reader.value)
