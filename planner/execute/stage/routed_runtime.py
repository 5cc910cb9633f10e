"""Rows of a plan between any two stages and any two of their replicas: a loop over cells, and messages of our own.

F, I and B fetch what they need from an inbox, and losses are filed under their microbatch. A buffer lives from its
receive to the action that takes it.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import distributed
from torch.profiler import record_function

from planner.execute.model.user_code import calling
from planner.execute.stage.plan_stage import Mail, PlanStage
from planner.execute.stage.sending import Sending, as_stored, in_rows
from planner.execute.table.message_queues import Queues, find_directions
from planner.execute.table.routes import Cell, SampleExchange
from planner.execute.training import Tensors, as_tuple


class RoutedRuntime:
    """Runs one row of cells, one iteration after the other, with a loss for every microbatch."""

    targets: Mapping[int, torch.Tensor] | None = None
    """By microbatch; None where the last stage is elsewhere."""

    def __init__(self, stages: Sequence[PlanStage], *, row: Sequence[Cell], loss: Any, queues: Queues) -> None:
        self.loss, self.loss_factor = loss, 1.0
        """What the loss is multiplied by for the backward."""
        self._pending: dict[int, torch.Tensor] = {}
        self._losses: dict[int, torch.Tensor] = {}
        self.rank, self.log = distributed.get_rank(), stages[0].log
        self.sending, self.queues = Sending(is_host=stages[0].device.type == "cpu"), queues
        self.by_number: Mapping[int, PlanStage] = {stage.stage_index: stage for stage in stages}
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

    def _take_loss(self, stage: PlanStage, output: torch.Tensor | Tensors, *, microbatch: int) -> None:
        if stage.is_last:
            assert self.targets is not None
            with calling("the loss"):
                loss = self.loss(output, self.targets[microbatch])
            self._pending[microbatch] = loss if self.loss_factor == 1 else loss * self.loss_factor
            self._losses[microbatch] = loss.detach()
            stage.log.prolong()  # the last layer carries the loss

    def _pending_loss(self, stage: PlanStage, microbatch: int) -> torch.Tensor | None:
        return self._pending.pop(microbatch) if stage.is_last else None

    def _forward(self, stage: PlanStage, microbatch: int) -> None:
        stage.wait("F", microbatch)
        samples = stage.gather_inputs(microbatch) if stage.is_first else ()
        output = stage.compute_forward(microbatch, samples)
        self._take_loss(stage, output, microbatch=microbatch)
        stage.send_out(as_tuple(output), "F", microbatch=microbatch)
        self._deliver(stage.leaving["F"], "F", microbatch=microbatch)

    def _backward(self, stage: PlanStage, microbatch: int, *, is_whole: bool) -> None:
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

    def _send(self, stage: PlanStage, cell: Cell) -> None:
        route, letter = self._message(cell)
        self.send_to(cell.rank, stage.outbox.pop((route, letter, cell.microbatch)))

    def _receive(self, stage: PlanStage, cell: Cell) -> None:
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
        return Mail(buffers, [distributed.irecv(in_rows(buffer), src=rank, group=queue) for buffer in buffers])

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
