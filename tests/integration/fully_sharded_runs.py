"""One rank of whole runs whose stages are fully sharded; started by `test_execute_fully_sharded.py`, not imported.

Every scenario is run by both ranks one after the other; what each says is written down as JSON. Plans: `f` is fully
sharded, `s` the same plan with the optimizer's state sharded alone, `c` without; `w` is fully sharded, I and W apart;
`p` is fully sharded by the plan itself.
"""

import gc
import json
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import execute_models as models
import torch
from execute_run_worker import COUNT, CPU, Root, Scaled, adam, changed, dropping, poisoned, state_bytes
from torch import distributed, nn

from planner.document import parse_plan, plan_sha256
from planner.errors import ExecutionError
from planner.execute.model.weight_files import WeightFiles
from planner.execute.record.recipe import CopiesOrder
from planner.execute.run.execution import Execution
from planner.execute.run.preparation import prepare
from planner.execute.state.checkpoint import load_checkpoint, save_checkpoint
from planner.execute.state.live_copies import keep_copy, restore_copies
from planner.execute.state.state_dict import load_weights, save_weights
from planner.execute.training import Training


def start(folder: Path, training: Training, name: str) -> Execution:
    plan = parse_plan((folder / f"{'s' if name == 'f' else name}.json").read_text())
    return Execution(prepare(plan, training, fully_shard=name in "fw"), device=CPU, check_every=1)


def whole_weights(execution: Execution) -> list[torch.Tensor]:
    """A collective call of the replicas."""
    parts = [(execution.model.parts.of(parameter), parameter.detach()) for parameter in execution.parameters()]
    return [parameter.clone() if part is None else part.gather(parameter) for part, parameter in parts]


