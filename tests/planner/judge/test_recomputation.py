"""Which layers recompute, and by which kind: tests of planner/judge/recomputation.py."""

from dataclasses import replace

from planner.judge.recomputation import FULL, NONE, extra_ns, kept_bytes, kind_in, recompute_kinds
from profiles.model_profile import LayerCost
from tests.planner.builders import make_layer, make_stage

COST = LayerCost(device_type="gpu", forward_ns=1, input_grad_ns=1, weight_grad_ns=1, recompute_ns=7)


def test_a_stage_or_some_of_its_layers_recompute():
    """Tests that true and false hold for all layers of a stage, and a map for those that it names."""
    x, y = make_layer("x"), make_layer("y")
    stage = make_stage("x y @ a")
    assert [kind_in(stage, layer) for layer in (x, y)] == [NONE, NONE]
    assert [kind_in(replace(stage, recompute=True), layer) for layer in (x, y)] == [FULL, FULL]
    some = replace(stage, recompute=(("y", "selective"),))
    assert [kind_in(some, layer) for layer in (x, y)] == [NONE, "selective"]


def test_the_full_kind_takes_and_leaves_what_the_layer_states():
    """Tests that all layers have the full kind, that it leaves the checkpoint, and that none leaves the stash."""
    layer = make_layer("x", stash_bytes=9, checkpoint_bytes=2)
    assert recompute_kinds(layer) == [FULL]
    assert (extra_ns(COST, NONE), extra_ns(COST, FULL)) == (0, 7)
    assert (kept_bytes(layer, NONE), kept_bytes(layer, FULL)) == (9, 2)
