"""A module cut into layers: a sequential one at its children, any other where torch.fx sees a child being called."""

from collections.abc import Mapping
from typing import Any

from torch import fx, nn

from profiles.measure.model import BATCH, Tensors

Cut = tuple[dict[str, nn.Module], dict[str, tuple[str, ...]]]
"""The layers by name in topological order, and what each takes."""


def cut_module(module: nn.Module, examples: Tensors, *, source: str) -> Cut:
    """Raises ValueError that says why the module cannot be traced."""
    if type(module).forward is nn.Sequential.forward:
        layers = dict(module.named_children())
        return layers, {}
    try:
        tracer = _ChildTracer()
        graph = tracer.trace(module)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"{source!r}: the module is not sequential and torch.fx cannot trace it ({reason}); give a "
            "planner.execute.training.Training whose `layers` name its parts"
        ) from error
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    if len(placeholders) != len(examples):
        raise ValueError(
            f"{source!r}: forward takes {len(placeholders)} inputs, but {len(examples)} examples are given"
        )
    return _cut_graph(graph, fx.GraphModule(tracer.root, graph))


class _ChildTracer(fx.Tracer):
    """Looks into lists and sequences of children, but not into the children themselves."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:  # noqa: ARG002
        return not isinstance(m, nn.Sequential | nn.ModuleList)


def _cut_graph(graph: fx.Graph, whole: fx.GraphModule) -> Cut:
    """A layer is a called child and the operations after it, up to the next one."""
    segments: dict[str, list[fx.Node]] = {}
    name = "start"
    for node in graph.nodes:
        if node.op == "call_module":
            name = _unused(str(node.target), segments)
        if node.op not in ("placeholder", "output"):
            segments.setdefault(name, []).append(node)
    return _GraphCutter(graph, whole, segments=segments).cut()


def _unused(name: str, taken: Mapping[str, Any]) -> str:
    number, candidate = 2, name
    while candidate in taken:
        candidate, number = f"{name}.{number}", number + 1
    return candidate


class _GraphCutter:
    """Each segment becomes a graph of its own; values that later segments want become outputs."""

    def __init__(self, graph: fx.Graph, whole: fx.GraphModule, *, segments: dict[str, list[fx.Node]]) -> None:
        self.graph, self.whole, self.segments = graph, whole, segments
        self.home = {node: name for name, nodes in segments.items() for node in nodes}
        self.placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        self.home |= dict.fromkeys(self.placeholders, BATCH)
        self.gives: dict[str, list[fx.Node]] = {name: self._given(name) for name in segments}
        self.gives[BATCH] = self.placeholders

    def _given(self, name: str) -> list[fx.Node]:
        return [
            node
            for node in self.segments[name]
            if any(user.op == "output" or self.home[user] != name for user in node.users)
        ]

    def cut(self) -> Cut:
        layers: dict[str, nn.Module] = {}
        takes: dict[str, tuple[str, ...]] = {}
        for name, nodes in self.segments.items():
            producers = {self.home[given] for node in nodes for given in node.all_input_nodes} - {name}
            order = [BATCH, *self.segments]
            takes[name] = tuple(sorted(producers, key=order.index)) or (BATCH,)
            layers[name] = self._layer(name, takes[name])
        return layers, takes

    def _layer(self, name: str, producers: tuple[str, ...]) -> nn.Module:
        graph, values = fx.Graph(), {}
        for producer in producers:
            for node in self.gives[producer]:
                values[node] = graph.placeholder(node.name)
        for node in self.segments[name]:
            values[node] = graph.node_copy(node, values.__getitem__)
        outputs = [values[node] for node in self.gives[name]]
        graph.output(outputs[0] if len(outputs) == 1 else tuple(outputs))
        return fx.GraphModule(self.whole, graph)
