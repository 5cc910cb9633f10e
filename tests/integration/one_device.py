"""Weight gradients of one device put off into the next iteration's forward: the same training, bit by bit.

DenseNet-121, MobileNetV3 (small) and a transformer, narrow enough for a CPU. Put off, each W runs in ascending order,
just before the layer's next forward; the layer's weights are updated then. `python -m
tests.integration.one_device NETWORK` trains 80 steps in both orders and prints what is equal; with a GPU and `--cuda`
it also times both orders, of the networks as they are published and images of 224 x 224.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

import torch
from torch import nn
from torch.nn import functional

from planner.execute.model.deferred import WeightGrad, WeightGradStore, defer_weight_grads

RATE, MOMENTUM, BATCH, SIZE, CLASSES = 0.01, 0.9, 4, 32, 10
LARGE_BATCH, LARGE_SIZE = 32, 224
"""Images of a step, and their side, on a GPU."""


class DenseLayer(nn.Module):
    """Normalise, 1 x 1, normalise, 3 x 3, and append to what came in."""

    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(channels), nn.Conv2d(channels, 4 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv1(functional.relu(self.norm1(x)))
        return torch.cat([x, self.conv2(functional.relu(self.norm2(y)))], dim=1)


def densenet(growth: int = 4, blocks: tuple[int, ...] = (6, 12, 24, 16)) -> nn.Module:
    """The 120 convolutions and the classifier of DenseNet-121."""
    channels = 2 * growth
    layers: list[nn.Module] = [nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False)]
    for number, count in enumerate(blocks):
        for _ in range(count):
            layers.append(DenseLayer(channels, growth))
            channels += growth
        if number < len(blocks) - 1:
            layers += [nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, channels // 2, 1, bias=False)]
            channels //= 2
            if number < 2:
                layers.append(nn.AvgPool2d(2))
    head = [nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES)]
    return nn.Sequential(*layers, *head)


class Inverted(nn.Module):
    """Widen, depthwise, squeeze and excite, narrow; with a shortcut where nothing changes its shape."""

    def __init__(self, channels: tuple[int, int, int], *, kernel: int, stride: int) -> None:
        super().__init__()
        c_in, wide, c_out = channels
        self.widen = nn.Sequential(nn.Conv2d(c_in, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.Hardswish())
        self.depth = nn.Sequential(
            nn.Conv2d(wide, wide, kernel, stride=stride, padding=kernel // 2, groups=wide, bias=False),
            nn.BatchNorm2d(wide),
            nn.Hardswish(),
        )
        squeezed = max(4, wide // 4)
        self.excite = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, squeezed, 1), nn.ReLU(), nn.Conv2d(squeezed, wide, 1),
            nn.Hardsigmoid(),
        )  # fmt: skip
        self.narrow = nn.Sequential(nn.Conv2d(wide, c_out, 1, bias=False), nn.BatchNorm2d(c_out))
        self.has_shortcut = stride == 1 and c_in == c_out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.depth(self.widen(x))
        y = self.narrow(y * self.excite(y))
        return x + y if self.has_shortcut else y


MOBILE = (
    (16, 16, 16, 3, 2), (16, 72, 24, 3, 2), (24, 88, 24, 3, 1), (24, 96, 40, 5, 2), (40, 240, 40, 5, 1),
    (40, 240, 40, 5, 1), (40, 120, 48, 5, 1), (48, 144, 48, 5, 1), (48, 288, 96, 5, 1), (96, 576, 96, 5, 1),
    (96, 576, 96, 5, 1),
)  # fmt: skip
"""Channels in, wide and out, kernel and stride of the blocks of MobileNetV3-small."""


def mobilenet(part: int = 4) -> nn.Module:
    """MobileNetV3-small with a `part`-th of the channels."""
    blocks = [
        Inverted((a // part, max(4, wide // part), b // part), kernel=kernel, stride=stride)
        for a, wide, b, kernel, stride in MOBILE
    ]
    first, last = 16 // part, 576 // part
    return nn.Sequential(
        nn.Conv2d(3, first, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(first), nn.Hardswish(), *blocks,
        nn.Conv2d(96 // part, last, 1, bias=False), nn.BatchNorm2d(last), nn.Hardswish(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(last, 1024 // part), nn.Hardswish(), nn.Linear(1024 // part, CLASSES),
    )  # fmt: skip


class Block(nn.Module):
    """Attention and a feed-forward part, each with a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


def transformer(width: int = 48, depth: int = 4, size: int = SIZE) -> nn.Module:
    """Images cut into rows, as a sequence of tokens."""
    return nn.Sequential(
        nn.Flatten(2), nn.Unflatten(2, (size, size)), Rows(), nn.Linear(3 * size, width),
        *(Block(width, 4) for _ in range(depth)), nn.LayerNorm(width), Mean(), nn.Linear(width, CLASSES),
    )  # fmt: skip


class Rows(nn.Module):
    """A token per row of the image."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2).flatten(2)


class Mean(nn.Module):
    """The mean of all tokens."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(dim=1)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "DenseNet-121": densenet, "MobileNetV3": mobilenet, "transformer": transformer
}  # fmt: skip

