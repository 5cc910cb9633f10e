"""What enters and leaves the stages."""

import pytest

from planner.execute.table.wiring import BATCH, make_wirings


def test_a_chain_hands_on_one_value():
    """Tests that each stage of a chain takes its predecessor's last output and nothing else."""
    first, second = make_wirings([["a", "b"], ["c"]], ["a", "b", "c"], inputs={})
    assert (first.arrives, first.leaves) == ((BATCH,), ("b",))
    assert (second.arrives, second.leaves) == (("b",), ("c",))
    assert first.takes == {"a": (BATCH,), "b": ("a",)}


def test_a_tensor_goes_straight_to_every_stage_that_takes_it():
    """Tests that a tensor, or the batch itself, arrives where it is taken, and not in the stages between."""
    wirings = make_wirings(
        [["a"], ["b"], ["c"], ["d"]], ["a", "b", "c", "d"], inputs={"d": ("c", "a"), "c": ("b", BATCH)}
    )
    assert [wiring.arrives for wiring in wirings] == [(BATCH,), ("a",), (BATCH, "b"), ("a", "c")]
    assert [wiring.leaves for wiring in wirings] == [("a",), ("b",), ("c",), ("d",)]


def test_layers_run_in_the_models_order():
    """Tests that a stage runs its layers in topological order, however the plan lists them."""
    (wiring,) = make_wirings([["b", "a"]], ["a", "b"], inputs={})
    assert wiring.layers == ("a", "b")


@pytest.mark.parametrize(
    ("stages", "inputs", "message"),
    [
        ([["a", "b"]], {}, "another model: it has 2 layers and the model 3; 1 of its layers are not in the plan"),
        ([["a", "b", "c", "x"]], {}, "1 layers of the plan are not in it .first: 'x'."),
        ([["a", "b", "c", "c"]], {}, "a layer occurs twice"),
        ([["b"], ["a", "c"]], {}, "layer 'b' of stage 0 takes 'a' from stage 1"),
        ([["a", "b", "c"]], {"b": ("z",)}, "layer 'b' takes 'z', which is not an earlier layer"),
        ([["a", "b", "c"]], {"z": ("a",)}, "`inputs` names 'z', which is not a layer"),
        ([["a", "b", "c"]], {"c": ("a",)}, "the output of layer 'b' is unused"),
    ],
)
def test_what_does_not_fit_is_refused(stages: list[list[str]], inputs: dict[str, tuple[str, ...]], message: str):
    """Tests that a plan for other layers, and wiring that cannot be, are refused by name."""
    with pytest.raises(ValueError, match=message):
        make_wirings(stages, ["a", "b", "c"], inputs=inputs)
