"""Tables of transfer times, and the cluster that explains them; needs no torch.

A link has one latency and one bandwidth: they are fitted with relative weights, so that small and large messages count
alike. Where they miss a time, it states times by message size as well. The tables stay in their document.
"""

import itertools
import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from profiles.cluster import Cluster, Collective, Device, Link, MessageTime
from profiles.documents.canonical_json import to_plain
from profiles.documents.refusal import refusal, render_value
from profiles.documents.strict_json import decode_text, parse_json
from profiles.documents.strict_record import StrictRecord
from profiles.documents.validation import validate

_LINKS_FORMAT = "pipeline-links/1"
"""The `format` of the documents that `dump_links` writes."""

TOLERANCE = 0.1
"""Where one latency and one bandwidth miss a measured time by more than this part of it, a link states times by size.
Not measured."""

SHARES = 1.5
"""Two transfers at once that are slower by this factor share a link."""

ALL_PAIRS_OF, BETWEEN_HOSTS = 8, 4
"""All pairs of so many places of a host are timed, and so many counterparts of two hosts (`choose_pairs`): 364 pairs of
64 places on eight hosts instead of 2,016. Not measured on so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place(StrictRecord):
    """One process that took part, and the device that it stands for."""

    name: str
    """The device."""
    host: str
    """Host of the process."""
    type: str
    """As layer costs call it."""
    memory_bytes: int
    """Memory of the device."""
    cores: int = 1
    """Threads that belong to it, on a host."""
    reserved_bytes: int | None = None
    """What of its memory cannot be allocated; None: not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTable(StrictRecord):
    """Transfers between two places while nothing else is sent."""

    a: int
    """Position of one place."""
    b: int
    """Position of the other."""
    one_way: tuple[tuple[int, int], ...]
    """Bytes, and nanoseconds from one to the other: the least of some half ping-pongs (others on
    the machine only ever add), in rising order of bytes."""
    both_ways_ns: int | None = None
    """Nanoseconds of two opposite transfers at once, each of the largest size."""
    spread: float = 0.0
    """Distance of the quartiles over the median, the worst size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention(StrictRecord):
    """Two transfers at once, compared with each alone."""

    first: tuple[int, int]
    """Sender and receiver."""
    second: tuple[int, int]
    """Those of the other transfer; they may have the sender in common."""
    slowdown: float
    """Time together over time alone, the worse of the two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTime(StrictRecord):
    """One collective over the first places."""

    places: int
    """Number of processes."""
    num_bytes: int
    """Of the whole tensor, of which each has a part before a gather, and after a scatter."""
    duration_ns: int
    """The least of some, on the slowest place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTables(StrictRecord):
    """Everything that was measured between some places."""

    places: tuple[Place, ...]
    """In the order of their ranks."""
    pairs: tuple[PairTable, ...] = ()
    """Those of `choose_pairs`, or every two places."""
    contention: tuple[Contention, ...] = ()
    """Pairs of transfers at once."""
    all_reduce: tuple[CollectiveTime, ...] = ()
    """By number of places and bytes."""
    all_gather: tuple[CollectiveTime, ...] = ()
    """The same of all-gathers."""
    reduce_scatter: tuple[CollectiveTime, ...] = ()
    """The same of reduce-scatters."""
    collective_occupancy: int = 0
    """Thousandths of a place that an all-reduce over all takes from what it computes beside it."""
    sharding_occupancy: int = 0
    """Thousandths that a message of torch's `fully_shard` takes, which on a host waits for each."""
    provenance: str = ""
    """Backend, versions, repetitions."""

    def __post_init__(self) -> None:
        if not self.places:
            raise ValueError("links: places is empty; measure at least one")
        for pair in self.pairs:
            if not 0 <= pair.a < pair.b < len(self.places):
                raise ValueError(f"links: pair {pair.a} - {pair.b} is none of {len(self.places)} places; measure again")
            sizes = [size for size, _ in pair.one_way]
            if not sizes or sizes != sorted(set(sizes)) or any(time <= 0 for _, time in pair.one_way):
                raise ValueError(
                    f"links: one_way of pair {pair.a} - {pair.b} is not a table of rising sizes and positive times; "
                    "measure again"
                )


