"""Rows of a plan between any two stages and any two of their replicas: a loop over cells, and messages of our own.

F, I and B fetch what they need from an inbox, and losses are filed under their microbatch. A buffer lives from its
receive to the action that takes it.
"""

import functools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import distributed
from torch.profiler import record_function

from planner.execute.model.user_code import calling
from planner.execute.stage.batch_copies import to_device
from planner.execute.stage.plan_stage import Gradients, PlanStage
from planner.execute.stage.sample_parts import join_shares, share_of
from planner.execute.stage.sending import Sending, as_stored
from planner.execute.stage.stage_module import StageShape, unflatten
from planner.execute.table.message_queues import Queues, find_directions
from planner.execute.table.routes import Cell, SampleExchange
from planner.execute.table.wiring import BATCH, StageEdge
from planner.execute.training import Tensors, as_tuple


class Mail(NamedTuple):
    """Tensors that have arrived, or will have when the works are done."""

    tensors: list[torch.Tensor]
    works: list[Any]


class RoutedStage(PlanStage):
    """A stage that takes its inputs, and the gradients of its outputs, from wherever its routes lead."""

    def __init__(
        self,
        *arguments: Any,
        shape: StageShape,
        edges: Sequence[StageEdge],
        routes: Sequence[SampleExchange],
        **more: Any,
    ) -> None:
        """`routes`: those of this replica, either end; `more`: as for `PlanStage`."""
        super().__init__(*arguments, shape=shape, **more)
        self.shape = shape
        self.edges = {(edge.producer, edge.consumer): edge for edge in edges}
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

    def planned_outputs(self, microbatch: int) -> Tensors:
        """Meta tensors of what F of a microbatch gives."""
        return self.shape_of(microbatch).outputs

    def indices(self, route: SampleExchange, letter: str) -> list[int]:
        """Which inputs (on the consumer), or outputs (on the producer), travel on a route; as gradients (letter B),
        only those that need one.
        """
        is_consumer = route.consumer == self.stage_index
        places, tensors = (self._taken, self.shape.inputs) if is_consumer else (self._made, self.shape.outputs)
        names = self.edges[route.producer, route.consumer].values
        return [k for name in names for k in places[name] if letter == "F" or tensors[k].requires_grad]

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
        return [torch.empty(like.shape, dtype=like.dtype, device=self.device) for like in likes]

    def send_out(self, tensors: Sequence[torch.Tensor | None], letter: str, *, microbatch: int) -> None:
        """Put what F made (all outputs), or I or B (the gradients of all inputs), where the messages find it."""
        likes = self.planned_outputs(microbatch) if letter == "F" else self.graded_inputs(microbatch)
        whole = self.shape.whole_outputs if letter == "F" else self.shape.whole_inputs
        for route in self.leaving[letter]:
            part = route.made if letter == "F" else route.used
            mail = []
            for k in self.indices(route, letter):
                is_elsewhere = letter == "B" and k in whole and part.start > 0  # it goes with the first sample
                tensor = _present(None if is_elsewhere else tensors[k], like=likes[k], device=self.device)
                mail.append(share_of(tensor, part, is_whole=k in whole).contiguous())
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


def _carrying(letter: str, routes: Sequence[SampleExchange]) -> list[SampleExchange]:
    return [route for route in routes if letter in route.letters]


