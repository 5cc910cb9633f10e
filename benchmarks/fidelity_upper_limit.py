"""The least error that a prediction can have: `python -m benchmarks.fidelity_upper_limit [--quick] -o FILE`.

An upper limit of what is possible, not what a user sees (`benchmarks.fidelity`): layers are timed anew beside each run.

Every plan runs in real processes, one thread each. Its layers are timed by all of these processes at once, right
before every block of its iterations; the prediction is the plan played with the medians of these times.
"""

import os
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.real_pool import Pool, RunFailedError
from benchmarks.real_profile import (
    Case,
    Machine,
    Samples,
    make_case_plan,
    make_problem,
    make_profile,
    measure_machine,
)
from benchmarks.report import Table, make_parser, ms, percent
from planner.document import render_plan
from planner.errors import PipeplanError
from planner.fidelity.attribution import Attribution, Comparison
from planner.fidelity.executed_run import make_iteration, typical
from planner.plan import Plan
from planner.problem import Problem
from planner.simulation.simulate import simulate

NUM_MICROBATCHES, BLOCKS, REPETITIONS, ITERATIONS, WARM_UP = 6, 6, 2, 3, 1
"""Per iteration; and per plan: blocks, times its layers are timed before each, iterations in each, and before those."""

TARGET, PUBLISHED = 0.05, 0.063
"""Median error that is wanted; the best mean error in print."""

PARTS = ("compute", "transfer", "launch overhead", "waiting")

PAIR = (
    Case(method="GPipe", where="0 1"),
    Case(method="1F1B", where="0 1"),
    Case(method="1F1B", where="0 1", cut=(3, 5)),
    Case(method="1F1B", where="0 1", recompute="yy"),
    Case(method="ZB-H1", where="0 1"),
    Case(method="ZB-H2", where="0 1", cut=(5, 3)),
    Case(method="ZB-H1", where="0 1", recompute="yn"),
    Case(method="interleaved 1F1B", where="0 1 0 1"),
    Case(method="ZB-V", where="0 1 1 0"),
    Case(method="V-Min", where="0 1 1 0", cut=(3, 2, 2, 1)),
    Case(method="1F1B", where="0/1"),
    Case(method="planner"),
)
"""On two processes; every model has eight layers."""

FOUR = (
    Case(method="1F1B", where="0 1 2 3"),
    Case(method="ZB-H1", where="0 1 2 3", cut=(1, 2, 2, 3)),
    Case(method="ZB-V", where="0 1 2 3 3 2 1 0"),
    Case(method="1F1B", where="0/2 1/3"),
    Case(method="planner"),
)
"""On four."""

QUICK = tuple(PAIR[number] for number in (2, 4, 8))


@dataclass(frozen=True, kw_only=True)
class Group:
    """Plans that run in turns: one model on so many processes."""

    model: str
    num_processes: int
    cases: tuple[Case, ...]


@dataclass(kw_only=True)
class Trial:
    """A plan, and what was measured for it so far."""

    case: Case
    plan: Plan
    problem: Problem
    samples: list[Samples] = field(default_factory=list)
    iterations: list[dict[str, tuple[Any, Any]]] = field(default_factory=list)
    """Per iteration and device what `make_iteration` wants."""
    peak_bytes: dict[str, int] = field(default_factory=dict)
    failure: str = ""


def groups(*, is_quick: bool) -> list[Group]:
    """What is run; with fewer than four cores four processes run emulated devices."""
    if is_quick:
        return [Group(model="uneven-gpt:6", num_processes=2, cases=QUICK)]
    pairs = [Group(model=m, num_processes=2, cases=PAIR) for m in ("uneven-gpt:6", "perceptron:8", "convolutions:8")]
    four = "uneven-gpt:6" if (os.cpu_count() or 1) >= 4 else "sleepers:8"
    return [*pairs, Group(model=four, num_processes=4, cases=FOUR)]


def run_group(group: Group, *, seconds: float) -> Iterator[tuple[Trial, Machine]]:
    """Plan all cases, run them in turns, block by block, until the time is over."""
    begin = time.monotonic()
    with Pool(group.num_processes) as pool:
        common: dict[str, Any] = {"model": group.model, "num_microbatches": NUM_MICROBATCHES}
        machine = measure_machine(pool, replicas={case.replicas for case in group.cases}, **common)
        first = {
            replicas: pool.ask("times", **common, replicas=replicas, repetitions=3, recomputes=True)
            for replicas in sorted({case.replicas for case in group.cases})
        }
        trials = [_make_trial(case, group, machine=machine, samples=first[case.replicas]) for case in group.cases]
        for number in range(BLOCKS):
            if number and time.monotonic() - begin > seconds * (number / (number + 1)):
                break
            for trial in trials:
                _run_block(pool, trial, group=group)
        for trial in trials:
            _run_memory(pool, trial, group=group)
            yield trial, machine


