"""The floor under the branches that the quick tests take."""

import subprocess
import sys
from pathlib import Path

import coverage
import pytest

from tests import branch_floor
from tests.branch_floor import QUICK, advice, complaint, floor_of, measured


@pytest.mark.parametrize(
    ("percent", "floor", "earlier", "said"),
    [
        (84.2, 84.0, {}, None),
        (84.2, 84.0, {"main": 84.0, "HEAD^": 83.0}, None),
        (84.0, 84.0, {}, None),
        (83.99, 84.0, {}, "less than the floor"),
        (85.0, 84.0, {}, None),
        (84.2, 84.0, {"main": 84.5}, "main has 84.5 %; it is never lowered"),
    ],
)
def test_the_floor_only_rises(percent: float, floor: float, earlier: dict[str, float], said: str | None):
    """Tests that a fall below the floor is refused, and a floor that was lowered."""
    heard = complaint(percent, floor, earlier)
    assert heard is None if said is None else said in (heard or "")


def test_branches_are_counted_over_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Tests that shares are branches taken by branches there are, of each package and of all, in a real run."""
    monkeypatch.setattr(branch_floor, "ROOT", tmp_path)
    for name, text in {
        "planner/a.py": "import sys\nif len(sys.argv) > 9:\n    print()\n",
        "profiles/b.py": "for number in (0, 1):\n    if number:\n        number += 1\n",
    }.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    run = [sys.executable, "-m", "coverage", "run", "--branch", "--rcfile=", "--append"]
    for name in ("planner/a.py", "profiles/b.py"):
        subprocess.run([*run, name], cwd=tmp_path, check=True)
    data = coverage.Coverage(data_file=str(tmp_path / ".coverage"), config_file=False)
    data.load()
    assert measured(data) == pytest.approx({"planner": 50.0, "profiles": 100.0, "all": 250 / 3})


def test_there_is_a_floor(repository_root):
    """Tests that the floor stands in pyproject.toml, and is above 80 %."""
    floor = floor_of((repository_root / "pyproject.toml").read_text(encoding="utf-8"))
    assert floor is not None
    assert floor >= 80
    assert floor_of("[tool.other]\nbranch_floor_percent = 1") is None


def test_the_quick_tests_have_a_floor_of_their_own(repository_root):
    """Tests that what `make test` watches has a floor, which is another one."""
    text = (repository_root / "pyproject.toml").read_text(encoding="utf-8")
    assert floor_of(text, QUICK) not in (None, floor_of(text))
    assert "raise quick_branch_floor_percent in pyproject.toml to 70.0" in (advice(70.04, 60.0, name=QUICK) or "")
    assert advice(60.9, 60.0) is None
