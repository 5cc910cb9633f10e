"""Weight gradients of one device beside regions of its main stream, chosen from a measured table of co-runs.

`python -m benchmarks.co_runs NETWORK [--rounds N] [--cuda]`. The network is cut into blocks. A region is I of a block,
or F of a block in the next iteration; W of a block, and the update of its weights, runs alone after its I, as in plain
order, or beside a region up to its own next F. On a CPU a second thread stands for the second stream, each with one
thread inside its operations. Measured: regions and W alone, every pair side by side, then plain and chosen order, and
every W beside the next region, in turns. `--cuda` does the same with a second stream, and then once more with the steps
replayed as CUDA graphs, where no launch takes time.
"""

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median
from typing import Protocol

import torch
from torch import nn
from torch.nn import functional

from benchmarks.co_running.plan_regions import plan_regions
from benchmarks.co_running.regions import (
    Choice,
    CoRun,
    RegionProblem,
    WeightGrad,
    choose_greedily,
    predicted_ns,
)
from benchmarks.one_device import NETWORKS, Momentum, make_images, make_network
from planner.execute.model.deferred import WeightGrads, WeightGradStore, defer_weight_grads

BLOCKS, BATCH = 6, 32
Call = Callable[[], None]
Ends = tuple[int, int]
"""When the main stream ended a region, and when the second one ended its work; ns from the region's start on."""


class Second(Protocol):
    """Where weight gradients run beside the main stream."""

    is_measuring: bool
    """Otherwise the times it returns need not mean anything."""

    def run(self, main: Call, calls: Sequence["WeightUpdate"]) -> Ends:
        """Both side by side, until both have ended."""
        ...


class SecondThread:
    """On a CPU."""

    def __init__(self) -> None:
        self.is_measuring = True
        self.pool = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,))

    def run(self, main: Call, calls: Sequence["WeightUpdate"]) -> Ends:
        """Whichever ends later is charged with the threads' meeting."""
        start = time.perf_counter_ns()
        future = self.pool.submit(_run_all, calls) if calls else None
        main()
        main_end = time.perf_counter_ns()
        own_end = future.result() if future else start
        met = time.perf_counter_ns()
        return (main_end - start, met - start) if own_end > main_end else (met - start, own_end - start)


class WeightUpdate:
    """W of a block, and the update of its weights; to be called once."""

    def __init__(self, grads: WeightGrads, block: nn.Module, *, optimizer: Momentum) -> None:
        self.grads, self.block, self.optimizer = grads, block, optimizer

    def tensors(self) -> list[torch.Tensor]:
        """All that it reads and lets go of: what waits, and the gradients that are there."""
        waiting = [tensor for call in self.grads.calls for tensor in (call.x, call.grad)]
        return waiting + [each.grad for each in self.block.parameters() if each.grad is not None]

    def __call__(self) -> None:
        """Compute the gradients, and update the weights with them."""
        self.grads()
        for parameter in self.block.parameters():
            self.optimizer.update(parameter)


def _run_all(calls: Sequence[WeightUpdate]) -> int:
    for call in calls:
        call()
    return time.perf_counter_ns()


class SecondStream:
    """On a GPU."""

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream()
        self.is_measuring = True

    def run(self, main: Call, calls: Sequence["WeightUpdate"]) -> Ends:
        """What `calls` read is held until the streams have met: the memory of what they let go of would be the first
        stream's again, which does not wait for the second before.
        """
        held = [tensor for call in calls for tensor in call.tensors()]
        start, main_end, own_end = (torch.cuda.Event(enable_timing=self.is_measuring) for _ in range(3))
        current = torch.cuda.current_stream()
        start.record(current)
        if calls:
            self.stream.wait_stream(current)
            with torch.cuda.stream(self.stream):
                for call in calls:
                    call()
                own_end.record(self.stream)
        main()
        main_end.record(current)
        if calls:
            current.wait_stream(self.stream)
        held.clear()
        if not self.is_measuring:
            return 0, 0
        torch.cuda.synchronize()
        own_ns = round(1e6 * start.elapsed_time(own_end)) if calls else 0
        return round(1e6 * start.elapsed_time(main_end)), own_ns


