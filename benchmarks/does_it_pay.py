"""Does planning pay? `python -m benchmarks.does_it_pay [--quick] -o FILE`.

Torch's own schedules with the same number of layers in every stage against our plan, and the executor against torch's
own classes at an identical order; same layers, same processes, one run, contenders in turns.
"""

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.real_pool import Pool, RunFailedError
from benchmarks.real_profile import Case, Machine, make_case_plan, make_problem, make_profile, measure_machine
from benchmarks.report import Table, make_parser, ms
from planner.actions import Action
from planner.document import render_plan
from planner.errors import PipeplanError
from planner.plan import Plan, Stage
from planner.problem import Problem
from planner.simulation.simulate import simulate

NUM_PROCESSES, NUM_MICROBATCHES, RESAMPLES, LEAST_ROUNDS = 2, 8, 4_000, 5

MAX_OVERHEAD = 1.02
"""Target: executor over torch's own class at an identical order."""

SCHEDULES = {"GPipe": "0 1", "1F1B": "0 1", "Interleaved1F1B": "0 1 0 1", "ZBVZeroBubble": "0 1 1 0"}
"""Torch's own, and on which rank each stage is."""

MODELS = ("uneven-gpt:6", "gpt:6", "perceptron:8")
"""Every one has eight layers, so that torch's schedules can have the same number in every stage."""


@dataclass(kw_only=True)
class Contender:
    """What races, and how long its iterations took."""

    name: str
    about: dict[str, Any]
    predicted_ns: int | None = None
    against: str = ""
    """Whose order it has, if it shows what the executor costs."""
    times: list[int] = field(default_factory=list)
    failure: str = ""


def make_contenders(model: str, *, pool: Pool) -> list[Contender]:
    """Torch's schedules, our executor with their very orders, and our plans with and without split backward."""
    profile, machine = _profile(model, pool=pool)
    problem = make_problem(
        Case(method="planner"), profile, cluster=machine.cluster(), num_microbatches=NUM_MICROBATCHES
    )
    names = list(profile.topological_order)
    contenders = []
    for schedule, where in SCHEDULES.items():
        owners = [int(rank) for rank in where.split()]
        share = len(names) // len(owners)
        stages = [names[share * n : share * (n + 1)] for n in range(len(owners))]
        about = {"schedule": schedule, "model": model, "num_microbatches": NUM_MICROBATCHES}
        contenders.append(Contender(name=f"torch {schedule}", about=about | {"stages": stages, "owners": owners}))
    contenders += [_make_twin(contender, pool=pool, problem=problem) for contender in list(contenders)]
    contenders.append(_make_planned(problem, model=model))
    return contenders


def _profile(model: str, *, pool: Pool) -> tuple[Any, Machine]:
    common: dict[str, Any] = {"model": model, "num_microbatches": NUM_MICROBATCHES}
    machine = measure_machine(pool, replicas=(), **common)
    samples = pool.ask("times", timeout_s=300, **common, replicas=1, repetitions=15, recomputes=False)
    return make_profile(model, samples, machine=machine, replicas=1), machine


def _make_planned(problem: Problem, *, model: str) -> Contender:
    plan = make_case_plan(Case(method="planner"), problem, time_limit_s=10)
    shape = f"{'-'.join(str(len(stage.layers)) for stage in plan.stages)} on"
    owners = " ".join("/".join(group[0][1:] for group in stage.replicas) for stage in plan.stages)
    return Contender(
        name=f"our plan ({shape} {owners})",
        about={"plan": render_plan(plan), "model": model, "split": "deferred"},
        predicted_ns=simulate(problem, plan).makespan_ns,
    )


def _make_twin(torchs: Contender, *, pool: Pool, problem: Problem) -> Contender:
    """Our executor with the stages and the order of one of torch's schedules, and torch's own split of a backward."""
    twin = Contender(name=f"executor, order of {torchs.name}", about={}, against=torchs.name)
    try:
        rows = pool.ask("order", contender=torchs.about)[0]
    except RunFailedError as error:
        twin.failure = torchs.failure = str(error)
        return twin
    stages = tuple(
        Stage(layers=tuple(layers), replicas=((f"d{owner}",),))
        for layers, owner in zip(torchs.about["stages"], torchs.about["owners"], strict=True)
    )
    words = {f"d{rank}": tuple(Action(kind, stage, mb) for kind, stage, mb in row) for rank, row in enumerate(rows)}
    plan = Plan(problem=problem.reference(), stages=stages, schedule=words)
    twin.about = {"plan": render_plan(plan), "model": torchs.about["model"], "split": "native"}
    return twin


def race(contenders: Sequence[Contender], *, pool: Pool, seconds: float) -> None:
    """All in turns, round after round, until the time is over; who fails to start is left out."""
    for contender in contenders:
        if not contender.failure:
            try:
                pool.ask("enter", contender=contender.about)
            except RunFailedError as error:  # the pool has lost all of them
                contender.failure = str(error)
                _enter_again([c for c in contenders if not c.failure], contenders=contenders, last=contender, pool=pool)
    racing = [contender for contender in contenders if not contender.failure]
    begin, number = time.monotonic(), 0
    while number < LEAST_ROUNDS or time.monotonic() - begin < seconds:
        ranks = pool.ask("race", timeout_s=300, rounds=1, warm_up=1 if number == 0 else 0)
        for contender, times in zip(racing, ranks[0], strict=True):
            contender.times += times
        number += 1


