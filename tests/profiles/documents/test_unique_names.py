"""Tests of profiles/documents/unique_names.py, and of whoever reads other programs' files by it."""

from collections.abc import Callable
from typing import Any

import pytest

from profiles.configurations.argument_forms import read_arguments
from profiles.configurations.torchtitan_run import read_titan_document
from profiles.documents.unique_names import read_json, read_yaml
from profiles.estimates.hybrid_shapes import read_any_shape


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (read_json, '{"a": 1, "b": {"c": 1, "c": 2}}', "c stands there twice; keep one"),
        (read_json, "{", "Expecting property name"),
        (read_yaml, "a: 1\nb: 2\na: 3", "line 3: a is written twice; write it once"),
        (read_yaml, "a: {b: [{c: 1, c: 2}]}", "line 1: c is written twice"),
        (read_yaml, "a: {b: 1}\na: {b: 2}", "line 2: a is written twice"),
        (read_yaml, "&a [*a]", "line 1: not YAML .*recursive node.*; correct it"),
        (read_yaml, "&a {b: *a}", "line 1: not YAML .*recursive node.*; correct it"),
        (read_yaml, "a: &a [*a]", "line 1: not YAML .*recursive node.*; correct it"),
        (read_yaml, "a: 1\nb: &b {c: *b}", "line 2: not YAML .*recursive node.*; correct it"),
        (read_yaml, "a: 1\n  b: 2", "line 2: not YAML .*; correct it"),
        (read_yaml, "? [1, 2]\n: 3", "line 1: not YAML .*unhashable key"),
        (read_yaml, "a: !!python/name:os.system x", "line 1: not YAML .*could not determine a constructor"),
    ],
)
def test_names_that_stand_twice_are_refused(read: Callable[[str], Any], text: str, message: str):
    """Tests that no value is lost, at any depth, and that what is no document is refused with its place."""
    with pytest.raises(ValueError, match=message):
        read(text)


def test_what_others_write_is_read():
    """Tests that infinities, merged fields, the same value stated again and several documents are read as others do."""
    assert read_json('{"a": 1, "b": [], "a": 1}') == read_yaml("a: 1\nb: []\na: 1")[0] == {"a": 1, "b": []}
    assert read_json('{"limit": [0.0, Infinity], "a": {"limit": 1}}') == {
        "limit": [0.0, float("inf")],
        "a": {"limit": 1},
    }
    assert read_yaml("x: &x {p: 1, q: 1}\ny: {<<: *x, p: 2}\n---\n---\nz") == [
        {"x": {"p": 1, "q": 1}, "y": {"p": 2, "q": 1}},
        "z",
    ]


@pytest.mark.parametrize(
    "read",
    [
        lambda: read_arguments('{"num_layers": 8, "num_layers": 9}', source="a.json"),
        lambda: read_arguments("num_layers: 8\nnum_layers: 9\n", source="a.yaml"),
        lambda: read_titan_document('{"model": {}, "model": {"name": "llama3"}}', source="a.json"),
        lambda: read_any_shape('{"model_type": "llama", "model_type": "nemotron_h"}', name="a.json"),
    ],
)
def test_configurations_state_a_value_once(read: Callable[[], object]):
    """Tests that of two layouts, sizes or models that one file states, neither is taken in silence."""
    with pytest.raises(ValueError, match=r"^a\.(json|yaml): .*(num_layers|model|model_type) (stands|is written)"):
        read()
