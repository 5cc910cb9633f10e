"""Traces of torch's profiler (Kineto, Chrome's form), event by event: a file of any size takes little memory."""

import gzip
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from profiles.importers.unmarked_actions import REMEDY, EventColumns, UnmarkedRank, find_actions

CHUNK_CHARACTERS = 2**20
"""Read at once."""

MAX_CHARACTERS = 2**26
"""Longest single event, and longest head before the first one."""

ACTION_NAME = re.compile(r"(?:PP:)?([0-9]+)([FIWB])([0-9]+)")
"""`0F3`, or as torch's pipelining runtime marks it for its profiler, `PP:0F3`."""

_ARRAY = re.compile(r'"traceEvents"\s*:\s*\[')

_RANK = re.compile(r'"rank"\s*:\s*([0-9]+)')


@dataclass(slots=True, kw_only=True)
class ProfiledRank:
    """What one rank's trace says about actions."""

    rank: int | None
    """As the trace states it."""
    actions: list[tuple[int, int, str, int, int]] = field(default_factory=list)
    """Start, end, kind, stage and microbatch, in nanoseconds; sorted."""
    categories: Counter[str] = field(default_factory=Counter)
    """How many events of each category there are."""
    unmarked: UnmarkedRank | None = None
    """Where no event is marked: the actions that are told all the same."""


def read_profiled_rank(path: Path) -> ProfiledRank:
    """The marked actions of one rank, or what is told without marks; times on the GPU where the trace has both.

    Raises ValueError with one message if the file is cut off or no such trace, or if no action can be told.
    """
    found: dict[bool, list[tuple[int, int, str, int, int]]] = {True: [], False: []}
    result = ProfiledRank(rank=None)
    columns: EventColumns | None = EventColumns()
    for event in stream_events(path, head=result):
        category = str(event.get("cat", "none"))
        result.categories[category] += 1
        match = ACTION_NAME.fullmatch(str(event.get("name", "")))
        if match is None or event.get("ph") != "X":
            if columns is not None:
                columns.take(event)
            continue
        columns = None
        try:
            start, length = float(event["ts"]), float(event["dur"])
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"{path}: action {event['name']} has no times; export the trace again") from None
        if not (length >= 0 and abs(start) < 1e18):
            raise ValueError(f"{path}: action {event['name']} takes {length} us from {start}; export the trace again")
        begin = round(start * 1000)
        spans = found[category == "gpu_user_annotation"]
        spans.append((begin, begin + round(length * 1000), match[2], int(match[1]), int(match[3])))
    result.actions = sorted(found[True] or found[False])
    if not result.actions:
        if columns is None or not len(columns.rows[0]):
            kinds = ", ".join(f"{count:,} {name}" for name, count in result.categories.most_common(4)) or "no events"
            raise ValueError(
                f"{path}: holds {kinds}, but none is marked as an action of a pipeline (PP:0F3 = forward of stage 0, "
                f"microbatch 3); profile torch's pipelining runtime, or {REMEDY}"
            )
        result.unmarked = find_actions(columns, source=path)
    return result


def stream_events(path: Path, *, head: ProfiledRank | None = None) -> Iterator[dict[str, Any]]:
    """Event by event; what precedes them is looked through for the rank."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            text, place = _find_array(file, path=path)
            rank = _RANK.search(text, 0, place)
            if head is not None and rank is not None:
                head.rank = int(rank[1])
            yield from _events(file, text=text[place:], path=path)
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise ValueError(f"{path}: cannot be read ({str(error)[:80]}); export the trace again") from None


def _find_array(file: IO[str], *, path: Path) -> tuple[str, int]:
    """What was read so far, and where the events begin in it."""
    text = ""
    while more := file.read(CHUNK_CHARACTERS):
        text += more
        if text.lstrip().startswith("["):
            return text, text.index("[") + 1
        if found := _ARRAY.search(text):
            return text, found.end()
        if len(text) > MAX_CHARACTERS:
            break
    raise ValueError(f"{path}: has no traceEvents; give a trace that torch's profiler exported")


def _events(file: IO[str], *, text: str, path: Path) -> Iterator[dict[str, Any]]:
    decoder, place = json.JSONDecoder(), 0
    while True:
        while place < len(text) and text[place] in " \t\r\n,":
            place += 1
        if text[place : place + 1] == "]":
            return
        try:
            event, end = decoder.raw_decode(text, place)
            if not isinstance(event, dict):
                raise ValueError(f"{path}: an event is {str(event)[:40]!r}; export the trace again")
            yield event
            place = end
        except json.JSONDecodeError as error:
            more = file.read(CHUNK_CHARACTERS)
            if not more or len(text) - place > MAX_CHARACTERS:
                raise ValueError(f"{path}: is cut off or broken ({error.msg}); export the trace again") from None
            text, place = text[place:] + more, 0
