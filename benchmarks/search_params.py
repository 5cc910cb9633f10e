"""What parameters of the search are worth: each halved and doubled, the others as they are by default.

Those of the joint search by the joint search alone, the others by whole planning runs on small workloads, with the same
seed and the same number of rounds on one thread: processor seconds depend on the machine, plans and bounds do not. A
parameter is tried on every workload of its group whose run asks for it. A change of a plan below the spread of the
seeds says nothing.

    python -m benchmarks.search_params [WORKLOAD ...] --records FILE [-o docs/benchmarks/search_params.md]

What is in the file of records already is not run again. With `--table` nothing is run.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any
from unittest.mock import patch

from benchmarks.report import Table
from benchmarks.search_workloads import SHORTER, TIMED, WORKLOADS, TimedWorkload, Workload
from planner.bounds.bound_params import BoundParams
from planner.planning.named_params import describe_params, params_with
from solver_models.search_params import ParamGroup, group_name

HEADER = ("parameter", "value", "default", "workloads", "plans %", "bounds %", "processor time")

ASKED_BY_ALL = ("planner.planning.named_params", "solver_models.search_params")
"""Modules that read every parameter, to name or to check it."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A search with some parameters and one seed."""

    objective: int
    """Of the best plan, in nanoseconds, or in millionths of a millionth of money."""
    bound: int | None
    """The lower bound on all plans, alike; None: none was looked for."""
    cpu_s: float


@dataclass(frozen=True, kw_only=True)
class Record(Outcome):
    """The same with what was searched, and how."""

    workload: str
    seed: int
    parameter: str
    """Empty: all as they are."""
    value: Any


def asked_for(run: Callable[[], object]) -> set[str]:
    """The parameters that a run reads."""
    found = set[str]()

    def read(group: object, name: str) -> Any:
        if not name.startswith("_") and sys._getframe(1).f_globals["__name__"] not in ASKED_BY_ALL:
            found.add(f"{group_name(type(group))}.{name}")
        return object.__getattribute__(group, name)

    with ExitStack() as patches:
        for kind in (ParamGroup, BoundParams):
            patches.enter_context(patch.object(kind, "__getattribute__", read))
        run()
    return found


def changes(workload: Workload, asked: set[str]) -> Iterator[tuple[str, object]]:
    """Half and twice of every number and list of numbers that a workload is for, as far as that is another value.

    Under a time limit only of those that are named.
    """
    for param in describe_params():
        if isinstance(workload, TimedWorkload) and param.name not in workload.parameters:
            continue
        if param.name in asked and param.name.partition(".")[0] in workload.groups:
            usual = workload.usual.get(param.name, param.default)
            for factor in (0.5, 2.0):
                value = scaled(usual, factor)
                if value != usual and is_allowed({param.name: value}):
                    yield param.name, value


def scaled(value: object, factor: float) -> object:
    """A number, or all numbers of a list, times the factor; whole numbers stay whole, and at least 1."""
    if isinstance(value, list):
        return [scaled(each, factor) for each in value]
    if value is None:
        return None
    assert isinstance(value, int | float)
    return max(1, round(value * factor)) if isinstance(value, int) else value * factor


def is_allowed(changed: Mapping[str, object]) -> bool:
    """Whether the parameters take these values."""
    try:
        params_with(changed)
    except ValueError:
        return False
    return True


def run_once(workload: Workload, *, seed: int, parameter: str = "", value: object = None) -> Record:
    """A search with one parameter changed."""
    params = params_with({**workload.usual, **({parameter: value} if parameter else {})})
    begin = time.process_time()
    objective, bound = workload.solve(params, seed=seed)
    cpu_s = time.process_time() - begin
    shown = {"workload": workload.name, "seed": seed, "parameter": parameter, "value": value}
    return Record(objective=objective, bound=bound, cpu_s=cpu_s, **shown)


