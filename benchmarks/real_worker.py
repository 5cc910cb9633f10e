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

from benchmarks.real_memory import MemoryMeter, all_tensors
from benchmarks.real_models import make_model
from benchmarks.real_torch import Contender, TorchSchedule, make_contender
from planner.document import parse_plan
from planner.execute.model.deferred import WeightGradStore, defer_weight_grads
from planner.execute.run.execution import Execution
from planner.execute.run.host_process import settle_on_host
from planner.execute.run.preparation import prepare
from profiles.measure.measure_layers import Survey, survey_model
from profiles.measure.model import Model, as_model, num_samples
from profiles.measure.record import to_tree
from profiles.measure.repeated_runs import RepeatedRuns
from profiles.measure.segment import MeasuringEffort

SIZES = (1 << 10, 1 << 16, 1 << 18, 1 << 20)
"""Bytes of the messages that are timed."""


class Worker:
    """What one process remembers between commands."""

    def __init__(self) -> None:
        self.rank, self.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.rounds: dict[tuple[str, int, int], RepeatedRuns] = {}
        self.contenders: list[Contender] = []

    def survey(self, *, model: str, num_microbatches: int, replicas: int) -> Any:
        """Records of all layers, made by all processes at once: bytes, the optimizer's time, and what each layer takes
        when it is repeated alone.
        """
        found = _load(model, num_microbatches)
        size = num_samples(found) // num_microbatches // replicas
        survey = Survey(microbatch_sizes=(size,), clock="wall", effort=MeasuringEffort(repetitions=5, seconds=1))
        distributed.barrier()
        findings = survey_model(found, survey, defer=defer)
        records = {name: to_tree(record) for (name, _, _), record in findings.records.items()}
        return {"size": size, "takes": findings.takes, "machine": findings.machine, "records": records}

    def times(self, *, model: str, num_microbatches: int, replicas: int, repetitions: int, recomputes: bool) -> Any:
        """Wall times of every layer and phase, round by round, all processes at once."""
        key = model, num_microbatches, replicas
        if key not in self.rounds:
            self.rounds.clear()
            found = _load(model, num_microbatches)
            size = num_samples(found) // num_microbatches // replicas
            self.rounds[key] = RepeatedRuns(found, size=size, defer=defer, device=torch.device("cpu"))
            self.rounds[key].repeat(1)
        distributed.barrier()
        samples = self.rounds[key].repeat(repetitions, recomputes=recomputes)
        return {
            name: {phase: [wall for wall, _ in taken] for phase, taken in phases.items()}
            for name, phases in samples.items()
        }

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
        self.rounds.clear()
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
        self.rounds.clear()
        gc.collect()


def _load(name: str, num_microbatches: int) -> Model:
    found = as_model(make_model(name, num_microbatches=num_microbatches))
    assert found is not None
    return found


def defer(module: torch.nn.Module) -> WeightGradStore:
    """The executor's own way to put weight gradients off."""
    store = WeightGradStore()
    defer_weight_grads(module, store)
    return store


def main() -> None:
    """Serve until the input ends."""
    torch.set_num_threads(1)
    settle_on_host()  # for torch's own contenders as well
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
