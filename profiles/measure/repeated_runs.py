"""All layers held at once and run one after the other, as an iteration does: no layer finds caches as it left them.

A layer that is repeated alone finds its weights and inputs where it left them, and is measured too fast on processors
whose caches hold one layer but not all. The price is that the whole model has to fit.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from profiles.measure.clocks import CudaClock, HostClock, Samples, make_clock
from profiles.measure.materialise import cast, make_layer
from profiles.measure.model import BATCH, Defer, Model, Tensors, Waiting, as_tuple, sources_of, take_samples
from profiles.measure.segment import Segment

_FORWARD = {"I": "N", "B": "F", "R": "C"}
"""What the forward before each of these is called."""

Modules = dict[str, tuple[nn.Module, Waiting]]
"""Layers by name, each with what holds its weight gradients that are put off."""


class RepeatedRuns:
    """A model on one device at one microbatch size, ready to be run round after round."""

    def __init__(
        self,
        model: Model,
        *,
        size: int,
        defer: Defer,
        device: torch.device,
        dtype: torch.dtype | None = None,
        modules: Modules | None = None,
    ) -> None:
        """Runs one forward, to learn which tensors take part in the backward. `modules`: those of other sizes, to be
        used again; what is made here is added.
        """
        self.modules: Modules = {} if modules is None else modules
        self.takes = sources_of(model)
        inputs, target = model.batch(0)
        arrives = cast(tuple(take_samples(tensor, size) for tensor in as_tuple(inputs)), dtype)
        (self._target,) = cast((take_samples(target, size).to(device),), dtype)
        self._batch = tuple(tensor.to(device) for tensor in arrives)
        self._loss = model.loss
        self.segments: dict[str, Segment] = {}
        self.clocks: dict[str, HostClock | CudaClock] = {name: make_clock(device) for name in self.takes}
        values: dict[str, Tensors] = {BATCH: self._batch}
        for name in self.takes:
            self.segments[name] = self._make(model, name, values=values, defer=defer, device=device, dtype=dtype)
            values[name] = self.segments[name].call(self.segments[name].fresh_inputs())
        for segment in self.segments.values():
            segment.inputs = ()

    def _make(
        self, model: Model, name: str, *, values: dict[str, Tensors], defer: Defer, device: torch.device, dtype: Any
    ) -> Segment:
        if name not in self.modules:
            made = make_layer(model, name, device=device, dtype=dtype)
            self.modules[name] = made, defer(made)
        module, waiting = self.modules[name]
        given = tuple(tensor for source in self.takes[name] for tensor in values[source])
        segment = Segment(
            module,
            given,
            wants=tuple(tensor.requires_grad for tensor in given),
            waiting=waiting,
            loss=self._call_loss if name == list(self.takes)[-1] else None,
        )
        segment.make_grads()
        return segment

    def _call_loss(self, output: Any) -> torch.Tensor:
        return self._loss(output, self._target)

    def repeat(self, times: int, *, recomputes: bool = False) -> dict[str, Samples]:
        """Samples of F, N, I, W and B (and C, R) of all layers, as `time_segment` takes them: each round goes through
        the model two (three) times.
        """
        for _ in range(times):
            for phase in ("I", "B", "R") if recomputes else ("I", "B"):
                self._go_through(phase)
            for clock in self.clocks.values():
                clock.settle()
        return {name: self._take(clock) for name, clock in self.clocks.items()}

    def _take(self, clock: HostClock | CudaClock) -> Samples:
        samples, clock.samples = clock.samples, {}
        return samples

    def _go_through(self, phase: str) -> None:
        """Forward through all layers, and backward, as I and W or at once; R: as B, with recomputation."""
        values: dict[str, Tensors] = {BATCH: self._batch}
        given: dict[str, Tensors] = {}
        for name, segment in self.segments.items():
            arriving = [tensor for source in self.takes[name] for tensor in values[source]]
            given[name] = tuple(
                tensor.detach().requires_grad_(wanted) for tensor, wanted in zip(arriving, segment.wants, strict=True)
            )
            segment.waiting.is_noting = phase == "I"
            with self.clocks[name].span(_FORWARD[phase]):
                values[name] = segment.call(given[name], recomputes=phase == "R")
        grads: dict[str, list[torch.Tensor | None]] = {}
        for name in reversed(self.segments):
            self._go_back(name, values.pop(name), phase=phase, grads=grads.pop(name, []))
            self._restore(given.pop(name), self.takes[name], values=values, grads=grads)

    def _go_back(self, name: str, outputs: Tensors, *, phase: str, grads: list[torch.Tensor | None]) -> None:
        segment, clock = self.segments[name], self.clocks[name]
        padded = grads or [None] * len(outputs)
        pairs = [(y, grad) for y, grad in zip(outputs, padded, strict=True) if y.requires_grad]
        roots = [(y, grad) for y, grad in pairs if grad is not None or segment.loss is not None]
        if not roots:
            return
        with _deferring(segment, is_deferring=phase == "I"):
            with clock.span(phase):
                torch.autograd.backward([y for y, _ in roots], None if segment.loss else [grad for _, grad in roots])
            if phase == "I":
                later = segment.waiting.take()
                with clock.span("W"):
                    later()

    def _restore(
        self,
        given: Tensors,
        sources: tuple[str, ...],
        *,
        values: dict[str, Tensors],
        grads: dict[str, list[torch.Tensor | None]],
    ) -> None:
        """The gradients of a layer's inputs to the layers that made them, added up where several take one."""
        remaining = iter(given)
        for source in sources:
            totals = grads.setdefault(source, [None] * len(values[source]))
            for place in range(len(totals)):
                grad, total = next(remaining).grad, totals[place]
                totals[place] = grad if total is None else total if grad is None else total + grad


@contextmanager
def _deferring(segment: Segment, *, is_deferring: bool) -> Iterator[None]:
    segment.waiting.is_deferring = is_deferring
    yield
    segment.waiting.is_deferring = False
