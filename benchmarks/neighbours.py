"""Neighbours of the rows of other tables: `python -m benchmarks.neighbours [--quick] --records FILE -o FILE`.

A row is planned as it is. Then something small changes, by a fixed seed, and it is planned anew, without the row's
plan. Beside that stands what the row's plan takes when it is played on the changed problem. Records of what has been
planned are kept, so that a run that `--minutes` broke off is continued. `-o` gets the table as the pages have it.
"""

import json
import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from statistics import median

from api.inputs import make_problem as problem_of
from benchmarks.capped_uniform import SIZES, make_uniform
from benchmarks.layouts import RECIPES, read_problem
from benchmarks.order_only import settings
from benchmarks.orders import even_times, make_problem
from benchmarks.records import Records
from benchmarks.report import make_parser, ms, percent, plan_and_check
from benchmarks.run import sources_of
from planner.export.targets import TARGETS
from planner.plan import Plan
from planner.planning import Limits
from planner.problem import Problem
from planner.verify import verify
from profiles.load import load_workload
from profiles.model_profile import Layer

LIMIT_S, SOON_S = 10.0, 2.0
"""Of a plan, bounds and baselines included; and by when it shall not be above the row's plan."""

WHOLE_ROWS = 40
"""Uniform chains that get every change; the others get one."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A problem of another table."""

    table: str
    name: str
    problem: Problem
    changes: tuple[str, ...]
    """Those that it may get."""
    is_whole: bool = False
    """Whether it gets all of them, not one that is drawn."""
    target: str = ""
    """The program that it is for, by its name among targets; empty: none."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """A row with a change, planned."""

    table: str
    row: str
    change: str
    ours_ns: int
    played_ns: int | None
    """What the row's own plan takes; None: it does not fit."""
    bound_ns: int
    is_sound: bool
    """Whether verifier and certificate pass."""
    soon_s: float | None
    """When ours was first not above the row's plan; None: never, or there is nothing to compare it with."""
    total_s: float

    @property
    def gap(self) -> float:
        """(ours - bound) / ours."""
        return 1 - self.bound_ns / self.ours_ns

    @property
    def is_above(self) -> bool:
        """Whether the row's plan is better."""
        return self.played_ns is not None and self.ours_ns > self.played_ns


Change = Callable[[Problem, random.Random], Problem]


def with_transfers(share: float) -> Change:
    """Every edge takes this share of an action."""

    def change(problem: Problem, _: random.Random) -> Problem:
        cost = problem.profile.layers[0].costs[0]
        bandwidth = problem.cluster.links[0].bandwidth_bytes_per_s
        num_bytes = max(1, round(share * cost.forward_ns * bandwidth / 1e9))
        edges = tuple(replace(edge, bytes=num_bytes) for edge in problem.profile.edges)
        return replace(problem, profile=replace(problem.profile, edges=edges))

    return change


def with_times(share: float) -> Change:
    """Every time by up to this share longer or shorter."""

    def change(problem: Problem, rng: random.Random) -> Problem:
        layers = tuple(_scaled(layer, lambda: 1 + rng.uniform(-share, share)) for layer in problem.profile.layers)
        return replace(problem, profile=replace(problem.profile, layers=layers))

    return change


def with_slow_device(problem: Problem, rng: random.Random) -> Problem:
    """What one device runs takes 3 % longer."""
    placement, partition = problem.options.placement, problem.options.partition
    assert placement is not None
    assert partition is not None
    slow = rng.choice(placement)
    names = {name for layers, group in zip(partition, placement, strict=True) if group == slow for name in layers}
    layers = tuple(_scaled(layer, lambda: 1.03) if layer.name in names else layer for layer in problem.profile.layers)
    return replace(problem, profile=replace(problem.profile, layers=layers))


def with_less_memory(num_bytes: Callable[[Problem], int]) -> Change:
    """Every device has so much less."""

    def change(problem: Problem, _: random.Random) -> Problem:
        less = num_bytes(problem)
        devices = tuple(replace(each, memory_bytes=each.memory_bytes - less) for each in problem.cluster.devices)
        return replace(problem, cluster=replace(problem.cluster, devices=devices))

    return change


