"""One profiling run: what was typed becomes a survey, its records a workload; progress is told, and kept on disk."""

import importlib.util
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from api.failures import InputError
from api.figures import render_ms
from api.progress import MIN_PAUSE_S, Voice
from api.questions import reading
from profiles.cluster import Cluster
from profiles.document import to_plain
from profiles.model_profile import MAX_NAME_LENGTH
from profiles.workload import Workload

if TYPE_CHECKING:
    from profiles.measure.intake import Intake
    from profiles.measure.links import LinkTables
    from profiles.measure.record import Clock, Journal
    from profiles.measure.survey import Findings, Survey

MAX_SIZES = 16
"""Most microbatch sizes, or widths, of one run."""

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What was typed."""

    model: str
    num_microbatches: int | None = None
    microbatch_size: str | None = None
    """Comma-separated."""
    widths: str = "1"
    """Comma-separated."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    device_type: str | None = None
    devices: int | None = None
    memory: float | None = None
    """GiB of a device."""
    dtype: Literal["fp32", "bf16", "fp16"] | None = None
    estimate: str | None = None
    clock: "Clock" = "thread"
    repetitions: int = 10
    seconds: float = 20.0
    no_recompute: bool = False
    each_layer: bool = False
    no_links: bool = False
    links: str | None = None
    """File of link tables: read if it exists, otherwise written."""
    journal: str | None = None
    output: str | None = None

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> "Wanted":
        """From the parameters of the command, which have the same names."""
        return cls(**{item.name: parameters[item.name] for item in fields(cls)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run made."""

    workload: Workload
    num_estimated: int
    """Layers whose times were not measured."""
    worst_spread: float
    elapsed_s: float


def require_torch() -> None:
    """Raise InputError that says how to get torch if it is missing."""
    if importlib.util.find_spec("torch") is None:
        raise InputError("profiling needs torch, which is not installed; run: pip install 'pipeline-planner[torch]'")


def run_profile(wanted: Wanted, *, console: Console, voice: Voice) -> Outcome:
    """Measure what is wanted; raises InputError where it cannot be measured."""
    require_torch()
    from profiles.measure.record import open_journal

    started = time.monotonic()
    with reading():
        _require_sane(wanted)
        intake = _load(wanted)
        survey, count = _plan_survey(wanted, intake)
        journal_path = _journal_path(wanted)
        journal = open_journal(journal_path)
        with Telling(console, voice) as telling:
            findings = _survey(intake, survey, journal=journal, telling=telling)
            cluster = _cluster(wanted, survey, journal=journal, telling=telling)
        workload = _assemble(wanted, intake, findings=findings, cluster=cluster, num_microbatches=count)
    records = findings.records
    return Outcome(
        workload=workload,
        num_estimated=len({name for (name, _, _), record in records.items() if not record.is_measured}),
        worst_spread=max((t.spread for record in records.values() for t in record.timings.values()), default=0.0),
        elapsed_s=time.monotonic() - started,
    )


def forget_journal(wanted: Wanted) -> None:
    """Remove the journal of a run whose document is written, unless it was asked for by name."""
    path = _journal_path(wanted)
    if path is not None and wanted.journal is None:
        path.unlink(missing_ok=True)


def _journal_path(wanted: Wanted) -> Path | None:
    if wanted.journal is not None:
        return Path(wanted.journal)
    return None if wanted.output in (None, "-") else Path(f"{wanted.output}.partial")


def _require_sane(wanted: Wanted) -> None:
    if wanted.num_microbatches is not None and not 1 <= wanted.num_microbatches <= 2**30:
        raise InputError(f"-m {wanted.num_microbatches} is out of range; give 1 to {2**30:,} microbatches")
    if not 1 <= wanted.repetitions <= 10_000:
        raise InputError(f"--repetitions {wanted.repetitions} is out of range; give 1 to 10,000")
    if not 0 <= wanted.seconds <= 86_400:
        raise InputError(f"--seconds {wanted.seconds} is out of range; give 0 to 86,400")
    if wanted.devices is not None and not 1 <= wanted.devices <= 4096:
        raise InputError(f"--devices {wanted.devices} is out of range; give 1 to 4,096")
    if wanted.memory is not None and not 0 < wanted.memory <= 2**20:
        raise InputError(f"--memory {wanted.memory} is out of range; give GiB per device, above 0")


def _numbers(option: str, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > MAX_SIZES or not all(p.isascii() and p.isdigit() and len(p) < 10 and int(p) > 0 for p in parts):
        raise InputError(f"{option} {text[:60]!r} is no list of at most {MAX_SIZES} whole numbers, e.g. 4,2,1")
    numbers = tuple(int(part) for part in parts)
    if len(set(numbers)) < len(numbers):
        raise InputError(f"{option} {text[:60]!r} has a number twice; give each once")
    return numbers


def _load(wanted: Wanted) -> "Intake":
    from profiles.measure.intake import load_model

    return load_model(wanted.model)


def _plan_survey(wanted: Wanted, intake: "Intake") -> "tuple[Survey, int | None]":
    from profiles.measure.devices import device_name
    from profiles.measure.segment import Effort
    from profiles.measure.survey import Survey

    sizes, count = _sizes(wanted, intake)
    device = _device(wanted)
    sheet = _sheet(wanted.estimate)
    widths = _numbers("--widths", wanted.widths)
    if widths != (1,) and device != "cpu":
        raise InputError(f"--widths {wanted.widths}: threads of a CPU only; tensor parallelism is not measured")
    survey = Survey(
        microbatch_sizes=sizes,
        widths=widths,
        device=device,
        device_type=wanted.device_type or (device_name(device) if sheet is None else sheet.name),
        dtype=_dtype(wanted, intake),
        clock=wanted.clock,
        effort=Effort(repetitions=wanted.repetitions, seconds=wanted.seconds),
        recomputes=not wanted.no_recompute,
        each_layer=wanted.each_layer,
        memory_bytes=None if wanted.memory is None else round(wanted.memory * 2**30),
        sheet=sheet if sheet is None or wanted.device_type is None else replace(sheet, name=wanted.device_type),
    )
    return survey, count


def _dtype(wanted: Wanted, intake: "Intake") -> str | None:
    """Data sheets state bf16 rates, so an estimate of a family is one in bf16 unless another type is asked for."""
    if wanted.dtype is not None:
        return DTYPES[wanted.dtype]
    return "bfloat16" if wanted.estimate is not None and intake.kind == "family" else None


def _sizes(wanted: Wanted, intake: "Intake") -> tuple[tuple[int, ...], int | None]:
    """The microbatch sizes, the profile's own first, and the number of microbatches."""
    from profiles.measure.model import num_samples

    samples, count = num_samples(intake.model), wanted.num_microbatches
    if wanted.microbatch_size is not None:
        sizes = _numbers("--microbatch-size", wanted.microbatch_size)
        return sizes, count or (samples // sizes[0] if samples % sizes[0] == 0 else None)
    if count is None:
        raise InputError(
            f"how large is a microbatch? add -m N (the batch has {samples} samples) or --microbatch-size N[,N...]"
        )
    if samples % count:
        raise InputError(f"-m {count}: the batch's {samples} samples cannot be cut into {count} equal microbatches")
    return (samples // count,), count


def _device(wanted: Wanted) -> str:
    from profiles.measure.devices import has_cuda

    if wanted.device == "cuda" and not has_cuda():
        raise InputError("--device cuda: torch finds no CUDA device here; use --device cpu, or --estimate A100")
    return "cuda" if wanted.device == "cuda" or (wanted.device == "auto" and has_cuda()) else "cpu"


def _sheet(name: str | None) -> Any:
    if name is None:
        return None
    from profiles.measure.estimate import SHEETS

    if name not in SHEETS:
        raise InputError(f"--estimate {name!r}: no such data sheet; there are {', '.join(SHEETS)}")
    return SHEETS[name]


def _survey(intake: "Intake", survey: "Survey", *, journal: "Journal", telling: "Telling") -> "Findings":
    """I and W are split by the executor's own hand: that is what will run."""
    from planner.execute.deferred import WeightGradStore, defer_weight_grads
    from profiles.measure.survey import survey_model

    def defer(module: Any) -> WeightGradStore:
        store = WeightGradStore()
        defer_weight_grads(module, store)
        return store

    return survey_model(
        intake.model,
        survey,
        defer=defer,
        journal=journal,
        hear=lambda step: telling.hear("layers", step.done, total=step.total, label=f"{step.label} {step.how}"),
    )


def _cluster(wanted: Wanted, survey: "Survey", *, journal: "Journal", telling: "Telling") -> Cluster | None:
    """The machine at hand, or the one whose tables are given; None where nothing is known of it."""
    from profiles.measure.links import dump_links, infer_cluster, load_links

    if wanted.links is not None and Path(wanted.links).exists():
        return infer_cluster(load_links(Path(wanted.links)), name=survey.device_type)
    if wanted.no_links or survey.sheet is not None:
        return None
    tables = _tables(wanted, survey, journal=journal, telling=telling)
    if wanted.links is not None:
        Path(wanted.links).write_text(dump_links(tables), encoding="utf-8")
    return infer_cluster(tables, name=tables.places[0].host)


def _tables(wanted: Wanted, survey: "Survey", *, journal: "Journal", telling: "Telling") -> "LinkTables":
    from profiles.measure.devices import count_devices
    from profiles.measure.link_run import measure_links
    from profiles.measure.links import LinkTables
    from profiles.validation import validate

    count = wanted.devices or count_devices(survey.device)
    key = f"links {count} {survey.device} {survey.device_type} {survey.memory_bytes}"
    if key not in journal.tables:
        tables = measure_links(
            count,
            device=survey.device,
            device_type=survey.device_type,
            memory_bytes=survey.memory_bytes or 0,
            hear=lambda done, total: telling.hear("links", done, total=total, label="pairs"),
        )
        journal.put_table(key, to_plain(tables))
    return validate(LinkTables, journal.tables[key], source="journal")


def _assemble(
    wanted: Wanted, intake: "Intake", *, findings: "Findings", cluster: Cluster | None, num_microbatches: int | None
) -> Workload:
    from profiles.measure.assemble import Origin, make_profile

    dtype = findings.survey.dtype
    notes = () if dtype is None else (f"weights and activations in {dtype}",)
    profile = make_profile(
        wanted.model[:MAX_NAME_LENGTH],
        takes=findings.takes,
        records=findings.records,
        asked=findings.survey,
        origin=Origin(model=wanted.model, machine=findings.machine, notes=notes),
        num_devices=len(cluster.devices) if cluster is not None else wanted.devices or 1,
    )
    options: dict[str, object] = {}
    if intake.kind == "training" and num_microbatches is not None:
        # what planner.execute can run on torch 2.13: its runtime holds receive buffers for all microbatches
        options = {"uneven_replication": False, "receive_buffers": num_microbatches}
    return Workload(profile=profile, cluster=cluster, num_microbatches=num_microbatches, options=options)


class Telling:
    """Tells how far the run has come, in its voice."""

    def __init__(self, console: Console, voice: Voice) -> None:
        self.console, self.voice = console, voice
        self._bar: Progress | None = None
        self._tasks: dict[str, Any] = {}
        self._last_line_at = 0.0
        self._told: set[tuple[str, int]] = set()

    def __enter__(self) -> "Telling":
        if self.voice == "live":
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=self.console, transient=True)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def hear(self, what: str, done: int, *, total: int, label: str) -> None:
        """One more is done."""
        if self._bar is not None:
            if what not in self._tasks:
                self._tasks[what] = self._bar.add_task(what, total=total)
            self._bar.update(self._tasks[what], completed=done, description=f"{what}: {label}")
        elif self.voice != "quiet" and (what, done) not in self._told and self._is_time(done == total):
            self._told.add((what, done))
            event = {"event": "progress", "what": what, "done": done, "total": total, "label": label}
            line = json.dumps(event, ensure_ascii=False) if self.voice == "json" else f"{what} {done}/{total}  {label}"
            self.console.file.write(line + "\n")
            self.console.file.flush()

    def _is_time(self, is_last: bool) -> bool:
        is_time = is_last or time.monotonic() - self._last_line_at >= MIN_PAUSE_S
        if is_time:
            self._last_line_at = time.monotonic()
        return is_time


def summarise_profile(outcome: Outcome, *, output: str | None) -> dict[str, Any]:
    """The closing words as data."""
    profile, cluster = outcome.workload.profile, outcome.workload.cluster
    sums = {
        name: sum(getattr(layer.costs[0], name) for layer in profile.layers)
        for name in ("forward_ns", "input_grad_ns", "weight_grad_ns", "fused_backward_ns", "recompute_ns")
    }
    return {
        "event": "done",
        "profile": profile.name,
        "layers": len(profile.layers),
        "estimated_layers": outcome.num_estimated,
        "microbatch_size": profile.microbatch_size,
        "num_microbatches": outcome.workload.num_microbatches,
        **sums,
        "optimizer_ns": profile.optimizer_ns,
        "parameter_bytes": sum(layer.parameter_bytes for layer in profile.layers),
        "stash_bytes": sum(layer.stash_bytes for layer in profile.layers),
        "worst_spread": outcome.worst_spread,
        "devices": 0 if cluster is None else len(cluster.devices),
        "links": 0 if cluster is None else len(cluster.links),
        "elapsed_s": round(outcome.elapsed_s, 3),
        "file": output,
    }


def render_summary(outcome: Outcome, *, output: str | None) -> str:
    """The closing words for people."""
    said = summarise_profile(outcome, output=output)
    times = "  ".join(
        f"{letter} {render_ms(said[field])}"
        for letter, field in zip(
            "FIWB", ("forward_ns", "input_grad_ns", "weight_grad_ns", "fused_backward_ns"), strict=True
        )
    )
    estimated = f", {said['estimated_layers']} of them ESTIMATED" if said["estimated_layers"] else ""
    machine = f"{said['devices']} devices, {said['links']} links" if said["devices"] else "no cluster: add one to plan"
    lines = [
        f"{said['profile']}: {said['layers']} layers{estimated}; microbatches of {said['microbatch_size']}",
        f"  per microbatch (ms)  {times}",
        f"  weights {said['parameter_bytes'] / 2**20:.1f} MiB, stash {said['stash_bytes'] / 2**20:.1f} MiB, "
        f"widest spread {100 * said['worst_spread']:.0f} %",
        f"  {machine}",
    ]
    return "\n".join([*lines, f"  written to {output}"] if output not in (None, "-") else lines)
