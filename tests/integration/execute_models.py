"""Models for the executor's tests; imported by processes that have torch, never by pytest itself."""

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from planner.execute.training import LossScale, Training, load_training

WIDTH, SAMPLES = 6, 12
"""Features, and samples per microbatch (a multiple of every number of replicas in the tests)."""


class Block(nn.Module):
    """x + W2 tanh(W1 x)."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.outer(torch.tanh(self.inner(x)))


class Recording(torch.optim.SGD):
    """Stochastic gradient descent that remembers every gradient it was given."""

    def __init__(self, parameters: list[Any]) -> None:
        super().__init__(parameters, lr=0.05, momentum=0.9)
        self.seen = defaultdict[int, list[torch.Tensor | None]](list)

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.seen[id(parameter)].append(None if parameter.grad is None else parameter.grad.clone().to_dense())
        super().step(closure)


def make_layer(kind: str, *, dtype: torch.dtype) -> nn.Module:
    if kind == "n":
        return nn.Tanh()
    if kind == "v":  # its output is a view
        return nn.Sequential(Block(), View()).to(dtype)
    if kind == "s":  # its output is strided
        return nn.Sequential(Block(), nn.Linear(WIDTH, 2 * WIDTH), nn.Unflatten(1, (WIDTH, 2)), First()).to(dtype)
    return Block().to(dtype).requires_grad_(kind != "f")


class Bounded(Block):
    """Keeps its inner weights short in its forward."""

    def __init__(self, *, by_data: bool) -> None:
        super().__init__()
        self.by_data = by_data

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            (self.inner.weight.data if self.by_data else self.inner.weight).clamp_(-0.25, 0.25)
        return super().forward(x)


def bounded(kinds: str, *, num_microbatches: int, by_data: bool = False, **more: Any) -> Training:
    """The first layer changes a weight in its forward."""
    training = vectors(kinds, num_microbatches=num_microbatches, **more)
    layers = dict(training.layers) | {"l0": lambda: Bounded(by_data=by_data).double()}
    return Training(**(vars(training) | {"layers": layers}))


def bounded_data(kinds: str, *, num_microbatches: int) -> Training:
    return bounded(kinds, num_microbatches=num_microbatches, by_data=True)


def bounded_tied(kinds: str, *, num_microbatches: int) -> Training:
    return bounded(kinds, num_microbatches=num_microbatches, tied=(("l0:inner.weight", "l1:inner.weight"),))


class View(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(-1, WIDTH)


class First(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[..., 0]


def vectors(kinds: str, *, num_microbatches: int, dtype: torch.dtype = torch.float64, **more: Any) -> Training:
    """A chain of a letter per layer: `w` with weights, `f` frozen, `n` without, `v` gives a view, `s` a strided one."""

    def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
        noise = torch.Generator().manual_seed(number)
        shape = (2, num_microbatches * SAMPLES, WIDTH)
        x, y = torch.randn(shape, generator=noise, dtype=torch.float64).to(dtype)
        return x, y

    return Training(
        layers={f"l{number}": partial(make_layer, kind, dtype=dtype) for number, kind in enumerate(kinds)},
        loss=lambda output, target: ((output - target) ** 2).mean(),
        batch=batch,
        optimizer=Recording,
        **more,
    )


def bfloat16(kinds: str, *, num_microbatches: int) -> Training:
    return vectors(kinds, num_microbatches=num_microbatches, dtype=torch.bfloat16)


def summed(kinds: str, *, num_microbatches: int) -> Training:
    training = vectors(kinds, num_microbatches=num_microbatches, loss_is_sum=True)
    return Training(**(vars(training) | {"loss": lambda output, target: ((output - target) ** 2).sum()}))


def some_ignored(kinds: str, *, num_microbatches: int) -> Training:
    """Classes, of which those of the first sample do not count."""
    training = vectors(kinds, num_microbatches=num_microbatches)

    def batch(number: int) -> tuple[Any, torch.Tensor]:
        inputs, target = training.batch(number)
        classes = target.argmax(-1)
        classes[0] = -100
        return inputs, classes

    return Training(**(vars(training) | {"loss": torch.nn.functional.cross_entropy, "batch": batch}))


class Scaling(torch.autograd.Function):
    """x W, with gradients by hand: torch's own split would compute both of them in I and again in W."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = ctx.saved_tensors
        return grad @ weight.t(), x.t() @ grad


class OwnFunction(nn.Module):
    """A layer whose weight is held by a function of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.block = nn.Parameter(torch.eye(WIDTH)), Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(Scaling.apply(x, self.weight))


def own_function(kinds: str, *, num_microbatches: int) -> Training:
    training = vectors(kinds, num_microbatches=num_microbatches)
    layers = dict.fromkeys(training.layers, lambda: OwnFunction().double())
    return Training(**(vars(training) | {"layers": layers}))


class Marked(nn.Module):
    """Hands on whole numbers beside what is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, x: torch.Tensor, *rest: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mark = rest[0] if rest else (x > 0).long()
        return self.block(x) * (1 + mark), mark


class Unmarked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, x: torch.Tensor, mark: torch.Tensor) -> torch.Tensor:
        return self.block(x) * mark