def _make_trial(case: Case, group: Group, *, machine: Machine, samples: Sequence[Samples]) -> Trial:
    profile = make_profile(group.model, samples, machine=machine, replicas=case.replicas, is_split=case.is_split)
    problem = make_problem(case, profile, cluster=machine.cluster(), num_microbatches=NUM_MICROBATCHES)
    try:
        return Trial(case=case, plan=make_case_plan(case, problem), problem=problem)
    except (PipeplanError, ValueError) as error:
        return Trial(
            case=case,
            plan=Plan(problem=problem.reference(), stages=(), schedule={}),
            problem=problem,
            failure=str(error),
        )


def _run_block(pool: Pool, trial: Trial, *, group: Group) -> None:
    if trial.failure:
        return
    common: dict[str, Any] = {"model": group.model, "num_microbatches": NUM_MICROBATCHES}
    recomputes = bool(trial.case.recompute)
    try:
        trial.samples += pool.ask(
            "times", **common, replicas=trial.case.replicas, repetitions=REPETITIONS, recomputes=recomputes
        )
        plan = render_plan(trial.plan)
        ranks = pool.ask("run", plan=plan, model=group.model, iterations=ITERATIONS, warm_up=WARM_UP)
    except RunFailedError as error:
        trial.failure = str(error)
        return
    for number in range(ITERATIONS):
        rows = {rank["device"]: rank["iterations"][number] for rank in ranks}
        trial.iterations.append({device: (row["spans"], row["times"]) for device, row in rows.items()})


def _run_memory(pool: Pool, trial: Trial, *, group: Group) -> None:
    if trial.failure:
        return
    try:
        ranks = pool.ask("memory", plan=render_plan(trial.plan), model=group.model)
    except RunFailedError as error:
        trial.failure = str(error)
        return
    trial.peak_bytes = {rank["device"]: rank["peak_bytes"] for rank in ranks}


@dataclass(frozen=True, kw_only=True)
class Result:
    """A trial in figures."""

    predicted_ns: int
    measured_ns: int
    spread: float
    memory_error: float
    attribution: Attribution
    comparison: Comparison

    @property
    def error(self) -> float:
        return (self.predicted_ns - self.measured_ns) / self.measured_ns

    def overheads(self) -> dict[str, list[int]]:
        """Nanoseconds between actions, by the kind of the action that follows."""
        found = defaultdict[str, list[int]](list)
        for iteration in self.comparison.iterations:
            for (device, place), overhead in self.comparison.measured(iteration).overhead_ns.items():
                found[self.comparison.device_orders[device][place].kind].append(overhead)
        return found

    def calibrated_error(self, others: Sequence["Result"]) -> float:
        """The error once every action is preceded by the median overhead of its kind in the runs of `others`."""
        pooled = defaultdict[str, list[int]](list)
        for other in others:
            for kind, samples in other.overheads().items():
                pooled[kind] += samples
        usual = {kind: round(statistics.median(samples)) for kind, samples in pooled.items()}
        quantities, words = self.comparison.predicted(), self.comparison.device_orders
        overheads = {key: usual.get(words[key[0]][key[1]].kind, 0) for key in quantities.overhead_ns}
        predicted = self.comparison.replay(replace(quantities, overhead_ns=overheads))
        return (predicted - self.measured_ns) / self.measured_ns


def evaluate(trial: Trial, *, machine: Machine) -> Result:
    """Play the plan with the layers as they were timed next to its runs."""
    name = trial.problem.profile.name
    profile = make_profile(
        name, trial.samples, machine=machine, replicas=trial.case.replicas, is_split=trial.case.is_split
    )
    problem = make_problem(
        trial.case, profile, cluster=trial.problem.cluster, num_microbatches=trial.problem.num_microbatches
    )
    timeline = simulate(problem, trial.plan)
    iterations = [make_iteration(number, plan=trial.plan, rows=rows) for number, rows in enumerate(trial.iterations)]
    durations = sorted(iteration.duration_ns for iteration in iterations)
    low, _, high = statistics.quantiles(durations, n=4, method="inclusive")
    comparison = Comparison(problem, trial.plan, timeline=timeline, iterations=iterations)
    errors = [timeline.peak_bytes[d] / peak - 1 for d, peak in trial.peak_bytes.items()]
    middle = statistics.median(durations)
    return Result(
        predicted_ns=timeline.makespan_ns,
        measured_ns=round(middle),
        spread=(high - low) / middle,
        memory_error=max(errors, key=abs),
        attribution=comparison.attribute(typical(iterations)),
        comparison=comparison,
    )


