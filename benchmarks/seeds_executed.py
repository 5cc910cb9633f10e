"""The four seeds in real runs: `python -m benchmarks.seeds_executed [--quick] [-o FILE]`.

Every method's plan of models that were not made for it, run by the executor, beside the same in plain order and beside
what the framework offers by itself. All contenders train in the same processes, in turns.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.does_it_pay import Contender, race
from benchmarks.real_models import make_uneven_gpt
from benchmarks.real_pool import Pool, RunFailedError
from benchmarks.real_profile import Machine, make_profile, measure_machine
from benchmarks.report import Table, make_parser, ms
from benchmarks.statistics_of import paired
from benchmarks.user_flow import pipeplan
from planner.baselines.applicability import DoesNotApplyError
from planner.baselines.layer_pipe.plans import make_layer_pipe_plan
from planner.baselines.layouts import EVEN
from planner.baselines.out_of_order.first_k import make_first_k_plan
from planner.baselines.out_of_order.pipelined import make_fast_forward_plan
from planner.baselines.registry import METHODS, make_method_plan
from planner.baselines.spp.plans import make_spp_plan
from planner.document import render_plan
from planner.errors import PipeplanError
from planner.execute.run.core_groups import as_processes
from planner.execute.training import Training
from planner.layout.costs import CostModel
from planner.plan import Plan
from planner.planning import Limits, make_plan
from planner.problem import Options, Problem
from planner.simulation.simulate import simulate
from profiles.load import load_workload

NUM_PROCESSES, NUM_MICROBATCHES, MAX_STAGES = 2, 8, 4

MODELS = ("uneven-gpt:6", "convolutions:8")

DEFAULTS = ("torch, data parallel (DDP)", "torch 1F1B, equal layers")
"""What the framework offers by itself."""


@dataclass(frozen=True, kw_only=True)
class Seconds:
    """How long things take."""

    race: float
    plan: float
    cores: float


WHOLE, QUICK = Seconds(race=110, plan=10, cores=110), Seconds(race=2, plan=1, cores=2)


@dataclass(kw_only=True)
class Row:
    """A contender and what it is held against."""

    contender: Contender
    seed: str = ""
    """The method that it belongs to; empty: one that is there to compare with."""


def make_rows(model: str, *, pool: Pool, seconds: Seconds) -> list[Row]:
    """All contenders of a model."""
    single, double, machine = _measure(model, pool=pool)
    names = list(single.topological_order)
    share = len(names) // NUM_PROCESSES
    stages = [names[:share], names[share:]]
    common = {"model": model, "num_microbatches": NUM_MICROBATCHES}
    found = [
        Row(contender=Contender(name=DEFAULTS[0], about={"data_parallel": True, **common})),
        Row(
            contender=Contender(
                name=DEFAULTS[1], about={"schedule": "1F1B", "stages": stages, "owners": [0, 1], **common}
            )
        ),
    ]
    maker = _Maker(model, machine=machine, profiles=(single, double), seconds=seconds)
    return found + maker.pipelines() + maker.data_parallel() + maker.elsewhere()


class _Maker:
    """Plans of one model."""

    def __init__(self, model: str, *, machine: Machine, profiles: tuple[Any, Any], seconds: Seconds) -> None:
        self.model, self.machine, self.profiles, self.seconds = model, machine, profiles, seconds

    def problem(self, **options: Any) -> Problem:
        """Without replicas unless they are asked for."""
        count = options.setdefault("max_replicas", 1)
        return Problem(
            profile=self.profiles[count - 1],
            cluster=self.machine.cluster(),
            num_microbatches=NUM_MICROBATCHES,
            options=Options(receive_buffers=1, uneven_replication=False, **options),
        )

    def row(self, name: str, make: Callable[[Problem], Plan], problem: Problem, *, seed: str, plain: str) -> Row:
        """A plan, or why there is none."""
        found = Contender(name=name, about={}, against=plain)
        try:
            plan = replace(make(problem), evidence=None)
            found.about = {"plan": render_plan(plan), "model": self.model, "split": "deferred"}
            found.predicted_ns = simulate(problem, plan).makespan_ns
        except (DoesNotApplyError, PipeplanError, ValueError) as error:
            found.failure = str(error)
        return Row(contender=found, seed=seed)

    def pipelines(self) -> list[Row]:
        """1F1B as we run it; SPP; out-of-order backprop on stages of its own, and with layers dealt out."""
        problem, plain = self.problem(max_stages_per_device=MAX_STAGES), "1F1B, equal layers"
        one = next(method for method in METHODS if method.name == "1F1B")
        return [
            self.row(plain, lambda p: make_method_plan(CostModel(p), one, cut=EVEN), problem, seed="", plain=""),
            self.row("SPP", lambda p: make_spp_plan(CostModel(p)), problem, seed="SPP", plain=plain),
            self.row(
                "fast-forwarded",
                lambda p: make_fast_forward_plan(CostModel(p)),
                problem,
                seed="out-of-order backprop",
                plain=plain,
            ),
        ]

    def data_parallel(self) -> list[Row]:
        """Buckets of gradients, in plain order and with those of the first k layers last."""
        options = {"max_replicas": 2, "max_stages_per_device": MAX_STAGES, "synchronisation": "bucketed"}
        problem, plain = self.problem(**options), "data parallel in buckets, k = 0"
        return [
            self.row(plain, lambda p: make_first_k_plan(CostModel(p), k=0), problem, seed="", plain=""),
            self.row(
                "reverse first-k, k chosen",
                lambda p: make_first_k_plan(CostModel(p)),
                problem,
                seed="out-of-order backprop",
                plain=plain,
            ),
            self.row(
                f"reverse first-k, k = {MAX_STAGES // 2}",
                lambda p: make_first_k_plan(CostModel(p), k=MAX_STAGES // 2),
                problem,
                seed="out-of-order backprop",
                plain=plain,
            ),
        ]

    def elsewhere(self) -> list[Row]:
        """LayerPipe's placement, and that of the joint search, beside the same search with everything in place."""
        plain, limits = "joint plan, everything in place", Limits(time_limit_s=self.seconds.plan)
        place = self.problem(max_stages_per_device=MAX_STAGES)
        free = self.problem(max_stages_per_device=MAX_STAGES, split_placement=True)
        names = list(self.profiles[0].topological_order)
        share = len(names) // NUM_PROCESSES
        given = self.problem(
            partition=(tuple(names[:share]), tuple(names[share:])),
            placement=((("d0",),), (("d1",),)),
            split_placement=True,
        )
        wide = self.problem(max_stages_per_device=len(self.profiles[0].layers), split_placement=True)
        return [
            self.row(plain, lambda p: make_plan(p, limits=limits), place, seed="", plain=""),
            self.row(
                "joint plan, W and halves of I placed",
                lambda p: _moved(make_plan(p, limits=limits), p),
                free,
                seed="LayerPipe",
                plain=plain,
            ),
            self.row(
                "equal layers, W and halves of I placed",
                lambda p: _moved(make_plan(p, limits=limits), p),
                given,
                seed="LayerPipe",
                plain="1F1B, equal layers",
            ),
            self.row(
                "LayerPipe's own placement",
                lambda p: make_layer_pipe_plan(CostModel(p)),
                wide,
                seed="LayerPipe",
                plain=plain,
            ),
        ]


