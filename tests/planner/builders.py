"""Small problems and plans in few words, and played plans as text pictures."""

from dataclasses import replace
from itertools import pairwise
from typing import Literal

from planner.actions import parse_action
from planner.plan import Evidence, Plan, Share, Stage
from planner.problem import Options, Problem
from planner.simulation.simulate import Timeline, simulate
from profiles.cluster import Cluster, Device, Link
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile

GIGABYTE_PER_S = 10**9
"""The bandwidth at which a byte takes a nanosecond."""


def make_layer(name: str, times: tuple[int, ...] = (1, 1, 1), **fields: object) -> Layer:
    """A layer with times F, I, W (and B) on type `gpu`; it has weights if it has a W."""
    cost = LayerCost(
        device_type="gpu",
        forward_ns=times[0],
        input_grad_ns=times[1],
        weight_grad_ns=times[2],
        backward_ns=times[3] if len(times) > 3 else None,
    )
    return Layer(**({"name": name, "costs": (cost,), "parameter_bytes": 1 if times[2] else 0} | fields))


def with_times(layer: Layer, factor: int) -> Layer:
    """The layer with every time `factor` times as long."""
    costs = (
        replace(
            cost,
            forward_ns=factor * cost.forward_ns,
            input_grad_ns=factor * cost.input_grad_ns,
            weight_grad_ns=factor * cost.weight_grad_ns,
            backward_ns=None if cost.backward_ns is None else factor * cost.backward_ns,
            recompute_ns=factor * cost.recompute_ns,
            optimizer_ns=factor * cost.optimizer_ns,
        )
        for cost in layer.costs
    )
    return replace(layer, costs=tuple(costs))


def make_link(ends: str, *, bandwidth: int = GIGABYTE_PER_S, latency: int = 0, duplex: bool = True) -> Link:
    """A link between the two devices, hosts or switches in `ends`."""
    a, b = ends.split()
    return Link(a=a, b=b, bandwidth_bytes_per_s=bandwidth, latency_ns=latency, duplex=duplex)


def make_edge(ends: str, *, num_bytes: int = 0, gradient_bytes: int | None = None) -> Edge:
    """An edge between the two layers in `ends`."""
    producer, consumer = ends.split()
    return Edge(producer=producer, consumer=consumer, bytes=num_bytes, gradient_bytes=gradient_bytes)


def make_problem(
    layers: list[Layer],
    links: list[Link],
    *,
    num_microbatches: int = 1,
    edges: list[Edge] | None = None,
    edge_bytes: int = 0,
    memory_bytes: int = 1000,
    more_devices: str = "",
    overlap: bool = True,
    switches: tuple[str, ...] = (),
    optimizer_ns: int = 0,
    microbatch_size: int | None = None,
    scaling: Literal["linear", "measured"] | None = None,
    **options: object,
) -> Problem:
    """A problem on devices of type `gpu` named by the ends of `links`; without `edges`, a chain."""
    names = dict.fromkeys([end for link in links for end in (link.a, link.b)] + more_devices.split())
    chain = [make_edge(f"{a.name} {b.name}", num_bytes=edge_bytes) for a, b in pairwise(layers)]
    devices = [Device(name=n, type="gpu", memory_bytes=memory_bytes) for n in sorted(names) if n not in switches]
    return Problem(
        profile=ModelProfile(
            name="profile",
            layers=tuple(layers),
            edges=tuple(chain if edges is None else edges),
            optimizer_ns=optimizer_ns,
            microbatch_size=microbatch_size,
            scaling=scaling,
        ),
        cluster=Cluster(name="cluster", devices=tuple(devices), links=tuple(links), overlap=overlap, switches=switches),
        num_microbatches=num_microbatches,
        options=Options(**options),
    )


def make_stage(text: str, *, recompute: bool = False) -> Stage:
    """`l0 l1 @ a+b | c+d`: layers, and a replica on a and b together, another on c and d."""
    layers, replicas = text.split("@")
    groups = tuple(tuple(group.strip().split("+")) for group in replicas.split("|"))
    return Stage(layers=tuple(layers.split()), replicas=groups, recompute=recompute)


