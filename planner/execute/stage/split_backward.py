"""The backward of a stage whose I or W is elsewhere than its F: what has to travel, and whether it comes to the same.

Every process that works for the stage tries all of it before the first iteration, on its own copy of the layers: what
a forward saves, handed to the graph of another forward, has to give the gradients that a plain backward gives.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from planner.execute.model.deferred import WeightGrad, WeightGradStore
from planner.execute.model.saved_tensors import BackwardGraph, SavedTensors
from planner.execute.stage.stage_module import StageModule
from planner.execute.table.layout import StagePart
from planner.execute.training import Tensors, as_tuple

_REMEDY = "plan with split_placement = false"


class _WeightGradParts(NamedTuple):
    """What W of one share needs, as it travels: each tensor once."""

    calls: tuple[WeightGrad, ...]
    """As the trial found them: rules and parameters are those of this process."""
    pairs: tuple[tuple[int, int], ...]
    """Per call the numbers of x and of the gradient among `likes`."""
    likes: tuple[torch.Tensor, ...]
    """Meta tensors of what travels."""


class ShareOfBackward:
    """I of one share of a stage's samples."""

    def __init__(self, graph: BackwardGraph, *, cuts: Sequence[int | None], part: StagePart) -> None:
        self.graph, self.part, self._cuts = graph, part, cuts
        self.weights = _WeightGradParts((), (), ())
        """What its W needs; known after the trial."""
        self.direct: list[int] = []
        """Numbers of the parameters whose gradients are complete with I; known after the trial."""

    def cut_rows(self, tensor: torch.Tensor) -> torch.Tensor:
        """Samples lie along dimension 0."""
        return _cut_rows(tensor, part=self.part)

    def cut(self, saved: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Of what a forward of all samples saved, what belongs to the share."""
        return [
            tensor if cut is None else tensor.narrow(cut, rows.start, rows.stop - rows.start)
            for tensor, cut in zip(saved, self._cuts, strict=True)
            for rows in [_rows(tensor.shape[cut or 0] if tensor.dim() else 1, part=self.part)]
        ]


class SplitBackward:
    """All shares of I of one stage on one process."""

    def __init__(self, module: StageModule, parts: Sequence[StagePart], *, wants_grad: Sequence[bool]) -> None:
        """`module`: its layers, whose weight gradients wait in its store; `wants_grad`: of its inputs."""
        self.module, self.parts, self.wants_grad = module, parts, wants_grad
        self.parameters = list(module.parameters())
        self.shares: dict[int, ShareOfBackward] = {}
        """By rank."""
        self._whole: BackwardGraph | None = None

    @property
    def store(self) -> WeightGradStore:
        """Postponed weight gradients of the module."""
        assert self.module.store is not None
        return self.module.store

    def prepare(self, one: Tensors, other: Tensors) -> str:
        """Make all graphs from one microbatch and try them on another; gives what is wrong, or nothing."""
        try:
            self._whole = self._make_graph(one)
            for part in self.parts:
                if part.has_share:
                    self.shares[part.rank] = self._make_share(one, part)
            return self._try(other)
        except (_MismatchError, RuntimeError) as error:
            return f"{(str(error) or type(error).__name__).splitlines()[0]}; {_REMEDY}"
        finally:
            self._forget_grads()

    def _make_graph(self, inputs: Tensors) -> BackwardGraph:
        with _same_numbers():
            return BackwardGraph(self.module, inputs, wants_grad=self.wants_grad, parameters=self.parameters)

    def _make_share(self, inputs: Tensors, part: StagePart) -> ShareOfBackward:
        assert self._whole is not None
        for tensor in (*inputs, *self._whole.outputs):
            _require_whole_rows(tensor, part)
        graph = self._make_graph(tuple(map(partial(_cut_rows, part=part), inputs)))
        if [_kind(place) for place in self._whole.places] != [_kind(place) for place in graph.places]:
            raise _MismatchError("its layers save other tensors for a part of a microbatch than for all of it")
        pairs = zip(self._whole.likes, graph.likes, strict=True)
        return ShareOfBackward(graph, cuts=[_find_cut(a, b, part=part) for a, b in pairs], part=part)

    def require_same(self, saved: SavedTensors) -> None:
        """Raise RuntimeError if a forward saved other things than the one that was tried."""
        assert self._whole is not None
        shapes = [(tensor.shape, tensor.dtype) for tensor in saved.tensors]
        wanted = [(tensor.shape, tensor.dtype) for tensor in self._whole.likes]
        if [_kind(place) for place in saved.places] != [_kind(p) for p in self._whole.places] or shapes != wanted:
            first, last = self.module.wiring.layers[0], self.module.wiring.layers[-1]
            raise RuntimeError(
                f"layers {first!r} to {last!r} save other tensors for their backward than when they were tried, so it "
                f"cannot run on another process; {_REMEDY}"
            )

    def _try(self, inputs: Tensors) -> str:
        saved, grads = SavedTensors(self.parameters), self._make_grads()
        with _same_numbers(), torch.enable_grad(), saved.noting():
            leaves = [each.detach().requires_grad_(w) for each, w in zip(inputs, self.wants_grad, strict=True)]
            self.module(*leaves)
        try:
            self.require_same(saved)
        except RuntimeError as error:
            return str(error)
        for share in self.shares.values():
            expected = self._plain(inputs, [_masked(grad, share) for grad in grads])
            if sparse := [k for k, grad in enumerate(expected[len(inputs) :]) if grad is not None and grad.is_sparse]:
                first, last = self.module.wiring.layers[0], self.module.wiring.layers[-1]
                return f"the gradient of weight {sparse[0]} of layers {first!r} to {last!r} is sparse; {_REMEDY}"
            found = self._shared(share, saved.tensors, grads=[share.cut_rows(grad) for grad in grads])
            shown = [None if grad is None else share.cut_rows(grad) for grad in expected[: len(inputs)]]
            for place, (mine, theirs) in enumerate(zip(found, shown + expected[len(inputs) :], strict=True)):
                if not _are_close(mine, theirs):
                    where = f"input {place}" if place < len(inputs) else f"weight {place - len(inputs)}"
                    first, last = self.module.wiring.layers[0], self.module.wiring.layers[-1]
                    return (
                        f"the backward of layers {first!r} to {last!r} does not come to the same on another process: "
                        f"the gradient of {where} differs for samples {share.part.start} to {share.part.end} of a "
                        f"microbatch (layers must treat samples apart, and save all that they need); {_REMEDY}"
                    )
        return ""

    def _make_grads(self) -> list[torch.Tensor]:
        assert self._whole is not None
        noise = torch.Generator().manual_seed(2)
        device = self.parameters[0].device if self.parameters else torch.device("cpu")
        return [torch.randn(like.shape, generator=noise).to(device, like.dtype) for like in self._whole.outputs]

    def _plain(self, inputs: Tensors, grads: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """Of all inputs, then of all parameters, by a backward as anybody would run it."""
        self._forget_grads()
        leaves = [each.detach().requires_grad_(w) for each, w in zip(inputs, self.wants_grad, strict=True)]
        with _same_numbers(), torch.enable_grad():
            outputs = as_tuple(self.module(*leaves))
        pairs = [(each, grad) for each, grad in zip(outputs, grads, strict=True) if each.requires_grad]
        self.store.is_deferring = False
        with self.store.opened():
            torch.autograd.backward([each for each, _ in pairs], [grad for _, grad in pairs])
        return [leaf.grad for leaf in leaves] + [parameter.grad for parameter in self.parameters]

    def _shared(
        self, share: ShareOfBackward, saved: Sequence[torch.Tensor], *, grads: Sequence[torch.Tensor]
    ) -> list[torch.Tensor | None]:
        """The same by the share's graph; notes what its W needs."""
        self._forget_grads()
        found = self.input_grads(share, share.cut(saved), grads=grads)
        share.direct = [k for k, parameter in enumerate(self.parameters) if parameter.grad is not None]
        calls = self.store.take_waiting()
        tensors, pairs = _each_once(calls)
        likes = tuple(torch.empty_like(tensor, device="meta") for tensor in tensors)
        empty = torch.empty(0)
        share.weights = _WeightGradParts(tuple(call._replace(x=empty, grad=empty) for call in calls), pairs, likes)
        for call in calls:
            call()
        return found + [parameter.grad for parameter in self.parameters]

    def input_grads(
        self, share: ShareOfBackward, saved: Sequence[torch.Tensor], *, grads: Sequence[torch.Tensor | None]
    ) -> list[torch.Tensor | None]:
        """I of a share: what its weights want waits in the store."""
        self.store.is_deferring, self.store.is_watching = True, False
        with self.store.opened():
            return share.graph.run(saved, grads)

    def pack(self, share: ShareOfBackward) -> list[torch.Tensor]:
        """What waits in the store, to be sent to where W is; raises RuntimeError if it is not what was tried."""
        tensors, pairs = _each_once(self.store.take_waiting())
        shapes = [(tensor.shape, tensor.dtype) for tensor in tensors]
        if pairs != share.weights.pairs or shapes != [(like.shape, like.dtype) for like in share.weights.likes]:
            first = self.module.wiring.layers[0]
            raise RuntimeError(
                f"I of layers {first!r} ... leaves something else for W than when it was tried; {_REMEDY}"
            )
        return [tensor.contiguous() for tensor in tensors]

    def weight_grads(self, share: ShareOfBackward, tensors: Sequence[torch.Tensor]) -> None:
        """W of a share, of what `pack` gave."""
        for call, (x, grad) in zip(share.weights.calls, share.weights.pairs, strict=True):
            call._replace(x=tensors[x], grad=tensors[grad])()

    def trained_by(self, part: StagePart) -> list[nn.Parameter]:
        """The parameters of whose gradients a part makes some, in an order that all processes share."""
        wanted = {id(self.parameters[k]) for k in self.shares[part.rank].direct} if part.has_share else set()
        if "W" in part.kinds:
            wanted |= {id(p) for share in self.shares.values() for call in share.weights.calls for p in call.trained}
        return [parameter for parameter in self.parameters if id(parameter) in wanted]

    def _forget_grads(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None


class _MismatchError(Exception):
    """A layer whose backward cannot be split, with the reason."""


@contextmanager
def _same_numbers() -> Iterator[None]:
    """Whatever is drawn, it is the same every time."""
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        torch.manual_seed(3)
        yield


def _rows(length: int, *, part: StagePart) -> slice:
    """A share's samples, where all of them have this many rows."""
    return slice(int(part.start * length), int(part.end * length))


def _cut_rows(tensor: torch.Tensor, *, part: StagePart) -> torch.Tensor:
    """A single number belongs to the only share."""
    return tensor[_rows(len(tensor), part=part)] if tensor.dim() else tensor


def _require_whole_rows(tensor: torch.Tensor, part: StagePart) -> None:
    length = tensor.shape[0] if tensor.dim() else 1
    if not all((bound * length).denominator == 1 for bound in (part.start, part.end)):
        raise _MismatchError(
            f"a tensor of shape {tuple(tensor.shape)} between stages cannot be cut at {part.start} and {part.end} of "
            "its samples along dimension 0"
        )


def _kind(place: Any) -> tuple[int, bool]:
    return place.number, place.view is None


def _find_cut(whole: torch.Tensor, mine: torch.Tensor, *, part: StagePart) -> int | None:
    """Along which dimension samples lie; None if there are as many numbers for a part of them."""
    if whole.shape == mine.shape or whole.dim() != mine.dim():
        found: list[int] = [] if whole.shape == mine.shape else [-1]
    else:
        found = [k for k, (a, b) in enumerate(zip(whole.shape, mine.shape, strict=True)) if a != b]
    share: Fraction = part.end - part.start
    if len(found) > 1 or (found and (found[0] < 0 or mine.shape[found[0]] != share * whole.shape[found[0]])):
        raise _MismatchError(
            f"a tensor of shape {tuple(whole.shape)} that its layers save has the shape {tuple(mine.shape)} for "
            f"{share} of the samples, which is not a cut along one dimension"
        )
    return found[0] if found else None


def _masked(grad: torch.Tensor, share: ShareOfBackward) -> torch.Tensor:
    kept = torch.zeros_like(grad)
    share.cut_rows(kept).copy_(share.cut_rows(grad))
    return kept


def _each_once(calls: Sequence[WeightGrad]) -> tuple[list[torch.Tensor], tuple[tuple[int, int], ...]]:
    """The tensors of all calls, those that are the same once; per call which are its own."""
    numbers: dict[Any, int] = {}
    tensors: list[torch.Tensor] = []
    pairs = []
    for call in calls:
        for tensor in (call.x, call.grad):
            key = tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype
            if key not in numbers:
                numbers[key] = len(tensors)
                tensors.append(tensor)
            pairs.append(numbers[key])
    return tensors, tuple(zip(pairs[::2], pairs[1::2], strict=True))


def _are_close(mine: torch.Tensor | None, theirs: torch.Tensor | None) -> bool:
    """To half the digits of the type: sums may run in another order."""
    given = [tensor for tensor in (mine, theirs) if tensor is not None]
    if len(given) < 2:
        return all(not bool(tensor.any()) for tensor in given)
    scale = float(given[1].abs().max()) if given[1].numel() else 0.0
    return torch.allclose(given[0], given[1], rtol=0, atol=torch.finfo(given[1].dtype).eps ** 0.5 * scale)
