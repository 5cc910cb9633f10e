"""Which tests `make quick` runs: those that take most branches in little time, chosen from a run of all.

    pytest --cov --cov-report= --cov-context=test --junitxml=tests.xml tests/planner tests/profiles tests/solver_models
    python -m tests.choose_quick tests.xml > tests/quick_tests.txt

The list names test functions, whatever their parameters, or whole files. By hand come those that take no branch of the
three packages: house rules and documents.
"""

import sqlite3
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing
from heapq import heapify, heappop, heappush
from pathlib import Path

import coverage

from tests.conftest import UNWATCHED

MOST_S, LEAST_PER_S = 25.0, 0.35
"""Seconds of the longest test that is taken, and branches per second of one that takes more than a few."""

FEW_S = 4.0
"""Seconds below which a test is short."""

Arc = tuple[str, int, int]
"""A file and two lines: a branch that was taken."""


def seconds_of(report: Path) -> Mapping[str, float]:
    """Seconds of every test function, from pytest's JUnit report."""
    found: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        file = case.attrib["classname"].replace(".", "/") + ".py"
        found[f"{file}::{case.attrib['name'].partition('[')[0]}"] += float(case.attrib["time"])  # type: ignore[assignment]
    return found


def branches_of(data_file: Path) -> dict[str, set[Arc]]:
    """The branches that every test function takes; under the empty name those of imports.

    Read by one query (the schema is in coverage's documentation): its interface asks once per test and file.
    """
    measured = coverage.Coverage(data_file=str(data_file))
    measured.load()
    with closing(sqlite3.connect(data_file)) as database:
        files = dict(database.execute("SELECT id, path FROM file"))
        tests = dict(database.execute("SELECT id, context FROM context"))
        rows = database.execute("SELECT file_id, context_id, fromno, tono FROM arc").fetchall()
    starts = {number: starts_of(measured, path) for number, path in files.items()}
    found: dict[str, set[Arc]] = defaultdict(set)
    for file, test, begin, end in rows:
        if begin in starts[file]:
            found[tests[test].partition("|")[0].partition("[")[0]].add((files[file], begin, end))
    return found


def starts_of(measured: coverage.Coverage, path: str) -> set[int]:
    """The lines of a file where branches begin."""
    return set(measured.branch_stats(path))


def choose(branches: Mapping[str, set[Arc]], seconds: Mapping[str, float]) -> Iterator[str]:
    """Test functions, the one with most new branches per second first, while that is worth its time."""
    taken = set(branches.get("", set()))
    heap = [(-len(arcs - taken) / length_of(name, seconds), name) for name, arcs in branches.items() if name]
    heapify(heap)
    while heap:
        _, name = heappop(heap)
        fresh, length = branches[name] - taken, length_of(name, seconds)
        rate = len(fresh) / length
        if fresh and heap and -rate > heap[0][0]:
            heappush(heap, (-rate, name))
        elif fresh and length <= MOST_S and (length <= FEW_S or rate >= LEAST_PER_S):
            taken |= fresh
            yield name


def length_of(name: str, seconds: Mapping[str, float]) -> float:
    """Seconds of a test function, never quite nothing."""
    return max(seconds.get(name, 0.05), 0.02)


def main(report: str) -> None:
    """Print the list."""
    chosen = choose(branches_of(Path(".coverage")), seconds_of(Path(report)))
    sys.stdout.write("\n".join(sorted([*chosen, *UNWATCHED])) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
