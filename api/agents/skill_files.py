"""The skills that come along: folders with a SKILL.md each, as coding agents look for them."""

from importlib.resources import files
from pathlib import Path

NAMES = ("pipeplan-profile", "pipeplan-plan", "pipeplan-audit", "pipeplan-explain-gap")


def read_skill(name: str) -> str:
    """The text of one."""
    return (files("api.agents") / "skills" / name / "SKILL.md").read_text(encoding="utf-8")


def write_skills(folder: Path) -> tuple[Path, ...]:
    """The files written below the folder, which is made; those of an earlier release are replaced."""
    written = tuple(folder / name / "SKILL.md" for name in NAMES)
    for name, file in zip(NAMES, written, strict=True):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(read_skill(name), encoding="utf-8")
    return written