def marked(kinds: str, *, num_microbatches: int) -> Training:
    """Between all layers there is an integer tensor, too."""
    training = vectors(kinds, num_microbatches=num_microbatches)
    layers: dict[str, Any] = dict.fromkeys(training.layers, lambda: Marked().double())
    layers[f"l{len(kinds) - 1}"] = lambda: Unmarked().double()
    return Training(**(vars(training) | {"layers": layers}))


class Biased(nn.Module):
    """Hands on a trained bias that belongs to no sample, as T5 does that of its positions."""

    def __init__(self, *, is_last: bool) -> None:
        super().__init__()
        self.block, self.bias, self.is_last = Block(), nn.Parameter(torch.linspace(-1, 1, WIDTH)[None]), is_last

    def forward(self, x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        bias = self.bias + sum(rest)
        y = self.block(x) * torch.sigmoid(bias)
        return y if self.is_last else (y, bias)


def biased(kinds: str, *, num_microbatches: int) -> Training:
    """Between all layers there is a bias, too, to which each adds its own."""
    training, last = vectors(kinds, num_microbatches=num_microbatches), len(kinds) - 1
    layers = {
        f"l{number}": lambda is_last=number == last: Biased(is_last=is_last).double() for number in range(len(kinds))
    }
    return Training(**(vars(training) | {"layers": layers}))


class Paired(nn.Module):
    """Gives two tensors, of weights of their own each."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = Block(), Block()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.one(x), self.other(x)


def paired(kinds: str, *, num_microbatches: int) -> Training:
    """The loss takes two tensors."""
    training, last = vectors(kinds, num_microbatches=num_microbatches), f"l{len(kinds) - 1}"

    def loss(outputs: tuple[torch.Tensor, torch.Tensor], target: torch.Tensor) -> torch.Tensor:
        return ((outputs[0] - target) ** 2).mean() + 0.3 * outputs[1].square().mean()

    layers = dict(training.layers) | {last: lambda: Paired().double()}
    return Training(**(vars(training) | {"layers": layers, "loss": loss}))


class Numbered(nn.Module):
    """Hands on a single number beside its samples."""

    def __init__(self, *, is_last: bool) -> None:
        super().__init__()
        self.block, self.scale, self.is_last = Block(), nn.Parameter(torch.tensor(0.7)), is_last

    def forward(self, x: torch.Tensor, *rest: torch.Tensor) -> Any:
        scale = self.scale + sum(rest)
        return self.block(x) * scale if self.is_last else (self.block(x), scale)


def numbered(kinds: str, *, num_microbatches: int) -> Training:
    training = vectors(kinds, num_microbatches=num_microbatches)
    layers = {name: partial(as_double, partial(Numbered, is_last=False)) for name in training.layers}
    layers[f"l{len(kinds) - 1}"] = partial(as_double, partial(Numbered, is_last=True))
    return Training(**(vars(training) | {"layers": layers}))


class Sleeping(nn.Module):
    """Its parameters are used for some microbatches only, or for none."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.never = Block(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(x)


def unused(kinds: str, *, num_microbatches: int) -> Training:
    """Every layer has parameters that nothing uses."""
    training = vectors(kinds, num_microbatches=num_microbatches)
    return Training(**(vars(training) | {"layers": dict.fromkeys(training.layers, lambda: Sleeping().double())}))


def wrapped_by_compile(kinds: str, *, num_microbatches: int) -> Training:
    """One layer is compiled, and stands in another (nothing is compiled before it is called)."""
    training = vectors(kinds, num_microbatches=num_microbatches)
    layers = dict(training.layers) | {"l1": lambda: torch.compile(Block().double(), backend="eager")}
    return Training(**(vars(training) | {"layers": layers}))


class HalfCompiled(nn.Module):
    """Weights that wait behind weights that do not."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.outer = Block(), nn.Linear(WIDTH, WIDTH)
        self.block.compile(backend="aot_eager")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.outer(self.block(x)))


def compiled(kinds: str, *, num_microbatches: int) -> Training:
    """Half of one layer is compiled, backward included."""
    training = vectors(kinds, num_microbatches=num_microbatches)
    layers = dict(training.layers) | {"l1": lambda: HalfCompiled().double()}
    return Training(**(vars(training) | {"layers": layers}))


def sharded(kinds: str, *, num_microbatches: int) -> Training:
    """One layer is sharded by FSDP."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def make() -> nn.Module:
        return fully_shard(Block().double(), mesh=init_device_mesh("cpu", (2,)))

    training = vectors(kinds, num_microbatches=num_microbatches)
    return Training(**(vars(training) | {"layers": dict(training.layers) | {"l1": make}}))


class HeldBySeveral(nn.Module):
    """Its weight is a DTensor."""

    def __init__(self) -> None:
        super().__init__()
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, Replicate

        weight = torch.eye(WIDTH, dtype=torch.float64)
        mesh = init_device_mesh("cpu", (2,))
        self.weight = nn.Parameter(DTensor.from_local(weight, mesh, [Replicate()], run_check=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def held_by_several(kinds: str, *, num_microbatches: int) -> Training:
    training = vectors(kinds, num_microbatches=num_microbatches)
    return Training(**(vars(training) | {"layers": dict(training.layers) | {"l1": HeldBySeveral}}))


class Adapted(nn.Module):
    """A frozen weight with a trained update of low rank beside it (LoRA)."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH).requires_grad_(requires_grad=False)
        self.down, self.up = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.base(x) + 0.5 * self.up(self.down(x)))


def adapted(kinds: str, *, num_microbatches: int) -> Training:
    """LoRA in every layer."""
    return every_layer(kinds, Adapted, num_microbatches=num_microbatches)


def example(name: str) -> Training:
    """One of the repository's examples, with an optimizer that remembers every gradient."""
    training = load_training(f"examples.{name}:make_training")

    def make_optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        optimizer: Any = training.optimizer(parameters)
        optimizer.seen = {id(parameter): [] for parameter in parameters}

        def remember(*_: Any) -> None:
            for parameter in parameters:
                optimizer.seen[id(parameter)].append(
                    None if parameter.grad is None else parameter.grad.clone().to_dense()
                )

        optimizer.register_step_pre_hook(remember)
        return optimizer

    return Training(**(vars(training) | {"optimizer": make_optimizer}))


def example_gpt(kinds: str, *, num_microbatches: int) -> Training:
    return example("small_gpt")


def example_resnet(kinds: str, *, num_microbatches: int) -> Training:
    """With twice the precision: in float32 a convolution depends on how its input lies in memory, and the network
    makes much of the last bit."""
    training = example("resnet")

    def make_batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
        pictures, target = training.batch(number)
        return pictures.double(), target

    layers = {name: partial(as_double, make) for name, make in training.layers.items()}
    return Training(**(vars(training) | {"layers": layers, "batch": make_batch}))


def as_double(make: Any) -> nn.Module:
    return make().double()


class Join(nn.Module):
    """Two inputs, one of them from far away."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, near: torch.Tensor, far: torch.Tensor) -> torch.Tensor:
        return self.block(near) * torch.sigmoid(far)


def skipping(kinds: str, *, num_microbatches: int) -> Training:
    """The chain, but the last layer also takes what the first one gives, and the third the batch itself."""
    last = f"l{len(kinds) - 1}"
    training = vectors(kinds, num_microbatches=num_microbatches)
    layers = dict(training.layers) | {"l2": lambda: Join().double(), last: lambda: Join().double()}
    inputs = {"l2": ("l1", ""), last: (f"l{len(kinds) - 2}", "l0")}
    return Training(**(vars(training) | {"layers": layers, "inputs": inputs}))


def branching(kinds: str, *, num_microbatches: int) -> Training:
    """Two branches from the first layer, one of two layers and one of one, joined by the last; see `BRANCHES`."""
    training = vectors(kinds, num_microbatches=num_microbatches)
    last = f"l{len(kinds) - 1}"
    layers = dict(training.layers) | {last: lambda: Join().double()}
    return Training(**(vars(training) | {"layers": layers, "inputs": {"l3": ("l0",), last: ("l2", "l3")}}))


def clipped(kinds: str, *, num_microbatches: int) -> Training:
    """Gradients are much larger than the norm that they are clipped to."""
    return vectors(kinds, num_microbatches=num_microbatches, max_norm=0.01)


def clipped_tied(kinds: str, *, num_microbatches: int) -> Training:
    training = tied(kinds, num_microbatches=num_microbatches)
    return Training(**(vars(training) | {"max_norm": 0.01}))


def hardly_clipped(kinds: str, *, num_microbatches: int) -> Training:
    """The norm is never reached."""
    return vectors(kinds, num_microbatches=num_microbatches, max_norm=100.0)


class SequenceFirst(nn.Module):
    """Samples end up along dimension 1."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.t()


def turned(kinds: str, *, num_microbatches: int) -> Training:
    """Between the first layer and the second, samples do not lie along dimension 0."""
    training = vectors(kinds, num_microbatches=num_microbatches)
    layers = dict(training.layers) | {
        "l0": lambda: nn.Sequential(Block(), SequenceFirst()).double(),
        "l1": lambda: nn.Sequential(SequenceFirst(), Block()).double(),
    }
    return Training(**(vars(training) | {"layers": layers}))


def no_norm(kinds: str, *, num_microbatches: int) -> Training:
    return vectors(kinds, num_microbatches=num_microbatches, max_norm=0.0)


def tied(kinds: str, *, num_microbatches: int) -> Training:
    """The inner weights of the first, the second and the last layer are one."""
    names = tuple(f"l{number}:inner.weight" for number in (0, 1, len(kinds) - 1))
    return vectors(kinds, num_microbatches=num_microbatches, tied=(names,))


VOCABULARY, LENGTH, MODEL = 11, 5, 8


class Attention(nn.Module):
    """A block of a GPT: (samples, length, features)."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(MODEL), nn.LayerNorm(MODEL)
        self.mixed, self.out = nn.Linear(MODEL, 3 * MODEL), nn.Linear(MODEL, MODEL, bias=False)
        self.up, self.down = nn.Linear(MODEL, 4 * MODEL), nn.Linear(4 * MODEL, MODEL)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.mixed(self.before(x)).chunk(3, -1))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.out(attended)
        return x + self.down(functional.gelu(self.up(self.between(x))))


def gpt(kinds: str, *, num_microbatches: int, **more: Any) -> Training:
    """Embedding, blocks, head: as many layers as there are letters."""
    middle = {f"l{number}": lambda: Attention().double() for number in range(1, len(kinds) - 1)}

    def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
        noise = torch.Generator().manual_seed(number)
        text = torch.randint(VOCABULARY, (num_microbatches * SAMPLES, LENGTH + 1), generator=noise)
        return text[:, :-1], text[:, 1:]

    return Training(
        layers={
            "l0": lambda: nn.Embedding(VOCABULARY, MODEL).double(),
            **middle,
            f"l{len(kinds) - 1}": lambda: nn.Linear(MODEL, VOCABULARY, bias=False).double(),
        },
        loss=lambda output, target: functional.cross_entropy(output.flatten(0, 1), target.flatten()),
        batch=batch,
        optimizer=Recording,
        **more,
    )


def tied_gpt(kinds: str, *, num_microbatches: int) -> Training:
    """The head is the embedding."""
    return gpt(kinds, num_microbatches=num_microbatches, tied=(("l0:weight", f"l{len(kinds) - 1}:weight"),))


class Residual(nn.Module):
    """A block of a residual network."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, groups=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(torch.relu(self.first(self.norm(x))))


def images(kinds: str, *, num_microbatches: int) -> Training:
    """Convolutions: a stem, residual blocks and a linear head."""
    channels = 4
    blocks = {f"l{number}": lambda: Residual(channels).double() for number in range(1, len(kinds) - 1)}

    def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
        noise = torch.Generator().manual_seed(number)
        samples = num_microbatches * SAMPLES
        picture = torch.randn((samples, 3, 8, 8), generator=noise, dtype=torch.float64)
        return picture, torch.randint(5, (samples,), generator=noise)

    head = partial(nn.Linear, channels * 16, 5)
    return Training(
        layers={
            "l0": lambda: nn.Conv2d(3, channels, 3, stride=2, padding=1).double(),
            **blocks,
            f"l{len(kinds) - 1}": lambda: nn.Sequential(nn.Flatten(), head()).double(),
        },
        loss=functional.cross_entropy,
        batch=batch,
        optimizer=Recording,
    )


class Stem(nn.Conv2d):
    """Gives pictures whose channels lie last."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).to(memory_format=torch.channels_last)


class LastChannels(nn.Module):
    """A block of a ConvNeXt, which takes for granted how its input lies in memory."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.norm, self.inner = nn.LayerNorm(channels), nn.Linear(channels, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pixels = x.permute(0, 2, 3, 1)
        last = self.depthwise(x).permute(0, 2, 3, 1).reshape(-1, x.shape[1])
        return (pixels.view(-1, x.shape[1]) + self.inner(self.norm(last))).view_as(pixels).permute(0, 3, 1, 2)


def last_channels(kinds: str, *, num_microbatches: int) -> Training:
    """As `images`, but all that travels has its channels last."""
    training, channels = images(kinds, num_microbatches=num_microbatches), 4
    layers = {f"l{number}": lambda: LastChannels(channels).double() for number in range(1, len(kinds) - 1)}
    layers = {"l0": lambda: Stem(3, channels, 3, stride=2, padding=1).double()} | layers
    return Training(**(vars(training) | {"layers": {**layers, **dict(list(training.layers.items())[-1:])}}))


def ragged(kinds: str, *, num_microbatches: int) -> Training:
    """The batch is one sample short."""
    training = vectors(kinds, num_microbatches=num_microbatches)
    return Training(**(vars(training) | {"batch": lambda number: tuple(t[:-1] for t in training.batch(number))}))


def sharing(kinds: str, *, num_microbatches: int) -> Training:
    """Two layers are one and the same module."""
    training = vectors(kinds, num_microbatches=num_microbatches)
    block = Block().double()
    return Training(**(vars(training) | {"layers": dict(training.layers) | {"l0": lambda: block, "l2": lambda: block}}))


class Dictionary(nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"x": x}


def dictionaries(kinds: str, *, num_microbatches: int) -> Training:
    """A layer gives something that cannot be sent."""
    training = vectors(kinds, num_microbatches=num_microbatches)
    return Training(**(vars(training) | {"layers": dict(training.layers) | {"l1": Dictionary}}))


def no_module(kinds: str, *, num_microbatches: int) -> Training:
    """A factory gives a number."""
    training = vectors(kinds, num_microbatches=num_microbatches)
    return Training(**(vars(training) | {"layers": dict(training.layers) | {"l1": lambda: 3}}))


def tied_to_nothing(kinds: str, *, num_microbatches: int) -> Training:
    return vectors(kinds, num_microbatches=num_microbatches, tied=(("l0:inner.weight", "l9:inner.weight"),))


class Autocast(nn.Module):
    """A block that computes in bfloat16 whatever it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=not x.is_meta):
            return self.block(x).float()


def autocast(kinds: str, *, num_microbatches: int) -> Training:
    training = vectors(kinds, num_microbatches=num_microbatches, dtype=torch.float32)
    return Training(**(vars(training) | {"layers": dict.fromkeys(training.layers, Autocast)}))


class Normed(nn.Module):
    """A block behind a batch norm whose statistics are those of the microbatch."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.norm, self.block = nn.BatchNorm1d(WIDTH, **options), Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(self.norm(x))


class NormedByFunction(nn.Module):
    """A batch norm without a module."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.block = nn.Parameter(torch.rand(WIDTH) + 0.5), Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(functional.batch_norm(x, None, None, self.scale, training=True))


class NormedOtherwise(nn.Module):
    """A batch norm that goes straight to torch's own operator."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(torch.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5)[0])


def every_layer(kinds: str, make: Any, *, num_microbatches: int, **more: Any) -> Training:
    training = vectors(kinds, num_microbatches=num_microbatches, **more)
    return Training(**(vars(training) | {"layers": dict.fromkeys(training.layers, lambda: make().double())}))


def normed(kinds: str, *, num_microbatches: int) -> Training:
    return every_layer(kinds, Normed, num_microbatches=num_microbatches)


def normed_by_average(kinds: str, *, num_microbatches: int) -> Training:
    """Running statistics are plain averages, without weights."""
    return every_layer(kinds, partial(Normed, momentum=None, affine=False), num_microbatches=num_microbatches)


def normed_by_function(kinds: str, *, num_microbatches: int) -> Training:
    return every_layer(kinds, NormedByFunction, num_microbatches=num_microbatches)


def normed_otherwise(kinds: str, *, num_microbatches: int) -> Training:
    return every_layer(kinds, NormedOtherwise, num_microbatches=num_microbatches)


class NormedPictures(nn.Module):
    """Batch norms of two and one dimensions around a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.way, self.last = nn.BatchNorm2d(2), nn.Conv2d(2, 2, 1), nn.BatchNorm1d(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.last(self.way(self.norm(x.view(-1, 2, WIDTH // 2, 1))).flatten(1))


def normed_pictures(kinds: str, *, num_microbatches: int) -> Training:
    return every_layer(kinds, NormedPictures, num_microbatches=num_microbatches)


class Sync(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.block = nn.SyncBatchNorm(WIDTH), Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(self.norm(x))


def sync_normed(kinds: str, *, num_microbatches: int) -> Training:
    return every_layer(kinds, Sync, num_microbatches=num_microbatches)


class Averaging(nn.Module):
    """Keeps an average of what it saw, and uses it."""

    def __init__(self, *, is_used: bool = True) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(WIDTH))
        self.block, self.is_used = Block(), is_used

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.average.mul_(0.9).add_(0.1 * x.mean(0))
        return self.block(x - self.average * self.is_used)


def averaging(kinds: str, *, num_microbatches: int) -> Training:
    return every_layer(kinds, Averaging, num_microbatches=num_microbatches)


def only_averaging(kinds: str, *, num_microbatches: int) -> Training:
    """None of them uses what it keeps."""
    return every_layer(kinds, partial(Averaging, is_used=False), num_microbatches=num_microbatches)


def wide_averaging(kinds: str, *, num_microbatches: int) -> Training:
    training = only_averaging(kinds, num_microbatches=num_microbatches)
    return Training(**(vars(training) | {"parallelize": in_two}))


class Masking(nn.Module):
    """Hands on what is true of its samples."""

    def __init__(self, *, is_last: bool) -> None:
        super().__init__()
        self.block, self.is_last = Block(), is_last

    def forward(self, x: torch.Tensor, *rest: torch.Tensor) -> Any:
        mask = rest[0] if rest else x > 0
        return self.block(x) * mask if self.is_last else (self.block(x), mask)


def wide_masked(kinds: str, *, num_microbatches: int) -> Training:
    training = wide(kinds, num_microbatches=num_microbatches)
    layers = {name: partial(as_double, partial(Masking, is_last=False)) for name in training.layers}
    layers[f"l{len(kinds) - 1}"] = partial(as_double, partial(Masking, is_last=True))
    return Training(**(vars(training) | {"layers": layers}))


class Force(nn.Module):
    """Gives the gradient of an energy, as models of molecules do; the training differentiates it again."""

    def __init__(self) -> None:
        super().__init__()
        self.energy, self.block = Block(), Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            place = x if x.requires_grad else x.detach().requires_grad_()
            (force,) = torch.autograd.grad((self.energy(place) ** 2).sum(), place, create_graph=True)
        return self.block(x) + force


def forces(kinds: str, *, num_microbatches: int) -> Training:
    return every_layer(kinds, Force, num_microbatches=num_microbatches)


def penalised(kinds: str, *, num_microbatches: int) -> Training:
    """The loss has a gradient in it, of nothing but itself."""

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        error = ((output - target) ** 2).mean()
        (slope,) = torch.autograd.grad(error, output, create_graph=True)
        return error + (slope**2).sum()

    return Training(**(vars(vectors(kinds, num_microbatches=num_microbatches)) | {"loss": loss}))


def accumulating(kinds: str, *, num_microbatches: int) -> Training:
    return vectors(kinds, num_microbatches=num_microbatches, accumulate=2)


def accumulating_tied(kinds: str, *, num_microbatches: int) -> Training:
    return Training(**(vars(tied(kinds, num_microbatches=num_microbatches)) | {"accumulate": 2, "max_norm": 0.01}))


def scheduled(kinds: str, *, num_microbatches: int) -> Training:
    """A schedule whose every step depends on the one before, and other rates for biases."""

    def settings(name: str, parameter: nn.Parameter) -> dict[str, Any]:
        return {"lr": 0.02} if name.endswith("bias") else {"weight_decay": 0.1}

    def schedule(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    return vectors(kinds, num_microbatches=num_microbatches, settings=settings, schedule=schedule)


def counted(kinds: str, *, num_microbatches: int, **more: Any) -> Training:
    """Samples without a positive first target do not count; the loss is per sample that does."""
    training = vectors(kinds, num_microbatches=num_microbatches, loss_is_sum=True, num_tokens=num_counting, **more)

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (((output - target) ** 2) * (target[:, :1] > 0)).sum()

    return Training(**(vars(training) | {"loss": loss}))


def num_counting(target: torch.Tensor) -> torch.Tensor:
    return (target[:, 0] > 0).sum()


def counted_accumulating(kinds: str, *, num_microbatches: int) -> Training:
    return counted(kinds, num_microbatches=num_microbatches, accumulate=2)


def loss_scaled(kinds: str, *, num_microbatches: int) -> Training:
    return vectors(kinds, num_microbatches=num_microbatches, loss_scale=LossScale(initial=2.0**40, interval=1))


def float32_gradients(kinds: str, *, num_microbatches: int) -> Training:
    """Many small gradients: in bfloat16 their sum would stand still."""
    return vectors(kinds, num_microbatches=num_microbatches, dtype=torch.bfloat16, float32_gradients=True)


class OfTwoTypes(nn.Module):
    """A part of its parameters is short."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, WIDTH).bfloat16(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(self.inner(x.bfloat16()).float())


def of_two_types(kinds: str, *, num_microbatches: int) -> Training:
    training = vectors(kinds, num_microbatches=num_microbatches, dtype=torch.float32)
    return Training(**(vars(training) | {"layers": dict.fromkeys(training.layers, OfTwoTypes)}))


class Dropping(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(super().forward(x), 0.5, training=self.training)


def dropping(kinds: str, *, num_microbatches: int) -> Training:
    return every_layer(kinds, Dropping, num_microbatches=num_microbatches)


def in_two(name: str, layer: nn.Module, width: int) -> Any:
    """How blocks are run by several devices: column by column, then row by row."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    paths = [path for path, part in layer.named_modules() if isinstance(part, Block)]
    ends = (("inner", ColwiseParallel), ("outer", RowwiseParallel))
    return {f"{path}.{end}".lstrip("."): style() for path in paths for end, style in ends}


def wide(kinds: str, *, num_microbatches: int, **more: Any) -> Training:
    """Blocks that say how they are cut."""
    return vectors(kinds, num_microbatches=num_microbatches, parallelize=in_two, **more)


def wide_clipped(kinds: str, *, num_microbatches: int) -> Training:
    return wide(kinds, num_microbatches=num_microbatches, max_norm=0.01)


def wide_accumulated(kinds: str, *, num_microbatches: int) -> Training:
    return wide(kinds, num_microbatches=num_microbatches, accumulate=2)


def wide_skipping(kinds: str, *, num_microbatches: int) -> Training:
    return Training(**(vars(skipping(kinds, num_microbatches=num_microbatches)) | {"parallelize": in_two}))


class Scaled(nn.Module):
    """A block whose hidden units are scaled by a number per sample, which all but the last hand on."""

    def __init__(self, *, is_last: bool) -> None:
        super().__init__()
        self.block, self.is_last = Block(), is_last

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> Any:
        scale = torch.ones_like(x[:, :1]) / 2 if scale is None else scale
        y = x + self.block.outer(scale * self.block.inner(x))
        return y if self.is_last else (y, scale)


def wide_scaled(kinds: str, *, num_microbatches: int) -> Training:
    """Between layers goes a number that wants no gradient, and of which each device of a group has a part."""
    training = wide(kinds, num_microbatches=num_microbatches)
    *_, last = training.layers
    layers = {name: partial(lambda name: Scaled(is_last=name == last).double(), name) for name in training.layers}
    return Training(**(vars(training) | {"layers": layers}))


def wide_bfloat16(kinds: str, *, num_microbatches: int) -> Training:
    """Gradients are added up in float32."""
    return wide(kinds, num_microbatches=num_microbatches, dtype=torch.bfloat16, float32_gradients=True)


class HeadAttention(Attention):
    """Says how many heads it has, so that a part of it may have fewer."""

    heads = 4

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.mixed(self.before(x)).chunk(3, -1)
        )
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.out(attended)
        return x + self.down(functional.gelu(self.up(self.between(x))))


def in_heads(name: str, layer: nn.Module, width: int) -> Any:
    """Every member takes its heads and its hidden units."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    from planner.execute.parallel.parallel_styles import FusedColwiseParallel

    if not isinstance(layer, HeadAttention):
        return {}
    layer.heads //= width
    styles = {"mixed": FusedColwiseParallel(num_fused=3), "up": ColwiseParallel()}
    return styles | {path: RowwiseParallel() for path in ("out", "down")}


def wide_gpt(kinds: str, *, num_microbatches: int) -> Training:
    """The head is the embedding, which every member has whole; queries, keys and values are one matrix."""
    training = tied_gpt(kinds, num_microbatches=num_microbatches)
    layers = {
        name: as_heads if 0 < n < len(kinds) - 1 else make for n, (name, make) in enumerate(training.layers.items())
    }
    return Training(**(vars(training) | {"layers": layers, "parallelize": in_heads}))


def as_heads() -> nn.Module:
    return HeadAttention().double()


def miscounted_gpt(kinds: str, *, num_microbatches: int) -> Training:
    """The heads of a member are forgotten."""

    def cut(name: str, layer: nn.Module, width: int) -> Any:
        return in_heads(name, layer, 1) if width > 1 else {}

    return Training(**(vars(wide_gpt(kinds, num_microbatches=num_microbatches)) | {"parallelize": cut}))


def encoder(kinds: str, *, num_microbatches: int) -> Training:
    """Torch's own layers, which the table knows."""
    training = gpt(kinds, num_microbatches=num_microbatches)
    make = partial(nn.TransformerEncoderLayer, MODEL, 2, 16, dropout=0.0, batch_first=True, dtype=torch.float64)
    layers = {name: make if 0 < n < len(kinds) - 1 else own for n, (name, own) in enumerate(training.layers.items())}
    return Training(**(vars(training) | {"layers": layers}))


class InSequence(nn.Module):
    """A block whose norm works on a part of the sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.norm = nn.Identity(), nn.LayerNorm(MODEL)
        self.up, self.down = nn.Linear(MODEL, 4 * MODEL), nn.Linear(4 * MODEL, MODEL)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(functional.gelu(self.up(self.norm(self.enter(x)))))


def sequence(kinds: str, *, num_microbatches: int) -> Training:
    """Every member has a summand of the norm's gradient."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleOutput,
        RowwiseParallel,
        SequenceParallel,
    )

    def cut(name: str, layer: nn.Module, width: int) -> Any:
        if not isinstance(layer, InSequence):
            return {}
        return {
            "enter": PrepareModuleOutput(
                output_layouts=Replicate(), desired_output_layouts=Shard(1), use_local_output=False
            ),
            "norm": SequenceParallel(),
            "up": ColwiseParallel(input_layouts=Shard(1)),
            "down": RowwiseParallel(),
        }

    training = gpt(kinds, num_microbatches=num_microbatches)
    layers = {
        name: (lambda: InSequence().double()) if 0 < n < len(kinds) - 1 else own
        for n, (name, own) in enumerate(training.layers.items())
    }

    def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, target = training.batch(number)
        return inputs[:, : LENGTH - 1], target[:, : LENGTH - 1]

    return Training(**(vars(training) | {"layers": layers, "batch": batch, "parallelize": cut}))


def tied_wide(kinds: str, *, num_microbatches: int) -> Training:
    """A tied weight would be cut."""
    return Training(**(vars(tied(kinds, num_microbatches=num_microbatches)) | {"parallelize": in_two}))


def misnamed(kinds: str, *, num_microbatches: int) -> Training:
    from torch.distributed.tensor.parallel import ColwiseParallel

    return vectors(kinds, num_microbatches=num_microbatches, parallelize=lambda *_: {"middle": ColwiseParallel()})


def unreduced(kinds: str, *, num_microbatches: int) -> Training:
    """What comes out is a part, whose bias every member adds."""
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    styles = {"inner": ColwiseParallel(), "outer": RowwiseParallel(output_layouts=Shard(-1))}
    return vectors(kinds, num_microbatches=num_microbatches, parallelize=lambda *_: dict(styles))


def of_transformers(name: str, *, num_microbatches: int) -> Training:
    """A small model of transformers as it is, in double precision; its layers are named as its modules."""
    import transformers

    torch.manual_seed(0)
    sizes = {"vocab_size": 16, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
    if name == "gpt2":
        config: Any = transformers.GPT2Config(
            vocab_size=16,
            n_positions=8,
            n_embd=16,
            n_layer=2,
            n_head=4,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )
        model: Any = transformers.GPT2LMHeadModel(config)
    elif name.startswith("llama"):
        heads = 1 if name == "llama of one" else 2
        more = {"intermediate_size": 24, "num_key_value_heads": heads, "max_position_embeddings": 8}
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **more))
    elif name == "qwen3":
        more = {"intermediate_size": 24, "num_key_value_heads": 2, "max_position_embeddings": 8, "head_dim": 4}
        model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**sizes, **more))
    elif name == "mixtral":
        more = {"intermediate_size": 12, "num_key_value_heads": 2, "num_local_experts": 4}
        model = transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes, **more))
        model.set_experts_implementation("eager")  # torch's grouped product knows no float64
    elif name == "qwen3_moe":
        more = {"moe_intermediate_size": 12, "num_key_value_heads": 2, "head_dim": 4, "num_experts": 4}
        model = transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**sizes, **more, num_experts_per_tok=2))
        model.set_experts_implementation("eager")
    elif name == "t5":
        more = {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0}
        model = transformers.T5ForConditionalGeneration(
            transformers.T5Config(vocab_size=16, decoder_start_token_id=0, **more)
        )
    else:
        more = {"intermediate_size": 24, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        model = transformers.BertForMaskedLM(transformers.BertConfig(**sizes, **more, max_position_embeddings=8))

    def batch(number: int) -> dict[str, torch.Tensor]:
        noise = torch.Generator().manual_seed(number)
        text = torch.randint(16, (num_microbatches * SAMPLES, 8), generator=noise)
        return {"input_ids": text, "labels": text.roll(1, 1)}

    return Training.from_module(model.double().train(), batch=batch, optimizer=Recording)


def gpt2(kinds: str, *, num_microbatches: int) -> Training:
    return of_transformers("gpt2", num_microbatches=num_microbatches)


def llama(kinds: str, *, num_microbatches: int) -> Training:
    return of_transformers("llama", num_microbatches=num_microbatches)


def llama_of_one(kinds: str, *, num_microbatches: int) -> Training:
    """One head of keys."""
    return of_transformers("llama of one", num_microbatches=num_microbatches)


def qwen3(kinds: str, *, num_microbatches: int) -> Training:
    """Norms of queries and keys, which every device of a group applies to its own heads."""
    return of_transformers("qwen3", num_microbatches=num_microbatches)


def bert(kinds: str, *, num_microbatches: int) -> Training:
    return of_transformers("bert", num_microbatches=num_microbatches)


def mixtral(kinds: str, *, num_microbatches: int) -> Training:
    """Weights of experts with three dimensions."""
    return of_transformers("mixtral", num_microbatches=num_microbatches)


def qwen3_moe(kinds: str, *, num_microbatches: int) -> Training:
    return of_transformers("qwen3_moe", num_microbatches=num_microbatches)


def t5(kinds: str, *, num_microbatches: int) -> Training:
    """A bias of positions that is handed from block to block."""
    return of_transformers("t5", num_microbatches=num_microbatches)


class Bare(Block):
    """Nothing comes behind the sum over the group."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(torch.tanh(self.inner(x)))


def wide_bare(kinds: str, *, num_microbatches: int) -> Training:
    training = wide(kinds, num_microbatches=num_microbatches)
    return Training(**(vars(training) | {"layers": dict.fromkeys(training.layers, lambda: Bare().double())}))


class ByNorm(Recording):
    """Steps of one length."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad /= parameter.grad.norm()
        super().step(closure)


def wide_normed(kinds: str, *, num_microbatches: int) -> Training:
    return Training(**(vars(wide(kinds, num_microbatches=num_microbatches)) | {"optimizer": ByNorm}))


def wide_alone() -> Training:
    """For the command line: four blocks, plain gradients."""
    training = wide("wwww", num_microbatches=4)
    return Training(**(vars(training) | {"optimizer": partial(torch.optim.AdamW, lr=0.01)}))


class EvenBlock(Block):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)


