"""A stranger's first minute: a clone with empty caches, `make demo`, and when what is on the screen.

Every run clones this repository anew, with a home folder of its own, so that nothing is compiled or downloaded yet
that a stranger would not have; then a second clone beside it, with that home, for what the caches are worth. Packages
come from wherever pip finds them.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import Table, make_parser

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, kw_only=True)
class Minute:
    """What one `make demo` showed, and when."""

    clone: str
    """First or second."""
    first_plan_s: float
    """Seconds from the clone to the first verified plan on the screen."""
    whole_s: float
    """Seconds to the end of the demo."""
    makespan: str
    gap: str


def clone_and_count(folder: Path, *, home: Path, clone: str) -> Minute:
    """Clone into `folder`, run the demo with `home`, and read its screen as it comes."""
    begin = time.monotonic()
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
    if demo.wait() or first is None:
        raise SystemExit(f"the demo failed: {''.join(screen[-5:])}")
    shown = re.search(r"^makespan +([\d,.]+) ms", text := "".join(screen), re.MULTILINE)
    gap = re.search(r"gap ([\d.<]+ %)", text[shown.start() :]) if shown else None
    return Minute(
        clone=clone,
        first_plan_s=first,
        whole_s=time.monotonic() - begin,
        makespan=shown[1] if shown else "",
        gap=gap[1] if gap else "proved",
    )


def main() -> None:
    """Count as many first minutes as asked for."""
    parser = make_parser(__doc__)
    parser.add_argument("--runs", type=int, default=3, help="pairs of clones")
    asked = parser.parse_args()
    table = Table(
        preface=[
            "# The first minute",
            "",
            "From `git clone` on, with an empty home folder: nothing compiled, nothing installed. The second clone has",
            "the first one's home. `python -m benchmarks.first_minute` makes it.",
            "",
        ],
        header=("clone", "first verified plan s", "whole demo s", "makespan ms", "gap"),
        output=asked.output,
    )
    for _ in range(1 if asked.quick else asked.runs):
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder) / "home"
            home.mkdir()
            for name in ("first", "second"):
                seen = clone_and_count(Path(folder) / name, home=home, clone=name)
                table.add((seen.clone, f"{seen.first_plan_s:.0f}", f"{seen.whole_s:.0f}", seen.makespan, seen.gap))
    table.close()


if __name__ == "__main__":
    main()
