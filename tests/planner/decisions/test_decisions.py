"""Decisions with a folder of their own: the folder is the feature."""

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
    """The program without any of the folders."""
    for name in REST:
        (tmp_path / name).symlink_to(repository_root / name)
    left_out = shutil.ignore_patterns("__pycache__", *decisions.KNOWN)
    shutil.copytree(repository_root / "planner", tmp_path / "planner", ignore=left_out)
    return tmp_path


def test_every_decision_says_what_it_is():
    """Tests that the folders are those of the options that ask for them, each with what the search needs."""
    assert decisions.found() == tuple(decisions.KNOWN)
    assert not decisions.only_for_one_size(Options())
    assert all(hasattr(module, "make_improver") for module in decisions.moves())
    assert len(decisions.parts()) == len(decisions.KNOWN) - 2  # `price` ranks candidates, a baseline shards fully
    asked = Options(objective="cost")
    assert [hasattr(module, "make_driver") for module in decisions.drivers(asked)] == [True]


@pytest.mark.slow
def test_a_folder_deleted_is_a_feature_deleted(without: Path):
    """Tests that the program plans without the folder, and refuses the option by the folder's name."""
    code = (
        "import sys\nfrom api.cli import main\nfrom planner.planning.planning_params import PARTS\n"
        "assert not {'unequal shares', 'split placement', 'layer recomputation'} & {*PARTS}\n"
        "plan = ['plan', 'demo:alexnet-two-gpus', '--max-rounds', '0', '-q', '-o', 'plan.json']\n"
        "assert main(plan) == 0\n"
        "asked = '--unequal-shares', '--split-placement', '--recompute-layers', '--recompute-microbatches'\n"
        "asked += '--max-active-stages 1 --shard-optimizer allow', '--pareto', '--objective cost', '--offload'\n"
        "asked += ('--fully-shard',)\n"
        "codes = [main([*plan, *each.split()]) for each in asked]\n"
        "sys.exit(codes != [2] * 9)\n"
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
    option = decisions.part_of("max_active_stages", "option")
    option.require(Cluster(name="c", devices=(Device(name="a", type="t", memory_bytes=1),), links=()))
    with pytest.raises(ValueError, match="overlap = false with max_active_stages"):
        option.require(
            Cluster(name="c", devices=(Device(name="a", type="t", memory_bytes=1),), links=(), overlap=False)
        )
