"""ResNet. Shapes: n samples, c channels, s x s pixels."""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from profiles.measure.families.tasks import make_model, random_images
from profiles.measure.model import Model


def convolution(inner: int, outer: int, *, size: int = 3, stride: int = 1) -> list[nn.Module]:
    """A convolution that keeps the picture's size (at stride 1) and its normalisation."""
    return [nn.Conv2d(inner, outer, size, stride=stride, padding=size // 2, bias=False), nn.BatchNorm2d(outer)]


class _Bottleneck(nn.Module):
    """1 x 1, 3 x 3, 1 x 1, beside a shortcut."""

    def __init__(self, inner: int, outer: int, *, stride: int) -> None:
        super().__init__()
        middle = outer // 4
        self.path = nn.Sequential(
            *convolution(inner, middle, size=1), nn.ReLU(),
            *convolution(middle, middle, stride=stride), nn.ReLU(),
            *convolution(middle, outer, size=1),
        )  # fmt: skip
        is_plain = inner == outer and stride == 1
        self.shortcut = nn.Identity() if is_plain else nn.Sequential(*convolution(inner, outer, size=1, stride=stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, c, s, s) -> (n, c', s', s')."""
        return functional.relu(self.path(x) + self.shortcut(x))


_RESNETS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


def make_resnet(*, layers: int = 50, width: int = 64, image: int = 224, classes: int = 1000, batch: int = 8) -> Model:
    """ResNet of 50, 101 or 152 layers; a layer of the profile is a bottleneck block."""
    if layers not in _RESNETS:
        known = ", ".join(map(str, _RESNETS))
        raise ValueError(f"resnet: layers = {layers} is not one of {known}; give one of them")
    found: dict[str, Callable[[], nn.Module]] = {
        "stem": lambda: nn.Sequential(*convolution(3, width, size=7, stride=2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    }
    channels = width
    for group, count in enumerate(_RESNETS[layers]):
        outer = 4 * width * 2**group
        for number in range(count):
            stride = 2 if group and not number else 1
            found[f"block{group}.{number}"] = partial(_Bottleneck, channels, outer, stride=stride)
            channels = outer
    found["head"] = lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
    return make_model(found, batch=random_images(image, classes, samples=batch), loss=functional.cross_entropy)
