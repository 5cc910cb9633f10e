"""What a rank of our executor wrote with --trace, read member by member: 40 bytes are kept of an action."""

import json
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple, overload

from profiles.importers.profiler_events import ACTION_NAME, OWN, RankTrace
from profiles.importers.rank_clocks import Entry

CHUNK_CHARACTERS = 2**20
"""Read at once."""

_KINDS = "FIWB"

OF_RUN = ("run", "world_size", "num_stages")
"""Numbers that the documents of all ranks of a run have alike; earlier releases wrote none."""

_STREAMED = ("iterations", "times")
"""Lists that are long: they are read entry by entry."""


class _ActionColumns(Sequence[list[Entry]]):
    """Actions of all iterations as whole numbers; an iteration's list is made when it is asked for."""

    def __init__(self) -> None:
        self._columns = tuple(array("q") for _ in range(4))
        self._ends = array("q", [0])

    def append(self, entries: Sequence[Entry]) -> None:
        """One iteration more."""
        for start, end, kind, stage, microbatch in entries:
            for column, value in zip(
                self._columns, (start, end, stage, microbatch * 4 + _KINDS.index(kind)), strict=True
            ):
                column.append(value)
        self._ends.append(len(self._columns[0]))

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, number: int) -> list[Entry]: ...

    @overload
    def __getitem__(self, number: slice) -> Sequence[list[Entry]]: ...

    def __getitem__(self, number: int | slice) -> list[Entry] | Sequence[list[Entry]]:
        if isinstance(number, slice):
            return [self[each] for each in range(len(self))[number]]
        return sorted(self.as_written(range(len(self))[number]))

    def as_written(self, number: int) -> list[Entry]:
        """An iteration's actions in the document's order."""
        rows = (column[self._ends[number] : self._ends[number + 1]] for column in self._columns)
        return [(start, end, _KINDS[code % 4], stage, code // 4) for start, end, stage, code in zip(*rows, strict=True)]


class OwnTimes(NamedTuple):
    """What lies around the actions of an iteration, in nanoseconds of the rank's clock."""

    begin_ns: int
    reduced_ns: int
    """When gradients were put together."""
    end_ns: int


@dataclass(slots=True, kw_only=True)
class OwnTrace(RankTrace):
    """One rank, whose `of_run` has those of `OF_RUN` that it states."""

    form: str = OWN
    rows: _ActionColumns = field(default_factory=_ActionColumns)
    taken_up: "list[array[int]]" = field(default_factory=list)
    times: list[OwnTimes] = field(default_factory=list)
    """Per iteration; fewer where they are not told of all."""


def read_own_trace(path: Path) -> OwnTrace | None:
    """The document that our executor wrote; None if the file is another's; ValueError if it is cut off or broken."""
    try:
        with path.open("rb") as file:
            if b'"traceEvents"' in (head := file.read(2**20)) or b'"iterations"' not in head or path.suffix == ".gz":
                return None
        with path.open(encoding="utf-8-sig") as text:
            trace = _read(_members(_Text(text)), path=path)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror}); give another file") from None
    except (json.JSONDecodeError, UnicodeDecodeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{path}: is cut off or broken ({str(error)[:80]}); run with --trace again") from None
    if not any(trace.rows):
        raise ValueError(f"{path}: contains no iteration; run with --trace again")
    return trace


def _read(members: Iterator[tuple[str, Any]], *, path: Path) -> OwnTrace:
    trace = OwnTrace(source=str(path))
    for name, value in members:
        if name == "iterations":
            trace.rows.append(_entries(value, path=path))
        elif name == "times" and isinstance(value, dict):
            trace.taken_up.append(_whole_numbers(value.get("taken_up_ns")))
            if len(around := _whole_numbers([value.get(name) for name in OwnTimes._fields])):
                trace.times.append(OwnTimes(*around))
        elif name == "device":
            trace.device = str(value or "")
        elif name == "rank" and isinstance(value, int):
            trace.rank = value
        elif name in OF_RUN and isinstance(value, int):
            trace.of_run[name] = value
    trace.world_size = trace.of_run.get("world_size")
    return trace


def _whole_numbers(values: Any) -> "array[int]":
    """Empty where one of them is none."""
    is_told = isinstance(values, list) and all(isinstance(value, int) for value in values)
    return array("q", values if is_told else [])


def _entries(iteration: Any, *, path: Path) -> list[Entry]:
    found = []
    try:
        for text, start, end in iteration:
            if (match := ACTION_NAME.fullmatch(text)) is not None:
                if not (isinstance(start, int) and isinstance(end, int) and start <= end):
                    raise ValueError(f"{text} lasts from {start} to {end}")
                found.append((start, end, match[2], int(match[1]), int(match[3])))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: is not what the executor's --trace writes: {error}; run it again") from None
    return found


class _Text:
    """A file's text, of which only what is not read yet is held."""

    def __init__(self, file: IO[str]) -> None:
        self._file, self._text, self._place = file, "", 0
        self._decoder = json.JSONDecoder()

    def _more(self) -> bool:
        more = self._file.read(CHUNK_CHARACTERS)
        self._text, self._place = self._text[self._place :] + more, 0
        return bool(more)

    def next(self) -> str:
        """The next character that is no space, not taken yet; empty at the end."""
        while True:
            while self._place < len(self._text) and self._text[self._place] in " \t\r\n":
                self._place += 1
            if self._place < len(self._text):
                return self._text[self._place]
            if not self._more():
                return ""

    def take(self, characters: str) -> str:
        """The next character, which must be one of these."""
        found = self.next()
        if not found or found not in characters:
            raise json.JSONDecodeError(f"Expecting one of {characters}", self._text[self._place :][:40], 0)
        self._place += 1
        return found

    def value(self) -> Any:
        """The next value as a whole."""
        while True:
            self.next()
            try:
                value, end = self._decoder.raw_decode(self._text, self._place)
            except json.JSONDecodeError:
                if not self._more():
                    raise
                continue
            length = end - self._place
            # A number at the end of what was read may continue.
            if end == len(self._text) and self._more():
                continue
            self._place += length
            return value


def _members(text: _Text) -> Iterator[tuple[str, Any]]:
    """Name and value of every member of an object; of long lists every entry by itself."""
    text.take("{")
    while True:
        name = text.value()
        text.take(":")
        if name in _STREAMED and text.next() == "[":
            yield from ((name, value) for value in _elements(text))
        else:
            yield str(name), text.value()
        if text.take(",}") == "}":
            break
    if text.next():
        raise json.JSONDecodeError("Extra data", text.next(), 0)


def _elements(text: _Text) -> Iterator[Any]:
    text.take("[")
    if text.next() == "]":
        text.take("]")
        return
    while True:
        yield text.value()
        if text.take(",]") == "]":
            return
