"""A stage as a plan runs it: F, I, W and B of one microbatch after the other.

Gradients are reduced by our own hand, weight gradients may be put off, every action is noted, and tensors live no
longer than they are needed.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from planner.execute.model.deferred import WeightGrads, WeightGradStore, defer_weight_grads
from planner.execute.model.layer_run import Moment
from planner.execute.parallel.reduction import StageReduction
from planner.execute.record.action_log import ActionLog
from planner.execute.stage.stage_module import StageModule, StageShape, unflatten
from planner.execute.training import Tensors, as_tuple

Gradients = tuple[torch.Tensor | None, ...]
"""One per tensor; None where nothing was done with it."""


class _Forward(NamedTuple):
    """What a backward needs of the forward of its microbatch."""

    roots: tuple[GradientEdge | None, ...]
    """Where the graph behind each output begins; None where nothing is trained. The outputs are where they go to."""
    inputs: Tensors


class PlanStage(ABC):
    """One stage of the plan on this process."""

    def __init__(
        self,
        module: StageModule,
        number: int,
        *,
        num_stages: int,
        shape: StageShape,
        device: torch.device,
        log: ActionLog,
    ) -> None:
        self.module, self.stage_index, self.device, self.log = module, number, device, log
        self.is_first, self.is_last = number == 0, number == num_stages - 1
        self.store, self.outputs = WeightGradStore(), shape.outputs
        self.split: frozenset[int] = frozenset()
        """The microbatches whose backward is I and W; the weight gradients of all others wait for nothing."""
        self.reduction: StageReduction | None = None
        self.putting_off: Callable[[], AbstractContextManager[None]] = nullcontext
        """Within which I runs."""
        self.wanting = frozenset(k for k, like in enumerate(shape.inputs) if like.requires_grad)
        """Places of the inputs that need gradients."""
        self.used_inputs = set[int]()
        """Places of those that got one since the last step."""
        self.moment: Moment | None = None
        """Of the iteration's first microbatch: what its random numbers depend on."""
        self.forwards = dict[int, _Forward]()
        """By microbatch, until its backward."""
        self._waiting = dict[int, WeightGrads]()
        """By microbatch what W has to compute."""
        self.store.is_open = False
        module.store = self.store

    @abstractmethod
    def gather_inputs(self, microbatch: int) -> Tensors:
        """The inputs of F as leaves of a new graph."""

    @abstractmethod
    def gather_grads(self, microbatch: int) -> Gradients:
        """The gradients of all outputs, from the stages that took them."""

    def compute_forward(self, microbatch: int, samples: Tensors) -> torch.Tensor | Tensors:
        """F, of `samples` or else of what arrived; raises RuntimeError if it gives something else than was made room
        for where it is sent to.
        """
        self.module.begin(microbatch, moment=self.moment)
        self.store.is_noting = microbatch in self.split
        with self.log.computing():
            inputs = samples or self.gather_inputs(microbatch)
            output: torch.Tensor | Tensors = self.module(*inputs)
        outputs = as_tuple(output)
        self.require_planned(outputs, microbatch=microbatch)
        leaving = () if self.is_last else outputs
        roots = tuple(get_gradient_edge(tensor) if tensor.requires_grad else None for tensor in leaving)
        self.forwards[microbatch] = _Forward(roots, inputs)
        return output

    def planned_outputs(self, microbatch: int) -> Tensors:  # noqa: ARG002
        """Meta tensors of what F of a microbatch gives."""
        return self.outputs

    def require_planned(self, outputs: Sequence[torch.Tensor], *, microbatch: int) -> None:
        """Raise RuntimeError if they are not what was made room for."""
        for place, (mine, planned) in enumerate(zip(outputs, self.planned_outputs(microbatch), strict=True)):
            if mine.shape != planned.shape or mine.dtype != planned.dtype:
                raise RuntimeError(
                    f"stage {self.stage_index} gives {tuple(mine.shape)} {mine.dtype} as tensor {place}, but gave "
                    f"{tuple(planned.shape)} {planned.dtype} when the model was traced; keep shapes and types in "
                    "every iteration, and give microbatches of different lengths as lists"
                )

    def compute_backward(self, microbatch: int, *, loss: torch.Tensor | None, is_whole: bool) -> Gradients:
        """B, or I: then weight gradients wait. Gives the gradients of the inputs; `loss`: of the last stage."""
        self.store.is_deferring = self.store.is_noting = not is_whole
        with self.log.computing(), self.store.opened(), nullcontext() if is_whole else self.putting_off():
            grads = self._find_grads(microbatch, loss)
            waiting = self.store.take()
            if is_whole:
                waiting()
        if self.leaves_alone:
            self.used_inputs |= {k for k, grad in enumerate(grads) if grad is not None}
        if not is_whole:
            self._waiting[microbatch] = waiting
        return grads

    def _find_grads(self, microbatch: int, loss: torch.Tensor | None) -> Gradients:
        """Of the inputs, through the graph of a forward, which is gone afterwards."""
        roots, inputs = self.forwards.pop(microbatch)
        if loss is not None:
            wanted: list[tuple[Any, torch.Tensor | None]] = [(loss, None)] if loss.requires_grad else []
        else:
            pairs = zip(roots, self.gather_grads(microbatch), strict=True)
            wanted = [(root, grad) for root, grad in pairs if root is not None]
        torch.autograd.backward([root for root, _ in wanted], [grad for _, grad in wanted])
        grads = tuple(tensor.grad for tensor in inputs)
        for tensor in inputs:
            tensor.grad = None
        return grads

    @property
    def used_values(self) -> set[str]:
        """Names of the values that arrive and got a gradient since the last step, in one of their tensors at least."""
        places = unflatten(range(sum(self.module.counts.values())), self.module.counts)
        return {name for name, own in places.items() if not self.used_inputs.isdisjoint(own)}

    @property
    def leaves_alone(self) -> bool:
        """Whether an input that needs a gradient got none since the last step."""
        return len(self.used_inputs) < len(self.wanting)

    def compute_weight_grad(self, microbatch: int) -> None:
        """W."""
        waiting = self._waiting.pop(microbatch)
        with self.log.computing():
            waiting()

    def start_reduction(self) -> None:
        """Once per iteration, after the last W or B."""
        if self.reduction is None:
            raise RuntimeError(f"stage {self.stage_index} has no reduction")
        self.reduction.start()


def defer_layers(module: StageModule, store: WeightGradStore, *, shape: StageShape) -> None:
    """All layers' weight gradients may wait, but for those of layers that call torch.autograd themselves."""
    for name in module.wiring.layers:
        layer = module.layer(name)
        if not shape.traits[name].differentiates:
            defer_weight_grads(layer, store, owner=name)
