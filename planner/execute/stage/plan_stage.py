"""A stage as a plan runs it: F, I, W and B of one microbatch after the other.

Gradients are reduced by our own hand, weight gradients may be put off, every action is noted, and tensors live no
longer than they are needed.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import distributed
from torch.autograd.graph import GradientEdge, get_gradient_edge

from planner.execute.model.deferred import WeightGradStore, defer_weight_grads
from planner.execute.model.layer_run import Moment
from planner.execute.model.memory_order import order_of
from planner.execute.parallel.reduction import StageReduction
from planner.execute.record.action_log import ActionLog
from planner.execute.stage.batch_copies import to_device
from planner.execute.stage.sample_parts import join_shares, share_of
from planner.execute.stage.stage_module import StageModule, StageShape, unflatten
from planner.execute.table.routes import SampleExchange
from planner.execute.table.wiring import BATCH
from planner.execute.training import Tensors, as_tuple

Gradients = tuple[torch.Tensor | None, ...]
"""One per tensor; None where nothing was done with it."""


class _Forward(NamedTuple):
    """What a backward needs of the forward of its microbatch."""

    roots: tuple[GradientEdge | None, ...]
    """Where the graph behind each output begins; None where nothing is trained. The outputs are where they go to."""
    inputs: Tensors


class Mail(NamedTuple):
    """Tensors that have arrived, or will have when the works are done."""

    tensors: list[torch.Tensor]
    works: list[Any]


class PlanStage:
    """One stage of the plan on this process, which takes inputs and gradients from wherever its routes lead."""

    def __init__(
        self,
        module: StageModule,
        number: int,
        *,
        num_stages: int,
        shape: StageShape,
        routes: Sequence[SampleExchange],
        device: torch.device,
        log: ActionLog,
    ) -> None:
        """`routes`: of all stages; those of this replica, either end, are taken."""
        self.module, self.stage_index, self.device, self.log = module, number, device, log
        self.is_first, self.is_last = number == 0, number == num_stages - 1
        self.store = WeightGradStore()
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
        self._waiting = dict[int, Callable[[], None]]()
        """By microbatch what W has to compute."""
        self.store.is_open = False
        module.store = self.store
        self.shape = shape
        rank = distributed.get_rank()
        self.incoming = [route for route in routes if (route.consumer, route.target) == (self.stage_index, rank)]
        self.outgoing = [route for route in routes if (route.producer, route.source) == (self.stage_index, rank)]
        self.arriving = {"F": _carrying("F", self.incoming), "B": _carrying("B", self.outgoing)}
        """By letter the routes on which it is sent something."""
        self.leaving = {"F": _carrying("F", self.outgoing), "B": _carrying("B", self.incoming)}
        """By letter the routes on which it sends."""
        self._taken = unflatten(range(len(shape.inputs)), shape.counts)
        self._made = unflatten(range(len(shape.outputs)), shape.leaving_counts)
        self.batch: Mapping[int, Tensors] = {}
        """Per microbatch this replica's share, if the stage takes the batch."""
        self.shapes: Mapping[int, StageShape] = {}
        """Per microbatch of this iteration, where they differ."""
        self.inbox: dict[tuple[SampleExchange, str, int], Mail] = {}
        self.outbox: dict[tuple[SampleExchange, str, int], list[torch.Tensor]] = {}

    def shape_of(self, microbatch: int) -> StageShape:
        """What enters and leaves the stage for a microbatch."""
        return self.shapes.get(microbatch, self.shape)

    def indices(self, route: SampleExchange, letter: str) -> list[int]:
        """Which inputs (on the consumer), or outputs (on the producer), travel on a route; as gradients (letter B),
        only those that need one.
        """
        is_consumer = route.consumer == self.stage_index
        places, tensors = (self._taken, self.shape.inputs) if is_consumer else (self._made, self.shape.outputs)
        return [k for name in route.values for k in places[name] if letter == "F" or tensors[k].requires_grad]

    def graded_inputs(self, microbatch: int) -> Tensors:
        """Meta tensors of the inputs whose gradients are computed here."""
        return self.shape_of(microbatch).inputs

    def graded_outputs(self, microbatch: int) -> Tensors:
        """Meta tensors of the outputs whose gradients are taken here."""
        return self.shape_of(microbatch).outputs

    def make_buffers(self, route: SampleExchange, letter: str, *, microbatch: int) -> list[torch.Tensor]:
        """Where a message of a route is received: an activation by the consumer, a gradient by the producer."""
        is_ahead = letter == "F"
        tensors = self.shape_of(microbatch).inputs if is_ahead else self.graded_outputs(microbatch)
        part, whole = (route.used, self.shape.whole_inputs) if is_ahead else (route.made, self.shape.whole_outputs)
        likes = [share_of(tensors[k], part, is_whole=k in whole) for k in self.indices(route, letter)]
        return [
            torch.empty(like.shape, dtype=like.dtype, device=self.device, memory_format=order_of(like))
            for like in likes
        ]

    def send_out(self, tensors: Sequence[torch.Tensor | None], letter: str, *, microbatch: int) -> None:
        """Put what F made (all outputs), or I or B (the gradients of all inputs), where the messages find it."""
        likes = self.shape_of(microbatch).outputs if letter == "F" else self.graded_inputs(microbatch)
        whole = self.shape.whole_outputs if letter == "F" else self.shape.whole_inputs
        for route in self.leaving[letter]:
            part = route.made if letter == "F" else route.used
            mail = []
            for k in self.indices(route, letter):
                is_elsewhere = letter == "B" and k in whole and part.start > 0  # it goes with the first sample
                tensor = _present(None if is_elsewhere else tensors[k], like=likes[k], device=self.device)
                mine = share_of(tensor, part, is_whole=k in whole)
                mail.append(mine.contiguous(memory_format=order_of(likes[k])))
            self.outbox[route, letter, microbatch] = mail

    def wait(self, letter: str, microbatch: int) -> None:
        """Until all messages are there that F (letter F), or I or B (letter B), needs."""
        for route in self.arriving[letter]:
            for work in self.inbox[route, letter, microbatch].works:
                work.wait()

    def gather_inputs(self, microbatch: int) -> Tensors:
        """The inputs of F as leaves of a new graph, put together from what has come."""
        found: dict[int, list[torch.Tensor]] = {}
        if self.batch:
            samples = (to_device(tensor, device=self.device) for tensor in self.batch[microbatch])
            found = {k: [tensor] for k, tensor in zip(self._taken[BATCH], samples, strict=True)}
        for route in sorted(self.arriving["F"], key=lambda route: route.used):
            mail = self.inbox.pop((route, "F", microbatch))
            for k, tensor in zip(self.indices(route, "F"), mail.tensors, strict=True):
                found.setdefault(k, []).append(tensor)
        whole = self.shape.whole_inputs
        return tuple(
            join_shares(found[k], is_whole=k in whole).detach().requires_grad_(like.requires_grad)
            for k, like in enumerate(self.shape.inputs)
        )

    def gather_grads(self, microbatch: int) -> Gradients:
        """Per output the sum over the stages that took it; each may have been put together from several replicas."""
        totals: list[torch.Tensor | None] = [None] * len(self.shape.outputs)
        consumers = sorted({route.consumer for route in self.arriving["B"]})
        for consumer in consumers:
            routes = sorted((r for r in self.arriving["B"] if r.consumer == consumer), key=lambda route: route.made)
            mails = [self.inbox.pop((route, "B", microbatch)).tensors for route in routes]
            for k, *parts in zip(self.indices(routes[0], "B"), *mails, strict=True):
                is_whole, total = k in self.shape.whole_outputs, totals[k]
                grad = functools.reduce(torch.add, parts) if is_whole else join_shares(parts, is_whole=False)
                totals[k] = grad if total is None else total + grad
        return tuple(totals)

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

    def require_planned(self, outputs: Sequence[torch.Tensor], *, microbatch: int) -> None:
        """Raise RuntimeError if they are not what was made room for."""
        for place, (mine, planned) in enumerate(zip(outputs, self.shape_of(microbatch).outputs, strict=True)):
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
    def used_places(self) -> set[tuple[str, int]]:
        """Of the arriving tensors that got a gradient since the last step the value, and which of its tensors."""
        return {(name, k) for name, own in self._taken.items() for k, at in enumerate(own) if at in self.used_inputs}

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
        assert self.reduction is not None
        self.reduction.start()


def _carrying(letter: str, routes: Sequence[SampleExchange]) -> list[SampleExchange]:
    return [route for route in routes if letter in route.letters]


def _present(tensor: torch.Tensor | None, *, like: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A gradient may be missing where nothing was done with an input: it is zero."""
    return torch.zeros_like(like, device=device, requires_grad=False) if tensor is None else tensor.detach()


def defer_layers(module: StageModule, store: WeightGradStore, *, shape: StageShape) -> None:
    """All layers' weight gradients may wait, but for those of layers that call torch.autograd themselves."""
    for name in module.wiring.layers:
        layer = module.layer(name)
        if not shape.traits[name].differentiates:
            defer_weight_grads(layer, store, owner=name)
