"""What a field may hold, stated once: its class checks it, its JSON schema publishes it.

forward_ns: Nanoseconds          # Annotated[int, Whole("nanoseconds", most=MAX_NANOSECONDS)]
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Protocol, get_args, get_type_hints, runtime_checkable

MAX_NANOSECONDS = 10**13
"""Largest time a document may state (about 2.8 hours), so that every sum stays below 2**53."""

MAX_BYTES = 2**50
"""Largest size a document may state (1 PiB), so that every sum stays below 2**63."""

MAX_NAME_LENGTH = 300
"""Longest name of a layer, device, host or switch."""

_UNPRINTABLE = (
    r"\u0000-\u001f\u007f-\u00a0\u00ad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u1680\u180e"
    r"\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ue000-\uf8ff\ufeff\ufff9-\ufffb\ufffe\uffff"
)
"""Control and format characters, spaces but the plain one, and private ones: the same in every version of Unicode."""
_NAME = re.compile(f"[^{_UNPRINTABLE}\ud800-\udfff]+")
"""Halves of pairs are no characters: a schema has no words for them, and no text in UTF-8 has them."""

MAX_SAMPLES = 2**30
"""Most samples in one microbatch."""

MAX_WIDTH = 4096
"""Most devices, or cores, that work on a layer together."""

_MAX_PRICE = 1_000_000
"""Most that a device may cost per hour."""

PRICE_DECIMALS = 6
"""Decimals of a price, so that it is a whole number of millionths."""

UNIT = "x-unit"
"""Keyword under which a rule hands its unit to `profiles.documents.class_schema`, which puts it into the
description."""

JsonSchema = dict[str, Any]


def require_name(what: str, value: str) -> None:
    """Raise ValueError unless `value` is a printable, non-empty name of at most `MAX_NAME_LENGTH` characters."""
    if not isinstance(value, str) or len(value) > MAX_NAME_LENGTH or not _NAME.fullmatch(value):
        shown = repr(value)[:60]
        raise ValueError(f"{what} = {shown} is not a name; give 1 to {MAX_NAME_LENGTH} printable characters")


def require_integer(what: str, value: int, *, least: int = 0, most: int = MAX_BYTES) -> None:
    """Raise ValueError unless `value` is an int (not a bool or float) with `least <= value <= most`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{what} = {str(value)[:60]!r} is not an integer; round it to a whole number")
    if not least <= value <= most:
        raise ValueError(f"{what} = {str(value)[:60]} is out of range; give an integer from {least} to {most}")


def require_distinct(what: str, names: Iterable[str]) -> None:
    """Raise ValueError if a name occurs twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{what} {name!r} occurs twice; rename or remove one of them")
        seen.add(name)


@runtime_checkable
class _FieldRule(Protocol):
    """What stands beside a type in `Annotated`; pydantic asks it for its part of the schema, and no more."""

    def check(self, value: Any, *, owner: str, field: str) -> None:
        """Raise ValueError unless the field of this name may hold `value`."""

    def __get_pydantic_json_schema__(self, core: Any, handler: Callable[[Any], JsonSchema]) -> JsonSchema:
        """The schema of the type with what the rule adds."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number of some unit from `least` to `most`."""

    unit: str = ""
    """What is counted, in the plural; empty where the field's name says it."""
    least: int = 0
    """Smallest number."""
    most: int = MAX_BYTES
    """Largest number."""

    def check(self, value: int, *, owner: str, field: str) -> None:
        """Raise ValueError unless `value` is such a number."""
        if type(value) is not int or not self.least <= value <= self.most:
            require_integer(f"{owner}: {field}", value, least=self.least, most=self.most)

    def __get_pydantic_json_schema__(self, core: Any, handler: Callable[[Any], JsonSchema]) -> JsonSchema:
        """With the range, and the unit for the description."""
        unit = {UNIT: self.unit} if self.unit else {}
        return {**handler(core), "minimum": self.least, "maximum": self.most, **unit}


