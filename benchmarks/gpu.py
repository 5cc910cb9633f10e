"""`python -m benchmarks.gpu`: profiles, one-device plans against their prediction, reserve, clocks and TF/s of the GPU.

Runs on a machine that reaches nothing, from the folder that `make gpu-bundle` makes: it wants torch, and of this
project neither solvers nor compiler. Every finding is a file in `-o`; what is there is not done again. After
`--minutes` the present one is given up (a profile keeps the layers that it has), so that the same command continues.
`--device cpu --quick` tries all of it on tiny shapes.
"""

import argparse
import gc
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any

import torch
from torch import distributed

from benchmarks.gpu_models import MODELS, PACED, TINY
from benchmarks.gpu_orders import race, settle
from benchmarks.gpu_runs import DTYPES, MICROBATCHES, Case, execute, fit, make_cluster, time_launch
from planner.document import parse_plan
from planner.execute.model.layer_alone import make_deferring
from planner.judge.reading import Reading
from planner.problem import Options, Problem
from profiles.load import load_workload
from profiles.measure.assemble import Origin, make_profile
from profiles.measure.devices import device_name
from profiles.measure.load_model import load_model
from profiles.measure.measure_layers import MeasuringEffort, Survey, describe_machine, survey_model
from profiles.measure.record import open_journal
from profiles.microbatch_sizes import profile_at
from profiles.model_profile import ModelProfile
from profiles.workload import Workload, dump_workload


