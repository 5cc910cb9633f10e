"""One profiling run: what was typed becomes a survey, its records a workload; progress is told, and kept on disk."""

import importlib.util
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from api.failures import InputError
from api.formatting import render_ms
from api.inputs import reading
from api.progress import MIN_PAUSE_S, ReportStyle
from planner.execute.model.not_compared import tell_not_compared
from profiles.cluster import Cluster
from profiles.documents.canonical_json import to_plain
from profiles.documents.whole_file import write_whole
from profiles.doubled_sizes import doublings, own_size
from profiles.field_rules import MAX_NAME_LENGTH
from profiles.model_profile import Layer, ProbeRun
from profiles.workload import Workload

if TYPE_CHECKING:
    from profiles.measure.host_processes import HostProcesses
    from profiles.measure.links import LinkTables
    from profiles.measure.load_model import LoadedModel
    from profiles.measure.measure_layers import Findings, Survey
    from profiles.measure.record import Journal

MAX_SIZES = 16
"""Most microbatch sizes, or widths, of one run."""

WIDE = 0.1
"""Figures that are farther from a short run of their own are taken again. Measured: of 16 profiles on a virtual machine
that nothing else used, the farthest was 6.4 % off; beside other programs 47 and 62 %."""

_LONG_S = 10.0
"""After so many seconds it is told that a model is still being loaded; what is refused before stands first."""

EXECUTOR = ("planner.execute.run.preparation", "planner.execute.run.execution")
"""What processes of the executor import."""

