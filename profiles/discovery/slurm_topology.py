"""Which switches hosts hang on: what Slurm's topology plugins say."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from profiles.discovery.hosts import FoundHosts, some_of

MAX_DEPTH = 32
"""More switches above each other than any network has: they would go round in a circle."""
_MAX_NAMES = 100_000
"""More names than a list of hosts has."""


def with_slurm_switches(found: FoundHosts, text: str) -> FoundHosts:
    """The hosts under the switches or blocks of `scontrol show topology`, topology.conf or topology.yaml.

    They are as they were if it tells of none. Raises ValueError that names the line or entry for what is no tree of
    switches (rings, toruses, circles, two switches above one thing) and for what is not understood.
    """
    told = _read_yaml(text) if re.search(r"^(---|- )", text, flags=re.MULTILINE) else _read_lines(text)
    above: dict[str, str] = {}
    for join in told.joins:
        for child in expand_names(join.children):
            key = child if join.is_upper else f"host {child}"
            if above.setdefault(key, join.name) != join.name:
                raise ValueError(
                    f"topology: {child} is below {above[key]} and below {join.name}, which is not a tree; give one of "
                    "them, or add --flat"
                )
    hosts = tuple(replace(host, switches=_switches_above(above, f"host {host.name}")) for host in found.hosts)
    notes = [told.note] if told.note else []
    named = {child for join in told.joins if join.is_upper for child in expand_names(join.children)}
    if unknown := sorted(named - {join.name for join in told.joins}):
        notes.append(f"the topology names {some_of(unknown)} as a switch, but not what is below it")
    if text.strip() and not above:
        notes.append("the topology names no switch")
    if above and (alone := [host.name for host in hosts if not host.switches]):
        notes.append(f"no switch of the topology is above {some_of(alone)}")
    return replace(found, hosts=hosts, notes=(*found.notes, *notes))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Join:
    """A switch, or a block, and what is below it."""

    name: str
    children: str
    """As a list of Slurm names it."""
    is_upper: bool
    """Whether these are switches, not hosts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Topology:
    joins: tuple[_Join, ...] = ()
    note: str = ""


_LARGER_BLOCKS = "larger blocks of the topology are not planned for"
_NO_TREE = "is not a tree of switches; add --flat to join all hosts by one switch"
_PAIR = re.compile(r"(\w+)\s*=\s*(\"[^\"]*\"|\S*)")
_KEYS = {
    *("switchname", "switches", "nodes", "linkspeed", "level"),
    *("blockname", "blockindex", "blocksize", "blocksizes", "aggregatedblock"),
}


def _read_lines(text: str) -> _Topology:
    """Lines `Key=Value ...` as scontrol and topology.conf have them, keys in any case."""
    joins, note = [], ""
    for line in _logical_lines(text):
        fields = {key.lower(): value.strip('"') for key, value in _PAIR.findall(line)}
        fields = {key: value for key, value in fields.items() if value not in ("", "(null)")}
        rest = _PAIR.sub("", line).strip()
        if "No topology information" in line:
            continue
        if kind := fields.keys() & {"ringname", "torusname"}:
            raise ValueError(f"topology: {line[:80]!r}: a {kind.pop().removesuffix('name')} {_NO_TREE}")
        if rest or not fields or fields.keys() - _KEYS:
            raise ValueError(f"topology: {line[:80]!r} is not understood; give the answer of `scontrol show topology`")
        if fields.keys() & {"aggregatedblock"} or len(fields.get("blocksizes", "").split(",")) > 1:
            note = _LARGER_BLOCKS
        elif name := fields.get("switchname") or fields.get("blockname"):
            # The line of a switch above others lists the nodes below them as well.
            children = fields.get("switches") or fields.get("nodes") or ""
            joins.append(_Join(name=name, children=children, is_upper="switches" in fields))
    return _Topology(joins=tuple(joins), note=note)


def _logical_lines(text: str) -> Iterator[str]:
    """Lines without comments, those that a backslash continues put together."""
    whole = ""
    for line in text.splitlines():
        told = re.sub(r"(?<!\\)#.*", "", line).rstrip()
        if told.endswith("\\"):
            whole += told[:-1]
            continue
        whole += told
        if whole.strip():
            yield whole.strip()
        whole = ""
    if whole.strip():
        yield whole.strip()


