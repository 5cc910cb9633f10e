"""Batch normalisation over all replicas of a stage: the statistics of the whole microbatch, as one process has them.

torch.nn.SyncBatchNorm needs accelerators and knows the default process group only. Here every call of
`torch.nn.functional.batch_norm` in training is answered, whichever module makes it: each replica tells the others mean
and squared deviations of its samples, all put them together in one order, and the backward adds up its two sums.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import distributed, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from planner.execute.model.cut.recording import unpack


class _BatchNormCall(NamedTuple):
    """Input, running averages, weights and settings of one call of a batch norm."""

    x: torch.Tensor
    running_mean: torch.Tensor | None
    running_var: torch.Tensor | None
    weight: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    training: bool = False
    momentum: float = 0.1
    eps: float = 1e-5


_NAMES = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
"""What torch.nn.functional.batch_norm takes, in the order of `_BatchNormCall`."""


def _read(func: Any, *, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _BatchNormCall | None:
    """The call, if it is one of a batch norm that can be answered."""
    if func is functional.batch_norm:
        given = dict(zip(_NAMES, args, strict=False)) | dict(kwargs)
        return _BatchNormCall(
            **{field: given[name] for field, name in zip(_BatchNormCall._fields, _NAMES, strict=True) if name in given}
        )
    if func is torch.batch_norm:
        x, weight, bias, mean, var, training, momentum, eps, *_ = args
        return _BatchNormCall(x, mean, var, weight, bias, training, momentum, eps)
    return None


_UNANSWERED = (torch.native_batch_norm, torch.batch_norm_stats, torch.batch_norm_elemt)
"""Other ways to the same, which no module of torch's takes on its own."""
_AUTOGRAD = (torch.autograd.grad, torch.autograd.backward, torch.Tensor.backward)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What was seen of a layer in a run without data."""

    forward_exchanges: int = 0
    """How often it normalises by the statistics of the microbatch."""
    backward_exchanges: int = 0
    """Exchanges of statistics in a backward."""
    has_unanswered_batch_norm: bool = False
    """It does so in a way that cannot be answered for several replicas."""
    differentiates: bool = False
    """It calls torch.autograd itself, so its weight gradients must not wait."""
    has_hooks: bool = False
    """It hooks something to the gradients of tensors that it makes or is given."""
    moved_weights: tuple[str, ...] = ()
    """Paths of the weights that its forward changes."""

    @property
    def has_batch_norm(self) -> bool:
        """Whether it normalises by the statistics of the microbatch."""
        return self.forward_exchanges > 0


class TraitFinder(TorchFunctionMode):
    """Sees what layers call."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()
        self._aliases: list[tuple[torch.Tensor, torch.Tensor | None]] = []
        """Tensors whose `data` were asked for, which count their versions apart, or None if they were given others."""

    def __torch_function__(self, func: Any, types: Any, *given: Any) -> Any:
        """Note it, and do it."""
        args, kwargs = unpack(given)
        call = _read(func, args=args, kwargs=kwargs)
        if call is not None and call.training:
            self.seen["norms"] += 1
            self.seen["differentiated norms"] += call.x.requires_grad
        if any(func is other for other in _UNANSWERED):
            self.seen["unanswered"] += 1
        if any(func is other for other in _AUTOGRAD):
            self.seen["autograd"] += 1
        if func is torch.Tensor.register_hook:
            self.seen["hooks"] += 1
        found = func(*args, **kwargs)
        if getattr(func, "__self__", None) is torch.Tensor.data:
            self._aliases.append((args[0], found))
        return found

    @contextmanager
    def finding(self, traits: dict[str, Traits], name: str, *, layer: nn.Module) -> Iterator[None]:
        """Note what happens meanwhile under the name of a layer."""
        self.seen, self._aliases = Counter(), []
        weights = [(path, each, each._version) for path, each in layer.named_parameters()]
        with self:
            yield
        after = dict(layer.named_parameters())
        changed = [each for each, alias in self._aliases if alias is None or alias._version]
        written = {id(each if each._base is None else each._base) for each in changed}
        traits[name] = Traits(
            forward_exchanges=self.seen["norms"],
            backward_exchanges=self.seen["differentiated norms"],
            has_unanswered_batch_norm=self.seen["unanswered"] > 0,
            differentiates=self.seen["autograd"] > 0,
            has_hooks=self.seen["hooks"] > 0,
            moved_weights=tuple(
                path
                for path, each, version in weights
                if each._version != version or id(each) in written or after.get(path) is not each
            ),
        )


class _Moments(NamedTuple):
    """Of one channel each."""

    mean: torch.Tensor
    squares: torch.Tensor
    """Sum of squared deviations from the mean."""
    size: int
    """Samples that the moments are over."""


Exchange = Callable[[torch.Tensor], list[torch.Tensor]]
"""Gives every replica's tensor, in the order of the replicas."""


def exchange_in(group: Any) -> Exchange:
    """The exchange among the processes of a group."""

    def exchange(tensor: torch.Tensor) -> list[torch.Tensor]:
        parts = [torch.empty_like(tensor) for _ in range(distributed.get_world_size(group))]
        distributed.all_gather(parts, tensor, group=group)
        return parts

    return exchange


