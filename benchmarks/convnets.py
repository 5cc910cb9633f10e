"""Layer shapes of well-known convolutional networks: multiply-accumulates, weights and outputs per sample."""

from dataclasses import dataclass


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