def uneven(kinds: str, *, num_microbatches: int) -> Training:
    """Six hidden units."""
    training = wide(kinds, num_microbatches=num_microbatches)
    return Training(**(vars(training) | {"layers": dict.fromkeys(training.layers, lambda: EvenBlock().double())}))


class Columns(nn.Module):
    """Weights that lie column by column, and with gaps."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH).t() / WIDTH)
        self.bias = nn.Parameter(torch.randn(2 * WIDTH)[::2])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(x @ self.weight + self.bias)


def columns(kinds: str, *, num_microbatches: int) -> Training:
    training = vectors(kinds, num_microbatches=num_microbatches)
    return Training(**(vars(training) | {"layers": dict.fromkeys(training.layers, lambda: Columns().double())}))


class Table(Block):
    """Adds rows of a table, whose gradient is sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, WIDTH, sparse=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x + self.table((x[:, 0] > 0).long()))


def table(kinds: str, *, num_microbatches: int) -> Training:
    training = vectors(kinds, num_microbatches=num_microbatches)
    return Training(**(vars(training) | {"layers": dict.fromkeys(training.layers, lambda: Table().double())}))


class Sloped(Block):
    """Takes a gradient within its forward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            place = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad((place**3).sum(), place)
        return super().forward(x + slope)


def sloped(kinds: str, *, num_microbatches: int) -> Training:
    training = vectors(kinds, num_microbatches=num_microbatches)
    return Training(**(vars(training) | {"layers": dict.fromkeys(training.layers, lambda: Sloped().double())}))


def last_weights(kinds: str, *, num_microbatches: int) -> Training:
    """As `images`, after `model.to(memory_format=torch.channels_last)`."""
    training = images(kinds, num_microbatches=num_microbatches)

    def last(make: Callable[[], nn.Module]) -> nn.Module:
        return make().to(memory_format=torch.channels_last)

    return Training(
        **(vars(training) | {"layers": {name: partial(last, make) for name, make in training.layers.items()}})
    )
