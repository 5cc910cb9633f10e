"""Plans every workload of a folder, each in a process of its own, and writes the table: `python -m benchmarks.run`."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.report import Table, ms, percent
from profiles.load import demo_names, load_workload

HEADER = (
    "workload", "layers", "devices", "micro-batches", "best baseline", "ms", "ours ms", "ratio",
    "schedule bound", "lower bound", "bound", "gap", "claimed bound", "verify --certificate", "first plan s", "all s",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Watched:
    """What a planning process did."""

    first_plan_s: float | None
    """From its start to its first verified plan."""
    total_s: float
    """From its start to its end."""
    peak_gib: float
    """The most memory it held, by the system's figure."""
    said: str
    """Its last line."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One workload planned."""

    name: str
    num_layers: int
    num_devices: int
    num_microbatches: int
    watched: Watched
    plan: dict[str, object] | None
    """The plan document; None if there is none."""
    is_certified: bool = False
    """Whether `pipeplan verify --certificate`, given nothing but the plan, passes it."""
    message: str = ""
    """Why there is none."""


def run_planner(source: str | Path, target: Path, *options: str) -> Watched:
    """Run `pipeplan plan` as a process of its own and watch it."""
    command = [sys.executable, "-m", "api", "plan", str(source), "--json", "-o", str(target), *options]
    begin, first, said = time.monotonic(), None, ""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for said in process.stderr:
        if first is None and '"incumbent_ns": ' in said and '"incumbent_ns": null' not in said:
            first = time.monotonic() - begin
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    total_s = time.monotonic() - begin
    return Watched(first_plan_s=first, total_s=total_s, peak_gib=usage.ru_maxrss / 2**20, said=said)


def plan_one(source: str, *, time_limit_s: float, seed: int) -> Row:
    """Plan `source` with the command line, as a user would."""
    workload = load_workload(source)
    assert workload.cluster is not None
    assert workload.num_microbatches is not None
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "plan.json"
        options = ["--time-limit", str(time_limit_s), "--seed", str(seed)]
        watched = run_planner(source, output, *options)
        plan = json.loads(output.read_text(encoding="utf-8")) if output.exists() else None
        is_certified = plan is not None and passes_alone(output)
    return Row(
        name=workload.profile.name if source.startswith("demo:") else Path(source).stem,
        num_layers=len(workload.profile.layers),
        num_devices=len(workload.cluster.devices),
        num_microbatches=workload.num_microbatches,
        watched=watched,
        plan=plan,
        is_certified=is_certified,
        message="" if plan else watched.said.strip()[:200],
    )


def passes_alone(plan: Path) -> bool:
    """Whether the command line passes a plan and everything its evidence states, without the workload."""
    command = (sys.executable, "-m", "api", "verify", "--certificate", str(plan))
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def render_row(row: Row) -> list[str]:
    """The cells of a workload."""
    start = [row.name, str(row.num_layers), str(row.num_devices), str(row.num_microbatches)]
    if row.plan is None:
        return [*start, row.message, *[""] * (len(HEADER) - 6), f"{row.watched.total_s:.1f}"]
    evidence = row.plan["evidence"]
    assert isinstance(evidence, dict)
    fitting = [b for b in evidence["baselines"] if b["fits_memory"]]
    best = min(fitting, key=lambda baseline: baseline["makespan_ns"], default=None)
    ours = evidence["makespan_ns"]
    return [
        *start,
        best["name"] if best else "none fits",
        ms(best["makespan_ns"]) if best else "–",
        ms(ours),
        f"{ours / best['makespan_ns']:.3f}" if best else "–",
        ms(evidence["schedule_bound_ns"]) if evidence["schedule_bound_ns"] else "–",
        ms(evidence["lower_bound_ns"]),
        evidence["certificate"]["kind"],
        f"{100 * evidence['gap']:.2f} %",
        ms(evidence["solver_bound_ns"]) if evidence["solver_bound_ns"] else "–",
        "yes" if row.is_certified else "no",
        f"{row.watched.first_plan_s:.2f}" if row.watched.first_plan_s is not None else "–",
        f"{row.watched.total_s:.1f}",
    ]


def sources_of(folders: list[str]) -> list[str]:
    """The workloads to plan: those of the folders, or our own and the demos."""
    if not folders:
        own = sorted(str(path) for path in (Path(__file__).parent / "workloads").glob("*.json"))
        return [*(f"demo:{name}" for name in demo_names()), *own]
    return [str(path) for folder in folders for path in sorted(Path(folder).glob("*.json"))]


def main() -> None:
    """Plan everything and write the table to standard output, and to `-o` as it grows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "folders", nargs="*", help="folders of workload documents (default: benchmarks/workloads and the demos)"
    )
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds per workload")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--title", default="Demos and generated workloads", help="the table's heading")
    parser.add_argument("-o", "--output", type=Path, help="also write the table here")
    given = parser.parse_args()
    preface = (
        f"# {given.title}",
        "",
        f"Time limit {given.time_limit:g} s per workload, seed {given.seed}. Times in ms unless marked; "
        "gap = (ours - lower bound) / ours, certified; a claimed bound is a solver's word.",
    )
    table = Table(preface=preface, header=HEADER, output=given.output)
    rows = []
    for source in sources_of(given.folders):
        rows.append(plan_one(source, time_limit_s=given.time_limit, seed=given.seed))
        table.add(render_row(rows[-1]))
    table.close(summary(rows))


def summary(rows: list[Row]) -> str:
    """Median and worst gap, and what was not certified."""
    gaps = {row.name: float(row.plan["evidence"]["gap"]) for row in rows if row.plan is not None}  # type: ignore[index]
    if not gaps:
        return "No plan was found."
    worst = max(gaps, key=lambda name: gaps[name])
    open_ones = ", ".join(row.name for row in rows if not row.is_certified) or "none"
    return (
        f"{len(gaps)} of {len(rows)} planned; gap: median {percent(median(gaps.values()))}, "
        f"worst {percent(gaps[worst])} ({worst}); rejected by `verify --certificate`: {open_ones}."
    )


if __name__ == "__main__":
    main()
