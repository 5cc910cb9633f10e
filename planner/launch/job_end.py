"""How a job ended, from what its processes left behind: whose devices were lost, or whether the program failed."""

import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from planner.execute.record.rank_record import RankRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnd:
    """What is known of a job that did not end well."""

    lost: Mapping[str, str]
    """Devices that are gone, and why."""
    failure: str
    """What the program itself did wrong; empty if nothing."""


def judge_end(records: Sequence[RankRecord], *, silent: Collection[int], down_hosts: Collection[str] = ()) -> JobEnd:
    """Tell lost devices from a program that failed.

    `silent`: ranks whose record says that they run, and that do not; `down_hosts`: hosts of which the launcher says so,
    by any name that a record has. A device is lost if its process was killed (SIGKILL) though nobody had asked it to
    end, if it vanished with the parent that writes its record, or if its host is down. A process that ended by itself
    with an error, or by a signal that its own code brings about (SIGSEGV, SIGABRT and the like), before anything was
    lost, is the program's failure: another plan would not mend it.
    """
    lost, first_loss = {}, None
    for record in records:
        if record.host in down_hosts or record.machine in down_hosts:
            lost[record.device] = f"its host {record.host} is down"
        elif record.rank in silent:
            lost[record.device] = f"rank {record.rank} vanished from {record.host}"
        elif record.state == "ended" and record.code == -signal.SIGKILL and not record.was_asked:
            lost[record.device] = f"rank {record.rank} was killed on {record.host}"
            first_loss = min(first_loss or record.at_ns, record.at_ns)
    failed = [each for each in records if each.state == "ended" and each.code not in (0, -signal.SIGKILL)]
    own = [record for record in failed if not record.was_asked]
    if lost:  # without a time (a vanished process, a host that is down) it is taken to have come first
        own = [record for record in own if first_loss is not None and record.at_ns < first_loss]
    return JobEnd(lost=lost, failure=_describe(min(own, key=lambda record: record.at_ns)) if own else "")


def _describe(record: RankRecord) -> str:
    how = f"exit code {record.code}" if record.code > 0 else f"signal {signal.Signals(-record.code).name}"
    return f"rank {record.rank} ({record.device}) ended by itself with {how}"
