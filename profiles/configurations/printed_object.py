"""What a program prints of its configuration before it begins, in a log that several processes may write."""

import re
from json import JSONDecoder

_PROCESS = re.compile(r"^(?:\[\w+\]:|[\w.-]+: )?")
"""Whose line it is, as torchrun (`[rank0]:`) or pdsh (`host: `) write it."""


def printed_object(text: str, marker: str, *, source: str) -> str | None:
    """The JSON object behind a regular expression in a log's lines; None: nothing matches.

    Raises ValueError where the object is cut off, and where two of them differ.
    """
    begins, found = re.compile(rf"(?:{marker})(?=\{{)"), set[str]()
    processes: dict[str, list[str]] = {}
    for line in text.splitlines():
        process = "".join(_PROCESS.findall(line)[:1])
        processes.setdefault(process, []).append(line.removeprefix(process))
    for whole in map("\n".join, processes.values()):
        end = 0
        while match := begins.search(whole, end):
            try:
                end = JSONDecoder().raw_decode(whole, match.end())[1]
            except (ValueError, RecursionError):
                raise ValueError(f"{source}: no whole JSON follows {marker!r}; give the log with all of it") from None
            found.add(whole[match.end() : end])
    if len(found) > 1:
        raise ValueError(f"{source}: {len(found)} configurations follow {marker!r}; give the log of one run")
    return next(iter(found), None)
