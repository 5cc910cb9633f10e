"""One rank of data parallel training with reverse first-k, gradients of single layers all-reduced on a throttled link.

`python -m tests.integration.first_k_worker STORE RANK COUNT MODE [NUMBER]`: `speed` times the usual order against the
chosen k and against delaying every layer, in NUMBER rounds; `exact` trains 80 or NUMBER steps in each order and
compares the results. A layer's next forward waits for its own gradient only. Arithmetic and gloo all-reduces are
real; the link is a thread that sends one gradient after the other and takes as long as a slow link would, and each F, I
and W takes at least `PACE_S`, as on a device that is busy so long: the processes share few cores, and their own times
would be noise.
"""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from queue import Queue
from random import Random
from threading import Event, Thread

import torch
from torch import distributed

from planner.baselines.out_of_order.first_k import backward_order
from tests.planner.baselines.out_of_order.first_k_periods import LayerTimes, period_ns

LAYERS, WIDTH, BATCH = 12, 96, 64
PACE_S = 0.008
SLOWNESS = 3.0
"""A gradient is on the link for so many times the time of a W."""
ROUNDS, STEPS, EXACT_STEPS = 8, 3, 80


class Link:
    """Sends gradients in the order in which they are handed over."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._queue: Queue[tuple[torch.Tensor, Event] | None] = Queue()
        self._thread = Thread(target=self._serve, daemon=True)
        self._thread.start()

    def send(self, gradient: torch.Tensor, done: Event) -> None:
        """All-reduce `gradient` once everything before it has gone; then set `done`."""
        self._queue.put((gradient, done))

    def close(self) -> None:
        """Wait for what is under way."""
        self._queue.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while (item := self._queue.get()) is not None:
            gradient, done = item
            end = time.perf_counter() + self.seconds
            distributed.all_reduce(gradient)
            time.sleep(max(0.0, end - time.perf_counter()))
            done.set()


@dataclass(slots=True)
class Trainer:
    """A chain of square linear layers with tanh, plain gradient descent, half the mean square as loss."""

    width: int
    batch: int
    link: Link
    pace_s: float = 0.0
    weights: list[torch.Tensor] = field(default_factory=list)
    gradients: list[torch.Tensor] = field(default_factory=list)
    arrived: list[Event] = field(default_factory=list)
    inputs: list[torch.Tensor] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def reset(self) -> None:
        """The same weights on every rank, other samples on each."""
        generator = torch.Generator().manual_seed(3)
        self.weights = [
            torch.randn(self.width, self.width, generator=generator) / self.width**0.5 for _ in range(LAYERS)
        ]
        self.gradients = [torch.zeros_like(weight) for weight in self.weights]
        self.arrived = [Event() for _ in self.weights]
        self.losses = []
        for event in self.arrived:
            event.set()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Every layer takes its synchronised gradient in before it is used again."""
        self.inputs = []
        for layer in range(LAYERS):
            self.arrived[layer].wait()
            end = time.perf_counter() + self.pace_s
            self.weights[layer] -= (0.1 / distributed.get_world_size()) * self.gradients[layer]
            self.inputs.append(x)
            x = torch.tanh(x @ self.weights[layer])
            self.rest_until(end)
        self.inputs.append(x)
        self.losses.append(float(x.square().mean()) / 2)
        return x

    def rest_until(self, end: float) -> None:
        """Sleep, if there is time left."""
        if self.pace_s:
            time.sleep(max(0.0, end - time.perf_counter()))

    def backward(self, y: torch.Tensor, k: int) -> None:
        """I and W in the order of reverse first-k, each gradient handed to the link at the end of its W."""
        grad = y / y.numel()
        kept: dict[int, torch.Tensor] = {}
        for kind, layer in backward_order(LAYERS, k):
            end = time.perf_counter() + self.pace_s
            if kind == "I":
                out = self.inputs[layer + 1]
                kept[layer] = grad * (1 - out * out)
                grad = kept[layer] @ self.weights[layer].t()
            else:
                self.gradients[layer] = self.inputs[layer].t() @ kept.pop(layer)
            self.rest_until(end)
            if kind == "W":
                self.arrived[layer] = Event()
                self.link.send(self.gradients[layer], self.arrived[layer])

    def run(self, k: int, *, steps: int, seed: int) -> None:
        """Some iterations, the last forward included, so that everything has been waited for."""
        generator = torch.Generator().manual_seed(1000 * distributed.get_rank() + seed)
        for _ in range(steps):
            x = torch.randn(self.batch, self.width, generator=generator)
            self.backward(self.forward(x), k)
        self.forward(x)


