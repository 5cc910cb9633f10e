"""Megatron-LM's arguments out of a shell script, a YAML or JSON file, or the block of them in a log."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from profiles.configurations.flag_meanings import ALIASES
from profiles.configurations.shell_script import Script, read_script, training_words

MAX_TEXT = 4 * 2**20
"""Characters that are read: the arguments are at a log's beginning."""

MAX_LINE = 4096
"""Characters of a line in a log; no argument is longer."""

_LOGGED = re.compile(r"^.*?(?<![\w.])(\w+) \.{3,} (\S.*?) *$", re.MULTILINE)
_OVERRIDE = re.compile(r"\+{0,2}([a-z_]\w*(?:\.\w+)+)=(.*)", re.DOTALL)
_END = {"|", "&", ">", ">>", "2>", "2>&1", "&>", "<"}
_LETTERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}

Value = str | bool
"""What stands behind a flag: words joined by blanks, or true for a flag alone."""


@dataclass(slots=True, kw_only=True)
class ReadArguments:
    """The arguments that a file states."""

    values: dict[str, Value]
    """By name, with underscores."""
    kind: str
    """`script`, `mapping`, `log` or `options`."""
    strange: list[str] = field(default_factory=list)
    """Words that are neither flags nor values of flags."""
    script: Script | None = None
    """What the script said besides."""


def read_arguments(text: str, *, source: str, given: Mapping[str, str] | None = None) -> ReadArguments:
    """Find out which form it is and read it; `given` are variables for a script.

    Raises ValueError with the source's name where there are no arguments.
    """
    text = text[:MAX_TEXT]
    short = "\n".join(line for line in text.splitlines() if len(line) < MAX_LINE)
    logged = _LOGGED.findall(short)
    if len(logged) >= 5:
        values = {name: _logged(value) for name, value in reversed(logged)}  # the first one counts
        return ReadArguments(values=_named(values), kind="log")
    if (mapping := _mapping(text, source=source)) is not None:
        return ReadArguments(values=_named(dict(_leaves(mapping, source=source, seen=set()))), kind="mapping")
    try:
        script = read_script(text, given=given)
        words = training_words(script)
    except ValueError as reason:
        raise ValueError(f"{source}: {reason}") from None
    found = read_words(words)
    found.script = script
    return found


def read_words(words: Sequence[str]) -> ReadArguments:
    """Flags with their values, and overrides `model.tensor_model_parallel_size=4`; those of the launcher too."""
    values: dict[str, Value] = {}
    strange: list[str] = []
    name, has_script = "", any(word.endswith(".py") for word in words)
    for word in _parted(words):
        if word in _END:
            break
        if match := _OVERRIDE.fullmatch(word):
            values[_plain(match[1].rpartition(".")[2])] = match[2]
            name = ""
        elif re.match(r"--[A-Za-z]", word):
            name, equals, value = word[2:].partition("=")
            name = _plain(name)
            values[name] = value if equals else True
        elif word.endswith(".py"):
            name, has_script = "", False
        elif name:
            before = values[name]
            values[name] = word if before is True else f"{before} {word}"
        elif not has_script:
            strange.append(word)
    return ReadArguments(values=_named(values), kind="script", strange=strange)


def _parted(words: Sequence[str]) -> Iterator[str]:
    """An array's element may hold a flag and its value: `"--fp8-format hybrid"`."""
    for word in words:
        yield from word.split() if re.match(r"--[A-Za-z][\w-]* ", word) else (word,)


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


def _named(values: Mapping[str, Value]) -> dict[str, Value]:
    """By the names that are read; a name and its alias are one, and the name itself counts."""
    aliased = {ALIASES[name]: value for name, value in values.items() if name in ALIASES}
    own = {name: value for name, value in values.items() if name not in ALIASES}
    return {**own, **{name: value for name, value in aliased.items() if own.get(name, False) is False}}


def _logged(text: str) -> Value:
    return {"True": True, "False": False, "None": False}.get(text, text)


def _mapping(text: str, *, source: str) -> Mapping[str, Any] | None:
    """A YAML or JSON document with names in it; None: it is something else."""
    is_named = source.lower().endswith((".yaml", ".yml", ".json"))
    if not is_named and not text.lstrip().startswith("{"):
        return None
    try:
        found = json.loads(text) if text.lstrip().startswith("{") else yaml.safe_load(text)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise ValueError(f"{source}: is neither JSON nor YAML ({type(error).__name__}); correct it") from None
    if not isinstance(found, dict) or not found:
        raise ValueError(f"{source}: has no names with values; give Megatron's arguments as a mapping")
    return found


def _leaves(mapping: Mapping[str, Any], *, source: str, seen: set[int]) -> Iterator[tuple[str, Value]]:
    """Sections are looked into, each once; a layout may be a list of lists of kinds of layers."""
    seen.add(id(mapping))
    for key, value in mapping.items():
        name = _plain(str(key))
        if name.startswith("_") or name.upper() == "ENV_VARS":
            continue
        if isinstance(value, dict):
            if id(value) not in seen:
                yield from _leaves(value, source=source, seen=seen)
        elif name == "pipeline_model_parallel_layout" and isinstance(value, list):
            yield name, _layout_of(value, source=source)
        elif isinstance(value, list):
            yield name, " ".join(map(str, value))
        else:
            yield name, value if isinstance(value, bool) else False if value is None else str(value)


def _layout_of(rows: Sequence[Any], *, source: str) -> str:
    """`[["embedding", "decoder"], ["loss"]]` as `Et|L`; raises ValueError for other words."""
    stages = []
    for row in rows:
        words = [str(word).strip() for word in row] if isinstance(row, list) else list(str(row))
        letters = [_LETTERS.get(word.lower(), word if word in _LETTERS.values() else "") for word in words]
        if "" in letters:
            raise ValueError(
                f"{source}: pipeline_model_parallel_layout has {words[letters.index('')]!r}; "
                f"write {', '.join(_LETTERS)}"
            )
        stages.append("".join(letters))
    return "|".join(stages)
