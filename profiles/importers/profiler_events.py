"""Traces of torch's profiler (Kineto, Chrome's form), event by event: a file of any size takes little memory."""

import gzip
import json
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from profiles.importers import trace_files
from profiles.importers.chakra_nodes import rank_of_name, read_nodes
from profiles.importers.chakra_protobuf import read_protobuf
from profiles.importers.rank_clocks import Entry
from profiles.importers.rank_messages import MessageColumns, MessageEnd, begin_with_input
from profiles.importers.unmarked_actions import REMEDY, EventColumns, UnmarkedRank, find_actions, thread_number

CHUNK_CHARACTERS = 2**20
"""Read at once."""

_MAX_CHARACTERS = 2**26
"""Longest single event, and longest head before the first one."""

ACTION_NAME = re.compile(r"(?:PP:)?([0-9]+)([FIWB])([0-9]+)")
"""`0F3`, or as torch's pipelining runtime marks it for its profiler, `PP:0F3`."""

_ARRAY = re.compile(r'"(traceEvents|nodes)"\s*:\s*\[')

PROFILER, LINKED, PROTOBUF = "torch's profiler", "Chakra's linked traces", "Chakra's traces (protobuf)"
OWN = "executor (--trace)"
"""Tools whose traces are read."""

_RANK = re.compile(r'"rank"\s*:\s*([0-9]+)')
_WORLD = re.compile(r'"world_size"\s*:\s*([0-9]+)')
_NCCL = re.compile(r'"backend"\s*:\s*"nccl"')


@dataclass(slots=True, kw_only=True)
class RankTrace:
    """One rank's document."""

    source: str = ""
    form: str = PROFILER
    """Tool that wrote the trace."""
    device: str = ""
    """Name of the device, if the document says it."""
    rank: int | None = None
    """As the document states it; of Chakra's, as the file is named."""
    world_size: int | None = None
    """Ranks of the job, if the document says it."""
    is_on_gpu: bool = False
    """Whether the document says that ranks exchange from GPU to GPU."""
    of_run: dict[str, int] = field(default_factory=dict)
    """What documents of our executor's state of their run."""
    rows: Sequence[Sequence[Entry]] = field(default_factory=list)
    """Per iteration, by its own clock; empty as long as its stage is not known."""
    taken_up: "Sequence[Sequence[int]]" = field(default_factory=list)
    """Per iteration when each action was taken up; from then until its start the device waited. Empty: not told."""
    unmarked: UnmarkedRank | None = None
    """Where no event is marked: the actions that are told all the same."""
    messages: list[MessageEnd] = field(default_factory=list)
    """Sends and receives, in the order of their begins."""
    is_rebuilt: bool = False
    """Whether only durations and order are told, and times are rebuilt from them."""