def _moved(plan: Plan, problem: Problem) -> Plan:
    """The plan, if it has something elsewhere; otherwise the search has said that nothing gains there."""
    if any(stage.is_split for stage in plan.stages):
        return plan
    raise ValueError(f"the planner leaves everything in place ({ms(simulate(problem, plan).makespan_ns)} ms predicted)")


def _measure(model: str, *, pool: Pool) -> tuple[Any, Any, Machine]:
    """Profiles of a whole microbatch, and of one that two replicas share."""
    common: dict[str, Any] = {"model": model, "num_microbatches": NUM_MICROBATCHES}
    machine = measure_machine(pool, replicas=(2,), **common)
    profiles = []
    for replicas in (1, 2):
        samples = pool.ask("times", timeout_s=300, **common, replicas=replicas, repetitions=15, recomputes=False)
        profiles.append(make_profile(model, samples, machine=machine, replicas=replicas))
    return profiles[0], profiles[1], machine


def describe(saved: tuple[float, float]) -> str:
    """A saving with its interval, and whether it is one."""
    mean, half = saved
    word = "faster" if mean > half else "slower" if mean < -half else "not told apart"
    return f"{100 * mean:.1f} ± {100 * half:.1f} % ({word})"


HEADER = ("model", "seed", "plan", "predicted ms", "median ms", "rounds", "saved over plain order", "over the default")


