"""Weight gradients that wait: I runs a whole backward in which some layers only note what W has to compute.

What is noted: weights and biases of `nn.Linear`, `nn.Conv1d` to `nn.Conv3d`, `nn.Embedding` and subclasses that compute
as they do, of the `Conv1D` of transformers, and what `nn.MultiheadAttention` and modules with weights of three
dimensions (experts) hand to `torch.nn.functional.linear`. Other parameters (of normalisations, say), and all of what is
compiled, get their gradient within I. The sums are the same, bit by bit, as those of a plain backward.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, cast
from unittest import mock

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class WeightGradStore:
    """What one stage has put off. Put off it is only while `is_deferring`: a whole backward computes it at once."""

    def __init__(self) -> None:
        self.is_deferring = False
        self.is_noting = True
        """Whether what runs forward now may have its weight gradients put off; if not, layers run as they are: a
        backward of Python functions takes longer than torch's own."""
        self.is_open = True
        """Whether a backward that comes by is the stage's own; any other must not leave gradients behind."""
        self.is_watching = True
        """Whether weights are to be as they were in the forward: not where one graph serves all iterations."""
        self.after: Callable[[Collection[str]], None] | None = None
        """What W does once it has all weight gradients of a layer of the stage, given those whose are still to come."""
        self._waiting: list[WeightGrad] = []

    def put(self, call: "WeightGrad") -> None:
        """Put off one weight's gradient."""
        self._waiting.append(call)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Meanwhile a backward is the stage's own."""
        before, self.is_open = self.is_open, True
        try:
            yield
        finally:
            self.is_open = before

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Meanwhile a backward is another's: a layer runs."""
        before, self.is_open = self.is_open, False
        try:
            yield
        finally:
            self.is_open = before

    def take(self) -> Callable[[], None]:
        """A function that computes all that waits (it is taken at the end of I, and called as W, once)."""
        return partial(_compute_all, self.take_waiting(), after=self.after)

    def take_waiting(self) -> list["WeightGrad"]:
        """All that waits, in the order in which it was put off; nothing waits afterwards."""
        waiting, self._waiting = self._waiting, []
        return waiting


def defer_weight_grads(module: nn.Module, store: WeightGradStore, *, owner: str = "") -> int:
    """Make the layers inside `module` use the store; returns how many do. State dictionaries stay as they were.

    `owner`: what the module is called where something is wrong.
    """
    converted, compiled = 0, {part for root in module.modules() if is_compiled(root) for part in root.modules()}
    for name, layer in module.named_modules(prefix=owner):
        if layer in compiled:
            continue
        if _is_convertible(layer):
            layer.forward = _make_forward(layer, store, name=name, owner=owner)
            converted += 1
        elif _passes_weights_to_linear(layer):
            layer.forward = _LinearCalls(layer, store, name=name, owner=owner)
            converted += 1
    return converted


def is_compiled(module: nn.Module) -> bool:
    """By its own `compile()`; what is in it runs as it was compiled, input and weight gradients together."""
    return module._compiled_call_impl is not None


def _passes_weights_to_linear(layer: nn.Module) -> bool:
    own = list(layer.parameters(recurse=False))
    if _is_patched(layer):
        return False
    if type(layer) is not nn.MultiheadAttention and not any(parameter.dim() == 3 for parameter in own):
        return False
    return any(parameter.requires_grad for parameter in own) and not _is_watched(layer)


def _is_watched(layer: nn.Module) -> bool:
    return any(each._backward_hooks or each._post_accumulate_grad_hooks for each in layer.parameters(recurse=False))


def _is_convertible(layer: nn.Module) -> bool:
    """These, and subclasses that compute what they do; hooks want to see every gradient."""
    rule, weight = _find_rule(layer), layer._parameters.get("weight")  # one that is computed may change with each look
    if rule is None or not rule.fits(layer) or not isinstance(weight, nn.Parameter) or not weight.requires_grad:
        return False
    return not _is_watched(layer)


