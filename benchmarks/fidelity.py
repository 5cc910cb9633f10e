"""Is what is predicted what happens? `python -m benchmarks.fidelity [--quick] [--minutes 25] [--models A,B] -o FILE`.

Measured the user's way: README's commands, each in fresh processes, profile before any plan exists. Models are those
of `benchmarks.transformers_models` (extra `models`) and of `examples`.
"""

import math
import os
import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from api.tuning.short_run import ShortRun
from api.tuning.tuning_candidates import key_of
from api.tuning.tuning_report import describe_stages
from benchmarks.host_pace import host_pace
from benchmarks.report import Table, make_parser, ms, percent
from benchmarks.user_flow import (
    Flow,
    FlowError,
    FlowModel,
    balanced_cut,
    find_baseline,
    make_layout,
    read_peaks,
    spread_of,
    without_evidence,
)
from planner.document import parse_plan
from planner.errors import PipeplanError
from planner.plan import Plan
from planner.planning import Limits, make_plan
from planner.problem import Problem
from planner.simulation.simulate import simulate
from profiles.model_profile import ProbeRun
from profiles.workload import Workload

PLANNING_S = 5.0
"""README's time limit."""

Kind = Literal["own", "given layout", "torch"]

MEDIAN, WORST, OWN_MEDIAN = 0.03, 0.10, 0.04
"""Targets: error of the iteration's time over all plans, of any plan, and over the planner's own plans."""

MEMORY_MEDIAN, MEMORY_WORST, TOO_LITTLE = 0.05, 0.15, 0.03
"""Targets: error of peak memory, and how much less than measured may ever be predicted."""

NEAR, PREFERRED = 0.02, 0.95
"""The preferred plan is the fastest, or within so much of it, in so many of the models."""

STEADY, NUM_STEADY, NUM_PROFILES = 0.05, 2, 3
"""A run counts if the host was as fast before and after it as beside the profile, within so much; so many of those are
wanted of every plan; and a model is profiled at most so often, until the host was equally fast before and after."""

SIGNIFICANT = 0.05
"""A sign is common to the errors if a fair coin would give one as lopsided less often."""

LIBRARY = ("gpt2", "llama", "bert", "t5", "vit", "resnet18")
MODELS = (
    FlowModel(name="small GPT (examples)", factory="examples.small_gpt:make_training"),
    FlowModel(name="residual network (examples)", factory="examples.resnet:make_training"),
    *(FlowModel(name=name, factory=f"benchmarks.transformers_models:{name}") for name in LIBRARY),
    FlowModel(
        name="paced layers, 4 processes (emulation)",
        factory="benchmarks.paced_model:make_training",
        num_devices=4,
        switches=("--clock", "wall"),  # the default clock counts a thread's own time, and these layers sleep
        is_emulated=True,
    ),
)

UNSEEN = tuple(FlowModel(name=name, factory=f"benchmarks.transformers_models:{name}") for name in ("qwen3", "whisper"))
"""Models that nothing was tuned on: in the table if they are named (`--models qwen3,whisper`)."""


