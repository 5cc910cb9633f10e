"""Which committed tables are older than the code they measure: `make bench-age`.

A table names the commit it was made on; it is old if the planner, the solver models or the profiles have changed since.
"""

import re
import subprocess
from pathlib import Path

TABLES = Path("docs/benchmarks")
MEASURED = ("planner", "solver_models", "profiles", "api/service", "api/jobs")


def commits_since(commit: str) -> int | None:
    """How many commits have changed what tables measure; None if the commit is not in this history."""
    done = subprocess.run(
        ("git", "rev-list", "--count", f"{commit}..HEAD", "--", *MEASURED), capture_output=True, text=True, check=False
    )
    return None if done.returncode else int(done.stdout)


def main() -> None:
    """A line per table: its commit and how far the code has gone on."""
    for path in sorted(path for path in TABLES.glob("*.md") if path.stem != "index"):
        stated = re.search(r"Commit: ([0-9a-f]{7,40})", path.read_text(encoding="utf-8"))
        since = commits_since(stated[1]) if stated else None
        if stated is None:
            said = "names no commit: older than version 0.2"
        elif since is None:
            said = f"made on {stated[1]}, which is not in this history"
        else:
            said = f"made on {stated[1]}, " + (f"{since} commits behind the code" if since else "up to date")
        print(f"{path.stem:24} {said}")


if __name__ == "__main__":
    main()
