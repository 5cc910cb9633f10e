"""Large problems, each planned by a process of its own: `python -m benchmarks.large` (about 12 minutes)."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.generate import make_workload, parse_family
from benchmarks.report import Table, make_parser, ms, percent
from planner.batch_problem import problem_for, question_of_workload
from planner.document import parse_plan
from planner.evidence.certificate import check_certificate
from planner.plan import Evidence
from planner.problem import Options
from planner.verify import verify
from profiles.workload import Workload, dump_workload

HEADER = (
    "workload", "limit s", "first plan s", "target s", "s", "best baseline ms", "makespan ms", "lower bound ms",
    "bound", "gap", "target", "verified", "verify s", "certificate", "check s", "peak GiB", "result",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Row:
    """One family and what is asked of its plan."""

    family: str
    """As `benchmarks.generate` names it."""
    limit_s: float
    """Time limit of the planner."""
    first_s: float
    """From the start of the process to the first verified plan, at most."""
    gap: float | None = None
    """Largest gap; None: there only has to be a certified bound."""
    total_s: float | None = None
    """From the start of the process to its end, at most."""
    gib: float = 8.0
    """The planner may hold no more than this."""


ROWS = (
    Row(family="chain-200x64-m256-loose-sparse-four", limit_s=120, first_s=5, gap=0.05),
    Row(family="chain-200x64-m256-mid-two-level-classes", limit_s=120, first_s=5, gap=0.1),
    Row(family="chain-200x64-m256-tight-random-different", limit_s=120, first_s=5, gap=0.1),
    Row(family="chain-200x64-m256-tight-homogeneous-equal", limit_s=120, first_s=5, gap=0.1),
    Row(family="chain-1000x1024-m1024-mid-sparse-four", limit_s=26, first_s=20, total_s=30),
    Row(family="chain-1000x1024-m1024-loose-sparse-four", limit_s=26, first_s=20, total_s=30),
    Row(family="chain-100x512-g4096-mid-sparse-four", limit_s=50, first_s=10, total_s=60, gib=4),
    Row(family="chain-100x512-g4096-mid-sparse-different", limit_s=50, first_s=10, total_s=60, gib=4),
)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a planning process did."""

    first_plan_s: float
    """From its start to its first verified plan."""
    total_s: float
    """From its start to its end, the plan written."""
    peak_gib: float
    """The most memory it held."""


def main() -> None:
    """Print the table, and write it where `-o` says."""
    wishes = parse_wishes()
    table = Table(preface=_preface(), header=HEADER, output=wishes.output)
    rows = [row for row in ROWS if wishes.only in row.family]
    results = []
    for row in rows[:1] if wishes.quick else rows:
        cells, is_met = plan_row(row, limit_s=5.0 if wishes.quick else row.limit_s)
        results.append(is_met)
        table.add(cells)
    table.close(f"* target met in {sum(results)} of {len(results)} rows.")


def parse_wishes() -> argparse.Namespace:
    """The switches."""
    parser = make_parser(__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="only the rows whose name contains this")
    return parser.parse_args()


def plan_row(row: Row, *, limit_s: float) -> tuple[list[str], bool]:
    """A row of the table, and whether its target is met."""
    workload = make_workload(parse_family(row.family))
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "workload.json", Path(folder) / "plan.json"
        source.write_text(dump_workload(workload), encoding="utf-8")
        outcome = run_planner(source, target, limit_s=limit_s)
        return judge(row, workload, outcome=outcome, text=target.read_text(encoding="utf-8"), limit_s=limit_s)


def run_planner(source: Path, target: Path, *, limit_s: float) -> Outcome:
    """Run `pipeplan plan` as a process of its own and watch it."""
    command = [sys.executable, "-m", "api", "plan", str(source), "--time-limit", str(limit_s)]
    begin, first = time.monotonic(), None
    process = subprocess.Popen([*command, "--json", "-o", str(target)], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for event in process.stderr:
        if first is None and event.startswith("{") and json.loads(event).get("incumbent_ns") is not None:
            first = time.monotonic() - begin
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    total_s = time.monotonic() - begin
    if process.returncode:
        raise RuntimeError(f"the planner failed with exit code {process.returncode} on {source.name}")
    return Outcome(first_plan_s=first or total_s, total_s=total_s, peak_gib=usage.ru_maxrss / 2**20)


def judge(row: Row, workload: Workload, *, outcome: Outcome, text: str, limit_s: float) -> tuple[list[str], bool]:
    """Verify the plan that was written and derive its bound again, as a stranger would."""
    plan = parse_plan(text)
    problem = problem_for(question_of_workload(workload, Options()), plan)
    evidence = plan.evidence
    assert evidence is not None
    begin = time.monotonic()
    is_verified = verify(problem, plan).passed
    verified = time.monotonic()
    is_certified = check_certificate(problem, evidence.certificate) == evidence.lower_bound_ns
    checked = time.monotonic()
    is_met = is_verified and is_certified and _is_in_time(row, outcome) and outcome.peak_gib < row.gib
    is_met = is_met and (row.gap is None or evidence.gap <= row.gap)
    return [
        row.family,
        f"{limit_s:g}",
        f"{outcome.first_plan_s:.1f}",
        f"{row.first_s:g}",
        f"{outcome.total_s:.0f}",
        _best_baseline(evidence),
        ms(evidence.makespan_ns),
        ms(evidence.lower_bound_ns),
        evidence.bound_kind,
        percent(evidence.gap),
        "a bound" if row.gap is None else percent(row.gap),
        "yes" if is_verified else "NO",
        f"{verified - begin:.1f}",
        "re-derived" if is_certified else "REJECTED",
        f"{checked - verified:.1f}",
        f"{outcome.peak_gib:.2f}",
        "met" if is_met else "MISSED",
    ], is_met


def _is_in_time(row: Row, outcome: Outcome) -> bool:
    return outcome.first_plan_s <= row.first_s and (row.total_s is None or outcome.total_s <= row.total_s)


def _best_baseline(evidence: Evidence) -> str:
    played = [line for line in evidence.baselines if line.makespan_ns is not None]
    fitting = [line.makespan_ns for line in played if line.fits_memory and line.makespan_ns is not None]
    if fitting:
        return ms(min(fitting))
    return "none fits" if played else "none played"


def _preface() -> list[str]:
    return [
        "# Large problems",
        "",
        "Every plan is made by a process of its own, `pipeplan plan --time-limit ...`: its seconds count from its",
        "start, its peak of memory is the system's figure. The plan it wrote is then read, verified and its bound",
        "derived again here. `benchmarks/generate.py` says what the names mean. Baselines of the largest rows that",
        "were not played for want of time are listed as such in the plan.",
        "",
    ]


if __name__ == "__main__":
    main()
