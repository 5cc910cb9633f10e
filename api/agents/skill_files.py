"""The skills that come along: folders with a SKILL.md each, as coding agents look for them."""

from importlib.resources import files

NAMES = ("pipeplan-profile", "pipeplan-plan", "pipeplan-audit", "pipeplan-explain-gap")


def read_skill(name: str) -> str:
    """The text of one."""
    return (files("api.agents") / "skills" / name / "SKILL.md").read_text(encoding="utf-8")