def _find_rule(layer: nn.Module) -> "type[_GradientRule] | None":
    """None: its class, or the layer itself, uses its weights in a way that is not known."""
    kind = type(layer)
    if _is_patched(layer) or kind is NonDynamicallyQuantizableLinear:  # whose weight its owner uses
        return None
    if is_conv1d(kind):
        return _Conv1DRule
    known = next((base for base in _RULES if issubclass(kind, base)), None)
    if known is None:
        return None
    is_own = any(getattr(kind, name, None) is not getattr(known, name, None) for name in ("forward", "_conv_forward"))
    return None if is_own else _RULES[known]


def _is_patched(layer: nn.Module) -> bool:
    """Whether another's function stands for its forward, as accelerate's hooks do."""
    forward = vars(layer).get("forward")
    return forward is not None and getattr(forward, "__module__", "") != __name__


def is_conv1d(kind: type) -> bool:
    """A linear layer whose weight lies the other way round; transformers need not be there."""
    return f"{kind.__module__}.{kind.__qualname__}" == "transformers.pytorch_utils.Conv1D"


def _make_forward(
    layer: Any, store: WeightGradStore, *, name: str, owner: str
) -> Callable[[torch.Tensor], torch.Tensor]:
    kind = _find_rule(layer)
    assert kind is not None
    rule = kind(layer, name=name, owner=owner)

    def forward(x: torch.Tensor) -> torch.Tensor:
        weight = layer.weight
        is_trained = isinstance(weight, nn.Parameter) and weight.requires_grad
        if not (store.is_noting and is_trained and torch.is_grad_enabled()):
            return cast(torch.Tensor, type(layer).forward(layer, x))
        bias = getattr(layer, "bias", None)
        return cast(torch.Tensor, _Deferred.apply(x, weight, bias, rule, store))  # type: ignore[no-untyped-call]

    return forward


