"""`python -m benchmarks.gpu`: profiles, one-device plans against their prediction, reserve, clocks and TF/s of the GPU.

Runs on a machine that reaches nothing, from the folder that `make gpu-bundle` makes: it wants torch, and of this
project neither solvers nor compiler. Every finding is a file in `-o`; what is there is not done again. After
`--minutes` the present one is given up (a profile keeps the layers that it has), so that the same command goes on.
`--device cpu --quick` tries all of it on tiny shapes.
"""

import argparse
import itertools
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any

import torch
from torch import distributed

from benchmarks.gpu_models import MODELS, TINY
from planner.actions import Action
from planner.execute.deferred import make_deferring
from planner.execute.execution import Execution
from planner.execute.preparation import prepare
from planner.execute.training import Training
from planner.judge.reading import Reading
from planner.plan import Plan, Stage
from planner.problem import Problem
from profiles.cluster import Cluster, Device
from profiles.load import load_workload
from profiles.measure.assemble import Origin, make_profile
from profiles.measure.devices import device_name
from profiles.measure.load_model import load_model
from profiles.measure.materialise import cast
from profiles.measure.measure_layers import MeasuringEffort, Survey, describe_machine, survey_model
from profiles.measure.model import Model, as_tuple, take_samples
from profiles.measure.record import open_journal
from profiles.model_profile import ModelProfile
from profiles.workload import Workload, dump_workload

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


