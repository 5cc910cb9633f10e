"""Small models that act otherwise backward than forward, or keep something from call to call, each kind by itself."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

WIDTH, CLASSES = 4, 3


class Through(torch.autograd.Function):
    """Quarters, forward; backward as if there were none."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return (4 * x).round() / 4

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


class Reversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return -ctx.factor * grad, None


class Softened(torch.autograd.Function):
    """A step whose backward is that of a tanh; with `setup_context`, and two results."""

    @staticmethod
    def forward(x: torch.Tensor, width: float = 2.0) -> tuple[torch.Tensor, torch.Tensor]:
        return (x > 0).to(x.dtype), x.abs()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.width = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, None]:
        (x,) = ctx.saved_tensors
        return grad * (1 - torch.tanh(x / ctx.width) ** 2) + other * x.sign(), None


class Doubled(torch.autograd.Function):
    """In place, and a gradient that is off on purpose."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


class Weighed(torch.autograd.Function):
    """A matrix product that is given its weight."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = ctx.saved_tensors
        return grad @ weight.t(), 0.5 * x.t() @ grad


class Taking(torch.autograd.Function):
    """Given a block, whose weights it is not given."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, block: nn.Module) -> torch.Tensor:
        ctx.block, ctx.x = block, x.detach()
        return block(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        with torch.enable_grad():
            x = ctx.x.requires_grad_()
            ctx.block(x).backward(grad)
        return x.grad, None


class HandedBack(torch.autograd.Function):
    """Gives its input, and half of its gradient."""

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        del ctx, inputs, output

    @staticmethod
    def backward(_: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad / 2


kept_apply, handed_back = Through.apply, HandedBack.apply
"""As people keep it."""


class Straight(nn.Module):
    """A module without weights."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return kept_apply(x)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 8), nn.Linear(8, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(functional.gelu(self.up(self.norm(x))))


class Stack(nn.Module):
    """What the models below change one thing of."""

    def __init__(self, block: Callable[[], nn.Module] = Block) -> None:
        super().__init__()
        self.inp = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(block() for _ in range(3))
        self.head = nn.Linear(WIDTH, CLASSES)
        self.register()

    def register(self) -> None:
        """Hooks and buffers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inp(x)
        for block in self.blocks:
            x = self.step(block, x)
        return self.head(x)

    def step(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return block(x)


class Rounded(Stack):
    def step(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return Through.apply(block(x))


class Reversed(Stack):
    def step(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return block(Reversal.apply(x, 0.3) if block is self.blocks[1] else x)


class Stepped(Stack):
    def step(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        gate, size = Softened.apply(block(x))
        return x + gate * size


class HandedOn(Stack):
    def step(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return handed_back(block(x)) + handed_back(x)


class HandedOnBeside(Stack):
    """Autograd does not see one of the calls."""

    def step(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            beside = kept_apply(x)
        return block(x) + beside + kept_apply(x)


class DoubledInPlace(Stack):
    def step(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return Doubled.apply(block(x)) / 2


class WeighedInBetween(Stack):
    def register(self) -> None:
        self.mix = nn.Parameter(torch.eye(WIDTH) + 0.1)

    def step(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return Weighed.apply(block(x), self.mix) if block is self.blocks[2] else block(x)


class BlockTaken(Stack):
    def step(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return Taking.apply(x, block)


def sequence() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), Straight(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 3))


class Checkpointed(Stack):
    def step(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(block, x, use_reentrant=True)


class CheckpointedFunction(Stack):
    """More than a block."""

    def step(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda y: y + torch.tanh(block(y)), 2 * x, use_reentrant=True, preserve_rng_state=False)


class CheckpointedDropout(Stack):
    def step(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda y: functional.dropout(block(y), 0.25, self.training), x, use_reentrant=True)


class CheckpointedFirst(Stack):
    """Of an input without gradient: the model as it is does not train its first block, whoever wanted that."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = checkpoint(self.blocks[0], x, use_reentrant=True)
        return self.head(self.blocks[2](self.blocks[1](x)))


class CheckpointedPairs(Stack):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(checkpoint_sequential(list(self.blocks), 2, self.inp(x), use_reentrant=True))