class _GradientRule:
    """How one kind of layer computes its output and its three gradients."""

    def __init__(self, layer: Any, *, name: str, owner: str) -> None:
        """`name`: for messages; `owner`: the layer of the stage that it is a part of."""
        self.layer, self.name, self.owner = layer, name, owner

    @staticmethod
    def fits(layer: Any) -> bool:  # noqa: ARG004
        """Whether the rule knows what this one is set to."""
        return True

    def output(self, x: torch.Tensor, *, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """The layer's own forward."""
        raise NotImplementedError

    def input_grad(self, grad: torch.Tensor, *, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Gradient of `x`, of its shape."""
        raise NotImplementedError

    def weight_grad(self, grad: torch.Tensor, *, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Gradient of `weight`, of its shape."""
        raise NotImplementedError

    def bias_grad(self, grad: torch.Tensor) -> torch.Tensor:
        """Gradient of the bias: `grad` summed over all but the output's dimension."""
        raise NotImplementedError


class _LinearRule(_GradientRule):
    def output(self, x: torch.Tensor, *, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return functional.linear(x, weight, bias)

    def input_grad(self, grad: torch.Tensor, *, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return (grad.reshape(-1, grad.shape[-1]) @ weight).reshape(x.shape)

    def weight_grad(self, grad: torch.Tensor, *, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        return grad.reshape(-1, grad.shape[-1]).t() @ x.reshape(-1, x.shape[-1])

    def bias_grad(self, grad: torch.Tensor) -> torch.Tensor:
        return grad.reshape(-1, grad.shape[-1]).sum(0)


class _Conv1DRule(_LinearRule):
    def output(self, x: torch.Tensor, *, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        assert bias is not None
        return torch.addmm(bias, x.view(-1, x.shape[-1]), weight).view(*x.shape[:-1], weight.shape[1])

    def input_grad(self, grad: torch.Tensor, *, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return (grad.reshape(-1, grad.shape[-1]) @ weight.t()).reshape(x.shape)

    def weight_grad(self, grad: torch.Tensor, *, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        return x.reshape(-1, x.shape[-1]).t() @ grad.reshape(-1, grad.shape[-1])


class _ConvolutionRule(_GradientRule):
    @staticmethod
    def fits(layer: Any) -> bool:
        return layer.padding_mode == "zeros" and not isinstance(layer.padding, str)

    def output(self, x: torch.Tensor, *, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return cast(torch.Tensor, self.layer._conv_forward(x, weight, bias))

    def input_grad(self, grad: torch.Tensor, *, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self._gradient(grad, x, weight=weight, which=0)

    def weight_grad(self, grad: torch.Tensor, *, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self._gradient(grad, x, weight=weight, which=1)

    def bias_grad(self, grad: torch.Tensor) -> torch.Tensor:
        return self._batched(grad).sum([0, *range(2, 2 + len(self.layer.kernel_size))])

    def _batched(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if tensor.dim() == 2 + len(self.layer.kernel_size) else tensor.unsqueeze(0)

    def _gradient(self, grad: torch.Tensor, x: torch.Tensor, *, weight: torch.Tensor, which: int) -> torch.Tensor:
        layer, mask = self.layer, [which == 0, which == 1, False]
        shape = (layer.stride, layer.padding, layer.dilation, False, [0] * len(layer.kernel_size), layer.groups)
        backward = torch.ops.aten.convolution_backward
        result = backward(self._batched(grad), self._batched(x), weight, [weight.shape[0]], *shape, mask)[which]
        return cast(torch.Tensor, result.reshape(x.shape) if which == 0 else result)


class _EmbeddingRule(_GradientRule):
    @staticmethod
    def fits(layer: Any) -> bool:
        return not layer.sparse and layer.max_norm is None

    def output(self, x: torch.Tensor, *, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:  # noqa: ARG002
        return functional.embedding(x, weight, self.layer.padding_idx, None, 2.0, self.layer.scale_grad_by_freq)

    def weight_grad(self, grad: torch.Tensor, *, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        padding = -1 if self.layer.padding_idx is None else self.layer.padding_idx
        backward = torch.ops.aten.embedding_dense_backward
        return cast(torch.Tensor, backward(grad, x, weight.shape[0], padding, self.layer.scale_grad_by_freq))


_RULES: dict[type, type[_GradientRule]] = {nn.Linear: _LinearRule, nn.Embedding: _EmbeddingRule} | dict.fromkeys(
    _CONVOLUTIONS, _ConvolutionRule
)


class _Deferred(torch.autograd.Function):
    """One layer whose weight's gradient may wait.

    The parameters stay attributes of the context: under recomputation `saved_tensors` gives detached copies of them,
    and their gradients would be lost.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        ctx.weight, ctx.bias, ctx.rule, ctx.store = rest
        ctx.version = ctx.weight._version
        y: torch.Tensor = ctx.rule.output(x, weight=ctx.weight, bias=ctx.bias)
        ctx.x_dtype, ctx.is_weight = x.dtype, isinstance(_whole(x), nn.Parameter)
        ctx.save_for_backward(x.to(y.dtype) if x.is_floating_point() else x)  # autocast computes in the type of y
        return y

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if not ctx.store.is_open:
            raise RuntimeError(
                f"torch.autograd.grad, or backward, goes through {ctx.rule.name or 'a layer'} outside of its stage's "
                "own backward, which mixes with delayed weight gradients; let a layer differentiate only what it "
                "computes itself"
            )
        return _Deferred.apply_rule(ctx, grad)

    @staticmethod
    @once_differentiable
    def apply_rule(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The input gradient now, the weight's now or later."""
        (x,), weight, bias = ctx.saved_tensors, ctx.weight, ctx.bias
        x_grad = None
        if ctx.needs_input_grad[0]:
            if ctx.store.is_watching and weight._version != ctx.version:  # torch would see it of what it saves itself
                raise RuntimeError(
                    f"the weight of {ctx.rule.name or 'a layer'} has changed between its forward and its backward, "
                    "perhaps in the forward of another microbatch; change it after the optimizer's step"
                )
            x_grad = ctx.rule.input_grad(grad, x=x, weight=weight.to(grad.dtype)).to(ctx.x_dtype)
        call = WeightGrad(ctx.rule, weight, bias, x, grad)
        if ctx.store.is_deferring:
            ctx.store.put(call._replace(x=x.clone()) if ctx.is_weight else call)  # in W weights may be elsewhere
        else:
            call()
        return x_grad, None, None, None, None


class WeightGrad(NamedTuple):
    """One weight's gradient, and its bias's, as W computes them."""

    rule: _GradientRule
    weight: nn.Parameter
    bias: nn.Parameter | None
    x: torch.Tensor
    """Input of the layer."""
    grad: torch.Tensor
    """The gradient of what it gave."""

    @property
    def trained(self) -> list[nn.Parameter]:
        """The parameters whose gradients it adds to."""
        found = [self.weight] if self.bias is None or not self.bias.requires_grad else [self.weight, self.bias]
        return [cast(nn.Parameter, _whole(each)) for each in found]

    @torch.no_grad()
    def __call__(self) -> None:
        """Add them up, without a graph: otherwise every gradient would keep its own alive."""
        rule, weight, bias, x, grad = self
        add_grad(weight, rule.weight_grad(grad, x=x, weight=_shaped_as(weight, grad.dtype)))
        if bias is not None and bias.requires_grad:
            add_grad(bias, rule.bias_grad(grad))


def _shaped_as(weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A weight whose values nobody asks for; they may be elsewhere in W (`full_sharding.py`)."""
    is_there = weight.untyped_storage().nbytes() > 0
    return weight.to(dtype) if is_there else torch.empty_like(weight, dtype=dtype)


def _compute_all(calls: list[WeightGrad], *, after: Callable[[Collection[str]], None] | None) -> None:
    """All that W of one microbatch computes, and forget what it was computed of; `after`: as in the store."""
    left = Counter(call.rule.owner for call in calls)
    for call in calls:
        call()
        left[call.rule.owner] -= 1
        if after is not None and not left[call.rule.owner]:
            after(+left)
    if after is not None and not calls:
        after(())
    calls.clear()


class _LinearCalls:
    """The forward of a layer that hands weights of its own, or parts of them, to `torch.nn.functional.linear`."""

    def __init__(self, layer: nn.Module, store: WeightGradStore, *, name: str, owner: str) -> None:
        self.layer, self.store, self.rule = layer, store, _LinearRule(layer, name=name, owner=owner)

    def __call__(self, *args: Any, **named: Any) -> Any:
        """What the layer gives; meanwhile the function is ours."""
        own = {id(parameter) for parameter in self.layer.parameters() if parameter.requires_grad}

        def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
            if self.store.is_noting and torch.is_grad_enabled() and id(_whole(weight)) in own:
                found = _Deferred.apply(x, weight, bias, self.rule, self.store)  # type: ignore[no-untyped-call]
                return cast(torch.Tensor, found)
            return _LINEAR(x, weight, bias)

        with mock.patch.object(functional, "linear", linear):
            return type(self.layer).forward(self.layer, *args, **named)


_LINEAR = functional.linear


def _whole(weight: torch.Tensor) -> torch.Tensor:
    """What a part is part of."""
    return weight if weight._base is None else weight._base


def add_grad(parameter: torch.Tensor, grad: torch.Tensor) -> None:
    """Add to a parameter's gradient, or to its part of the gradient where it is a part of a parameter."""
    whole = _whole(parameter)
    grad = grad.to(whole.grad_dtype or whole.dtype)
    if whole is not parameter:
        if whole.grad is None:
            whole.grad = torch.zeros_like(whole)
        place = parameter.storage_offset() - whole.storage_offset()
        place += whole.grad.storage_offset()
        whole.grad.as_strided(parameter.shape, parameter.stride(), place).add_(grad)
        return
    if parameter.grad is None:
        parameter.grad = grad
    else:
        parameter.grad += grad
