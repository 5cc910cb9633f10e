"""What a program prints of its configuration before it begins, in a log that several processes may write."""

import re
from json import JSONDecoder

_PROCESS = re.compile(r"(?:\[\w+\]:|[\w.-]+: )?")
"""Whose line it is, as torchrun (`[rank0]:`) or pdsh (`host: `) write it."""
MAX_LINES = 10_000
"""Of an object."""


def printed_object(text: str, marker: str, *, source: str) -> str | None:
    """The JSON object behind a regular expression in a log's lines; None: nothing matches.

    Raises ValueError where the object is cut off, and where two of them differ.
    """
    lines, found = text.splitlines(), set[str]()
    for number in (number for number, line in enumerate(lines) if re.search(marker, line)):
        process = "".join(_PROCESS.findall(lines[number])[:1])
        own = [each.removeprefix(process) for each in lines[number : number + MAX_LINES] if each.startswith(process)]
        whole = re.split(marker, "\n".join(own), maxsplit=1)[1]
        try:
            found.add(whole[: JSONDecoder().raw_decode(whole)[1]])
        except (ValueError, RecursionError):
            raise ValueError(f"{source}: no whole JSON follows {marker!r}; give the log with all of it") from None
    if len(found) > 1:
        raise ValueError(f"{source}: {len(found)} configurations follow {marker!r}; give the log of one run")
    return next(iter(found), None)
