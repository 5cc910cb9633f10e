"""Is what is predicted what happens? `python -m benchmarks.fidelity --minutes 20 --records FILE -o TABLE`.

README's commands profile and plan; then all contenders of a model take an iteration each in turns, within one launch of
fresh processes, launch after launch, each round in another order. What is compared is the ratio of two contenders: the
median over rounds of what one takes over what the preferred plan takes beside it. Some plans also run alone: the
median iteration, and the peak on the device where prediction and run differ most. Errors are (predicted - measured) /
measured. One thread per process. What the records file holds is not measured again: a run that was ended goes on.
"""

import itertools
import json
import os
import statistics
import tempfile
import time
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from api.inputs import make_problem, make_question, question_of
from api.tuning.tuning_candidates import key_of
from api.tuning.tuning_report import describe_stages
from benchmarks.records import Records
from benchmarks.report import Table, make_parser, ms, percent
from benchmarks.user_flow import (
    FAILED,
    Flow,
    FlowError,
    FlowModel,
    balanced_cut,
    find_baseline,
    make_layout,
    without_evidence,
)
from planner.baselines.best_of_kinds import best_of_kinds
from planner.document import parse_plan
from planner.errors import PipeplanError
from planner.execute.run.kept_memory import uncached_environment
from planner.plan import Plan
from planner.planning import Limits, make_plan
from planner.simulation.simulate import simulate
from profiles.measure.host_processes import HostProcesses
from profiles.workload import Workload

PLANNING_S, OTHER_PLANS_S = 5.0, 3.0
"""README's time limit, and that of plans with other switches."""

TURNS_S, ALONE_S, LAUNCH_S = 12.0, 1.5, 600.0
"""Seconds of iterations of a launch in turns and of one alone, as predicted; and most that any launch may take."""

TRIES = 4
"""Launches in turns, each without the contender that ended the last one, until one comes to its end."""

NUM_ALONE = 5
"""Plans of a model that also run alone."""

LEAST, MOST, LEAST_ALONE = 5, 40, 4
"""Rounds of a launch."""

RATIO_MEDIAN, RATIO_WORST, MEDIAN, WORST = 0.02, 0.06, 0.03, 0.10
"""Targets: error of the ratio of two plans, and of the iteration's time."""

MEMORY_MEDIAN, MEMORY_WORST, TOO_LITTLE = 0.04, 0.12, 0.03
"""Targets: error of peak memory, and how much less than measured may ever be predicted."""

NEAR, PREFERRED = 0.02, 0.90
"""The preferred plan is the fastest contender, or within so much of it, in so many of the models."""

OWN = "planner"
"""The preferred plan; all ratios are to it."""

MODELS = (
    FlowModel(name="small GPT (examples)", factory="examples.small_gpt:make_training"),
    *(
        FlowModel(name=name, factory=f"benchmarks.transformers_models:{name}")
        for name in ("gpt2", "llama", "bert", "t5", "vit", "resnet18")
    ),
    *(
        FlowModel(name=name, factory=f"benchmarks.transformers_models:{name}", is_unseen=True)
        for name in ("qwen3", "whisper", "convnext")
    ),
)

OTHERS = (FlowModel(name="residual network (examples)", factory="examples.resnet:make_training"),)
"""In the table if they are named (`--models`)."""


