"""Decisions with a folder or a file of their own: it is the feature."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from planner import decisions
from planner.problem import Options
from profiles.cluster import Cluster, Device

REST = ("api", "profiles", "solver_models")


@pytest.fixture
def without(tmp_path: Path, repository_root: Path) -> Path:
    """The program without any of the folders and files."""
    for name in REST:
        (tmp_path / name).symlink_to(repository_root / name)
    left_out = shutil.ignore_patterns("__pycache__", *decisions.KNOWN, *(f"{name}.py" for name in decisions.KNOWN))
    shutil.copytree(repository_root / "planner/decisions", tmp_path / "planner/decisions", ignore=left_out)
    rest = shutil.ignore_patterns("__pycache__", "decisions")
    shutil.copytree(repository_root / "planner", tmp_path / "planner", ignore=rest, dirs_exist_ok=True)
    return tmp_path


def test_every_decision_says_what_it_is():
    """Tests that the folders are those of the options that ask for them, each with what the search needs."""
    assert decisions.found() == tuple(decisions.KNOWN)
    assert list(decisions.asked(Options())) == []
    assert all(hasattr(module, "make_improver") for module in decisions.modules("move"))
    asked = Options(objective="cost")
    assert [hasattr(module, "make_driver") for module in decisions.modules("driver", asked)] == [True]


@pytest.mark.slow
def test_a_folder_deleted_is_a_feature_deleted(without: Path):
    """Tests that the program plans without the folders, has no switch for them, and refuses the option by the name."""
    code = (
        "import sys\nfrom api.cli import main\nfrom planner.planning.planning_params import PARTS\n"
        "from planner.problem import Options\n"
        "assert not {'unequal shares', 'split placement', 'layer recomputation'} & {*PARTS}\n"
        "plan = ['plan', 'demo:alexnet-two-gpus', '--max-rounds', '0', '-q', '-o', 'plan.json']\n"
        "assert main([*plan, '--decide-all']) == 0\n"
        "asked = {'max_width': 2, 'shard_optimizer': 'allow', 'order': 'looped', 'max_active_stages': 1}\n"
        "asked |= dict.fromkeys(('recompute', 'recompute_layers', 'recompute_in_turn', 'split_placement'), True)\n"
        "asked |= dict.fromkeys(('unequal_shares', 'recompute_microbatches', 'fully_shard', 'offload'), True)\n"
        "for name, value in asked.items():\n"
        "    try:\n        Options(**{name: value})\n        sys.exit(name)\n"
        "    except ValueError as error:\n        print(error, file=sys.stderr)\n"
        "    if name != 'order':\n"
        "        assert main([*plan, '--' + name.replace('_', '-'), *([] if value is True else [str(value)])]) == 2\n"
        "sys.exit(main([*plan, '--objective', 'cost']) != 2)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=without,
        env=os.environ | {"PYTHONPATH": str(without)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert all(f"planner/decisions/{name} is not installed" in done.stderr for name in decisions.KNOWN)
    assert (without / "plan.json").exists()


def test_gathering_needs_devices_that_compute_while_they_send():
    """Tests that gathered stages are refused on a cluster whose transfers hold their devices."""
    device = Device(name="a", type="t", memory_bytes=1)
    options = Options(max_active_stages=1, shard_optimizer="allow")
    decisions.require(options, Cluster(name="c", devices=(device,), links=()))
    with pytest.raises(ValueError, match="overlap = false with max_active_stages"):
        decisions.require(options, Cluster(name="c", devices=(device,), links=(), overlap=False))