def _read_yaml(text: str) -> _Topology:
    """The topology of topology.yaml that Slurm uses for a partition that names none."""
    import yaml

    try:
        listed = yaml.load(text, Loader=yaml.BaseLoader)  # all texts: a switch may be called 01
    except yaml.YAMLError as error:
        raise ValueError(f"topology: no YAML: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(listed, list) or not listed or not all(isinstance(one, dict) for one in listed):
        raise ValueError(
            "topology: topology.yaml is no list of topologies; give each a name and one of tree, block, flat"
        )
    chosen = next((one for one in listed if one.get("cluster_default") == "true"), listed[0])
    note = f"of {len(listed)} topologies, {chosen.get('topology')} is taken" if len(listed) > 1 else ""
    read = _tree_of(chosen)
    return replace(read, note="; ".join(filter(None, (note, read.note))))


def _tree_of(topology: dict[str, Any]) -> _Topology:
    name = topology.get("topology")
    kinds = sorted(topology.keys() - {"topology", "cluster_default"})
    if len(kinds) != 1:
        raise ValueError(f"topology {name!r} states {', '.join(kinds) or 'no kind'}; give one of tree, block, flat")
    kind, body = kinds[0], topology[kinds[0]]
    try:
        if kind == "flat":
            return _Topology()
        if kind == "tree":
            return _Topology(joins=tuple(_switch(one) for one in body["switches"]))
        if kind == "block":
            joins = tuple(_Join(name=str(one["block"]), children=_names(one), is_upper=False) for one in body["blocks"])
            return _Topology(joins=joins, note=_LARGER_BLOCKS if len(body.get("block_sizes") or ()) > 1 else "")
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"topology {name!r}: {kind} is not understood ({error}); see topology.yaml(5)") from None
    raise ValueError(f"topology {name!r}: {kind} {_NO_TREE}")


def _switch(one: dict[str, Any]) -> _Join:
    if unknown := one.keys() - {"switch", "children", "nodes"}:
        raise ValueError(f"topology: switch {one['switch']!r}: {', '.join(sorted(unknown))} is not known")
    return _Join(name=str(one["switch"]), children=_names(one), is_upper=bool(one.get("children")))


def _names(one: dict[str, Any]) -> str:
    names = one.get("children") or one.get("nodes") or ""
    return ",".join(map(str, names)) if isinstance(names, list) else str(names)


def _switches_above(above: Mapping[str, str], start: str) -> tuple[str, ...]:
    """The switches above, the outermost first."""
    path: list[str] = []
    here = above.get(start)
    while here is not None:
        path.insert(0, here)
        if len(path) > MAX_DEPTH:
            raise ValueError(f"topology: switch {here!r} is above itself; give the answer of `scontrol show topology`")
        here = above.get(here)
    return tuple(path)


def expand_names(text: str) -> list[str]:
    """The names of a list as Slurm writes it: `n[0-3,07],login` are n0 to n3, n07 and login.

    Raises ValueError for brackets that do not close, and for ranges that are none.
    """
    names: list[str] = []
    if text in ("", "(null)"):
        return names
    for part in re.split(r",(?![^\[]*\])", text):
        names += _expand(part, whole=text)
        if len(names) > _MAX_NAMES:
            raise ValueError(f"topology: {text[:60]!r} names more than {_MAX_NAMES:,} hosts; give what is there")
    return names


def _expand(part: str, *, whole: str) -> Iterator[str]:
    match = re.fullmatch(r"([^\[\]]*)(?:\[([0-9,-]+)\](.*))?", part)
    if match is None:
        raise ValueError(f"topology: {whole[:60]!r} is not a list of names; write it as Slurm does, e.g. n[0-3,7]")
    head, ranges, rest = match.groups()
    if ranges is None:
        yield head
        return
    tails = list(_expand(rest, whole=whole))
    for one in ranges.split(","):
        first, dash, last = one.partition("-")
        is_range = first.isdecimal() and (last.isdecimal() or not dash)
        if not is_range or not 0 <= int(last or first) - int(first) <= _MAX_NAMES:
            raise ValueError(f"topology: {one!r} in {whole[:60]!r} is not a range; write e.g. 0-3")
        for number in range(int(first), int(last or first) + 1):
            yield from (f"{head}{number:0{len(first)}d}{tail}" for tail in tails)