def paced_times() -> LayerTimes:
    """What the planner is told: every layer alike, its gradient on the link for `SLOWNESS` times its W."""
    pace = (round(PACE_S * 1e9),) * LAYERS
    return LayerTimes(
        forward_ns=pace,
        input_grad_ns=pace,
        weight_grad_ns=pace,
        synchronisation_ns=tuple(round(SLOWNESS * each) for each in pace),
    )


def time_orders(trainer: Trainer, orders: Sequence[int], *, rounds: int) -> dict[int, list[float]]:
    """Seconds per iteration, order by order, in an order of its own in every round."""
    seconds: dict[int, list[float]] = {k: [] for k in orders}
    rng = Random(4)
    for number in range(rounds + 1):
        for k in rng.sample(orders, len(orders)):
            trainer.reset()
            distributed.barrier()
            start = time.perf_counter()
            trainer.run(k, steps=STEPS, seed=number)
            if number:  # the first round warms up
                seconds[k].append((time.perf_counter() - start) / STEPS)
    return seconds


def compare_speed(rounds: int) -> dict[str, object]:
    """Times of k = 0, the chosen k, and all layers, with the curve that the choice was made on."""
    times = paced_times()
    trainer = Trainer(width=WIDTH, batch=BATCH, link=Link(times.synchronisation_ns[0] / 1e9), pace_s=PACE_S)
    periods = [period_ns(times, k) for k in range(len(times.forward_ns) + 1)]
    chosen = periods.index(min(periods))
    seconds = time_orders(trainer, sorted({0, chosen, LAYERS}), rounds=rounds)
    trainer.link.close()
    return {
        "chosen": chosen,
        "layer_ns": [times.forward_ns[0], times.input_grad_ns[0], times.weight_grad_ns[0], times.synchronisation_ns[0]],
        "curve_ns": periods,
        "seconds": seconds,
    }


def compare_results(steps: int) -> dict[str, object]:
    """Losses of all steps and parameters after half and all of them, in the usual order and in others."""
    trainer = Trainer(width=24, batch=8, link=Link(0.0))
    found = {}
    for k in (0, 5, LAYERS):
        trainer.reset()
        trainer.run(k, steps=steps // 2, seed=1)
        after = [torch.cat([weight.flatten() for weight in trainer.weights])]
        trainer.run(k, steps=steps // 2, seed=2)
        after.append(torch.cat([weight.flatten() for weight in trainer.weights]))
        found[k] = (trainer.losses, after)
    trainer.link.close()
    usual = found.pop(0)
    return {
        "steps": [steps // 2, steps],
        "losses_equal": all(losses == usual[0] for losses, _ in found.values()),
        "parameters_equal": [
            all(torch.equal(after[each], usual[1][each]) for _, after in found.values()) for each in (0, 1)
        ],
        "losses": [usual[0][0], usual[0][-1]],
    }


def main() -> None:
    """Run one rank; rank 0 prints the answer."""
    store, rank, count, mode = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=count)
    number = int(sys.argv[5]) if len(sys.argv) > 5 else ROUNDS if mode == "speed" else EXACT_STEPS
    answer = compare_speed(number) if mode == "speed" else compare_results(number)
    if rank == 0:
        print(json.dumps(answer))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