@dataclass(kw_only=True)
class Entry:
    """What is run, and what was measured for it so far."""

    name: str
    kind: Kind
    path: Path | None = None
    """The plan's document."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """For torch's own."""
    predicted_ns: int = 0
    """For torch's own: what it is guessed to take, for the number of iterations; it is not shown."""
    peak_bytes: Mapping[str, int] = field(default_factory=dict)
    stages: str = ""
    is_replicated: bool = False
    runs: list[ShortRun] = field(default_factory=list)
    failure: str = ""
    paces: list[float] = field(default_factory=list)
    """Of every run: how long a fixed piece of work took before or after it, whichever is farther from what it took
    beside the profile, over that."""

    @property
    def num_steady(self) -> int:
        """How many of the runs count."""
        return sum(abs(pace - 1) <= STEADY for pace in self.paces)

    @property
    def is_steady(self) -> bool:
        """The host was as fast in some run as beside the profile."""
        return self.num_steady > 0

    @property
    def counted(self) -> list[ShortRun]:
        """The runs that count; all of them where the host was never as fast as beside the profile, or nobody looked."""
        found = [run for run, pace in zip(self.runs, self.paces, strict=False) if abs(pace - 1) <= STEADY]
        return found or self.runs

    @property
    def measured_ns(self) -> int | None:
        return round(statistics.median(run.median_ns for run in self.counted)) if self.runs else None

    @property
    def spread(self) -> float:
        """Quartiles of all iterations apart, over the median."""
        return spread_of([duration for run in self.counted for duration in run.durations_ns])

    @property
    def error(self) -> float | None:
        """(predicted - measured) / measured; None for torch's own."""
        measured = self.measured_ns
        return None if measured is None or self.kind == "torch" else (self.predicted_ns - measured) / measured

    @property
    def pace(self) -> float | None:
        """How much slower the host was for the runs that count than for the profile; None where nobody looked."""
        steady = [pace for pace in self.paces if abs(pace - 1) <= STEADY]
        return statistics.median(steady or self.paces) if self.paces else None

    @property
    def paced_error(self) -> float | None:
        """The error of a prediction that knows how fast the host would be."""
        measured, pace = self.measured_ns, self.pace
        if measured is None or pace is None or self.kind == "torch":
            return None
        return (self.predicted_ns * pace - measured) / measured

    def memories(self) -> list[tuple[int, int]]:
        """Predicted and measured peak of every device whose runs say what it held: the most of any run."""
        measured: dict[str, int] = {}
        for run in self.runs:
            for device, peak in read_peaks(run).items():
                measured[device] = max(peak, measured.get(device, 1))
        return [(self.peak_bytes[device], peak) for device, peak in measured.items()]

    def memory(self) -> tuple[int, int] | None:
        """Those of the device where they differ most; None where runs do not say."""
        return max(self.memories(), key=lambda pair: abs(pair[0] / pair[1] - 1), default=None)


OWN: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("planner", ()),
    ("planner, no replication", ("--no-replication",)),
    ("planner, whole backwards", ("--no-split-backward",)),
    ("planner, one stage per device", ("--max-stages-per-device", "1")),
    ("planner, three stages per device", ("--max-stages-per-device", "3")),
)
"""README's second command; the first is what the planner prefers, the others ask for less or more."""

NUM_OWN = 3
"""Different plans of the planner's own per model."""


def make_own(flow: Flow, *, count: int) -> Iterator[Entry]:
    """So many different plans of the planner's own, if there are as many."""
    known: set[str] = set()
    for name, switches in OWN:
        if len(known) == count:
            break
        entry = _entry(name, "own", lambda n=name, s=switches: flow.plan(n, *s, time_limit_s=PLANNING_S))
        key = entry.failure if entry.path is None else key_of(parse_plan(entry.path.read_bytes(), source=name))
        if key not in known:
            known.add(key)
            yield entry


def make_entries(flow: Flow, workload: Workload, *, is_quick: bool) -> Iterator[Entry]:
    """The planner's own plans, given layouts, and torch's own."""
    yield from make_own(flow, count=1 if is_quick else NUM_OWN)
    count = flow.model.num_devices
    singles = [(number,) for number in range(count)]
    cut, everyone = balanced_cut(workload, count), tuple(range(count))
    whole = (len(workload.profile.layers),)
    layouts: list[tuple[str, Callable[[], Plan]]] = [
        ("data parallel", lambda: find_baseline("data parallel", make_layout(workload, whole, places=[everyone]))),
        ("1F1B", lambda: find_baseline("1F1B", make_layout(workload, cut, places=singles, split_backward=False))),
    ]
    if not is_quick:
        halves = balanced_cut(workload, 2)
        layouts += [
            ("two stages, all replicas", lambda: _ordered(make_layout(workload, halves, places=[everyone, everyone]))),
        ]
    for name, make in layouts:
        yield _entry(name, "given layout", lambda n=name, m=make: flow.write(n, without_evidence(m())))
    yield from _torch_entries(flow.model, workload, cut=cut, is_quick=is_quick)


def _entry(name: str, kind: Kind, make: Callable[[], Path]) -> Entry:
    try:
        return Entry(name=name, kind=kind, path=make())
    except (FlowError, PipeplanError, ValueError) as error:
        return Entry(name=name, kind=kind, failure=str(error))