def _scaled(layer: Layer, factor: Callable[[], float]) -> Layer:
    forward, input_grad, weight_grad = factor(), factor(), factor()
    costs = tuple(
        replace(
            cost,
            forward_ns=round(cost.forward_ns * forward),
            input_grad_ns=round(cost.input_grad_ns * input_grad),
            weight_grad_ns=round(cost.weight_grad_ns * weight_grad),
            backward_ns=None if cost.backward_ns is None else round(cost.backward_ns * min(input_grad, weight_grad)),
            recompute_ns=round(cost.recompute_ns * forward),
        )
        for cost in layer.costs
    )
    return replace(layer, costs=costs)


CHANGES: dict[str, Change] = {
    "transfers 0.1 %": with_transfers(0.001),
    "transfers 1 %": with_transfers(0.01),
    "transfers 5 %": with_transfers(0.05),
    "times +-2 %": with_times(0.02),
    "times +-5 %": with_times(0.05),
    "a device 3 % slower": with_slow_device,
    "a byte less": with_less_memory(lambda _: 1),
    "an activation less": with_less_memory(lambda problem: problem.profile.layers[0].stash_bytes),
}

ANY_COSTS = ("times +-2 %", "times +-5 %", "a byte less")
"""Changes that need no stages and devices given, and no equal ones."""


def rows() -> list[Row]:
    """Every row of every table that is compared: those that get all changes, then the others, shuffled."""
    found = list(table_rows())
    random.Random(0).shuffle(found)
    return sorted(found, key=lambda row: not row.is_whole)


def table_rows() -> Iterator[Row]:
    """The same, table by table."""
    yield from uniform_rows()
    yield from order_rows()
    for key in dict.fromkeys(recipe.key for recipe in RECIPES):
        name, ranks, count = key
        problem = read_problem(name, ranks=ranks, microbatches=count)
        changes, named = ANY_COSTS[:2], f"{name} on {ranks}"
        yield Row(table="layouts", name=named, problem=problem, changes=changes, target="megatron")
    for source in sources_of([]):
        workload = load_workload(source)
        if workload.num_microbatches is not None:
            named = source.removeprefix("demo:") if source.startswith("demo:") else Path(source).stem
            yield Row(table="workloads", name=named, problem=problem_of(workload), changes=ANY_COSTS)


def uniform_rows() -> Iterator[Row]:
    """Those of the table of uniform chains, and m of 3p too; a fixed seed draws those that get every change."""
    sizes = [(p, factor * p, room) for p in SIZES for factor in (1, 2, 3, 4) for room in range(1, p + 1)]
    whole = set(random.Random(0).sample([size for size in sizes if size[2] > 1 and size[0] <= 24], WHOLE_ROWS))
    for devices, count, room in sizes:
        yield Row(
            table="uniform chains",
            name=f"p {devices}, m {count}, K {room}",
            problem=make_uniform(devices, num_microbatches=count, room=room),
            changes=tuple(CHANGES)[: None if room > 1 else -2],
            is_whole=(devices, count, room) in whole,
        )


def order_rows() -> Iterator[Row]:
    """Given stages, and two chunks per device in half the memory of 1F1B."""
    for row in settings(quick=False):
        (stages, count), named = row.size, "even" if row.seed is None else f"uneven {row.seed}"
        yield Row(
            table="order only",
            name=f"{named} {stages}x{count} {row.memory:g}x",
            problem=make_problem(row.times, num_microbatches=count, memory=row.memory),
            changes=tuple(CHANGES),
        )
    for devices, count in ((4, 12), (8, 24)):
        yield Row(
            table="two chunks",
            name=f"{devices}x{count} 0.5x",
            problem=make_problem(even_times(2 * devices), num_microbatches=count, memory=0.5 + 1 / devices, chunks=2),
            changes=tuple(CHANGES),
            is_whole=True,
        )


def changed(row: Row) -> Iterator[tuple[str, Problem]]:
    """Its neighbours."""
    rng = random.Random(row.table + row.name)
    names = row.changes if row.is_whole else rng.sample(row.changes, len(row.changes))
    found = ((name, CHANGES[name](row.problem, rng)) for name in names)
    yield from list(found)[: None if row.is_whole else 1]


