"""What becomes of one process of a job, written down by its parent: who it was, that it runs, how it ended.

The parent forks before the program begins, and needs nothing but the standard library: it outlives whatever ends the
program. A process that is killed is distinguished from one that failed, and a parent that is gone as well leaves a
record that still says `running`.
"""

import ctypes
import json
import os
import signal
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from planner.execute.record.put_whole import put_whole

_STOPPING = (signal.SIGTERM, signal.SIGINT)
_DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of Linux."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRecord:
    """One process of one attempt."""

    rank: int
    """Its number in the plan's layout."""
    device: str
    """The plan's device that it drives."""
    host: str
    """The host of that device, as the plan calls it or as it is really called."""
    machine: str
    """Host name."""
    process: int
    """Number of the parent there."""
    started: int
    """When the parent started, in clock ticks since that machine booted; 0 where it does not say."""
    state: Literal["running", "stopping", "ended"] = "running"
    """`stopping`: somebody asked it to end."""
    was_asked: bool = False
    """Whether it was asked to end before it ended."""
    code: int = 0
    """Exit code, or minus the number of the signal that ended it."""
    at_ns: int = 0
    """When it ended, in nanoseconds of its host's wall clock."""


def start_ticks(process: int) -> int | None:
    """When a process of this machine started, in clock ticks since boot; None if it is no more, or is a zombie."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def keep_record(folder: Path, *, rank: int, device: str, host: str) -> None:
    """Fork: the child returns and becomes the program, the parent stays and ends as the child ends.

    The record stands in `folder` as `rank-N.json`, whole at any time.
    """
    parent = os.getpid()
    record = RankRecord(
        rank=rank,
        device=device,
        host=host,
        machine=socket.gethostname(),
        process=parent,
        started=start_ticks(parent) or 0,
    )
    folder.mkdir(parents=True, exist_ok=True)
    # The one that is asked to end from here on is known to have been asked.
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
    write_record(folder, record)
    child = os.fork()
    if not child:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)
        _die_with(parent)
        return
    _attend(folder, record, child=child)


def _die_with(parent: int) -> None:
    """The kernel kills this process when its parent is killed; elsewhere than on Linux it continues alone."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _attend(folder: Path, record: RankRecord, *, child: int) -> None:
    """Hand on what asks to end; when the child has ended, write it down and end alike."""
    asked = False

    def pass_on(number: int, _: FrameType | None) -> None:
        nonlocal asked
        asked = True
        write_record(folder, replace(record, state="stopping", was_asked=True))
        with suppress(ProcessLookupError):
            os.kill(child, number)

    for number in _STOPPING:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    for number in _STOPPING:
        signal.signal(number, signal.SIG_IGN)
    write_record(folder, replace(record, state="ended", was_asked=asked, code=code, at_ns=time.time_ns()))
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(abs(code))


def write_record(folder: Path, record: RankRecord) -> None:
    """Put a record where `read_records` finds it, whole at any time."""
    put_whole(folder / f"rank-{record.rank}.json", json.dumps(asdict(record)) + "\n")


def read_records(folder: Path) -> tuple[RankRecord, ...]:
    """What is known of every process that began, by rank."""
    found = (_read(path) for path in folder.glob("rank-*.json"))
    return tuple(sorted(found, key=lambda record: record.rank))


def _read(path: Path) -> RankRecord:
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return RankRecord(**values)


def is_running(record: RankRecord) -> bool | None:
    """Whether a process still runs; None if its machine is another one, and its record does not say that it ended."""
    if record.state == "ended":
        return False
    if record.machine != socket.gethostname():
        return None
    return start_ticks(record.process) == record.started


def end_now(records: Iterable[RankRecord]) -> None:
    """Kill what still runs on this machine, parent first: what it holds is of no use any more."""
    for record in records:
        if is_running(record):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(record.process, signal.SIGKILL)
