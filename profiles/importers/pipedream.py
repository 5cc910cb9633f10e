"""PipeDream's graph.txt: one line of measured figures per node, then one indented line per edge."""

import re
from collections.abc import Sequence
from dataclasses import replace
from math import isfinite
from pathlib import PurePath

from profiles.assumptions import Assumptions
from profiles.documents.refusal import blaming, refusal, render_value
from profiles.importers.neutral import REFERENCE, NeutralLayer, NeutralMeta, NeutralWorkload, convert
from profiles.workload import Workload

_MAX_DESCRIPTION_LENGTH = 60
"""Characters of a node's description that go into the name of its layer."""

BYTES_PER_VALUE = 4
"""PipeDream profiles in fp32."""

_LINEAR = re.compile(r":Linear\(in_features=\d+, out_features=([1-9]\d{0,8})\b")

Edges = dict[tuple[str, str], int]
"""The edges, each with the number of the line that first states it."""


def is_pipedream(text: str) -> bool:
    """Whether the first line that is not blank states a node and its figures."""
    first = text.lstrip().partition("\n")[0]
    return not first.startswith(("{", "[")) and " -- forward_compute_time=" in first


def import_pipedream(text: str, *, source: str, device_type: str = REFERENCE) -> Workload:
    """The profile of a graph.txt measured on `device_type`; raises ValueError that names the source and the line."""
    nodes, edges = _read_lines(text, source=source)
    ignored = _ignored_nodes(nodes, edges)
    kept = sorted(nodes.keys() - ignored, key=lambda node: (len(node), node))
    position = {node: index for index, node in enumerate(kept)}
    name = _model_name(source)
    samples = _find_samples([nodes[node] for node in kept])
    told = "" if samples is None else f"; {samples} samples, as the output of its last Linear is for one class each"
    with blaming(source):
        workload = convert(
            NeutralWorkload(
                name=name,
                source=f"PipeDream graph.txt of {name}, without its Input nodes (data loading) and sinks __getitem__"
                + told,
                meta=NeutralMeta(microbatch_size=samples),
                layers=tuple(nodes[node] for node in kept),
                edges=tuple(sorted((position[a], position[b]) for a, b in edges if not {a, b} & ignored)),
            ),
            device_type=device_type,
        )
    assumptions = Assumptions(precision="fp32", gradients="fp32")
    return replace(workload, profile=replace(workload.profile, assumptions=assumptions))


def _find_samples(layers: Sequence[NeutralLayer]) -> int | None:
    """Samples of the profiled minibatch, which the file does not state; None where its figures do not give them away.

    In an image classifier, which begins with convolutions, the last Linear gives a value of 4 bytes per class and
    sample. In other models there may be a token beside every sample.
    """
    linear = [found for layer in layers if (found := _LINEAR.search(layer.name))]
    if not linear or not any("Conv2d(" in layer.name for layer in layers):
        return None
    last = next(layer for layer in reversed(layers) if _LINEAR.search(layer.name))
    samples, rest = divmod(last.activation_bytes, BYTES_PER_VALUE * int(linear[-1][1]))
    return samples if samples and not rest else None


def _model_name(source: str) -> str:
    """The file's name, or its folder's where the file is called graph, as PipeDream calls them all."""
    path = PurePath(source)
    return (path.parent.name if path.stem == "graph" else path.stem) or path.stem or "graph"


def _read_lines(text: str, *, source: str) -> tuple[dict[str, NeutralLayer], Edges]:
    nodes: dict[str, NeutralLayer] = {}
    edges: Edges = {}
    for number, line in enumerate(text.split("\n"), start=1):
        parts = line.strip().split(" -- ")
        with blaming(f"{source}: line {number}"):
            if line.startswith("\t") and len(parts) == 2:
                edges.setdefault((parts[0], parts[1]), number)
            elif len(parts) >= 3:
                _add_node(nodes, parts)
            elif line.strip():
                raise ValueError(f"{render_value(line)} is neither a node nor an edge; correct or remove the line")
    for (producer, consumer), number in edges.items():
        for end in (producer, consumer):
            if end not in nodes:
                problem = f"no node is called {render_value(end)}; add it or correct the name"
                raise refusal(f"{source}: line {number}", problem)
    return nodes, edges


def _add_node(nodes: dict[str, NeutralLayer], parts: list[str]) -> None:
    """Read `[node, description, figures]`; a description may hold the separator, and a stage may follow the figures."""
    if parts[-1].startswith("stage_id="):
        parts = parts[:-1]
    node, description = parts[0], " -- ".join(parts[1:-1])
    if node in nodes:
        raise ValueError(f"{render_value(node)} occurs twice; give every node its own name")
    figures = dict(item.partition("=")[::2] for item in parts[-1].split(", "))
    nodes[node] = NeutralLayer(
        name=f"{node}:{description[:_MAX_DESCRIPTION_LENGTH]}",
        forward_ms=_figure(figures, "forward_compute_time"),
        backward_ms=_figure(figures, "backward_compute_time"),
        param_bytes=round(_figure(figures, "parameter_size")),
        activation_bytes=round(_figure(figures, "activation_size")),
    )


def _figure(figures: dict[str, str], name: str) -> float:
    """A number, or the sum of a list such as [6291456.0; 131072.0]."""
    if name not in figures:
        raise ValueError(f"{name} is missing; add {name}=NUMBER")
    try:
        value = sum(float(part) for part in figures[name].strip("[]").split("; ") if part)
    except ValueError:
        value = -1.0
    if not isfinite(value) or value < 0:
        raise ValueError(f"{name} = {render_value(figures[name])} is not a number; give a finite number of at least 0")
    return value


def _ignored_nodes(nodes: dict[str, NeutralLayer], edges: Edges) -> set[str]:
    """Sources called Input (their time is data loading) and sinks called __getitem__, as PipeDream's optimizer does."""
    producers, consumers = {a for a, _ in edges}, {b for _, b in edges}
    sources = {node for node in nodes.keys() - consumers if nodes[node].name.startswith(f"{node}:Input")}
    sinks = {node for node in nodes.keys() - producers if nodes[node].name.startswith(f"{node}:__getitem__")}
    return sources | sinks
