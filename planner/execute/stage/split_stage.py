"""A stage whose I or W is elsewhere than its F, as one of the processes that work for it sees it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import distributed

from planner.execute.model.deferred import add_grad
from planner.execute.model.saved_tensors import SavedTensors
from planner.execute.stage.plan_stage import Mail, PlanStage, defer_layers
from planner.execute.stage.routed_runtime import RoutedRuntime
from planner.execute.stage.split_backward import ShareOfBackward, SplitBackward
from planner.execute.stage.stage_module import StageModule
from planner.execute.table.layout import StagePart
from planner.execute.table.routes import Cell
from planner.execute.training import Tensors, as_tuple


class _Inner(NamedTuple):
    """A message between two ranks of one stage; `rank` is the other one."""

    letter: str
    """P, S, X or G, see `routes.Cell`."""
    microbatch: int
    rank: int


class SplitStage(PlanStage):
    """Runs F, a share of I, or W: what its part says. Only the owner's layers are trained; others hold copies."""

    def __init__(
        self, module: StageModule, number: int, *, copy: StageModule, parts: Sequence[StagePart], **more: Any
    ) -> None:
        """`copy`: layers for the backward, which on the owner become one with the module's, but for their buffers;
        elsewhere the module itself. `more`: as for `PlanStage`.
        """
        super().__init__(module, number, **more)
        self.parts, rank = parts, distributed.get_rank()
        self.part = next(part for part in parts if part.rank == rank)
        self.weight_part = next((part for part in parts if "W" in part.kinds), None)
        defer_layers(module, self.store, shape=self.shape)
        if copy is not module:
            _share_parameters(module, copy)
            copy.store = self.store
            defer_layers(copy, self.store, shape=self.shape)
        self.backward = SplitBackward(copy, parts, wants_grad=[like.requires_grad for like in self.shape.inputs])
        self.kept: dict[int, list[torch.Tensor]] = {}
        """By microbatch what the share of I that runs here needs of F, where both are here."""
        self.waiting: dict[tuple[int, int], list[torch.Tensor]] = {}
        """By microbatch and rank of the share what W needs, where both are here."""
        self.mail: dict[_Inner, Mail] = {}
        self.leaving_mail: dict[_Inner, list[torch.Tensor]] = {}

    @property
    def leaves_alone(self) -> bool:
        """As any other's, where a share of I is here."""
        return self.part.has_share and super().leaves_alone

    @property
    def is_owner(self) -> bool:
        """Whether F, the weights and the optimizer's state are here."""
        return self.part is self.parts[0]

    @property
    def share(self) -> ShareOfBackward:
        """The share of I that runs here."""
        return self.backward.shares[self.part.rank]

    def graded_inputs(self, microbatch: int) -> Tensors:  # noqa: ARG002
        """Of the share's samples."""
        return tuple(map(self.share.cut_rows, self.shape.inputs))

    def graded_outputs(self, microbatch: int) -> Tensors:  # noqa: ARG002
        """Of the share's samples."""
        return tuple(map(self.share.cut_rows, self.shape.outputs))

    def run_forward(self, microbatch: int, take_loss: Callable[[Tensors], torch.Tensor]) -> None:
        """F: keep, or make ready to leave, what every share of I needs; `take_loss` gives the last stage's loss."""
        inputs, module = self.gather_inputs(microbatch), self.module
        saved = SavedTensors(self.backward.parameters)
        module.moment = None if self.moment is None else self.moment._replace(microbatch=microbatch)
        with self.log.computing(), saved.noting():
            outputs = tuple(tensor.detach() for tensor in as_tuple(module(*inputs)))
        self.require_planned(outputs, microbatch=microbatch)
        self.backward.require_same(saved)
        grads = self._loss_grads(outputs, take_loss)
        self.send_out(outputs, "F", microbatch=microbatch)
        for part in self.parts:
            if part.has_share:
                share = self.backward.shares[part.rank]
                tensors = [*share.cut(saved.tensors), *map(share.cut_rows, grads)]
                self._put_stash(part, tensors, microbatch=microbatch)

    def _loss_grads(self, outputs: Tensors, take_loss: Callable[[Tensors], torch.Tensor]) -> list[torch.Tensor]:
        """The last stage's gradients begin with the loss, which the owner alone computes.

        Raises RuntimeError for an output that the loss leaves alone: I would be of zeros.
        """
        if not self.is_last:
            return []
        leaves = [
            tensor.requires_grad_(like.requires_grad) for tensor, like in zip(outputs, self.shape.outputs, strict=True)
        ]
        take_loss(tuple(leaves)).backward()  # type: ignore[no-untyped-call]
        self.log.prolong()
        if unused := [k for k, leaf in enumerate(leaves) if leaf.requires_grad and leaf.grad is None]:
            raise RuntimeError(
                f"the loss makes no use of tensor {unused[0]} of stage {self.stage_index}, whose backward is on other "
                "processes; let the last layer not give it, or plan with split_placement = false"
            )
        return [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]

    def _put_stash(self, part: StagePart, tensors: list[torch.Tensor], *, microbatch: int) -> None:
        if part is self.part:
            self.kept[microbatch] = tensors
        else:
            self.leaving_mail[_Inner("S", microbatch, part.rank)] = [tensor.contiguous() for tensor in tensors]

    def run_input_grad(self, microbatch: int) -> None:
        """I of the share that runs here; what W needs waits here, or is made ready to leave."""
        saved = self.kept.pop(microbatch, []) or self._collect("S", microbatch)
        grads: Sequence[torch.Tensor | None] = saved[len(self.share.graph.likes) :]
        if not self.is_last:
            grads = self.gather_grads(microbatch)
        for parameter, arrived in zip(self.backward.parameters, self._collect("P", 0), strict=False):
            if not parameter.is_contiguous():
                parameter.detach().copy_(arrived)
        with self.log.computing():
            found = self.backward.input_grads(self.share, saved[: len(self.share.graph.likes)], grads=grads)
        self.used_inputs |= {k for k, grad in enumerate(found) if grad is not None}
        tensors = self.backward.pack(self.share)
        self.send_out(found, "B", microbatch=microbatch)
        if self.weight_part is self.part:
            self.waiting[microbatch, self.part.rank] = tensors
        elif self.weight_part is not None:
            self.leaving_mail[_Inner("X", microbatch, self.weight_part.rank)] = tensors

    def compute_weight_grad(self, microbatch: int) -> None:
        """W: of all shares of I, in their order."""
        shares = [part.rank for part in self.parts if part.has_share]
        given = [
            self.waiting.pop((microbatch, rank), []) or self._collect("X", microbatch, rank=rank) for rank in shares
        ]
        with self.log.computing():
            for rank, tensors in zip(shares, given, strict=True):
                self.backward.weight_grads(self.backward.shares[rank], tensors)

    def _collect(self, letter: str, microbatch: int, *, rank: int | None = None) -> list[torch.Tensor]:
        """What has come, once it is there; nothing if nothing was to come."""
        mail = self.mail.pop(_Inner(letter, microbatch, self.parts[0].rank if rank is None else rank), None)
        for work in [] if mail is None else mail.works:
            work.wait()
        return [] if mail is None else mail.tensors

    def leaving_inner(self, key: _Inner) -> list[torch.Tensor]:
        """Tensors of an outgoing message."""
        if key.letter == "P":
            return [parameter.detach().contiguous() for parameter in self.backward.parameters]
        if key.letter != "G":
            return self.leaving_mail.pop(key)
        grads = []
        for parameter in self.backward.trained_by(self.part):
            kind = parameter.grad_dtype or parameter.dtype
            grads.append(torch.zeros_like(parameter, dtype=kind) if parameter.grad is None else parameter.grad)
            parameter.grad = None
        return [grad.contiguous() for grad in grads]

    def make_inner_buffers(self, key: _Inner) -> list[torch.Tensor]:
        """Where a message is received; weights that lie row by row straight into the layers."""
        if key.letter == "P":
            return [parameter.detach().contiguous() for parameter in self.backward.parameters]
        if key.letter == "G":
            made = self.backward.trained_by(next(part for part in self.parts if part.rank == key.rank))
            kinds = [each.grad_dtype or each.dtype for each in made]
            return [torch.empty(each.shape, dtype=kinds[k], device=each.device) for k, each in enumerate(made)]
        likes: Sequence[torch.Tensor] = self.backward.shares[key.rank].weights.likes if key.letter == "X" else ()
        if key.letter == "S":
            likes = [*self.share.graph.likes, *(self.graded_outputs(0) if self.is_last else ())]
        return [torch.empty(like.shape, dtype=like.dtype, device=self.device) for like in likes]

    @torch.no_grad()
    def settle(self) -> None:
        """On the owner, after all actions: take in the gradients that others have finished."""
        for part in self.parts[1:] if self.is_owner else ():
            tensors = self._collect("G", 0, rank=part.rank)
            for parameter, grad in zip(self.backward.trained_by(part), tensors, strict=True):
                add_grad(parameter, grad)


