"""Hooks of a model: what each is called, which a copy of a layer takes along, and which cannot be carried out."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch import nn

_KINDS = {
    "_forward_pre_hooks": "forward pre-hook",
    "_forward_hooks": "forward hook",
    "_backward_pre_hooks": "backward pre-hook",
    "_backward_hooks": "backward hook",
}
"""Of modules, by the attribute that keeps them."""


def describe_hook(hook: Any) -> str:
    """Its name in messages."""
    function = getattr(hook, "func", hook)
    return f"hook {getattr(function, '__qualname__', type(function).__qualname__)!r}"


def _hooks_of(holder: Any, attribute: str) -> list[Any]:
    return list((getattr(holder, attribute, None) or {}).values())


def find_hooks(module: nn.Module) -> Iterator[tuple[str, str]]:
    """Per hook the path that it belongs to, and what it is."""
    for path, part in module.named_modules():
        for attribute, kind in _KINDS.items():
            for hook in _hooks_of(part, attribute):
                yield path, f"{kind.removesuffix('hook')}{describe_hook(hook)} of module {path or 'itself'!r}"
    for path, parameter in module.named_parameters():
        for hook in _hooks_of(parameter, "_backward_hooks"):
            yield path, f"{describe_hook(hook)} of weight {path!r}"


def require_no_gradient_hooks(module: nn.Module, *, opened: Collection[nn.Module]) -> None:
    """Raise ValueError for hooks that no layer can carry out: on gradients of modules around the blocks, and after a
    weight's gradient was added up, which the executor does in other ways and at other times.
    """
    for path, part in module.named_modules():
        hooks = [*_hooks_of(part, "_backward_hooks"), *_hooks_of(part, "_backward_pre_hooks")]
        if hooks and part in opened:
            raise ValueError(
                f"module {path or type(part).__name__!r} contains the blocks and has a backward "
                f"{describe_hook(hooks[0])}; register it on a block, or on a tensor"
            )
    for path, parameter in module.named_parameters():
        if hooks := _hooks_of(parameter, "_post_accumulate_grad_hooks"):
            raise ValueError(
                f"weight {path!r} has a post-accumulate-grad {describe_hook(hooks[0])}, but gradients are summed over "
                "microbatches and replicas first; use `optimizer`, `schedule` or `max_norm`, or a plain hook "
                "(`register_hook`)"
            )


def require_dense_gradients(module: nn.Module) -> None:
    """Raise ValueError for tables whose gradients have rows for some words only."""
    for path, part in module.named_modules():
        if (
            isinstance(part, nn.Embedding | nn.EmbeddingBag)
            and part.sparse
            and any(each.requires_grad for each in part.parameters())
        ):
            raise ValueError(
                f"{path or 'the model'} is an {type(part).__name__} with sparse=True: sparse gradients are neither "
                "added up over microbatches nor reduced over replicas; set sparse=False"
            )


def describe_causes(module: nn.Module, acting: Sequence[str], *, path: str = "") -> str:
    """What may be why layers do not act as the model does, hooks near a path first."""
    hooks = [*_find_replaced(module), *find_hooks(module)]
    near = [text for place, text in hooks if place and f"{path}.".startswith(f"{place}.")]
    causes = list(dict.fromkeys((*near, *acting, *(text for _, text in hooks))))
    if not causes:
        return "; its forward does something between its blocks that is lost where layers run apart"
    more = f" and {len(causes) - 3} others" if len(causes) > 3 else ""
    return f"; what acts there: {', '.join(causes[:3])}{more}"


def _find_replaced(module: nn.Module) -> Iterator[tuple[str, str]]:
    """Modules whose forward is an attribute of their own: what it was made around is not copied with them."""
    for path, part in module.named_modules():
        if (function := vars(part).get("forward")) is not None:
            name = describe_hook(function).removeprefix("hook ")
            yield path, f"forward {name} in the place of that of module {path or 'itself'!r}"


def carry_weight_hooks(original: nn.Module, made: nn.Module) -> None:
    """Copies of weights are without the hooks on their gradients: give them theirs."""
    parameters = dict(made.named_parameters(remove_duplicate=False))
    for path, parameter in original.named_parameters():
        for hook in _hooks_of(parameter, "_backward_hooks"):
            if path in parameters and parameters[path].requires_grad:
                parameters[path].register_hook(hook)  # type: ignore[no-untyped-call]


def describe_gradient_hook(layer: nn.Module, *, only: str = "") -> str:
    """The first hook of a layer on the gradient of a weight (`only`: of this path), a tensor between blocks, or a
    module; or nothing.
    """
    for hook in () if only else getattr(layer, "tensor_hooks", ()):
        return f"a tensor between blocks has a {describe_hook(hook)}"
    for _, what in () if only else find_hooks(layer):
        if what.startswith("backward"):
            return what
    for path, parameter in layer.named_parameters():
        for hook in _hooks_of(parameter, "_backward_hooks") if only in ("", path) else ():
            return f"weight {path!r} has a {describe_hook(hook)}"
    return ""


def find_strangers(part: nn.Module) -> list[nn.Module]:
    """Modules outside of a part whose methods are its hooks: a copy of the part must not copy them."""
    own = set(part.modules())
    hooks = [hook for each in own for attribute in _KINDS for hook in _hooks_of(each, attribute)]
    owners = [getattr(hook, "__self__", None) for hook in hooks]
    return [owner for owner in owners if isinstance(owner, nn.Module) and owner not in own]


def find_derived(part: nn.Module) -> list[torch.Tensor]:
    """Tensors in plain attributes that were computed of weights (`torch.nn.utils.weight_norm`): they are computed
    again in every forward, and cannot be copied.
    """
    return [
        value
        for each in part.modules()
        for value in vars(each).values()
        if isinstance(value, torch.Tensor) and value.grad_fn is not None
    ]