def _ordered(problem: Problem) -> Plan:
    return make_plan(problem, limits=Limits(time_limit_s=PLANNING_S))


def _torch_entries(model: FlowModel, workload: Workload, *, cut: Sequence[int], is_quick: bool) -> Iterator[Entry]:
    """GPipe and 1F1B on the cut of our own 1F1B, ZBV on twice as many stages, and data parallelism with and without
    microbatches.
    """
    names, owners = list(workload.profile.topological_order), list(range(model.num_devices))
    about: dict[str, Any] = {"model": model.factory, "num_microbatches": model.num_microbatches}
    schedules = {"1F1B": (cut, owners)}
    if not is_quick:
        twice = balanced_cut(workload, 2 * model.num_devices)
        schedules = {"GPipe": (cut, owners), **schedules, "ZBVZeroBubble": (twice, [*owners, *reversed(owners)])}
    for name, (sizes, where) in schedules.items():
        stages = [names[sum(sizes[:n]) : sum(sizes[: n + 1])] for n in range(len(sizes))]
        stated = about | {"schedule": name, "stages": stages, "owners": where}
        yield Entry(name=f"torch {name}", kind="torch", about=stated, stages=_shape(sizes))
    yield Entry(name="torch DDP", kind="torch", about={"model": model.factory}, stages="plain")
    if not is_quick:
        yield Entry(
            name="torch DDP, microbatches", kind="torch", about=about, stages=f"{model.num_microbatches} pieces"
        )


def _shape(sizes: Sequence[int]) -> str:
    return f"{len(sizes)} x 1 ({'-'.join(map(str, sizes))})"


def settle(entries: Sequence[Entry], workload: Workload) -> None:
    """What is predicted of every plan, by the profile and nothing else; torch's own are guessed to take as long."""
    for entry in entries:
        if entry.path is not None:
            plan = parse_plan(entry.path.read_bytes(), source=str(entry.path))
            timeline = simulate(_question(plan, workload), plan)
            entry.predicted_ns = timeline.makespan_ns
            entry.peak_bytes = _with_reserve(timeline.peak_bytes, workload)
            entry.stages = describe_stages(plan)
            entry.is_replicated = any(len(stage.replicas) > 1 for stage in plan.stages)
    usual = [entry.predicted_ns for entry in entries if entry.predicted_ns]
    for entry in entries:
        entry.predicted_ns = entry.predicted_ns or round(statistics.median(usual or [10**8]))


def _with_reserve(peak_bytes: Mapping[str, int], workload: Workload) -> dict[str, int]:
    """What a process holds is the plan's peak, and what runtime and allocator keep for themselves."""
    reserve = {} if workload.cluster is None else {d.name: d.reserved_bytes or 0 for d in workload.cluster.devices}
    return {device: peak + reserve.get(device, 0) for device, peak in peak_bytes.items()}


def _question(plan: Plan, workload: Workload) -> Problem:
    from api.inputs import question_of

    return question_of(plan, workload)


def run_rounds(flow: Flow, entries: Sequence[Entry], *, seconds: float, profile_pace: float) -> None:
    """All in turns, once in any case, and again as long as another round fits and runs that count are wanted."""
    begin, rounds, pace = time.monotonic(), 0, host_pace(flow.model.num_devices)
    wanted = [entry for entry in entries if not entry.failure]
    while wanted and (not rounds or (time.monotonic() - begin) * (rounds + 1) / rounds <= seconds):
        for entry in wanted:
            before = pace
            try:
                if entry.path is not None:
                    entry.runs.append(flow.run(entry.path, predicted_ns=entry.predicted_ns))
                else:
                    entry.runs.append(flow.run_torch(entry.about, predicted_ns=entry.predicted_ns))
            except FlowError as error:
                entry.failure = str(error)
                continue
            pace = host_pace(flow.model.num_devices)
            entry.paces.append(max((before / profile_pace, pace / profile_pace), key=lambda part: abs(part - 1)))
        rounds += 1
        wanted = [entry for entry in wanted if not entry.failure and entry.num_steady < NUM_STEADY]


