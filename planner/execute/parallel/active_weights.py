"""Stages whose weights are gathered for runs of actions, and given back after (a plan's `max_active_stages`).

What is gathered or given back before which action is the plan's (`planner.layout.gathers`): the UNSHARD and RESHARD
of torch's own pipelines stand in the same places. Gradients stay whole until the stage's last W or B.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch.distributed import fsdp

from planner.actions import ACTION_TEXT, Action
from planner.execute.torch_versions.sharded_gradients import reduce_now
from planner.layout.gathers import weight_changes


class ActiveLayers:
    """The layers of one stage whose weights are in parts."""

    def __init__(self, layers: Mapping[str, fsdp.FSDPModule]) -> None:
        """`layers`: by name, in one order on all replicas."""
        self.layers = layers
        self._handles: list[Any] = []

    def hold(self, *, is_held: bool) -> None:
        """Whether weights stay after a forward or a backward, and gradients whole, until they are asked for."""
        for layer in self.layers.values():
            layer.set_reshard_after_forward(not is_held)
            layer.set_reshard_after_backward(not is_held)
            layer.set_requires_gradient_sync(not is_held)

    def gather(self) -> None:
        """Ask for all weights; a collective call of the replicas that does not wait."""
        self._handles = [layer.unshard(async_op=True) for layer in self.layers.values()]

    def wait(self) -> None:
        """Until they are there."""
        for handle in self._handles:
            handle.wait()
        self._handles.clear()

    def free(self) -> None:
        """Give back the weights of other replicas."""
        self.wait()
        for layer in self.layers.values():
            layer.reshard()

    def reduce(self) -> None:
        """Add up the gradients over the replicas; a collective call. Each keeps those of its own parts."""
        for layer in self.layers.values():
            layer.set_requires_gradient_sync(True)
            reduce_now(layer)
            layer.set_requires_gradient_sync(False)


class ActiveStages:
    """The stages of one process, as it goes through its actions."""

    def __init__(self, stages: Mapping[int, ActiveLayers], *, order: Sequence[Action], most: int) -> None:
        """`order`: all actions of the process; `most`: stages that are active at a time."""
        self.stages = stages
        self._changes = {each.position: each for each in weight_changes([a.stage for a in order], most=most)}
        self._position, self._active = 0, set[int]()

    @contextmanager
    def iteration(self) -> Iterator[None]:
        """Around the actions of an iteration: stages hold their weights, and free what is gathered at the end."""
        for layers in self.stages.values():
            layers.hold(is_held=True)
        self._position = 0
        try:
            yield
        finally:
            for number in sorted(self._active):
                self.stages[number].free()
            self._active.clear()
            for layers in self.stages.values():
                layers.hold(is_held=False)

    def take(self, cell: str) -> None:
        """To be called with what the process does next: actions, messages and reductions.

        After the reduction that follows a stage's last action its weights may go, not before.
        """
        if not cell or cell.endswith("REDUCE_GRAD"):
            return
        self._change()
        action = ACTION_TEXT.fullmatch(cell)
        if action is not None:
            number = int(action[1])
            if number in self.stages:
                self.stages[number].wait()
            self._position += 1

    def _change(self) -> None:
        change = self._changes.get(self._position)
        for number in () if change is None else change.freed:
            if number in self._active:
                self.stages[number].free()
                self._active.remove(number)
        for number in () if change is None else change.gathered:
            if number in self.stages and number not in self._active:
                self.stages[number].gather()
                self._active.add(number)
