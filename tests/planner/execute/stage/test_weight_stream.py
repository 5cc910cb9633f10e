"""W on a second stream: what waits for what, with streams that only take notes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn

from planner.actions import parse_action
from planner.execute.run.execution import Execution
from planner.execute.run.preparation import prepare
from planner.execute.stage.weight_stream import WeightStream, require_second_stream
from planner.execute.table.layout import make_layout
from planner.execute.training import Training
from planner.plan import Plan, Stage
from tests.planner.execute.orders import make_reference
from tests.planner.execute.split_orders import make_split_plan

CPU = torch.device("cpu")


class Note:
    """A stream."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name, self.notes = name, notes

    def wait_stream(self, other: "Note") -> None:
        self.notes.append(f"{self.name} waits for {other.name}")


class Notes:
    """Stands for `torch.cuda`."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.first = self.now = Note("first", self.notes)

    def Stream(self, device: torch.device) -> Note:
        return Note("second", self.notes)

    def current_stream(self, device: torch.device) -> Note:
        return self.now

    @contextmanager
    def stream(self, stream: Note) -> Iterator[None]:
        self.now = stream
        yield
        self.now = self.first


class Sharing(nn.Module):
    """A weight that a linear layer has, and that is used beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) @ self.inner.weight


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of one."""
    distributed.init_process_group("gloo", f"file://{tmp_path / 'meeting'}", world_size=1, rank=0)
    yield
    distributed.destroy_process_group()


def make_training(make: Any = lambda: nn.Linear(4, 4)) -> Training:
    def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
        noise = torch.Generator().manual_seed(number)
        return torch.randn(4, 4, generator=noise), torch.randn(4, 4, generator=noise)

    return Training(
        layers={"l0": make, "l1": make},
        loss=nn.functional.mse_loss,
        batch=batch,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )


def make_plan(word: str) -> Plan:
    """Two stages on one device."""
    stages = tuple(Stage(layers=(f"l{number}",), replicas=(("d0",),)) for number in range(2))
    actions = tuple(parse_action(cell) for cell in word.split())
    return Plan(problem=make_reference(2), stages=stages, schedule={"d0": actions})


def run(plan: Plan, monkeypatch: pytest.MonkeyPatch, training: Training) -> tuple[list[str], list[torch.Tensor]]:
    """What was noted in an iteration, cells and waits, and the weights after it."""
    streams = Notes()
    keep = lambda tensor, stream: streams.notes.append(f"{stream.name} keeps")  # noqa: E731
    monkeypatch.setattr(torch.Tensor, "record_stream", keep)
    execution = Execution(prepare(plan, training), device=CPU, weight_stream=WeightStream(CPU, streams))
    note = execution.log.note
    monkeypatch.setattr(execution.log, "note", lambda cell: (streams.notes.append(cell), note(cell)))
    execution.step(0)
    return streams.notes, [parameter.detach().clone() for parameter in execution.parameters()]


ORDER = "0F0 1F0 1I0 1W0 0I0 0W0 0F1 1F1 1B1 0I1 0W1"


@pytest.mark.usefixtures("alone")
def test_w_waits_for_what_is_before_it_and_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    """Tests that W begins behind the first stream, keeps what it reads, and ends before a B, a reduction, the step."""
    notes, weights = run(make_plan(ORDER), monkeypatch, make_training())
    text = " ".join(note.replace(" ", "_") for note in notes)
    began = "second_waits_for_first second_keeps second_keeps"
    assert f"1W0 {began} 0I0 0W0 {began} 0F1" in text
    assert "1B1 first_waits_for_second" in text
    assert "0REDUCE_GRAD first_waits_for_second" in text
    assert text.index("first_waits_for_second", text.index("0REDUCE_GRAD")) < text.index("the_reduction_of")
    plain = Execution(prepare(make_plan(ORDER), make_training()), device=CPU)
    plain.step(0)
    assert all(torch.equal(a, b) for a, b in zip(weights, plain.parameters(), strict=True))


@pytest.mark.usefixtures("alone")
def test_a_weight_that_i_adds_to_as_well_is_named(monkeypatch: pytest.MonkeyPatch):
    """Tests that a weight whose gradient both streams would add to ends the run in its first I."""
    with pytest.raises(RuntimeError, match=r"l1\.inner shares a weight.*run without --weight-stream"):
        run(make_plan(ORDER), monkeypatch, make_training(Sharing))


def test_where_there_is_no_second_stream_it_is_refused():
    """Tests that hosts and split placement are refused with what to do."""
    layout, cuda = make_layout(make_plan(ORDER)), torch.device("cuda")
    require_second_stream(cuda, layout=layout)
    with pytest.raises(ValueError, match="needs CUDA, but this process runs on cpu"):
        require_second_stream(CPU, layout=layout)
    split = make_layout(make_split_plan("0;;1 1", num_microbatches=1))
    with pytest.raises(ValueError, match="split_placement = false"):
        require_second_stream(cuda, layout=split)
