"""The documents: what they name exists, their lines and lists are as long as they may be."""

import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.test_house_rules import PACKAGES, ROOT, assert_none

MAX_COLUMNS = 120
MAX_README_LINES = 150
MAX_GLOSSARY_WORDS = 60

FOLDERS = (*PACKAGES, "benchmarks", "docker", "docs", "examples", "tests")
_HEAD = rf"(?<![\w/.:-])(?:{'|'.join(FOLDERS)})"
PATH = re.compile(rf"({_HEAD}/(?:[\w./-]*[\w/])?)(?![*{{\w])")
"""A path of the repository: `planner/judge/`, `docs/model.md`."""
MODULE = re.compile(rf"({_HEAD}(?:\.[a-z_]\w*)+)(?![\w(/])")
"""A module, or something in one: `planner.execute`, `planner.dealing.deal`."""
FILE = re.compile(r"(?<![\w/.-])(\w+\.py)\b")
"""A module without its folder, on a page about one room: `shaving.py`."""
OF_READERS = {"my_model.py"}
"""Files that a page tells its readers to write."""
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")

DOCUMENTS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
PAGES = ["README.md", "CONTRIBUTING.md", *DOCUMENTS]
WRITTEN = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", *(page for page in DOCUMENTS if page.count("/") == 1)]
"""Pages that people write; the tables below docs/benchmarks are written by programs."""
COMMIT = re.compile(r"Commit: [0-9a-f]{12}\b")


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def found(pattern: re.Pattern[str], page: str) -> Iterator[tuple[str, str]]:
    """Every match and where it stands."""
    for number, line in enumerate(text_of(page).splitlines(), start=1):
        for name in pattern.findall(line):
            yield name, f"{page}:{number}"


@cache
def names_of_modules() -> frozenset[str]:
    """The names of all Python files."""
    return frozenset(path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def is_module(name: str) -> bool:
    """Whether a dotted name is a package, a module, or begins with one and goes on with what is in it."""
    parts = name.split(".")
    if (ROOT.joinpath(*parts)).is_dir():
        return True
    for length in range(2, len(parts) + 1):
        file = ROOT.joinpath(*parts[:length]).with_suffix(".py")
        if file.exists():
            rest = parts[length:]
            return not rest or re.search(rf"\b{rest[0]}\b", file.read_text(encoding="utf-8")) is not None
    return False


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_exists(page: str):
    """Tests that every path, module, file and link of a page is in the repository."""
    beside = (ROOT / page).parent
    missing = [
        *(
            f"{place} {name}"
            for name, place in found(PATH, page)
            if not ((ROOT / name).exists() or (beside / name).exists())
        ),
        *(f"{place} {name}" for name, place in found(MODULE, page) if not is_module(name)),
        *(f"{place} {name}" for name, place in found(FILE, page) if name not in names_of_modules() | OF_READERS),
        *(f"{place} {name}" for name, place in found(LINK, page) if not (beside / name).exists()),
    ]
    assert_none(missing, "Named, but not there:")


def test_the_patterns_find_what_is_named():
    """Tests that paths, modules, files and links are found as pages write them, and nothing else is."""
    line = "`planner/judge/`, docs/model.md; python -m benchmarks.run and `shaving.py` [x](usage.md) out/planner/x https://a/docs/x"
    assert PATH.findall(line) == ["planner/judge/", "docs/model.md"]
    assert MODULE.findall(line) == ["benchmarks.run"]
    assert FILE.findall(line) == ["shaving.py"]
    assert LINK.findall(line) == ["usage.md"]
    assert not is_module("planner.no_such")
    assert not is_module("planner.simulation.simulate.no_such")
    assert is_module("planner.simulation.simulate.simulate")


def test_the_table_of_contributing_names_rooms():
    """Tests that every row of the table of CONTRIBUTING.md names a path, in full."""
    rows = [line for line in text_of("CONTRIBUTING.md").splitlines() if line.startswith("|")][2:]
    assert len(rows) > 20
    assert_none([row for row in rows if not PATH.search(row.split("|")[2])], "A row without a room:")


def test_tables_name_their_commit():
    """Tests that every table says on which commit it was made."""
    tables = [page for page in DOCUMENTS if page.startswith("docs/benchmarks/")]
    without = [page for page in tables if not COMMIT.search(text_of(page))]
    assert_none(without, "Say `Commit: ...`, as benchmarks.report.describe_commit does:")


def prose(page: str) -> Iterator[tuple[int, str]]:
    """The lines that can be broken: not those of tables and of code."""
    is_code = False
    for number, line in enumerate(text_of(page).splitlines(), start=1):
        is_code ^= line.startswith("```")
        if not (is_code or line.startswith("|")):
            yield number, line


@pytest.mark.parametrize("page", WRITTEN)
def test_lines_are_short(page: str):
    """Tests that no line of prose is over 120 characters."""
    long = [f"{page}:{number} {len(line)}" for number, line in prose(page) if len(line) > MAX_COLUMNS]
    assert_none(long, f"Break lines after at most {MAX_COLUMNS} characters:")


def test_the_readme_is_short():
    """Tests that the README has at most 150 lines."""
    assert len(text_of("README.md").splitlines()) <= MAX_README_LINES


def test_the_glossary():
    """Tests that the glossary has at most 60 words, each once, with a meaning and with who uses it."""
    rows = [line for line in text_of("docs/glossary.md").splitlines() if line.startswith("|")][2:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert 0 < len(cells) <= MAX_GLOSSARY_WORDS
    assert all(len(row) == 3 and all(row) for row in cells)
    words = [row[0] for row in cells]
    assert len(set(words)) == len(words)
