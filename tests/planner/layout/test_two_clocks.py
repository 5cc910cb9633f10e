"""A host that asks and a card that works: tests of planner/layout/two_clocks.py."""

from dataclasses import replace

from planner.plan import Stage
from planner.problem import Problem
from profiles.cluster import Cluster, Device
from profiles.model_profile import Layer, LayerCost, ModelProfile, RecomputeBytes, RecomputeTime
from tests.planner.builders import make_link, make_plan, make_problem
from tests.planner.judge.test_host_pace import asks, ends_of


def timed_layer(name: str, card: tuple[int, int, int], host: tuple[int, int, int], **fields: object) -> Layer:
    """A layer with F, I and W of the card, and of the host."""
    cost = LayerCost(
        device_type="gpu",
        forward_ns=card[0],
        input_grad_ns=card[1],
        weight_grad_ns=card[2],
        host=asks(**dict(zip("FIW", host, strict=True))),
    )
    return Layer(**({"name": name, "costs": (cost,), "parameter_bytes": 1 if card[2] else 0} | fields))


def test_recomputation_of_any_kind_is_asked_for():
    """Tests that full and other kinds of recomputation have host times of their own."""
    cost = LayerCost(
        device_type="gpu", forward_ns=1, input_grad_ns=1, weight_grad_ns=0, recompute_ns=1,
        recompute_kinds=(RecomputeTime(kind="part", recompute_ns=1),),
        host=asks(F=0, I=0, full=40, part=20),
    )  # fmt: skip
    layer = Layer(
        name="x", costs=(cost,), stash_bytes=1, recompute_kinds=(RecomputeBytes(kind="part", checkpoint_bytes=0),)
    )
    problem = make_problem([layer], [], more_devices="a", recompute=True, recompute_layers=True)
    found = []
    for recompute in (False, True, (("x", "part"),)):
        plan = make_plan(problem, [Stage(layers=("x",), replicas=(("a",),), recompute=recompute)], {"a": "0F0 0I0"})
        found.append(ends_of(problem, plan)["0I0"])
    assert found == [2, 41, 21]


def test_device_of_another_type_needs_no_host():
    """Tests that a processor without host times runs beside cards that have them."""
    card = timed_layer("x", (1, 1, 0), (5, 5, 0))
    cpu = LayerCost(device_type="cpu", forward_ns=3, input_grad_ns=3, weight_grad_ns=0)
    layers = (replace(card, costs=(*card.costs, cpu)),)
    devices = (Device(name="c", type="cpu", memory_bytes=9), Device(name="g", type="gpu", memory_bytes=9))
    problem = Problem(
        profile=ModelProfile(name="mixed", layers=layers, edges=()),
        cluster=Cluster(name="two", devices=devices, links=(make_link("c g"),)),
        num_microbatches=1,
    )
    for device, end in (("c", 6), ("g", 10)):
        assert ends_of(problem, make_plan(problem, [f"x @ {device}"], {device: "0F0 0I0"}))["0I0"] == end
