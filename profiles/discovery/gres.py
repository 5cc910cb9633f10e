"""Which accelerators a node of Slurm has: Gres and trackable resources (TRES), held against each other."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

_ACCELERATORS = ("gpu", "npu", "tpu", "hpu", "xpu", "gcu", "dcu", "mlu", "gaudi")
"""Names under which sites register accelerators; Slurm itself knows only gpu."""
PARTS_OF_GPUS = ("shard", "mps")
"""Shares of the accelerators that Gres lists beside them."""
MOST = 512
"""More accelerators than one node has, MIG's slices included: a count that is none."""

_REMEDY = "correct it, or take the node out of the answer"
"""Remedy in every message about Gres."""

_SHIFTS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40, "P": 50}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gres:
    """One entry of a list: `gpu:h100:8(S:0-1)`."""

    name: str
    """gpu, shard, nic ..."""
    kind: str | None
    """Its type; None: not told."""
    count: int
    """Number of devices."""
    is_consumed: bool = True
    """Whether a job has it for itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGres:
    """The accelerators of a node."""

    counts: Mapping[str, int]
    """By type, in the order of Gres; `gpu` and the like where no type is told."""
    others: tuple[str, ...]
    """Names of resources in Gres that are no accelerators."""
    is_shared: bool
    """Whether jobs share the accelerators (no_consume)."""
    num_drained: int = 0
    """Accelerators that take no jobs (GresDrain); they are not counted."""


def parse_gres(text: str) -> list[Gres]:
    """A list of Gres, GresUsed: NAME[:TYPE][:no_consume][:COUNT[K|M|G|T|P]][(...)], separated by commas.

    A single part that begins with a digit is a count, as in Slurm. Raises ValueError that names the entry.
    """
    if text in ("", "(null)", "N/A"):
        return []
    return [_entry(entry) for entry in re.split(r",(?![^()]*\))", text)]


def _entry(entry: str) -> Gres:
    match = re.fullmatch(r"([^:(),=\s]+)((?::[^:(),=\s]+)*)((?:\([^()]*\))*)", entry)
    if match is None:
        raise ValueError(f"{entry!r} is not NAME:TYPE:COUNT; {_REMEDY}")
    parts = match[2].split(":")[1:]
    kept = [part for part in parts if part.lower() != "no_consume"]
    has_count = bool(kept) and kept[-1][0].isdigit()
    count = _count(kept.pop(), entry=entry) if has_count else 1
    if len(kept) > 1:
        raise ValueError(f"{entry!r} has more than a type and a count; {_REMEDY}")
    if match[1] in _ACCELERATORS and count > MOST:
        raise ValueError(f"{entry!r} counts {count:,}; give a type that begins with a digit a count behind it")
    is_consumed = len(kept) + has_count == len(parts)
    return Gres(name=match[1], kind=kept[0] if kept else None, count=count, is_consumed=is_consumed)


def _count(text: str, *, entry: str) -> int:
    match = re.fullmatch(r"([0-9]+)([KMGTP]?)", text.upper())
    if match is None:
        raise ValueError(f"{text!r} of {entry!r} is not a count; give a type a count behind it")
    return int(match[1]) << _SHIFTS[match[2]]


def _parse_tres(text: str) -> list[Gres]:
    """The generic resources of CfgTRES, AllocTRES: `cpu=64,gres/gpu=8,gres/gpu:h100=8`, the rest passed over."""
    found = []
    for entry in text.split(",") if text not in ("", "(null)", "N/A") else ():
        key, equals, value = entry.partition("=")
        if not equals:
            raise ValueError(f"{entry!r} is not RESOURCE=AMOUNT; {_REMEDY}")
        if key.startswith("gres/"):
            name, _, kind = key.removeprefix("gres/").partition(":")
            found.append(Gres(name=name, kind=kind or None, count=_count(value, entry=entry)))
    return found


def gpus_asked(option: str, asked: str) -> str:
    """What `--gres`, `--gpus` and the like ask for, all types together; where one states no number, the text itself."""
    parts = asked.split(",")
    if option.startswith(("gres", "tres")):
        parts = [each for each in parts if re.match(r"(?:gres/)?gpu\b", each)]
    counts = [re.fullmatch(r"(?:(?:gres/)?gpu[:=])?(?:[\w.-]+[:=])?(\d+)", each) for each in parts]
    return str(sum(int(each[1]) for each in counts if each)) if all(counts) and parts else ",".join(parts)


def node_gres(fields: Mapping[str, str]) -> NodeGres:
    """The accelerators of a node; `fields`: Gres, GresDrain, GresUsed, CfgTRES, AllocTRES, as far as they are told.

    Types that only CfgTRES tells are taken from there. Drained accelerators are taken off. Raises ValueError that names
    the field for an entry that is none, and for counts that contradict each other.
    """
    listed = _parsed(fields, "Gres", parse=parse_gres)
    configured = _parsed(fields, "CfgTRES", parse=_parse_tres)
    counts: Counter[str] = Counter()
    for name in dict.fromkeys(one.name for one in (*listed, *configured)):
        if name in _ACCELERATORS:
            counts.update(_agreed(_by_kind(listed, name), _by_kind(configured, name), name=name))
    used = {
        "GresUsed": _parsed(fields, "GresUsed", parse=parse_gres),
        "AllocTRES": [one for one in _parsed(fields, "AllocTRES", parse=_parse_tres) if one.kind is None],
    }
    for field, entries in used.items():
        number, total = sum(one.count for one in entries if one.name in _ACCELERATORS), sum(counts.values())
        if number > total:
            raise ValueError(
                f"{field} = {fields[field][:120]} uses {number} accelerators, but Gres lists {total}; {_REMEDY}"
            )
    drained = [one for one in _parsed(fields, "GresDrain", parse=parse_gres) if one.name in _ACCELERATORS]
    for one in drained:
        _take_off(counts, one)
    return NodeGres(
        counts=+counts,
        num_drained=sum(one.count for one in drained),
        others=tuple(dict.fromkeys(one.name for one in listed if one.name not in _ACCELERATORS)),
        is_shared=any(one.name in _ACCELERATORS and not one.is_consumed for one in listed),
    )


def _take_off(counts: Counter[str], drained: Gres) -> None:
    """Raises ValueError where the type is not told and there are several, or where more are drained than there are."""
    kinds = list(counts) if drained.kind is None else [kind for kind in counts if kind.lower() == drained.kind.lower()]
    told = f"GresDrain has {drained.count} {drained.name}" + (f":{drained.kind}" if drained.kind else "")
    if drained.count and len(kinds) != 1:
        raise ValueError(f"{told}, but not which of {', '.join(counts) or 'none'}; take the node out of the answer")
    if drained.count > (counts[kinds[0]] if kinds else 0):
        raise ValueError(f"{told}, but Gres lists {counts[kinds[0]]}; {_REMEDY}")
    if drained.count:
        counts[kinds[0]] -= drained.count


def _parsed(fields: Mapping[str, str], field: str, *, parse: Callable[[str], list[Gres]]) -> list[Gres]:
    try:
        return parse(fields.get(field, ""))
    except ValueError as error:
        raise ValueError(f"{field} = {fields[field][:120]}: {error}") from None


def _by_kind(entries: Iterable[Gres], name: str) -> Counter[str | None]:
    counts: Counter[str | None] = Counter()
    for one in entries:
        if one.name == name:
            counts[one.kind] += one.count
    return counts


def _agreed(listed: Counter[str | None], configured: Counter[str | None], *, name: str) -> dict[str, int]:
    """The counts by type that Gres lists and CfgTRES configures; CfgTRES has the sum beside its parts."""
    total, typed = configured[None], {kind: count for kind, count in configured.items() if kind is not None}
    count = listed.total() or total or sum(typed.values())
    if total and count != total:
        raise ValueError(f"Gres counts {count} {name}, but CfgTRES {total}; {_REMEDY}")
    if sum(typed.values()) > count:
        raise ValueError(f"CfgTRES counts {sum(typed.values())} {name} by type, but {count} in all; {_REMEDY}")
    told = {kind.lower(): number for kind, number in listed.items() if kind is not None}
    for kind, number in typed.items():
        if told.get(kind.lower(), number) != number:
            raise ValueError(f"Gres counts {told[kind.lower()]} {name}:{kind}, but CfgTRES {number}; {_REMEDY}")
    if told:
        return {kind or name: number for kind, number in listed.items() if number}
    rest = {name: count - sum(typed.values())}
    return {kind: number for kind, number in (typed | rest).items() if number}