def main() -> None:
    """Print the table, and write it to `-o`."""
    given = make_parser(__doc__).parse_args()
    chosen = groups(is_quick=given.quick)
    header = (
        "model",
        "processes",
        "plan",
        "predicted ms",
        "measured ms",
        "quartiles apart",
        "error",
        "calibrated",
        *PARTS,
        "memory error",
    )
    table = Table(preface=_preface(), header=header, output=given.output)
    results, begin = list[tuple[Group, Result, float]](), time.monotonic()
    for number, group in enumerate(chosen):
        left = (60 if given.quick else 540) - (time.monotonic() - begin)
        share = len(group.cases) / sum(len(each.cases) for each in chosen[number:])
        try:
            trials = list(run_group(group, seconds=max(20.0, left * share)))
            results += _add_rows(table, group, trials=trials)
        except RunFailedError as error:
            table.add(
                (group.model, str(group.num_processes), f"could not be timed: {error}", *[""] * (len(header) - 3))
            )
    table.close(*_remarks(results, seconds=time.monotonic() - begin))


def _add_rows(
    table: Table, group: Group, *, trials: Sequence[tuple[Trial, Machine]]
) -> list[tuple[Group, Result, float]]:
    """The rows of one model; returns what came out, with the error after calibration."""
    evaluated = [(trial, _try_to_evaluate(trial, machine=machine)) for trial, machine in trials]
    results = [result for _, result in evaluated if result is not None]
    made = []
    for trial, result in evaluated:
        cells = [group.model, str(group.num_processes), str(trial.case)]
        if result is None:
            table.add([*cells[:2], f"{cells[2]}: failed: {trial.failure}", *[""] * (6 + len(PARTS))])
            continue
        calibrated = result.calibrated_error([other for other in results if other is not result])
        parts = dict(result.attribution.parts)
        parts["launch overhead"] += parts["synchronisation"] + parts["optimizer"]
        figures = [ms(result.predicted_ns), ms(result.measured_ns), *map(percent, (result.spread, result.error))]
        shares = [percent(parts[name] / result.attribution.measured_ns) for name in PARTS]
        table.add([*cells, *figures, percent(calibrated), *shares, percent(result.memory_error)])
        made.append((group, result, calibrated))
    return made


def _try_to_evaluate(trial: Trial, *, machine: Machine) -> Result | None:
    if trial.failure:
        return None
    try:
        return evaluate(trial, machine=machine)
    except (ValueError, KeyError, PipeplanError) as error:
        trial.failure = f"{type(error).__name__}: {error}"
        return None


def _preface() -> tuple[str, ...]:
    return (
        "# Prediction against measurement: the upper limit of what is possible",
        "",
        f"{NUM_MICROBATCHES} microbatches per iteration, gloo, one thread per process. Every plan: up to {BLOCKS} "
        f"blocks, in turns with the other plans of its model, of {REPETITIONS} rounds through all layers by all "
        "processes at once (profiles.measure, as `pipeplan profile` times them), "
        f"{WARM_UP} iteration that does not count, and {ITERATIONS} that do. Predicted: the plan played with "
        "the medians of these timings. Measured: the median from the begin of the first process to the end of the "
        "last, optimizer included. Error: (predicted - measured) / measured. The parts, as shares of the measured "
        "time, say where measured - predicted of the median iteration comes from (`docs/reference/comparison.md`; "
        "optimizer and synchronisation count as launch overhead here). Memory error: of the device where it is largest,"
        " against the most bytes that tensors held at once. `sleepers` emulate devices: their layers sleep. "
        "Calibrated: the prediction with, before every action, what executing its kind of action cost between actions "
        "in the runs of the *other* plans of the model (median).",
        "",
    )


def _remarks(results: Sequence[tuple[Group, Result, float]], *, seconds: float) -> list[str]:
    remarks = []
    for what, is_emulated in (("Real layers", False), ("Emulated devices", True)):
        some = [each for each in results if each[0].model.startswith("sleepers") == is_emulated]
        if some:
            remarks += [f"{what}: {len(some)} plans. {_summary(some)}", ""]
    return [*remarks, f"All in {seconds:.0f} s."]


def _summary(results: Sequence[tuple[Group, Result, float]]) -> str:
    errors, calibrated = [abs(result.error) for _, result, _ in results], [abs(error) for *_, error in results]
    memory = [abs(result.memory_error) for _, result, _ in results]
    median = statistics.median(errors)
    return (
        f"Error of the iteration's time: median {percent(median)} (target {percent(TARGET)}: "
        f"{'met' if median <= TARGET else 'missed'}), mean {percent(statistics.mean(errors))} (best in print: "
        f"{percent(PUBLISHED)}), largest {percent(max(errors))}. Calibrated: median "
        f"{percent(statistics.median(calibrated))}, mean {percent(statistics.mean(calibrated))}, largest "
        f"{percent(max(calibrated))}. Error of peak memory: median {percent(statistics.median(memory))}, largest "
        f"{percent(max(memory))}."
    )


if __name__ == "__main__":
    main()