def choose_pairs(hosts: Sequence[str]) -> list[tuple[int, int]]:
    """The pairs of places that are timed, by the host of each place: all of a host of eight or fewer, and of a larger
    one each place with its neighbour and with the one half way round; between two hosts each with its counterpart, four
    at most, and one across. Links of the others are taken to be as the median of these.
    """
    members: dict[str, list[int]] = {}
    for place, host in enumerate(hosts):
        members.setdefault(host, []).append(place)
    pairs = set()
    for own in members.values():
        count = len(own)
        steps = range(1, count) if count <= ALL_PAIRS_OF else (1, count // 2)
        pairs |= {_ordered(own[at], own[(at + step) % count]) for at in range(count) for step in steps}
    for one, other in itertools.combinations(members.values(), 2):
        pairs |= {_ordered(a, b) for a, b in itertools.islice(zip(one, other, strict=False), BETWEEN_HOSTS)}
        pairs.add(_ordered(one[0], other[-1]))
    return sorted(pairs)


def _ordered(a: int, b: int) -> tuple[int, int]:
    return min(a, b), max(a, b)


def choose_counts(world: int) -> list[int]:
    """Over how many places all-reduces are timed: each number up to eight, powers of two, and all."""
    return [
        count for count in range(2, world + 1) if count <= ALL_PAIRS_OF or count & (count - 1) == 0 or count == world
    ]


def dump_links(tables: LinkTables) -> str:
    """The document of some tables, one line per pair."""
    plain = {"format": _LINKS_FORMAT, **to_plain(tables)}
    lines = []
    for key, value in plain.items():
        text = json.dumps(value, ensure_ascii=False)
        if isinstance(value, list):
            text = "[\n" + ",\n".join(json.dumps(item, ensure_ascii=False) for item in value) + "\n]"
        lines.append(f"{json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def load_links(path: Path) -> LinkTables:
    """The tables of a document; raises ValueError that names the file, the path inside it, the value and the remedy."""
    source = str(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise refusal(source, f"cannot be read ({error.strerror}); give a file that --links wrote") from None
    tree = parse_json(decode_text(data, source=source), source=source)
    if not isinstance(tree, dict) or tree.get("format") != _LINKS_FORMAT:
        shown = render_value(tree.get("format") if isinstance(tree, dict) else tree)
        raise refusal(source, f"format = {shown} is not {_LINKS_FORMAT}; give what --links wrote, or nccl-tests' text")
    return validate(LinkTables, {key: value for key, value in tree.items() if key != "format"}, source=source)


def fit(table: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Latency in nanoseconds and bandwidth in bytes per second, with the least sum of squared relative errors.

    Neither is negative: where the best latency would be, it is 0.
    """
    s0 = sum(1 / time**2 for _, time in table)
    s1 = sum(size / time**2 for size, time in table)
    s2 = sum(size**2 / time**2 for size, time in table)
    t0, t1 = sum(1 / time for _, time in table), sum(size / time for size, time in table)
    determinant = s0 * s2 - s1 * s1
    latency, per_byte = 0.0, 0.0
    if determinant > 1e-9 * s0 * s2:
        latency, per_byte = (t0 * s2 - t1 * s1) / determinant, (s0 * t1 - s1 * t0) / determinant
    if latency < 0 or per_byte <= 0:
        latency, per_byte = 0.0, t1 / s2 if s2 else 0.0
    if per_byte <= 0:
        return round(t0 / s0), 10**12
    return round(latency), max(1, round(1e9 / per_byte))


def worst_error(table: Sequence[tuple[int, int]]) -> float:
    """Largest relative error of the fitted latency and bandwidth on the table."""
    latency, bandwidth = fit(table)
    return max(abs(latency + size * 1e9 / bandwidth - time) / time for size, time in table)


def infer_cluster(tables: LinkTables, *, name: str) -> Cluster:
    """Devices and links that explain the tables.

    Where transfers of disjoint pairs do not slow each other down, every pair has a link of its own. Where transfers
    from one sender do, each device has one link, to its host. Where transfers between two hosts do, the hosts have one
    link between them.
    """
    return _Inference(tables).cluster(name)


def _fit_below(table: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Latency and bandwidth as `fit` has them where that misses no time by more than `TOLERANCE`; else those of the
    fastest size, below which no time is.
    """
    if worst_error(table) <= TOLERANCE:
        return fit(table)
    bandwidth = max(fit(table)[1], *(-(-size * 10**9 // max(1, time)) for size, time in table))
    return max(0, min(time - (-(-size * 10**9 // bandwidth)) for size, time in table)), bandwidth


def with_message_times(link: Link, tables: Sequence[Sequence[tuple[int, int]]], *, latency_ns: int) -> Link:
    """The link with the median times by size of the pairs that it joins, if one latency and one bandwidth miss some.

    `latency_ns`: of a whole transfer, other links included. What a link may not state (a larger message in less time,
    or one above its bandwidth) is raised.
    """
    if max(worst_error(table) for table in tables) <= TOLERANCE:
        return link
    points, moving = list[MessageTime](), 0
    for size in sorted(set.intersection(*({size for size, _ in table} for table in tables)) - {0}):
        time = round(statistics.median(dict(table)[size] for table in tables))
        moving = max(moving, time - latency_ns, link.moving_ns(size))
        points.append(MessageTime(bytes=size, time_ns=link.latency_ns + moving))
    return replace(link, message_times=tuple(points))


class _Inference:
    def __init__(self, tables: LinkTables) -> None:
        self.tables, self.places = tables, tables.places
        self.hosts = list(dict.fromkeys(place.host for place in self.places))
        self.pairs = {(pair.a, pair.b): pair for pair in tables.pairs}
        self.fits = {key: _fit_below(pair.one_way) for key, pair in self.pairs.items()}
        self._fill_in()
        self.with_ports: set[str] = set()
        self.links: list[Link] = []

    def _fill_in(self) -> None:
        """A pair that was not timed is like the one of median bandwidth between its two hosts, or within its one."""
        timed: dict[frozenset[str], list[tuple[int, int]]] = {}
        for key in self.pairs:
            timed.setdefault(self._hosts_of(key), []).append(key)
        for key in itertools.combinations(range(len(self.places)), 2):
            alike = sorted(timed.get(self._hosts_of(key), ()), key=lambda pair: self.fits[pair][1])
            if key not in self.fits and alike:
                middle = alike[len(alike) // 2]
                self.pairs[key], self.fits[key] = self.pairs[middle], self.fits[middle]
        self.pairs = dict(sorted(self.pairs.items()))

    def _hosts_of(self, pair: tuple[int, int]) -> frozenset[str]:
        return frozenset(self.places[place].host for place in pair)

    def cluster(self, name: str) -> Cluster:
        for host in self.hosts:
            self._within(host)
        for one, other in itertools.combinations(self.hosts, 2):
            self._between(one, other)
        devices = tuple(Device(**asdict(place)) for place in self.places)
        tables = self.tables
        times: dict[Collective, tuple[MessageTime, ...]] = {
            "reduction": self._step_times(tables.all_reduce, rounds=2),
            "gather": self._step_times(tables.all_gather, rounds=1),
            "scatter": self._step_times(tables.reduce_scatter, rounds=1),
        }
        links = (link.with_step_times(times) for link in self._ports() + self.links)
        return Cluster(
            name=name,
            devices=devices,
            links=tuple(links),
            collective_occupancy=tables.collective_occupancy,
            sharding_occupancy=tables.sharding_occupancy,
        )

    def _step_times(self, timed: Sequence[CollectiveTime], *, rounds: int) -> tuple[MessageTime, ...]:
        """Steps of the ring over all places of the one host; of several hosts none says what each link takes."""
        most = max((each.places for each in timed), default=0)
        points, least = list[MessageTime](), 1
        for each in sorted(timed, key=lambda each: each.num_bytes):
            if each.places == most and len(self.hosts) == 1:
                least = max(least, -(-each.duration_ns // (rounds * (most - 1))))
                points.append(MessageTime(bytes=max(1, each.num_bytes // most), time_ns=least))
        return tuple({point.bytes: point for point in points}.values())

    def _members(self, host: str) -> list[int]:
        return [number for number, place in enumerate(self.places) if place.host == host]

    def _within(self, host: str) -> None:
        members = set(self._members(host))
        found = [c for c in self.tables.contention if {*c.first, *c.second} <= members]
        if _mostly_share(found):
            self.with_ports.add(host)
        else:
            self.links += [self._direct(*pair) for pair in self.pairs if set(pair) <= members]

    def _between(self, one: str, other: str) -> None:
        sides = set(self._members(one)), set(self._members(other))
        crossing = [pair for pair in self.pairs if self._crosses(pair, sides)]
        found = [c for c in self.tables.contention if self._crosses(c.first, sides) and self._crosses(c.second, sides)]
        if not _mostly_share(found):
            self.links += [self._direct(*pair) for pair in crossing]
            return
        self.with_ports |= {one, other}
        latency = statistics.median(self.fits[pair][0] for pair in crossing)
        inside = sum(self._port_latency(host) for host in (one, other))
        bandwidth = statistics.median(self.fits[pair][1] for pair in crossing)
        duplex = all(_is_duplex(self.pairs[pair]) for pair in crossing)
        link = Link(
            a=one,
            b=other,
            bandwidth_bytes_per_s=round(bandwidth),
            latency_ns=max(0, round(latency) - inside),
            duplex=duplex,
        )
        self.links.append(self._by_size(link, crossing, latency_ns=round(latency)))

    def _crosses(self, pair: tuple[int, int], sides: tuple[set[int], set[int]]) -> bool:
        return any(pair[0] in sides[side] and pair[1] in sides[1 - side] for side in (0, 1))

    def _direct(self, a: int, b: int) -> Link:
        latency, bandwidth = self.fits[a, b]
        link = Link(
            a=self.places[a].name,
            b=self.places[b].name,
            bandwidth_bytes_per_s=bandwidth,
            latency_ns=latency,
            duplex=_is_duplex(self.pairs[a, b]),
        )
        return self._by_size(link, [(a, b)], latency_ns=latency)

    def _by_size(self, link: Link, pairs: Iterable[tuple[int, int]], *, latency_ns: int) -> Link:
        return with_message_times(link, [self.pairs[pair].one_way for pair in pairs], latency_ns=latency_ns)

    def _port_latency(self, host: str) -> int:
        """Half of what a transfer within the host waits; 0 where there is none."""
        inside = [self.fits[pair][0] for pair in self.pairs if all(self.places[p].host == host for p in pair)]
        return round(statistics.median(inside)) // 2 if inside else 0

    def _ports(self) -> list[Link]:
        """A link to its host for every device of a host where transfers share something."""
        links = []
        for number, place in enumerate(self.places):
            if place.host in self.with_ports:
                own = [key for key in self.pairs if number in key]
                inside = [key for key in own if all(self.places[p].host == place.host for p in key)] or own
                link = Link(
                    a=place.name,
                    b=place.host,
                    bandwidth_bytes_per_s=max(self.fits[key][1] for key in inside),
                    latency_ns=self._port_latency(place.host),
                    duplex=all(_is_duplex(self.pairs[key]) for key in inside),
                )
                latency = statistics.median(self.fits[pair][0] for pair in inside)
                links.append(self._by_size(link, inside, latency_ns=round(latency)))
        return links


def _mostly_share(found: Iterable[Contention]) -> bool:
    votes = [contention.slowdown >= SHARES for contention in found]
    return 2 * sum(votes) > len(votes)


def _is_duplex(pair: PairTable) -> bool:
    """Two opposite transfers at once take less than one after the other would."""
    return pair.both_ways_ns is None or pair.both_ways_ns < SHARES * pair.one_way[-1][1]