def running_averages(layer: nn.Module) -> list[torch.Tensor]:
    """What batch norms keep of the microbatches in training; nothing that they give in training depends on it."""
    return [
        buffer for part in layer.modules() if isinstance(part, _BatchNorm) for buffer in part.buffers(recurse=False)
    ]


def _combine(parts: Sequence[_Moments]) -> _Moments:
    """The moments of all samples from those of disjoint sets of them."""
    size = sum(part.size for part in parts)
    mean = torch.stack([part.mean * part.size for part in parts]).sum(0) / size
    between = torch.stack([part.size * (part.mean - mean) ** 2 for part in parts]).sum(0)
    return _Moments(mean, torch.stack([part.squares for part in parts]).sum(0) + between, size)


@dataclass(slots=True)
class Memory:
    """The moments of one layer's run on one microbatch, for its recomputation."""

    moments: list[_Moments] = field(default_factory=list)
    position: int | None = None
    """Where a recomputation is; None while the first run writes."""


class ReplicaBatchNorms(TorchFunctionMode):
    """While it is active, batch norms in training see the samples of all replicas."""

    def __init__(self, exchange: Exchange, memory: Memory) -> None:
        super().__init__()
        self.exchange, self.memory = exchange, memory

    def __torch_function__(self, func: Any, types: Any, *given: Any) -> Any:
        """Answer batch norms, leave everything else as it is."""
        args, kwargs = unpack(given)
        call = _read(func, args=args, kwargs=kwargs)
        if call is None or not call.training:
            return func(*args, **kwargs)
        moments = self._moments(call)
        return _Normalise.apply(  # type: ignore[no-untyped-call]
            call.x, call.weight, call.bias, moments, call.eps, self.exchange
        )

    def _moments(self, call: _BatchNormCall) -> _Moments:
        memory = self.memory
        if memory.position is not None:  # the running statistics have had this microbatch, and the others are busy
            memory.position += 1
            return memory.moments[memory.position - 1]
        moments = self._measure(call.x)
        memory.moments.append(moments)
        _update(call, moments)
        return moments

    @torch.no_grad()
    def _measure(self, x: torch.Tensor) -> _Moments:
        values, axes = x.to(_wide(x)), [axis for axis in range(x.dim()) if axis != 1]
        mean, size = values.mean(axes), x.numel() // x.shape[1]
        squares = (values - _spread(mean, x)).square_().sum(axes)  # torch.var_mean takes twenty times as long
        parts = self.exchange(torch.stack([mean, squares]))
        moments = _combine([_Moments(part[0], part[1], size) for part in parts])
        if moments.size < 2:
            raise ValueError(f"Expected more than 1 value per channel when training, got input size {list(x.shape)}")
        return moments


@torch.no_grad()
def _update(call: _BatchNormCall, moments: _Moments) -> None:
    unbiased = moments.squares / (moments.size - 1)
    for running, value in ((call.running_mean, moments.mean), (call.running_var, unbiased)):
        if running is not None:
            running.mul_(1 - call.momentum).add_(value.to(running.dtype) * call.momentum)


class _Normalise(torch.autograd.Function):
    """(x - mean) / sqrt(var + eps) * weight + bias, where mean and var depend on the x of all replicas.

    With moments that are given it is what torch does in evaluation, by operators that hold nothing beside their
    result; what the moments themselves depend on is one more sweep of the backward.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        weight, bias, moments, ctx.eps, ctx.exchange = rest
        ctx.size, variance = moments.size, moments.squares / moments.size
        ctx.save_for_backward(x, weight, moments.mean, variance)
        wide = _wide(x)
        y = functional.batch_norm(
            x.to(wide), moments.mean, variance, _to(weight, wide), _to(bias, wide), training=False, eps=ctx.eps
        )
        return y.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, mean, variance = ctx.saved_tensors
        dtype, wide, weights = x.dtype, _wide(x), _to(weight, _wide(x))
        needs_x, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        x, grad = x.to(wide), grad.to(wide)
        x_grad, normal_sum, grad_sum = torch.ops.aten.native_batch_norm_backward(
            grad, x, weights, mean, variance, None, None, False, ctx.eps, [needs_x, True, True]
        )
        if needs_x:
            whole = torch.stack(ctx.exchange(torch.stack([grad_sum, normal_sum]))).sum(0) / ctx.size
            scale = torch.rsqrt(variance + ctx.eps)
            factor = scale if weights is None else scale * weights
            x_grad.addcmul_(x - _spread(mean, x), _spread(whole[1] * scale * factor, x), value=-1)
            x_grad = x_grad.sub_(_spread(whole[0] * factor, x)).to(dtype)
        weight_grad = normal_sum.to(weight.dtype) if needs_weight else None
        return x_grad if needs_x else None, weight_grad, grad_sum if needs_bias else None, None, None, None


def _spread(values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """One per channel, as something that fits x."""
    return values.reshape(1, -1, *[1] * (x.dim() - 2))


def _wide(x: torch.Tensor) -> torch.dtype:
    """Short types are added up in float32, as torch does."""
    return torch.float32 if x.dtype in (torch.bfloat16, torch.float16) else x.dtype


def _to(values: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """In that type, if there are any."""
    return None if values is None else values.to(dtype)
