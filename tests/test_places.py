"""Tests stand beside their modules: tests/<package>/<folder>/test_<module>.py; the share of such modules only rises."""

from pathlib import Path

from tests.branch_floor import earlier_floors, floor_of
from tests.test_house_rules import PACKAGES, ROOT, python_files

SHARE = "modules_with_tests_percent"
"""The floor's name in pyproject.toml."""


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
