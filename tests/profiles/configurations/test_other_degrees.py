"""Other degrees of a run: which there are, and what stays as it was."""

from dataclasses import replace

import pytest

from profiles.configurations.other_degrees import other_degrees
from profiles.configurations.run_configuration import ReadingNotes, Recomputation, RunConfiguration
from profiles.estimates.model_shapes import ExpertShape, ModelShape

MIXED = ModelShape(
    name="mixed", blocks=4, hidden=512, heads=4, key_value_heads=4, head_width=128, inner=1024, vocabulary=4096,
    mixture=ExpertShape(experts=8, chosen=2, inner=256),
)  # fmt: skip
DENSE = replace(MIXED, mixture=None)
RUN = RunConfiguration(
    program="megatron", shape=MIXED, tensor=2, pipeline=2, data=2, experts=2, stages=("Ett", "ttL"), micro_batch=1,
    global_batch=16, sequence=4096, recompute=Recomputation(), cut_by=("--x 1",), notes=ReadingNotes(),
)  # fmt: skip

Degrees = tuple[int, int, int | None, int, int]


def degrees_of(run: RunConfiguration, *, node: int = 8) -> set[Degrees]:
    return {
        (each.tensor, each.context, each.experts, each.pipeline, each.data) for each in other_degrees(run, node=node)
    }


def test_all_degrees_make_up_the_devices():
    """Tests that degrees multiply to the devices, divide model, sequence and batch, and that its own are among them."""
    found = degrees_of(RUN)
    assert (2, 1, 2, 2, 2) in found
    for tensor, context, experts, pipeline, data in found:
        assert tensor * context * pipeline * data == 8
        assert (4 % tensor, 4096 % (2 * context), 16 % data, (8 // pipeline) % (experts or 1)) == (0, 0, 0, 0)
    assert {tensor for tensor, *_ in found} == {1, 2, 4}
    assert {context for _, context, *_ in found} == {1, 2, 4}
    assert {experts for _, _, experts, *_ in found} == {1, 2, 4, 8}
    assert max(tensor for tensor, *_ in degrees_of(RUN, node=2)) == 2


def test_what_limits_them():
    """Tests that short sequences are not shared, and that a batch has a sample for every pipeline."""
    short = degrees_of(replace(RUN, sequence=1024))
    assert {context for _, context, *_ in short} == {1}
    assert {data for *_, data in degrees_of(replace(RUN, global_batch=2))} == {1, 2}
    assert {experts for _, _, experts, *_ in degrees_of(replace(RUN, shape=DENSE, experts=None))} == {None}


def test_programs():
    """Tests that torchtitan takes the same degrees, and that DeepSpeed, which lacks most of them, is refused."""
    assert degrees_of(replace(RUN, program="torchtitan")) == degrees_of(RUN)
    with pytest.raises(ValueError, match="deepspeed: other degrees are looked for with megatron and torchtitan only"):
        degrees_of(replace(RUN, program="deepspeed"))


def test_experts_are_whole():
    """Tests that experts that the run cuts are whole at other degrees, and that its own stages and flags are gone."""
    cut = replace(MIXED, mixture=ExpertShape(experts=16, chosen=4, inner=128))
    assert replace(RUN, shape=cut, expert_tensor=2).whole_shape == MIXED
    first, *_ = other_degrees(replace(RUN, shape=cut, expert_tensor=2, experts=4), node=8)
    assert first.shape == MIXED
    assert (first.stages, first.recompute, first.cut_by, first.expert_tensor) == ((), None, (), 1)
