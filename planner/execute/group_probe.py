"""`python -m planner.execute.group_probe ABOUT`: one process of a group that runs some plans, and times their actions.

By the host's clock: the processes of a group wait for each other within actions.
"""

import json
import re
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import distributed

from planner.document import parse_plan
from planner.execute.probe import meet_in
from planner.execute.run.execution import Execution
from planner.execute.run.preparation import prepare
from planner.execute.training import load_training

WARM_UP = 2
"""Iterations that do not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _GroupWork:
    """What every process is to do."""

    model: str
    """`module:factory` of a Training."""
    plans: list[str]
    """Files of the plans, each for all processes."""
    folder: str
    """Where the processes meet, and where each writes its `rankN.json`."""
    iterations: int
    """Of each plan, after `WARM_UP`."""


def main(about: str) -> None:
    """Run, and write what was timed: per plan nanoseconds by stage and kind; per layer the bytes held, and in all."""
    work = _GroupWork(**json.loads(about))
    rank = meet_in(work.folder)
    training = load_training(work.model)
    runs, held = [], dict[str, tuple[int, int]]()
    for path in work.plans:
        plan = parse_plan(Path(path).read_bytes(), source=path)
        execution = Execution(prepare(plan, training), device=torch.device("cpu"))
        times = defaultdict[str, list[int]](list)
        for number in range(WARM_UP + work.iterations):
            for name, start, end in execution.step(number).actions:
                if number >= WARM_UP:
                    times[_stage_and_kind(name)].append(end - start)
        runs.append(times)
        held |= {name: _held_bytes(execution, name) for stage in plan.stages for name in stage.layers}
    document = {"runs": runs, "held": held}
    Path(work.folder, f"rank{rank}.json").write_text(json.dumps(document), encoding="utf-8")
    distributed.barrier()
    distributed.destroy_process_group()


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
