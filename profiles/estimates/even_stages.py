"""How long a pipeline takes, at least and about, before anything is cut: which of many questions deserve a search."""

import math
from dataclasses import dataclass

from profiles.model_profile import ModelProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class EvenPipeline:
    """A profile on equal devices, at its first cost."""

    profile: ModelProfile
    devices: int
    """Number of devices in one pipeline."""
    usable_bytes: int
    """Of each device."""
    microbatches: int
    recomputes: bool
    """Whether layers may recompute."""

    @property
    def least_ns(self) -> int:
        """What no plan is below: the work of all microbatches and the optimizer's steps, evenly on all devices."""
        return (self._work_ns + self._steps_ns) // self.devices

    @property
    def _work_ns(self) -> int:
        costs = [layer.costs[0] for layer in self.profile.layers]
        return self.microbatches * sum(cost.forward_ns + cost.fused_backward_ns for cost in costs)

    @property
    def _steps_ns(self) -> int:
        return sum(layer.costs[0].optimizer_ns for layer in self.profile.layers)

    @property
    def may_fit(self) -> bool:
        """Whether the state of all layers, and of the largest one, fits at all."""
        state = [layer.state_bytes for layer in self.profile.layers]
        return sum(state) <= self.devices * self.usable_bytes and max(state) <= self.usable_bytes

    @property
    def estimate_ns(self) -> float:
        """The time of 1F1B in even stages, two a device, of which as many layers recompute as the first device has to.

        Infinite where recomputing all of them does not suffice; a plan may fit all the same.
        """
        layers = self.profile.layers
        sizes = [(each.state_bytes, each.stash_bytes, each.checkpoint_bytes) for each in layers]
        state, kept, left = (sum(each) / self.devices for each in zip(*sizes, strict=True))
        again = sum(layer.costs[0].recompute_ns for layer in layers) * self.microbatches
        held = min(self.devices, self.microbatches)
        free = self.usable_bytes - state - max(layer.workspace_bytes for layer in layers)
        over, saved = held * kept - free, held * (kept - left)
        part = 0.0 if over <= 0 else over / saved if saved else math.inf
        if part > 1 or (part and not self.recomputes):
            return math.inf
        bubble = (self.devices - 1) / (2 * self.microbatches)
        return ((self._work_ns + part * again) * (1 + bubble) + self._steps_ns) / self.devices
