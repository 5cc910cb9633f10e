"""One layer as an autograd segment of its own: called, differentiated, split into I and W, and timed."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from profiles.measure.clocks import CudaClock, HostClock
from profiles.measure.devices import free_bytes
from profiles.measure.model import Tensors, Waiting, as_tuple

_MANY_CALLS_NS = 300_000
"""Layers whose forward is shorter are called several times in a row, for the clock's sake."""

_LAUNCH_BOUND_CALLS = 4
"""So are those of an accelerator that wait for the host."""

_MAX_CALLS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuringEffort:
    """Repetitions and seconds per layer."""

    repetitions: int = 10
    """Wanted after the warm-up."""
    warm_up: int = 2
    """Repetitions that do not count."""
    seconds: float = 20.0
    """Per layer, microbatch size and width: once they have passed, three repetitions are enough."""


class Segment:
    """A layer on its device with inputs of one microbatch."""

    def __init__(
        self, module: nn.Module, inputs: Tensors, *, wants: tuple[bool, ...], waiting: Waiting, loss: Any = None
    ) -> None:
        """`wants`: which inputs are differentiated; `loss`: a function of the output if this is the last layer."""
        self.module, self.inputs, self.wants, self.waiting, self.loss = module, inputs, wants, waiting, loss
        self._gradients: list[torch.Tensor] | None = None

    def fresh_inputs(self) -> Tensors:
        """The inputs as leaves without a past."""
        pairs = zip(self.inputs, self.wants, strict=True)
        return tuple(tensor.detach().requires_grad_(wanted) for tensor, wanted in pairs)

    def call(self, inputs: Tensors, *, recomputes: bool = False) -> Tensors:
        """The layer's outputs; of the last layer, the loss."""
        given = self.waiting.recompute(*inputs) if recomputes else self.module(*inputs)
        outputs = tuple(map(_dense, as_tuple(given)))
        if self.loss is None:
            return outputs
        return (self.loss(outputs[0] if len(outputs) == 1 else outputs),)

    def backward(self, runs: Sequence[Tensors]) -> None:
        """Gradients of everything that wants one, in one call of autograd, as for several layers of a stage."""
        roots, grads = list[torch.Tensor](), list[torch.Tensor]()
        for outputs in runs:
            of_run = [tensor for tensor in outputs if tensor.requires_grad]
            roots += of_run
            grads += self.gradients(of_run) or []
        if roots:
            torch.autograd.backward(roots, grads or None)

    def gradients(self, roots: list[torch.Tensor]) -> list[torch.Tensor] | None:
        """What arrives from later layers: noise, the same every time; None for a loss."""
        if self.loss is not None:
            return None
        if self._gradients is None:
            self._gradients = [torch.randn_like(root.detach()) for root in roots]
        return self._gradients

    def parameters(self) -> list[nn.Parameter]:
        """Parameters with gradients."""
        return [parameter for parameter in self.module.parameters() if parameter.requires_grad]

    def make_grads(self) -> None:
        """Gradients exist, as they do from the second microbatch on."""
        for parameter in self.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)

    def is_differentiable(self) -> bool:
        """Whether anything goes back through it."""
        return any(self.wants) or bool(self.parameters())


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """What the executor makes of a layer's result, which says why: `planner.execute.stage.stage_module.dense`."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    form = formats.get(tensor.dim(), torch.contiguous_format)
    is_kept = tensor.is_contiguous() or 0 in tensor.stride() or tensor.is_contiguous(memory_format=form)
    return tensor if is_kept else tensor.contiguous()


def time_segment(segment: Segment, clock: HostClock | CudaClock, *, effort: MeasuringEffort, recomputes: bool) -> None:
    """Leave samples of F, N, I, W, B (and C, R) with the clock."""
    segment.make_grads()
    calls = _num_calls(segment)
    started, number = time.monotonic(), 0
    while number < effort.warm_up or time.monotonic() - started < min(clock.warm_up_s, effort.seconds):
        _repeat(segment, clock, calls=calls, recomputes=recomputes)
        clock.end_repetition()
        number += 1
    clock.clear()
    started = time.monotonic()
    for number in range(effort.repetitions):
        _repeat(segment, clock, calls=calls, recomputes=recomputes)
        clock.end_repetition()
        if number >= 2 and time.monotonic() - started > effort.seconds:
            break
    clock.settle()


def _num_calls(segment: Segment) -> int:
    """So many runs at once that the clock can tell, and that what is done once per call of autograd weighs little where
    an accelerator is asked for a layer in no less than half of the time that it takes; at most half of its free memory.
    """
    device = segment.inputs[0].device
    outputs = segment.call(segment.fresh_inputs())
    before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
    started = time.perf_counter_ns()
    again = segment.call(segment.fresh_inputs())
    asked_ns = took_ns = time.perf_counter_ns() - started
    if device.type != "cuda":
        return max(1, min(_MAX_CALLS, _MANY_CALLS_NS // max(1, took_ns)))
    torch.cuda.synchronize(device)
    took_ns = time.perf_counter_ns() - started
    room = (free_bytes(device) or 0) // (2 * max(1, torch.cuda.memory_allocated(device) - before))
    del outputs, again
    least = _LAUNCH_BOUND_CALLS if 2 * asked_ns > took_ns else 1
    return max(1, min(_MAX_CALLS, max(least, _MANY_CALLS_NS // max(1, took_ns)), room))


def _repeat(segment: Segment, clock: HostClock | CudaClock, *, calls: int, recomputes: bool) -> None:
    """N, I and W one after the other, then F and B in one, and the same with recomputation (C and R).

    N is a forward whose weight gradients may be put off: a little longer than F, after which a whole backward comes.
    """
    waiting = segment.waiting
    waiting.is_noting = segment.is_differentiable()
    if not waiting.is_noting:
        _forward(segment, clock, calls=calls, phase="F")
        return
    runs = _forward(segment, clock, calls=calls, phase="N")
    waiting.is_deferring = True
    _backward(segment, clock, runs=runs, phase="I")
    later = waiting.take()
    with clock.span("W", calls=calls):
        later()
    waiting.is_deferring = waiting.is_noting = False
    runs = _forward(segment, clock, calls=calls, phase="F")
    _backward(segment, clock, runs=runs, phase="B")
    if recomputes:
        runs = _forward(segment, clock, calls=calls, phase="C", recomputes=True)
        _backward(segment, clock, runs=runs, phase="R")


def _forward(
    segment: Segment, clock: HostClock | CudaClock, *, calls: int, phase: str, recomputes: bool = False
) -> list[Tensors]:
    given = [segment.fresh_inputs() for _ in range(calls)]
    with clock.span(phase, calls=calls):
        return [segment.call(inputs, recomputes=recomputes) for inputs in given]


def _backward(segment: Segment, clock: HostClock | CudaClock, *, runs: list[Tensors], phase: str) -> None:
    with clock.span(phase, calls=len(runs)):
        segment.backward(runs)


def time_optimizer(
    segment: Segment, clock: HostClock | CudaClock, *, make: Any, effort: MeasuringEffort
) -> tuple[torch.optim.Optimizer, ...]:
    """Leave samples of O with the clock: the mean over microbatches, the step, and letting the gradients go."""
    parameters = segment.parameters()
    if not parameters:
        return ()
    segment.make_grads()
    optimizers = make_optimizers(make, parameters)
    grads = [parameter.grad for parameter in parameters]
    clock.clear()
    for _ in range(effort.repetitions):
        with clock.span("O"), torch.no_grad():
            for parameter in parameters:
                assert parameter.grad is not None
                parameter.grad.div_(1)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        for parameter, grad in zip(parameters, grads, strict=True):
            parameter.grad = grad
    clock.settle()
    return optimizers


def make_optimizers(make: Any, parameters: list[nn.Parameter]) -> tuple[torch.optim.Optimizer, ...]:
    """One or several, of a layer's parameters, after a first step, which makes their state."""
    try:
        made = make(parameters) if parameters else ()
        optimizers = tuple(made) if isinstance(made, Sequence) else (made,)
        for optimizer in optimizers:
            if not isinstance(optimizer, torch.optim.Optimizer):
                kind = type(optimizer).__name__
                raise TypeError(f"{kind} is no torch.optim.Optimizer; give one, or do the rest in a hook of its step")
            optimizer.step()
    except (AttributeError, TypeError, ValueError, AssertionError) as error:
        if "closure" in str(error):
            raise ValueError(f"the optimizer's step fails: {error}; give one that steps by gradients alone") from error
        raise ValueError(
            f"the optimizer fails for the parameters of one layer: {error}; let its factory take any list of "
            "parameters, and leave out an optimizer without any"
        ) from error
    except RuntimeError as error:
        if "requires grad" not in str(error):
            raise
        raise ValueError(f"the optimizer's step fails: {error}; write @torch.no_grad() above it") from error
    return optimizers