LARGE_NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "DenseNet-121": partial(densenet, growth=32),
    "MobileNetV3": partial(mobilenet, part=1),
    "transformer": partial(transformer, width=1024, depth=6, size=LARGE_SIZE),
}
"""On a GPU, where the small ones would show the host's launches only."""


def make_network(name: str, device: str) -> nn.Module:
    """With the same weights every time."""
    torch.manual_seed(5)
    return (NETWORKS if device == "cpu" else LARGE_NETWORKS)[name]().to(device)


def make_images(batch: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise, and the classes that it is said to show, on the generator's device; on a GPU in `LARGE_BATCH`."""
    device = generator.device
    count, size = (batch, SIZE) if device.type == "cpu" else (LARGE_BATCH, LARGE_SIZE)
    x = torch.randn(count, 3, size, size, generator=generator, device=device)
    return x, torch.randint(CLASSES, (count,), generator=generator, device=device)


class PutOff(WeightGradStore):
    """Keeps every W by its weight until the layer is used again."""

    def __init__(self) -> None:
        super().__init__()
        self.by_weight: dict[int, WeightGrad] = {}

    def put(self, call: WeightGrad) -> None:
        self.by_weight[id(call.weight)] = call


class Momentum:
    """Gradient descent with momentum, parameter by parameter, so that each may be updated at its own time."""

    def __init__(self) -> None:
        self.velocity: dict[int, torch.Tensor] = {}

    @torch.no_grad()
    def update(self, parameter: nn.Parameter) -> None:
        if parameter.grad is None:
            return
        velocity = self.velocity.setdefault(id(parameter), torch.zeros_like(parameter))
        velocity.mul_(MOMENTUM).add_(parameter.grad)
        parameter.sub_(RATE * velocity)
        parameter.grad = None


def samples(steps: int, device: str) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The same minibatches for every order."""
    generator = torch.Generator(device).manual_seed(7)
    for _ in range(steps):
        yield make_images(BATCH, generator)


class Training:
    """One network, trained in the plain order or with its weight gradients put off."""

    def __init__(self, network: str, *, puts_off: bool, device: str = "cpu") -> None:
        self.model = make_network(network, device)
        self.device, self.optimizer, self.store = device, Momentum(), PutOff()
        self.store.is_deferring = puts_off
        self.num_put_off = defer_weight_grads(self.model, self.store)
        for layer in self.model.modules() if puts_off else ():
            layer.register_forward_pre_hook(self._catch_up)
        self.losses: list[float] = []

    def _catch_up(self, layer: nn.Module, _: object) -> None:
        """The W that was put off, and the update of its weights, right before they are used."""
        for parameter in layer.parameters(recurse=False):
            call = self.store.by_weight.pop(id(parameter), None)
            if call is not None:
                call()
        for parameter in layer.parameters(recurse=False):
            self.optimizer.update(parameter)

    def run(self, steps: int) -> None:
        """Train, then finish what is left."""
        for x, y in samples(steps, self.device):
            loss = functional.cross_entropy(self.model(x), y)
            loss.backward()
            self.losses.append(float(loss.detach()))
            if not self.store.is_deferring:
                self.finish()
        self.finish()

    def finish(self) -> None:
        """All W and all updates that are left."""
        for layer in self.model.modules():
            self._catch_up(layer, None)

    def parameters(self) -> torch.Tensor:
        return torch.cat([parameter.detach().flatten() for parameter in self.model.parameters()])


def compare(network: str, *, steps: int) -> dict[str, object]:
    """Train half of the steps and then the rest in both orders: are losses and parameters the same?"""
    plain, put_off = (Training(network, puts_off=each) for each in (False, True))
    equal = []
    for _ in range(2):
        plain.run(steps // 2)
        put_off.run(steps // 2)
        equal.append(torch.equal(plain.parameters(), put_off.parameters()))
    return {
        "network": network,
        "weight gradients put off": put_off.num_put_off,
        "losses equal": plain.losses == put_off.losses,
        "steps": [steps // 2, steps],
        "parameters equal after half and all steps": equal,
        "losses": [plain.losses[0], plain.losses[-1]],
    }


def seconds_per_step(network: str, *, device: str, rounds: int = 5, steps: int = 10) -> dict[str, list[float]]:
    """Of both orders in turn, in the same run."""
    trainings = {name: Training(network, puts_off=name == "put off", device=device) for name in ("plain", "put off")}
    found: dict[str, list[float]] = {name: [] for name in trainings}
    for number in range(rounds + 1):
        for name, training in trainings.items():
            start = time.perf_counter()
            training.run(steps)
            if device == "cuda":
                torch.cuda.synchronize()
            if number:
                found[name].append((time.perf_counter() - start) / steps)
    return found


def main() -> None:
    """Compare the results of one network, and its times on a GPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("--cuda", action="store_true", help="also time both orders on the GPU")
    parser.add_argument("--steps", type=int, default=80)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(json.dumps(compare(given.network, steps=given.steps)))
    if given.cuda:
        seconds = seconds_per_step(given.network, device="cuda")
        print(json.dumps({name: median(values) for name, values in seconds.items()}))


if __name__ == "__main__":
    main()
