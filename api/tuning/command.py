"""`pipeplan tune`: what was typed becomes a tuning run; progress is told, and Ctrl+C keeps the best so far."""

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from api.failures import InputError
from api.inputs import read_workload, reading, require_limits
from api.interrupts import Interrupts
from api.profiling import ProfileRequest, forget_journal, require_torch, run_profile
from api.progress import ReportStyle
from api.tuning.tuning_loop import TuningLimits, TuningLoop, TuningResult
from api.tuning.workbench import HostWorkbench
from profiles.documents.whole_file import write_whole
from profiles.workload import Workload, dump_workload


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningRequest:
    """A tuning request, with the names and the text of the command line."""

    model: str
    devices: int | None
    num_microbatches: int | None
    workload: str | None
    """A document to begin with; None: profile first."""
    keep: str | None
    """Where the workload is written once it is profiled; the calibrated one goes there in the end."""
    time_limit_s: float
    runs: int
    steps: int | None
    within_percent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tuned:
    """Result and files of a tuning run."""

    result: TuningResult
    limits: TuningLimits
    elapsed_s: float


def run_tuning(request: TuningRequest, *, console: Console, style: ReportStyle) -> _Tuned:
    """Profile if need be, then plan and run; raises InputError where that cannot be done."""
    started = time.monotonic()
    require_torch()
    require_limits(time_limit_s=request.time_limit_s)
    limits = TuningLimits(time_limit_s=request.time_limit_s, runs=request.runs, within=request.within_percent / 100)
    _require_one_source(request)
    _require_runnable(request.model)
    workload = (
        _profiled(request, console=console, style=style)
        if request.workload is None
        else read_workload(request.workload)
    )
    with (
        tempfile.TemporaryDirectory(prefix="pipeplan-tune-") as folder,
        Interrupts(on_first=lambda: None) as interrupts,
        _hearing(console, style) as hear,
    ):
        bench = HostWorkbench(
            request.model,
            folder=Path(folder),
            started=started,
            time_limit_s=limits.time_limit_s,
            steps=request.steps,
            should_stop=interrupts.is_asked_to_stop,
            hear=hear,
        )
        result = TuningLoop(workload, bench, limits=limits, hear=hear).follow()
    _require_a_run(result, model=request.model)
    return _Tuned(result=result, limits=limits, elapsed_s=time.monotonic() - started)


@contextmanager
def _hearing(console: Console, style: ReportStyle) -> Iterator[Callable[[str], None]]:
    """Says a line of progress in the voice of the run; on a terminal the newest takes the place of the one before."""
    if style == "live":
        with console.status("") as status:
            yield status.update
        return

    def hear(line: str) -> None:
        if style != "quiet":
            event = {"event": "progress", "what": "tune", "label": line}
            console.file.write((json.dumps(event, ensure_ascii=False) if style == "json" else line) + "\n")
            console.file.flush()

    yield hear


def _require_runnable(model: str) -> None:
    from planner.execute.training import training_of
    from profiles.measure.load_model import load_model

    with reading():
        kind = load_model(model, cut=training_of).kind
    if kind != "training":
        raise InputError(
            f"{model}: can be profiled, but not run; give module:factory of a planner.execute.training.Training "
            "(docs/how-to/run-it.md)"
        )


def _require_one_source(request: TuningRequest) -> None:
    for option, value in (("--devices", request.devices), ("-m", request.num_microbatches)):
        if request.workload is not None and value is not None:
            raise InputError(
                f"{option} {value}: --workload {request.workload} states that already; leave one of them out"
            )
    if request.devices is not None and request.devices < 2:
        raise InputError(f"--devices {request.devices}: one device leaves nothing to plan; give 2 or more")


def beside(output: str | None) -> str | None:
    """Where the calibrated workload goes: `plan.workload.json` beside `plan.json`."""
    return None if output in (None, "-") else str(Path(str(output)).with_suffix(".workload.json"))


def _profiled(request: TuningRequest, *, console: Console, style: ReportStyle) -> Workload:
    wanted = ProfileRequest(
        model=request.model, num_microbatches=request.num_microbatches, devices=request.devices, output=request.keep
    )
    workload = run_profile(wanted, console=console, style=style).workload
    if request.keep is not None:
        write_whole(Path(request.keep), dump_workload(workload))
    forget_journal(wanted)
    return workload


def _require_a_run(result: TuningResult, *, model: str) -> None:
    """Raise InputError if every plan that was tried failed."""
    if not any(trial.runs for trial in result.trials):
        failures = [trial.failure for trial in result.trials if trial.failure]
        if failures:
            raise InputError(f"{model}: no plan could be run ({failures[0]}); run one with torchrun to see more")
