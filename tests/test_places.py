"""Tests stand beside their modules: tests/<package>/<folder>/test_<module>.py; the share of such modules only rises."""

import subprocess
from pathlib import Path

from tests.branch_floor import earlier_floors, floor_of
from tests.test_house_rules import PACKAGES, ROOT, python_files

SHARE = "modules_with_tests_percent"
"""The floor's name in pyproject.toml."""
AT_THE_TOP = {
    *PACKAGES, ".ci", "benchmarks", "docker", "docs", "examples", "findings", "tests", ".dockerignore", ".gitignore",
    "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md", "constraints.txt", "pyproject.toml",
}  # fmt: skip


def place_of(path: str) -> Path:
    """Where the tests of a module stand."""
    return Path("tests", path).with_name(f"test_{Path(path).name}")


def test_modules_have_tests_of_their_own():
    """Tests that as many modules as pyproject.toml says have a file of tests, and that no commit lowers the number."""
    modules = [path for path in python_files(*PACKAGES) if not path.endswith("__init__.py")]
    without = [path for path in modules if not (ROOT / place_of(path)).is_file()]
    percent = 100 * (1 - len(without) / len(modules))
    floor = floor_of((ROOT / "pyproject.toml").read_text(encoding="utf-8"), SHARE)
    assert floor is not None
    assert percent >= floor, f"{percent:.1f} % of the modules have tests beside them; write {place_of(without[0])}"
    assert all(before <= floor for _, before in earlier_floors(SHARE)), "the share is never lowered"
    assert percent < floor + 2, f"{percent:.1f} % of the modules have tests beside them: raise {SHARE}"


def test_nothing_else_lies_at_the_top():
    """Tests that git holds no file at the top but those listed: a slip of a shell (`> 5`) was committed once."""
    listed = subprocess.run(("git", "ls-files"), cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert {path.split("/")[0] for path in listed.splitlines()} <= AT_THE_TOP, "remove it, or list it"
