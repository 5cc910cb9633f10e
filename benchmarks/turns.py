"""One process of a launch whose contenders take an iteration each, in turns: `python -m benchmarks.turns ABOUT.json`.

Whatever slows the host down meets neighbouring iterations alike, so ratios of contenders do not show it. A launch with
one contender tells what that takes and holds by itself.
"""

import gc
import json
import os
import random
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import distributed

from benchmarks.real_torch import FullyShardedData, TorchSchedule, WholeModelData
from planner.document import parse_plan
from planner.execute.record.memory_use import MemoryMeter
from planner.execute.run.execution import Execution
from planner.execute.run.preparation import prepare
from planner.execute.training import load_training

WARM_UP = 2
"""Rounds that do not count."""

_RUNNERS = {"DDP": WholeModelData, "FSDP2": FullyShardedData}


class Contender(Protocol):
    """Trains an iteration at a time."""

    def step(self, number: int) -> Any:
        """All microbatches of iteration `number`, and the optimizer."""


def make_contender(model: str, about: dict[str, Any]) -> Contender:
    """A plan (`plan`: its file), one of torch's schedules (`schedule`, `stages`, `owners`), or a `wrapper`."""
    about = dict(about)
    if "plan" in about:
        plan = parse_plan(Path(about["plan"]).read_bytes(), source=about["plan"])
        return Execution(prepare(plan, load_training(model)), device=torch.device("cpu"))
    if "schedule" in about:
        return TorchSchedule(model=model, **about)
    return _RUNNERS[about.pop("wrapper")](load_training(model), **about)


def make_all(model: str, contenders: dict[str, dict[str, Any]]) -> tuple[dict[str, Contender], dict[str, str]]:
    """Those that every process could make and run once, and why the others are left out; a collective call."""
    made, failures = dict[str, Contender](), dict[str, str]()
    for name, about in contenders.items():
        reason = ""
        try:
            made[name] = make_contender(model, about)
            made[name].step(0)
        except Exception as error:
            reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        told: list[str] = [""] * distributed.get_world_size()
        distributed.all_gather_object(told, reason)
        if any(told):
            made.pop(name, None)
            failures[name] = next(filter(None, told))
    return made, failures


def take_turns(contenders: dict[str, Contender], *, rounds: int) -> dict[str, list[tuple[int, int]]]:
    """Begin and end of every iteration on this process, round after round, each round in another order."""
    times: dict[str, list[tuple[int, int]]] = {name: [] for name in contenders}
    order = list(contenders)
    for number in range(1, 1 + WARM_UP + rounds):
        random.Random(number).shuffle(order)
        for name in order:
            distributed.barrier()
            begin = time.time_ns()
            contenders[name].step(number)
            if number > WARM_UP:
                times[name].append((begin, time.time_ns()))
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
    contenders, failures = make_all(work["model"], work["contenders"])
    gc.collect()
    gc.freeze()
    times = take_turns(contenders, rounds=work["rounds"])
    alone = next(iter(contenders.values())) if len(contenders) == 1 else None
    held = (alone.memory if isinstance(alone, Execution) else meter).read()
    told = {"times": times, "failures": failures, "peak_bytes": None if held is None else held.peak_bytes}
    if isinstance(alone, Execution):
        told["device"] = alone.layout.devices[rank]
    Path(folder, f"rank{rank}.json").write_text(json.dumps(told), encoding="utf-8")
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
