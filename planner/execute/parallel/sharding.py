"""Optimizer state that is sharded over the replicas of a stage (ZeRO-1).

Every parameter is cut, as one row of numbers, into as many pieces as the stage has replicas. Gradients are added up
piece by piece on the replica that has it, that replica's optimizer knows nothing but its pieces, and the new values go
to all replicas. Gloo's own reduce-scatter is an all-reduce whose result is thrown away but for a part; an all-to-all
whose parts are added up here sends half as much, in the order of the replicas, and is the same on every backend. Every
message ends with a flag per stretch: whether the sender used the parameter.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import distributed, nn

from planner.execute.parallel.group_parts import GroupPart
from planner.execute.parallel.reduction import BUCKET_BYTES, StageReduction, gradient_of
from planner.execute.torch_versions.collectives import all_gather_single

_IN_FLIGHT = 2
"""Messages of a reduction under way at once: one is added up while the next one travels."""


class ShardPiece:
    """The part of a parameter that is stepped here."""

    def __init__(self, whole: nn.Parameter, *, replica: int, num_replicas: int) -> None:
        self.whole, self.size = whole, -(-whole.numel() // num_replicas)
        """Elements of a piece; the last ones may be shorter, or empty."""
        self.start, self.stop = self._range(replica)
        self.parameter = nn.Parameter(self.cut(whole.detach()), whole.requires_grad)
        """It lies where the parameter does, and has as many dimensions, of which all but the first have one element."""

    def _range(self, replica: int) -> tuple[int, int]:
        count = self.whole.numel()
        return min(replica * self.size, count), min((replica + 1) * self.size, count)

    def cut(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same part of a tensor of the parameter's shape."""
        return tensor.reshape(-1)[self.start : self.stop].view(-1, *[1] * (self.whole.dim() - 1))

    def part(self, tensor: torch.Tensor, *, replica: int, start: int, stop: int) -> torch.Tensor:
        """Elements `start` to `stop` of the piece of any replica, of a tensor of the parameter's shape."""
        first, last = self._range(replica)
        return tensor.reshape(-1)[min(first + start, last) : min(first + stop, last)]


def is_cut(parameter: nn.Parameter) -> bool:
    """Whether its state is sharded: a single number is not."""
    return parameter.requires_grad and not is_single(parameter)


def is_single(parameter: nn.Parameter) -> bool:
    """Whether there is nothing to divide."""
    return parameter.numel() <= 1


class _Stretch(NamedTuple):
    """A part of a piece that fits into a message, alike on every replica."""

    piece: ShardPiece
    start: int
    stop: int


