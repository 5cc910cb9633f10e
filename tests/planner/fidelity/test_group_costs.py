"""Costs of layers on groups of devices, from the times of a run."""

from dataclasses import replace

from planner.fidelity.group_costs import make_group_plan, with_group_costs
from profiles.model_profile import ModelProfile
from tests.planner.export import chains


def make_profile() -> ModelProfile:
    """Two layers with weights and one without between them, measured at two sizes on one device."""
    profile = chains.make_chain("wnw", num_devices=2, num_microbatches=2).profile
    layers = tuple(
        replace(
            layer,
            costs=(replace(layer.costs[0], recompute_ns=5), replace(layer.costs[0], microbatch_size=1)),
            optimizer_bytes=layer.parameter_bytes if layer.parameter_bytes else None,
            weight_stash_bytes=4 if layer.parameter_bytes else 0,
        )
        for layer in profile.layers
    )
    return replace(profile, layers=layers, microbatch_size=2)


def test_every_layer_is_a_stage_and_every_other_backward_is_split():
    """Tests that both devices of a group list all actions of all layers alike, and layers without weights no W."""
    plan = make_group_plan(make_profile(), 2, num_microbatches=2, is_fine=True)
    assert [stage.replicas for stage in plan.stages] == [(("d0", "d1"),)] * 3
    assert " ".join(map(str, plan.schedule["d0"])) == "0F0 1F0 2F0 2I0 2W0 1I0 0I0 0W0 0F1 1F1 2F1 2B1 1I1 0B1"
    assert plan.schedule["d1"] == plan.schedule["d0"]
    whole = make_group_plan(make_profile(), 2, num_microbatches=2, is_fine=False)
    assert " ".join(map(str, whole.schedule["d1"])) == "0F0 0I0 0W0 0F1 0B1"


def test_times_are_scaled_to_what_all_layers_take_together():
    """Tests that layers' medians add up to the stage's, that B is at most I + W, and that bytes follow the weights."""
    fine = {"0F": [10, 30, 20], "0I": [20], "0W": [8], "0B": [40], "1F": [20], "1I": [20], "2F": [60], "2I": [40]}
    fine |= {"2W": [12], "2B": [40]}
    whole = {"0F": [50], "0I": [80], "0W": [20], "0B": [40]}
    profile = with_group_costs(
        make_profile(),
        2,
        device_type="gpu",
        fine={2: fine, 1: fine},
        whole={2: whole, 1: {}},
        held={"l0": (10, 40), "l1": (0, 0), "l2": (40, 40)},
    )
    found = {
        (layer.name, cost.microbatch_size): cost for layer in profile.layers for cost in layer.costs if cost.width == 2
    }
    assert [found[name, None].forward_ns for name in ("l0", "l1", "l2")] == [10, 10, 30]
    first, last = found["l0", None], found["l2", None]
    assert (first.input_grad_ns, first.weight_grad_ns, first.backward_ns, first.recompute_ns) == (20, 8, 20, 10)
    assert (last.input_grad_ns, last.weight_grad_ns, last.backward_ns) == (40, 12, 20)
    assert (found["l1", None].input_grad_ns, found["l1", None].weight_grad_ns) == (20, 0)
    assert (found["l0", 1].forward_ns, found["l0", 1].backward_ns) == (20, None)
    wider = {layer.name: layer.wider[0] for layer in profile.layers}
    assert (wider["l0"].parameter_bytes, wider["l0"].state_bytes, wider["l0"].optimizer_bytes) == (10, 30, 10)
    assert (wider["l2"].parameter_bytes, wider["l2"].state_bytes, wider["l2"].stash_bytes) == (40, 120, 10)
    assert wider["l1"].state_bytes == 0
    again = with_group_costs(
        profile, 2, device_type="gpu", fine={2: fine}, whole={2: whole}, held=dict.fromkeys(("l0", "l1", "l2"), (1, 1))
    )
    assert [len(layer.wider) for layer in again.layers] == [1, 1, 1]
    assert [len(layer.costs) for layer in again.layers] == [3, 3, 3]