@dataclass(kw_only=True)
class Entry:
    """A contender, what is predicted of it, and what was measured."""

    name: str
    about: Mapping[str, Any]
    """As `benchmarks.turns.make_contender` takes it."""
    predicted_ns: int
    peak_bytes: Mapping[str, int] = field(default_factory=dict)
    """Of a plan: predicted, by device."""
    stages: str = ""
    turns: list[list[float]] = field(default_factory=list)
    """Per launch, the nanoseconds of every round."""
    alone: list[float] = field(default_factory=list)
    """Nanoseconds of the iterations of a launch of its own."""
    held: Mapping[str, int] = field(default_factory=dict)
    """Measured peak, by device."""
    failure: str = ""

    @property
    def is_plan(self) -> bool:
        """Whether it is run by this project's executor."""
        return "plan" in self.about

    @property
    def error(self) -> float | None:
        """(predicted - measured) / measured, of what it takes alone."""
        return self.predicted_ns / statistics.median(self.alone) - 1 if self.alone else None

    def ratio_to(self, other: "Entry") -> float | None:
        """How many times as long as the other it takes: the median over rounds of both."""
        pairs = [(mine, theirs) for a, b in zip(self.turns, other.turns, strict=False)
                 for mine, theirs in zip(a, b, strict=False)]  # fmt: skip
        return statistics.median(mine / theirs for mine, theirs in pairs) if pairs else None

    def ratio_error(self, other: "Entry") -> float | None:
        """By how much the predicted ratio to the other is off."""
        measured = self.ratio_to(other)
        return None if measured is None else self.predicted_ns / other.predicted_ns / measured - 1

    def memory_errors(self) -> list[float]:
        """(predicted - measured) / measured, per device."""
        return [self.peak_bytes[device] / peak - 1 for device, peak in self.held.items() if peak]

    def memory_spreads(self) -> list[float]:
        """By how much the measured peaks of devices differ that are predicted alike, per group of them."""
        alike = defaultdict[int, list[int]](list)
        for device, peak in self.held.items():
            if peak:
                alike[self.peak_bytes[device]].append(peak)
        return [max(peaks) / min(peaks) - 1 for peaks in alike.values() if len(peaks) > 1]


def make_entries(flow: Flow, workload: Workload) -> Iterator[Entry]:
    """The planner's own plans, given layouts, and torch's own, predicted by the profile and nothing else."""
    model, is_whole = flow.model, workload.microbatch_sizes == (workload.global_batch_size,)
    count = 1 if is_whole else model.num_microbatches  # batch norms see all samples at once
    preferred = flow.plan(OWN, "--no-idle-devices", time_limit_s=PLANNING_S)
    plan = parse_plan(preferred.read_bytes(), source=str(preferred))
    yield _plan_entry(OWN, preferred, workload)
    many, whole = (make_problem(workload, num_microbatches=number) for number in (count, 1))
    own = {"planner, no replication": {"max_replicas": 1}, "planner, whole backwards": {"split_backward": False}}
    everyone, places = tuple(range(model.num_devices)), [(number,) for number in range(model.num_devices)]
    num_layers, known = (len(workload.profile.layers),), {key_of(plan)}
    cut, twice = (balanced_cut(many.profile, part * model.num_devices) for part in (1, 2))
    there_and_back = [*places, *reversed(places)]
    single = {"split_backward": False}
    makers: dict[str, Callable[[], Plan]] = {
        **{name: lambda c=changes: _search(workload, count, c) for name, changes in own.items()},  # type: ignore[misc]
        "data parallel": lambda: find_baseline("data parallel", make_layout(whole, num_layers, places=[everyone])),
        "1F1B": lambda: find_baseline("1F1B", make_layout(many, cut, places=places, **single)),
        "data parallel, accumulating": lambda: find_baseline(
            "data parallel", make_layout(many, num_layers, places=[everyone])
        ),
        "GPipe": lambda: find_baseline("GPipe", make_layout(many, cut, places=places, **single)),
        "ZB-V": lambda: find_baseline("ZB-V", make_layout(many, twice, places=there_and_back)),
    }
    made = dict[str, Entry]()
    for name, make in makers.items():
        found = _attempt(make)
        if isinstance(found, str):
            yield Entry(name=name, about={"plan": ""}, predicted_ns=0, failure=found)
            continue
        made[name] = _plan_entry(name, flow.write(name, without_evidence(found)), workload)
        if key_of(found) not in known:
            known.add(key_of(found))
            yield made[name]
    yield from _torch_entries(made, count=count)
    sharded = best_of_kinds(whole, plan).get("fully sharded")
    if sharded is not None and sharded.row.makespan_ns:
        about = {"wrapper": "FSDP2", "num_microbatches": sharded.problem.num_microbatches}
        yield Entry(name="torch FSDP2", about=about, predicted_ns=sharded.row.makespan_ns)


