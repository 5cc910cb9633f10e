"""What share of the branches the tests take: measured, printed, and held against a floor that only rises.

`make test` runs it behind the quick tests, which it watches, `make branches` behind all tests of the three packages.
Compiled functions are left out, for no tracer sees into them; tests compare what they give with plain Python and with
enumeration.
"""

import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import coverage

ROOT = Path(__file__).resolve().parent.parent
SLACK = 1.0
"""Percentage points that may lie between the floor and what is measured."""
ELDERS = ("HEAD", "HEAD^", "main", "origin/main")
"""Commits whose floor must not be higher, as far as they are here."""


WHOLE, QUICK = "branch_floor_percent", "quick_branch_floor_percent"
"""The floors' names in pyproject.toml: of `make branches`, and of the quick tests in `make test`."""


def floor_of(text: str, name: str = WHOLE) -> float | None:
    """The floor in the text of a pyproject.toml, if it has one."""
    floor = tomllib.loads(text).get("tool", {}).get("quick", {}).get(name)
    return None if floor is None else float(floor)


def earlier_floors(name: str) -> Iterator[tuple[str, float]]:
    """What other commits say, with the commits' names."""
    for commit in ELDERS:
        shown = subprocess.run(
            ["git", "show", f"{commit}:pyproject.toml"], cwd=ROOT, capture_output=True, text=True, check=False
        )
        floor = floor_of(shown.stdout, name) if shown.returncode == 0 else None
        if floor is not None:
            yield commit, floor


def measured(data: coverage.Coverage) -> dict[str, float]:
    """Percent of the branches taken, of each package and of all, of files that were watched."""
    taken, there = Counter[str](), Counter[str]()
    for path in data.get_data().measured_files():
        package = Path(path).resolve().relative_to(ROOT).parts[0]
        for exits, used in data.branch_stats(path).values():
            for name in (package, "all"):
                there[name] += exits
                taken[name] += used
    return {name: 100 * taken[name] / there[name] for name in sorted(there, key=lambda name: (name == "all", name))}


def complaint(percent: float, floor: float, earlier: dict[str, float]) -> str | None:
    """What is wrong with the floor, given what was measured and what other commits say."""
    for commit, before in earlier.items():
        if floor < before:
            return f"the floor is {floor} %, and {commit} has {before} %; it is never lowered"
    if percent < floor:
        return f"{percent:.2f} % of the branches are taken, less than the floor of {floor} %; test what was added"
    return None


def advice(percent: float, floor: float, *, name: str = WHOLE) -> str | None:
    """What the floor should be, if the tests take more branches than it asks for by far."""
    if percent < floor + SLACK:
        return None
    return f"{percent:.2f} % of the branches are taken: raise {name} in pyproject.toml to {int(percent * 10) / 10}"


def main(name: str = WHOLE) -> str | None:
    """Print the shares of the last run, and return what is wrong with the floor."""
    data = coverage.Coverage()
    data.load()
    shares = measured(data)
    for package, percent in shares.items():
        sys.stdout.write(f"{package:15s} {percent:6.2f} % of the branches\n")
    floor = floor_of((ROOT / "pyproject.toml").read_text(encoding="utf-8"), name)
    if floor is None:
        return f"pyproject.toml has no {name}"
    if (risen := advice(shares["all"], floor, name=name)) is not None:
        sys.stdout.write(f"{risen}\n")
    return complaint(shares["all"], floor, dict(earlier_floors(name)))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
