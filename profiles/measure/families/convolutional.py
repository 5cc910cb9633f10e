"""ResNet, VGG, DenseNet and MobileNetV3. Shapes: n samples, c channels, s x s pixels."""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from profiles.measure.families.tasks import make_model, random_images
from profiles.measure.model import Model

Layers = dict[str, Callable[[], nn.Module]]


def convolution(inner: int, outer: int, *, size: int = 3, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """A convolution that keeps the picture's size (at stride 1) and its normalisation."""
    return [
        nn.Conv2d(inner, outer, size, stride=stride, padding=size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outer),
    ]


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


class DenseLayer(nn.Module):
    """Adds `growth` channels to those that it is given."""

    def __init__(self, inner: int, growth: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.BatchNorm2d(inner), nn.ReLU(), *convolution(inner, 4 * growth, size=1), nn.ReLU(),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, c, s, s) -> (n, c + growth, s, s)."""
        return torch.cat([x, self.path(x)], 1)


class _Excitation(nn.Module):
    """Weighs channels by what is in the whole picture."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        squeezed = max(8, channels // 4)
        self.squeeze, self.excite = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, c, s, s) -> (n, c, s, s)."""
        weights = self.excite(functional.relu(self.squeeze(x.mean((2, 3), keepdim=True))))
        return x * functional.hardsigmoid(weights)


class _InvertedResidual(nn.Module):
    """Wider, depthwise, narrower again; beside a shortcut where the shape stays."""

    def __init__(
        self, inner: int, outer: int, *, middle: int, size: int, stride: int, rule: str, excites: bool
    ) -> None:
        super().__init__()
        activation = nn.Hardswish if rule == "hardswish" else nn.ReLU
        parts = [*convolution(inner, middle, size=1), activation()] if middle != inner else []
        parts += [*convolution(middle, middle, size=size, stride=stride, groups=middle), activation()]
        parts += [_Excitation(middle)] if excites else []
        self.path = nn.Sequential(*parts, *convolution(middle, outer, size=1))
        self.has_shortcut = inner == outer and stride == 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, c, s, s) -> (n, c', s', s')."""
        return x + self.path(x) if self.has_shortcut else self.path(x)


def _pooled(*rest: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), *(make() for make in rest))


def _classifier(layers: Layers, *, image: int, classes: int, batch: int) -> Model:
    return make_model(layers, batch=random_images(image, classes, samples=batch), loss=functional.cross_entropy)


_RESNETS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


def _choose(family: str, layers: int, *, known: Mapping[int, tuple[int, ...]]) -> tuple[int, ...]:
    if layers not in known:
        raise ValueError(f"{family}: layers = {layers} is not one of {', '.join(map(str, known))}; give one of them")
    return known[layers]