class MarkedActions:
    """What a trace's events tell of actions that are marked, and of messages; times on the GPU where it has both."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._found: dict[str, dict[tuple[str, int, int], list[Entry]]] = {"": {}}  # by stream; the host has none
        self._computing_us: dict[str, float] = defaultdict(float)
        self._messages = MessageColumns()
        self._processes: dict[bool, Any] = {}

    def take(self, event: Mapping[str, Any]) -> bool:
        """Whether the event is an action; ValueError for one without times that can be."""
        match = ACTION_NAME.fullmatch(str(event.get("name", "")))
        if match is not None and event.get("ph") == "B":
            raise ValueError(
                f"{self._source}: action {match[0]} begins and ends in two events (ph B, E); export it as one (ph X)"
            )
        if match is None or event.get("ph") != "X":
            self._messages.take(event, thread=thread_number(event.get("tid")))
            if event.get("cat") == "kernel" and "nccl" not in str(event.get("name")):
                took = event.get("dur")
                self._computing_us[str(event.get("tid"))] += took if isinstance(took, int | float) else 0
            return False
        try:
            start, length = float(event["ts"]), float(event["dur"])
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"{self._source}: action {event['name']} has no times; export the trace again") from None
        if not (0 <= length < 1e18 and abs(start) < 1e18):
            raise ValueError(
                f"{self._source}: action {event['name']} takes {length} us from {start}; export the trace again"
            )
        on_gpu, process = event.get("cat") == "gpu_user_annotation", event.get("pid")
        if process is not None and (other := self._processes.setdefault(on_gpu, process)) != process:
            raise ValueError(f"{self._source}: has actions of processes {other} and {process}; give a file per rank")
        begin = round(start * 1000)
        entry = begin, begin + round(length * 1000), match[2], int(match[1]), int(match[3])
        stream = self._found.setdefault(str(event.get("tid")) if on_gpu else "", {})
        stream.setdefault(entry[2:], []).append(entry)
        return True

    def finish(self) -> tuple[list[list[Entry]], list[MessageEnd]]:
        """Actions by iteration, an action's n-th in the n-th one, and messages in the order of their begins.

        Of an action that several streams of the GPU ran parts of, an event each, the stream that computes most counts.
        A host's actions begin when the last message that they waited for was there: torch's runtime waits within them.
        """
        messages, host = self._messages.finish(), self._found.pop("")
        found: dict[tuple[str, int, int], list[Entry]] = {}
        for stream in sorted(self._found, key=self._computing_us.__getitem__):
            found |= self._found[stream]
        if not found:
            if host and self._computing_us:
                told = "shows a GPU's kernels, but marks actions of the host, which launches them"
                raise ValueError(f"{self._source}: {told}; give the whole trace, with gpu_user_annotation")
            arrivals = sorted(each.end_ns for each in messages if not (each.is_send or each.on_gpu))
            for action, row in host.items():
                found[action] = [(begin_with_input(*one[:2], arrivals=arrivals), *one[1:]) for one in row]
        rows = [sorted(row) for row in found.values()]
        return [sorted(row[n] for row in rows if n < len(row)) for n in range(max(map(len, rows), default=0))], messages


def read_profiled_rank(path: Path) -> RankTrace:
    """The marked actions of one rank, or what is told without marks; times on the GPU where the trace has both.

    Raises ValueError with one message if the file is cut off or no such trace, or if no action can be told.
    """
    result, marked, categories = RankTrace(source=str(path)), MarkedActions(str(path)), Counter[str]()
    columns: EventColumns | None = EventColumns()
    for event in _stream_events(path, head=result):
        categories[str(event.get("cat", "none"))] += 1
        if marked.take(event):
            columns = None
        elif columns is not None:
            columns.take(event)
    if result.is_on_gpu and not categories["kernel"]:
        raise ValueError(f"{path}: is of GPUs (NCCL), but has no kernel; profile with ProfilerActivity.CUDA as well")
    result.rows, result.messages = marked.finish()
    if not result.rows:
        if columns is None or not len(columns.rows[0]):
            kinds = ", ".join(f"{count:,} {name}" for name, count in categories.most_common(4)) or "no events"
            raise ValueError(
                f"{path}: holds {kinds}, but no marked action (PP:0F3 = forward of stage 0, microbatch 3); profile "
                f"torch's pipelining runtime, or {REMEDY}"
            )
        told = [] if result.is_rebuilt else result.messages  # without times nobody knows when one was waited for
        result.unmarked = find_actions(columns, messages=told, source=path)
    return result


def _stream_events(path: Path, *, head: RankTrace) -> Iterator[dict[str, Any]]:
    """Event by event; what precedes them is looked through for the rank."""
    try:
        if path.name.endswith(trace_files.PROTOBUF):
            head.form, head.rank = PROTOBUF, rank_of_name(path)
            head.is_rebuilt, nodes = read_protobuf(path)
            yield from read_nodes(nodes, path=path)
            return
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8-sig") as file:
            text, place = _find_array(file, path=path)
            if '"makespan_ns"' in text[:place]:
                raise ValueError(f"{path}: is a plan's timeline, which was not measured; give traces of its run")
            rank, world = _RANK.search(text, 0, place), _WORLD.search(text, 0, place)
            head.is_on_gpu = _NCCL.search(text, 0, place) is not None
            events = _events(file, text=text[place:], path=path)
            head.rank = None if rank is None else int(rank[1])
            head.world_size = None if world is None else int(world[1])
            if _ARRAY.match(text, max(0, text.rfind('"nodes"', 0, place))) is not None:
                head.form, head.rank, head.is_on_gpu = LINKED, rank_of_name(path), False
                events = read_nodes(events, path=path)
            yield from events
    except UnicodeDecodeError:
        reason = "is no text, as Nsight's databases and memory snapshots are not"
        raise ValueError(f"{path}: {reason}; give {trace_files.TRACES}") from None
    except (OSError, EOFError, zlib.error) as error:
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
        if len(text) > _MAX_CHARACTERS:
            break
    raise ValueError(f"{path}: has no traceEvents; give {trace_files.TRACES}")


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
                raise ValueError(f"{path}: has {str(event)[:40]} for an event; give {trace_files.TRACES}")
            yield event
            place = end
        except RecursionError:
            raise ValueError(f"{path}: an event is nested too deeply; export the trace again") from None
        except json.JSONDecodeError as error:
            more = file.read(CHUNK_CHARACTERS)
            if not more or len(text) - place > _MAX_CHARACTERS:
                raise ValueError(f"{path}: is cut off or broken ({error.msg}); export the trace again") from None
            text, place = text[place:] + more, 0
