"""Layer shapes of well-known convolutional networks: multiply-accumulates, weights and outputs per sample."""

from dataclasses import dataclass
from itertools import pairwise

from planner.problem import Options, Problem
from profiles.cluster import Cluster, Device, Link
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile

MICROBATCHES, SAMPLES, MACS_PER_NS, BANDWIDTH = 8, 4, 7_000, 12_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A layer with weights (and what follows it: normalisation, ReLU, pooling)."""

    name: str
    macs: int
    """Multiply-accumulates of its forward pass."""
    weights: int
    inputs: int
    """Values it reads."""
    outputs: int
    """Values it writes."""


def convolution(name: str, channels: tuple[int, int], *, kernel: int, size: int, stride: int = 1) -> Shape:
    """A square convolution with `size` x `size` outputs."""
    c_in, c_out = channels
    weights = kernel * kernel * c_in * c_out
    return Shape(
        name=name,
        macs=weights * size * size,
        weights=weights,
        inputs=c_in * (size * stride) ** 2,
        outputs=c_out * size * size,
    )


def linear(name: str, inner: int, outer: int) -> Shape:
    """A fully connected layer."""
    return Shape(name=name, macs=inner * outer, weights=inner * outer, inputs=inner, outputs=outer)


def vgg(widths: tuple[tuple[int, ...], ...]) -> list[Shape]:
    """Blocks of 3 x 3 convolutions, halved in between, and three fully connected layers; 224 x 224 inputs."""
    shapes, channels, size = [], 3, 224
    for block in widths:
        for width in block:
            name = f"conv{len(shapes) + 1}"
            shapes.append(convolution(name, (channels, width), kernel=3, size=size))
            channels = width
        size //= 2
    return [*shapes, linear("fc1", 512 * 49, 4096), linear("fc2", 4096, 4096), linear("fc3", 4096, 1000)]


def resnet(blocks: tuple[int, int, int, int]) -> list[Shape]:
    """Bottlenecks with the stride in the 3 x 3 convolution, the projection last in its block; 224 x 224 inputs."""
    shapes, channels, size = [convolution("stem", (3, 64), kernel=7, size=112, stride=2)], 64, 56
    for stage, count in enumerate(blocks):
        width = 64 << stage
        for block in range(count):
            stride = 2 if stage and not block else 1
            name = f"stage{stage + 1}.{block + 1}"
            shapes.append(convolution(f"{name}.a", (channels, width), kernel=1, size=size))
            size //= stride
            shapes.append(convolution(f"{name}.b", (width, width), kernel=3, size=size, stride=stride))
            shapes.append(convolution(f"{name}.c", (width, 4 * width), kernel=1, size=size))
            if not block:
                shape = convolution(f"{name}.projection", (channels, 4 * width), kernel=1, size=size, stride=stride)
                shapes.append(shape)
            channels = 4 * width
    return [*shapes, linear("fc", 2048, 1000)]


NETWORKS: dict[str, list[Shape]] = {
    "VGG16": vgg(((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))),
    "VGG11": vgg(((64,), (128,), (256, 256), (512, 512), (512, 512))),
    "ResNet-50": resnet((3, 4, 6, 3)),
    "ResNet-101": resnet((3, 4, 23, 3)),
}
"""By name, the layers in order."""


def make_problem(shapes: list[Shape], num_devices: int) -> Problem:
    """A chain of a network's layers (shortcuts left out), fp32, on devices joined pair by pair."""
    layers = tuple(_layer(shape, is_first=not number) for number, shape in enumerate(shapes))
    edges = tuple(
        Edge(producer=a.name, consumer=b.name, bytes=4 * SAMPLES * min(a.outputs, b.inputs))
        for a, b in pairwise(shapes)
    )
    devices = tuple(Device(name=f"d{number}", type="estimate", memory_bytes=2**40) for number in range(num_devices))
    links = tuple(
        Link(a=a.name, b=b.name, bandwidth_bytes_per_s=BANDWIDTH, latency_ns=5_000)
        for number, a in enumerate(devices)
        for b in devices[number + 1 :]
    )
    return Problem(
        profile=ModelProfile(
            name="layers of a network", layers=layers, edges=edges, microbatch_size=SAMPLES, provenance="from shapes"
        ),
        cluster=Cluster(name="full mesh", devices=devices, links=links),
        num_microbatches=MICROBATCHES,
        options=Options(split_placement=True, max_stages_per_device=len(layers), max_replicas=1),
    )


def _layer(shape: Shape, *, is_first: bool) -> Layer:
    time = -(-SAMPLES * shape.macs // MACS_PER_NS)
    stash = 4 * SAMPLES * (shape.inputs + shape.outputs)
    return Layer(
        name=shape.name,
        costs=(
            LayerCost(
                device_type="estimate",
                forward_ns=time,
                input_grad_ns=0 if is_first else time,
                weight_grad_ns=time,
            ),
        ),
        parameter_bytes=4 * shape.weights,
        state_bytes=16 * shape.weights,
        stash_bytes=stash,
        weight_stash_bytes=stash,
    )
