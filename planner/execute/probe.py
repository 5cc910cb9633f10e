"""`python -m planner.execute.probe ABOUT`: one process of a short run that shows what the executor itself costs.

Iterations are timed by two clocks at once: by the time that the thread works (waiting costs nothing) and by the host's
own (how long messages take). One after the other, each would tell of another moment of a host that others use as well.
Those of a group, whose processes wait for each other within actions, are timed by the host's alone.
"""

import importlib
import json
import os
import re
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from planner.document import parse_plan
from planner.execute.model.batch_norms import Traits
from planner.execute.record.action_log import ActionLog, HostClock
from planner.execute.run.execution import Execution, Iteration
from planner.execute.run.preparation import prepare
from planner.execute.training import Training, load_training
from planner.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class _ProbeWork:
    """What every process is to do."""

    model: str
    """`module:factory` of a Training."""
    plans: list[str]
    """Files of the plans, each for all processes."""
    kind: str
    """`pipeline`; `group`, of which there are several; else what is told of a plan with one stage on both begins so."""
    folder: str
    """Where the processes meet, and where each writes its `rankN.json`."""
    iterations: int
    """After `WARM_UP`."""


WARM_UP, GROUP_WARM_UP, REPLICATED, SHARDED = 3, 2, 8, 4
"""Iterations that do not count, here and of a group, those of replicas that do, and those of replicas that share all
state."""

Entry = dict[str, Any]
"""Of an iteration: `actions` (name, begin and end of each) and `times`, as `IterationTimes` has them."""


class BothClocks(HostClock):
    """The host's clock, which remembers what the calling thread, and the others of the process, had worked by then."""

    def __init__(self) -> None:
        super().__init__()
        self._worked: dict[int, int] = {}
        self._served: dict[int, int] = {}

    def mark(self) -> Any:
        """Remember this moment."""
        return time.perf_counter_ns(), time.thread_time_ns(), _served_ns()

    def resolve(self, mark: Any) -> int:
        """The wall clock at a mark; the processor time of threads is kept beside it."""
        passed, worked, served = mark
        moment = super().resolve(passed)
        self._worked[moment], self._served[moment] = worked, served
        return moment

    def served_in(self, entry: Entry) -> int:
        """Processor time of the other threads during the last action of an iteration."""
        _, start, end = entry["actions"][-1]
        return self._served[end] - self._served[start]

    def by_thread(self, entry: Entry) -> Entry:
        """The same with what the thread had worked instead of moments."""
        actions = [[name, self._worked[start], self._worked[end]] for name, start, end in entry["actions"]]
        times = {
            name: [self._worked[each] for each in at] if isinstance(at, tuple) else self._worked[at]
            for name, at in entry["times"].items()
        }
        return {"actions": actions, "times": times}


def main(about: str) -> None:
    """Run, and write what was timed. The user's modules can be found."""
    work, rank = _ProbeWork(**json.loads(about)), int(os.environ["RANK"])
    sys.path.insert(0, os.getcwd())
    importlib.invalidate_caches()
    distributed.init_process_group(
        "gloo", init_method=f"file://{work.folder}/rendezvous", rank=rank, world_size=int(os.environ["WORLD_SIZE"])
    )
    training = load_training(work.model)
    plans = [parse_plan(Path(path).read_bytes(), source=path) for path in work.plans]
    run = _run_group if work.kind == "group" else _run_two
    document = run(work, plans, training=training)
    Path(work.folder, f"rank{rank}.json").write_text(json.dumps(document), encoding="utf-8")
    distributed.barrier()
    distributed.destroy_process_group()


def _run_two(work: _ProbeWork, plans: Sequence[Plan], *, training: Training) -> Entry:
    clock = BothClocks()
    execution = Execution(prepare(plans[0], training), device=torch.device("cpu"), log=ActionLog(clock))
    run = _run_pipeline if work.kind == "pipeline" else _run_replicas
    return run(work, execution, clock=clock) | {"device": execution.layout.devices[execution.rank]}


def _run_pipeline(work: _ProbeWork, execution: Execution, *, clock: BothClocks) -> Entry:
    _run(execution, WARM_UP)
    passed, serving, held = [], [], None
    for number in range(WARM_UP, WARM_UP + work.iterations):
        before = _served_ns()
        passed.append(_as_entry(execution.step(number)))
        serving.append(_served_ns() - before)
        if len(passed) <= REPLICATED:
            held = execution.memory.peak_bytes  # later records of iterations take as much as a small model
    traits = {name: found for shape in execution.preparation.shapes for name, found in shape.traits.items()}
    if not execution.training.sync_batch_norm:
        traits = dict.fromkeys(traits, Traits())
    return {
        "thread": [clock.by_thread(entry) for entry in passed],
        "wall": passed,
        "exchanges": {name: [found.forward_exchanges, found.backward_exchanges] for name, found in traits.items()},
        "serving": serving,
        "peak_bytes": held,
    }


def _run_replicas(work: _ProbeWork, execution: Execution, *, clock: BothClocks) -> Entry:
    """By both clocks: replicas may wait for each other within actions."""
    count = SHARDED if execution.plan.stages[0].is_fully_sharded else REPLICATED
    entries = [_as_entry(iteration) for iteration in _run(execution, WARM_UP + count)[WARM_UP:]]
    return {
        work.kind: entries,
        f"{work.kind}_thread": [clock.by_thread(entry) for entry in entries],
        f"{work.kind}_served": [clock.served_in(entry) for entry in entries],
        f"{work.kind}_peak_bytes": execution.memory.peak_bytes,
    }


def _served_ns() -> int:
    """What the other threads of this process have worked, which send and receive."""
    return time.process_time_ns() - time.thread_time_ns()


def _run(execution: Execution, count: int) -> list[Iteration]:
    return [execution.step(number) for number in range(count)]


def _as_entry(iteration: Iteration) -> Entry:
    return {"actions": [list(action) for action in iteration.actions], "times": iteration.times._asdict()}


def _run_group(work: _ProbeWork, plans: Sequence[Plan], *, training: Training) -> Entry:
    """Per plan nanoseconds by stage and kind; per layer the bytes held, and in all."""
    runs, held = [], dict[str, tuple[int, int]]()
    for plan in plans:
        execution = Execution(prepare(plan, training), device=torch.device("cpu"))
        times = defaultdict[str, list[int]](list)
        for iteration in _run(execution, GROUP_WARM_UP + work.iterations)[GROUP_WARM_UP:]:
            for name, start, end in iteration.actions:
                times[_stage_and_kind(name)].append(end - start)
        runs.append(times)
        held |= {name: _held_bytes(execution, name) for stage in plan.stages for name in stage.layers}
    return {"runs": runs, "held": held}


def _stage_and_kind(name: str) -> str:
    found = re.match(r"\d+[FIWB]", name)
    return found.group() if found else name


def _held_bytes(execution: Execution, name: str) -> tuple[int, int]:
    """Of a layer's trained weights: on this process, and in all."""
    trained = [parameter for _, parameter in execution.model.held(name) if parameter.requires_grad]
    here = sum(parameter.numel() * parameter.element_size() for parameter in trained)
    shapes = [(execution.model.parts.shape(parameter).numel(), parameter.element_size()) for parameter in trained]
    return here, sum(count * size for count, size in shapes)


if __name__ == "__main__":
    main(sys.argv[1])