class NotReentrant(Stack):
    def step(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(block, x, use_reentrant=False)


class RowsHeld(Stack):
    def register(self) -> None:
        keep = torch.zeros(8, 1)
        keep[4:] = 1
        self.blocks[1].up.weight.register_hook(lambda grad: grad * keep)


class Scaled(Stack):
    """Each weight at a speed of its own."""

    def register(self) -> None:
        for number, parameter in enumerate(self.parameters()):
            parameter.register_hook(lambda grad, factor=1 / (1 + number): grad * factor)


class Clamped(Stack):
    def register(self) -> None:
        for parameter in self.parameters():
            parameter.register_hook(lambda grad: grad.clamp(-0.01, 0.01))


class TiedHook(Stack):
    """A hook that sees the sum of what two layers give, which is no sum of two hooks."""

    def register(self) -> None:
        self.head = nn.Linear(WIDTH, WIDTH)
        self.head.weight = self.inp.weight
        self.inp.weight.register_hook(torch.sign)


class AfterAccumulation(Stack):
    def register(self) -> None:
        self.head.weight.register_post_accumulate_grad_hook(self.shrink)

    @staticmethod
    def shrink(parameter: nn.Parameter) -> None:
        parameter.grad *= 0.5


class Between(Stack):
    def step(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = block(x)
        y.register_hook(lambda grad: grad * 0.5)
        return y


class LimitedBlock(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        if y.requires_grad:
            y.register_hook(lambda grad: grad.clamp(-0.01, 0.01))
        return y


class Limited(Stack):
    """Blocks limit the gradients of what they give."""

    def __init__(self) -> None:
        super().__init__(LimitedBlock)


class BetweenNormed(Stack):
    """A hook that is not linear, on what two take."""

    def step(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(x + 0.1)
        x.register_hook(lambda grad: grad / (grad.norm() + 1))
        return x + block(x)


class BetweenLate(Stack):
    """What was taken before the hook gives a gradient to it as well."""

    def step(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = block(x)
        x.register_hook(torch.sign)
        return x + y


class ByNode(Stack):
    """Past torch's functions."""

    def step(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = block(x)
        if y.grad_fn is not None:
            y.grad_fn.register_prehook(lambda grads: tuple(grad * 2 for grad in grads))
        return y


class ModuleHooks(Stack):
    """On blocks and on a part without weights."""

    def register(self) -> None:
        self.soft = nn.Tanh()
        self.blocks[0].register_full_backward_hook(lambda _, grads, __: tuple(grad * 0.5 for grad in grads))
        self.blocks[1].up.register_full_backward_pre_hook(lambda _, grads: tuple(grad * 2 for grad in grads))
        self.blocks[2].register_forward_hook(lambda _, __, output: output * 1.5)
        self.blocks[2].register_forward_pre_hook(lambda _, given: (given[0] + 0.25,))
        self.soft.register_full_backward_hook(lambda _, grads, __: tuple(grad * 3 for grad in grads))

    def step(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return self.soft(block(x))


class WholeHook(Stack):
    def register(self) -> None:
        self.register_full_backward_hook(self.double)

    @staticmethod
    def double(_: nn.Module, grads: Any, __: Any) -> Any:
        return tuple(None if grad is None else 2 * grad for grad in grads)


class WholeForwardHook(Stack):
    def register(self) -> None:
        self.register_forward_hook(lambda _, __, output: output * 2)
        self.register_forward_pre_hook(lambda _, given: (given[0] * 0.5,))


class Averaging(Stack):
    """The mean of what a block gives, noted in place and used."""

    def register(self) -> None:
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("unused", torch.arange(3.0))

    def step(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return self.average(block(x)) if block is self.blocks[1] else block(x)

    def average(self, y: torch.Tensor) -> torch.Tensor:
        y = y - self.mean
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(y.mean(0), alpha=0.1)
        return y


class AveragingTwice(Averaging):
    """The checkpoint notes the mean again as it recomputes."""

    def step(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(super().step, block, x, use_reentrant=True)


class NormedTwice(Stack):
    """Likewise the statistics of a batch norm."""

    def register(self) -> None:
        self.blocks = nn.ModuleList(NormedBlock() for _ in range(2))

    def step(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(block, x, use_reentrant=False)


class Packed(Stack):
    """Keeps what its backward needs in short, and loses digits."""

    def step(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        hooks = torch.autograd.graph.saved_tensors_hooks
        with hooks(lambda kept: kept.to(torch.bfloat16), lambda kept: kept.to(torch.float64)):
            return block(x)


class Assigning(Stack):
    """A buffer that is replaced, and one that counts; nothing uses them."""

    def register(self) -> None:
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        x = self.inp(x)
        for block in self.blocks:
            x = block(x)
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.head(x)


class Balanced(Stack):
    """Biases of experts, moved by how many samples chose each; one buffer for all blocks."""

    def register(self) -> None:
        self.register_buffer("bias", torch.zeros(3, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inp(x)
        for number, block in enumerate(self.blocks):
            x = block(x) + self.bias[number]
            self.bias[number] += 0.01 * (x.detach().argmax(-1, keepdim=True) == torch.arange(WIDTH)).double().mean(0)
        return self.head(x)


class BiasOfLast(Stack):
    """The same of the last block only."""

    def register(self) -> None:
        self.register_buffer("bias", torch.zeros(WIDTH))

    def step(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = block(x)
        if block is not self.blocks[2]:
            return y
        chosen = functional.one_hot((y + self.bias).argmax(-1), WIDTH).to(y.dtype)
        self.bias.copy_(self.bias + 0.01 * (chosen.mean(0) - 1 / WIDTH).sign())
        return y * (1 + chosen)


class NotedByHook(Stack):
    """A hook of a block's, by a method of the parent's, which no copy of the block can reach."""

    def register(self) -> None:
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.blocks[1].register_forward_hook(self.note)

    def note(self, _: nn.Module, __: Any, output: torch.Tensor) -> None:
        self.mean.mul_(0.9).add_(output.detach().mean(0), alpha=0.1)


class Teacher(Stack):
    """Weights that follow others."""

    def register(self) -> None:
        self.slow = nn.Linear(WIDTH, WIDTH).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.slow.weight.mul_(0.9).add_(self.inp.weight, alpha=0.1)
        return super().forward(x) + self.slow(x).mean()


SEEN = {"calls": 0}
"""Likewise, of all blocks."""


class GloballyCountingBlock(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        SEEN["calls"] += 1
        return super().forward(x) / SEEN["calls"]


class GloballyCounting(Stack):
    def __init__(self) -> None:
        super().__init__(GloballyCountingBlock)


@dataclass(frozen=True)
class Passed:
    """What blocks hand on."""

    x: torch.Tensor
    beside: tuple[torch.Tensor, int]


class PassingBlock(Block):
    def forward(self, given: Passed) -> Passed:
        return Passed(super().forward(given.x), (given.beside[0] + given.x, given.beside[1] + 1))


class Dataclasses(Stack):
    def __init__(self) -> None:
        super().__init__(PassingBlock)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given = Passed(self.inp(x), (torch.zeros_like(x), 0))
        for block in self.blocks:
            given = block(given)
        return self.head(given.x + given.beside[0] / given.beside[1])


class Counting(Stack):
    """A plain number that grows."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x) / self.calls


class Spectral(Stack):
    def register(self) -> None:
        for block in self.blocks:
            parametrizations.spectral_norm(block.up)
        parametrizations.weight_norm(self.inp)
        parametrizations.orthogonal(self.blocks[0].down)


class OldSpectral(Stack):
    def register(self) -> None:
        for block in self.blocks:
            nn.utils.spectral_norm(block.up)


class OldWeightNorm(Stack):
    def register(self) -> None:
        nn.utils.weight_norm(self.blocks[1].up)


class Symmetric(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.triu() + x.triu(1).t()


class Parametrized(Stack):
    def register(self) -> None:
        parametrize.register_parametrization(self.inp, "weight", Symmetric())


class Functional(Stack):
    """Called with other weights than its own."""

    def step(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(block, {name: 0.5 * each for name, each in block.named_parameters()}, (x,))


class FunctionalOwn(Stack):
    def step(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(block, dict(block.named_parameters()), (x,))


class Assigned(Stack):
    def __init__(self) -> None:
        super().__init__()
        self.blocks[1].load_state_dict(self.blocks[0].state_dict(), assign=True)


class SparseTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.blocks = nn.Embedding(9, WIDTH, sparse=True), nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.words(x.abs().long() % 9).mean(1)
        for block in self.blocks:
            y = block(y)
        return y


class SparseFunction(SparseTable):
    def __init__(self) -> None:
        super().__init__()
        self.words.sparse = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.embedding(x.abs().long() % 9, self.words.weight, sparse=True).mean(1)
        for block in self.blocks:
            y = block(y)
        return y


class NormedBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.drop = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.25)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(torch.relu(self.norm(self.linear(x))))


class Twice(Stack):
    """A block that is run again at the end: two layers, one set of weights."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inp(x)
        for block in (*self.blocks, self.blocks[0]):
            x = block(x)
        return self.head(x)


class Frozen(Stack):
    def register(self) -> None:
        self.inp.requires_grad_(False)
        self.blocks[1].up.weight.requires_grad_(False)


class Unused(Stack):
    """Weights and a buffer that no call takes."""

    def register(self) -> None:
        self.pooler = nn.Linear(WIDTH, WIDTH)
        self.pooler.weight.register_hook(torch.sign)
        self.register_buffer("table", torch.arange(3.0))


class WeightOfParent(Stack):
    """Blocks of which the parent takes some weights, through a function of its own, and their norms nobody."""

    def step(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return x + functional.linear(
            torch.relu(functional.linear(x, Through.apply(block.up.weight))), block.down.weight
        )


class MadeLate(Stack):
    """A buffer that the first forward makes."""

    def register(self) -> None:
        self.register_buffer("table", None)

    def step(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        if self.table is None:
            self.table = torch.linspace(0, 1, WIDTH, dtype=x.dtype)
        return block(x + self.table)


class Scripted(Stack):
    def register(self) -> None:
        self.blocks = nn.ModuleList(torch.jit.script(block) for block in self.blocks)


class Shapeless(Stack):
    def register(self) -> None:
        self.head = nn.LazyLinear(CLASSES)


class ForwardReplaced(Stack):
    """By a function that is made around the block itself."""

    def register(self) -> None:
        for block in self.blocks:
            block.forward = lambda x, inner=block.forward: checkpoint(inner, x, use_reentrant=True)


class Drawing(Stack):
    """Draws between blocks, by torch's functions."""

    def step(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(block(x) + 0.1 * torch.randn_like(x), 0.1, self.training)


class Wandering(Stack):
    """Goes its way by Python's random numbers."""

    def step(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return block(x) * (1 + random.random())


class WanderingLate(Stack):
    """Hardly ever."""

    def step(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = block(x)
        return y.detach() if random.random() < 1e-12 else y


class CountingLate(Stack):
    """Loses gradients once it has run often enough."""

    _calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._calls += 1
        return super().forward(x if self._calls < 1000 else x.detach())


class CountingBeside(Stack):
    """The same, where its count stands beside a tensor."""

    def register(self) -> None:
        self.seen: dict[str, Any] = {"calls": 0, "last": torch.zeros(())}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen["calls"] += 1
        self.seen["last"] = x.detach()
        return super().forward(x if self.seen["calls"] < 1000 else x.detach())


class Timed(Block):
    """Notes when it began."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.begun = time.perf_counter()
        return super().forward(x)


class Marked(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mark = object()
        return super().forward(x)


CALLS: dict[str, int] = {"model": 0, "block": 0}
LISTED: list[str] = []


class Counted(Block):
    total = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        CALLS["block"] += 1
        Counted.total += 1
        return super().forward(x)


class Listed(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        LISTED.append("block")
        return super().forward(x)


class Drawn(Block):
    """Draws for nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.draw = random.random()
        return super().forward(x)


class TimedAround(Stack):
    def __init__(self) -> None:
        super().__init__(Timed)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.begun = time.perf_counter()
        return super().forward(x)


class Decaying(Stack):
    """Its number is read by torch alone."""

    def register(self) -> None:
        self.drop = nn.Dropout(0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.drop.p += 1e-9
        return self.drop(super().forward(x))


class CountedAround(Stack):
    """Counts in what its blocks count in as well."""

    def __init__(self) -> None:
        super().__init__(Counted)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        CALLS["model"] += 1
        return super().forward(x if CALLS["model"] < 1000 else x.detach())


class CountedTwice(CountedAround):
    """Counts where its blocks count."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        CALLS["block"] += 1
        return Stack.forward(self, x if CALLS["block"] < 1000 else x.detach())


class ListedAround(Stack):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        LISTED.append("model")
        return super().forward(x)


class CountingOnce(Stack):
    """Notes its first call, and what it gave in all of them; nothing comes of it."""

    is_begun = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.is_begun = True
        self.given = [super().forward(x)]
        return self.given[0]


class LikeLayers(Stack):
    """Has names that layers could have for something of their own."""

    def register(self) -> None:
        self.steps, self.only, self.batch = self.blocks, self.head, self.inp
        del self.blocks, self.head, self.inp
        self.changed = nn.Parameter(torch.ones(WIDTH))
        self.register_buffer("layers", torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.batch(x) * self.changed + self.layers
        for block in self.steps:
            x = block(x)
        return self.only(x)


class LikeLayersStill(LikeLayers):
    """Has one that they have."""

    def register(self) -> None:
        super().register()
        self.kept_only = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.kept_only(x))


class Dropping(Stack):
    """LayerDrop: a block is left out by torch's random numbers."""

    def step(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return x if torch.rand([]) < 0.4 else block(x)


class Warming(Stack):
    """Goes another way once it has run often enough."""

    def register(self) -> None:
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x if self.calls > 1 else x / 2)


class SparseBuffer(Stack):
    def register(self) -> None:
        self.register_buffer("mix", torch.eye(WIDTH).to_sparse())

    def step(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return block(torch.sparse.mm(self.mix, x.T).T)


class OwnGenerator(Stack):
    """Draws from a generator that nobody puts back."""

    def register(self) -> None:
        self.draw = torch.Generator().manual_seed(3)

    def step(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return block(x) + torch.randn(x.shape, generator=self.draw)


class Left(nn.Module):
    """Leaves a tensor behind, which its owner's loss takes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        self.penalty = y.square().mean()
        return y


class LeftBehind(Stack):
    def __init__(self) -> None:
        super().__init__(Left)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + sum(block.penalty for block in self.blocks)


class Carrier:
    """What blocks hand on in an object that torch's trees do not know."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x, self.count = x, [0]


class CarriedBlock(Block):
    def forward(self, carrier: Carrier) -> Carrier:
        carrier.count[0] += 1
        carrier.x = super().forward(carrier.x)
        return carrier


class Carried(Stack):
    def __init__(self) -> None:
        super().__init__(CarriedBlock)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        carrier = Carrier(self.inp(x))
        for block in self.blocks:
            carrier = block(carrier)
        return self.head(carrier.x)


class Teaching(nn.Module):
    """A frozen copy that follows its pupil in every forward."""

    def __init__(self) -> None:
        super().__init__()
        self.pupil, self.slow = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.slow.weight.lerp_(self.pupil.weight, 0.1)
        return self.pupil(x) + self.slow(x)


class Taught(Stack):
    def __init__(self) -> None:
        super().__init__(Teaching)


class BySize(Stack):
    """Many samples, or one, are scaled otherwise."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) / (1.0 if 1 < len(x) <= 4 else 2.0)


class ByMode(Stack):
    """Of many samples only the head learns."""

    def step(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.set_grad_enabled(len(x) <= 4):
            return block(x).tanh()


class CompiledFunction(Stack):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return compiled(super().forward(x))


compiled = torch.compile(torch.sin, backend="aot_eager")


class Thawed(Stack):
    """A step counter in a buffer decides what learns."""

    def register(self) -> None:
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        hidden = self.blocks[0](self.inp(x))
        return self.head(hidden.detach() if self.steps.item() > 6 else hidden)


class SpectralTwice(Stack):
    """Each forward of a norm moves its buffers, once for every call."""

    def register(self) -> None:
        for block in self.blocks:
            parametrizations.spectral_norm(block.up)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) - super().forward(-x)


class Normed(Stack):
    def register(self) -> None:
        self.blocks[1].norm = nn.BatchNorm1d(WIDTH)


class Synchronised(Stack):
    def register(self) -> None:
        self.blocks[1].norm = nn.SyncBatchNorm(WIDTH)


class Scattering(Stack):
    """Rows of its inputs are named by numbers, which fewer samples do not have."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x[torch.arange(12)])
