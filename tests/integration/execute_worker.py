"""One rank of the executor's tests; started by `test_execute.py`, not imported.

For every case of a folder it runs some iterations of the plan, and the same iterations of the whole model in this one
process, and writes down how far they differ, as JSON.
"""

import gc
import json
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import execute_models as models
import torch
import uneven_models
import unused_models
from torch import distributed, nn

from planner.document import parse_plan
from planner.errors import ExecutionError
from planner.execute.run.execution import Execution
from planner.execute.run.preparation import Preparation, prepare
from planner.execute.stage.stage_module import make_layer
from planner.execute.state.checkpoint import load_checkpoint, save_checkpoint
from planner.execute.training import Training, as_tuple
from planner.plan import Plan

CPU = torch.device("cpu")
MODELS = models, uneven_models, unused_models


class Whole:
    """The model in one process, run without anything of the executor's but the making of its layers."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self.layers = {name: make_layer(training, name, device=CPU) for name in training.layers}
        for names in training.tied:
            owner, _, path = names[0].partition(":")
            for name in names[1:]:
                self._share(name, value=self.layers[owner].get_parameter(path))
        named = [(f"{name}:{path}", p) for name, layer in self.layers.items() for path, p in layer.named_parameters()]
        unique = list(
            {id(parameter): (name, parameter) for name, parameter in named if parameter.requires_grad}.values()
        )
        if training.settings is None:
            self.optimizer = training.optimizer([parameter for _, parameter in unique])
        else:
            self.optimizer = training.optimizer([{"params": [p], **training.settings(name, p)} for name, p in unique])
        self.schedule = training.schedule(self.optimizer) if training.schedule else None
        self.divisor = 0.0

    def _share(self, name: str, *, value: nn.Parameter) -> None:
        layer, _, path = name.partition(":")
        owner, _, attribute = path.rpartition(".")
        setattr(self.layers[layer].get_submodule(owner), attribute, value)

    def forget(self) -> None:
        """The gradients so far: whoever goes on from a checkpoint has not seen them."""
        for grads in self.optimizer.seen.values():
            grads.clear()

    def output(self, inputs: tuple[torch.Tensor, ...]) -> Any:
        values, before = {"": inputs}, ""
        for name, layer in self.layers.items():
            sources = self.training.inputs.get(name, (before,))
            values[name] = as_tuple(layer(*(tensor for source in sources for tensor in values[source])))
            before = name
        return values[before][0] if len(values[before]) == 1 else values[before]

    def losses(self, number: int, *, num_microbatches: int) -> Iterator[tuple[torch.Tensor, float]]:
        """Of every microbatch, with how many tokens count in it."""
        given = self.training.batch(number)
        if isinstance(given, tuple):
            inputs, target = given
            microbatches = zip(*(tensor.chunk(num_microbatches) for tensor in (*as_tuple(inputs), target)), strict=True)
        else:
            microbatches = ((*as_tuple(inputs), target) for inputs, target in given)
        for *mine, wanted in microbatches:
            count = self.training.num_tokens(wanted).item() if self.training.num_tokens else 1
            yield self.training.loss(self.output(tuple(mine)), wanted), count

    def step(self, number: int, *, num_microbatches: int) -> list[float]:
        losses = []
        for loss, count in self.losses(number, num_microbatches=num_microbatches):
            loss.backward()
            self.divisor += count if self.training.num_tokens or not self.training.loss_is_sum else 0
            losses.append(loss.item() / count)
        if (number + 1) % self.training.accumulate == 0:
            self.update()
        return losses

    def update(self) -> None:
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        for parameter in parameters:
            if parameter.grad is not None and self.divisor:
                parameter.grad.div_(self.divisor)
        self.divisor = 0.0
        if self.training.max_norm is not None:
            torch.nn.utils.clip_grad_norm_(parameters, self.training.max_norm)
        self.optimizer.step()
        if self.schedule is not None:
            self.schedule.step()
        self.optimizer.zero_grad()


def compare(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    plan = parse_plan((folder / case["plan"]).read_text())
    count = plan.problem.num_microbatches
    make = next(getattr(each, case["model"]) for each in MODELS if hasattr(each, case["model"]))
    training = make(case["kinds"], num_microbatches=count)
    execution = Execution(prepare(plan, training, fully_shard=is_fully_sharded(plan, case)), device=CPU)
    gathered = watch_gathered(execution)
    whole = Whole(training)
    losses, expected, executed = [], [], []
    for number in range(case["steps"]):
        if number == 1 and case["then"]:
            then = parse_plan((folder / case["then"]).read_text())
            preparation = prepare(then, training, fully_shard=is_fully_sharded(then, case))
            execution = go_on(execution, preparation, checkpoint=folder / f"{case['plan']}.checkpoint")
            whole.forget()
        iteration = execution.step(number)
        losses.append(iteration.losses)
        executed.append([name for name, _, _ in iteration.actions])
        expected.append(whole.step(number, num_microbatches=count))
    evaluated, expected_evaluation = (), []
    if hasattr(uneven_models, case["model"]):
        evaluated = execution.evaluate(7)
        expected_evaluation = [loss.item() / tokens for loss, tokens in whole.losses(7, num_microbatches=count)]
    return {
        "evaluated": evaluated,
        "expected_evaluation": expected_evaluation,
        "losses": losses,
        "expected_losses": expected,
        "executed": executed,
        "kept": sum(num_kept(stage) for stage in execution.stages),
        "gathered": gathered,
        "row": [str(action) for action in execution.layout.rows[execution.rank]],
    } | differences(execution, whole)


def watch_gathered(execution: Execution) -> dict[str, Any]:
    """Bytes of every stage's gathered weights, and those that are there at the end of each action from now on."""
    active, computing = execution.active, execution.log.computing
    if active is None:
        return {}
    found: dict[str, Any] = {"sizes": list(map(whole_bytes, active.stages.values())), "seen": []}
    parts = [
        part
        for layers in active.stages.values()
        for layer in layers.layers.values()
        for group in sharded_groups(layer)
        for part in group.fsdp_params
    ]

    @contextmanager
    def looking() -> Iterator[None]:
        with computing():
            yield
        whole = [part._unsharded_param for part in parts if hasattr(part, "_unsharded_param")]
        found["seen"].append(sum(each.untyped_storage().nbytes() for each in whole))

    execution.log.computing = looking
    return found


