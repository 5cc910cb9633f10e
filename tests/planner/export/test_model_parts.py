"""Layers as parts of a language model, by their names: tests of planner/export/model_parts.py."""

import pytest

from benchmarks.layouts import cut_of
from planner.errors import InfeasibleProblemError
from planner.export.model_parts import letters_of, require_blocks, require_contiguous
from planner.export.targets import TARGETS, require_possible, restrict_question
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
        ("transformer.wte transformer.h.0 transformer.h.1 transformer.ln_f", (2, 2), ["Et", "tL"]),
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


@pytest.mark.parametrize(
    "names",
    [
        "block0 block1 head",
        "0:EmbeddingPipe 1:ParallelTransformerLayerPipe 2:ParallelTransformerLayerPipe 3:LMHead",
        "layers.0 layers.1",
        "transformer.h.0 transformer.h.1 transformer.ln_f",
        "embedding blocks0-5 blocks6-11 head",
        "embed dense0 moe1 moe2 head",
        "embed layers.0 layers.1.moe mtp.0 head",
        "embed 0 1 2 head",
    ],
)
def test_names_of_transformers_are_known(names: str):
    """Tests that blocks that differ by numbers, or by whether they have experts, are those of one model."""
    require_blocks(names.split(), what="it")


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        ("stem down.0 down.1 mid up.0 up.1 out", "'stem' and 'down.0'"),
        ("in_conv down_blocks.0 down_blocks.1 up_blocks.0 up_blocks.1", "'in_conv' and 'down_blocks.0'"),
        ("time_embed down.0 up.0 head", "'down.0' and 'up.0'"),
        ("patches block0 block1 head", "'patches' and 'block0'"),
        ("stem block1.0 block1.1 fc", "'stem' and 'block1.0'"),
        ("node1:Conv2d(3,kernel_size=7) node2:ReLU", "'node1:Conv2d(3,kernel_size=7)' and 'node2:ReLU'"),
        ("conv0 conv1 conv2", "'conv0'"),
    ],
)
@pytest.mark.parametrize("target", ["megatron", "torchtitan"])
def test_other_networks_are_no_transformers(names: str, shown: str, target: str):
    """Tests that convolutions and other layers are refused before a search, and where a plan is exported."""
    question = problem(names)
    with pytest.raises(InfeasibleProblemError, match=f"target {target}: layers such as ") as refused:
        require_possible(restrict_question(question, TARGETS[target]), TARGETS[target])
    assert f"such as {shown} are not alike blocks of a transformer" in str(refused.value)
    assert "rename them, e.g. layers.0, layers.1" in str(refused.value)
    require_possible(question, TARGETS["deepspeed"])
    fit = TARGETS[target].require
    assert fit is not None
    with pytest.raises(ValueError, match="plan for another program"):
        fit(question, [[layer.name for layer in question.profile.layers]])
