"""Plans for one accelerator, run by the executor beside what the judge makes of a profile of that accelerator."""

import itertools
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from benchmarks.two_clocks import clocked_actions, play_alone
from planner.actions import Action
from planner.execute.run.execution import Execution, Iteration
from planner.execute.run.preparation import prepare
from planner.execute.training import Training
from planner.judge.reading import Reading
from planner.plan import Plan, Stage
from planner.problem import Options, Problem
from profiles.cluster import Cluster, Device
from profiles.measure.devices import device_name
from profiles.measure.load_model import load_model
from profiles.measure.materialise import cast
from profiles.measure.model import as_tuple, take_samples
from profiles.microbatch_sizes import profile_at
from profiles.model_profile import ModelProfile

DTYPES = {"bf16": "bfloat16", "fp32": "float32"}
CHUNKS, MICROBATCHES, STEPS = 2, 4, 6
"""Stages of a one-device plan, microbatches of an iteration, and iterations, of which the last three count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model in one type."""

    name: str
    model: str
    sizes: tuple[int, ...]
    dtype: str

    @property
    def label(self) -> str:
        """As its files are called."""
        return f"{self.name}-{self.dtype}"


def make_cluster(device: str) -> Cluster:
    """The device alone, with all of its memory, of which what others hold at present is reserved."""
    free, total = torch.cuda.mem_get_info() if device == "cuda" else (2**40, 2**40)
    only = Device(name="d0", type=device_name(device), memory_bytes=total, reserved_bytes=total - free)
    return Cluster(name="one device", devices=(only,), links=())


def make_plan(problem: Problem, *, kinds: Sequence[str] = ("B",), recompute: bool = False) -> Plan:
    """The layers in `CHUNKS` stages on the one device, each microbatch through all of them and back at once.

    `kinds`: what goes back through a stage, `B` or `I` and `W`.
    """
    names = [layer.name for layer in problem.profile.layers]
    cuts = [len(names) * part // CHUNKS for part in range(CHUNKS + 1)]
    stages = tuple(
        Stage(layers=tuple(names[a:b]), replicas=(("d0",),), recompute=recompute) for a, b in itertools.pairwise(cuts)
    )
    back = [(kind, stage) for stage in reversed(range(CHUNKS)) for kind in kinds]
    cells = [*(("F", stage) for stage in range(CHUNKS)), *back]
    actions = tuple(
        Action(kind, stage, microbatch) for microbatch in range(problem.num_microbatches) for kind, stage in cells
    )
    return Plan(problem=problem.reference(), stages=stages, schedule={"d0": actions})


def fit(
    case: Case,
    profile: ModelProfile,
    *,
    device: str,
    kinds: Sequence[str] = ("B",),
    recompute: bool = False,
    copies: int = 1,
) -> Reading:
    """The judge's reading of the plan with the largest microbatches of which `copies` fit into what is free.

    Raises ValueError where none do.
    """
    cluster, needed = make_cluster(device), 0
    free = cluster.devices[0].memory_bytes - (cluster.devices[0].reserved_bytes or 0)
    for size in sorted(case.sizes, reverse=True):
        problem = Problem(
            profile=profile_at(profile, size),
            cluster=cluster,
            num_microbatches=MICROBATCHES,
            options=Options(recompute=recompute, recompute_in_turn=recompute),
        )
        reading = Reading(problem, make_plan(problem, kinds=kinds, recompute=recompute))
        needed = copies * reading.memory["d0"].peak_bytes
        if needed <= free:
            return reading
    raise ValueError(f"needs {needed / 2**30:.1f} GiB at the smallest size, {free / 2**30:.1f} are free")


def execute(case: Case, reading: Reading, *, device: str) -> dict[str, Any]:
    """What an iteration of the plan takes and holds, beside what the judge says of both."""
    execution = make_execution(case, reading, device=device)
    begun_ns = time_launch(device)
    taken = [execution.step(number) for number in range(STEPS)][STEPS // 2 :]
    found = compare_times(reading, taken)
    found["launch_ns"] = [begun_ns, time_launch(device)]
    memory, peak = execution.memory.read(), reading.memory["d0"].peak_bytes
    found |= {
        "microbatch_size": reading.profile.microbatch_size,
        "predicted_peak_bytes": peak,
        "peak_bytes": None if memory is None else memory.peak_bytes,
        "losses": [each.loss for each in taken],
    }
    if memory is not None and memory.reserved_bytes is not None:
        found |= {
            "rest_bytes": memory.rest_bytes,
            "reserved_bytes": memory.reserved_bytes,
            "allocator_reserve_bytes": memory.reserved_bytes - memory.peak_bytes,
        }
    return found


LAUNCHES = 500
"""Fewer than wait for the device at most (1,024)."""


def time_launch(device: str) -> int:
    """How long the host takes to ask for one more small kernel, in ns; the median of five rows of them."""
    value, times = torch.zeros(1, device=device), []
    for _ in range(5):
        if device == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter_ns()
        for _ in range(LAUNCHES):
            value.add_(1)
        times.append((time.perf_counter_ns() - started) // LAUNCHES)
    return median(times)


def compare_times(reading: Reading, taken: Sequence[Iteration]) -> dict[str, Any]:
    """Planned and executed nanoseconds, in the sum, of every action's kind, and of whole iterations."""
    cells = [f"{action.stage}{action.kind}" for action in reading.plan.schedule["d0"]]
    clocked = clocked_actions(reading)
    spans = play_alone(cells, clocked)
    lengths: dict[str, list[int]] = defaultdict(list)
    for cell, span in zip(cells, spans, strict=True):
        lengths[cell].append(span.end - span.begin)
    planned = {cell: round(median(each)) for cell, each in lengths.items()}
    executed: dict[str, list[int]] = defaultdict(list)
    for each in taken:
        for name, start, end in each.actions:
            executed[name.rstrip("0123456789")].append(end - start)
    actions = {cell: [planned[cell], median(executed[cell])] for cell in dict.fromkeys(cells)}
    return {
        "predicted_ns": sum(planned[cell] for cell in cells),
        "executed_ns": sum(actions[cell][1] for cell in cells),
        "one_clock_ns": sum(clocked[cell].card for cell in cells),
        "predicted_iteration_ns": spans[-1].end + reading.closing_ns,
        "iteration_ns": median(each.times.end_ns - each.times.begin_ns for each in taken),
        "actions": actions,
    }


def make_execution(case: Case, reading: Reading, *, device: str) -> Execution:
    """The plan about to run, with weights and optimizer made."""
    training = make_training(case, samples=num_samples(reading))
    preparation = prepare(reading.plan, training)
    return Execution(preparation, device=torch.device(device), check_every=0)


def num_samples(reading: Reading) -> int:
    """Of an iteration."""
    return (reading.profile.microbatch_size or 1) * reading.problem.num_microbatches


def make_training(case: Case, *, samples: int) -> Training:
    """The model in a type, with as many samples as an iteration takes, the same in all: making them is not timed."""
    model, kind = load_model(case.model).model, getattr(torch, DTYPES[case.dtype])

    inputs, target = model.batch(0)
    taken = cast(tuple(take_samples(tensor, samples) for tensor in as_tuple(inputs)), kind)
    (aim,) = cast((take_samples(target, samples),), kind)

    return Training(
        layers={name: lambda make=make: make().to(kind) for name, make in model.layers.items()},
        loss=model.loss,
        batch=lambda _: (taken, aim),
        optimizer=model.optimizer,
        inputs=model.inputs,
        tied=model.tied,
        loss_is_sum=model.loss_is_sum,
    )