def measure(row: Row, clean: Plan, *, change: str, problem: Problem) -> Record:
    """Plan a neighbour, and play the row's plan on it."""
    limits, target = Limits(time_limit_s=LIMIT_S), TARGETS.get(row.target)
    verdict = verify(problem, replace(clean, problem=problem.reference(), evidence=None))
    played = verdict.timeline.makespan_ns if verdict.passed and verdict.timeline is not None else None
    found = plan_and_check(problem, limits, target=target)
    return Record(
        table=row.table,
        row=row.name,
        change=change,
        ours_ns=found.evidence.makespan_ns,
        played_ns=played,
        bound_ns=found.evidence.lower_bound_ns,
        is_sound=found.is_verified and found.is_certified,
        soon_s=next((s for s, value in found.incumbents if value <= (played or 0)), None),
        total_s=round(found.total_s, 2),
    )


def continue_records(path: Path, *, until: float, most: int | None) -> list[Record]:
    """The records of a file, with those added that it lacked; none is begun after `until`."""
    records = Records(path, Record)
    known = {(each.table, each.row, each.change) for each in records}
    for row in rows()[:most]:
        missing = [(name, problem) for name, problem in changed(row) if (row.table, row.name, name) not in known]
        if not missing or time.monotonic() > until:
            continue
        clean = plan_and_check(row.problem, Limits(time_limit_s=LIMIT_S), target=TARGETS.get(row.target)).plan
        for name, problem in missing:
            if time.monotonic() > until:
                break
            records.add(measure(row, clean, change=name, problem=problem))
    return records


def summary(records: list[Record]) -> Iterator[str]:
    """A sentence per table."""
    for table in dict.fromkeys(each.table for each in records):
        own = [each for each in records if each.table == table]
        compared = [each for each in own if each.played_ns is not None]
        late = sum((inf if each.soon_s is None else each.soon_s) > SOON_S for each in compared)
        gaps = [each.gap for each in own]
        within = [each.gap <= (0.01 if each.change in {"times +-5 %", "times +-2 %"} else 0.001) for each in own]
        yield (
            f"{table}: {sum(each.is_above for each in own)} of {len(compared)} above the row's plan, {late} of them "
            f"later than {SOON_S:.0f} s; gap within the target in {sum(within)} of {len(own)}, median "
            f"{percent(median(gaps))}, worst {percent(max(gaps))}; {sum(not each.is_sound for each in own)} not sound."
        )


def main() -> None:
    """Continue the records, print a sentence per table, and write the rows to `-o`."""
    parser = make_parser(__doc__)
    parser.add_argument("--records", type=Path, required=True, help="a file with one line per row and change")
    parser.add_argument("--minutes", type=float, default=inf, help="after which no further row is begun")
    given = parser.parse_args()
    until = time.monotonic() + 60 * given.minutes
    records = continue_records(given.records, until=until, most=2 if given.quick else None)
    print("\n".join(summary(records)))
    if given.output is not None:
        given.output.write_text(page(records), encoding="utf-8")


def page(records: list[Record]) -> str:
    """The table as the site reads it, a row a line."""
    about = (
        "Rows with a small change, planned anew in 10 s, as `python -m benchmarks.neighbours` makes them. Beside ours "
        "stands what the row's own plan takes on the changed problem; empty where it does not fit."
    )
    columns = ["table", "row", "change", "ours ms", "row's plan ms", "bound ms", "gap"]
    head = {"title": "Neighbours of the rows of other tables", "about": about, "columns": columns}
    rows = ",\n  ".join(json.dumps(_cells(each)) for each in sorted(records, key=_place))
    return json.dumps(head, indent=1)[:-2] + f',\n "rows": [\n  {rows}\n ]\n}}\n'


def _cells(record: Record) -> list[str]:
    played = "" if record.played_ns is None else ms(record.played_ns)
    times = ms(record.ours_ns), played, ms(record.bound_ns)
    return [record.table, record.row, record.change, *times, percent(record.gap)]


def _place(record: Record) -> tuple[str, list[int], str]:
    """By table, then by the numbers in the row's name."""
    return record.table, [int(number) for number in re.findall(r"\d+", record.row)], record.change


if __name__ == "__main__":
    main()
