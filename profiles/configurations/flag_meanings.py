"""Fields of programs' configurations by what they mean for time and memory.

Megatron-LM's flags, with those of Megatron-Bridge and of logs, were written down from its `arguments.py` and its
configuration classes of August 2026, and from core 0.16 to 0.20. Names are as in logs: underscores, no dashes before.
"""

import json
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

_FIELDS: dict[str, Any] = json.loads(Path(__file__).with_name("field_meanings.json").read_text(encoding="utf-8"))
"""By program, a star standing for anything. Not counted: what changes times or bytes, which no estimate follows, or
only turns off what a program overlaps by itself. Irrelevant: data, learning rate, checkpoints, logs, launchers, and
what costs so little that no estimate shows it."""

ALIASES: dict[str, str] = _FIELDS["aliases"]
"""Other names of what is read of Megatron-LM's."""

FOREIGN: dict[str, str] = _FIELDS["foreign"]
"""Trainers that are not read, each with a pattern of the names that nobody else has."""

REFUSED: dict[str, str] = {name: why for why, names in _FIELDS["refused"].items() for name in names}
"""Flags that make the estimate another one than can be made here, each with the reason."""

REFUSED_VALUES: dict[str, tuple[str, str]] = _FIELDS["refused values"]
"""Flags of which some values do so: a pattern of these, and the reason."""

STARTUP: list[tuple[list[str], list[str]]] = _FIELDS["startup"]
"""What Megatron-LM asks before it starts, 0.19 and up to August 2026 alike: where the first terms hold, one of the
second has to.

A term is a flag, `!` before one that is not to be there, `=` a value or `>` a number that it is to have."""

FORKS: frozenset[str] = frozenset(_FIELDS["forks"])
"""Names that are read here, and that forks of Megatron-LM alone take."""

READ: dict[str, list[str]] = _FIELDS["read"]
"""By program, what an audit reads."""

DEEPSPEED_INNER = [
    name for names in (READ["deepspeed"], *_FIELDS["deepspeed"].values()) for name in names if "." in name
]
"""Names in DeepSpeed's sections, where all of a section are known."""


def meaning_of(name: str, program: str = "megatron") -> str:
    """`not counted`, `irrelevant` or `unknown`."""
    for meaning in ("not counted", "irrelevant"):
        if any(fnmatchcase(name, pattern) for pattern in _FIELDS[program][meaning]):
            return meaning
    return "unknown"