def add_rows(table: Table, model: str, rows: Sequence[Row], *, defaults: Sequence[str] = DEFAULTS) -> list[str]:
    """The rows of one model, every contender beside its plain order and beside the faster of torch's own; gives a
    sentence for every plan of a seed.
    """
    by_name = {row.contender.name: row.contender for row in rows}
    raced = [by_name[name] for name in defaults if by_name[name].times]
    best = min(raced, key=lambda each: statistics.median(each.times)) if raced else None
    remarks = []
    for row in rows:
        each = row.contender
        if each.failure or not each.times:
            table.add((model, row.seed, f"{each.name}: {each.failure or 'not run'}", *[""] * 5))
            continue
        predicted = "" if each.predicted_ns is None else ms(each.predicted_ns)
        cells = [model, row.seed, each.name, predicted, ms(round(statistics.median(each.times))), str(len(each.times))]
        plain = by_name.get(each.against)
        over = [describe(paired(plain.times, each.times)) if plain is not None and plain.times else ""]
        over += [describe(paired(best.times, each.times)) if best is not None and each is not best else ""]
        table.add([*cells, *over])
        if row.seed and over[0]:
            remarks.append(
                f"* {row.seed}, {model}, {each.name}: over {each.against} {over[0]}, over the default {over[1]}"
            )
    return remarks


def make_gpt() -> Training:
    """What is run with threads: the GPT of the other rows."""
    return make_uneven_gpt(6, num_microbatches=NUM_MICROBATCHES)


def run_cores(table: Table, *, seconds: Seconds) -> list[str]:
    """Runtime concurrency control: cores per stage as planned, the even split, and torch with all cores at once."""
    with TemporaryDirectory() as folder, Pool(2) as two, Pool(1) as one:
        path = Path(folder, "workload.json")
        factory = f"{__name__ if __name__ != '__main__' else 'benchmarks.seeds_executed'}:{make_gpt.__name__}"
        switches = (
            "-m",
            str(NUM_MICROBATCHES),
            "--devices",
            "2",
            "--widths",
            "1,2",
            "--no-recompute",
            "--seconds",
            "0.5",
        )
        pipeplan("profile", factory, *switches, "-o", str(path), "-q")
        workload = load_workload(str(path))
        assert workload.cluster is not None
        rows, pools = [], [one]
        plain = {"model": factory, "num_microbatches": NUM_MICROBATCHES, "threads": 2}
        rows.append(
            Row(contender=Contender(name="torch, one process with all cores", about={"data_parallel": True, **plain}))
        )
        for name, width in (("even split: a stage and a process per core", 1), ("cores per stage as planned", 2)):
            options = Options(max_width=width, max_replicas=1, receive_buffers=1, max_stages_per_device=1)
            problem = Problem(
                profile=workload.profile,
                cluster=workload.cluster,
                num_microbatches=NUM_MICROBATCHES,
                options=options,
            )
            plan = make_plan(problem, limits=Limits(time_limit_s=seconds.plan))
            row = _cores_row(name, problem, plan, factory=factory)
            rows.append(row)
            pools.append(two if len(as_processes(plan)[0].devices) == 2 else one)
        rows[2].seed, rows[2].contender.against = "concurrency control", rows[1].contender.name
        _race_in_turns([row.contender for row in rows], pools=pools, seconds=seconds.cores)
        return add_rows(table, "uneven-gpt:6, cores", rows, defaults=[rows[0].contender.name])