def _attempt(make: Callable[[], Plan]) -> Plan | str:
    try:
        return make()
    except (PipeplanError, ValueError) as error:
        return str(error)


def _search(workload: Workload, count: int, changes: Mapping[str, Any]) -> Plan:
    question = make_question(workload.cut_into(count), changes=changes)
    return make_plan(question, limits=Limits(time_limit_s=OTHER_PLANS_S))


def _plan_entry(name: str, path: Path, workload: Workload) -> Entry:
    plan = parse_plan(path.read_bytes(), source=str(path))
    timeline = simulate(question_of(plan, workload), plan)
    devices = () if workload.cluster is None else workload.cluster.devices
    reserve = {device.name: device.reserved_bytes or 0 for device in devices}
    return Entry(
        name=name,
        about={"plan": str(path)},
        predicted_ns=timeline.makespan_ns,
        peak_bytes={device: peak + reserve.get(device, 0) for device, peak in timeline.peak_bytes.items()},
        stages=f"{describe_stages(plan)}, {plan.problem.num_microbatches} microbatches",
    )


def _torch_entries(made: Mapping[str, Entry], *, count: int) -> Iterator[Entry]:
    """Torch's own, each predicted as the plan that does the same."""
    same = {"1F1B": "1F1B", "GPipe": "GPipe", "ZBVZeroBubble": "ZB-V"}
    for schedule, name in same.items():
        if name in made:
            plan = parse_plan(Path(made[name].about["plan"]).read_bytes(), source=name)
            rows = list(plan.schedule)
            about = {
                "schedule": schedule,
                "num_microbatches": count,
                "stages": [list(stage.layers) for stage in plan.stages],
                "owners": [rows.index(stage.replicas[0][0]) for stage in plan.stages],
            }
            yield Entry(name=f"torch {schedule}", about=about, predicted_ns=made[name].predicted_ns)
    for pieces, name in {1: "data parallel", count: "data parallel, accumulating"}.items():
        if name in made:
            about = {"wrapper": "DDP", "num_microbatches": pieces}
            label = "torch DDP" + (", accumulating" if pieces > 1 else "")
            yield Entry(name=label, about=about, predicted_ns=made[name].predicted_ns)


class FidelityRecords(Records[dict[str, Any]]):
    """What was measured so far, as lines of a file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, dict)

    def of(self, model: FlowModel, kind: str) -> list[dict[str, Any]]:
        """Lines of a kind: `entries`, `turns` or `alone`."""
        return [line for line in self if line["model"] == model.factory and line["kind"] == kind]

    def entries(self, model: FlowModel) -> list[Entry]:
        """The contenders of a model with all that was measured; empty where it was not planned yet."""
        planned = self.of(model, "entries")
        found = {each["name"]: Entry(**each) for each in (planned[0]["entries"] if planned else ())}
        for line in self.of(model, "turns"):
            for name, entry in found.items():
                entry.turns.append(line["times"].get(name, []))
                entry.failure = entry.failure or line["failures"].get(name, "")
        for line in self.of(model, "alone"):
            entry = found[line["name"]]
            entry.alone, entry.held = line["times"], line["held"]
            entry.failure = entry.failure or line["failure"]
        return list(found.values())


class Runner:
    """Starts launches: processes that are forks of one which has imported what they need."""

    def __init__(self, host: HostProcesses) -> None:
        self.host = host

    def launch(self, model: FlowModel, entries: Sequence[Entry], *, rounds: int) -> list[dict[str, Any]]:
        """What every process wrote; raises FlowError."""
        with tempfile.TemporaryDirectory(prefix="pipeplan-turns-") as name:
            folder = Path(name)
            about = {
                "model": model.factory,
                "rounds": rounds,
                "contenders": {each.name: dict(each.about) for each in entries},
            }
            (folder / "about.json").write_text(json.dumps(about), encoding="utf-8")
            processes = self.host.start_ranks(
                "benchmarks.turns", str(folder / "about.json"), count=model.num_devices, folder=folder
            )
            deadline = time.monotonic() + LAUNCH_S
            try:
                while any(each.poll() is None for each in processes):
                    if time.monotonic() > deadline or any(each.poll() for each in processes):
                        break
                    time.sleep(0.05)
                if any(each.poll() != 0 for each in processes):
                    _require_no_failed(folder)
                if time.monotonic() > deadline:
                    raise FlowError(f"not done after {LAUNCH_S:.0f} s")
                failed = [rank for rank, each in enumerate(processes) if each.poll() != 0]
                if failed:
                    lines = (folder / f"log{failed[0]}").read_text(encoding="utf-8", errors="replace").splitlines()
                    raise FlowError(lines[-1][:200] if lines else "ended without a word")
            finally:
                for each in processes:
                    each.kill()
            ranks = range(model.num_devices)
            return [json.loads((folder / f"rank{rank}.json").read_text(encoding="utf-8")) for rank in ranks]


class ContenderError(FlowError):
    """A launch ended because of one contender."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(reason)
        self.name = name


