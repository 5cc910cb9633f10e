"""One rank that runs its part of a plan with split placement: F, I (or a half of it) and W of a layer where it says.

`python -m tests.integration.layer_pipe_worker STORE RANK COUNT` plans a chain of linear layers by LayerPipe, runs one
iteration over gloo, and rank 0 prints what came out against one process. All that travels are tagged messages.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise

import torch
from torch import distributed

from planner.actions import Action
from planner.baselines.layer_pipe.plans import make_layer_pipe_plan
from planner.layout.costs import CostModel
from planner.layout.split_placement import SplitPart
from planner.plan import Plan
from tests.integration.layer_pipe_problem import BATCH, MICROBATCHES, WIDTHS, make_problem

KINDS = ("activation", "gradient", "stash", "weight stash", "weights", "finished")


def make_weights() -> list[torch.Tensor]:
    """The same on every rank; only a layer's owner uses its own."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(a, b, generator=generator) / a**0.5 for a, b in pairwise(WIDTHS)]


def make_inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(BATCH, WIDTHS[0], generator=generator) for _ in range(MICROBATCHES)]


def rows(part: SplitPart) -> slice:
    """The samples of a share of I."""
    return slice(int(part.start * BATCH), int(part.end * BATCH))


@dataclass(slots=True)
class Rank:
    """What one rank holds while it runs the plan. The loss is half the sum of squares of the last output."""

    plan: Plan
    costs: CostModel
    name: str
    weights: dict[int, torch.Tensor] = field(default_factory=dict)
    outputs: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)
    stashes: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    weight_stashes: dict[tuple[int, int, int], tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    input_grads: dict[tuple[int, int, int], torch.Tensor] = field(default_factory=dict)
    gradients: dict[int, torch.Tensor] = field(default_factory=dict)
    sent: list[object] = field(default_factory=list)
    num_bytes: int = 0

    def parts(self, stage: int) -> tuple[SplitPart, ...]:
        """Who works for a stage; a stage that is not split has one part for everything."""
        placed = self.plan.stages[stage]
        if placed.is_split:
            return self.costs.parts(placed)
        return (SplitPart(placed.replicas[0][0], "FIW", Fraction(0), Fraction(1)),)

    def owner(self, stage: int) -> str:
        return self.parts(stage)[0].device

    def shares(self, stage: int) -> list[tuple[int, SplitPart]]:
        return [(number, part) for number, part in enumerate(self.parts(stage)) if part.share]

    def weight_device(self, stage: int) -> str:
        return next(part.device for part in self.parts(stage) if "W" in part.kinds)

    def send(self, tensor: torch.Tensor, *, to: str, tag: int) -> None:
        tensor = tensor.contiguous()
        self.num_bytes += tensor.numel() * tensor.element_size()
        self.sent.append((distributed.isend(tensor, int(to[4:]), tag=tag), tensor))

    def receive(self, shape: tuple[int, int], *, source: str, tag: int) -> torch.Tensor:
        tensor = torch.empty(shape)
        distributed.recv(tensor, int(source[4:]), tag=tag)
        return tensor

    def tag(self, kind: str, stage: int, *, microbatch: int = 0, share: int = 0) -> int:
        """One number per message between two ranks."""
        place = KINDS.index(kind) * len(self.plan.stages) + stage
        return (place * MICROBATCHES + microbatch) * 16 + share


class Runner(Rank):
    """Runs the actions of one rank; everything that leaves is sent as soon as it is there."""

    def run(self) -> None:
        """One iteration."""
        for stage in range(len(self.plan.stages)):
            if self.owner(stage) == self.name:
                for part in self.parts(stage)[1:]:
                    if part.share:
                        self.send(self.weights[stage], to=part.device, tag=self.tag("weights", stage))
        for stage in range(len(self.plan.stages)):
            for part in self.parts(stage)[1:]:
                if part.device == self.name and part.share:
                    shape = (WIDTHS[stage], WIDTHS[stage + 1])
                    self.weights[stage] = self.receive(shape, source=self.owner(stage), tag=self.tag("weights", stage))
        for action in self.plan.schedule[self.name]:
            {"F": self.forward, "I": self.input_grad, "W": self.weight_grad}[action.kind](action)
        for stage in range(len(self.plan.stages)):
            if self.weight_device(stage) == self.name != self.owner(stage):
                self.send(self.gradients.pop(stage), to=self.owner(stage), tag=self.tag("finished", stage))
        for stage in range(len(self.plan.stages)):
            if self.owner(stage) == self.name != self.weight_device(stage):
                shape = (WIDTHS[stage], WIDTHS[stage + 1])
                tag = self.tag("finished", stage)
                self.gradients[stage] = self.receive(shape, source=self.weight_device(stage), tag=tag)

    def forward(self, action: Action) -> None:
        """y = relu(x w), no ReLU after the last layer."""
        stage, microbatch = action.stage, action.microbatch
        x = self._input(stage, microbatch)
        y = x @ self.weights[stage]
        mask = y  # after the last layer: the gradient of the loss is the output itself
        if stage < len(self.plan.stages) - 1:
            mask = (y > 0).to(y.dtype)
            y = y * mask
            if self.owner(stage + 1) != self.name:
                self.send(y, to=self.owner(stage + 1), tag=self.tag("activation", stage, microbatch=microbatch))
        self.outputs[stage, microbatch] = y
        self.stashes[stage, microbatch] = x, mask
        for share, part in self.shares(stage):
            if part.device != self.name:
                stash = torch.cat([x[rows(part)], mask[rows(part)]], dim=1)
                tag = self.tag("stash", stage, microbatch=microbatch, share=share)
                self.send(stash, to=part.device, tag=tag)

    def _input(self, stage: int, microbatch: int) -> torch.Tensor:
        if stage == 0:
            return make_inputs()[microbatch]
        if self.owner(stage - 1) == self.name:
            return self.outputs[stage - 1, microbatch]
        tag = self.tag("activation", stage - 1, microbatch=microbatch)
        return self.receive((BATCH, WIDTHS[stage]), source=self.owner(stage - 1), tag=tag)

    def input_grad(self, action: Action) -> None:
        """The gradient of x for this rank's samples; what W needs goes where W is."""
        stage, microbatch = action.stage, action.microbatch
        share = next(number for number, part in self.shares(stage) if part.device == self.name)
        x, mask = self._stash(stage, microbatch, share=share)
        grad = self._output_grad(stage, microbatch, share=share) * mask
        self.input_grads[stage, microbatch, share] = x_grad = grad @ self.weights[stage].t()
        for number, other in self.shares(stage - 1) if stage else []:
            self._send_grad(x_grad, (stage, microbatch, share), to=(number, other))
        if self.weight_device(stage) == self.name:
            self.weight_stashes[stage, microbatch, share] = x, grad
        else:
            tag = self.tag("weight stash", stage, microbatch=microbatch, share=share)
            self.send(torch.cat([x, grad], dim=1), to=self.weight_device(stage), tag=tag)

    def _send_grad(self, x_grad: torch.Tensor, maker: tuple[int, int, int], *, to: tuple[int, SplitPart]) -> None:
        """The samples that both shares have, to where the producer's I runs."""
        stage, microbatch, share = maker
        number, other = to
        own, wanted = rows(self.parts(stage)[share]), rows(other)
        low, high = max(own.start, wanted.start), min(own.stop, wanted.stop)
        if low < high and other.device != self.name:
            tag = self.tag("gradient", stage, microbatch=microbatch, share=4 * share + number)
            self.send(x_grad[low - own.start : high - own.start], to=other.device, tag=tag)

    def _stash(self, stage: int, microbatch: int, *, share: int) -> tuple[torch.Tensor, torch.Tensor]:
        part = self.parts(stage)[share]
        if self.owner(stage) == self.name:
            x, mask = self.stashes[stage, microbatch]
            return x[rows(part)], mask[rows(part)]
        shape = (rows(part).stop - rows(part).start, WIDTHS[stage] + WIDTHS[stage + 1])
        tag = self.tag("stash", stage, microbatch=microbatch, share=share)
        both = self.receive(shape, source=self.owner(stage), tag=tag)
        return both[:, : WIDTHS[stage]], both[:, WIDTHS[stage] :]

    def _output_grad(self, stage: int, microbatch: int, *, share: int) -> torch.Tensor:
        """The gradient of y for this share's samples; after the last layer the stash has it."""
        own = rows(self.parts(stage)[share])
        if stage == len(self.plan.stages) - 1:
            return torch.ones(own.stop - own.start, 1)
        return torch.cat(list(self._pieces(stage, microbatch, share=share)))

    def _pieces(self, stage: int, microbatch: int, *, share: int) -> Iterator[torch.Tensor]:
        own = rows(self.parts(stage)[share])
        for number, maker in self.shares(stage + 1):
            made = rows(maker)
            low, high = max(own.start, made.start), min(own.stop, made.stop)
            if low >= high:
                continue
            if maker.device == self.name:
                grad = self.input_grads[stage + 1, microbatch, number]
                yield grad[low - made.start : high - made.start]
            else:
                tag = self.tag("gradient", stage + 1, microbatch=microbatch, share=4 * number + share)
                yield self.receive((high - low, WIDTHS[stage + 1]), source=maker.device, tag=tag)

    def weight_grad(self, action: Action) -> None:
        """All samples of the microbatch at once, as in one process."""
        stage, microbatch = action.stage, action.microbatch
        pairs = [self._weight_stash(stage, microbatch, share=share) for share, _ in self.shares(stage)]
        x, grad = (torch.cat(each) for each in zip(*pairs, strict=True))
        held = self.gradients.get(stage)
        self.gradients[stage] = x.t() @ grad if held is None else held + x.t() @ grad

    def _weight_stash(self, stage: int, microbatch: int, *, share: int) -> tuple[torch.Tensor, torch.Tensor]:
        part = self.parts(stage)[share]
        if part.device == self.name:
            return self.weight_stashes[stage, microbatch, share]
        shape = (rows(part).stop - rows(part).start, WIDTHS[stage] + WIDTHS[stage + 1])
        tag = self.tag("weight stash", stage, microbatch=microbatch, share=share)
        both = self.receive(shape, source=part.device, tag=tag)
        return both[:, : WIDTHS[stage]], both[:, WIDTHS[stage] :]


def gradients_of_one_process() -> list[torch.Tensor]:
    """By torch's own backward, all microbatches in turn."""
    weights = [weight.requires_grad_() for weight in make_weights()]
    for x in make_inputs():
        for number, weight in enumerate(weights):
            x = x @ weight
            x = torch.relu(x) if number < len(weights) - 1 else x
        (x.square().sum() / 2).backward()
    return [weight.grad for weight in weights if weight.grad is not None]


def main() -> None:
    """Run one rank; rank 0 gathers the owners' gradients and compares them."""
    store, rank, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=count)
    problem = make_problem(count)
    costs = CostModel(problem)
    runner = Runner(plan=make_layer_pipe_plan(costs), costs=costs, name=f"rank{rank}")
    weights = make_weights()
    runner.weights = {stage: weights[stage] for stage in range(len(weights)) if runner.owner(stage) == runner.name}
    runner.run()
    gathered: list[object] = [None] * count
    distributed.all_gather_object(gathered, (runner.gradients, runner.num_bytes))
    if rank == 0:
        print(json.dumps(summarise(runner, gathered)))
    distributed.barrier()
    distributed.destroy_process_group()


def summarise(runner: Runner, gathered: list[object]) -> dict[str, object]:
    """Whether the owners' gradients are those of one process, and how much of the plan is split."""
    owned: dict[int, torch.Tensor] = {}
    for gradients, _ in gathered:  # type: ignore[misc]
        owned.update(gradients)
    wanted = gradients_of_one_process()
    worst = max(float((owned[n] - each).abs().max() / each.abs().max()) for n, each in enumerate(wanted))
    stages = range(len(runner.plan.stages))
    return {
        "worst_relative_difference": worst,
        "is_bitwise_equal": all(torch.equal(owned[n], each) for n, each in enumerate(wanted)),
        "weight_grads_elsewhere": sum(runner.weight_device(stage) != runner.owner(stage) for stage in stages),
        "input_grads_halved": sum(len(runner.shares(stage)) > 1 for stage in stages),
        "bytes_moved": sum(num_bytes for _, num_bytes in gathered),  # type: ignore[misc]
    }


if __name__ == "__main__":
    main()