class Records:
    """Searches that were made, one in every line of a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self.known = [Record(**json.loads(each)) for each in lines]

    def of(self, workload: Workload) -> list[Record]:
        """Those on one workload."""
        return [each for each in self.known if each.workload == workload.name]

    def has(self, workload: Workload, *, parameter: str, value: object, seed: int) -> bool:
        """Whether a search was made already."""
        wanted = workload.name, parameter, value, seed
        return any((each.workload, each.parameter, each.value, each.seed) == wanted for each in self.known)

    def add(self, record: Record) -> None:
        """Keep it, and write it."""
        self.known.append(record)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(record)) + "\n")


def measure(workload: Workload, records: Records, *, num_seeds: int) -> None:
    """All searches on a workload that were not made yet: the default with every seed, then every change."""
    asked = asked_for(lambda: run_once(workload, seed=0))  # kernels are loaded before anything is timed
    for seed in range(num_seeds):
        if not records.has(workload, parameter="", value=None, seed=seed):
            records.add(run_once(workload, seed=seed))
    for name, value in changes(workload, asked):
        if not records.has(workload, parameter=name, value=value, seed=0):
            records.add(run_once(workload, seed=0, parameter=name, value=value))


@dataclass(frozen=True, kw_only=True)
class Effect:
    """What a changed parameter did on one workload, relative to the default with the same seed."""

    workload: str
    plan: float
    """How many times as long plans take."""
    bound: float
    """How many times as large the bound is."""
    cpu: float
    """How many times as much processor time it took."""
    noise: float
    """The standard deviation of the plans that the default finds with other seeds, as a part of them."""

    @property
    def is_none(self) -> bool:
        """Whether plan and bound are the very same."""
        return self.plan == 1 and self.bound == 1


def effects(records: Sequence[Record]) -> dict[tuple[str, str], list[Effect]]:
    """By parameter and value (as JSON), workload by workload."""
    usual = {(each.workload, each.seed): each for each in records if not each.parameter}
    noise = {
        name: pstdev(found) / fmean(found)
        for name in {name for name, _ in usual}
        for found in [[each.objective for (other, _), each in usual.items() if other == name]]
    }
    found: dict[tuple[str, str], list[Effect]] = {}
    for each in records:
        before = usual.get((each.workload, each.seed))
        if each.parameter and before is not None:
            effect = Effect(
                workload=each.workload,
                plan=each.objective / before.objective,
                bound=each.bound / before.bound if each.bound and before.bound else 1.0,
                cpu=each.cpu_s / before.cpu_s,
                noise=noise[each.workload],
            )
            found.setdefault((each.parameter, json.dumps(each.value)), []).append(effect)
    return found


def mean(values: Sequence[float]) -> float:
    """The geometric mean."""
    return math.exp(fmean(map(math.log, values)))


def rows_of(records: Sequence[Record]) -> Iterator[list[str]]:
    """Every change, in the order of the parameters."""
    found = effects(records)
    for param in describe_params():
        for value, of_value in ((value, each) for (name, value), each in found.items() if name == param.name):
            plan, bound, cpu = (mean([getattr(each, what) for each in of_value]) for what in ("plan", "bound", "cpu"))
            names = ", ".join(each.workload for each in of_value)
            shown = [f"{100 * (plan - 1):+.2f}", f"{100 * (bound - 1):+.2f}", f"{cpu:.2f}"]
            yield [f"`{param.name}`", value, json.dumps(param.default), names, *shown]


def seeds_of(records: Sequence[Record]) -> str:
    """How much the plans of every workload differ from seed to seed."""
    named = dict.fromkeys(each.workload for each in records)
    spread = dict.fromkeys(named, 0.0)
    for each in (each for of_value in effects(records).values() for each in of_value):
        spread[each.workload] = each.noise
    return "; ".join(f"{name} {100 * part:.2f} %" for name, part in spread.items())


def main() -> None:
    """Make the searches that are missing, then write the table to standard output, and to `-o`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = {str(number): each for number, each in enumerate((*WORKLOADS, *TIMED))}
    parser.add_argument(
        "workloads", nargs="*", choices=[*names, []], help="numbers, those of TIMED after WORKLOADS; default: all"
    )
    parser.add_argument("--records", type=Path, required=True, help="searches made so far, to which others are added")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of the default, for the spread")
    parser.add_argument("--table", action="store_true", help="make no search")
    parser.add_argument("-o", "--output", type=Path, help="also write the table here")
    given = parser.parse_args()
    records = Records(given.records)
    for number in given.workloads or names if not given.table else ():
        measure(names[number], records, num_seeds=given.seeds)
    preface = (
        "# Parameters of the search",
        "",
        "Each parameter halved and doubled on every small workload of its group whose run asks for it, seed 0, a",
        f"counted number of rounds, tasks {SHORTER} times as short as usual (`benchmarks/search_params.py`).",
        "",
        "*Plans*: by how much they take longer (+) or less long (-) than with the default; *bounds*: by how much they",
        "are larger (+) or smaller (-); *processor time*: as many times as with the default; each the geometric mean.",
        "The standard deviation of the default's plans over the seeds is, by workload:",
        f"{seeds_of(records.known)}.",
        "",
    )
    table = Table(preface=preface, header=HEADER, output=given.output)
    for row in rows_of(records.known):
        table.add(row)
    table.close("A change of plans within about twice that deviation says nothing.")


if __name__ == "__main__":
    main()
