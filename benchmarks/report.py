"""What every benchmark table shares: the machine, the Markdown, and one plan with its proofs checked."""

import argparse
import os
import platform
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from planner.evidence.certificate import check_certificate
from planner.export.targets import Target
from planner.plan import Evidence, Plan
from planner.planning import Limits, Progress, make_plan
from planner.problem import Problem
from planner.verify import verify


@dataclass(frozen=True, kw_only=True)
class Planned:
    """One problem planned, its plan verified again and its certificate re-derived."""

    plan: Plan
    """What the planner returned."""
    evidence: Evidence
    """Its evidence."""
    incumbents: tuple[tuple[float, int], ...]
    """Seconds from the call to each improvement, with its nanoseconds."""
    total_s: float
    """From the call to the returned plan, without the checks below."""
    processor_s: float
    """Of all threads, as long."""
    is_verified: bool
    """Whether `verify` passes it once more."""
    is_certified: bool
    """Whether `check_certificate` derives exactly the stated lower bound."""

    @property
    def gap(self) -> float:
        """(makespan - lower bound) / makespan."""
        return self.evidence.gap

    @property
    def best_s(self) -> float:
        """From the call to the last improvement."""
        return self.incumbents[-1][0] if self.incumbents else 0.0


def plan_and_check(
    problem: Problem, limits: Limits, *, start: Plan | None = None, target: Target | None = None
) -> Planned:
    """Plan `problem`, from `start` on if given; then verify the plan and re-derive its bound as a stranger would."""
    begin, processor = time.monotonic(), time.process_time()
    incumbents = list[tuple[float, int]]()

    def listen(progress: Progress) -> None:
        reached = progress.incumbent_ns
        if reached is not None and (not incumbents or reached != incumbents[-1][1]):
            incumbents.append((time.monotonic() - begin, reached))

    plan = make_plan(problem, limits=limits, start=start, on_progress=listen, target=target)
    total_s, processor_s = time.monotonic() - begin, time.process_time() - processor
    assert plan.evidence is not None
    return Planned(
        plan=plan,
        evidence=plan.evidence,
        incumbents=tuple(incumbents),
        total_s=total_s,
        processor_s=processor_s,
        is_verified=verify(problem, plan).passed,
        is_certified=check_certificate(problem, plan.evidence.certificate) == plan.evidence.lower_bound_ns,
    )


def describe_machine() -> str:
    """The machine a table was made on, in a sentence."""
    model = next(
        (line.split(":")[1].strip() for line in _cpu_lines() if line.startswith("model name")), platform.processor()
    )
    return f"{os.cpu_count()} cores ({model}), Python {platform.python_version()}, {platform.system()}"


def describe_commit() -> str:
    """The commit a table was made on, as `make bench-age` reads it."""

    def git(*arguments: str) -> str:
        return subprocess.run(("git", *arguments), capture_output=True, text=True, check=False).stdout.strip()

    changed = " with changes" if git("status", "--porcelain", "--untracked-files=no", "--", "*.py") else ""
    return (git("rev-parse", "--short=12", "HEAD") or "unknown") + changed


def _cpu_lines() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def line(cells: Iterable[str]) -> str:
    """A row of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def ms(nanoseconds: int) -> str:
    """Milliseconds with two digits."""
    return f"{nanoseconds / 1e6:,.2f}"


def percent(part: float) -> str:
    """E.g. `1.25 %`."""
    return f"{100 * part:.2f} %"


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """The switches of every benchmark: `--quick` and `-o`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="a few rows with short limits, to see that it works")
    parser.add_argument("-o", "--output", type=Path, help="also write the table here, as it grows")
    return parser


class Table:
    """A Markdown table that is printed, and written to a file, row by row.

    One whose preface begins with `## ` is a section of a page: what else stands there is left alone.
    """

    @classmethod
    def about(cls, title: str, text: str | None, *, header: Sequence[str], output: Path | None = None) -> "Table":
        """One whose preface is a heading and a module's docstring."""
        return cls(preface=(title, "", " ".join((text or "").split()), ""), header=header, output=output)

    def __init__(self, *, preface: Sequence[str], header: Sequence[str], output: Path | None = None) -> None:
        self.output = output
        self.lines: list[str] = []
        self._append(
            *preface,
            f"Machine: {describe_machine()}. Commit: {describe_commit()}.",
            "",
            line(header),
            "|" + " --- |" * len(header),
        )

    def add(self, cells: Iterable[str]) -> None:
        """One more row."""
        self._append(line(cells))

    def close(self, *remarks: str) -> None:
        """End the table; `remarks` are the paragraphs below it."""
        self._append("", *remarks)

    def _append(self, *lines: str) -> None:
        print("\n".join(lines), flush=True)
        self.lines.extend(lines)
        if self.output is not None:
            self.output.parent.mkdir(parents=True, exist_ok=True)
            before, after = self._others(self.output)
            self.output.write_text(before + "\n".join(self.lines).rstrip("\n") + "\n" + after, encoding="utf-8")

    def _others(self, page: Path) -> tuple[str, str]:
        """What stands on the page before and after this section; nothing for a table that is the whole page."""
        heading = self.lines[0]
        if not heading.startswith("## ") or not page.exists():
            return "", ""
        before, _, rest = ("\n" + page.read_text(encoding="utf-8")).partition(f"\n{heading}\n")
        _, mark, after = rest.partition("\n## ")
        return before.strip("\n") + "\n\n", mark + after