HEADER = (
    "model",
    "plan",
    "made by",
    "stages x replicas (layers)",
    "predicted ms",
    "measured ms",
    "its spread",
    "error",
    "host",
    "runs that count",
    "memory predicted MiB",
    "measured MiB",
    "error",
    "rank",
)


def add_rows(table: Table, model: FlowModel, entries: Sequence[Entry]) -> None:
    """The rows of one model; plans are ranked among themselves by the clock."""
    order = sorted(entry.measured_ns for entry in entries if entry.kind != "torch" and entry.measured_ns is not None)
    for entry in entries:
        cells = [model.name, entry.name, entry.kind, entry.stages]
        measured, error = entry.measured_ns, entry.error
        if measured is None:
            table.add([*cells[:1], f"{entry.name}: failed: {entry.failure[:160]}", *cells[2:], *[""] * 10])
            continue
        shown = "" if error is None else ms(entry.predicted_ns)
        cells += [shown, ms(measured), percent(entry.spread), "" if error is None else percent(error)]
        cells.append("" if entry.pace is None else f"{entry.pace:.2f}")
        cells.append(f"{entry.num_steady} of {len(entry.runs)}")
        memory = entry.memory()
        cells += ["", "", ""] if memory is None else [f"{part / 2**20:.1f}" for part in memory]
        cells += [] if memory is None else [percent(memory[0] / memory[1] - 1)]
        table.add([*cells, "" if entry.kind == "torch" else f"{order.index(measured) + 1} of {len(order)}"])


def summarise(models: Sequence[tuple[FlowModel, Sequence[Entry]]]) -> list[str]:
    """A line per target."""
    plans = [e for _, entries in models for e in entries if e.error is not None]
    if not plans:
        return ["No plan was run."]
    errors, own = _errors(plans), [e for e in plans if e.kind == "own"]
    replicated = sum(e.is_replicated for e in plans)
    lines = [
        f"{len(plans)} plans run, {len(own)} the planner's own, {replicated} replicated; "
        f"{sum(bool(e.failure) for _, entries in models for e in entries)} rows failed.",
        f"Error of the iteration's time: {_describe_errors(errors)}",
    ]
    if own:
        lines.append(_describe_own(_errors(own)))
    lines += _describe_pace(plans)
    real = [e for model, entries in models if not model.is_emulated for e in entries if e.error is not None]
    lines += [_describe_memory(real), _describe_preferred(models), *_describe_rivals(models)]
    noise = statistics.median(e.spread for e in plans)
    if noise > MEDIAN:
        lines.append(
            f"The machine was noisy: quartiles of a plan's own iterations are {percent(noise)} apart on the median, "
            f"more than the {percent(MEDIAN)} that is asked of the prediction."
        )
    return [part for line in lines for part in (line, "")]


def _errors(plans: Sequence[Entry]) -> list[float]:
    return [entry.error for entry in plans if entry.error is not None]


def _against(value: float, target: float) -> str:
    return f"{percent(value)} (target {percent(target)}: {'met' if value <= target else 'missed'})"


def sign_chance(errors: Sequence[float]) -> float:
    """How often a fair coin gives signs at least as lopsided as these."""
    count, least = len(errors), min(sum(error < 0 for error in errors), sum(error >= 0 for error in errors))
    return min(1.0, 2 * sum(math.comb(count, k) for k in range(least + 1)) / 2**count)


def _describe_own(errors: Sequence[float]) -> str:
    chance, fast = sign_chance(errors), sum(error < 0 for error in errors)
    verdict = "no common sign: met" if chance >= SIGNIFICANT else "a common sign: missed"
    median = _against(statistics.median(map(abs, errors)), OWN_MEDIAN)
    return (
        f"The planner's own plans: median {median}; {fast} of {len(errors)} predicted too fast, {verdict} "
        f"(sign test {chance:.2f})."
    )


