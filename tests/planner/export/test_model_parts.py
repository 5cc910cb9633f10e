"""Layers as parts of a language model, by their names: tests of planner/export/model_parts.py."""

import pytest

from benchmarks.layouts import cut_of
from planner.export.model_parts import letters_of, require_contiguous
from tests.planner.builders import make_layer, make_link, make_problem


def problem(names: str):
    """A chain of layers of these names."""
    return make_problem([make_layer(name) for name in names.split()], [make_link("a b")])


@pytest.mark.parametrize(
    ("names", "sizes", "expected"),
    [
        ("embedding layers.0 layers.1 norm head", (2, 3), ["Et", "tLL"]),
        ("wte wpe h.0 h.1 ln_f lm_head", (3, 3), ["EEt", "tLL"]),
        ("layers.0 layers.1", (1, 1), ["Et", "tL"]),
        ("embed_tokens layers.0 mtp.0 final_layernorm output", (2, 3), ["Et", "mLL"]),
    ],
)
def test_names_say_what_layers_are(names: str, sizes: tuple[int, ...], expected: list[str]):
    """Tests that several naming habits are known, and that ends that a profile leaves out are put there."""
    cut = cut_of(sizes, names.split())
    assert letters_of(problem(names), cut) == expected


def test_other_models_are_refused():
    """Tests that a head before the blocks, stages that jump, and sizes of another model are refused with a remedy."""
    with pytest.raises(ValueError, match="rename the profile's layers"):
        letters_of(problem("head layers.0"), [["head"], ["layers.0"]])
    with pytest.raises(ValueError, match="take layer 'c' where the model has 'b'"):
        require_contiguous(problem("a b c"), [["a", "c"], ["b"]])
    with pytest.raises(ValueError, match="divides 3 layers, but the model has 2"):
        cut_of((1, 2), ["a", "b"])