def cut(model: nn.Module) -> list[nn.Sequential]:
    """At most `BLOCKS` blocks of about as many weight gradients each."""
    children = list(model.children())
    counts = [sum(isinstance(layer, nn.Linear | nn.Conv2d) for layer in child.modules()) for child in children]
    blocks: dict[int, list[nn.Module]] = defaultdict(list)
    for number, child in enumerate(children):
        blocks[sum(counts[:number]) * BLOCKS // sum(counts)].append(child)
    return [nn.Sequential(*each) for each in blocks.values()]


class Blocks:
    """A network trained block by block, each W alone or beside the region that the choice says.

    Region r is I of block n - 1 - r for r below the number of blocks n, and F of block r - n of the next iteration from
    there on.
    """

    def __init__(self, network: str, *, device: str = "cpu") -> None:
        self.blocks = cut(make_network(network, device))
        self.count, self.device = len(self.blocks), device
        self.optimizer, self.store = Momentum(), WeightGradStore()
        self.store.is_deferring = True
        for block in self.blocks:
            defer_weight_grads(block, self.store)
        self.second: Second = SecondThread() if device == "cpu" else SecondStream()
        self.choice: Choice = (None,) * self.count
        self.waiting: dict[int, WeightUpdate] = {}
        self.losses: list[torch.Tensor] = []
        self.starts: list[torch.Tensor] = []
        self.ends: list[torch.Tensor] = []
        self.region_ns: dict[tuple[int, tuple[int, ...]], list[int]] = defaultdict(list)
        """By region and what ran beside it."""
        self.own_ns: dict[tuple[int, int | None], list[int]] = defaultdict(list)
        """By weight gradient and the region it ran beside, if any."""
        self.x, self.y = make_images(BATCH, torch.Generator(device).manual_seed(7))

    def window(self, block: int) -> range:
        """The regions beside which W of a block may run."""
        return range(self.count - block, self.count + block)

    def step(self) -> None:
        """F of all blocks, with every W of the step before that runs beside one of them, and then I of all."""
        self.forward()
        self.backward()

    def forward(self) -> None:
        """From here on until the next one the choice may be changed."""
        self.starts, self.ends = [self.x], []
        for block in range(self.count):
            if block:
                self.starts.append(self.ends[-1].detach().requires_grad_())
            self._region(self.count + block, partial(self._forward, block))
        self.losses.append(self.ends[-1].detach())

    def backward(self) -> None:
        """Every W alone after its I, or beside a later I, or kept for the next forward."""
        for block in reversed(range(self.count)):
            grad = self.starts[block + 1].grad if block + 1 < self.count else None
            self._region(self.count - 1 - block, partial(torch.autograd.backward, self.ends[block], grad))
            self.waiting[block] = WeightUpdate(self.store.take(), self.blocks[block], optimizer=self.optimizer)
            if self.choice[block] is None:
                self._alone(block)

    def _forward(self, block: int) -> None:
        y: torch.Tensor = self.blocks[block](self.starts[block])
        self.ends.append(functional.cross_entropy(y, self.y) if block == self.count - 1 else y)

    def _region(self, region: int, main: Call) -> None:
        beside = tuple(block for block, chosen in enumerate(self.choice) if chosen == region and block in self.waiting)
        calls = [self.waiting.pop(block) for block in beside]
        main_ns, own_ns = self.second.run(main, calls)
        self.region_ns[region, beside].append(main_ns)
        if len(beside) == 1:
            self.own_ns[beside[0], region].append(own_ns)

    def _alone(self, block: int) -> None:
        main_ns, _ = self.second.run(self.waiting.pop(block), [])
        self.own_ns[block, None].append(main_ns)

    def finish(self) -> None:
        """What still waits."""
        for block in sorted(self.waiting):
            self._alone(block)

    def parameters(self) -> torch.Tensor:
        return torch.cat([each.detach().flatten() for block in self.blocks for each in block.parameters()])


def measure_table(training: Blocks, *, repetitions: int) -> RegionProblem:
    """Regions and W alone, and every pair side by side: in the s-th choice every W moves on by s regions."""
    count, regions = training.count, 2 * training.count
    choices: list[Choice] = [training.choice]
    for shift in range(regions):
        wanted = [(block + shift) % regions for block in range(count)]
        choices.append([each if each in training.window(block) else None for block, each in enumerate(wanted)])
    training.step()
    training.forward()
    training.region_ns.clear()
    training.own_ns.clear()
    for choice in choices * repetitions:
        training.choice = choice
        training.backward()
        training.forward()
    return RegionProblem(
        lengths_ns=tuple(round(median(training.region_ns[region, ()])) for region in range(regions)),
        weight_grads=tuple(_measured(training, block) for block in range(count)),
    )


def _measured(training: Blocks, block: int) -> WeightGrad:
    window = training.window(block)
    return WeightGrad(
        alone_ns=round(median(training.own_ns[block, None])),
        first=window.start,
        last=window.stop - 1,
        beside={
            region: CoRun(
                main_ns=round(median(training.region_ns[region, (block,)])),
                own_ns=round(median(training.own_ns[block, region])),
            )
            for region in window
        },
    )


def seconds_per_step(trainings: Sequence[Blocks], *, rounds: int, steps: int = 3) -> list[list[float]]:
    """Of the orders in turn, in the same run; which goes first alternates."""
    found: list[list[float]] = [[] for _ in trainings]
    for number in range(rounds + 1):
        for which in sorted(range(len(trainings)), reverse=number % 2 == 1):
            start = time.perf_counter()
            for _ in range(steps):
                trainings[which].step()
            if trainings[which].device == "cuda":
                torch.cuda.synchronize()
            if number:
                found[which].append((time.perf_counter() - start) / steps)
    return found


class Replayed:
    """Some steps of a training as one CUDA graph: the device runs them without being asked for every kernel.

    The first of them begins with no W waiting, and the last one leaves none, since what waits lies in the graph's own
    memory.
    """

    steps = 4

    def __init__(self, training: Blocks) -> None:
        self.training, self.graph, stream = training, torch.cuda.CUDAGraph(), torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._run(training)
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph, stream=stream):
            self._run(training)

    def _run(self, training: Blocks) -> None:
        for _ in range(self.steps):
            training.step()
        training.finish()
        training.ends, training.starts = [], []

    def step(self) -> None:
        """All of its steps."""
        self.graph.replay()


