"""Which microbatches a stage recomputes."""

import torch

from planner.execute.stage.stage_module import StageModule
from planner.execute.table.wiring import BATCH, StageWiring


class Counted(torch.nn.Linear):
    """Notes its forwards: in a list, since a number is put back after a recomputation."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.calls = list[int]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.append(len(x))
        return super().forward(x)


def test_kept_microbatches_are_run_once():
    """Tests that the backward of a microbatch runs the layer again, unless it is one that keeps everything."""
    layer = Counted(2, 2)
    wiring = StageWiring(layers=("l",), takes={"l": (BATCH,)}, arrives=(BATCH,), leaves=("l",))
    stage = StageModule(wiring, {"l": layer}, counts={BATCH: 1}, recompute=["l"], kept=[1])
    counts, gradients = [], []
    for microbatch in range(3):
        stage.microbatch, before = microbatch, len(layer.calls)
        stage(torch.ones(1, 2)).sum().backward()
        counts.append(len(layer.calls) - before)
        gradients.append(layer.weight.grad.clone())
        layer.weight.grad = None
    assert counts == [2, 1, 2]
    assert all(torch.equal(each, gradients[0]) for each in gradients)
