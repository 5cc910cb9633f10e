"""Text of nccl-tests (and rccl-tests) as tables of transfers: `all_reduce_perf`, `sendrecv_perf` and the others.

A collective of n ranks counts as what its bus bandwidth stands for: messages one after the other through every rank's
port, `_TransferSteps` of them. Out-of-place times are read: a pipeline sends from one buffer to another.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import isinf
from pathlib import Path
from typing import Literal

from profiles.documents.refusal import refusal
from profiles.documents.strict_json import decode_text
from profiles.measure.links import Contention, LinkTables, PairTable, Place, load_links

TOLERANCE = 0.02
"""Relative error that two printed digits are given, beside the last of them."""
_LAST_DIGIT = 0.011

_ONE_PORT = (Contention(first=(0, 1), second=(0, 2), slowdown=2.0),)
"""A bus bandwidth is that of a rank's port: two messages of one sender share it."""

_TEST = re.compile(r"Collective test starting: *(?:\S*/)?(\w+?)_perf")
_RANK = re.compile(r"Rank +(\d+) +(?:Group +(\d+) +)?Pid +\d+ on +(\S+) +device +(\d+) +\[([^\]]*)\] *(.*\S)?")
_ROW = re.compile(r"(?<![\w.])(\d+\s+\d+\s+[a-z][a-z0-9_]*\s+[a-z]\w*\s+\S.*)$")

Test = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "alltoall", "sendrecv", "broadcast", "reduce", "gather", "scatter"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class _TransferSteps:
    """What a test of `size` bytes sends through the port of its busiest rank."""

    count: int
    """Messages one after the other."""
    parts: int
    """Each has one of so many equal parts of the size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    size: int
    has_sum: bool
    has_root: bool
    time_us: float
    rates: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rank:
    number: int
    group: int
    host: str
    device: int
    bus: str
    type: str


def read_links(path: Path) -> LinkTables:
    """Tables as --links wrote them, or nccl-tests' text; ValueError that names the file, the value and the remedy."""
    try:
        text = decode_text(path.read_bytes(), source=str(path))
    except (OSError, ValueError):
        return load_links(path)  # says what is wrong
    return load_links(path) if text.lstrip().startswith("{") else parse_nccl_tests(text, source=str(path))


def parse_nccl_tests(text: str, *, source: str) -> LinkTables:
    """Transfers between the ranks of one test, as its out-of-place times say.

    On one host every pair has the same table, and a rank its port once. Between hosts `sendrecv` times the pairs of
    neighbours that cross; of a collective every rank of a host has its equal share of what leaves the host. Raises
    ValueError that names the source, the line or value, and the remedy.
    """
    lines = text.splitlines()
    ranks = _ranks(lines, source=source)
    rows = _rows(lines, source=source)
    test = _test(lines, rows=rows, ranks=ranks, source=source)
    _require_rates(rows, steps=_steps(test, len(ranks)), test=test, source=source)
    hosts = Counter(rank.host for rank in ranks)
    if len(hosts) == 1:
        pairs = list(combinations(range(len(ranks)), 2))
        table = _table(rows, _steps(test, len(ranks)), share=1)
    else:
        table = _table(rows, _crossing_steps(test, hosts=hosts, source=source), share=_share(test, hosts=hosts))
        pairs = _crossing(ranks, test=test)
    if not table:
        raise refusal(source, "has no message of a byte or more; measure larger sizes, e.g. -b 1M -e 1G -f 2")
    places = sorted(ranks, key=lambda rank: (list(hosts).index(rank.host), rank.device, rank.number))
    place = {rank.number: position for position, rank in enumerate(places)}
    ends = sorted((min(place[a], place[b]), max(place[a], place[b])) for a, b in pairs)
    return LinkTables(
        places=tuple(
            Place(name=f"{rank.host}-{rank.number}", host=rank.host, type=rank.type, memory_bytes=0) for rank in places
        ),
        pairs=tuple(PairTable(a=a, b=b, one_way=table) for a, b in ends),
        contention=_ONE_PORT if len(hosts) == 1 and len(ranks) > 2 else (),
        provenance=_provenance(test, hosts=hosts),
    )


