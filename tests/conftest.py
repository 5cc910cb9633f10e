"""What every test shares: where the repository is, how long hypothesis may think, that Ctrl+C is heard, and a width."""

import gc
import os
import re
import signal
import sys
from collections.abc import Generator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.forking import share_forkers
from tests.long_runs import examples
from tests.processor_time import ProcessorTimes

QUICK_TESTS = Path(__file__).with_name("quick_tests.txt")
"""The tests that take most branches in little time (`python -m tests.choose_quick`)."""

UNWATCHED = ("tests/test_documents.py", "tests/test_house_rules.py", "tests/test_page_commands.py")
"""Quick tests that take no branch of the three packages: `make test` runs them with those that are not quick. Watched
for branches, all that Python does in their processes took twice as long (14 processor seconds more)."""

HEAVY = pytest.StashKey[set[str]]()
"""What takes seconds to import and was imported by collecting tests."""

FEW_COLLECTIONS = 50_000
"""Objects between two collections of garbage: at 700, Python's own, they take up to a fourth of the time of tests that
make many documents (test_schema.py and test_verify.py together 5.5 processor seconds, then 7.6)."""

ROOT = Path(__file__).resolve().parent.parent

# No deadline: the first example may compile a kernel. Derandomized: the same commit always gives the same verdict.
settings.register_profile(
    "house",
    deadline=None,
    derandomize=True,
    max_examples=examples(50),
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("quick", parent=settings.get_profile("house"), max_examples=10)
settings.register_profile("search", parent=settings.get_profile("house"), derandomize=False, max_examples=1000)
settings.load_profile("house")

# A shell starts background jobs with the interrupt ignored, and processes pass that on to theirs.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Whoever starts the tests may have set a terminal's width: what is printed then breaks elsewhere.
os.environ.pop("COLUMNS", None)

# Threads that wait for work sleep: by default they spin, which four processes on two cores pay for each other.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`make quick` runs the tests that tests/quick_tests.txt names, `make test` those it watches, then all others."""
    wishes = "of the tests in quick_tests.txt: these only, those that are watched for branches, or all other tests"
    parser.addoption("--quick", choices=("only", "watched", "never"), help=wishes)
    parser.addoption(
        "--processor-times", metavar="FILE", help="write what every test file costs (tests/processor_time.py)"
    )


def pytest_configure(config: pytest.Config) -> None:
    """All processes of `make test` take their forks from the same two."""
    is_first = not hasattr(config, "workerinput") and config.getoption("numprocesses", None)
    if is_first and config.getoption("--quick") == "never":
        share_forkers()
    if config.getoption("--processor-times"):
        config.pluginmanager.register(ProcessorTimes(config))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what `--quick` says; README and tutorial come first: at the end one process would run them alone."""
    wish = config.getoption("--quick")
    if wish is None:
        return
    listed = listed_tests(wish)
    names = {item: item.nodeid.partition("[")[0] for item in items}
    left_out = [item for item in items if is_listed(names[item], listed) == (wish == "never")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if is_listed(names[item], listed) != (wish == "never")]
    items.sort(key=lambda item: item.path.parent != QUICK_TESTS.parent)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files of which no test is wanted are not even imported: some of them import torch."""
    if config.getoption("--quick") != "never" or not collection_path.match("test_*.py"):
        return None
    file, listed = collection_path.relative_to(ROOT).as_posix(), listed_tests("never")
    names = re.findall(r"^def (test_\w+)", collection_path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return True if names and all(is_listed(f"{file}::{name}", listed) for name in names) else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, Any, Any]:
    """Modules and thousands of tests are no garbage, and nobody need look through them again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        session.config.stash[HEAVY] = {"schemathesis", "torch", "transformers"} & sys.modules.keys()
        gc.freeze()
        gc.enable()
        gc.set_threshold(FEW_COLLECTIONS)


@cache
def listed_tests(wish: str) -> set[str]:
    """Tests and files of the list that `--quick` means by this word; every file that is collected asks."""
    listed = set(QUICK_TESTS.read_text(encoding="utf-8").split())
    return listed if wish == "only" else listed.difference(UNWATCHED)


def is_listed(name: str, listed: set[str]) -> bool:
    """Whether a test, or its whole file, is in the list."""
    return name in listed or name.partition("::")[0] in listed


@pytest.fixture(scope="session")
def repository_root() -> Path:
    """The folder that holds pyproject.toml."""
    return ROOT
