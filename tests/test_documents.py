"""The documents: what they name exists, their lines and lists are as long as they may be."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.prose import measure, pages
from tests.test_house_rules import DIALECT_IN_PROSE, PACKAGES, ROOT, assert_none

MAX_COLUMNS = 120
MAX_README_LINES = 120
MAX_GLOSSARY_WORDS = 80
MAX_WORDS = 45_000
"""Of all pages together, as `git ls-files '*.md' | grep -v CHANGELOG | xargs wc -w` counts them."""
MIN_SHORT_SENTENCES = 0.9
MAX_PARAGRAPH_WORDS = 80

TO_DO = ()
"""Pages and folders that are still to be written anew. Nobody adds to this list; it ends empty."""
PLANNED = ()
"""Pages that others link to and that are still to be written; it ends empty as well."""

FOLDERS = (*PACKAGES, "benchmarks", "docker", "docs", "examples", "tests")
_HEAD = rf"(?<![\w/.:-])(?:{'|'.join(FOLDERS)})"
PATH = re.compile(rf"({_HEAD}/(?:[\w./-]*[\w/])?)(?![*{{\w])")
"""A path of the repository: `planner/judge/`, `docs/index.md`."""
MODULE = re.compile(rf"({_HEAD}(?:\.[a-z_]\w*)+)(?![\w(/])")
"""A module, or something in one: `planner.execute`, `planner.dealing.deal`."""
FILE = re.compile(r"(?<![\w/.-])(\w+\.py)\b")
"""A module without its folder, on a page about one room: `shaving.py`."""
OF_READERS = {"my_model.py", "planned.py"}
"""Files that a page tells its readers to write, or a command writes for them."""
LINK = re.compile(r"\]\((?!https?:)([^)\s]+)")

PAGES = pages()
NEW_PAGES = [page for page in PAGES if not page.startswith(TO_DO)]
WRITTEN = ["CHANGELOG.md", *(page for page in PAGES if not page.startswith("docs/benchmarks/"))]
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


def is_page(path: Path) -> bool:
    """Whether a page is there, or is planned: tables of contents name pages without their ending."""
    return path.exists() or path.relative_to(ROOT).as_posix() in PLANNED


def has_target(page: str, link: str) -> bool:
    """Whether a link leads to a file, and, with #, to a heading of a page."""
    name, _, anchor = link.partition("#")
    file = (ROOT / page).parent / name if name else ROOT / page
    if file.resolve().parent == ROOT / "docs" / "generated":  # written by `make docs`
        return True
    if not file.exists() or not anchor:
        return file.exists() or is_page(file.resolve())
    headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    return anchor in {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", NEW_PAGES)
def test_what_a_page_names_exists(page: str):
    """Tests that every path, module, file and link of a page is in the repository."""
    beside = (ROOT / page).parent
    missing = [
        *(
            f"{place} {name}"
            for name, place in found(PATH, page)
            if not ((ROOT / name).exists() or (beside / name).exists() or name in PLANNED)
            and not is_page(beside / f"{name}.md")
        ),
        *(f"{place} {name}" for name, place in found(MODULE, page) if not is_module(name)),
        *(f"{place} {name}" for name, place in found(FILE, page) if name not in names_of_modules() | OF_READERS),
        *(f"{place} {name}" for name, place in found(LINK, page) if not has_target(page, name)),
    ]
    assert_none(missing, "Named, but not there:")


def test_the_patterns_find_what_is_named():
    """Tests that paths, modules, files and links are found as pages write them, and nothing else is."""
    line = "`planner/judge/`, docs/index.md; python -m benchmarks.run and `shaving.py` [x](usage.md) out/planner/x https://a/docs/x"
    assert PATH.findall(line) == ["planner/judge/", "docs/index.md"]
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
    tables = [page for page in PAGES if page.startswith("docs/benchmarks/")]
    without = [page for page in tables if not COMMIT.search(text_of(page))]
    assert_none(without, "Say `Commit: ...`, as benchmarks.report.describe_commit does:")


def prose(page: str) -> Iterator[tuple[int, str]]:
    """The lines that can be broken: not those of tables, of code, and of what a skill is for."""
    is_code = False
    for number, line in enumerate(text_of(page).splitlines(), start=1):
        is_code ^= line.lstrip().startswith("```")
        if not (is_code or line.startswith(("|", "description: "))):
            yield number, line


@pytest.mark.parametrize("page", WRITTEN)
def test_lines_are_short(page: str):
    """Tests that no line of prose is over 120 characters."""
    long = [f"{page}:{number} {len(line)}" for number, line in prose(page) if len(line) > MAX_COLUMNS]
    assert_none(long, f"Break lines after at most {MAX_COLUMNS} characters:")


def test_the_readme_is_short():
    """Tests that the README has at most 120 lines."""
    assert len(text_of("README.md").splitlines()) <= MAX_README_LINES


def test_the_glossary():
    """Tests that the glossary has at most 80 words, each once, with a meaning and with who uses it."""
    lines = text_of("docs/reference/glossary.md").splitlines()
    rows = [line for line in lines if line.startswith("|") and not line.startswith(("|---", "| term |"))]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert 0 < len(cells) <= MAX_GLOSSARY_WORDS
    assert all(len(row) == 3 and all(row) for row in cells)
    words = [row[0] for row in cells]
    assert len(set(words)) == len(words)


@pytest.mark.parametrize("page", ["CHANGELOG.md", *NEW_PAGES])
def test_pages_read_easily(page: str):
    """Tests that nine sentences in ten have at most 25 words, and no paragraph has more than 80."""
    prose = measure(text_of(page))
    assert prose.short_share >= MIN_SHORT_SENTENCES, "\n".join(prose.long_sentences)
    assert max(prose.paragraphs, default=0) <= MAX_PARAGRAPH_WORDS


TRANSLATED = re.compile(
    r"(?i)\b(?:foreseen|whoever|nobody|somebody|spoken to|at hand|go(?:es)? on|went on|told apart|lets? go)\b"
)
"""Words that say in a roundabout way what a verb with its subject says."""
ORDINARY = {"trip", "trips", "waste", "wastes"}
"""A round trip and wasted time are plain English on a page."""


@pytest.mark.parametrize("page", NEW_PAGES)
def test_pages_have_no_dialect(page: str):
    """Tests that pages use neither the words that docstrings do not use, nor roundabout ones."""
    lines = [(number, re.sub(r"`[^`]*`", "", line)) for number, line in enumerate(text_of(page).splitlines(), start=1)]
    found = [(number, word.lower()) for number, line in lines for word in DIALECT_IN_PROSE.findall(line)]
    found += [(number, word) for number, line in lines for word in TRANSLATED.findall(line)]
    assert_none([f"{page}:{n} {word}" for n, word in found if word not in ORDINARY], "Say it plainly:")


def test_parts_of_the_page_have_its_names():
    """Tests that what the guide to the service's page calls its parts is what the page calls them."""
    guide = text_of("docs/how-to/use-the-page.md")
    names = [
        name for row in re.findall(r"^\| (\*.*?\*) \|", guide, re.MULTILINE) for name in re.findall(r"\*([^*]+)\*", row)
    ]
    shown = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "api/service/page").iterdir() if path.is_file()
    )
    assert len(names) > 8
    assert_none([name for name in names if name.lower() not in shown.lower()], "Not on the page:")


