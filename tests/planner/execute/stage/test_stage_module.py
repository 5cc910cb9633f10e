"""Which microbatches a stage recomputes."""

import queue

import pytest
import torch

from planner.errors import ExecutionError
from planner.execute.model.layer_run import Moment, is_memory
from planner.execute.stage.stage_module import MemoryTrial, StageModule
from planner.execute.table.wiring import BATCH, StageWiring

CALLS: "queue.SimpleQueue[int]" = queue.SimpleQueue()


TRIAL = MemoryTrial(is_memory, "each replica sees others; plan without replicas (pipeplan plan --max-replicas 1)")


class Counted(torch.nn.Linear):
    """Notes its forwards where nobody looks, since what it has and reaches is put back after a recomputation."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        CALLS.put(len(x))
        return super().forward(x)


class Remembering(torch.nn.Linear):
    """Keeps its last result, which the next one is made of or not."""

    def __init__(self, *sizes: int, is_used: bool, is_random: bool = False) -> None:
        super().__init__(*sizes)
        self.last, self.is_used, self.is_random = torch.zeros(1), is_used, is_random

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x) + self.last.mean() * self.is_used
        y = torch.nn.functional.dropout(y) if self.is_random else y
        self.last = y.detach()
        return y


WIRING = StageWiring(layers=("l",), takes={"l": (BATCH,)}, arrives=(BATCH,), leaves=("l",))


def test_kept_microbatches_are_run_once():
    """Tests that the backward of a microbatch runs the layer again, unless it is one that keeps everything."""
    layer = Counted(2, 2)
    stage = StageModule(WIRING, {"l": layer}, counts={BATCH: 1}, recompute=["l"], kept=[1])
    counts, gradients = [], []
    for microbatch in range(3):
        stage.microbatch, before = microbatch, CALLS.qsize()
        stage(torch.ones(1, 2)).sum().backward()
        counts.append(CALLS.qsize() - before)
        gradients.append(layer.weight.grad.clone())
        layer.weight.grad = None
    assert counts == [2, 1, 2]
    assert all(torch.equal(each, gradients[0]) for each in gradients)


@pytest.mark.parametrize("recompute", [[], ["l"]])
def test_replicas_that_remember_are_refused(recompute: list[str]):
    """Tests that a layer whose results depend on microbatches before is named where other replicas see others, that one
    which only keeps something is not, and that both are afterwards what one run makes of them.
    """
    moment = Moment(0, 0, 0)
    for is_random in (False, True):
        layer = Remembering(2, 2, is_used=False, is_random=is_random)
        stage = StageModule(WIRING, {"l": layer}, counts={BATCH: 1}, recompute=recompute)
        stage.trial, stage.moment = TRIAL, moment
        given = stage(torch.ones(1, 2))
        assert torch.equal(layer.last, given)
        assert stage.trial is None
    stage = StageModule(WIRING, {"l": Remembering(2, 2, is_used=True)}, counts={BATCH: 1}, recompute=recompute)
    stage(torch.ones(1, 2)).sum().backward()
    stage.trial = TRIAL
    with torch.no_grad():
        stage(torch.ones(1, 2))
    with pytest.raises(ExecutionError, match=r"layer 'l' gives .* attribute 'last' keeps, .* \(pipeplan plan --max"):
        stage(torch.ones(1, 2))