def _enter_again(racing: Sequence[Contender], *, contenders: Sequence[Contender], last: Contender, pool: Pool) -> None:
    """Those before `last` once more, in new processes."""
    for contender in contenders:
        if contender is last:
            return
        if contender in racing:
            pool.ask("enter", contender=contender.about)


def interval(ours: Sequence[int], theirs: Sequence[int]) -> tuple[float, float, float]:
    """Ratio of the medians and its 95 % confidence interval, by resampling whole rounds."""
    rng, pairs = random.Random(0), list(zip(ours, theirs, strict=True))
    found = sorted(
        statistics.median(a for a, _ in drawn) / statistics.median(b for _, b in drawn)
        for drawn in (rng.choices(pairs, k=len(pairs)) for _ in range(RESAMPLES))
    )
    ratio = statistics.median(ours) / statistics.median(theirs)
    return ratio, found[int(0.025 * RESAMPLES)], found[int(0.975 * RESAMPLES)]


def main() -> None:
    """Print the table, and write it to `-o`."""
    given = make_parser(__doc__).parse_args()
    models = MODELS[:1] if given.quick else MODELS
    header = (
        "model",
        "contender",
        "predicted ms",
        "median ms",
        "rounds",
        "our plan / it",
        "executor / torch",
        "target",
    )
    table = Table(preface=_preface(), header=header, output=given.output)
    begin, paid, overheads = time.monotonic(), list[str](), list[float]()
    for model in models:
        try:
            with Pool(NUM_PROCESSES) as pool:
                contenders = make_contenders(model, pool=pool)
                race(contenders, pool=pool, seconds=20 if given.quick else 150)
        except (RunFailedError, PipeplanError, ValueError) as error:
            table.add((model, f"failed: {error}", *[""] * (len(header) - 2)))
            continue
        overheads += _add_rows(table, model, contenders=contenders)
        paid.append(_verdict(model, contenders))
    table.close(*paid, *_overhead_remark(overheads), f"All in {time.monotonic() - begin:.0f} s.")


def _add_rows(table: Table, model: str, *, contenders: Sequence[Contender]) -> list[float]:
    """The rows of one model; returns what the executor costs, order by order."""
    ours, by_name, overheads = contenders[-1], {c.name: c for c in contenders}, []
    for contender in contenders:
        if contender.failure or not contender.times:
            table.add((model, f"{contender.name}: failed: {contender.failure}", *[""] * 6))
            continue
        predicted = "" if contender.predicted_ns is None else ms(contender.predicted_ns)
        cells = [model, contender.name, predicted, ms(round(statistics.median(contender.times)))]
        cells += [str(len(contender.times))]
        against, target = by_name.get(contender.against), ""
        versus = _ratio(ours.times, contender.times) if ours.times and contender is not ours else ""
        cost = ""
        if against is not None and against.times:
            overheads.append(interval(contender.times, against.times)[0])
            cost = _ratio(contender.times, against.times)
            target = f"{MAX_OVERHEAD}: {'met' if overheads[-1] <= MAX_OVERHEAD else 'missed'}"
        table.add([*cells, versus, cost, target])
    return overheads


def _ratio(ours: Sequence[int], theirs: Sequence[int]) -> str:
    ratio, low, high = interval(ours, theirs)
    return f"{ratio:.3f} ({low:.3f} to {high:.3f})"


def _verdict(model: str, contenders: Sequence[Contender]) -> str:
    """Whether planning paid against the fastest of torch's own."""
    ours, others = contenders[-1], [c for c in contenders if c.name.startswith("torch") and c.times]
    if not ours.times or not others:
        return f"{model}: no comparison, {ours.failure or 'none of torchs schedules ran'}."
    best = min(others, key=lambda contender: statistics.median(contender.times))
    ratio, low, high = interval(ours.times, best.times)
    word = "paid" if high < 1 else "did not pay" if low > 1 else "made no certain difference"
    return f"{model}: planning {word} against {best.name}, the fastest: {ratio:.3f} ({low:.3f} to {high:.3f}).\n"


def _overhead_remark(overheads: Sequence[float]) -> list[str]:
    if not overheads:
        return ["No order was run by both the executor and torch."]
    middle = statistics.median(overheads)
    verdict = "met" if middle <= MAX_OVERHEAD else "missed"
    return [
        f"Executor at an identical order: median {middle:.3f} of torch's time (target {MAX_OVERHEAD}: {verdict}).\n"
    ]


def _preface() -> tuple[str, ...]:
    return (
        "# Does planning pay?",
        "",
        f"{NUM_PROCESSES} processes of one thread each, gloo, {NUM_MICROBATCHES} microbatches. Torch's own schedule "
        "classes have the same number of layers in every stage (embedding and head are layers) and train the same "
        "modules. All contenders of a model live in the same processes and run an iteration in turns, round after "
        "round; a barrier stands before and after each, optimizer included. Ratios are of medians, with 95 % "
        "confidence intervals from resampled rounds; below 1 we are faster. `executor, order of X`: our "
        "executor with exactly X's stages, order and split of a backward.",
        "",
    )


if __name__ == "__main__":
    main()
