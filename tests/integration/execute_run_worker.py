"""One rank of whole runs, sound and otherwise; started by `test_execute_silent.py`, not imported.

Every scenario is run by all ranks one after the other; what each says is written down as JSON.
"""

import copy
import json
import math
import sys
import traceback
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import execute_models as models
import torch
from torch import distributed, nn
from torch.distributed.checkpoint.state_dict_saver import save
from torch.nn.parallel import DistributedDataParallel

from planner.document import parse_plan
from planner.errors import ExecutionError
from planner.execute.model.listed_microbatches import list_microbatches
from planner.execute.model.user_code import OwnCodeError
from planner.execute.run.execution import Execution
from planner.execute.run.preparation import prepare
from planner.execute.state.checkpoint import find_newest, load_checkpoint, write_numbered
from planner.execute.training import Training

CPU = torch.device("cpu")
COUNT = 3
"""Microbatches."""


def changed(training: Training, **more: Any) -> Training:
    return Training(**(vars(training) | more))


def start(folder: Path, training: Training, name: str = "a", **more: Any) -> Execution:
    plan = parse_plan((folder / f"{name}.json").read_text())
    return Execution(prepare(plan, training), device=CPU, **more)


def weights(execution: Execution) -> list[list[float]]:
    return [parameter.detach().flatten().tolist() for parameter in execution.parameters()]


def other_batches(folder: Path, *, rank: int) -> Any:
    """Rank 1 shuffles its data in another way."""
    training = models.vectors("ww", num_microbatches=COUNT)
    return start(folder, changed(training, batch=lambda number: training.batch(number + 7 * rank))).step(0)


def other_targets(folder: Path, *, rank: int) -> Any:
    """From the second iteration on, rank 1 has other targets; they are compared in each."""
    training = models.vectors("ww", num_microbatches=COUNT)

    def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, target = training.batch(number)
        return inputs, target + rank * number

    execution = start(folder, changed(training, batch=batch), check_every=1)
    execution.step(0)
    return execution.step(1)


class Poisoned(models.Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x[:, :1] == POISON, math.nan, super().forward(x))


POISON = 12345.0


def poisoned(*, at: int, microbatch: int, **more: Any) -> Training:
    """In iteration `at` a sample of a microbatch makes the first layer give nan."""
    training = models.vectors("ww", num_microbatches=COUNT)

    def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, target = training.batch(number)
        if number == at:
            inputs[microbatch * models.SAMPLES, 0] = POISON
        return inputs, target

    layers = dict(training.layers) | {"l0": lambda: Poisoned().double()}
    return changed(training, layers=layers, batch=batch, **more)


def nan_stops(folder: Path, *, rank: int) -> Any:
    execution = start(folder, poisoned(at=1, microbatch=2))
    execution.step(0)
    return execution.step(1)


def nan_is_skipped(folder: Path, *, rank: int) -> Any:
    execution = start(folder, poisoned(at=1, microbatch=2, on_nonfinite="skip"))
    execution.step(0)
    before = weights(execution)
    left_out = execution.step(1)
    assert weights(execution) == before
    after = execution.step(2)
    return {"updated": [left_out.is_updated, after.is_updated], "changed": weights(execution) != before}


def nan_is_ignored(folder: Path, *, rank: int) -> Any:
    """The step is taken, and its weights are what it made them."""
    execution = start(folder, poisoned(at=1, microbatch=2, on_nonfinite="ignore"))
    before = execution.step(0).is_updated
    after = execution.step(1).is_updated
    return {"updated": [before, after], "nan": any(math.isnan(each) for row in weights(execution) for each in row)}


class Root(nn.Module):
    """Its gradient at nothing is not finite, its value is."""

    def __init__(self, *, num_roots: int = models.WIDTH) -> None:
        super().__init__()
        self.weight = nn.Parameter((torch.arange(models.WIDTH) < models.WIDTH - num_roots).float())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.weight.abs().sqrt()


