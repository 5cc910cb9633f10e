"""A layer that is timed alone as the executor runs it: weight gradients wait, and forwards run again."""

from typing import Any

import torch
from torch import nn

from planner.execute.model.deferred import WeightGradStore, defer_weight_grads
from planner.execute.model.layer_run import LayerRun, other_samples, seed_generators
from planner.execute.model.layer_state import ChangingBuffers, is_memory
from planner.execute.model.recomputed_forward import run_recomputed


class LayerAlone(WeightGradStore):
    """What the layer puts off, and its forward that saves nothing."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._module, self._changing = module, ChangingBuffers()

    def recompute(self, *inputs: torch.Tensor) -> Any:
        """The layer's outputs, which their backward computes again."""
        return run_recomputed(
            LayerRun(self._module, changing=self._changing, exchange=None, store=self, seed=None), *inputs
        )

    def find_memory(self, *inputs: torch.Tensor) -> str:
        """What the layer keeps of a microbatch, and gives something else for after it; empty: nothing was seen."""

        def seed() -> None:
            seed_generators(0, inputs[0].device)

        run = LayerRun(self._module, changing=ChangingBuffers(), exchange=None, store=self, seed=seed)
        with torch.no_grad():
            seed()
            run(*other_samples(inputs))
        return run.find_memory(*inputs, is_asked=is_memory)[0]


def make_deferring(module: nn.Module) -> LayerAlone:
    """A store of its own for a module whose layers use it from now on."""
    store = LayerAlone(module)
    defer_weight_grads(module, store)
    return store