def are_close(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(float((x - y).abs().max()) < 1e-12 for x, y in zip(a, b, strict=True))


def are_equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(map(torch.equal, a, b))


def alike(folder: Path) -> Any:
    """Against replicas that hold all: dropout and a schedule, two optimizers, single numbers; evaluation as well."""

    def halves(parameters: list[Any]) -> tuple[torch.optim.Optimizer, ...]:
        return adam(parameters[:1]), torch.optim.RMSprop(parameters[1:], momentum=0.5)

    trainings = {
        "AdamW": dropping(),
        "several": changed(models.vectors("ww", num_microbatches=COUNT), optimizer=halves),
        "scalar": models.every_layer("ww", Scaled, num_microbatches=COUNT),
    }
    found = {}
    for name, training in trainings.items():
        whole, fully = start(folder, training, "c"), start(folder, training, "f")
        for number in range(3):
            for execution in (whole, fully):
                execution.step(number)
        losses = [torch.tensor(execution.evaluate(5)) for execution in (whole, fully)]
        found[name] = {
            "alike": are_close(whole_weights(whole), whole_weights(fully)) and are_close(losses[:1], losses[1:]),
            "bytes": [state_bytes(whole), state_bytes(fully)],
        }
    return found


def planned(folder: Path) -> Any:
    """After an evaluation, which no backward follows, all weights are in parts."""
    whole, fully = start(folder, dropping(), "c"), start(folder, dropping(), "p")
    losses = [torch.tensor(execution.evaluate(5)) for execution in (whole, fully)]
    parameters = [each for stage in fully.stages for each in stage.module.parameters()]
    return are_close(losses[:1], losses[1:]) and all(hasattr(each, "device_mesh") for each in parameters)


class Large(nn.Module):
    """A weight that is larger than all else."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(500, models.WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.rows((x[:, 0] > 0).long())


LARGE = 500 * models.WIDTH * 8
"""Bytes of its weight."""


def held(folder: Path) -> Any:
    """Weights, gradients or buffers of messages that are as large as a whole weight, after each action, at most."""
    found = {}
    for name in ("s", "f", "w"):
        execution = start(folder, models.every_layer("ww", Large, num_microbatches=COUNT), name)
        seen = []
        end = execution.log.end

        def looking(begun: Any, end: Any = end, seen: list[int] = seen, *, is_fully: bool = name in "fw") -> Any:
            ended = end(begun)
            until = time.monotonic() + (5 if is_fully else 0)
            while num_large() and time.monotonic() < until:  # gloo's thread may still hold what was sent
                time.sleep(0.001)
            seen.append(num_large())
            return ended

        with mock.patch.object(execution.log, "end", looking):
            for number in range(2):
                execution.step(number)
        own = sum(parameter.numel() * parameter.element_size() for parameter in execution.parameters())
        found[name] = {"large": max(seen), "looked": len(seen), "bytes": own}
        del execution, end, looking
        gc.collect()
    return found


def num_large() -> int:
    """Blocks of memory, of tensors that Python knows and of their gradients."""
    known = [each for each in gc.get_objects() if type(each) in (torch.Tensor, nn.Parameter) and not each.is_meta]
    grads = [each.grad for each in known if each.is_leaf and each.grad is not None]
    storages = [each.untyped_storage() for each in (*known, *grads)]
    return len({each.data_ptr() for each in storages if each.nbytes() >= LARGE})


def resumes(folder: Path) -> Any:
    """Four iterations in one go; two, a checkpoint or a copy in memory, and two more under each plan."""
    whole, first = start(folder, dropping(), "f"), start(folder, dropping(), "f")
    expected = [whole.step(number).losses for number in range(4)]
    for number in range(2):
        first.step(number)
    save_checkpoint(first, folder / "kept", iteration=2)
    copies = folder / f"copies{first.rank}"
    keep_copy(first, copies, iteration=2)
    save_weights(first, folder / "weights")
    found = {}
    for name in ("f", "copies", "s", "c"):
        resumed = start(folder, dropping(), "f" if name == "copies" else name)
        if name == "copies":
            order = CopiesOrder(plan_sha256=plan_sha256(first.plan), lost=("d1",))
            assert restore_copies(resumed, copies, order=order, since=0) == 2
        else:
            assert load_checkpoint(resumed, folder / "kept") == 2
        losses = [resumed.step(number).losses for number in (2, 3)]
        own = whole_weights(resumed)
        found[name] = {
            "to the bit": losses == expected[2:] and are_equal(own, whole_weights(whole)),
            "close": are_close(own, whole_weights(whole)),
        }
    with WeightFiles(folder / "weights") as files:
        named = [(f"l{n}.{part}.weight", part) for n in range(2) for part in ("inner", "outer")]
        read = [files.read([key], shape=(12, 6) if part == "inner" else (6, 12), layer="") for key, part in named]
    loaded = start(folder, dropping(), "f")
    load_weights(loaded, folder / "weights")
    kept = [each for each in whole_weights(first) if each.dim() == 2]
    return found | {"file": are_equal(read, kept), "loaded": are_equal(whole_weights(loaded), whole_weights(first))}


class Shown(nn.Module):
    """Its state dictionary has two matrices for the one that it computes with."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Linear(models.WIDTH, 2 * models.WIDTH, bias=False)
        self.register_state_dict_post_hook(self.show)
        self.register_load_state_dict_pre_hook(self.put_together)

    @staticmethod
    def show(_: nn.Module, state: dict[str, Any], prefix: str, *__: Any) -> None:
        halves = state.pop(f"{prefix}both.weight").chunk(2)
        state |= {f"{prefix}{name}.weight": half.clone() for name, half in zip("ab", halves, strict=True)}

    @staticmethod
    def put_together(_: nn.Module, state: dict[str, Any], prefix: str, *__: Any) -> None:
        state[f"{prefix}both.weight"] = torch.cat([state.pop(f"{prefix}{name}.weight") for name in "ab"])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = self.both(x).chunk(2, -1)
        return x + left.tanh() * right


def shown(folder: Path) -> Any:
    """Weights under the names that hooks give them, from and to plans of each kind, and checkpoints."""
    training = models.every_layer("ww", Shown, num_microbatches=COUNT)
    first = start(folder, training, "f")
    first.step(0)
    save_weights(first, folder / "shown")
    save_checkpoint(first, folder / "shown kept", iteration=1)
    found: dict[str, Any] = {"names": sorted(WeightFiles(folder / "shown").files)}
    for name in "fwsc":
        loaded, resumed = start(folder, training, name), start(folder, training, name)
        load_weights(loaded, folder / "shown")
        load_checkpoint(resumed, folder / "shown kept")
        found[name] = [are_equal(whole_weights(each), whole_weights(first)) for each in (loaded, resumed)]
    return found


class Counting(models.Block):
    """Keeps a number that is no tensor."""

    def get_extra_state(self) -> int:
        return 1

    def set_extra_state(self, state: int) -> None:
        assert state == 1


def no_checkpoint(folder: Path) -> Any:
    execution = start(folder, models.every_layer("ww", Counting, num_microbatches=COUNT), "c")
    try:
        save_checkpoint(execution, folder / "no checkpoint", iteration=0)
    except ValueError as error:
        return str(error)
    return ""


def nan_stops(folder: Path) -> Any:
    execution = start(folder, poisoned(at=1, microbatch=2), "f")
    execution.step(0)
    return execution.step(1)


def nan_in_gradient_stops(folder: Path) -> Any:
    """Only the last number's gradient is not finite, and only the last replica has it."""
    training = models.vectors("ww", num_microbatches=COUNT)
    layers = dict(training.layers) | {"l1": lambda: Root(num_roots=1).double()}
    return start(folder, changed(training, layers=layers), "f").step(0)


class Ranked(models.Block):
    """A buffer that depends on where a replica is."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not x.is_meta:
            self.average.fill_(distributed.get_rank())
        return super().forward(x)


def drifting_stops(folder: Path) -> Any:
    """It is found where it has come apart."""
    return start(folder, models.every_layer("ww", Ranked, num_microbatches=COUNT), "f").step(0)


class Unlike(models.Block):
    """A weight that the second replica alone has a use for."""

    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.Parameter(torch.ones(models.WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        return y if x.is_meta or distributed.get_rank() == 0 else y * self.extra


def unlike_replicas(folder: Path) -> Any:
    """Nobody waits for a gradient that one of them has not."""
    found = {}
    for name in ("s", "f", "w"):
        execution = start(folder, models.every_layer("ww", Unlike, num_microbatches=COUNT), name)
        for number in range(2):
            execution.step(number)
        found[name] = whole_weights(execution)
    return are_close(found["s"], found["f"]) and are_close(found["s"], found["w"])


SCENARIOS = [
    alike,
    planned,
    held,
    unlike_replicas,
    resumes,
    shown,
    no_checkpoint,
    nan_stops,
    nan_in_gradient_stops,
    drifting_stops,
]


def main(folder: Path, rank: int, world_size: int) -> None:
    torch.set_num_threads(1)
    meeting = f"file://{folder / 'meeting'}"
    distributed.init_process_group("gloo", meeting, timedelta(seconds=60), world_size=world_size, rank=rank)
    answers: dict[str, Any] = {}
    for scenario in SCENARIOS:
        try:
            answers[scenario.__name__] = scenario(folder)
        except ExecutionError as error:
            answers[scenario.__name__] = str(error)
    (folder / f"rank{rank}.json").write_text(json.dumps(answers))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