_SETTLING = "planner.execute.run.host_process:settle_on_host"
"""What they do first on a host."""

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRequest:
    """A profiling request, with the names and the text of the command line."""

    model: str
    num_microbatches: int | None = None
    microbatch_size: str | None = None
    """Comma-separated."""
    global_batch: int | None = None
    """Samples per iteration that the workload states instead of a number of microbatches."""
    widths: str = "1"
    """Comma-separated; threads."""
    group_widths: str | None = None
    """Comma-separated; processes."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    device_type: str | None = None
    devices: int | None = None
    memory: float | None = None
    """GiB of a device."""
    dtype: Literal["fp32", "bf16", "fp16"] | None = None
    estimate: str | None = None
    repetitions: int = 10
    seconds: float = 20.0
    attempts: int = 3
    """Most times that all is timed."""
    no_recompute: bool = False
    each_layer: bool = False
    alone: bool = False
    no_split: bool = False
    no_links: bool = False
    links: str | None = None
    """File of link tables: read if it exists, otherwise written."""
    journal: str | None = None
    output: str | None = None

    @property
    def leaves_sizes_open(self) -> bool:
        """Whether nobody says how the batch is cut: `plan` decides, and sizes are measured by doublings."""
        return self.num_microbatches is None and self.microbatch_size is None


@dataclass(frozen=True, slots=True, kw_only=True)
class _ProfilingResult:
    """A measured workload, and how far its figures can be trusted."""

    workload: Workload
    num_estimated: int
    """Layers whose times were not measured."""
    worst_spread: float
    elapsed_s: float


def require_torch() -> None:
    """Raise InputError that says how to get torch if it is missing."""
    if importlib.util.find_spec("torch") is None:
        raise InputError("profiling needs torch, which is not installed; run: pip install 'pipeline-planner[torch]'")


def run_profile(wanted: ProfileRequest, *, console: Console, style: ReportStyle) -> _ProfilingResult:
    """Measure what is wanted; raises InputError where it cannot be measured."""
    require_torch()
    from planner.execute.run.kept_memory import keep_freed_memory, uncached_environment
    from profiles.measure.host_processes import HostProcesses
    from profiles.measure.record import open_journal, spreads_that_count

    started = time.monotonic()
    with reading(), ProfilingReporter(console, style) as reporter:
        if wanted.num_microbatches is not None and not 1 <= wanted.num_microbatches <= 2**30:
            raise InputError(f"-m {wanted.num_microbatches} is out of range; give 1 to {2**30:,} microbatches")
        with _telling_if_long(reporter, "loading the model", label=wanted.model):
            loaded = _load(wanted)
        survey, count = _plan_survey(wanted, loaded)
        _require_groups(wanted, loaded, survey=survey, num_microbatches=count)
        given = _given_cluster(wanted, survey)  # before anything is measured: it may be refused
        journal_path = _journal_path(wanted)
        journal = open_journal(journal_path)
        prepare, variables = "", dict[str, str]()
        if survey.device == "cpu":
            prepare, variables = _SETTLING, uncached_environment()
            keep_freed_memory()  # layers that are timed alone are timed here
        starter = HostProcesses(also=EXECUTOR, prepare=prepare, environment=variables)
        with starter as host:
            run = _ProfilingRun(
                wanted=wanted, loaded=loaded, survey=survey, num_microbatches=count, reporter=reporter, host=host
            )
            machine = cache(lambda: given or run.measure_cluster(journal))

            def measure(records: "Journal") -> "tuple[Findings, Workload]":
                findings = run.time_layers(records)
                made = run.assemble(findings, cluster=machine())
                if findings.conditions == "busy" and loaded.kind == "training":
                    made = run.add_overheads(made)
                return findings, made

            findings, workload = _measure_again_where_wide(
                measure, journal, attempts=wanted.attempts, reporter=reporter
            )
            workload = run.add_groups(workload)
            if wanted.leaves_sizes_open:
                workload = _leave_sizes_open(workload, findings, sizes=survey.microbatch_sizes)
            elif wanted.global_batch is not None:
                workload = workload.with_batch(wanted.global_batch, None)
    records = findings.records
    spreads = spreads_that_count(timing for record in records.values() for timing in record.timings.values())
    return _ProfilingResult(
        workload=workload,
        num_estimated=len({name for (name, _, _), record in records.items() if not record.is_measured}),
        worst_spread=max(spreads, default=0.0),
        elapsed_s=time.monotonic() - started,
    )


@contextmanager
def _telling_if_long(reporter: "ProfilingReporter", what: str, *, label: str) -> Iterator[None]:
    told = list[bool]()

    def tell() -> None:
        told.append(True)
        reporter.hear(what, 0, total=1, label=label)

    timer = threading.Timer(_LONG_S, tell)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
    if told:
        reporter.hear(what, 1, total=1, label=label)


def _measure_again_where_wide(
    measure: "Callable[[Journal], tuple[Findings, Workload]]",
    journal: "Journal",
    *,
    attempts: int,
    reporter: "ProfilingReporter",
) -> "tuple[Findings, Workload]":
    """What agrees with a short run of its own; of so many attempts that do not, the one that is closest to it.

    Where they disagree, the host was not equally fast meanwhile, or something else was at work on it.
    """
    from profiles.measure.record import Journal

    def spread_of(tried: "tuple[Findings, Workload]") -> float:
        probe = tried[1].profile.probe
        return 0.0 if probe is None else abs(probe.error)

    found = [measure(journal)]
    while len(found) < attempts and spread_of(found[-1]) > WIDE:
        reporter.begin_again(f"a short run and these figures are {100 * spread_of(found[-1]):.0f} % apart")
        found.append(measure(Journal()))
    findings, workload = min(found, key=spread_of)
    if len(found) > 1:
        note = f"Timed {len(found)} times, until a short run agreed or the attempts were used up: this is the closest."
        provenance = f"{workload.profile.provenance} {note}"
        workload = replace(workload, profile=replace(workload.profile, provenance=provenance))
    return findings, workload


def forget_journal(wanted: ProfileRequest) -> None:
    """Remove the journal of a run whose document is written, unless it was asked for by name."""
    path = _journal_path(wanted)
    if path is not None and wanted.journal is None:
        path.unlink(missing_ok=True)


def _journal_path(wanted: ProfileRequest) -> Path | None:
    if wanted.journal is not None:
        return Path(wanted.journal)
    return None if wanted.output in (None, "-") else Path(f"{wanted.output}.partial")


def _numbers(option: str, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > MAX_SIZES or not all(p.isascii() and p.isdigit() and len(p) < 10 and int(p) > 0 for p in parts):
        raise InputError(f"{option} {text[:60]!r} is not a list of at most {MAX_SIZES} whole numbers; write e.g. 4,2,1")
    numbers = tuple(int(part) for part in parts)
    if len(set(numbers)) < len(numbers):
        raise InputError(f"{option} {text[:60]!r} has a number twice; give each once")
    return numbers


def _load(wanted: ProfileRequest) -> "LoadedModel":
    from planner.execute.training import training_of
    from profiles.measure.background_load import COMPARES
    from profiles.measure.load_model import load_model

    is_set = COMPARES in os.environ
    if wanted.estimate is not None and not is_set:
        os.environ[COMPARES] = "never"
    try:
        return load_model(wanted.model, cut=training_of)
    finally:
        if not is_set:
            os.environ.pop(COMPARES, None)


def _plan_survey(wanted: ProfileRequest, loaded: "LoadedModel") -> "tuple[Survey, int | None]":
    from planner.execute.model.cut.whole_model import BatchReader
    from profiles.measure.devices import device_name
    from profiles.measure.measure_layers import Survey
    from profiles.measure.segment import MeasuringEffort

    sizes, count = _sizes(wanted, loaded)
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
        dtype=_dtype(wanted, loaded),
        effort=MeasuringEffort(repetitions=wanted.repetitions, seconds=wanted.seconds),
        recomputes=not wanted.no_recompute,
        each_layer=wanted.each_layer,
        busy_processes=_num_busy(wanted, device=device, widths=widths),
        memory_bytes=None if wanted.memory is None else round(wanted.memory * 2**30),
        sheet=sheet if sheet is None or wanted.device_type is None else replace(sheet, name=wanted.device_type),
        share=max(sizes) // _num_devices(wanted) if wanted.leaves_sizes_open else None,
    )
    if isinstance(loaded.model.batch, BatchReader):
        loaded.model.batch.try_sizes([[sizes[:1]]])
    return survey, count


def _num_busy(wanted: ProfileRequest, *, device: str, widths: tuple[int, ...]) -> int:
    """The devices of this host that will be at work at once; accelerators do not share what layers are timed on."""
    from profiles.measure.devices import count_devices

    if wanted.alone or wanted.estimate is not None or device != "cpu" or widths != (1,):
        return 1
    return min(wanted.devices or MAX_SIZES, count_devices(device))


def _dtype(wanted: ProfileRequest, loaded: "LoadedModel") -> str | None:
    """Data sheets state bf16 rates, so an estimate of a family is one in bf16 unless another type is asked for."""
    if wanted.dtype is not None:
        return DTYPES[wanted.dtype]
    return "bfloat16" if wanted.estimate is not None and loaded.kind == "family" else None


def _sizes(wanted: ProfileRequest, loaded: "LoadedModel") -> tuple[tuple[int, ...], int | None]:
    """The microbatch sizes, the profile's own first, and the number of microbatches of that size."""
    from profiles.measure.model import num_samples

    samples, count, whole = num_samples(loaded.model), wanted.num_microbatches, wanted.global_batch
    if loaded.kind == "training" and whole not in (None, samples):
        raise InputError(
            f"--global-batch {whole}: an iteration of the Training has {samples} samples; give that, or nothing"
        )
    if wanted.microbatch_size is not None:
        sizes = _numbers("--microbatch-size", wanted.microbatch_size)
        _require_batch(wanted, sizes)
        return sizes, count or (samples // sizes[0] if samples % sizes[0] == 0 else None)
    if count is None:
        return _doublings(whole or samples, num_devices=_num_devices(wanted))
    _require_batch(wanted, (1,))
    if samples % count:
        raise InputError(
            f"-m {count}: the batch's {samples} samples do not divide into {count} equal microbatches; change -m or "
            "the batch"
        )
    return shares(samples // count, num_devices=_num_devices(wanted)), count


def _doublings(batch: int, *, num_devices: int) -> tuple[tuple[int, ...], int]:
    """Of a global batch that nobody cut: the size for bytes and for a short pipeline first, and how many there are."""
    sizes = doublings(batch)
    own = own_size(sizes, num_devices=num_devices)
    return (own, *(size for size in sizes if size != own)), batch // own


def _require_batch(wanted: ProfileRequest, sizes: Sequence[int]) -> None:
    """A global batch is cut into microbatches of sizes that are measured."""
    whole = wanted.global_batch
    if whole is None:
        return
    if wanted.num_microbatches is not None:
        raise InputError(f"--global-batch {whole}: `plan` then decides the number of microbatches; leave -m out")
    if not any(whole % size == 0 for size in sizes):
        known = ", ".join(map(str, sizes)) or "none"
        raise InputError(
            f"--global-batch {whole}: no size of -b divides it ({known}); give sizes that divide it, e.g. -b 1,2,4"
        )


def shares(size: int, *, num_devices: int) -> tuple[int, ...]:
    """The sizes that a replica on so many devices may get of a microbatch, falling: whole samples, so r divides it.

    Of more than `MAX_SIZES` the smallest is kept, and between them those of the fewest replicas: costs in between
    are interpolated.
    """
    sizes = [size // r for r in range(1, min(size, num_devices) + 1) if size % r == 0]
    return tuple(sizes if len(sizes) <= MAX_SIZES else [*sizes[: MAX_SIZES - 1], sizes[-1]])


def _num_devices(wanted: ProfileRequest) -> int:
    """Devices that a plan may use: those asked for, or those of this host."""
    from profiles.measure.devices import count_devices

    return wanted.devices or (1 if wanted.estimate is not None else count_devices(_device(wanted)))


def _device(wanted: ProfileRequest) -> str:
    from profiles.measure.devices import has_cuda

    if wanted.device == "cuda" and not has_cuda():
        raise InputError("--device cuda: torch finds no CUDA device here; use --device cpu, or --estimate A100")
    return "cuda" if wanted.device == "cuda" or (wanted.device == "auto" and has_cuda()) else "cpu"


def _sheet(name: str | None) -> Any:
    if name is None:
        return None
    from profiles.measure.estimate import SHEETS

    if name not in SHEETS:
        raise InputError(f"--estimate {name!r}: is not known; give one of {', '.join(SHEETS)}")
    return SHEETS[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class _ProfilingRun:
    """What one run measures, who hears of it, and who starts its processes."""

    wanted: ProfileRequest
    loaded: "LoadedModel"
    survey: "Survey"
    num_microbatches: int | None
    reporter: "ProfilingReporter"
    host: "HostProcesses"

    def time_layers(self, journal: "Journal") -> "Findings":
        """I and W are split by the executor's own hand: that is what will run."""
        from planner.execute.model.layer_alone import make_deferring
        from planner.execute.training import training_of
        from profiles.measure.background_load import BusyProcesses, BusyWork
        from profiles.measure.measure_layers import survey_model

        work = BusyWork(
            model=self.wanted.model,
            device=self.survey.device,
            dtype=self.survey.dtype,
            recomputes=self.survey.recomputes,
            defer=_name_of(make_deferring),
            cut=_name_of(training_of),
        )
        with BusyProcesses(work, count=self.survey.busy_processes, host=self.host) as processes:

            def crowd(takes: Mapping[str, tuple[str, ...]], rounds: Mapping[int, int]) -> Any:
                label = f"{self.survey.busy_processes} processes at work, microbatches of {', '.join(map(str, rounds))}"
                self.reporter.hear("rounds", 0, total=1, label=label)
                found = processes.time(takes, rounds)
                self.reporter.hear("rounds", 1, total=1, label=label)
                return found

            return survey_model(
                self.loaded.model,
                self.survey,
                defer=make_deferring,
                journal=journal,
                hear=lambda step: self.reporter.hear(
                    "layers", step.done, total=step.total, label=f"{step.label} {step.how}"
                ),
                crowd=crowd,
            )

    def measure_cluster(self, journal: "Journal") -> Cluster | None:
        """This machine; None where nothing is known of it."""
        from profiles.measure.links import dump_links, infer_cluster

        if self.wanted.no_links or self.survey.sheet is not None:
            return None
        tables = self._tables(journal)
        if self.wanted.links is not None:
            write_whole(Path(self.wanted.links), dump_links(tables))
        return infer_cluster(tables, name=tables.places[0].host)

    def _tables(self, journal: "Journal") -> "LinkTables":
        from profiles.documents.validation import validate
        from profiles.measure.devices import count_devices
        from profiles.measure.link_run import DeviceKind, measure_links
        from profiles.measure.links import LinkTables

        survey = self.survey
        count = self.wanted.devices or count_devices(survey.device)
        key = f"links {count} {survey.device} {survey.device_type} {survey.memory_bytes}"
        if key not in journal.tables:
            tables = measure_links(
                count,
                host=self.host,
                kind=DeviceKind(
                    device=survey.device, device_type=survey.device_type, memory_bytes=survey.memory_bytes or 0
                ),
                hear=lambda done, total: self.reporter.hear("links", done, total=total, label="pairs of devices"),
            )
            journal.put_table(key, to_plain(tables))
        return validate(LinkTables, journal.tables[key], source="journal")

    def assemble(self, findings: "Findings", *, cluster: Cluster | None) -> Workload:
        """The workload of what was timed, with the conditions under which it was."""
        from profiles.measure.assemble import Origin, make_profile

        dtype = findings.survey.dtype
        notes: tuple[str, ...] = () if dtype is None else (f"weights and activations in {dtype}",)
        if findings.conditions == "busy":
            notes += (f"layers timed by {findings.survey.busy_processes} processes at once",)
        if left_out := self.loaded.model.not_compared:
            notes += (tell_not_compared(left_out),)
        profile = make_profile(
            self.wanted.model[:MAX_NAME_LENGTH],
            takes=findings.takes,
            records=findings.records,
            asked=findings.survey,
            origin=Origin(
                model=self.wanted.model,
                machine=findings.machine,
                notes=notes,
                conditions=findings.conditions if findings.survey.sheet is None else None,
            ),
            is_split=not self.wanted.no_split,
            tied=findings.tied,
        )
        options: dict[str, object] = {}
        if self.loaded.kind == "training":
            profile = replace(profile, bucket_bytes=_bucket_bytes(), gradient_as_bucket_view=True)
        if self.loaded.kind == "training" and self.num_microbatches is not None:
            # what planner.execute can run on torch 2.13 without its own messages
            options = {"uneven_replication": False}
        if self.wanted.no_split:
            options["split_backward"] = False
        reason = findings.cut_dependence or (_UNEVEN if findings.uneven_loss else "")
        if reason and self.loaded.kind == "training":
            options["max_replicas"] = 1
            profile = replace(profile, provenance=f"{profile.provenance} {_ALONE}: {reason}.")
        return Workload(profile=profile, cluster=cluster, num_microbatches=self.num_microbatches, options=options)

    def add_overheads(self, workload: Workload) -> Workload:
        """With what actions and messages cost in the real executor; where that fails, the provenance says why."""
        from api.executor_probe import probe, with_overheads

        label = "short runs by the executor: a pipeline, replicas, one large microbatch, sharded"
        self.reporter.hear("executor", 0, total=1, label=label)
        found, reason = probe(workload, model=self.wanted.model, host=self.host)
        self.reporter.hear("executor", 1, total=1, label=label)
        if found is not None:  # who states the memory of a device states what plans may fill
            stated = self.wanted.memory is not None
            return with_overheads(workload, replace(found, reserved_bytes=None, reduction_bytes=0) if stated else found)
        note = f"Overhead of actions and messages not measured: {reason}."
        return replace(workload, profile=replace(workload.profile, provenance=f"{workload.profile.provenance} {note}"))

    def add_groups(self, workload: Workload) -> Workload:
        """With what layers cost on groups of processes; raises InputError that says why they could not be measured."""
        from api.executor_probe import time_group

        for width in () if self.wanted.group_widths is None else _numbers("--group-widths", self.wanted.group_widths):
            self.reporter.hear("groups", 0, total=1, label=f"{width} processes together")
            workload, reason = time_group(
                workload,
                model=self.wanted.model,
                width=width,
                sizes=self.survey.microbatch_sizes,
                iterations=max(1, self.wanted.repetitions // 2),
                host=self.host,
            )
            self.reporter.hear("groups", 1, total=1, label=f"{width} processes together")
            if reason:
                raise InputError(f"--group-widths {width}: {reason}")
        return workload


def _name_of(function: Any) -> str:
    return f"{function.__module__}:{function.__name__}"


def _given_cluster(wanted: ProfileRequest, survey: "Survey") -> Cluster | None:
    """The machine whose tables `--links` names, if that file is there."""
    from profiles.measure.links import infer_cluster, load_links

    if wanted.links is None or not Path(wanted.links).exists():
        return None
    return infer_cluster(load_links(Path(wanted.links)), name=survey.device_type)


def _leave_sizes_open(workload: Workload, findings: "Findings", *, sizes: tuple[int, ...]) -> Workload:
    """The workload of a global batch that `plan` cuts into any of the sizes, whether measured or on a line.

    The batch stays whole where other sizes train otherwise, and on one device where its samples do.
    """
    profile, batch = workload.profile, max(sizes)
    measured, notes = sorted(findings.survey.microbatch_sizes), list[str]()
    if findings.interpolated:
        notes.append(
            f"Microbatches of {', '.join(map(str, findings.interpolated))} samples are interpolated: measured times "
            f"between {measured[0]} and {measured[-1]} are within {100 * findings.off_line:.1f} % of a line."
        )
    if measured[-1] < batch:
        notes.append(f"More than {measured[-1]} samples in a microbatch were not measured: costs grow in proportion.")
        profile = replace(profile, scaling="linear")
    reason = "its loss is no mean of samples" if findings.uneven_loss else findings.cut_dependence
    if findings.batch_norm and not reason:
        reason = f"{findings.batch_norm} takes statistics of a microbatch"
    if reason:
        notes.append(f"{_PINNED} {batch}: {reason}; plan -b N pins another size.")
    chosen = (batch,) if reason else tuple(sorted(sizes))
    whole = replace(workload, profile=replace(profile, provenance=" ".join([profile.provenance, *notes])))
    return whole.with_batch(batch, None if list(chosen) == measured and not reason else chosen)


_PINNED, _ALONE = "Pinned to one microbatch of", "No replicas"
"""How sentences begin where smaller microbatches, or parts of them, would train otherwise."""

_UNEVEN = (
    "the loss of several samples is no mean of theirs, so microbatches train as one process that adds up their "
    "gradients, not as their batch; let it add up and count its tokens (loss_is_sum, num_tokens)"
)


def _bucket_bytes() -> int:
    """What the executor holds twice while it reduces gradients of stages that shard the optimizer's state."""
    from planner.execute.parallel.reduction import BUCKET_BYTES

    return BUCKET_BYTES


def _require_groups(
    wanted: ProfileRequest, loaded: "LoadedModel", *, survey: "Survey", num_microbatches: int | None
) -> None:
    """What the executor can run as a group of processes of this host."""
    if wanted.group_widths is None:
        return
    given = f"--group-widths {wanted.group_widths}"
    if 1 in _numbers("--group-widths", wanted.group_widths):
        raise InputError(f"{given}: width 1 is always measured; give only widths above 1")
    if loaded.kind != "training" or survey.device != "cpu" or survey.sheet is not None or survey.dtype is not None:
        raise InputError(f"{given}: needs a Training on processors without --dtype; leave it out")
    samples = (num_microbatches or 0) * survey.microbatch_sizes[0]
    if not samples or any(samples % size for size in survey.microbatch_sizes):
        raise InputError(f"{given}: an iteration of {samples} samples is not a multiple of every size of -b; give -m")


class ProfilingReporter:
    """Tells how far the run has come, in its voice."""

    def __init__(self, console: Console, style: ReportStyle) -> None:
        self.console, self.style = console, style
        self._bar: Progress | None = None
        self._tasks: dict[str, Any] = {}
        self._last_line_at = 0.0
        self._told: set[tuple[str, int]] = set()

    def __enter__(self) -> "ProfilingReporter":
        if self.style == "live":
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=self.console, transient=True)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin_again(self, why: str) -> None:
        """Announce that all layers are timed once more, and why."""
        self._told.clear()
        if self.style == "json":
            self.console.file.write(json.dumps({"event": "again", "why": why}, ensure_ascii=False) + "\n")
        elif self.style != "quiet":
            self.console.print(f"timed again: {why}", highlight=False, soft_wrap=True)

    def hear(self, what: str, done: int, *, total: int, label: str) -> None:
        """Count one more measurement as finished."""
        if self._bar is not None:
            if what not in self._tasks:
                self._tasks[what] = self._bar.add_task(what, total=total)
            self._bar.update(self._tasks[what], completed=done, description=f"{what}: {label}")
        elif self.style != "quiet" and (what, done) not in self._told and self._is_time(done in (0, total)):
            self._told.add((what, done))
            event = {"event": "progress", "what": what, "done": done, "total": total, "label": label}
            line = json.dumps(event, ensure_ascii=False) if self.style == "json" else f"{what} {done}/{total}  {label}"
            self.console.file.write(line + "\n")
            self.console.file.flush()

    def _is_time(self, is_end: bool) -> bool:
        is_time = is_end or time.monotonic() - self._last_line_at >= MIN_PAUSE_S
        if is_time:
            self._last_line_at = time.monotonic()
        return is_time


def summarise_profile(outcome: _ProfilingResult, *, output: str | None) -> dict[str, Any]:
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
        "global_batch_size": outcome.workload.global_batch_size,
        **sums,
        "optimizer_ns": profile.optimizer_ns + sum(x.optimizer_ns(x.costs[0].device_type) for x in profile.layers),
        "parameter_bytes": sum(layer.parameter_bytes for layer in profile.layers),
        "stash_bytes": sum(layer.stash_bytes for layer in profile.layers),
        "worst_spread": outcome.worst_spread,
        "probe": None if profile.probe is None else to_plain(profile.probe),
        "devices": 0 if cluster is None else len(cluster.devices),
        "links": 0 if cluster is None else len(cluster.links),
        "elapsed_s": round(outcome.elapsed_s, 3),
        "file": output,
    }


def _warn_of_unsplit(layers: Sequence[Layer]) -> str:
    modules = ", ".join(dict.fromkeys(layer.unsplit_module for layer in layers))
    names = ", ".join(layer.name for layer in layers[:5]) + (f" and {len(layers) - 5} more" if len(layers) > 5 else "")
    return f"  {names}: cannot be split into I and W, W is part of I ({modules})"


def _told_sizes(workload: Workload) -> str:
    """The size of microbatches, and of a global batch those among which `plan` decides."""
    own, whole = workload.profile.microbatch_size, workload.global_batch_size
    if whole is None:
        return str(own)
    sizes = sorted({cost.microbatch_size or own or 1 for layer in workload.profile.layers for cost in layer.costs})
    chosen = whole if workload.microbatch_sizes == (whole,) else own
    return f"{chosen} (costs at {', '.join(map(str, sizes))}; global batch of {whole})"


def _told_cut(provenance: str) -> list[str]:
    """Why only one size, or one replica, is left, in words of the provenance."""
    found = re.findall(rf"({_ALONE}: |{_PINNED} )(.*?)(?=\.(?: [A-Z]|$))", provenance)
    return [f"  {first.lower()}{rest}" for first, rest in found]


def _told_probe(probe: ProbeRun | None) -> list[str]:
    if probe is None:
        return []
    return [
        f"  a short run took {render_ms(probe.measured_ns)} ms; these figures predict {render_ms(probe.predicted_ns)} "
        f"({100 * probe.error:+.1f} %)"
    ]


def render_summary(outcome: _ProfilingResult, *, output: str | None) -> str:
    """The closing words for people."""
    said = summarise_profile(outcome, output=output)
    times = "  ".join(
        f"{letter} {render_ms(said[field])}"
        for letter, field in zip(
            "FIWB", ("forward_ns", "input_grad_ns", "weight_grad_ns", "fused_backward_ns"), strict=True
        )
    )
    estimated = f", {said['estimated_layers']} of them ESTIMATED" if said["estimated_layers"] else ""
    unsplit = [layer for layer in outcome.workload.profile.layers if not layer.splittable]
    machine = f"{said['devices']} devices, {said['links']} links" if said["devices"] else "no cluster: add one to plan"
    lines = [
        f"{said['profile']}: {said['layers']} layers{estimated}; microbatches of {_told_sizes(outcome.workload)}",
        f"  per microbatch of {said['microbatch_size']} (ms)  {times}",
        f"  weights {said['parameter_bytes'] / 2**20:.1f} MiB, stash {said['stash_bytes'] / 2**20:.1f} MiB, "
        f"repetitions of a layer differ by up to {100 * said['worst_spread']:.0f} %",
        f"  {machine}",
        *_told_probe(outcome.workload.profile.probe),
        *_told_cut(outcome.workload.profile.provenance),
        *([_warn_of_unsplit(unsplit)] if unsplit else []),
    ]
    return "\n".join([*lines, f"  written to {output}"] if output not in (None, "-") else lines)
