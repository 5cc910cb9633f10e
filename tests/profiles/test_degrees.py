"""Degrees with names: what they are, how they are written, and what of a layer follows each."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from profiles.assumptions import Assumptions
from profiles.degrees import Degrees, read_degrees
from profiles.estimates.composed_profile import CompositionQuestion, compose
from profiles.estimates.model_shapes import ExpertShape, ModelShape
from profiles.load import dump_workload, parse_workload
from profiles.model_profile import ModelProfile
from profiles.workload import Workload
from tests.profiles.estimates.test_composed_profile import make_rates

MIXED = ModelShape(
    name="mixed", blocks=1, hidden=512, heads=8, key_value_heads=8, head_width=64, inner=1024, vocabulary=4096,
    mixture=ExpertShape(experts=8, chosen=2, inner=256),
)  # fmt: skip


def composed(*degrees: int | Degrees, size: int = 4, **asked: Any) -> ModelProfile:
    question = CompositionQuestion(
        shape=MIXED, rates=[make_rates()], sequence=256, sizes=(size,), degrees=degrees, **asked
    )
    return compose(question)[0]


def test_what_they_are():
    """Tests that a group has as many devices as tensor, context and data degree multiply to, and experts divide it."""
    degrees = Degrees(tensor=2, context=2, data=3, expert=4)
    assert (degrees.width, str(degrees)) == (12, "tensor 2, context 2, data 3, expert 4")
    with pytest.raises(ValueError, match="expert = 5 does not divide the 12 devices of the group; give a divisor"):
        replace(degrees, expert=5)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4", Degrees(tensor=4)),
        (" 1 ", Degrees()),
        ("tensor=2+context=2", Degrees(tensor=2, context=2)),
        ("data=8+expert=8", Degrees(data=8, expert=8)),
    ],
)
def test_how_they_are_written(text: str, expected: Degrees):
    """Tests that a plain number is a tensor degree, and that others have names."""
    assert read_degrees(text) == expected


@pytest.mark.parametrize(
    "text", ["", "0", "x", "tensor", "tensor=", "pipeline=2", "tensor=2+tensor=2", "2+2", "tensor=-1"]
)
def test_what_is_no_degree(text: str):
    """Tests that anything else is refused with an example."""
    with pytest.raises(ValueError, match=r"is no degree; write a whole number, or tensor, .* tensor=2\+context=2"):
        read_degrees(text)


def test_a_document_keeps_them():
    """Tests that a workload with named degrees is read as it was written, and that a width without a name is tensor."""
    profile = composed(1, 2, Degrees(data=4, expert=4))
    read = parse_workload(dump_workload(Workload(profile=profile)).encode(), source="test").profile
    assert read.degrees == profile.degrees == (Degrees(data=4, expert=4),)
    assert (read.degrees_at(2), read.degrees_at(4)) == (Degrees(tensor=2), Degrees(data=4, expert=4))
    assert composed(1, 2).degrees == ()


def test_a_plain_number_is_a_tensor_degree():
    """Tests that tensor 2 with as many expert devices, by name, costs and holds what the number 2 always did."""
    number, named = composed(1, 2), composed(1, Degrees(tensor=2, expert=2))
    assert named.layers == number.layers


def test_bytes_follow_the_degree_they_are_shared_by():
    """Tests that experts are divided by the expert degree, other weights by the tensor degree, activations by all."""
    experts, attention = 8 * 3 * 512 * 256, 4 * 512 * 512 + 512 * 8
    held = {}
    for degrees in (Degrees(tensor=4, expert=4), Degrees(context=4, expert=2), Degrees(data=4, expert=4)):
        (entry,) = composed(1, degrees).layers[1].wider
        held[degrees] = entry
        products = attention - 512 * 8
        own = products // degrees.tensor + 512 * 8 + experts // degrees.expert
        assert entry.parameter_bytes == 2 * own, degrees
    stash = composed(1).layers[1].stash_bytes
    assert {Fraction(stash, entry.stash_bytes) for entry in held.values()} == {4}


def test_samples_are_dealt_within_a_group():
    """Tests that a group of two data parts takes as long for two samples as one device for one."""
    line = make_rates(product_bf16=make_rates().lines["product bf16"])
    alone = compose(CompositionQuestion(shape=MIXED, rates=[line], sequence=256, sizes=(1,), degrees=(1,)))[0]
    dealt = composed(1, Degrees(data=2), size=2)
    assert dealt.layers[1].costs[1].forward_ns == alone.layers[1].costs[0].forward_ns


@pytest.mark.parametrize(
    ("degrees", "asked", "told"),
    [
        (Degrees(tensor=3), {}, "does not divide the 8 heads"),
        (Degrees(data=16, expert=16), {"size": 16}, "do not divide the 8 experts of mixed"),
        (Degrees(data=3), {}, "do not divide the 4 samples of a microbatch"),
        (Degrees(context=3), {}, "do not divide the 256 tokens of a sample into twice as many parts"),
        (Degrees(context=2), {"context": 2}, "that context and experts are stated of for all degrees"),
    ],
)
def test_what_does_not_divide(degrees: Degrees, asked: dict[str, Any], told: str):
    """Tests that degrees which do not divide what they share are refused by name."""
    with pytest.raises(ValueError, match=told):
        composed(1, degrees, **asked)


def test_a_profile_names_a_width_once():
    """Tests that a width has one meaning, that some layer has it, and that contexts are stated in one place."""
    profile = composed(1, Degrees(context=2))
    with pytest.raises(ValueError, match="degrees of width"):
        replace(profile, degrees=(Degrees(context=2), Degrees(data=2)))
    with pytest.raises(ValueError, match="are those of width 4, at which no layer has a cost; give costs there"):
        replace(profile, degrees=(Degrees(context=4),))
    with pytest.raises(ValueError, match=r"context is among its degrees, .* state it once"):
        replace(profile, assumptions=Assumptions(context_parallel=2))
