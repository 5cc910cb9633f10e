"""One process of a real run: reads commands as JSON lines, answers each with one; started by `benchmarks.real_pool`."""

import gc
import json
import os
import statistics
import sys
import time
import traceback
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from benchmarks.real_layers import LayeredModel
from benchmarks.real_memory import MemoryMeter, all_tensors
from benchmarks.real_models import make_model
from benchmarks.real_torch import Contender, TorchSchedule, make_contender
from planner.document import parse_plan
from planner.execute.execution import Execution, prepare

SIZES = (1 << 10, 1 << 16, 1 << 18, 1 << 20)
"""Bytes of the messages that are timed."""


class Worker:
    """What one process remembers between commands."""

    def __init__(self) -> None:
        self.rank, self.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.models: dict[tuple[str, int, int], LayeredModel] = {}
        self.contenders: list[Contender] = []

    def times(self, *, model: str, num_microbatches: int, replicas: int, repetitions: int, recomputes: bool) -> Any:
        """Samples of every layer, all processes at once."""
        layered = self._layered(model, num_microbatches, replicas)
        distributed.barrier()
        return layered.repeat(repetitions, recomputes=recomputes)

    def weigh(self, *, model: str, num_microbatches: int, replicas: int) -> Any:
        """Bytes of every layer, and the optimizer's time."""
        layered = self._layered(model, num_microbatches, replicas)
        distributed.barrier()
        return {"optimizer_ns": layered.time_optimizer(5), "sizes": layered.weigh()}

    def _layered(self, model: str, num_microbatches: int, replicas: int) -> LayeredModel:
        key = model, num_microbatches, replicas
        if key not in self.models:
            self.models.clear()
            training = make_model(model, num_microbatches=num_microbatches)
            self.models[key] = LayeredModel(training, num_microbatches=num_microbatches, replicas=replicas)
            self.models[key].repeat(1)
        return self.models[key]

    def links(self, *, repetitions: int) -> Any:
        """Median nanoseconds of one way between ranks 0 and 1, by size."""
        found = {}
        for size in SIZES:
            message, samples = torch.zeros(size, dtype=torch.uint8), []
            distributed.barrier()
            for _ in range(repetitions if self.rank < 2 else 0):
                begin = time.perf_counter_ns()
                for sender in (0, 1):
                    call = distributed.isend if self.rank == sender else distributed.irecv
                    works = distributed.batch_isend_irecv([distributed.P2POp(call, message, 1 - self.rank)])
                    for work in works:
                        work.wait()
                samples.append((time.perf_counter_ns() - begin) // 2)
            found[size] = round(statistics.median(samples)) if samples else 0
        return found

    def run(self, *, plan: str, model: str, iterations: int, warm_up: int) -> Any:
        """The executed timeline of every iteration but the first ones."""
        execution = self._execution(plan, model)
        found = []
        for number in range(warm_up + iterations):
            distributed.barrier()
            iteration = execution.step(number)
            if number >= warm_up:
                found.append({"spans": iteration.actions, "times": iteration.times._asdict()})
        return {"device": execution.layout.devices[self.rank], "iterations": found}

    def memory(self, *, plan: str, model: str) -> Any:
        """The most bytes that tensors held in an iteration, those from before it included."""
        self.models.clear()
        gc.collect()
        before = {id(tensor) for tensor in all_tensors()}
        execution = self._execution(plan, model)
        execution.step(0)
        known = [tensor for tensor in all_tensors() if id(tensor) not in before]
        with MemoryMeter(known) as meter:
            execution.step(1)
        return {"device": execution.layout.devices[self.rank], "peak_bytes": meter.peak}

    def _execution(self, plan: str, model: str) -> Execution:
        parsed = parse_plan(plan.encode(), source="plan")
        training = make_model(model, num_microbatches=parsed.problem.num_microbatches)
        return Execution(prepare(parsed, training), device=torch.device("cpu"))

    def enter(self, *, contender: dict[str, Any]) -> Any:
        """One more contender for `race`."""
        self.contenders.append(make_contender(contender))
        distributed.barrier()

    def order(self, *, contender: dict[str, Any]) -> Any:
        """What every rank of one of torch's schedules computes."""
        return TorchSchedule(**contender).order()

    def race(self, *, rounds: int, warm_up: int) -> Any:
        """Nanoseconds of every contender in every round, one after the other within a round."""
        found: list[list[int]] = [[] for _ in self.contenders]
        for number in range(warm_up + rounds):
            for place, contender in enumerate(self.contenders):
                distributed.barrier()
                begin = time.perf_counter_ns()
                contender.step(number)
                distributed.barrier()
                if number >= warm_up:
                    found[place].append(time.perf_counter_ns() - begin)
        return found

    def clear(self) -> None:
        """Forget everything."""
        self.contenders.clear()
        self.models.clear()
        gc.collect()


def main() -> None:
    """Serve until the input ends."""
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else prints
    distributed.init_process_group("gloo", timeout=timedelta(seconds=120))
    worker = Worker()
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = {"answer": getattr(worker, command.pop("do"))(**command)}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
