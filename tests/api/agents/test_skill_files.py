"""The skills: what agents look for, and that every command in them is there."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from api.agents.skill_files import NAMES, read_skill
from api.cli import app
from api.cli.agents.agent_commands import skills_command
from tests.test_house_rules import ROOT


@pytest.mark.parametrize("name", NAMES)
def test_front_matter(name: str):
    """Tests that a skill has its folder's name, and a description that says what it does and when to use it."""
    head = yaml.safe_load(read_skill(name).split("---\n")[1])
    assert head["name"] == name
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)
    assert len(name) <= 64
    assert "Use when" in head["description"]
    assert len(head["description"]) <= 1024
    assert len(read_skill(name).split()) <= 500


@pytest.mark.parametrize("name", NAMES)
def test_commands_are_there(name: str):
    """Tests that every command of a skill is a command of ours, with options that it has, and every page a page."""
    commands = re.findall(r"^ *\$ (pipeplan .*)$", read_skill(name), re.MULTILINE)
    assert commands
    for line in commands:
        words = shlex.split(line.partition(" -- ")[0])[1:]
        command: Any = typer.main.get_command(app)
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        known = {option for parameter in command.params for option in [*parameter.opts, *parameter.secondary_opts]}
        assert {word for word in words if word.startswith("-")} <= known, line
    for page in re.findall(r"docs/[\w/.-]+\.md", read_skill(name)):
        assert (ROOT / page).is_file()


def test_every_skill_is_written(tmp_path: Path):
    """Tests that all skills of the package are written below a folder, over those of before."""
    folders = sorted(path.name for path in (ROOT / "api/agents/skills").iterdir())
    assert folders == sorted(NAMES)
    written = [tmp_path / "agent" / name / "SKILL.md" for name in NAMES]
    skills_command(tmp_path / "agent")
    written[0].write_text("old")
    skills_command(tmp_path / "agent")
    assert [file.read_text() for file in written] == [read_skill(name) for name in NAMES]