def make_split(text: str, *, input_grad: str = "", weight_grad: str = "", recompute: bool = False) -> Stage:
    """A stage as `make_stage` reads it, with shares as in `a 1/2, b 1/2` of its I and its W."""
    shares = {"input_grad_replicas": make_shares(input_grad), "weight_grad_replicas": make_shares(weight_grad)}
    return replace(make_stage(text, recompute=recompute), **shares)


def make_shares(text: str) -> tuple[Share, ...]:
    """`a 1/3, b 2/3`: devices, each with its share; without a number, all."""
    shares = []
    for item in filter(None, text.split(", ")):
        group, _, number = item.partition(" ")
        part = [int(each) for each in number.split("/")] if number else [1, 1]
        shares.append(Share(group=tuple(group.split("+")), numerator=part[0], denominator=part[1]))
    return tuple(shares)


def make_plan(problem: Problem, stages: list[str | Stage], words: dict[str, str]) -> Plan:
    """A plan whose words are given as text: `{"a": "0F0 0B0"}`."""
    return Plan(
        problem=problem.reference(),
        stages=tuple(make_stage(stage) if isinstance(stage, str) else stage for stage in stages),
        schedule={device: tuple(parse_action(text) for text in word.split()) for device, word in words.items()},
    )


def with_evidence(problem: Problem, plan: Plan, **fields: object) -> Plan:
    """The plan with true evidence, except for `fields`."""
    timeline = simulate(problem, plan)
    evidence = Evidence(
        makespan_ns=timeline.makespan_ns,
        span_ns=timeline.span_ns,
        bubble=timeline.bubble,
        peak_bytes=dict(timeline.peak_bytes),
        lower_bound_ns=0,
        bound_kind="none",
        certificate={},
        gap=1.0 if timeline.objective_ns(problem.options.objective) else 0.0,
        schedule_bound_ns=None,
        solver_bound_ns=None,
        solution_status="feasible",
        stopped_by="time",
        source="test",
        baselines=(),
        interpolated_costs=(),
        planner_version="0",
        solver_versions={},
        seed=0,
        verdict={"passed": True, "violations": []},
    )
    return replace(plan, evidence=replace(evidence, **fields))


def draw(problem: Problem, timeline: Timeline) -> str:
    """A row per device and per link used, four columns per nanosecond, dots where nothing happens.

    Transfers are written as sending stage, f or b, microbatch; row `a>b` is a direction, `a-b` a link not duplex.
    """
    rows = {device: [(t.start_ns, t.end_ns, str(t.action)) for t in word] for device, word in timeline.actions.items()}
    for sent in timeline.transfers:
        for resource in sent.links if sent.end_ns > sent.start_ns else ():
            label = f"{sent.from_stage}{sent.direction[0]}{sent.microbatch}"
            rows.setdefault(_resource_name(problem, resource), []).append((sent.start_ns, sent.end_ns, label))
    margin = max(map(len, rows))
    return "\n".join(f"{name:<{margin}} |{_row(spans)}".rstrip() for name, spans in rows.items())


def _resource_name(problem: Problem, resource: int) -> str:
    link = problem.cluster.links[resource // 2]
    if not link.duplex:
        return f"{link.a}-{link.b}"
    return f"{link.b}>{link.a}" if resource % 2 else f"{link.a}>{link.b}"


def _row(spans: list[tuple[int, int, str]]) -> str:
    text, at = "", 0
    for start, end, label in sorted(spans):
        text += ".   " * (start - at)
        text += (label + "-" * 4 * (end - start))[: 4 * (end - start) - 1] + " " if end > start else ""
        at = end
    return text


def picture(text: str) -> str:
    """An indented drawing without its indentation and surrounding lines."""
    lines = [line.strip() for line in text.strip().splitlines()]
    return "\n".join(lines)