@dataclass(frozen=True, slots=True)
class _HourlyPrice:
    """An amount of money per hour, in a currency that is the same throughout the document."""

    def check(self, value: float, *, owner: str, field: str) -> None:
        """Raise ValueError unless `value` is a number from 0 to `_MAX_PRICE` with at most `PRICE_DECIMALS` decimals."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value <= _MAX_PRICE or round(value, PRICE_DECIMALS) != value:
            raise ValueError(
                f"{owner}: {field} = {str(value)[:60]!r} is not a price; give a number from 0 to {_MAX_PRICE} with at "
                f"most {PRICE_DECIMALS} decimals, or leave it out"
            )

    def __get_pydantic_json_schema__(self, core: Any, handler: Callable[[Any], JsonSchema]) -> JsonSchema:
        """With the range; that there are so many decimals at most, the class checks."""
        return {**handler(core), "minimum": 0, "maximum": _MAX_PRICE, UNIT: "money per hour"}


@dataclass(frozen=True, slots=True)
class _Printable:
    """A name of at most `MAX_NAME_LENGTH` printable characters."""

    may_be_empty: bool = False
    """Whether an empty text is one, too."""

    def check(self, value: str, *, owner: str, field: str) -> None:
        """Raise ValueError unless `value` is such a name."""
        if value != "" or not self.may_be_empty:
            require_name(f"{owner}: {field}", value)

    def __get_pydantic_json_schema__(self, core: Any, handler: Callable[[Any], JsonSchema]) -> JsonSchema:
        """With the length, and without what is not printable."""
        limits = {"minLength": 0 if self.may_be_empty else 1, "maxLength": MAX_NAME_LENGTH}
        return {**handler(core), **limits, "pattern": f"^[^{_UNPRINTABLE}]*$"}


@dataclass(frozen=True, slots=True)
class NotEmpty:
    """A list of at least one entry."""

    remedy: str
    """Remedy in the message about an empty value."""

    def check(self, value: tuple[Any, ...], *, owner: str, field: str) -> None:
        """Raise ValueError if there is no entry."""
        if not value:
            raise ValueError(f"{owner}: {field} is empty; {self.remedy}")

    def __get_pydantic_json_schema__(self, core: Any, handler: Callable[[Any], JsonSchema]) -> JsonSchema:
        """With the least number of entries."""
        return {**handler(core), "minItems": 1}


Nanoseconds = Annotated[int, Whole("nanoseconds", most=MAX_NANOSECONDS)]
Bytes = Annotated[int, Whole("bytes")]
Samples = Annotated[int, Whole("samples", least=1, most=MAX_SAMPLES)]
Width = Annotated[int, Whole("devices or cores", least=1, most=MAX_WIDTH)]
Price = Annotated[float, _HourlyPrice()]
Name = Annotated[str, _Printable()]
NameOrEmpty = Annotated[str, _Printable(may_be_empty=True)]


def require_fields(owner: str, instance: Any) -> None:
    """Raise ValueError unless every field of a dataclass obeys its rule, or is None where it may be.

    `owner`: whose fields they are, as the message says it.
    """
    kind: type = type(instance)
    for name, rule, is_optional in _rules(kind):
        value = getattr(instance, name)
        if value is not None or not is_optional:
            rule.check(value, owner=owner, field=name)


@cache
def _rules(kind: type) -> tuple[tuple[str, _FieldRule, bool], ...]:
    """The fields that have a rule, each with it and whether it may be None, in the order of the class."""
    found = []
    for name, hint in get_type_hints(kind, include_extras=True).items():
        is_optional = type(None) in get_args(hint)
        for part in (hint, *get_args(hint)):
            rules = (rule for rule in getattr(part, "__metadata__", ()) if isinstance(rule, _FieldRule))
            found += [(name, rule, is_optional) for rule in rules]
    return tuple(found)
