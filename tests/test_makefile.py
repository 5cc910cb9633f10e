"""What the Makefile does to the machine it runs on."""

import os
import subprocess
from pathlib import Path

import pytest

PROBE = "probe: ; $(call DEBIAN_PACKAGES,false,some-package,tests that need it)"
"""A target whose package is never there."""


def run_probe(folder: Path, repository_root: Path, *, user: int) -> subprocess.CompletedProcess[str]:
    """The target, where `apt-get` only tells that it was called, and `id` whom it is told."""
    for name, script in {"apt-get": 'echo "apt-get $*" >&2', "id": f"echo {user}"}.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    return subprocess.run(
        ["make", "--silent", "--eval", PROBE, "probe"],
        cwd=repository_root,
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "MAKEFLAGS": ""},
        capture_output=True,
        text=True,
        check=False,
    )


def test_packages_are_named_before_they_are_installed(tmp_path: Path, repository_root: Path):
    """Tests that root reads which packages are missing and for which tests, and only then does apt-get begin."""
    said = run_probe(tmp_path, repository_root, user=0)
    assert said.returncode == 0, said.stderr
    before = said.stderr.partition("apt-get -qq update")[0]
    assert "some-package" in before
    assert "tests that need it" in before


@pytest.mark.parametrize("user", [1, 1000])
def test_nobody_else_installs_packages(tmp_path: Path, repository_root: Path, user: int):
    """Tests that without root nothing is installed, and that the command to run is printed."""
    said = run_probe(tmp_path, repository_root, user=user)
    assert said.returncode != 0
    assert "sudo apt-get install" not in said.stdout
    assert "sudo apt-get update && sudo apt-get install some-package" in said.stderr
    assert "apt-get -qq" not in said.stderr
