"""One process of a launch whose contenders take an iteration each, in turns: `python -m benchmarks.turns ABOUT.json`.

Whatever slows the host down meets neighbouring iterations alike, so ratios of contenders do not show it. A launch with
one contender tells what that takes and holds by itself. `python -m benchmarks.turns MODULE:FACTORY PROCESSES` says what
the executor takes beside a loop by hand: of one process, or DistributedDataParallel on several.
"""

import copy
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol
from unittest import mock

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.real_torch import FullyShardedData, TorchSchedule, WholeModelData
from benchmarks.user_flow import FAILED
from planner.document import parse_plan, render_plan
from planner.execute.record.memory_use import MemoryMeter
from planner.execute.run.execution import Execution
from planner.execute.run.host_process import settle_on_host
from planner.execute.run.preparation import prepare
from planner.execute.training import Training, as_tuple, load_training
from tests.planner.execute.orders import make_random_plan

WARM_UP = 2
"""Rounds that do not count."""

RACE_S, BLOCK_S = 8.0, 0.02
"""Seconds of a race with a loop by hand, and least that a contender runs at a time."""

_RUNNERS = {"DDP": WholeModelData, "FSDP2": FullyShardedData}


class LoopByHand:
    """What people write: the model as it is, within DistributedDataParallel on several processes."""

    def __init__(self, factory: str) -> None:
        given: list[tuple[nn.Module, dict[str, Any]]] = []
        make = Training.from_module

        def noting(module: nn.Module, **more: Any) -> Training:
            given.append((copy.deepcopy(module), more))
            return make(module, **more)

        with mock.patch.object(Training, "from_module", noting):
            training = load_training(factory)
        layers = nn.Sequential(*(layer() for layer in training.layers.values()))
        own = {"batch": training.batch, "loss": training.loss, "optimizer": training.optimizer}
        self.module, self.more = given[0] if given else (layers, own)
        self.module.train()
        self.count, self.rank = distributed.get_world_size(), distributed.get_rank()
        if self.count > 1:
            self._loss(0).backward()
            has_unused = any(each.requires_grad and each.grad is None for each in self.module.parameters())
            self.module.zero_grad()
            self.module = DistributedDataParallel(self.module, find_unused_parameters=has_unused)
        self.optimizer = self.more["optimizer"]([each for each in self.module.parameters() if each.requires_grad])

    def _loss(self, number: int) -> torch.Tensor:
        inputs, target = self.more["batch"](number)
        size = len(target) // self.count
        mine = slice(self.rank * size, (self.rank + 1) * size)
        if isinstance(inputs, dict):
            output = self.module(**{name: tensor[mine] for name, tensor in inputs.items()})
        else:
            output = self.module(*(tensor[mine] for tensor in as_tuple(inputs)))
        loss: torch.Tensor = self.more["loss"](output, target[mine])
        return loss

    def step(self, number: int) -> None:
        """As a training loop does it."""
        loss = self._loss(number)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        loss.item()


class Contender(Protocol):
    """Trains an iteration at a time."""

    def step(self, number: int) -> Any:
        """All microbatches of iteration `number`, and the optimizer."""


def make_contender(model: str, about: dict[str, Any]) -> Contender:
    """A `loop` by hand, a plan (`plan`: its file), one of torch's schedules (`schedule`, `stages`, `owners`), or a
    `wrapper`.
    """
    about = dict(about)
    if "loop" in about:
        return LoopByHand(model)
    if "plan" in about:
        plan = parse_plan(Path(about["plan"]).read_bytes(), source=about["plan"])
        return Execution(prepare(plan, load_training(model)), device=torch.device("cpu"))
    if "schedule" in about:
        return TorchSchedule(model=model, **about)
    return _RUNNERS[about.pop("wrapper")](load_training(model), **about)


def make_all(
    model: str, contenders: dict[str, dict[str, Any]], *, folder: Path
) -> tuple[dict[str, Contender], dict[str, str]]:
    """Those that every process could make and run once, and why the others are left out; a collective call.

    Where others wait within the contender that failed here, nobody comes to the call: `folder` has its name then.
    """
    made, failures = dict[str, Contender](), dict[str, str]()
    for name, about in contenders.items():
        reason = ""
        try:
            made[name] = make_contender(model, about)
            made[name].step(0)
        except Exception as error:
            reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            (folder / f"{FAILED}{distributed.get_rank()}").write_text(f"{name}\n{reason}", encoding="utf-8")
        told: list[str] = [""] * distributed.get_world_size()
        distributed.all_gather_object(told, reason)
        if any(told):
            made.pop(name, None)
            failures[name] = next(filter(None, told))
    return made, failures


