"""A cut model trained beside the model as it is: two updates from the same weights, buffers and random numbers.

Every layer runs apart, as if a stage ended behind it. Losses, the gradient of every weight, weights and buffers have to
be the same, to a tolerance of their type; the model is afterwards what it was.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from planner.execute.model.cut.cut_layer import copy_part
from planner.execute.model.cut.cut_model import CutModel, kept_state, refusing
from planner.execute.model.cut.hooks import describe_causes
from planner.execute.model.cut.module_state import ModuleState, seed_separately
from planner.execute.model.cut.trees import tensors_of

Loss = Callable[[Any, torch.Tensor], torch.Tensor]

RATE = 0.1
"""Of an update: how far all weights together go."""

TOLERANCES = {
    torch.float64: (1e-9, 1e-13),
    torch.float32: (1e-3, 1e-5),
    torch.float16: (2e-2, 2e-3),
    torch.bfloat16: (1e-1, 2e-2),
}
"""Per type the difference that is allowed: as a part of a tensor's own largest element, and of the model's largest
gradient, for gradients that are nothing but rounding (biases of keys, say). The coarsest type of the weights counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A few samples of the first batch."""

    arguments: Any
    """Positional ones and those by name."""
    target: torch.Tensor


def require_same_training(
    module: nn.Module, cut: CutModel, *, samples: Sequence[Sample], loss: Loss, cut_loss: Loss
) -> bool:
    """Raise ValueError that names what differs, and its cause, between the model and its layers. Gives whether they
    could be compared: torch has not all kernels of all types for the host.

    `samples`: of one update each; `loss`: of what the model gives; `cut_loss`: of what the last layer gives.
    """
    with refusing(module), _reproducible(), kept_state(module, has_weights=True) as state:
        for part in module.modules():
            part._compiled_call_impl = None  # which copies are without
        comparison = _Comparison(module, cut, state=state)
        try:
            for number, sample in enumerate(samples):
                comparison.update(number, sample, loss=loss, cut_loss=cut_loss)
        except _NoKernelError:
            return False
        except _DifferenceError as error:
            causes = [*comparison.find_parted(), *state.find_changed(), *cut.recording.acting]
            state.restore()
            if not _repeats(module, samples[0], loss=loss, state=state):
                raise ValueError(
                    "it gives other gradients each time from the same weights, buffers and random numbers, so layers "
                    "cannot be compared with it; let it draw from torch's default generator, and let its loss keep "
                    "nothing from call to call"
                ) from None
            raise ValueError(f"{error}{describe_causes(module, causes, path=error.path)}") from None
        return True


class _NoKernelError(Exception):
    """Torch has no backward of its type on this device."""


class _DifferenceError(Exception):
    def __init__(self, text: str, *, path: str = "") -> None:
        super().__init__(text)
        self.path = path


@contextmanager
def _reproducible() -> Iterator[None]:
    """Kernels that give the same again, where there are some."""
    memory: Any = torch.utils.deterministic
    before, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fills = memory.fill_uninitialized_memory
    with warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("ignore")
        torch.use_deterministic_algorithms(True, warn_only=True)
        memory.fill_uninitialized_memory = False
        try:
            yield
        finally:
            memory.fill_uninitialized_memory = fills
            torch.use_deterministic_algorithms(before, warn_only=warns)


def _seed(number: int) -> None:
    torch.manual_seed(number)
    seed_separately(number)


class _Comparison:
    """The model, and copies of its layers that are trained beside it."""

    def __init__(self, module: nn.Module, cut: CutModel, *, state: ModuleState) -> None:
        self.module, self.cut = module, cut
        self.layers = {name: copy_part(layer, values={}) for name, layer in cut.layers.items()}
        self.weights = dict(module.named_parameters())
        self.before = {path: buffer.detach().clone() for path, buffer in module.named_buffers()}
        self.state = state
        paths = {id(each): path for path, each in self.weights.items()}
        every = {path: paths[id(each)] for path, each in module.named_parameters(remove_duplicate=False)}
        self.copies: dict[str, list[nn.Parameter]] = {path: [] for path in self.weights}
        for layer in self.layers.values():
            for path, copy in layer.named_parameters():
                self.copies[every[path]].append(copy)
        kinds = [each.dtype for each in self.weights.values() if each.dtype in TOLERANCES]
        self.relative, self.floor = max((TOLERANCES[kind] for kind in kinds), default=TOLERANCES[torch.float32])

    def update(self, number: int, sample: Sample, *, loss: Loss, cut_loss: Loss) -> None:
        """One of both; raises _DifferenceError."""
        try:
            whole = _run_whole(self.module, sample, loss=loss, number=number)
            if not whole.requires_grad:
                return
            torch.autograd.backward(whole)
        except RuntimeError as error:
            if "not implemented" in str(error):
                raise _NoKernelError from error
            raise ValueError(f"uncut, it fails in update {number + 1}: {str(error).splitlines()[0]}") from error
        _seed(number)
        found = run_separately(self.layers, self.cut.inputs, batch=tensors_of(sample.arguments))
        mine = cut_loss(found.leaving, sample.target)
        found.backward(mine)
        self._compare_losses(whole.detach(), mine.detach(), number=number)
        self._compare_gradients(number)
        self._step()
        self._compare_buffers(number)

    def _compare_losses(self, whole: torch.Tensor, mine: torch.Tensor, *, number: int) -> None:
        if not self._is_near(whole, mine, floor=self.relative):
            raise _DifferenceError(
                f"its loss in update {number + 1} is {float(whole):.6g}, that of its layers {float(mine):.6g}"
            )

    def _is_near(self, one: torch.Tensor, other: torch.Tensor, *, floor: float) -> bool:
        if not (one.is_floating_point() or one.is_complex()):
            return torch.equal(one, other)
        if torch.equal(one, other):
            return True
        atol = self.relative * _largest(one) + floor
        return torch.allclose(one, other, rtol=0.0, atol=atol, equal_nan=True)

    def _compare_gradients(self, number: int) -> None:
        for path, weight in self.weights.items():
            if weight.grad is not None and weight.grad.layout is not torch.strided:
                raise ValueError(
                    f"the gradient of {path!r} is sparse, which is neither added up nor reduced; set sparse=False"
                )
        grads = [each.grad for each in self.weights.values() if each.grad is not None]
        floor = self.floor * max(map(_largest, grads), default=0.0)
        for path, weight in self.weights.items():
            mine = [copy.grad for copy in self.copies[path] if copy.grad is not None]
            total = sum(mine[1:], mine[0]) if mine else torch.zeros_like(weight)
            wanted = torch.zeros_like(weight) if weight.grad is None else weight.grad
            if not self._is_near(wanted, total, floor=floor):
                raise _DifferenceError(
                    f"the gradient of {path!r} in update {number + 1} is {_size(wanted)}, that of its layers "
                    f"{_size(total)} (difference {_size(wanted - total)})",
                    path=path,
                )

    @torch.no_grad()
    def _step(self) -> None:
        norms = [each.grad.float().norm() for each in self.weights.values() if each.grad is not None]
        rate = RATE / max(float(torch.stack(norms).nan_to_num(0.0, posinf=0.0).norm()), 1e-30)
        for path, weight in self.weights.items():
            grads = [copy.grad for copy in self.copies[path] if copy.grad is not None]
            for copy in self.copies[path] if grads else ():
                copy.sub_(sum(grads[1:], grads[0]), alpha=rate)
            if weight.grad is not None:
                weight.sub_(weight.grad, alpha=rate)
            for each in (weight, *self.copies[path]):
                each.grad = None
            for copy in self.copies[path]:
                if not self._is_near(weight, copy, floor=self.relative * rate):
                    raise _DifferenceError(
                        f"weight {path!r} changes in its forward otherwise than in its layers", path=path
                    )

    def find_parted(self) -> list[str]:
        """The first buffer that changed, and of which several layers have one each, for messages."""
        for path, held in self._held().items():
            if len(held) > 1 and not self._is_near(self.before[path], next(iter(held.values())), floor=0.0):
                return [f"buffer {path!r}, which changes and of which {len(held)} layers have one each (call it once)"]
        return []

    def _held(self) -> dict[str, dict[str, torch.Tensor]]:
        held: dict[str, dict[str, torch.Tensor]] = {}
        for name, layer in self.layers.items():
            for path, buffer in layer.named_buffers(remove_duplicate=False):
                if path in self.before:  # a constant of a layer is none of the model's
                    held.setdefault(path, {})[name] = buffer
        return held

    def _compare_buffers(self, number: int) -> None:
        held = self._held()
        for path, buffer in self.module.named_buffers():
            for name, mine in (held.get(path) or {"": self.before[path]}).items():
                if buffer.shape != mine.shape or not self._is_near(buffer, mine, floor=self.floor):
                    others = [repr(each) for each in held.get(path, {})]
                    where = f"layer {name!r}" if name else "its layers, none of which has it"
                    more = f" ({' and '.join(others[:2])} each have one of their own)" if len(others) > 1 else ""
                    raise _DifferenceError(
                        f"buffer {path!r} differs after update {number + 1} from {where}{more}", path=path
                    )


def _largest(tensor: torch.Tensor) -> float:
    """Of its numbers, but those that are none or infinite."""
    return float(tensor.abs().nan_to_num(0.0, posinf=0.0).max()) if tensor.numel() else 0.0


def _size(tensor: torch.Tensor) -> str:
    return f"{float(tensor.abs().max()) if tensor.numel() else 0.0:.3g}"


def _run_whole(module: nn.Module, sample: Sample, *, loss: Loss, number: int) -> torch.Tensor:
    for parameter in module.parameters():
        parameter.grad = None
    _seed(number)
    return loss(module(*sample.arguments[0], **sample.arguments[1]), sample.target)


def _repeats(module: nn.Module, sample: Sample, *, loss: Loss, state: ModuleState) -> bool:
    """Whether a model gives the same gradients again."""
    rows = []
    for _ in range(2):
        torch.autograd.backward(_run_whole(module, sample, loss=loss, number=0))
        rows.append([None if each.grad is None else each.grad.clone() for each in module.parameters()])
        state.restore()
    pairs = zip(*rows, strict=True)
    return all(
        one is other
        or (one is not None and other is not None and torch.allclose(one, other, rtol=1e-2, atol=1e-6, equal_nan=True))
        for one, other in pairs
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _SeparateRun:
    """A forward of layers of which each has a graph of its own."""

    calls: list[tuple[Sequence[torch.Tensor], Sequence[torch.Tensor], Sequence[torch.Tensor]]]
    """Per layer the tensors that were sent to it, those it was given in their stead, and what it gave."""

    @property
    def leaving(self) -> Any:
        """What the last layer gave, alone if it is only one."""
        found = self.calls[-1][2]
        return found[0] if len(found) == 1 else tuple(found)

    def backward(self, loss: torch.Tensor) -> None:
        """From the loss through layer after layer."""
        grads: dict[int, torch.Tensor] = {}
        torch.autograd.backward(loss)
        for place in reversed(range(len(self.calls))):
            sent, given, gave = self.calls[place]
            roots = [each for each in gave if id(each) in grads] if place + 1 < len(self.calls) else []
            if roots:
                torch.autograd.backward(roots, [grads[id(each)] for each in roots])
            for origin, own in zip(sent, given, strict=True):
                if own.grad is not None:
                    grads[id(origin)] = grads[id(origin)] + own.grad if id(origin) in grads else own.grad


def run_separately(
    layers: Mapping[str, nn.Module], inputs: Mapping[str, Sequence[str]], *, batch: Sequence[torch.Tensor]
) -> _SeparateRun:
    """Run the layers one after the other, each with its own graph."""
    values: dict[str, Sequence[torch.Tensor]] = {"": batch}
    run = _SeparateRun(calls=[])
    for name, layer in layers.items():
        sent = [tensor for source in inputs[name] for tensor in values[source]]
        given = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in sent]
        found = layer(*given)
        values[name] = found if isinstance(found, tuple) else (found,)
        run.calls.append((sent, given, values[name]))
    return run