def whole_bytes(layers: Any) -> int:
    """Of all weights of a stage's layers that are in parts, gathered."""
    parameters = [each for layer in layers.layers.values() for each in layer.parameters()]
    return sum(each.numel() * each.element_size() for each in parameters if hasattr(each, "device_mesh"))


def sharded_groups(layer: Any) -> list[Any]:
    """Torch's, one of them before 2.14."""
    state = layer._get_fsdp_state()
    return getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]


def is_fully_sharded(plan: Plan, case: dict[str, Any]) -> bool:
    """Of two plans one may have nothing to shard."""
    return case["fully_shard"] and (not case["then"] or any(each.is_sharded for each in plan.stages))


def num_kept(stage: Any) -> int:
    """Tensors that a stage still holds between two iterations: received, passed on within the process, or made."""
    return len(stage.inbox) + len(stage.outbox) + len(stage.forwards)


def go_on(execution: Execution, preparation: Preparation, *, checkpoint: Path) -> Execution:
    """The same training after its first iteration, under another plan."""
    save_checkpoint(execution, checkpoint, iteration=1)
    other = Execution(preparation, device=CPU)
    assert load_checkpoint(other, checkpoint) == 1
    return other


def differences(execution: Execution, whole: Whole) -> dict[str, Any]:
    """Of every gradient of every iteration, and of the weights and buffers at the end."""
    found: dict[str, Any] = {
        "gradients": 0.0,
        "weights": 0.0,
        "buffers": 0.0,
        "largest": 0.0,
        "missing": [],
        "count": 0,
    }
    for stage in execution.stages:
        for name in execution.plan.stages[stage.stage_index].layers:
            mine, theirs = execution.layer(name), whole.layers[name]
            for (_, a), (_, b) in zip(mine.named_buffers(), theirs.named_buffers(), strict=True):
                found["buffers"] = max(found["buffers"], apart(a, b))
            for path, a in execution.model.held(name):
                b, part = theirs.get_parameter(path), execution.model.parts.of(a)
                found["weights"] = max(found["weights"], apart(a, b if part is None else part.cut(b)))
                if a.requires_grad:
                    stepped, expected = execution.update.stepped_for(a), whole.optimizer.seen[id(b)]
                    if part is not None:
                        expected = [None if grad is None else part.cut(grad) for grad in expected]
                    if (piece := execution.update.pieces.get(id(a))) is not None:
                        expected = [None if grad is None else piece.cut(grad) for grad in expected]
                    compare_gradients(found, f"{name}:{path}", a=execution.optimizer.seen[id(stepped)], b=expected)
                    if bool(execution.optimizer.state[stepped]) != bool(whole.optimizer.state[b]):
                        found["missing"].append(f"state of {name}:{path}")
    return found


def compare_gradients(found: dict[str, Any], name: str, *, a: list[Any], b: list[Any]) -> None:
    for mine, theirs in zip(a, b, strict=True):
        if (mine is None) != (theirs is None):
            found["missing"].append(name)
        elif mine is not None:
            found["count"] += 1
            found["gradients"] = max(found["gradients"], apart(mine, theirs))
            found["largest"] = max(found["largest"], theirs.abs().max().item() if theirs.numel() else 0.0)


def apart(a: torch.Tensor, b: torch.Tensor) -> float:
    return (a.double() - b.double()).abs().max().item() if a.numel() else 0.0


def main(folder: Path, rank: int, world_size: int) -> None:
    torch.set_num_threads(1)
    meeting = f"file://{folder / 'meeting'}"
    distributed.init_process_group("gloo", meeting, timedelta(seconds=60), world_size=world_size, rank=rank)
    answers = {}
    for path in sorted(folder.glob("*.case.json")):
        case = json.loads(path.read_text())
        gc.freeze()  # an execution collects garbage when it begins: not among all of torch for each of these
        try:
            answers[case["name"]] = compare(case, folder)
        except (ValueError, ExecutionError) as error:
            answers[case["name"]] = {"refused": str(error)}
        except Exception:
            sys.stderr.write(f"in {case['name']}:\n{traceback.format_exc()}")
            raise
    (folder / f"rank{rank}.json").write_text(json.dumps(answers))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