def replayed_seconds(network: str, choices: Sequence[Choice], *, rounds: int) -> list[list[float]]:
    """Of a step in every order, in turns, as CUDA graphs."""
    graphs = []
    for choice in choices:
        training = Blocks(network, device="cuda")
        training.choice, training.second.is_measuring = choice, False
        graphs.append(Replayed(training))
    found: list[list[float]] = [[] for _ in graphs]
    for number in range(rounds + 1):
        for which in sorted(range(len(graphs)), reverse=number % 2 == 1):
            start = time.perf_counter()
            graphs[which].step()
            torch.cuda.synchronize()
            if number:
                found[which].append((time.perf_counter() - start) / Replayed.steps)
    return found


def co_run(network: str, *, rounds: int, device: str = "cpu") -> dict[str, object]:
    """Measure the table, choose, and train in plain order, with every W beside the next region, and as chosen."""
    torch.backends.cudnn.deterministic = True  # otherwise no two runs on a GPU are equal, whatever their order
    measured = Blocks(network, device=device)
    problem = measure_table(measured, repetitions=max(3, rounds // 2))
    plan = plan_regions(problem)
    choices = {
        "plain": problem.plain,
        "all": tuple(each.first if each.regions else None for each in problem.weight_grads),
        "chosen": plan.choice,
    }
    trainings = [Blocks(network, device=device) for _ in choices]
    for each, choice in zip(trainings, choices.values(), strict=True):
        each.choice, each.second.is_measuring = choice, False
    seconds = seconds_per_step(trainings, rounds=rounds)
    for each in trainings:
        each.finish()
    predicted = {name: predicted_ns(problem, choice) for name, choice in choices.items()}
    plain, *others = [(torch.stack(each.losses), each.parameters()) for each in trainings]
    found: dict[str, object] = {
        "network": network,
        "choice": list(plan.choice),
        "source": plan.source,
        "bound_ns": plan.bound_ns,
        "predicted_ns": predicted | {"greedy": predicted_ns(problem, choose_greedily(problem))},
        "seconds": dict(zip(choices, seconds, strict=True)),
        "steps": len(plain[0]),
        "losses": [float(plain[0][0]), float(plain[0][-1])],
        "losses equal": all(torch.equal(losses, plain[0]) for losses, _ in others),
        "parameters equal": all(torch.equal(parameters, plain[1]) for _, parameters in others),
    }
    if device == "cuda":
        replayed = replayed_seconds(network, list(choices.values()), rounds=rounds)
        found["replayed seconds"] = dict(zip(choices, replayed, strict=True))
    return found


def main() -> None:
    """One network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("--rounds", type=int, default=16, help="timings of each order")
    parser.add_argument("--cuda", action="store_true", help="a second stream on the GPU in place of a second thread")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(json.dumps(co_run(given.network, rounds=given.rounds, device="cuda" if given.cuda else "cpu")))


if __name__ == "__main__":
    main()
