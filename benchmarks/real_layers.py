"""A model's layers timed and weighed in one process, every layer after the other as in an iteration."""

import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from benchmarks.real_memory import MemoryMeter, storage_bytes
from planner.execute.deferred import WeightGradStore, defer_weight_grads
from planner.execute.stage_module import make_layer
from planner.execute.training import Training

Samples = dict[str, dict[str, list[int]]]
"""Per layer and phase (F, I, W, B, R) the nanoseconds of every repetition; R is a backward that recomputes."""


class LayeredModel:
    """Every layer an autograd segment of its own, on this process."""

    def __init__(self, training: Training, *, num_microbatches: int, replicas: int = 1) -> None:
        """`replicas`: the microbatch is that of one of so many."""
        self.training = training
        self.layers = {name: make_layer(training, name, device=torch.device("cpu")) for name in training.layers}
        self.stores = {name: WeightGradStore() for name in self.layers}
        for name, layer in self.layers.items():
            defer_weight_grads(layer, self.stores[name])
        inputs, target = training.batch(0)
        assert isinstance(inputs, torch.Tensor)
        size = inputs.shape[0] // num_microbatches // replicas
        self.inputs, self.target = inputs[:size], target[:size]

    def repeat(self, times: int, *, recomputes: bool = False) -> Samples:
        """F, I, W of all layers, then F and B (and, recomputing, F and R)."""
        samples: Samples = defaultdict(lambda: defaultdict(list))
        for _ in range(times):
            for phases in ("IW", "B", *(["R"] if recomputes else [])):
                self._pass(samples, phases=phases)
        return {name: dict(phases) for name, phases in samples.items()}

    def _pass(self, samples: Samples, *, phases: str) -> None:
        x, held = self.inputs, []
        last = list(self.layers)[-1]
        for name, layer in self.layers.items():
            given = x.detach().requires_grad_(x.is_floating_point() and bool(held))
            begin = time.perf_counter_ns()
            y = checkpoint(layer, given, use_reentrant=False) if phases == "R" else layer(given)
            if name == last:
                y = self.training.loss(y, self.target)
            if phases != "R":
                samples[name]["F"].append(time.perf_counter_ns() - begin)
            held.append((name, given, y))
            x = y
        gradient = None
        while held:
            name, given, y = held.pop()
            self.stores[name].is_deferring = phases == "IW"
            begin = time.perf_counter_ns()
            torch.autograd.backward([y], None if gradient is None else [gradient])
            samples[name][phases[0]].append(time.perf_counter_ns() - begin)
            gradient = given.grad
            if phases == "IW":
                compute = self.stores[name].take()
                begin = time.perf_counter_ns()
                compute()
                samples[name]["W"].append(time.perf_counter_ns() - begin)

    def time_optimizer(self, times: int) -> int:
        """Median nanoseconds of the step over all parameters, the mean over microbatches included."""
        parameters = [parameter for layer in self.layers.values() for parameter in layer.parameters()]
        optimizer, samples = self.training.optimizer(parameters), []
        for _ in range(times):
            for parameter in parameters:
                parameter.grad = torch.zeros_like(parameter)
            begin = time.perf_counter_ns()
            with torch.no_grad():
                for parameter in parameters:
                    assert parameter.grad is not None
                    parameter.grad.div_(2)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            samples.append(time.perf_counter_ns() - begin)
        return round(statistics.median(samples))

    def weigh(self) -> dict[str, dict[str, int]]:
        """Bytes of every layer: parameters, output, stash, weight_stash and workspace."""
        for layer in self.layers.values():
            for parameter in layer.parameters():
                parameter.grad = torch.zeros_like(parameter)
        x, sizes = self.inputs, {}
        for number, (name, layer) in enumerate(self.layers.items()):
            given = x.detach().requires_grad_(x.is_floating_point() and number > 0)
            is_last = number == len(self.layers) - 1
            sizes[name], x = self._weigh(name, layer, given=given, is_last=is_last)
        return sizes

    def _weigh(
        self, name: str, layer: torch.nn.Module, *, given: torch.Tensor, is_last: bool
    ) -> tuple[dict[str, int], torch.Tensor]:
        store = self.stores[name]
        store.is_deferring = True
        with MemoryMeter() as meter:
            output = layer(given)
            y = self.training.loss(output, self.target) if is_last else output
            held, forward_peak = meter.held, meter.peak
            gradient = None if is_last else torch.ones_like(y)
            meter.peak = meter.held
            torch.autograd.backward([y], None if gradient is None else [gradient])
            backward_peak = meter.peak
            waiting = [tensor for call in store._waiting for tensor in _tensors(call)]
            store.take()()
            backward_peak = max(backward_peak, meter.peak)
        weight_stash = storage_bytes(waiting)
        state = storage_bytes(layer.parameters())
        return {
            "parameters": state,
            "output": storage_bytes([output]),
            "input": storage_bytes([given]),
            "stash": max(held, weight_stash),  # what it was given is another layer's output, or a receive buffer
            "weight_stash": weight_stash,
            "workspace": max(0, max(forward_peak, backward_peak) - held),
        }, output.detach()


def _tensors(call: Any) -> Sequence[torch.Tensor]:
    """What a waiting weight gradient keeps, its parameters aside."""
    return [call.keywords["x"], call.keywords["grad"]]


def median_times(samples: Sequence[Mapping[str, Mapping[str, Sequence[int]]]]) -> dict[str, dict[str, int]]:
    """Medians over all repetitions of all processes."""
    found: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for one in samples:
        for name, phases in one.items():
            for phase, times in phases.items():
                found[name][phase] += times
    return {
        name: {phase: round(statistics.median(times)) for phase, times in phases.items()}
        for name, phases in found.items()
    }
