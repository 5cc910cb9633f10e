"""Records of a plan are written and read by the types of their fields alone."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from planner.actions import Action
from planner.documents.document_reader import DocumentReader
from planner.documents.records import RecordReader, to_plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A record in a record."""

    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """A record with a field of every form."""

    name: str
    groups: tuple[tuple[str, ...], ...] = ()
    kinds: bool | tuple[tuple[str, str], ...] = False
    choice: Literal["a", "b"] = "a"
    limit: int | None = None
    share: float = 0.5
    orders: Mapping[str, tuple[Action, ...]] = field(default_factory=dict)
    part: Part | None = None
    rest: Mapping[str, Any] = field(default_factory=dict)


def read(plain: object, *, has_ranges: bool = True) -> Whole:
    return RecordReader(has_ranges=has_ranges).read(Whole, DocumentReader(plain, dict, source="s", path=""))


FULL = {
    "name": "n",
    "groups": [["a", "b"], ["c"]],
    "kinds": {"x": "full"},
    "choice": "b",
    "limit": 0,
    "share": 1,
    "orders": {"d": ["0F0", "0B0"]},
    "part": {"size": 3},
    "rest": {"any": [1, {"thing": None}]},
}


@pytest.mark.parametrize("plain", [{"name": "n"}, FULL, {"name": "n", "kinds": True}, {"name": "n", "part": {}}])
def test_what_is_written_is_read(plain: dict[str, Any]):
    """Tests that defaults are left out, pairs are an object, actions are texts, and all comes back."""
    assert to_plain(read(plain)) == plain


def test_values_have_their_types():
    """Tests that lists are tuples, and that pairs keep their order."""
    found = read(FULL)
    assert found.groups == (("a", "b"), ("c",))
    assert found.kinds == (("x", "full"),)
    assert found.orders == {"d": (Action("F", 0, 0), Action("B", 0, 0))}
    assert found.part == Part(size=3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": None}, "s: name = None is not a string"),
        ({"limit": "x"}, "limit = 'x' is not an integer"),
        ({"limit": True}, "limit = True is not an integer"),
        ({"share": float("nan")}, "share = nan is not a finite number"),
        ({"choice": "c"}, "choice = 'c' is none of a, b"),
        ({"kinds": "yes"}, "kinds = 'yes' is not true or false"),
        ({"kinds": {"x": 1}}, r"kinds\.x = 1 is not a string"),
        ({"groups": {"a": []}}, "groups = {'a': .*} is not an array"),
        ({"other": 1}, "has the unknown key 'other'"),
    ],
)
def test_what_is_wrong_is_refused_with_its_path(change: dict[str, Any], message: str):
    """Tests that wrong types, values and keys are refused where they stand."""
    with pytest.raises(ValueError, match=message):
        read(FULL | change)


def test_unknown_keys_are_for_nobody():
    """Tests that a reader without ranges refuses a key that it does not know as well."""
    with pytest.raises(ValueError, match="unknown key 'other'"):
        read(FULL | {"other": 1}, has_ranges=False)
