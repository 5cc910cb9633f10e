"""Trees to dataclasses of any floor: choices, nested objects, optional fields."""

from dataclasses import dataclass
from typing import Literal

import pytest

from profiles.documents.validation import validate

_STRICT = {"extra": "forbid"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    __pydantic_config__ = _STRICT

    radius_bytes: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Car:
    __pydantic_config__ = _STRICT

    colour: Literal["red", "blue"] = "red"
    wheels: tuple[tuple[str, ...], ...] | None = None
    spare: Wheel | None = None
    others: tuple[Wheel, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Garage:
    __pydantic_config__ = _STRICT

    cars: int = 0

    def __post_init__(self) -> None:
        if self.cars > 3:
            raise ValueError(f"garage: cars = {self.cars} is too many; sell one")
        if self.cars < 0:
            raise ValueError("garage: cars are missing; count them")


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    __pydantic_config__ = _STRICT

    garage: Garage


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing:
    __pydantic_config__ = _STRICT


def test_where_nothing_is_taken_nothing_is_offered():
    """Tests that a field of an object that has none is refused without an empty list of others."""
    with pytest.raises(ValueError, match=r"x = 1 is not a known field; remove it$"):
        validate(Nothing, {"x": 1}, source="nothing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelf:
    __pydantic_config__ = _STRICT

    books: list[str]


def test_a_text_is_no_list():
    """Tests that one value in the place of a list is refused, whether lists or tuples are kept of it."""
    for kind, field in ((Shelf, "books"), (Car, "wheels")):
        with pytest.raises(ValueError, match=rf'^x: {field} = "a" is not a list; give \[...\]$'):
            validate(kind, {field: "a"}, source="x")


@pytest.mark.parametrize(
    ("kind", "tree", "message"),
    [
        (Garage, {"cars": 4}, "garage: cars = 4 is too many; sell one"),
        (Garage, {"cars": -1}, "garage: cars are missing; count them"),
        (House, {"garage": {"cars": 4}}, "house: garage.cars = 4 is too many; sell one"),
        (House, {"garage": {"cars": -1}}, "house: garage: cars are missing; count them"),
    ],
)
def test_a_name_is_said_once(kind: type, tree: object, message: str):
    """Tests that what a class says of itself by the name of source or path has that name once."""
    with pytest.raises(ValueError, match=r"^(garage|house): ") as caught:
        validate(kind, tree, source=kind.__name__.lower())
    assert str(caught.value) == message


def test_lists_become_tuples():
    """Tests that nested lists and objects arrive as nested tuples and dataclasses."""
    tree = {"colour": "blue", "wheels": [["a"], []], "spare": {"radius_bytes": 2}, "others": [{}]}
    expected = Car(colour="blue", wheels=(("a",), ()), spare=Wheel(radius_bytes=2), others=(Wheel(),))
    assert validate(Car, tree, source="car") == expected


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"colour": "green"}, "car: colour = \"green\" is not known; give 'red' or 'blue'"),
        ({"wheels": [["a"], [3]]}, "car: wheels[1][0] = 3 is not a string; put it in double quotes"),
        (
            {"spare": {"radius_mb": 1}},
            "car: spare.radius_mb = 1 is not a known field; did you mean radius_bytes, in whole bytes?",
        ),
        (
            {"others": [{}, {"q": 1}]},
            "car: others[1].q = 1 is not a known field; remove it, or use one of: radius_bytes",
        ),
        ([], "car: the document = [0 entries] is not an object; give {...}"),
    ],
)
def test_message(tree: object, message: str):
    """Tests that each is refused with source, path, value and remedy, word for word."""
    with pytest.raises(ValueError, match=r"^car: ") as caught:
        validate(Car, tree, source="car")
    assert str(caught.value) == message