def _describe_pace(plans: Sequence[Entry]) -> Iterator[str]:
    """What is left of the errors where the host was as fast as beside the profile, and how fast it was elsewhere."""
    paces = [entry.pace for entry in plans if entry.pace is not None]
    if not paces:
        return
    steady = [entry for entry in plans if entry.is_steady]
    yield (
        f"On {len(steady)} of {len(plans)} plans the host was as fast before and after some run as beside the profile, "
        f"within {percent(STEADY)} (column runs that count)."
        + (f" Their errors: {_describe_errors(_errors(steady))}" if steady else "")
    )
    own = _errors([entry for entry in steady if entry.kind == "own"])
    if own:
        yield f"Of these, {_describe_own(own)[0].lower()}{_describe_own(own)[1:]}"
    if others := [entry for entry in plans if entry.pace is not None and not entry.is_steady]:
        found = [entry.pace for entry in others if entry.pace is not None]
        errors = [abs(entry.paced_error) for entry in others if entry.paced_error is not None]
        yield (
            f"Beside the others a fixed piece of work took {min(found):.2f} to {max(found):.2f} (median "
            f"{statistics.median(found):.2f}) times as long as beside their profiles (column host). With predictions "
            f"multiplied by that their errors are {percent(statistics.median(errors))} on the median and "
            f"{percent(max(errors))} at worst."
        )


def _describe_errors(errors: Sequence[float]) -> str:
    sizes = [abs(error) for error in errors]
    return f"median {_against(statistics.median(sizes), MEDIAN)}, worst {_against(max(sizes), WORST)}."


def _describe_memory(plans: Sequence[Entry]) -> str:
    found = [memory[0] / memory[1] - 1 for entry in plans if (memory := entry.memory()) is not None]
    if not found:
        return "Peak memory: the runs do not say what they held."
    least = max(0.0, *(1 - predicted / measured for entry in plans for predicted, measured in entry.memories()))
    return (
        f"Peak memory of {len(found)} plans: median {_against(statistics.median(map(abs, found)), MEMORY_MEDIAN)}, "
        f"worst {_against(max(map(abs, found)), MEMORY_WORST)}, too little by at most {_against(least, TOO_LITTLE)}."
    )


def _describe_preferred(models: Sequence[tuple[FlowModel, Sequence[Entry]]]) -> str:
    lost = {}
    for model, entries in models:
        times = {e.name: e.measured_ns for e in entries if e.kind != "torch" and e.measured_ns is not None}
        if OWN[0][0] in times:
            lost[model.name] = times[OWN[0][0]] / min(times.values()) - 1
    if not lost:
        return "The preferred plan was run on no model."
    share = sum(value <= NEAR for value in lost.values()) / len(lost)
    worst = max(lost, key=lost.__getitem__)
    verdict = "met" if share >= PREFERRED else "missed"
    return (
        f"The preferred plan is the fastest of those run, or within {percent(NEAR)}, on {percent(share)} of the models "
        f"(target {percent(PREFERRED)}: {verdict}); at worst {percent(lost[worst])} slower ({worst})."
    )


def _describe_rivals(models: Sequence[tuple[FlowModel, Sequence[Entry]]]) -> Iterator[str]:
    """The preferred plan against the fastest of torch's own, model by model."""
    for model, entries in models:
        times = {e.name: e.measured_ns for e in entries if e.measured_ns is not None}
        rivals = {e.name: times[e.name] for e in entries if e.kind == "torch" and e.name in times}
        if OWN[0][0] in times and rivals:
            best = min(rivals, key=rivals.__getitem__)
            yield f"{model.name}: the preferred plan takes {times[OWN[0][0]] / rivals[best]:.3f} of {best}."


def choose_models(given: Namespace) -> list[FlowModel]:
    """Those that were asked for; with `--quick` the small GPT alone."""
    if given.models:
        wanted = given.models.split(",")
        known = [*MODELS, *UNSEEN]
        found = [model for model in known if any(name in model.factory for name in wanted)]
        if not found:
            raise SystemExit(f"--models {given.models}: none of {', '.join(model.factory for model in known)}")
        return found
    return list(MODELS[:1] if given.quick else MODELS)


def profile_steadily(flow: Flow) -> tuple[Workload, float]:
    """A profile beside which the host was equally fast at both ends, or the last that was tried; and how fast."""
    before = host_pace(flow.model.num_devices)
    for _ in range(NUM_PROFILES):
        workload, after = flow.profile(), host_pace(flow.model.num_devices)
        pace = (before + after) / 2
        if abs(after - before) <= STEADY * pace:
            break
        before = after
    return workload, pace