def nan_in_gradient_stops(folder: Path, *, rank: int) -> Any:
    training = models.vectors("ww", num_microbatches=COUNT)
    layers = dict(training.layers) | {"l1": lambda: Root().double()}
    return start(folder, changed(training, layers=layers)).step(0)


def overflow_lowers_the_scale(folder: Path, *, rank: int) -> Any:
    training = models.vectors("ww", num_microbatches=COUNT)
    scale = models.LossScale(initial=2.0**1023, backoff=2.0**-900, interval=2)
    loss_of_all: Any = {"loss": lambda y, t: 1e3 * ((y - t) ** 2).sum(), "loss_is_sum": True}
    training = changed(training, loss_scale=scale, **loss_of_all)
    found = {}
    for name in ("a", "s"):
        execution = start(folder, training, name)
        steps = [execution.step(number).is_updated for number in range(4)]
        found[name] = {"updated": steps, "scale": math.log2(execution.update.scale)}
    return found


def failing_optimizer(folder: Path, *, rank: int) -> Any:
    class Failing(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            raise KeyError("momentum")

    training = models.vectors("ww", num_microbatches=COUNT)
    return start(folder, changed(training, optimizer=partial(Failing, lr=0.1))).step(0)


def raising_factory(folder: Path, *, rank: int) -> Any:
    def make() -> nn.Module:
        raise TypeError("no such width")

    training = models.vectors("ww", num_microbatches=COUNT)
    return start(folder, changed(training, layers=dict(training.layers) | {"l1": make}))


def adam(parameters: list[Any]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


def dropping() -> Training:
    def schedule(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=10)

    return changed(models.dropping("ww", num_microbatches=COUNT), optimizer=adam, schedule=schedule)


def checkpoints_resume(folder: Path, *, rank: int) -> Any:
    """Six iterations in one go; four with a checkpoint every two, then two more in another process's place."""
    whole = start(folder, dropping())
    expected = [whole.step(number).losses for number in range(6)]
    broken = start(folder, dropping())
    for number in range(4):
        broken.step(number)
        if number % 2:
            write_numbered(broken, folder / "checkpoints", iteration=number + 1, num_kept=1)
    distributed.barrier()
    left = sorted(path.name for path in (folder / "checkpoints").iterdir())
    found = {}
    for name in ("a", "b"):
        resumed = start(folder, dropping(), name)
        newest = find_newest(folder / "checkpoints")
        assert newest is not None
        first = load_checkpoint(resumed, newest)
        found[name] = [first, [resumed.step(number).losses for number in (first, first + 1)]]
    return {"expected": expected[4:], "found": found, "left": left}


def writing_breaks_off(folder: Path, *, rank: int) -> Any:
    """Of a checkpoint under a name that is there already, and of the next one, at the last moment before they count."""
    execution, kept = start(folder, dropping()), folder / "broken"
    execution.step(0)
    write_numbered(execution, kept, iteration=1, num_kept=2)
    expected = weights(execution)
    execution.step(1)

    def break_off(*args: Any, **more: Any) -> None:
        save(*args, **more)
        raise OSError("no room")

    said = []
    for name in (1, 2):
        with mock.patch("planner.execute.state.checkpoint.save", break_off):
            try:
                write_numbered(execution, kept, iteration=name, num_kept=1)
            except OSError as error:
                said.append(str(error))
    distributed.barrier()
    newest, resumed = find_newest(kept), start(folder, dropping())
    assert newest is not None
    found = [newest.name, load_checkpoint(resumed, newest), weights(resumed) == expected]
    distributed.barrier()
    write_numbered(execution, kept, iteration=2, num_kept=1)
    distributed.barrier()
    return {"said": said, "found": found, "left": sorted(path.name for path in kept.iterdir())}


def evaluation(folder: Path, *, rank: int) -> Any:
    """In evaluation mode nothing is dropped, nothing learnt, and the mode comes back; replicas do not matter."""
    found = {}
    for name in ("a", "c"):
        execution = start(folder, models.dropping("ww", num_microbatches=COUNT), name)
        before = weights(execution)
        found[name] = execution.evaluate(3)
        assert weights(execution) == before
        assert all(part.training for stage in execution.stages for part in stage.module.modules())
        execution.step(0)
    return found


class Twice(models.Block):
    """Gives two tensors."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return super().forward(x), x


def evaluation_of_two_outputs(folder: Path, *, rank: int) -> Any:
    """A loss of both tensors that the model gives: before a step it is what the step has."""
    training = models.vectors("ww", num_microbatches=COUNT)
    layers = dict(training.layers) | {"l1": lambda: Twice().double()}
    training = changed(training, layers=layers, loss=lambda y, t: ((y[0] - t) ** 2).mean() + (y[1] ** 2).mean())
    executions = {name: start(folder, training, name) for name in ("a", "e")}
    return {name: [each.evaluate(0), each.step(0).losses] for name, each in executions.items()}


def own_loop(folder: Path, *, rank: int) -> Any:
    """Batches by hand are those of the training's own numbers."""
    training = models.vectors("ww", num_microbatches=COUNT)
    by_number, by_hand = start(folder, training), start(folder, training)
    expected = [by_number.step(number).losses for number in range(3)]
    return {"expected": expected, "found": [by_hand.step(training.batch(number)).losses for number in range(3)]}


class Scaled(models.Block):
    """A block with a single number, and with fewer than there are replicas."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.tensor([0.25]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * super().forward(x) + self.shift


def sharded_alike(folder: Path, *, rank: int) -> Any:
    """With two replicas a sum has one order: with and without sharding, bit by bit, in messages of 23 numbers."""

    def halves(parameters: list[Any]) -> tuple[torch.optim.Optimizer, ...]:
        return adam(parameters[:1]), torch.optim.RMSprop(parameters[1:], momentum=0.5)

    trainings = {
        "AdamW": dropping(),
        "several": changed(models.vectors("ww", num_microbatches=COUNT), optimizer=halves),
        "bfloat16": changed(models.float32_gradients("ww", num_microbatches=COUNT), optimizer=adam),
        "scalar": models.every_layer("ww", Scaled, num_microbatches=COUNT),
    }
    found = {}
    for name, training in trainings.items():
        whole, sharded = start(folder, training, "c"), start(folder, training, "s", check_every=1)
        for reduction in sharded.model.sharded.values():
            reduction.bucket_bytes = 23 * 2 * 2 * 2 * 8
        told = [[execution.step(number).losses for number in range(3)] for execution in (whole, sharded)]
        found[name] = {
            "alike": told[0] == told[1] and weights(whole) == weights(sharded),
            "bytes": [state_bytes(whole), state_bytes(sharded)],
            "moved": weights(whole) != weights(start(folder, training, "c")),
        }
    return found


def buckets_travel_early(folder: Path, *, rank: int) -> Any:
    """A stage that is the whole model, in one bucket and in many: with accumulation, clipping and dropout."""
    found = {}
    for name, more in {"plain": {}, "accumulating": {"accumulate": 2, "max_norm": 0.1}}.items():
        training = changed(models.dropping("ww", num_microbatches=COUNT), optimizer=adam, **more)
        one, many = start(folder, training, "e"), start(folder, training, "e")
        for reduction in many.model.reductions:
            reduction.bucket_bytes = 100 * 8
        told = [[execution.step(number).losses for number in range(4)] for execution in (one, many)]
        buckets = [len(reduction._buckets) for each in (one, many) for reduction in each.model.reductions]
        sent = many.model.reductions[0]._early._sent
        found[name] = {"alike": told[0] == told[1] and weights(one) == weights(many), "buckets": buckets}
        found[name] |= {"early": len(sent), "moved": weights(one) != weights(start(folder, training, "e"))}
    return found


def statistics_of_replicas(folder: Path, *, rank: int) -> Any:
    """Batch norms over each replica's own samples, beside torch's DistributedDataParallel on the same microbatches."""
    training = changed(models.normed("ww", num_microbatches=COUNT), optimizer=adam, sync_batch_norm=False)
    execution = start(folder, training, "e", check_every=1)
    model = nn.Sequential(*(copy.deepcopy(execution.layer(name)) for name in training.layers))
    wrapped = DistributedDataParallel(model)
    optimizer = adam(list(model.parameters()))
    for number in range(3):
        execution.step(number)
        own = [part.chunk(COUNT) for part in training.batch(number)]
        for microbatch in range(COUNT):
            x, target = (part[microbatch].chunk(2)[rank] for part in own)
            with wrapped.no_sync() if microbatch < COUNT - 1 else nullcontext():
                (training.loss(wrapped(x), target) / COUNT).backward()
        optimizer.step()
        optimizer.zero_grad()
    for buffer in model.buffers():
        distributed.broadcast(buffer, 0)
    distances = [
        float((mine.detach() - theirs.detach()).abs().max())
        for layer, other in zip(map(execution.layer, training.layers), model, strict=True)
        for mine, theirs in zip(layer.state_dict().values(), other.state_dict().values(), strict=True)
    ]
    return {"distance": max(distances), "tensors": len(distances), "losses": len(execution.evaluate(0))}


def state_bytes(execution: Execution) -> int:
    """Of all tensors of more than one number that the optimizers hold."""
    states = [state for optimizer in execution.update.optimizers for state in optimizer.state.values()]
    tensors = [
        value for state in states for value in state.values() if isinstance(value, torch.Tensor) and value.numel() > 1
    ]
    return sum(value.numel() * value.element_size() for value in tensors)


def sharded_resumes(folder: Path, *, rank: int) -> Any:
    """Four iterations in one go; two, a checkpoint, and two more with sharding, without, and on one replica."""
    whole = start(folder, dropping(), "s")
    expected = [whole.step(number).losses for number in range(4)]
    first = start(folder, dropping(), "s")
    for number in range(2):
        first.step(number)
    write_numbered(first, folder / "sharded", iteration=2, num_kept=1)
    newest = find_newest(folder / "sharded")
    assert newest is not None
    found = {}
    for name in ("s", "c"):
        resumed = start(folder, dropping(), name)
        assert load_checkpoint(resumed, newest) == 2
        found[name] = [resumed.step(number).losses for number in (2, 3)] == expected[2:]
        found[name] &= weights(resumed) == weights(whole)
    return found


class Normalised(torch.optim.SGD):
    """Every parameter moves by a step of one length."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad /= parameter.grad.norm() + 1e-12
        super().step(closure)


class Columned(torch.optim.SGD):
    """Keeps a number per column."""

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["columns"] = torch.zeros(parameter.shape[-1] + 1)


class Turned(models.Block):
    """A weight that lies in memory by columns."""

    def __init__(self) -> None:
        super().__init__()
        self.inner.weight = nn.Parameter(self.inner.weight.detach().t().contiguous().t())


def sharded_refused(folder: Path, *, rank: int) -> Any:
    """Optimizers that look at whole parameters."""
    kinds: list[Any] = [torch.optim.Adafactor, partial(Normalised, lr=0.1), partial(Columned, lr=0.1)]
    if hasattr(torch.optim, "Muon"):
        kinds.append(lambda every: torch.optim.Muon([each for each in every if each.dim() == 2]))
    said = []
    for kind in kinds:
        training = changed(models.vectors("ww", num_microbatches=COUNT), optimizer=kind)
        start(folder, training, "c")
        try:
            start(folder, training, "s")
        except ExecutionError as error:
            said.append(str(error))
    try:
        start(folder, models.every_layer("ww", Turned, num_microbatches=COUNT), "s")
    except ExecutionError as error:
        said.append(str(error))
    return said


def sharded_nan_stops(folder: Path, *, rank: int) -> Any:
    execution = start(folder, poisoned(at=1, microbatch=2), "s")
    execution.step(0)
    return execution.step(1)


def sharded_nan_in_gradient_stops(folder: Path, *, rank: int) -> Any:
    """Only the last number's gradient is not finite, and only the last replica has it."""
    training = models.vectors("ww", num_microbatches=COUNT)
    layers = dict(training.layers) | {"l1": lambda: Root(num_roots=1).double()}
    return start(folder, changed(training, layers=layers), "s").step(0)


def listed(training: Training) -> Training:
    """The same samples, as microbatches of five, one and the rest."""

    def batch(number: int) -> Any:
        inputs, target = training.batch(number)
        sizes = [5, 1, len(inputs) - 6]
        return list(zip(inputs.split(sizes), target.split(sizes), strict=True))

    return changed(training, batch=batch)


def dealt_evaluation(folder: Path, *, rank: int) -> Any:
    """Under a dealing, with one pipeline, and in a loop of one's own that gives a process its own microbatches only."""
    training, found = listed(models.dropping("ww", num_microbatches=COUNT)), {}
    for name in ("a", "d"):
        execution = start(folder, training, name)
        before = weights(execution)
        found[name] = [execution.evaluate(3), execution.step(0).loss]
        assert weights(execution) != before
    execution = start(folder, training, "d")
    own = {number: training.batch(0)[number] for number in ((2, 0), (1,))[execution.pipeline]}
    assert execution.step(own).loss == found["d"][1]
    return found


def dealt_nan_stops(folder: Path, *, rank: int) -> Any:
    execution = start(folder, listed(poisoned(at=1, microbatch=1)), "d")
    execution.step(0)
    return execution.step(1)


def dealt_without_its_own(folder: Path, *, rank: int) -> Any:
    """Each process is given what the other one takes."""
    training = listed(models.vectors("ww", num_microbatches=COUNT))
    execution = start(folder, training, "d")
    try:
        execution.step({number: training.batch(0)[number] for number in ((1,), (2, 0))[execution.pipeline]})
    except ValueError as error:
        return str(error)


def listed_by_the_plan(folder: Path, *, rank: int) -> Any:
    """One batch is cut into the sizes that a plan states, or into equal ones."""
    batch = torch.arange(12.0)[:, None], torch.arange(12)
    found = {}
    for name, planned in (("stated", (5, 1, 6)), ("equal", None)):
        cut = list_microbatches(batch, planned=planned, count=4)
        assert torch.equal(torch.cat([target for _, target in cut.values()]), batch[1])
        found[name] = [len(inputs[0]) for inputs, _ in cut.values()]
    for planned, count in (((5, 1), 2), (None, 5)):
        try:
            list_microbatches(batch, planned=planned, count=count)
        except ValueError as error:
            found[str(count)] = str(error)
    return found


SCENARIOS = [
    listed_by_the_plan,
    dealt_evaluation,
    dealt_nan_stops,
    dealt_without_its_own,
    sharded_alike,
    statistics_of_replicas,
    buckets_travel_early,
    evaluation_of_two_outputs,
    sharded_resumes,
    sharded_refused,
    sharded_nan_stops,
    sharded_nan_in_gradient_stops,
    other_batches,
    other_targets,
    nan_stops,
    nan_is_skipped,
    nan_is_ignored,
    nan_in_gradient_stops,
    overflow_lowers_the_scale,
    failing_optimizer,
    raising_factory,
    checkpoints_resume,
    writing_breaks_off,
    evaluation,
    own_loop,
]


def main(folder: Path, rank: int, world_size: int) -> None:
    torch.set_num_threads(1)
    meeting = f"file://{folder / 'meeting'}"
    distributed.init_process_group("gloo", meeting, timedelta(seconds=60), world_size=world_size, rank=rank)
    answers: dict[str, Any] = {}
    for scenario in SCENARIOS:
        try:
            answers[scenario.__name__] = scenario(folder, rank=rank)
        except (ExecutionError, OwnCodeError) as error:
            answers[scenario.__name__] = {"refused": str(error), "kind": type(error).__name__}
        except Exception:
            sys.stderr.write(f"in {scenario.__name__}:\n{traceback.format_exc()}")
            raise
    (folder / f"rank{rank}.json").write_text(json.dumps(answers))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
