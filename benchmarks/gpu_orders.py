"""Orders of one accelerator in a race: the executor's, and a plain loop of torch."""

import time
from collections.abc import Callable, Sequence
from math import sqrt
from statistics import mean, stdev
from typing import Any

import torch
from torch import nn

from benchmarks.gpu_runs import Case, fit, make_execution, make_training, num_samples
from planner.execute.training import Training
from planner.judge.reading import Reading
from profiles.measure.materialise import make_layer
from profiles.measure.model import BATCH, Tensors, as_model, as_tuple, sources_of
from profiles.model_profile import ModelProfile

ROUNDS, WARM_UP = 8, 2
"""Iterations of every contender that count, and that do not."""

_T_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
"""Two-sided 95 % points for 1, 2, 3 ... degrees of freedom; beyond them 2.13 is on the safe side."""

Step = Callable[[int], float]
"""Runs the iteration with a number and gives its loss."""


class PlainLoop:
    """What one would write without a plan: layers in their order, a backward per microbatch, gradients added up."""

    def __init__(self, training: Training, *, device: torch.device, count: int) -> None:
        self.training, self.device, self.count = training, device, count
        model = as_model(training)
        assert model is not None
        self.takes = sources_of(model)
        self.layers: dict[str, nn.Module] = {name: make_layer(model, name, device=device) for name in self.takes}
        self.optimizer = training.optimizer([p for layer in self.layers.values() for p in layer.parameters()])

    def step(self, number: int) -> float:
        """The mean of the microbatches' losses (or their sum)."""
        inputs, target = self.training.batch(number)
        columns = [tensor.to(self.device).chunk(self.count) for tensor in as_tuple(inputs)]
        losses = []
        for given, aim in zip(zip(*columns, strict=True), target.to(self.device).chunk(self.count), strict=True):
            loss = self.training.loss(self._forward(given), aim)
            (loss if self.training.loss_is_sum else loss / self.count).backward()
            losses.append(loss.detach().float())
        self.optimizer.step()
        self.optimizer.zero_grad()
        total = torch.stack(losses).sum() if self.training.loss_is_sum else torch.stack(losses).mean()
        return float(total)

    def _forward(self, given: Tensors) -> Any:
        values: dict[str, Tensors] = {BATCH: given}
        for name, sources in self.takes.items():
            values[name] = as_tuple(self.layers[name](*(tensor for source in sources for tensor in values[source])))
        return values[name][0]


def paired(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """The relative saving of the second over the first, pair by pair: mean, half the width of its 95 % interval."""
    savings = [1 - b / a for a, b in zip(first, second, strict=True)]
    if len(savings) < 2:
        return savings[0], float("inf")
    t = _T_95[len(savings) - 2] if len(savings) - 2 < len(_T_95) else 2.13
    return mean(savings), t * stdev(savings) / sqrt(len(savings))


def race(case: Case, profile: ModelProfile, *, device: str) -> dict[str, Any]:
    """Seconds of an iteration of every contender, in turns; the losses are told beside them.

    Raises ValueError where not all of them fit side by side.
    """
    steps, reading = make_contenders(case, profile, device=device)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    losses: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(WARM_UP + ROUNDS):
        for name in sorted(steps, reverse=number % 2 == 1):
            settle(device)
            started = time.perf_counter()
            losses[name].append(steps[name](number))
            settle(device)
            if number >= WARM_UP:
                seconds[name].append(time.perf_counter() - started)
    first = losses[PLAIN]
    return {
        "case": case.label,
        "microbatch_size": reading.profile.microbatch_size,
        "seconds": seconds,
        "faster_than_plain_loop": {name: paired(seconds[PLAIN], each) for name, each in seconds.items()},
        "largest_difference_of_losses": {
            name: max(abs(a - b) / max(abs(b), 1e-9) for a, b in zip(each, first, strict=True))
            for name, each in losses.items()
        },
        "losses": losses,
    }


PLAIN = "torch, plain loop"


def make_contenders(case: Case, profile: ModelProfile, *, device: str) -> tuple[dict[str, Step], Reading]:
    """The plain loop, and plans with B, and with I and W."""
    copies = 4 if device == "cuda" else 3
    whole = fit(case, profile, device=device, copies=copies)
    split = fit(case, profile, device=device, kinds=("I", "W"), copies=copies)
    training = make_training(case, samples=num_samples(whole))
    plain = PlainLoop(training, device=torch.device(device), count=whole.problem.num_microbatches)
    steps: dict[str, Step] = {PLAIN: plain.step}
    for name, reading in (("B", whole), ("I, W", split)):
        execution = make_execution(case, reading, device=device)
        steps[name] = lambda number, execution=execution: execution.step(number).loss
    return steps, whole


def settle(device: str) -> None:
    """Until everything that was asked of the device is done."""
    if device == "cuda":
        torch.cuda.synchronize()