def describe_probes(probes: Mapping[str, ProbeRun]) -> list[str]:
    """How far every profile was from the short run beside it, by model."""
    if not probes:
        return []
    told = ", ".join(f"{name} {100 * probe.error:+.1f} %" for name, probe in probes.items())
    middle = percent(statistics.median(abs(probe.error) for probe in probes.values()))
    return [f"Profiles held against a short run of their own, at the same moment: {told}; {middle} on the median.", ""]


def measure_model(
    model: FlowModel, folder: Path, *, seconds: float, is_quick: bool
) -> tuple[list[Entry], ProbeRun | None]:
    """Profile, plan, run; and the profile's own run. Raises FlowError if the model cannot even be profiled."""
    begin = time.monotonic()
    flow = Flow(model, folder)
    workload, pace = profile_steadily(flow)
    entries = list(make_entries(flow, workload, is_quick=is_quick))
    settle(entries, workload)
    run_rounds(flow, entries, seconds=seconds - (time.monotonic() - begin), profile_pace=pace)
    return entries, workload.profile.probe


def main() -> None:
    """Print the table, and write it to `-o`, model by model."""
    parser = make_parser(__doc__)
    parser.add_argument(
        "--minutes", type=float, default=25.0, help="for everything; every plan is run once in any case"
    )
    parser.add_argument("--models", help="only those whose factory has one of these words, separated by commas")
    parser.add_argument("--keep", type=Path, help="keep profiles, plans and traces in this folder")
    given = parser.parse_args()
    chosen, begin = choose_models(given), time.monotonic()
    table, done = Table(preface=_preface(), header=HEADER, output=given.output), []
    probes = dict[str, ProbeRun]()
    with tempfile.TemporaryDirectory(prefix="pipeplan-fidelity-") as temporary:
        for number, model in enumerate(chosen):
            left = 60 * given.minutes - (time.monotonic() - begin)
            folder = Path(given.keep or temporary, str(number)).resolve()
            try:
                seconds = left / (len(chosen) - number)
                entries, probe = measure_model(model, folder, seconds=seconds, is_quick=given.quick)
            except FlowError as error:
                table.add((model.name, f"failed: {error}", *[""] * (len(HEADER) - 2)))
                continue
            add_rows(table, model, entries)
            done.append((model, entries))
            if probe is not None:
                probes[model.name] = probe
        remarks = [*summarise(done), *describe_probes(probes)]
    table.close(*remarks, f"All in {time.monotonic() - begin:.0f} s.")


_ABOUT = """\
README's commands on every model, each in fresh processes: `pipeplan profile MODEL -m 8 --devices 2`, before any plan
exists; `pipeplan plan --no-idle-devices --time-limit 5`, the preferred plan, and the same with other switches; given
layouts by the same profile; `torchrun -m planner.execute`, all plans of a model in turns, round after round. Predicted:
by that profile. Measured: median over runs of the median iteration, the first left out. Its spread: quartiles of the
plan's own iterations apart. Error: (predicted - measured) / measured. Host: how long a fixed piece of work took before
or after the run, whichever is farther from what it took beside the profile, over that; above 1 the host had become
slower. Runs that count: this machine's speed changes by a third within minutes with nothing else running; where a plan
has runs with a host as fast as the profile's within 5 %, these count, and the others do not; a profile is taken anew,
up to three times, if the host was not equally fast at its ends. Memory: of the device where prediction and run differ
most, as the executor reports it. Rank: by the clock, among the plans of the model. `torch`: torch's own schedule
classes on the cut of our 1F1B (ZBV: two stages per device), and DistributedDataParallel, on the same model, processes
and iterations. The emulation has paced layers (they sleep), is profiled with `--clock wall`, and its memory counts in
no summary: its tensors are next to nothing."""


def _preface() -> tuple[str, ...]:
    load = f"Load average at the begin: {os.getloadavg()[0]:.2f}."
    return "# Prediction against measurement, the user's way", "", f"{' '.join(_ABOUT.split())} {load}", ""


if __name__ == "__main__":
    main()