def _present(tensor: torch.Tensor | None, *, like: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A gradient may be missing where nothing was done with an input: it is zero."""
    return torch.zeros_like(like, device=device, requires_grad=False) if tensor is None else tensor.detach()


class RoutedRuntime:
    """Runs one row of cells, one iteration after the other, with a loss for every microbatch."""

    targets: Mapping[int, torch.Tensor] | None = None
    """By microbatch; None where the last stage is elsewhere."""

    def __init__(
        self,
        stages: Sequence[RoutedStage],
        *,
        row: Sequence[Cell],
        loss: Any,
        queues: Queues,
    ) -> None:
        self.loss, self.loss_factor = loss, 1.0
        """What the loss is multiplied by for the backward."""
        self._pending: dict[int, torch.Tensor] = {}
        self._losses: dict[int, torch.Tensor] = {}
        self.rank, self.log = distributed.get_rank(), stages[0].log
        self.sending, self.queues = Sending(is_host=stages[0].device.type == "cpu"), queues
        self.by_number: Mapping[int, RoutedStage] = {stage.stage_index: stage for stage in stages}
        self.routes = {
            (route.producer, route.consumer, route.source, route.target, letter): route
            for stage in stages
            for route in (*stage.incoming, *stage.outgoing)
            for letter in route.letters
        }
        self.take_row(row)

    def take_row(self, row: Sequence[Cell]) -> None:
        """Run these cells from the next iteration on."""
        self.row = row
        for stage in self.by_number.values():
            stage.split = frozenset(
                cell.microbatch for cell in row if cell.stage == stage.stage_index and cell.kind == "I"
            )

    def run(self, targets: Mapping[int, torch.Tensor] | None) -> dict[int, torch.Tensor]:
        """One iteration; returns the loss of every microbatch (empty unless the last stage is here)."""
        self._losses.clear()
        self._pending.clear()
        self.targets = targets
        for cell in self.row:
            name = str(cell)
            self.log.note(name)
            with record_function(f"PP:{name}"):
                self._perform(cell)
        self.sending.finish()
        return dict(sorted(self._losses.items()))

    def _perform(self, cell: Cell) -> None:
        stage = self.by_number[cell.stage]
        if cell.kind == "F":
            self._forward(stage, cell.microbatch)
        elif cell.kind in ("I", "B"):
            self._backward(stage, cell.microbatch, is_whole=cell.kind == "B")
        elif cell.kind == "W":
            stage.compute_weight_grad(cell.microbatch)
        elif cell.kind == "REDUCE_GRAD":
            stage.start_reduction()
        elif cell.kind.startswith("SEND"):
            self._send(stage, cell)
        else:
            self._receive(stage, cell)

    def _take_loss(self, stage: RoutedStage, output: torch.Tensor | Tensors, *, microbatch: int) -> None:
        if stage.is_last:
            assert self.targets is not None
            with calling("the loss"):
                loss = self.loss(output, self.targets[microbatch])
            self._pending[microbatch] = loss if self.loss_factor == 1 else loss * self.loss_factor
            self._losses[microbatch] = loss.detach()
            stage.log.prolong()  # the last layer carries the loss

    def _pending_loss(self, stage: RoutedStage, microbatch: int) -> torch.Tensor | None:
        return self._pending.pop(microbatch) if stage.is_last else None

    def _forward(self, stage: RoutedStage, microbatch: int) -> None:
        stage.wait("F", microbatch)
        samples = stage.gather_inputs(microbatch) if stage.is_first else ()
        output = stage.compute_forward(microbatch, samples)
        self._take_loss(stage, output, microbatch=microbatch)
        stage.send_out(as_tuple(output), "F", microbatch=microbatch)
        self._deliver(stage.leaving["F"], "F", microbatch=microbatch)

    def _backward(self, stage: RoutedStage, microbatch: int, *, is_whole: bool) -> None:
        stage.wait("B", microbatch)
        grads = stage.compute_backward(microbatch, loss=self._pending_loss(stage, microbatch), is_whole=is_whole)
        stage.send_out(grads, "B", microbatch=microbatch)
        self._deliver(stage.leaving["B"], "B", microbatch=microbatch)

    def _deliver(self, routes: Sequence[SampleExchange], letter: str, *, microbatch: int) -> None:
        """What stays on this rank needs no message."""
        for route in routes:
            if route.source == route.target:
                sender, receiver = (route.producer, route.consumer)[:: 1 if letter == "F" else -1]
                tensors = self.by_number[sender].outbox.pop((route, letter, microbatch))
                self.by_number[receiver].inbox[route, letter, microbatch] = Mail(tensors, [])

    def _send(self, stage: RoutedStage, cell: Cell) -> None:
        route, letter = self._message(cell)
        self.send_to(cell.rank, stage.outbox.pop((route, letter, cell.microbatch)))

    def _receive(self, stage: RoutedStage, cell: Cell) -> None:
        route, letter = self._message(cell)
        buffers = stage.make_buffers(route, letter, microbatch=cell.microbatch)
        stage.inbox[route, letter, cell.microbatch] = self.receive_from(cell.rank, buffers)

    def send_to(self, rank: int, tensors: Sequence[torch.Tensor]) -> None:
        """Begin to send dense tensors."""
        queue = self.queues.get((self.rank, rank))
        works = [distributed.isend(as_stored(tensor), dst=rank, group=queue) for tensor in tensors]
        self.sending.add(works, num_bytes=sum(tensor.nbytes for tensor in tensors))

    def receive_from(self, rank: int, buffers: list[torch.Tensor]) -> Mail:
        """Begin to receive into them."""
        queue = self.queues.get((rank, self.rank))
        return Mail(buffers, [distributed.irecv(buffer, src=rank, group=queue) for buffer in buffers])

    def _message(self, cell: Cell) -> tuple[SampleExchange, str]:
        """The route of a message, and what travels."""
        (producer, source), (consumer, target) = sorted([(cell.stage, self.rank), (cell.peer, cell.rank)])
        letter = cell.kind[-1]
        return self.routes[producer, consumer, source, target, letter], letter


def meet(routes: Sequence[SampleExchange], *, device: torch.device, queues: Queues = MappingProxyType({})) -> None:
    """Let every sender connect with every receiver of its messages; a collective call.

    The first message may wait for both: directions take turns in one order, so nobody waits in a circle.
    """
    rank, token = distributed.get_rank(), torch.zeros(1, device=device)
    for sender, receiver in find_directions(routes):
        queue = queues.get((sender, receiver))
        if rank == sender:
            distributed.send(token, receiver, group=queue)
        elif rank == receiver:
            distributed.recv(token, sender, group=queue)