def main(arguments: Sequence[str] | None = None) -> int:
    """0: everything is there; 3: the time is up, the same command goes on; 2: there is no such device."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny shapes, few repetitions")
    parser.add_argument("--minutes", type=float, default=8.0, help="the present finding is given up then")
    parser.add_argument("--begin-until", type=float, help="no new finding is begun after so many minutes")
    parser.add_argument("-o", "--output", type=Path, default=Path("out/gpu"))
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print(
            "gpu: torch finds no CUDA device; run it where there is one, or with --device cpu --quick", file=sys.stderr
        )
        return 2
    options.output.mkdir(parents=True, exist_ok=True)
    now, is_complete = time.monotonic(), True
    until = now + 60 * options.minutes
    last_begin = until if options.begin_until is None else now + 60 * options.begin_until
    with tempfile.TemporaryDirectory() as folder:
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if options.device == "cuda" else "gloo",
            init_method=f"file://{folder}/rendezvous", rank=0, world_size=1,
        )  # fmt: skip
        try:
            for name, find in findings(options):
                target = options.output / name
                if target.exists():
                    continue
                if time.monotonic() > min(until, last_begin):
                    is_complete = False
                    break
                with given_up_at(until):
                    write(target, find, device=options.device)
        except DeadlineError:
            is_complete = False
        finally:
            distributed.destroy_process_group()
    (options.output / "table.md").write_text(make_table(options.output), encoding="utf-8")
    return 0 if is_complete else 3


class DeadlineError(BaseException):
    """The time is up; no finding is to take it for a failure of its own."""


@contextmanager
def given_up_at(until: float) -> Iterator[None]:
    """Raise `DeadlineError` in the block when the monotonic clock says so, between two steps of the interpreter."""

    def stop(_: int, __: FrameType | None) -> None:
        raise DeadlineError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(0.001, until - time.monotonic()))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def findings(options: argparse.Namespace) -> list[tuple[str, Callable[[], str]]]:
    """File and what gives its text; most telling first, since the time may end."""
    device = options.device
    cases = [
        Case(name=name, model=model, sizes=tuple(map(int, sizes.split(","))), dtype=dtype)
        for dtype in DTYPES
        for name, (model, sizes) in (TINY if options.quick else MODELS).items()
    ]
    found: list[tuple[str, Callable[[], str]]] = [("device.json", lambda: dump(look_at(device, quick=options.quick)))]
    for case in cases:
        profile = options.output / f"{case.label}.profile.json"
        found.append((profile.name, lambda case=case: measure(case, options)))
        for recompute in (False, True):
            name = f"{case.label}.{'recomputed' if recompute else 'kept'}.json"
            found.append(
                (name, lambda case=case, profile=profile, recompute=recompute: dump(
                    execute(case, load_workload(profile).profile, device=device, recompute=recompute)
                ))
            )  # fmt: skip
    return found


def write(target: Path, find: Callable[[], str], *, device: str) -> None:
    """A finding that fails is one, too: its file says why."""
    try:
        text = find()
    except (ValueError, RuntimeError, OSError) as error:
        text = dump({"failed": str(error).splitlines()[0] if str(error) else type(error).__name__})
    if device == "cuda":
        torch.cuda.empty_cache()
    partial = target.with_suffix(".writing")
    partial.write_text(text, encoding="utf-8")
    partial.replace(target)
    print(target, flush=True)


def dump(found: Any) -> str:
    """As JSON."""
    return json.dumps(found, indent=1) + "\n"


def look_at(device: str, *, quick: bool) -> dict[str, Any]:
    """What the device is, its clocks before and after ten products, and the TF/s of a product per type."""
    size, before = 64 if quick else 8192, read_clocks(device)
    rates = {name: multiply(size, dtype=getattr(torch, dtype), device=device) for name, dtype in DTYPES.items()}
    found: dict[str, Any] = {"device": device_name(device), "torch": torch.__version__, "product_size": size}
    found |= {"clocks_before": before, "clocks_after": read_clocks(device), "teraflops": rates}
    if device == "cuda":
        free, total = torch.cuda.mem_get_info()
        found |= {"total_bytes": total, "context_bytes": total - free - torch.cuda.memory_reserved()}
    return found


def multiply(size: int, *, dtype: torch.dtype, device: str) -> float:
    """The median of ten products of square matrices, in 1e12 operations per second; a product is 2 n^3."""
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    times = []
    for _ in range(13):
        settle(device)
        started = time.perf_counter_ns()
        a @ b
        settle(device)
        times.append(time.perf_counter_ns() - started)
    return round(2 * size**3 / median(times[3:]) / 1e3, 3)


def settle(device: str) -> None:
    """Until everything that was asked of the device is done."""
    if device == "cuda":
        torch.cuda.synchronize()


def read_clocks(device: str) -> str:
    """What nvidia-smi says of clocks, their limits, temperature and what holds them back; empty on a CPU."""
    if device != "cuda":
        return ""
    asked = "clocks.sm,clocks.max.sm,clocks.mem,temperature.gpu,power.draw,clocks_event_reasons.active"
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={asked}", "--format=csv"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except OSError as error:
        return f"not read: {error}"
    return done.stdout.strip()


def measure(case: Case, options: argparse.Namespace) -> str:
    """The workload document of a model on one device of this kind; broken off, it goes on from its journal."""
    device = options.device
    effort = MeasuringEffort(repetitions=3 if options.quick else 10, seconds=0.2 if options.quick else 2.0)
    survey = Survey(
        microbatch_sizes=case.sizes, device=device, device_type=device_name(device), dtype=DTYPES[case.dtype],
        clock="wall", effort=effort,
    )  # fmt: skip
    journal = options.output / f"{case.label}.journal"
    found = survey_model(load_model(case.model).model, survey, defer=make_deferring, journal=open_journal(journal))
    profile = make_profile(
        case.label,
        takes=found.takes,
        records=found.records,
        asked=survey,
        origin=Origin(model=case.model, machine=describe_machine(survey), notes=(f"in {DTYPES[case.dtype]}",)),
    )
    journal.unlink(missing_ok=True)
    return dump_workload(Workload(profile=profile, cluster=make_cluster(device), num_microbatches=MICROBATCHES))


def make_cluster(device: str) -> Cluster:
    """The device alone, with all of its memory."""
    total = torch.cuda.mem_get_info()[1] if device == "cuda" else 2**40
    return Cluster(
        name="one device", devices=(Device(name="d0", type=device_name(device), memory_bytes=total),), links=()
    )


def make_plan(problem: Problem, *, recompute: bool) -> Plan:
    """The layers in `CHUNKS` stages on the one device, each microbatch through all of them and back at once."""
    names = [layer.name for layer in problem.profile.layers]
    cuts = [len(names) * part // CHUNKS for part in range(CHUNKS + 1)]
    stages = tuple(
        Stage(layers=tuple(names[a:b]), replicas=(("d0",),), recompute=recompute) for a, b in itertools.pairwise(cuts)
    )
    actions = [
        Action(kind, stage, microbatch)
        for microbatch in range(problem.num_microbatches)
        for kind, order in (("F", range(CHUNKS)), ("B", reversed(range(CHUNKS))))
        for stage in order
    ]
    return Plan(problem=problem.reference(), stages=stages, schedule={"d0": tuple(actions)})


def execute(case: Case, profile: ModelProfile, *, device: str, recompute: bool) -> dict[str, Any]:
    """What an iteration of the plan takes and holds, beside what the judge's costs make of the profile."""
    problem = Problem(profile=profile, cluster=make_cluster(device), num_microbatches=MICROBATCHES)
    plan = make_plan(problem, recompute=recompute)
    reading = Reading(problem, plan)
    planned = {
        f"{stage}{kind}": ns
        for stage, row in enumerate(reading.own_durations)
        for kind, ns in zip("FIWB", row, strict=True)
    }
    training = make_training(load_model(case.model).model, samples=case.sizes[0] * MICROBATCHES, dtype=case.dtype)
    execution = Execution(prepare(plan, training), device=torch.device(device), check_every=0)
    taken = [execution.step(number) for number in range(STEPS)][STEPS // 2 :]
    per_action = {
        cell: median(end - start for each in taken for name, start, end in each.actions if name.startswith(cell))
        for stage in range(CHUNKS)
        for cell in (f"{stage}F", f"{stage}B")
    }
    memory = execution.memory.read()
    found: dict[str, Any] = {
        "case": case.label,
        "recompute": recompute,
        "predicted_ns": MICROBATCHES * sum(planned[cell] for cell in per_action),
        "executed_ns": MICROBATCHES * sum(per_action.values()),
        "iteration_ns": median(each.duration_ns for each in taken),
        "actions": {cell: [planned[cell], per_action[cell]] for cell in per_action},
        "predicted_peak_bytes": reading.memory["d0"].peak_bytes,
        "peak_bytes": None if memory is None else memory.peak_bytes,
        "losses": [each.loss for each in taken],
    }
    if memory is not None and memory.reserved_bytes is not None:
        found |= {
            "reserved_bytes": memory.reserved_bytes,
            "allocator_reserve_bytes": memory.reserved_bytes - memory.peak_bytes,
        }
    return found


def make_training(model: Model, *, samples: int, dtype: str) -> Training:
    """The model in a type, with as many samples as an iteration takes."""
    kind = getattr(torch, DTYPES[dtype])

    def batch(number: int) -> Any:
        inputs, target = model.batch(number)
        taken = cast(tuple(take_samples(tensor, samples) for tensor in as_tuple(inputs)), kind)
        (aim,) = cast((take_samples(target, samples),), kind)
        return taken, aim

    return Training(
        layers={name: lambda make=make: make().to(kind) for name, make in model.layers.items()},
        loss=model.loss,
        batch=batch,
        optimizer=model.optimizer,
        inputs=model.inputs,
        tied=model.tied,
        loss_is_sum=model.loss_is_sum,
    )


def make_table(folder: Path) -> str:
    """All executed plans as Markdown, in the order of their names."""
    lines = [
        "| case | recomputed | time: executed / predicted | peak: executed / predicted | allocator keeps |",
        "|---|---|---|---|---|",
    ]
    for path in sorted([*folder.glob("*.kept.json"), *folder.glob("*.recomputed.json")]):
        found = json.loads(path.read_text(encoding="utf-8"))
        if "failed" in found:
            lines.append(f"| {path.name} | {found['failed']} | | | |")
            continue
        peak = (
            "" if found["peak_bytes"] is None else f"{found['peak_bytes'] / max(1, found['predicted_peak_bytes']):.3f}"
        )
        time_ratio = found["executed_ns"] / max(1, found["predicted_ns"])
        keeps = f"{found['allocator_reserve_bytes'] / 2**20:.0f} MiB" if "allocator_reserve_bytes" in found else ""
        lines.append(f"| {found['case']} | {found['recompute']} | {time_ratio:.3f} | {peak} | {keeps} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