class ShardedReduction(StageReduction):
    """The gradients of a stage whose replicas shard the optimizer's state: a reduce-scatter, and afterwards an
    all-gather of the parameters.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        *,
        group: Any,
        parts: Sequence[GroupPart] = (),
        tied: Sequence[nn.Parameter] = (),
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        """`tied`: those whose gradients other stages want as well: they are added up whole on every replica, and their
        state is sharded nevertheless.
        """
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        separate = {id(parameter) for parameter in tied}
        kept = [each for each in trained if id(each) in separate or not is_cut(each)]
        super().__init__(kept, group=group, parts=parts, bucket_bytes=bucket_bytes)
        self.replica, self.num_replicas = distributed.get_rank(group), distributed.get_world_size(group)
        self.pieces = {
            id(each): ShardPiece(each, replica=self.replica, num_replicas=self.num_replicas)
            for each in trained
            if is_cut(each)
        }
        """By the parameter's identity."""
        self._scattered = [piece for key, piece in self.pieces.items() if key not in separate]
        self._untouched = set[int]()
        """By identity the parameters that no replica was seen to use."""
        self._messages: Iterator[list[_Stretch]] = iter(())
        self._travelling: deque[tuple[list[_Stretch], torch.Tensor, Any]] = deque()

    @torch.no_grad()
    def start(self) -> None:
        """As many messages as one bucket has room for; `finish` sends the others, so that no more is held twice."""
        super().start()
        if not self.is_due:
            return
        self._untouched = {id(piece.whole) for piece in self._scattered if piece.whole.grad is None}
        for piece in self._scattered:
            piece.whole.grad = gradient_of(piece.whole).to_dense().contiguous()
        self._messages = self._stretches(self._scattered, lambda each: each.grad_dtype or each.dtype)
        for _ in range(_IN_FLIGHT):
            self._send_next()

    @torch.no_grad()
    def finish(self, divisor: float) -> None:
        """Also the gradients of the pieces here are divided; what is left of the others' means nothing."""
        while self._travelling:
            self._take_next()
            self._send_next()
        super().finish(divisor)
        for piece in self._scattered:
            if id(piece.whole) in self._untouched:
                piece.whole.grad = None
            elif divisor != 1:
                piece.cut(gradient_of(piece.whole)).div_(divisor)

    def finish_buckets(self) -> None:
        """From here on a piece has the gradient, and the parameter has none."""
        for piece in self.pieces.values():
            piece.parameter.grad = None if piece.whole.grad is None else piece.cut(piece.whole.grad)
            piece.whole.grad = None

    @torch.no_grad()
    def share(self) -> None:
        """The new values of all pieces."""
        for stretches in self._stretches(self.pieces.values(), lambda each: each.dtype):
            kind = stretches[0].piece.whole
            mine = torch.zeros(_length(stretches), dtype=kind.dtype, device=kind.device)
            for at, stretch in _placed(stretches):
                values = stretch.piece.parameter.detach().reshape(-1)[stretch.start : stretch.stop]
                mine[at : at + values.numel()] = values
            every = mine.new_empty(self.num_replicas * mine.numel())
            all_gather_single(every, mine, group=self.group)
            for replica, row in enumerate(every.view(self.num_replicas, -1)):
                for at, (piece, start, stop) in _placed(stretches):
                    place = piece.part(piece.whole.detach(), replica=replica, start=start, stop=stop)
                    place.copy_(row[at : at + place.numel()])

    def _send_next(self) -> None:
        """Every replica is sent its part; what comes has a row per replica."""
        stretches = next(self._messages, None)
        if stretches is None:
            return
        like, length = gradient_of(stretches[0].piece.whole), _length(stretches)
        sent = like.new_zeros((self.num_replicas, length + len(stretches)))
        flags = sent[:, length:].fill_(1)
        if untouched := [number for number, each in enumerate(stretches) if id(each.piece.whole) in self._untouched]:
            flags[:, untouched] = 0
        for replica, row in enumerate(sent):
            for at, (piece, start, stop) in _placed(stretches):
                part = piece.part(gradient_of(piece.whole), replica=replica, start=start, stop=stop)
                row[at : at + part.numel()] = part
        received = torch.empty_like(sent)
        work = distributed.all_to_all_single(received, sent, group=self.group, async_op=True)
        self._travelling.append((stretches, received, work))

    def _take_next(self) -> None:
        """What came is added up, in the order of the replicas, into the gradients of the pieces here."""
        stretches, received, work = self._travelling.popleft()
        work.wait()
        total = received[0]
        for row in received[1:]:
            total += row
        for at, (piece, start, stop) in _placed(stretches):
            place = piece.part(gradient_of(piece.whole), replica=self.replica, start=start, stop=stop)
            place.copy_(total[at : at + place.numel()])
        if not self._untouched.isdisjoint(id(each.piece.whole) for each in stretches):
            counts = total[_length(stretches) :].tolist()
            self._untouched -= {id(each.piece.whole) for each, count in zip(stretches, counts, strict=True) if count}

    def _stretches(
        self, pieces: Iterable[ShardPiece], kind_of: Callable[[nn.Parameter], torch.dtype]
    ) -> Iterator[list[_Stretch]]:
        """Messages of numbers of one type; what is sent and what comes, of all in flight, is a bucket at most."""
        kinds: dict[torch.dtype, list[ShardPiece]] = {}
        for piece in pieces:
            kinds.setdefault(kind_of(piece.whole), []).append(piece)
        for kind, alike in kinds.items():
            most = max(1, self.bucket_bytes // (2 * _IN_FLIGHT * self.num_replicas * kind.itemsize))
            found, room = list[_Stretch](), most
            for piece in alike:
                start = 0
                while start < piece.size:
                    stop = min(piece.size, start + room)
                    found.append(_Stretch(piece, start, stop))
                    start, room = stop, room - (stop - start)
                    if not room:
                        yield found
                        found, room = [], most
            if found:
                yield found


def _length(stretches: Sequence[_Stretch]) -> int:
    return sum(stretch.stop - stretch.start for stretch in stretches)


def _placed(stretches: Sequence[_Stretch]) -> Iterator[tuple[int, _Stretch]]:
    """Each with its place in the message."""
    at = 0
    for stretch in stretches:
        yield at, stretch
        at += stretch.stop - stretch.start
