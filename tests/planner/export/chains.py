"""Small chains of layers, and plans for them written as text."""

from planner.actions import parse_action
from planner.plan import Plan, Stage
from planner.problem import Options, Problem
from profiles.cluster import Cluster, Device, Link
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile

MICROSECOND = 1_000


def make_chain(kinds: str, *, num_devices: int, num_microbatches: int, options: Options | None = None) -> Problem:
    """A chain with one layer per letter: `w` with weights, `f` with frozen weights, `n` without weights.

    F, I and W take a microsecond each, a transfer takes 100 ns.
    """
    layers = tuple(_make_layer(f"l{number}", kind) for number, kind in enumerate(kinds))
    edges = tuple(Edge(producer=f"l{i}", consumer=f"l{i + 1}", bytes=100) for i in range(len(kinds) - 1))
    devices = tuple(Device(name=f"d{i}", type="gpu", memory_bytes=10**6) for i in range(num_devices))
    links = tuple(Link(a=f"d{i}", b=f"d{j}", bandwidth_bytes_per_s=10**9) for i in range(num_devices) for j in range(i))
    return Problem(
        profile=ModelProfile(name="chain", layers=layers, edges=edges),
        cluster=Cluster(name="cluster", devices=devices, links=links),
        num_microbatches=num_microbatches,
        options=options or Options(),
    )


def _make_layer(name: str, kind: str) -> Layer:
    weight_grad_ns = MICROSECOND if kind == "w" else 0
    cost = LayerCost(
        device_type="gpu", forward_ns=MICROSECOND, input_grad_ns=MICROSECOND, weight_grad_ns=weight_grad_ns
    )
    parameter_bytes = 0 if kind == "n" else 40
    return Layer(
        name=name,
        costs=(cost,),
        parameter_bytes=parameter_bytes,
        state_bytes=3 * parameter_bytes,
        stash_bytes=10,
        frozen=kind == "f",
    )


def make_plan(problem: Problem, drawing: str, *, stages: str) -> Plan:
    """`stages`: per stage its layers and its device, as `0,1@d0 2,3@d1`; `drawing`: a line `d0: 0F0 0B0` per device."""
    made = []
    for text in stages.split():
        layers, _, device = text.partition("@")
        made.append(Stage(layers=tuple(f"l{number}" for number in layers.split(",")), replicas=((device,),)))
    rows = (line.partition(":") for line in drawing.strip().splitlines())
    schedule = {device.strip(): tuple(map(parse_action, word.split())) for device, _, word in rows}
    return Plan(problem=problem.reference(), stages=tuple(made), schedule=schedule)
