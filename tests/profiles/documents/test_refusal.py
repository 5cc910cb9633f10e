"""How a document is refused: tests of profiles/documents/refusal.py."""

import pytest

from profiles.documents.refusal import DocumentPath, blaming, refusal, render_path, render_value


def test_the_first_problems_are_listed():
    """Tests that every line names the source, and that the sixth problem and those behind it are counted."""
    assert str(refusal("a.json", "one", "two")) == "a.json: one\na.json: two"
    assert str(refusal("a.json", *"1234567")).splitlines()[-2:] == ["a.json: 5", "a.json: ... and 2 more"]


def test_a_source_is_put_in_front():
    """Tests that an error inside gets its source, and that errors of other kinds pass."""
    with pytest.raises(ValueError, match=r"^a.json: it is wrong$"), blaming("a.json"):
        raise ValueError("it is wrong")
    with pytest.raises(KeyError), blaming("a.json"):
        raise KeyError("other")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ((), "the document"),
        (("layers", 3, "costs", 0, "forward_ns"), "layers[3].costs[0].forward_ns"),
        ((0, "a"), "[0].a"),
        (("a b",), '["a b"]'),
        (("é",), '["\\u00e9"]'),
        (("x" * 61,), '["' + "x" * 56 + "...]"),
    ],
)
def test_paths_are_those_of_a_program(path: DocumentPath, expected: str):
    """Tests that keys and positions are written plainly, and keys with odd letters in quotes."""
    assert render_path(path) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [({"a": 1}, "{1 fields}"), ([1, 2], "[2 entries]"), ("é", '"\\u00e9"'), (None, "null"), (1.5, "1.5")],
)
def test_values_are_printable(value: object, expected: str):
    """Tests that containers show their size, and others printable ASCII."""
    assert render_value(value) == expected
    assert len(render_value("y" * 100)) == 60
