"""One layer on one microbatch: its random numbers, its statistics, and the same once more when it is recomputed."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn

from planner.execute.model.batch_norms import Exchange, Memory, ReplicaBatchNorms
from planner.execute.model.deferred import WeightGradStore


class Moment(NamedTuple):
    """What random numbers depend on, beside the layer: neither plan nor rank."""

    seed: int
    iteration: int
    microbatch: int
    replica: tuple[int, int] = (0, 1)
    """Which of how many has these samples."""

    def number(self, layer: str) -> int:
        """A 63-bit seed from the run's seed, iteration, microbatch, replica and layer."""
        text = f"{self.seed} {self.iteration} {self.microbatch} {self.replica} {layer}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


def seed_generators(number: int, device: torch.device) -> None:
    """The generators that a layer on this device may draw from."""
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        torch.cuda.manual_seed(number)


class LayerRun:
    """Called once for the forward and, where the layer is recomputed, once more in its backward.

    A recomputation sees the buffers as they were, and what it does to them is forgotten; replicas are not asked again.
    """

    def __init__(
        self,
        layer: nn.Module,
        *,
        changing: "ChangingBuffers",
        exchange: Exchange | None,
        store: WeightGradStore | None,
        seed: Callable[[], None] | None,
    ) -> None:
        """`seed`: gives the generators their numbers of before, for the recomputation; None: they have them."""
        self.layer, self.changing, self.exchange, self.store, self.seed = layer, changing, exchange, store, seed
        self.memory = Memory()
        self.before: Mapping[str, torch.Tensor] = {}
        self.is_first = True

    def __call__(self, *arguments: torch.Tensor) -> Any:
        """Run the layer with the random numbers of its moment."""
        with ExitStack() as stack:
            if self.exchange is not None:
                self.memory.position = None if self.is_first else 0
                stack.enter_context(ReplicaBatchNorms(self.exchange, self.memory))
            if not self.is_first:
                stack.enter_context(_with_buffers(self.layer, self.before))
                if self.store is not None:
                    stack.enter_context(self.store.closed())
                if self.seed is not None:
                    self.seed()
                return self.layer(*arguments)
            self.is_first = False
            self.before = self.changing.copies(self.layer)
            result = self.layer(*arguments)
            self.before = self.changing.learn(self.layer, self.before)
            return result


class ChangingBuffers:
    """Which buffers a layer changes as it runs: found out in its first run, copied before each of the others."""

    def __init__(self) -> None:
        self.names: frozenset[str] | None = None

    def copies(self, layer: nn.Module) -> dict[str, torch.Tensor]:
        """Of those that may change now."""
        if self.names is not None and not self.names:
            return {}
        return {
            name: buffer.clone() for name, buffer in layer.named_buffers() if self.names is None or name in self.names
        }

    def learn(self, layer: nn.Module, before: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Compare with what was there before the first run; a buffer that changed once may do so again.

        Gives those that changed, as they were.
        """
        if self.names is None:
            now = dict(layer.named_buffers())
            self.names = frozenset(
                name for name, old in before.items() if name not in now or not torch.equal(old, now[name])
            )
        return {name: old for name, old in before.items() if name in self.names}


@contextmanager
def _with_buffers(layer: nn.Module, values: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Copies in the place of a layer's buffers, which come back as they are now."""
    kept = []
    for name, value in values.items():
        path, _, attribute = name.rpartition(".")
        owner = layer.get_submodule(path)
        kept.append((owner, attribute, owner._buffers[attribute]))
        owner._buffers[attribute] = value.clone()
    try:
        yield
    finally:
        for owner, attribute, buffer in kept:
            owner._buffers[attribute] = buffer