def _require_no_failed(folder: Path) -> None:
    """Raise ContenderError with what failed first, as its processes have written it down."""
    for path in sorted(folder.glob(f"{FAILED}*"), key=lambda each: each.stat().st_mtime_ns):
        name, _, reason = path.read_text(encoding="utf-8").partition("\n")
        raise ContenderError(name, reason)


def _durations(ranks: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """Per iteration from the first process's begin to the last one's end."""
    rows = zip(*(rank["times"][name] for rank in ranks), strict=True)
    return [max(end for _, end in row) - min(begin for begin, _ in row) for row in rows]


def _rounds(entries: Sequence[Entry], seconds: float, *, least: int) -> int:
    once_ns = sum(each.predicted_ns for each in entries)
    return max(least, min(MOST, int(seconds * 1e9 / max(1, once_ns))))


def run_turns(runner: Runner, model: FlowModel, records: FidelityRecords) -> None:
    """One more launch of all contenders of a model.

    Where one process fails in a contender, the other waits, and the launch ends: the next is without it, or without all
    schedules of torch's if nobody knows which it was.
    """
    entries = [each for each in records.entries(model) if not each.failure]
    line: dict[str, Any] = {"model": model.factory, "kind": "turns", "times": {}, "failures": {}}
    try:
        ranks = runner.launch(model, entries, rounds=_rounds(entries, TURNS_S, least=LEAST))
        line["times"] = {name: _durations(ranks, name) for name in ranks[0]["times"]}
        line["failures"] = ranks[0]["failures"]
    except ContenderError as error:
        line |= {"failures": {error.name: f"ended a launch: {error}"}, "error": str(error)}
    except FlowError as error:
        line["failures"] = {each.name: f"ended a launch: {error}" for each in entries if "schedule" in each.about}
        line["error"] = str(error)
    records.add(line)


def run_alone(runner: Runner, model: FlowModel, records: FidelityRecords, entry: Entry) -> None:
    """A launch of one contender."""
    line: dict[str, Any] = {"model": model.factory, "kind": "alone", "name": entry.name, "times": [], "held": {}}
    try:
        ranks = runner.launch(model, [entry], rounds=_rounds([entry], ALONE_S, least=LEAST_ALONE))
        line["failure"] = ranks[0]["failures"].get(entry.name, "")
        if not line["failure"]:
            line["times"] = _durations(ranks, entry.name)
            line["held"] = {rank["device"]: rank["peak_bytes"] for rank in ranks if "device" in rank}
    except FlowError as error:
        line["failure"] = str(error)
    records.add(line)


def measure_model(runner: Runner, model: FlowModel, records: FidelityRecords) -> None:
    """Profile, plan, one launch in turns, and one of every plan alone; what the records have is left out."""
    if not records.of(model, "entries"):
        flow = Flow(model, records.path.with_suffix("") / model.factory.replace(":", "."))
        workload = flow.profile()
        entries = [asdict(each) for each in make_entries(flow, workload)]
        records.add({"model": model.factory, "kind": "entries", "entries": entries})
    for _ in range(TRIES):
        if not any(line["times"] for line in records.of(model, "turns")):
            run_turns(runner, model, records)
    done = {line["name"] for line in records.of(model, "alone")}
    plans = [each for each in records.entries(model) if each.is_plan and (not each.failure or each.name in done)]
    for entry in plans[:NUM_ALONE]:
        if entry.name not in done:
            run_alone(runner, model, records, entry)


HEADER = (
    "model", "contender", "stages x replicas (layers)", "predicted ms", "alone ms", "error", "ratio predicted",
    "ratio in turns", "error", "memory predicted MiB", "measured MiB", "rank",
)  # fmt: skip


def ranked(entries: Sequence[Entry]) -> list[tuple[float, Entry]]:
    """Those that took turns with the preferred plan, the fastest first, each with its ratio to that."""
    own = next((each for each in entries if each.name == OWN), None)
    found = [] if own is None else [(ratio, each) for each in entries if (ratio := each.ratio_to(own)) is not None]
    return sorted(found, key=lambda pair: pair[0])


def add_rows(table: Table, model: FlowModel, entries: Sequence[Entry]) -> None:
    """The rows of one model."""
    own, order = entries[0], ranked(entries)
    places = {each.name: f"{place} of {len(order)}" for place, (_, each) in enumerate(order, start=1)}
    ratios = {each.name: ratio for ratio, each in order}
    for each in entries:
        label = f"{each.name}: failed: {each.failure[:120]}" if each.failure else each.name
        cells = [f"{model.name}{' (not tuned on)' if model.is_unseen else ''}", label, each.stages]
        cells += [ms(each.predicted_ns), ms(round(statistics.median(each.alone))) if each.alone else ""]
        cells.append("" if each.error is None else percent(each.error))
        off = each.ratio_error(own)
        cells += ["", "", ""] if off is None else [
            f"{each.predicted_ns / own.predicted_ns:.3f}", f"{ratios[each.name]:.3f}", percent(off)
        ]  # fmt: skip
        device = max(each.held, key=lambda name: abs(each.peak_bytes[name] / each.held[name] - 1), default="")
        sizes = (each.peak_bytes[device], each.held[device]) if device else ()
        cells += [f"{size / 2**20:.1f}" for size in sizes] or ["", ""]
        table.add([*cells, places.get(each.name, "")])


def summarise(models: Sequence[tuple[FlowModel, Sequence[Entry]]]) -> list[str]:
    """A line per target, then one per model."""
    plans = [each for _, entries in models for each in entries if each.is_plan and each.turns and not each.failure]
    lines = [f"{len(plans)} plans ran, on {len(models)} models."]
    for label, is_wanted in (("plans", True), ("torch's own", False)):
        off = [
            abs(error)
            for _, entries in models
            for each in entries[1:]
            if each.is_plan is is_wanted and (error := each.ratio_error(entries[0])) is not None
        ]
        lines += _told(f"Ratio of {label} to the preferred plan", off, median=RATIO_MEDIAN, worst=RATIO_WORST)
    alone = [abs(each.error) for each in plans if each.error is not None]
    lines += _told("Time of a plan alone", alone, median=MEDIAN, worst=WORST)
    memory = [error for each in plans for error in each.memory_errors()]
    lines += _told("Peak memory of a device", list(map(abs, memory)), median=MEMORY_MEDIAN, worst=MEMORY_WORST)
    lines += [f"Memory is too little by at most {_against(-min(0.0, *memory), TOO_LITTLE)}."] if memory else []
    if alike := [spread for each in plans for spread in each.memory_spreads()]:
        told = f"{percent(statistics.median(alike))} on the median, {percent(max(alike))} at worst"
        lines.append(f"Peaks of devices that hold the same differ by {told}: measuring resolves no less.")
    lost = {model.name: _lost(entries) for model, entries in models if ranked(entries)}
    if lost:
        share = sum(value <= NEAR for value in lost.values()) / len(lost)
        verdict = "met" if share >= PREFERRED else "missed"
        lines.append(
            f"The preferred plan is the fastest contender, or within {percent(NEAR)}, on {percent(share)} of the "
            f"models (target {percent(PREFERRED)}: {verdict})."
        )
    lines += [_describe_model(model, entries) for model, entries in models if ranked(entries)]
    return [part for line in lines for part in (line, "")]


def _lost(entries: Sequence[Entry]) -> float:
    return 1 / ranked(entries)[0][0] - 1


def _told(what: str, errors: Sequence[float], *, median: float, worst: float) -> list[str]:
    if not errors:
        return []
    middle = _against(statistics.median(errors), median)
    return [f"{what}: median error {middle}, worst {_against(max(errors), worst)}, of {len(errors)}."]


def _against(value: float, target: float) -> str:
    return f"{percent(value)} (target {percent(target)}: {'met' if value <= target else 'missed'})"


def _describe_model(model: FlowModel, entries: Sequence[Entry]) -> str:
    off = [abs(error) for each in entries[1:] if (error := each.ratio_error(entries[0])) is not None]
    best = ranked(entries)[0][1].name
    told = (
        f"ratios off by {percent(statistics.median(off))} on the median, {percent(max(off))} at worst; " if off else ""
    )
    return f"{model.name}: {told}the preferred plan takes {1 + _lost(entries):.3f} of the fastest ({best})."


def choose_models(given: Namespace) -> list[FlowModel]:
    """Those that were asked for; with `--quick` the small GPT alone."""
    if given.models:
        known = [*MODELS, *OTHERS]
        found = [model for model in known if any(name in model.factory for name in given.models.split(","))]
        if not found:
            raise SystemExit(f"--models {given.models}: none of {', '.join(model.factory for model in known)}")
        return found
    return list(MODELS[:1] if given.quick else MODELS)


def measure(chosen: Sequence[FlowModel], records: FidelityRecords, *, deadline: float) -> dict[str, str]:
    """Every model once in any case, then launches in turns while there is time; why models could not be measured."""
    failures = dict[str, str]()
    also = ("benchmarks.real_torch", "benchmarks.transformers_models")
    settling = "planner.execute.run.host_process:settle_on_host"
    with HostProcesses(also=also, prepare=settling, environment=uncached_environment()) as host:
        runner = Runner(host)
        for model in chosen:
            try:
                measure_model(runner, model, records)
            except FlowError as error:
                failures[model.name] = str(error)
        took = 0.0
        for model in itertools.cycle([each for each in chosen if each.name not in failures]):
            begin = time.monotonic()
            if begin + took >= deadline:
                break
            run_turns(runner, model, records)
            took = max(took, time.monotonic() - begin)
    return failures


def main() -> None:
    """Measure what the records lack, then print the table, and write it to `-o`."""
    parser = make_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=20.0, help="for all; each model is measured once anyway")
    parser.add_argument("--models", help="only those whose factory has one of these words, separated by commas")
    parser.add_argument(
        "--records", type=Path, help="lines of what was measured, beside a folder of profiles and plans; is continued"
    )
    given, begin, load = parser.parse_args(), time.monotonic(), os.getloadavg()[0]
    chosen = choose_models(given)
    with tempfile.TemporaryDirectory(prefix="pipeplan-fidelity-") as temporary:
        path = (given.records or Path(temporary, "records.jsonl")).resolve()
        path.parent.mkdir(parents=True, exist_ok=True)
        records = FidelityRecords(path)
        failures = measure(chosen, records, deadline=begin + 60 * given.minutes)
        about = f"{__doc__} Load average at the begin: {load:.2f}."
        table = Table.about("# Prediction against measurement, by ratios", about, header=HEADER, output=given.output)
        done = [(model, entries) for model in chosen if (entries := records.entries(model))]
        for model, entries in done:
            add_rows(table, model, entries)
        for name, reason in failures.items():
            table.add((name, f"failed: {reason}", *[""] * (len(HEADER) - 2)))
        table.close(*summarise(done))


if __name__ == "__main__":
    main()
