"""The benchmark of GPUs on the CPU's path: tiny shapes, in a process as `run.sh` starts it."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.forked_ranks import Rank, one_thread, run_forked
from tests.long_runs import long_only

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


def run(folder: Path, root: Path, *, minutes: str) -> int:
    """The exit code of the command."""
    arguments = ("--device", "cpu", "--quick", "--minutes", "8", "--begin-until", minutes, "-o", str(folder))
    return subprocess.run([sys.executable, "-m", "benchmarks.gpu", *arguments], cwd=root, check=False).returncode


@long_only
def test_it_goes_on_where_its_time_ended(tmp_path: Path, repository_root: Path):
    """Tests that a run without time finds nothing and says so, that the next one profiles a model and runs a plan of
    it, and that what is there is left as it is."""
    assert run(tmp_path, repository_root, minutes="0") == 3
    assert [path.name for path in tmp_path.iterdir()] == ["table.md"]
    (tmp_path / "device.json").write_text("{}", encoding="utf-8")
    assert run(tmp_path, repository_root, minutes="0.25") == 3
    assert (tmp_path / "device.json").read_text(encoding="utf-8") == "{}"
    executed = sorted(tmp_path.glob("*.kept.json"))
    assert executed
    found = json.loads(executed[0].read_text(encoding="utf-8"))
    assert found["executed_ns"] > 0
    assert found["predicted_ns"] > 0
    assert executed[0].name.removesuffix(".kept.json") + ".profile.json" in {path.name for path in tmp_path.iterdir()}


ENDLESS = """\
import sys, time
from benchmarks import gpu
gpu.findings = lambda _: [("endless.json", lambda: time.sleep(600)), ("later.json", lambda: "{}")]
sys.exit(gpu.main(["--device", "cpu", "--quick", "--minutes", "0.02", "-o", sys.argv[1]]))
"""


def test_a_finding_has_no_more_time_than_there_is(tmp_path: Path):
    """Tests that a finding that would never end is given up at the limit, leaves no file, and none is begun after."""
    script, folder = tmp_path / "endless.py", tmp_path / "found"
    script.write_text(ENDLESS, encoding="utf-8")
    asked = Rank(program=str(script), arguments=[str(folder)], environment=one_thread(), log=tmp_path / "log")
    ((code, said),) = run_forked([asked], timeout_s=120)
    assert code == 3, said
    assert [path.name for path in folder.iterdir()] == ["table.md"]