def main(arguments: Sequence[str] | None = None) -> int:
    """0: everything is there; 3: the time is up, the same command continues; 2: there is no such device."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny shapes, few repetitions")
    parser.add_argument("--minutes", type=float, default=8.0, help="the present finding is given up then")
    parser.add_argument("--begin-until", type=float, help="no new finding is begun after so many minutes")
    parser.add_argument("--only", action="append", help="these models alone, by their names; repeatable")
    parser.add_argument(
        "--plans", type=Path, help="folder of plans to run: NAME-DTYPE.WORD.plan.json, made for NAME-DTYPE.profile.json"
    )
    parser.add_argument(
        "--pace", action="store_true", help="five minutes: two short models on two clocks, bf16, one size"
    )
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
    found: list[tuple[str, Callable[[], str]]] = [("device.json", lambda: dump(look_at(device, quick=options.quick)))]
    for dtype in list(DTYPES)[: 1 if options.pace else None]:
        for case in cases(options, dtype):
            found += findings_of(case, options)
    return found


def cases(options: argparse.Namespace, dtype: str) -> list[Case]:
    """All models that were asked for."""
    wanted, num_sizes = (options.only or PACED, 1) if options.pace else (options.only, None)
    return [
        Case(name=name, model=model, sizes=tuple(map(int, sizes.split(",")))[:num_sizes], dtype=dtype)
        for name, (model, sizes) in (TINY if options.quick else MODELS).items()
        if not wanted or name in wanted
    ]


def findings_of(case: Case, options: argparse.Namespace) -> Iterator[tuple[str, Callable[[], str]]]:
    """The profile, plans against it, those that were given, and orders against each other."""
    device, path = options.device, options.output / f"{case.label}.profile.json"
    yield path.name, lambda: measure(case, options)

    def run(recompute: bool) -> str:
        return dump(execute(case, fit(case, read(path), device=device, recompute=recompute), device=device))

    for plan in sorted(options.plans.glob(f"{case.label}.*.plan.json")) if options.plans else ():
        name, workload = plan.name.replace(".plan.json", ".json"), options.plans / path.name
        yield name, lambda plan=plan, workload=workload: run_plan(case, read(path), workload, plan, device=device)
    for word, recompute in (("kept", False), ("recomputed", True)):
        yield f"{case.label}.{word}.json", lambda recompute=recompute: run(recompute)
    if not options.pace:
        yield f"{case.label}.orders.json", lambda: dump(race(case, read(path), device=device))


def read(path: Path) -> ModelProfile:
    """The profile of a workload."""
    return load_workload(path).profile


def run_plan(case: Case, profile: ModelProfile, workload: Path, plan: Path, *, device: str) -> str:
    """What a plan that was made elsewhere for the workload takes and holds here, beside what the profile that was taken
    here foresees of it.
    """
    asked = load_workload(workload)
    made = parse_plan(plan.read_bytes(), source=str(plan))
    problem = Problem(
        profile=profile_at(profile, asked.profile.microbatch_size or 1),
        cluster=asked.cluster,
        num_microbatches=asked.num_microbatches,
        options=Options(**made.problem.options),
    )
    return dump(execute(case, Reading(problem, made), device=device))


def write(target: Path, find: Callable[[], str], *, device: str) -> None:
    """A finding that fails is one, too: its file says why."""
    try:
        text = find()
    except (ValueError, RuntimeError, OSError) as error:
        text = dump({"failed": str(error).splitlines()[0] if str(error) else type(error).__name__})
    gc.collect()
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
    """The workload document of a model on one device of this kind; broken off, it continues from its journal."""
    device = options.device
    seconds = 0.2 if options.quick else 0.5 if options.pace else 2.0
    effort = MeasuringEffort(repetitions=3 if options.quick else 10, seconds=seconds)
    survey = Survey(
        microbatch_sizes=case.sizes,
        device=device,
        device_type=device_name(device),
        dtype=DTYPES[case.dtype],
        effort=effort,
    )
    journal = options.output / f"{case.label}.journal"
    begun_ns = time_launch(device)
    found = survey_model(load_model(case.model).model, survey, defer=make_deferring, journal=open_journal(journal))
    pace = f"the host asked for a small kernel in {begun_ns} ns before, in {time_launch(device)} after"
    profile = make_profile(
        case.label,
        takes=found.takes,
        records=found.records,
        asked=survey,
        origin=Origin(model=case.model, machine=describe_machine(survey), notes=(f"in {DTYPES[case.dtype]}", pace)),
    )
    journal.unlink(missing_ok=True)
    return dump_workload(Workload(profile=profile, cluster=make_cluster(device), num_microbatches=MICROBATCHES))


def make_table(folder: Path) -> str:
    """All executed plans and all orders as Markdown, by their names."""
    plans = [
        "| plan | samples per microbatch | actions, ms | executed / predicted | by the card alone | iteration "
        "| peak, GiB | executed / predicted | allocator keeps, MiB | us per launch |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    orders = ["| model | samples | order | ms | faster than the plain loop | losses differ by |"]
    orders += ["| --- | --- | --- | --- | --- | --- |"]
    for path in sorted(folder.glob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        name = path.name.removesuffix(".json")
        if "failed" in found:
            plans.append(f"| {name} | {found['failed']} | | | | | | | | |")
        elif "executed_ns" in found:
            plans.append(plan_row(name, found))
        elif "seconds" in found:
            orders += order_rows(found)
    return "\n".join([*plans, "", *orders]) + "\n"


def plan_row(name: str, found: dict[str, Any]) -> str:
    """A plan beside its prediction."""
    peak, planned = found["peak_bytes"], found["predicted_peak_bytes"]
    cells = [
        name,
        found["microbatch_size"],
        f"{found['executed_ns'] / 1e6:.2f}",
        f"{found['executed_ns'] / max(1, found['predicted_ns']):.3f}",
        f"{found['executed_ns'] / max(1, found['one_clock_ns']):.3f}" if "one_clock_ns" in found else "",
        f"{found['iteration_ns'] / max(1, found['predicted_iteration_ns']):.3f}",
        "" if peak is None else f"{peak / 2**30:.2f}",
        "" if peak is None else f"{peak / max(1, planned):.3f}",
        f"{found['allocator_reserve_bytes'] / 2**20:.0f}" if "allocator_reserve_bytes" in found else "",
        " to ".join(f"{ns / 1e3:.1f}" for ns in found.get("launch_ns", ())),
    ]
    return f"| {' | '.join(map(str, cells))} |"


def order_rows(found: dict[str, Any]) -> Iterator[str]:
    """A race."""
    for name, seconds in found["seconds"].items():
        faster, plus_minus = found["faster_than_plain_loop"][name]
        differ = found["largest_difference_of_losses"][name]
        yield (
            f"| {found['case']} | {found['microbatch_size']} | {name} | {1e3 * median(seconds):.2f} "
            f"| {100 * faster:.1f} ± {100 * plus_minus:.1f} % | {differ:.1e} |"
        )


if __name__ == "__main__":
    sys.exit(main())
