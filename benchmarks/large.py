"""Large problems, each planned by a process of its own: `python -m benchmarks.large` (about 12 minutes).

Seconds count from the start of the process, its peak of memory is the system's figure. The plan that it wrote is read,
verified and its bound derived again here. `benchmarks/generate.py` says what the names mean.
"""

import argparse
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.generate import make_workload, parse_family
from benchmarks.report import Table, make_parser, ms, percent
from benchmarks.run import Watched, run_planner
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


def main() -> None:
    """Print the table, and write it where `-o` says."""
    wishes = parse_wishes()
    table = Table.about("# Large problems", __doc__, header=HEADER, output=wishes.output)
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
        outcome = run_planner(source, target, "--time-limit", str(limit_s))
        if not target.exists():
            raise RuntimeError(f"the planner failed on {row.family}: {outcome.said}")
        return judge(row, workload, outcome=outcome, text=target.read_text(encoding="utf-8"), limit_s=limit_s)


def judge(row: Row, workload: Workload, *, outcome: Watched, text: str, limit_s: float) -> tuple[list[str], bool]:
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
        f"{outcome.first_plan_s or outcome.total_s:.1f}",
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


def _is_in_time(row: Row, outcome: Watched) -> bool:
    return (outcome.first_plan_s or outcome.total_s) <= row.first_s and (
        row.total_s is None or outcome.total_s <= row.total_s
    )


def _best_baseline(evidence: Evidence) -> str:
    played = [line for line in evidence.baselines if line.makespan_ns is not None]
    fitting = [line.makespan_ns for line in played if line.fits_memory and line.makespan_ns is not None]
    if fitting:
        return ms(min(fitting))
    return "none fits" if played else "none played"


if __name__ == "__main__":
    main()