def test_all_pages_are_short():
    """Tests that all pages together have at most 45,000 words, tables and code included."""
    counts = {page: len(text_of(page).split()) for page in PAGES}
    assert sum(counts.values()) <= MAX_WORDS, counts


def test_lists_of_what_is_to_do_are_current():
    """Tests that what is still to be written anew is there, and what is planned is not."""
    assert_none([page for page in TO_DO if not (ROOT / page).exists()], "Written anew; take it off TO_DO:")
    assert_none([page for page in PLANNED if (ROOT / page).exists()], "Written; take it off PLANNED:")


def test_prose_is_counted():
    """Tests that words, sentences and paragraphs are counted as they are read, and long cells of tables are found."""
    row = f"| a | {'word ' * 30}|\n"
    text = "# Head\n\nOne two. Three `a b c` [four five](x)!\n\n* Item one.\n* Item\n  two.\n\n```\ncode\n```\n\n" + row
    prose = measure(text)
    assert prose.sentences == (2, 4, 2, 2, 30)
    assert prose.paragraphs == (6, 2, 2)
    assert prose.num_words == len(text.split())
    assert prose.short_share == 0.8
    assert measure("One: two; three (four. five) six").sentences == (6,)


def test_pages_that_the_product_names_exist():
    """Tests that each page which a message or a docstring of the product sends its reader to is there."""
    named = {
        (page, path.relative_to(ROOT).as_posix())
        for package in ("api", "planner", "profiles", "solver_models")
        for path in (ROOT / package).rglob("*.py")
        for page in re.findall(r"\bdocs/[\w/-]+\.md\b", path.read_text(encoding="utf-8"))
    }
    assert len(named) > 5
    assert [pair for pair in sorted(named) if not (ROOT / pair[0]).exists()] == []