def _cores_row(name: str, problem: Problem, plan: Plan, *, factory: str) -> Row:
    merged, groups = as_processes(plan)
    threads = [len(groups[device]) for device in merged.devices]
    about = {
        "plan": render_plan(replace(merged, evidence=None)),
        "model": factory,
        "split": "deferred",
        "threads": threads,
    }
    text = f"{name} ({' and '.join(f'{n} core{chr(115) * (n > 1)}' for n in threads)})"
    return Row(
        contender=Contender(name=text, about=about, predicted_ns=simulate(problem, plan).makespan_ns),
    )


def _race_in_turns(contenders: Sequence[Contender], *, pools: Sequence[Pool], seconds: float) -> None:
    """As `race`, where contenders have processes of their own; those whose turn it is not sleep."""
    for contender, pool in zip(contenders, pools, strict=True):
        pool.ask("enter", contender=contender.about)
    begin, number = time.monotonic(), 0
    distinct = list(dict.fromkeys(pools))
    while number < 3 or time.monotonic() - begin < seconds:
        for pool in distinct:
            mine = [contender for contender, its in zip(contenders, pools, strict=True) if its is pool]
            times = pool.ask("race", timeout_s=300, rounds=1, warm_up=1 if number == 0 else 0)[0]
            for contender, found in zip(mine, times, strict=True):
                contender.times += found
        number += 1


def main() -> None:
    """Print the table, and write it to `-o`."""
    given = make_parser(__doc__).parse_args()
    seconds = QUICK if given.quick else WHOLE
    table = Table(preface=_preface(), header=HEADER, output=given.output)
    begin, remarks = time.monotonic(), list[str]()
    for model in MODELS[:1] if given.quick else MODELS:
        try:
            with Pool(NUM_PROCESSES) as pool:
                rows = make_rows(model, pool=pool, seconds=seconds)
                race([row.contender for row in rows], pool=pool, seconds=seconds.race)
            remarks += add_rows(table, model, rows)
        except (RunFailedError, PipeplanError) as error:
            table.add((model, f"failed: {error}", *[""] * (len(HEADER) - 2)))
    remarks += run_cores(table, seconds=seconds)
    table.close(*remarks, "", f"All in {time.monotonic() - begin:.0f} s.")


def _preface() -> tuple[str, ...]:
    return (
        "# The four seeds in real runs",
        "",
        f"`python -m benchmarks.seeds_executed`. {NUM_PROCESSES} processes of one thread each over gloo, "
        f"{NUM_MICROBATCHES} microbatches, real",
        "arithmetic (nothing sleeps), layers of uneven size as models have them; profiles measured right before. All",
        "contenders of a model live in the same processes and train an iteration in turns, round after round;",
        "a barrier stands before and after each, the optimizer is included. *Plain order*: the row named in the",
        "remarks, run by the same executor. *The default*: the faster of what torch offers by itself. Savings are",
        "means over pairs of one round, with 95 % confidence intervals (Student's t); what they do not tell from",
        "nothing is called so. Rows of *cores* have processes of their own, which sleep while others run; a process's",
        "threads are as many as its stage's cores. Memory is not limited. W beside I on one device has a table",
        "of its own ([seeds_out_of_order.md](seeds_out_of_order.md)). LayerPipe's rows: split placement, executed.",
        "",
    )


if __name__ == "__main__":
    main()
