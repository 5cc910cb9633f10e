"""Search parameters by name, as people type them and evidence states them (`multistart.round_ticks`); what each is."""

import ast
import inspect
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from textwrap import dedent
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from planner.planning.planning_params import SearchParams

_UNMEASURED, _MEASURED = "Not measured", "Measured: "


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamDescription:
    """One parameter, as its class describes it."""

    name: str
    """`group.field`."""
    default: Any
    """What it is if nobody says otherwise."""
    allowed: str
    """The range of a number, or of every number of a list."""
    meaning: str
    """Its unit and what it does."""
    measured: str
    """What was measured, or why nothing was; empty: nothing was."""


def parse_assignments(assignments: Iterable[str]) -> SearchParams:
    """The parameters that NAME=VALUE change; VALUE is a number, or a list as JSON has it.

    Raises ValueError that names the assignment and the remedy.
    """
    changes = dict[str, object]()
    for assignment in assignments:
        name, _, value = assignment.partition("=")
        try:
            changes[name] = json.loads(value)
        except (ValueError, RecursionError):
            raise ValueError(
                f"search parameter {name[:60]} = {value[:60]!r} is neither a number nor a list; "
                "give one as in multistart.round_ticks=4000000 or order_search.slopes=[4,8]"
            ) from None
    return params_with(changes)


def params_with(changes: Mapping[str, object]) -> SearchParams:
    """The default parameters but for these, by `group.field`: what a plan's `evidence.search_params` states.

    Raises ValueError for names that do not exist and values that will not do.
    """
    kinds, groups = get_type_hints(SearchParams), dict[str, dict[str, object]]()
    for name, value in changes.items():
        group, _, own = name.partition(".")
        if group not in kinds:
            raise ValueError(f"there is no search parameter {name[:60]!r}; choose from the groups {', '.join(kinds)}")
        known = [each.name for each in fields(kinds[group])]
        if own not in known:
            listed = ", ".join(f"{group}.{each}" for each in known)
            raise ValueError(f"there is no search parameter {name[:60]!r}; choose from {listed}")
        groups.setdefault(group, {})[own] = _frozen(value)
    return SearchParams(**{group: kinds[group](**values) for group, values in groups.items()})


def changed_params(params: SearchParams) -> dict[str, Any]:
    """What differs from the defaults, by `group.field`, with lists for tuples."""
    standard = SearchParams()
    return {
        f"{group.name}.{each.name}": _plain(getattr(own, each.name))
        for group in fields(params)
        for own, usual in [(getattr(params, group.name), getattr(standard, group.name))]
        for each in fields(own)
        if getattr(own, each.name) != getattr(usual, each.name)
    }


@cache
def describe_params() -> tuple[ParamDescription, ...]:
    """All parameters, group by group in the order of a run's classes."""
    return tuple(_describe())


def _describe() -> Iterator[ParamDescription]:
    kinds = get_type_hints(SearchParams)
    for group in fields(SearchParams):
        kind = kinds[group.name]
        hints, said = get_type_hints(kind, include_extras=True), _docstrings(kind)
        for each in fields(kind):
            meaning, measured = _split(said[each.name])
            yield ParamDescription(
                name=f"{group.name}.{each.name}",
                default=_plain(each.default),
                allowed=_range(hints[each.name]),
                meaning=meaning,
                measured=measured,
            )


def _frozen(value: object) -> object:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _plain(value: object) -> Any:
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def _split(text: str) -> tuple[str, str]:
    """What a parameter does, and what was measured."""
    for mark in (_MEASURED, _UNMEASURED):
        meaning, found, measured = text.partition(mark)
        if found:
            return meaning.strip(), (measured if mark == _MEASURED else found + measured).strip()
    raise ValueError(f"a search parameter's docstring does not say what was measured: {text!r}")


def _range(kind: Any) -> str:
    """The range that a type has."""
    if get_origin(kind) is tuple:
        ranges = dict.fromkeys(_range(each) for each in get_args(kind) if each is not Ellipsis)
        return "; ".join(ranges)
    if get_origin(kind) in (Union, UnionType):
        return f"{_range(get_args(kind)[0])}, or none"
    _, (least, most) = get_args(kind)
    return f"{_number(least)} to {_number(most)}"


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,g}"


def _docstrings(kind: type) -> dict[str, str]:
    """The docstrings under the fields of a class."""
    (found,) = ast.parse(dedent(inspect.getsource(kind))).body
    assert isinstance(found, ast.ClassDef)
    said = {}
    for field, text in zip(found.body, found.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            said[field.target.id] = " ".join(str(ast.literal_eval(text.value)).split())
    return said