def make_resnet(*, layers: int = 50, width: int = 64, image: int = 224, classes: int = 1000, batch: int = 8) -> Model:
    """ResNet of 50, 101 or 152 layers; a layer of the profile is a bottleneck block."""
    counts = _choose("resnet", layers, known=_RESNETS)
    found: Layers = {
        "stem": lambda: nn.Sequential(*convolution(3, width, size=7, stride=2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    }
    channels = width
    for group, count in enumerate(counts):
        outer = 4 * width * 2**group
        for number in range(count):
            stride = 2 if group and not number else 1
            found[f"block{group}.{number}"] = partial(_Bottleneck, channels, outer, stride=stride)
            channels = outer
    found["head"] = _pooled(partial(nn.Linear, channels, classes))
    return _classifier(found, image=image, classes=classes, batch=batch)


_VGGS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}


def make_vgg(
    *, layers: int = 16, width: int = 64, inner: int = 4096, image: int = 224, classes: int = 1000, batch: int = 8
) -> Model:
    """VGG of 11, 13, 16 or 19 layers with normalisations."""
    counts = _choose("vgg", layers, known=_VGGS)
    if image < 32:
        raise ValueError(f"vgg: image = {image} is too small for five halvings; give at least 32")
    found: Layers = {}
    channels = 3
    for group, count in enumerate(counts):
        outer = width * min(8, 2**group)
        for number in range(count):
            pool = [nn.MaxPool2d] if number == count - 1 else []
            found[f"convolution{group}.{number}"] = partial(_vgg_layer, channels, outer, pools=bool(pool))
            channels = outer
    features = channels * (image // 32) ** 2
    found["dense0"] = lambda: nn.Sequential(nn.Flatten(), nn.Linear(features, inner), nn.ReLU())
    found["dense1"] = lambda: nn.Sequential(nn.Linear(inner, inner), nn.ReLU())
    found["head"] = partial(nn.Linear, inner, classes)
    return _classifier(found, image=image, classes=classes, batch=batch)


def _vgg_layer(inner: int, outer: int, *, pools: bool) -> nn.Module:
    return nn.Sequential(*convolution(inner, outer), nn.ReLU(), *([nn.MaxPool2d(2)] if pools else []))


_DENSENETS = {121: (6, 12, 24, 16), 169: (6, 12, 32, 32), 201: (6, 12, 48, 32)}


def make_densenet(
    *, layers: int = 121, growth: int = 32, image: int = 224, classes: int = 1000, batch: int = 8
) -> Model:
    """DenseNet of 121, 169 or 201 layers; what skips layers is carried along as channels, so it is a chain."""
    counts = _choose("densenet", layers, known=_DENSENETS)
    channels = 2 * growth
    stem = channels
    found: Layers = {
        "stem": lambda: nn.Sequential(*convolution(3, stem, size=7, stride=2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    }
    for group, count in enumerate(counts):
        for number in range(count):
            found[f"dense{group}.{number}"] = partial(DenseLayer, channels, growth)
            channels += growth
        if group < len(counts) - 1:
            found[f"transition{group}"] = partial(_transition, channels)
            channels //= 2
    found["head"] = _pooled(partial(nn.Linear, channels, classes))
    return _classifier(found, image=image, classes=classes, batch=batch)


def _transition(channels: int) -> nn.Module:
    convolved = nn.Conv2d(channels, channels // 2, 1, bias=False)
    return nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU(), convolved, nn.AvgPool2d(2))


# kernel, middle, outer, excites, rule, stride: the large network of the paper
_MOBILENET = (
    (3, 16, 16, False, "relu", 1), (3, 64, 24, False, "relu", 2), (3, 72, 24, False, "relu", 1),
    (5, 72, 40, True, "relu", 2), (5, 120, 40, True, "relu", 1), (5, 120, 40, True, "relu", 1),
    (3, 240, 80, False, "hardswish", 2), (3, 200, 80, False, "hardswish", 1), (3, 184, 80, False, "hardswish", 1),
    (3, 184, 80, False, "hardswish", 1), (3, 480, 112, True, "hardswish", 1), (3, 672, 112, True, "hardswish", 1),
    (5, 672, 160, True, "hardswish", 2), (5, 960, 160, True, "hardswish", 1), (5, 960, 160, True, "hardswish", 1),
)  # fmt: skip


def make_mobilenet(*, image: int = 224, classes: int = 1000, batch: int = 8) -> Model:
    """MobileNetV3, the large one."""
    found: Layers = {"stem": lambda: nn.Sequential(*convolution(3, 16, stride=2), nn.Hardswish())}
    channels = 16
    for number, (size, middle, outer, excites, rule, stride) in enumerate(_MOBILENET):
        found[f"block{number}"] = partial(
            _InvertedResidual, channels, outer, middle=middle, size=size, stride=stride, rule=rule, excites=excites
        )
        channels = outer
    last = channels
    found["features"] = lambda: nn.Sequential(*convolution(last, 6 * last, size=1), nn.Hardswish())
    found["head"] = _pooled(partial(nn.Linear, 6 * last, 1280), nn.Hardswish, partial(nn.Linear, 1280, classes))
    return _classifier(found, image=image, classes=classes, batch=batch)
