"""A stranger's first minute: a clone with empty caches, `make demo`, and when what is on the screen.

The first clone has a home folder of its own, in which nothing is compiled or downloaded that a stranger would not have;
the second lies elsewhere, makes its own environment and shares that home, for what the caches are worth. The demo
then runs again and again in the second clone, until there are as many runs as asked for. `--busy`: all of it once
more, from an empty home on, beside a process that never waits. Packages come from wherever pip finds them. Takes four
minutes, with `--busy` ten; ends with 1 if a target is missed.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import Table, make_parser, percent
from benchmarks.time_limits import busy_process

ROOT = Path(__file__).resolve().parent.parent

HEADER = ("run", "beside", "first verified plan s", "whole demo s", "target s", "kept", "makespan ms", "gap")

FIRST, SECOND, AGAIN = "first clone", "second clone", "again"

TARGETS = {FIRST: (75, 100), SECOND: (40, 40)}
"""Seconds to the first verified plan and to the end of the demo, on two cores that do nothing else."""

SPREAD = 0.005
"""By how much the makespans of all runs may differ."""


@dataclass(frozen=True, kw_only=True)
class Minute:
    """What one `make demo` showed, and when."""

    run: str
    """First clone, second clone, or again in the second."""
    first_plan_s: float
    """Seconds from the clone, or from the command where nothing is cloned, to the first verified plan on the screen."""
    whole_s: float
    """Seconds to the end of the demo."""
    makespan_ms: float
    gap: str

    @property
    def is_kept(self) -> bool:
        """Whether both targets are met, where the run has any."""
        plan_s, whole_s = TARGETS.get(self.run, (float("inf"), float("inf")))
        return self.first_plan_s <= plan_s and self.whole_s <= whole_s


def demos(folder: Path, *, runs: int) -> Iterator[Minute]:
    """The demo in two clones with an empty home, and in the second one again."""
    home = folder / "home"
    home.mkdir()
    yield run_demo(folder / "one", home=home, run=FIRST)
    yield run_demo(folder / "elsewhere" / "two", home=home, run=SECOND)
    for _ in range(runs - 2):
        yield run_demo(folder / "elsewhere" / "two", home=home, run=AGAIN)


def run_demo(folder: Path, *, home: Path, run: str) -> Minute:
    """Clone into `folder` if need be, run the demo with `home`, and read its screen as it comes."""
    begin = time.monotonic()
    if run != AGAIN:
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    keep = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_", "XDG_", "PYTHON"))}
    demo = subprocess.Popen(
        ["make", "demo"], cwd=folder, env=keep | {"HOME": str(home)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip
    assert demo.stdout is not None
    first, screen = None, []
    for line in demo.stdout:
        screen.append(line)
        sys.stderr.write(line)
        if first is None and re.search(r"incumbent +[\d,.]+ ms", line):
            first = time.monotonic() - begin
    shown = re.search(r"^makespan +([\d,.]+) ms", text := "".join(screen), re.MULTILINE)
    if demo.wait() or first is None or shown is None:
        raise SystemExit(f"the demo failed: {''.join(screen[-5:])}")
    gap = re.search(r"gap ([\d.<]+ %)", text[shown.start() :])
    return Minute(
        run=run,
        first_plan_s=first,
        whole_s=time.monotonic() - begin,
        makespan_ms=float(shown[1].replace(",", "")),
        gap=gap[1] if gap else "proved",
    )


def row(seen: Minute, beside: str) -> list[str]:
    """The cells of a run."""
    target = " and ".join(str(seconds) for seconds in TARGETS.get(seen.run, ())) or "–"
    kept = "–" if seen.run not in TARGETS else "yes" if seen.is_kept else "**no**"
    times = (f"{seen.first_plan_s:.1f}", f"{seen.whole_s:.1f}")
    return [seen.run, beside, *times, target, kept, f"{seen.makespan_ms:,.1f}", seen.gap]


def main() -> None:
    """Count as many first minutes as asked for."""
    parser = make_parser(__doc__)
    parser.add_argument("--runs", type=int, default=10, help="demos in all, those of the two clones included")
    parser.add_argument("--busy", action="store_true", help="the same again beside a busy process")
    asked = parser.parse_args()
    table = Table(
        preface=[
            "# The first minute",
            "",
            "From `git clone` on, with an empty home folder: nothing compiled, nothing installed. The second clone, at",
            "another path and with an environment of its own, has the first one's home; `again` is `make demo` in that",
            "clone, timed from the command. Targets are for idle cores: seconds to the first verified plan and in all.",
            "`python -m benchmarks.first_minute --busy` makes it.",
            "",
        ],
        header=HEADER,
        output=asked.output,
    )
    is_kept, remarks = True, list[str]()
    for beside in ("nothing", "a busy process") if asked.busy else ("nothing",):
        busy = nullcontext() if beside == "nothing" else busy_process()
        with tempfile.TemporaryDirectory() as folder, busy:
            found = []
            for seen in demos(Path(folder), runs=2 if asked.quick else asked.runs):
                table.add(row(seen, beside))
                found.append(seen.makespan_ms)
                is_kept &= seen.is_kept or beside != "nothing"
        spread = max(found) / min(found) - 1
        is_kept &= spread <= SPREAD
        remarks.append(
            f"Beside {beside}: the makespans of {len(found)} runs lie within {percent(spread)} of each other."
        )
    table.close(*remarks)
    sys.exit(0 if is_kept else 1)


if __name__ == "__main__":
    main()
