"""One number says which release this is, wherever somebody may read it."""

import json
import re
from itertools import islice
from pathlib import Path

import pytest
from setuptools import Distribution

from api.cli import main
from api.doctor import run_checks
from planner.release import RELEASE
from tests.test_house_rules import ROOT


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_command_line_says_the_release(capsys):
    """Tests that `pipeplan --version` and `pipeplan doctor` say it, whatever an earlier installation has left."""
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"pipeplan {RELEASE}\n"
    assert ("pipeplan", True, RELEASE) in list(islice(run_checks(), 2))


def test_a_wheel_has_the_release(monkeypatch):
    """Tests that wheels get their version from the source, where pyproject.toml names it."""
    monkeypatch.chdir(ROOT)
    wheel = Distribution()
    wheel.parse_config_files()
    assert wheel.metadata.version == RELEASE


@pytest.mark.parametrize("file", ["docker/Dockerfile", "docker/Dockerfile.executor"])
def test_images_are_labelled(file: str):
    """Tests that what is shipped last in a Dockerfile carries the release as its label."""
    assert f'org.opencontainers.image.version="{RELEASE}"' in text_of(file).rpartition("\nFROM ")[2]


def test_documents_name_the_release():
    """Tests that the newest release of CHANGELOG and the version of the REST interface are this one."""
    assert re.findall(r"^## \[(\d.*?)\] - \d{4}-\d\d-\d\d$", text_of("CHANGELOG.md"), re.MULTILINE)[0] == RELEASE
    assert json.loads(text_of("docs/openapi.json"))["info"]["version"] == RELEASE
    assert RELEASE in text_of("docs/reference/upgrade.md").splitlines()[0]


def test_a_wheel_has_every_file(monkeypatch):
    """Tests that modules, pages, pictures and documents of the four packages all travel, in every folder."""
    monkeypatch.chdir(ROOT)
    wheel = Distribution({"script_name": "setup.py"})
    wheel.parse_config_files()
    wheel.include_package_data = False  # would write an egg-info beside the sources
    build = wheel.get_command_obj("build_py")
    build.ensure_finalized()
    sent = {Path(folder, name) for _, folder, _, names in build.data_files for name in names}
    sent |= {Path(name) for name in build.get_source_files()}
    there = {
        file.relative_to(ROOT)
        for package in ("api", "planner", "profiles", "solver_models")
        for file in (ROOT / package).rglob("*")
        if file.is_file() and file.suffix not in (".md", ".pyc", ".nbi", ".nbc")
    }
    assert there - sent == set()