def take_turns(
    contenders: dict[str, Contender], *, rounds: int, block: int, processor: dict[str, list[int]]
) -> dict[str, list[tuple[int, int]]]:
    """Begin and end of every `block` of iterations on this process, round after round, each round in another order.

    `processor`: takes the nanoseconds of this process's threads.
    """
    times: dict[str, list[tuple[int, int]]] = {name: [] for name in contenders}
    order = list(contenders)
    for number in range(1, 1 + WARM_UP + rounds):
        random.Random(number).shuffle(order)
        for name in order:
            distributed.barrier()
            begin, used = time.time_ns(), time.process_time_ns()
            for _ in range(block):
                contenders[name].step(number)
            if number > WARM_UP:
                times[name].append((begin, time.time_ns()))
                processor.setdefault(name, []).append(time.process_time_ns() - used)
    return times


def main(about: str) -> None:
    """Run, and write what was timed and held."""
    work = json.loads(Path(about).read_text(encoding="utf-8"))
    folder, rank = Path(about).parent, int(os.environ["RANK"])
    sys.path.insert(0, os.getcwd())
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        timeout=timedelta(seconds=60),
        rank=rank,
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    meter = MemoryMeter(torch.device("cpu"))
    contenders, failures = make_all(work["model"], work["contenders"], folder=folder)
    gc.collect()
    gc.freeze()
    processor = dict[str, list[int]]()
    times = take_turns(contenders, rounds=work["rounds"], block=work.get("block", 1), processor=processor)
    told = {"times": times, "failures": failures, "processor": processor} | _held_alone(contenders, meter=meter)
    Path(folder, f"rank{rank}.json").write_text(json.dumps(told), encoding="utf-8")
    part(contenders)


def _held_alone(contenders: dict[str, Contender], *, meter: MemoryMeter) -> dict[str, Any]:
    """The peak of the process, and which device it is, if the only contender is a plan."""
    alone = next(iter(contenders.values())) if len(contenders) == 1 else None
    if not isinstance(alone, Execution):
        held = meter.read()
        return {"peak_bytes": None if held is None else held.peak_bytes}
    held = alone.memory.read()
    device = alone.layout.devices[distributed.get_rank()]
    return {"peak_bytes": None if held is None else held.peak_bytes, "device": device}


def part(contenders: dict[str, Contender]) -> None:
    """Let all contenders go, and leave the others; a collective call.

    DistributedDataParallel's reducer keeps Python's lock as it lets its process group go. If it were the last to do so,
    it would wait for gloo's threads, which may still want that lock: reductions of a backward drop its context.
    """
    contenders.clear()
    gc.unfreeze()
    gc.collect()
    distributed.barrier()
    distributed.destroy_process_group()


def race(model: str, count: int) -> str:
    """The executor beside a loop by hand, both with a copy of the whole model on each process: the ratios."""
    names = tuple(load_training(model).layers)
    plan = make_random_plan("/".join(map(str, range(count))), num_microbatches=1, cut=[len(names)], backward="B")
    with tempfile.TemporaryDirectory(prefix="pipeplan-race-") as name:
        folder, first = Path(name), {"rounds": 20, "block": 1}
        whole = replace(plan, stages=(replace(plan.stages[0], layers=names),))
        (folder / "plan.json").write_text(render_plan(whole), encoding="utf-8")
        about = {"executor": {"plan": str(folder / "plan.json")}, "loop": {"loop": True}}
        once_s = statistics.median(_race(folder, {"model": model, "contenders": about, **first}, count)[1]["loop"])
        block = max(1, round(BLOCK_S / once_s))
        rounds = max(8, round(RACE_S / (2 * block * once_s)))
        given = {"model": model, "contenders": about, "rounds": rounds, "block": block}
        ratios = []
        for times in _race(folder, given, count):
            ratios.append(statistics.median(a / b for a, b in zip(times["executor"], times["loop"], strict=True)))
    return f"{model}, {count}: loop {once_s * 1e3:.2f} ms, executor / loop {ratios[1]:.3f}, processor {ratios[0]:.3f}"


def _race(folder: Path, about: dict[str, Any], count: int) -> tuple[dict[str, list[float]], ...]:
    """Seconds of the processor and of the clock of every turn on the first process, by contender."""
    (folder / "rendezvous").unlink(missing_ok=True)
    (folder / "about.json").write_text(json.dumps(about), encoding="utf-8")
    sizes = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "OMP_NUM_THREADS": "1"}
    ranks = [os.environ | sizes | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
    command = [sys.executable, "-m", "benchmarks.turns", str(folder / "about.json")]
    processes = [subprocess.Popen(command, env=environment) for environment in ranks]
    codes = [process.wait() for process in processes]
    if any(codes):
        sys.exit("a process of the race has failed")
    told = json.loads((folder / "rank0.json").read_text(encoding="utf-8"))
    wall = {name: [(end - begin) / 1e9 for begin, end in turns] for name, turns in told["times"].items()}
    return {name: [used / 1e9 for used in turns] for name, turns in told["processor"].items()}, wall


if __name__ == "__main__":
    if sys.argv[1].endswith(".json"):
        settle_on_host()
        main(sys.argv[1])
    else:
        sys.path.insert(0, os.getcwd())
        print(race(sys.argv[1], int(sys.argv[2])))