def _provenance(test: Test, *, hosts: Counter[str]) -> str:
    ranks = sum(hosts.values())
    steps = _steps(test, ranks)
    text = (
        f"{test}_perf of nccl-tests, {ranks} ranks, out of place: a size counts as {steps.count} messages of a "
        f"{'whole' if steps.parts == 1 else f'1/{steps.parts}'} each."
    )
    if len(hosts) == 1:
        text += " A rank is taken to have one port." if ranks > 2 else ""
    else:
        text += " Between hosts alone: what is within a host was not measured."
        share = _share(test, hosts=hosts)
        text += f" Every rank of a host is taken to have 1/{share} of what leaves it." if share > 1 else ""
    return text


def _ranks(lines: Sequence[str], *, source: str) -> list[_Rank]:
    """In their order; ValueError for a list with holes, groups, or a device of several ranks."""
    found = [
        _Rank(
            number=int(match[1]),
            group=int(match[2] or 0),
            host=match[3],
            device=int(match[4]),
            bus=match[5],
            type=match[6] or "gpu",
        )
        for line in lines
        if (match := _RANK.search(line))
    ]
    found.sort(key=lambda rank: rank.number)
    numbers = [rank.number for rank in found]
    if len(found) < 2 or numbers != list(range(len(found))):
        raise refusal(
            source,
            f"lists the ranks {', '.join(map(str, numbers)) or 'none'}; give nccl-tests' whole output, with a line "
            "`Rank ... on HOST device ...` for each of at least two, and one test in a file",
        )
    if len({rank.group for rank in found}) > 1:
        raise refusal(source, "ranks are in several groups at once; measure with one group")
    places = Counter((rank.host, rank.device, rank.bus) for rank in found)
    if (shared := places.most_common(1)[0])[1] > 1:
        host, device, bus = shared[0]
        raise refusal(source, f"device {device} [{bus}] of {host} has {shared[1]} ranks; start one rank per device")
    return found


def _rows(lines: Sequence[str], *, source: str) -> list[_Row]:
    header: list[str] = []
    rows = []
    for line in lines:
        if "algbw" in line and "busbw" in line:
            header = line[line.index("size") :].split() if "size" in line else []
        elif header and (match := _ROW.search(line)):
            rows.append(_row(match[1].split(), header=header, source=source))
    if not rows:
        raise refusal(
            source, "has no row of times under a line `size count type ...`; give the whole output of nccl-tests"
        )
    return rows


def _row(cells: Sequence[str], *, header: Sequence[str], source: str) -> _Row:
    try:
        cell = {name: cells[place] for place, name in reversed(list(enumerate(header))) if place < len(cells)}
        row = _Row(
            size=int(cell["size"]),
            has_sum=cell.get("redop", "none") != "none",
            has_root=int(cell.get("root", "-1")) >= 0,
            time_us=float(cell["time"]),
            rates=(float(cell["algbw"]), float(cell["busbw"])),
        )
    except (KeyError, ValueError):
        raise refusal(
            source,
            f"row {' '.join(cells)[:60]!r} has other columns than {' '.join(header)[:80]}; "
            "give the rows as nccl-tests printed them",
        ) from None
    if (wrong := cell.get("#wrong", "0")) not in ("0", "N/A"):
        raise refusal(source, f"size {row.size}: {wrong} wrong results; repair the machine and measure again")
    rate = row.size / row.time_us / 1e3 if row.time_us > 0 else 0.0
    if isinf(row.time_us) or not _is_close(rate, row.rates[0]):
        raise refusal(
            source,
            f"size {row.size}: {row.time_us} us are {rate:.2f} GB/s, but algbw says {row.rates[0]}; give the rows as "
            "nccl-tests printed them",
        )
    return row


def _is_close(value: float, printed: float) -> bool:
    return abs(value - printed) <= _LAST_DIGIT + TOLERANCE * printed


def _steps(test: Test, ranks: int) -> _TransferSteps:
    """Their bytes over the time are nccl-tests' bus bandwidth."""
    if test == "all_reduce":
        return _TransferSteps(count=2 * (ranks - 1), parts=ranks)
    whole = test in ("sendrecv", "broadcast", "reduce")
    return _TransferSteps(count=1, parts=1) if whole else _TransferSteps(count=ranks - 1, parts=ranks)


