"""The tests that `make quick` runs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.choose_quick import choose
from tests.conftest import HEAVY, QUICK_TESTS, UNWATCHED, is_listed, listed_tests


def test_every_quick_test_exists(repository_root: Path):
    """Tests that the list of quick tests names files and functions that there are, in order and once each."""
    lines = QUICK_TESTS.read_text(encoding="utf-8").split()
    assert lines == sorted(set(lines))
    for line in lines:
        path, _, function = line.partition("::")
        assert (repository_root / path).is_file(), f"{line}: no such file; choose again with tests/choose_quick.py"
        if function:
            text = (repository_root / path).read_text(encoding="utf-8")
            assert f"def {function}(" in text, f"{line}: no such test; choose again with tests/choose_quick.py"


def test_a_file_or_a_function_is_listed():
    """Tests that a whole file stands for all of its tests."""
    listed = {"tests/test_a.py", "tests/test_b.py::test_one"}
    assert is_listed("tests/test_a.py::test_any", listed)
    assert is_listed("tests/test_b.py::test_one", listed)
    assert not is_listed("tests/test_b.py::test_two", listed)


def test_every_test_is_watched_or_comes_after():
    """Tests that `make test` leaves nothing out: what it does not watch of the quick tests, it runs with all others."""
    watched, rest = listed_tests("watched"), listed_tests("never")
    assert watched == rest == listed_tests("only") - {*UNWATCHED}
    assert listed_tests("only") > watched


def test_what_is_not_watched_takes_no_branch():
    """Tests that files which no package's branches need to be watched in import none of the three themselves."""
    for name in UNWATCHED:
        tree = ast.parse((QUICK_TESTS.parents[1] / name).read_text(encoding="utf-8"))
        imported = {each.module or "" for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)}
        assert not {module.partition(".")[0] for module in imported} & {"planner", "profiles", "solver_models"}


def test_collecting_imports_nothing_heavy(pytestconfig: pytest.Config):
    """Tests that of the processes that run all but the quick tests, only those import torch whose tests want it."""
    if pytestconfig.getoption("--quick") != "never":
        pytest.skip("`make test` asks")
    assert pytestconfig.stash[HEAVY] == set()


COLLECTING = """
import sys
import pytest

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
sys.exit(pytest.main(["--collect-only", "--quick", "only", *sys.argv[2:]]))
"""
NOT_NEEDED = "fastapi,jwt,kubernetes_validate,procrastinate,psycopg,pyarrow,schemathesis,selenium,transformers,uvicorn"
"""What `make setup` installs and `make quick` does not."""


def test_quick_tests_need_what_the_makefile_installs_for_them(repository_root: Path):
    """Tests that they are collected where neither servers nor their drivers are installed."""
    files = sorted({line.partition("::")[0] for line in QUICK_TESTS.read_text(encoding="utf-8").split()})
    command = [sys.executable, "-c", COLLECTING, NOT_NEEDED, *files]
    done = subprocess.run(command, cwd=repository_root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]


def test_what_tells_most_per_second_is_chosen():
    """Tests that branches that are known count no more, and that what is long and tells little is left out."""
    arcs = [("a.py", line, line + 1) for line in range(100)]
    branches = {"": set(arcs[:10]), "wide": set(arcs[:50]), "inside": set(arcs[5:40]), "long": set(arcs[:52])}
    assert list(choose(branches, {"wide": 1.0, "inside": 0.9, "long": 20.0})) == ["wide"]
    assert list(choose(branches, {"wide": 1.0, "inside": 0.1, "long": 3.0})) == ["inside", "wide", "long"]
