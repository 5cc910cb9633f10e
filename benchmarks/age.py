"""Which committed tables are older than the code they measure: `make bench-age`; it ends with 1 if one is too old."""

import re
import subprocess
import sys
from pathlib import Path

TABLES = Path("docs/benchmarks")

SEARCH = (
    *(f"planner/{room}" for room in ("baselines", "bounds", "decisions", "layout", "planning", "simulation")),
    "solver_models",
)
RUNS = ("planner/execute", "planner/fidelity", "profiles/measure")
MEASURED = {
    "audits": ("api/auditing", "profiles"),
    "exactness": ("planner/execute",),
    "fidelity": RUNS,
    "gpu": RUNS,
    "measured_iterations": ("profiles",),
    "plays": ("solver_models",),
    "service": ("api/jobs", "api/service"),
}
"""The code that a table measures; the search, where nothing is said."""

MOST_COMMITS = 100
"""A table that is further behind is to be made again."""


def commits_since(commit: str, folders: tuple[str, ...]) -> int | None:
    """How many commits have changed `folders` since; None if the commit is not in this history."""
    done = subprocess.run(
        ("git", "rev-list", "--count", f"{commit}..HEAD", "--", *folders), capture_output=True, text=True, check=False
    )
    return None if done.returncode else int(done.stdout)


def main() -> int:
    """A line per table and commit; 1 if one is further behind than `MOST_COMMITS`, or not in this history."""
    is_old = False
    for path in sorted(path for path in TABLES.glob("*.md") if path.stem != "index"):
        stated = re.findall(r"Commit:\s([0-9a-f]{7,40})", path.read_text(encoding="utf-8"))
        for commit in stated or [""]:
            since = commits_since(commit, MEASURED.get(path.stem, SEARCH)) if commit else None
            is_old |= since is None or since > MOST_COMMITS
            behind = "not in this history" if since is None else f"{since} commits behind the code"
            print(f"{path.stem:24} made on {commit or 'no commit'}, {behind}")
    return int(is_old)


if __name__ == "__main__":
    sys.exit(main())