def _test(lines: Sequence[str], *, rows: Sequence[_Row], ranks: Sequence[_Rank], source: str) -> Test:
    """As the text says; older versions do not, and then as the columns say it."""
    named = {match[1] for line in lines if (match := _TEST.search(line))}
    if len(named) > 1:
        raise refusal(source, f"has several tests: {', '.join(sorted(named))}; give a file for each")
    kinds: tuple[Test, ...] = Test.__args__  # type: ignore[attr-defined]
    if named:
        name = {"hypercube": "alltoall"}.get(*named, *named) if named else ""
        for kind in kinds:
            if kind == name:
                return kind
        raise refusal(source, f"{name}_perf is none of {', '.join(kinds)}; measure with one of these")
    possible = [kind for kind in kinds if _fits(kind, rows, num_ranks=len(ranks))]
    is_one_host = len({rank.host for rank in ranks}) == 1
    if len({_steps(kind, len(ranks)) if is_one_host else kind for kind in possible}) != 1:
        raise refusal(
            source,
            f"does not state its test ({' or '.join(possible) or 'none'} by its columns); add the line `# Collective "
            "test starting: NAME_perf`",
        )
    return possible[0]


def _fits(kind: Test, rows: Sequence[_Row], *, num_ranks: int) -> bool:
    """Whether the columns are those of a test."""
    reduces, rooted = "reduce" in kind, kind in ("broadcast", "reduce", "gather", "scatter")
    steps = _steps(kind, num_ranks)
    return all(
        row.has_sum == reduces
        and row.has_root == rooted
        and _is_close(row.rates[0] * steps.count / steps.parts, row.rates[1])
        for row in rows
    )


def _require_rates(rows: Sequence[_Row], *, steps: _TransferSteps, test: Test, source: str) -> None:
    for row in rows:
        if not _is_close(row.rates[0] * steps.count / steps.parts, row.rates[1]):
            raise refusal(
                source,
                f"size {row.size}: busbw = {row.rates[1]} is not {steps.count}/{steps.parts} of algbw = "
                f"{row.rates[0]}, as {test}_perf of the listed ranks has it; give the whole output of one run",
            )


def _crossing(ranks: Sequence[_Rank], *, test: Test) -> list[tuple[int, int]]:
    """Pairs of two hosts: of `sendrecv` those that it sends between, of collectives the n-th ranks of every two."""
    if test == "sendrecv":
        ring = [(number, (number + 1) % len(ranks)) for number in range(len(ranks))]
        return sorted({(min(a, b), max(a, b)) for a, b in ring if ranks[a].host != ranks[b].host})
    members: dict[str, list[int]] = {}
    for place, rank in enumerate(ranks):
        members.setdefault(rank.host, []).append(place)
    return sorted(pair for one, other in combinations(members.values(), 2) for pair in zip(one, other, strict=True))


def _crossing_steps(test: Test, *, hosts: Counter[str], source: str) -> _TransferSteps:
    """Of what each rank sends, what leaves its host; ValueError where hosts have other numbers of ranks."""
    ranks, own = sum(hosts.values()), min(hosts.values())
    if test == "sendrecv":
        return _steps(test, ranks)
    if len(set(hosts.values())) > 1:
        counts = ", ".join(f"{count} on {host}" for host, count in hosts.items())
        raise refusal(source, f"{test}_perf of {counts}; measure with equally many ranks on every host")
    if test in ("alltoall", "gather", "scatter"):
        return _TransferSteps(count=ranks - own, parts=ranks)
    return _steps(test, ranks)


def _share(test: Test, *, hosts: Counter[str]) -> int:
    """Among so many ranks of a host what leaves it is divided: rings and trees cross once for all of them."""
    is_own = test in ("sendrecv", "alltoall", "gather", "scatter")
    return 1 if is_own else min(hosts.values())


def _table(rows: Sequence[_Row], steps: _TransferSteps, *, share: int) -> tuple[tuple[int, int], ...]:
    """Bytes and nanoseconds of one message; of one size the least."""
    found: dict[int, int] = {}
    for row in rows:
        size, time = row.size // (steps.parts * share), round(row.time_us * 1e3 / steps.count)
        if size > 0 and time > 0:
            found[size] = min(time, found.get(size, time))
    return tuple(sorted(found.items()))
