"""Graphs of F, I and W operations like those of ResNet-50, DCGAN, Inception and an LSTM, with modelled times by cores.

Times are an estimate, not measured: launching, a part that does not scale, a part that does, and a cost per further
core for bringing threads together; a core does `MACS_PER_NS` multiply-accumulates in a nanosecond.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.convnets import NETWORKS, Shape, convolution, linear

MACS_PER_NS = 32
LAUNCH_NS, JOIN_NS = 4_000, 8_000
PARALLEL = {"conv": 0.98, "pointwise": 0.95, "linear": 0.9, "cell": 0.85}
"""The part of the work that scales, by kind."""
LINEAR = ("project", "decide")
"""Layers of a chain that are no convolutions."""
WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A layer of a graph."""

    name: str
    kind: str
    macs: int
    """Multiply-accumulates of its F on the whole minibatch."""
    inputs: tuple[int, ...] = ()
    """Numbers of the layers whose output it reads."""
    outputs: int = 0
    """Values that it writes for the whole minibatch."""
    weights: int = 0
    """Values that are trained."""


def time_ns(kind: str, macs: int, *, width: int) -> int:
    """The modelled time of an operation."""
    work, parallel = macs / MACS_PER_NS, PARALLEL[kind]
    return round(LAUNCH_NS + work * (1 - parallel + parallel / width) + JOIN_NS * (width - 1))


def chain_like(shapes: Sequence[Shape], *, batch: int) -> list[Node]:
    """Layers one after the other; what has one pixel is linear."""
    return [
        _node(shape, kind="linear" if shape.name in LINEAR else "conv", batch=batch, inputs=(n - 1,) if n else ())
        for n, shape in enumerate(shapes)
    ]


def resnet_like(batch: int = 1) -> list[Node]:
    """The convolutions of ResNet-50; a projection reads what its block reads."""
    nodes: list[Node] = []
    entry = 0
    for shape in NETWORKS["ResNet-50"]:
        if shape.name.endswith(".a"):
            entry = len(nodes) - 1
        is_projection = shape.name.endswith("projection")
        inputs = (entry,) if is_projection else (len(nodes) - 1,) if nodes else ()
        if nodes and nodes[-1].name.endswith("projection"):
            inputs = (len(nodes) - 2, len(nodes) - 1)
        kind = "linear" if shape.name == "fc" else "conv" if shape.name.endswith((".b", "stem")) else "pointwise"
        nodes.append(_node(shape, kind, batch=batch, inputs=inputs))
    return nodes


def _node(shape: Shape, kind: str, *, batch: int, inputs: tuple[int, ...]) -> Node:
    return Node(
        name=shape.name,
        kind=kind,
        macs=batch * shape.macs,
        inputs=inputs,
        outputs=batch * shape.outputs,
        weights=shape.weights,
    )


def dcgan_like(batch: int = 2) -> list[Node]:
    """A generator of four transposed convolutions and a discriminator of four convolutions, 64 x 64 images."""
    shapes = [linear("project", 100, 1024 * 16)]
    for number, (c_in, c_out, size) in enumerate(((1024, 512, 8), (512, 256, 16), (256, 128, 32), (128, 3, 64))):
        whole = convolution(f"up{number + 1}", (c_in, c_out), kernel=5, size=size)
        shapes.append(replace(whole, macs=whole.macs // 4))
    for number, (c_in, c_out, size) in enumerate(((3, 128, 32), (128, 256, 16), (256, 512, 8), (512, 1024, 4))):
        shapes.append(convolution(f"down{number + 1}", (c_in, c_out), kernel=5, size=size))
    return chain_like([*shapes, linear("decide", 1024 * 16, 1)], batch=batch)


def inception_like(batch: int = 1, blocks: int = 9) -> list[Node]:
    """Blocks of four branches (1 x 1; 1 x 1 and 3 x 3; 1 x 1 and 5 x 5; 1 x 1), as in GoogLeNet."""
    nodes = [_node(convolution("stem", (3, 192), kernel=7, size=56), "conv", batch=batch, inputs=())]
    ends: tuple[int, ...] = (0,)
    channels = 192
    for block in range(blocks):
        size, width = (28 if block < 2 else 14 if block < 7 else 7), 32 * (2 + block // 2)
        plans = (((1, width),), ((1, width), (3, 2 * width)), ((1, width // 4), (5, width // 2)), ((1, width // 2),))
        last = []
        for branch, plan in enumerate(plans):
            inputs, c_in = ends, channels
            for kernel, c_out in plan:
                shape = convolution(f"block{block + 1}.{branch + 1}.{kernel}", (c_in, c_out), kernel=kernel, size=size)
                nodes.append(_node(shape, "pointwise" if kernel == 1 else "conv", batch=batch, inputs=inputs))
                inputs, c_in = (len(nodes) - 1,), c_out
            last.append(len(nodes) - 1)
        ends, channels = tuple(last), 4 * width
    return nodes


def lstm_like(batch: int = 20, steps: int = 12, layers: int = 2, hidden: int = 200) -> list[Node]:
    """Cells in a grid of layers and time steps; a cell reads the one below and the one before."""
    nodes = []
    for step in range(steps):
        for layer in range(layers):
            before = [(step - 1) * layers + layer] if step else []
            below = [step * layers + layer - 1] if layer else []
            shape = replace(linear(f"cell{layer + 1}.{step + 1}", 2 * hidden, 4 * hidden), outputs=hidden)
            nodes.append(_node(shape, "cell", batch=batch, inputs=tuple(before + below)))
    return nodes


GRAPHS = {"ResNet-50": resnet_like, "DCGAN": dcgan_like, "Inception": inception_like, "LSTM": lstm_like}
"""Graphs like these networks, by name."""