def _share_parameters(module: StageModule, copy: StageModule) -> None:
    """Let the layers of a copy have the parameters of others of the same make; buffers stay its own."""
    for mine, theirs in zip(copy.modules(), module.modules(), strict=True):
        for name in mine._parameters:
            mine._parameters[name] = theirs._parameters[name]


class SplitRuntime(RoutedRuntime):
    """Runs rows in which some stages are split."""

    def run(self, targets: Mapping[int, torch.Tensor] | None) -> dict[int, torch.Tensor]:
        """As others do; afterwards the owners have all gradients."""
        losses = super().run(targets)
        for stage in self.by_number.values():
            if isinstance(stage, SplitStage):
                stage.settle()
        return losses

    def _forward(self, stage: PlanStage, microbatch: int) -> None:
        if not isinstance(stage, SplitStage):
            super()._forward(stage, microbatch)
            return

        def take_loss(outputs: Tensors) -> torch.Tensor:
            self._take_loss(stage, outputs if len(outputs) > 1 else outputs[0], microbatch=microbatch)
            return self._pending.pop(microbatch)

        stage.wait("F", microbatch)
        stage.run_forward(microbatch, take_loss)
        self._deliver(stage.leaving["F"], "F", microbatch=microbatch)

    def _backward(self, stage: PlanStage, microbatch: int, *, is_whole: bool) -> None:
        if not isinstance(stage, SplitStage):
            super()._backward(stage, microbatch, is_whole=is_whole)
            return
        stage.wait("B", microbatch)
        stage.run_input_grad(microbatch)
        self._deliver(stage.leaving["B"], "B", microbatch=microbatch)

    def _send(self, stage: PlanStage, cell: Cell) -> None:
        if isinstance(stage, SplitStage) and cell.peer == cell.stage:
            self.send_to(cell.rank, stage.leaving_inner(_inner(cell)))
        else:
            super()._send(stage, cell)

    def _receive(self, stage: PlanStage, cell: Cell) -> None:
        if isinstance(stage, SplitStage) and cell.peer == cell.stage:
            key = _inner(cell)
            stage.mail[key] = self.receive_from(cell.rank, stage.make_inner_buffers(key))
        else:
            super()._receive(stage, cell)


def _inner(cell: Cell) -> _Inner:
    return _Inner(cell.kind[-1], cell.microbatch, cell.rank)
