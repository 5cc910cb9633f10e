"""`pipeplan cluster discover`: tests of api/cli/cluster_commands.py."""

import json
from pathlib import Path

import pytest

from api.cli import main


def test_this_machine_is_described(tmp_path: Path):
    """Tests that nvidia-smi, or its absence, leads to a cluster of this machine's own devices."""
    target = tmp_path / "cluster.json"
    assert main(["cluster", "discover", "nvidia-smi", "--cpus", "--workers-per-host", "2", "-o", str(target)]) == 0
    devices = json.loads(target.read_text())["devices"]
    assert devices
    assert len({device["host"] for device in devices}) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["hostfile"], "hostfile: no file is given; add --file FILE"),
        (["hostfile", "--file", "none"], "none: No such file"),
        (["slurm", "--file", "/dev/null"], "no node is described; give the answer of `scontrol show node`"),
        (["nvidia-smi", "--workers-per-host", "2"], "--workers-per-host applies to hosts without accelerators"),
        (["kubernetes", "--topology", "/dev/null"], "--topology: give the output of `scontrol show topology`"),
    ],
)
def test_what_cannot_be_discovered_is_said(words: list[str], message: str, capsys):
    """Tests that mistakes end in one message and exit code 2."""
    assert main(["cluster", "discover", *words]) == 2
    assert message in capsys.readouterr().err
