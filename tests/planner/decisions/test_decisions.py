"""Decisions with a folder of their own: the folder is the feature."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from planner import decisions
from planner.problem import Options

REST = ("api", "profiles", "solver_models")


@pytest.fixture
def without(tmp_path: Path, repository_root: Path) -> Path:
    """The program without the folders of decisions."""
    for name in REST:
        (tmp_path / name).symlink_to(repository_root / name)
    left_out = shutil.ignore_patterns("__pycache__", *decisions.KNOWN)
    shutil.copytree(repository_root / "planner", tmp_path / "planner", ignore=left_out)
    return tmp_path


def test_every_decision_says_what_it_is():
    """Tests that the folders are those of the options that ask for them, each with what the search needs."""
    assert decisions.found() == decisions.KNOWN
    assert not any(getattr(Options(), name) for name in decisions.KNOWN)
    assert [hasattr(module, "make_improver") for module in decisions.moves()] == [True, True]


@pytest.mark.slow
def test_a_folder_deleted_is_a_feature_deleted(without: Path):
    """Tests that the program plans without the folder, and refuses the option by the folder's name."""
    code = (
        "import sys\nfrom api.cli import main\nfrom planner.planning.planning_params import PARTS\n"
        "assert 'unequal shares' not in PARTS\n"
        "plan = ['plan', 'demo:alexnet-two-gpus', '--max-rounds', '0', '-q', '-o', 'plan.json']\n"
        "assert main(plan) == 0\n"
        "sys.exit(main([*plan, '--unequal-shares']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=without,
        env=os.environ | {"PYTHONPATH": str(without)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 2, done.stderr
    assert "planner/decisions/unequal_shares is not installed" in done.stderr
    assert (without / "plan.json").exists()
