"""What Slurm says about nodes: the answer of `scontrol show node`, on one line, on many, as JSON or as YAML."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from profiles.discovery.gres import PARTS_OF_GPUS, NodeGres, node_gres
from profiles.discovery.hosts import (
    DeviceDefaults,
    FoundHosts,
    HostDevice,
    HostFacts,
    LeftOut,
    accelerators,
    notes_about,
)
from profiles.discovery.migs import mig_memory_bytes
from profiles.documents.unique_names import read_json, read_yaml

_QUESTION = "`scontrol show node`"
_FIELDS = {
    "NodeName": "name", "Gres": "gres", "GresUsed": "gres_used", "GresDrain": "gres_drained", "CfgTRES": "tres",
    "AllocTRES": "tres_used", "CPUTot": "cpus", "RealMemory": "real_memory",
}  # fmt: skip
"""By their names in the text, those in JSON and YAML."""
_SUFFIXES = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "!": "POWER_DOWN",
    "%": "POWERING_DOWN",
    "$": "MAINTENANCE",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
    "-": "PLANNED",
    "+": "COMPLETING",
}
"""What sinfo, and older versions of scontrol, write behind a state."""
_LEFT_OUT = {
    *("DOWN", "ERROR", "UNKNOWN", "FUTURE", "INVALID", "INVALID_REG", "INVAL", "EXTERNAL", "FAIL", "FAILING"),
    *("DRAIN", "DRAINED", "DRAINING", "MAINT", "MAINTENANCE", "NOT_RESPONDING", "NO_RESPOND"),
}
_ASLEEP = {"POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN", "POWERING_UP", "POWER_UP", "POWER"}
"""Slurm starts such a node for the job that wants it."""
_SAID = {
    **dict.fromkeys(_ASLEEP, "powered down or starting"),
    **dict.fromkeys(("RESERVED", "RES"), "reserved"),
    **dict.fromkeys(("REBOOT", "REBOOT_REQUESTED", "REBOOT_ISSUED"), "to be rebooted"),
}
_USABLE = {
    *("IDLE", "ALLOCATED", "MIXED", "COMPLETING", "CLOUD", "PLANNED", "BLOCKED", "RESUME"),
    *("DYNAMIC_NORM", "DYNAMIC_FUTURE", "PERFCTRS"),
}


def parse_slurm_nodes(text: str, *, sizes: DeviceDefaults) -> FoundHosts:
    """The nodes of `scontrol show node`, with `--oneliner` or without, or with `--json` or `--yaml`.

    Nodes that take no jobs are left out; those that are powered down are not, for Slurm starts them. Raises ValueError
    that names the node and the field where something is not understood, and where there is no node at all.
    """
    hosts: list[HostFacts] = []
    left_out: list[LeftOut] = []
    said: dict[str, list[str]] = {}
    known: set[str] = set()
    is_tree = re.search(r"\A\s*\{|^nodes:", text, flags=re.MULTILINE) is not None
    records = _read_tree(text) if is_tree else list(_read_lines(text))
    if not records:
        raise ValueError(f"no node is described; give the answer of {_QUESTION}")
    for fields in records:
        name = fields["NodeName"]
        try:
            _require_one_node(name, known=known)
            known.add(name)
            why, states = _read_state(fields.get("State", ""))
            if why:
                left_out.append(LeftOut(what=name, why=why))
                continue
            gres = node_gres(fields)
            hosts.append(_host(name, fields, gres=gres, sizes=sizes))
        except ValueError as error:
            raise ValueError(f"node {name}: {error}") from None
        for sentence in (*states, *_remarks(gres)):
            said.setdefault(sentence, []).append(name)
    return FoundHosts(hosts=tuple(hosts), left_out=tuple(left_out), notes=notes_about(said))


def _require_one_node(name: str, *, known: set[str]) -> None:
    if "[" in name:
        raise ValueError(f"NodeName = {name} is a list, as slurm.conf has it; give the answer of {_QUESTION}")
    if name in known:
        raise ValueError(f"it is described twice; give one answer of {_QUESTION}")


def _read_lines(text: str) -> Iterator[dict[str, str]]:
    """The fields of every node; what follows Reason, Comment or Extra is written by people and may hold anything."""
    for record in re.split(r"^(?=NodeName=)", text, flags=re.MULTILINE):
        if record.startswith("NodeName="):
            told = re.split(r"\s(?:Reason|Comment|Extra)=", record, maxsplit=1)[0]
            fields: dict[str, str] = {}
            for key, value in re.findall(r"(?:^|\s)([A-Za-z_]+)=(\S*)", told):
                fields.setdefault(key, value)
            yield fields


def _read_tree(text: str) -> list[dict[str, str]]:
    try:
        answer = read_json(text) if text.lstrip().startswith("{") else read_yaml(text)[0]
        return [_fields_of(node) for node in answer["nodes"]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"it cannot be read ({error}); give the answer of {_QUESTION} with --json or --yaml") from None


def _fields_of(node: Any) -> dict[str, str]:
    """The fields under the names that the text has; versions before 23.02 keep flags of the state apart."""
    state = node["state"]
    states = [state] if isinstance(state, str) else list(state)
    told = {"State": "+".join([*states, *(node.get("state_flags") or ())])}
    told |= {field: _number(node.get(name)) for field, name in _FIELDS.items()}
    return {key: str(value) for key, value in told.items() if value is not None}


def _number(value: Any) -> Any:
    """A number, bare or as some parsers of Slurm's write it; None: it is not set."""
    if not isinstance(value, Mapping):
        return value
    return value["number"] if value["set"] and not value.get("infinite") else None


def _read_state(text: str) -> tuple[str, tuple[str, ...]]:
    """Why a node is left out (empty: it is not), and what is to be said of it."""
    if not text:
        raise ValueError(f"State is missing; give the whole answer of {_QUESTION}")
    states: set[str] = set()
    for part in text.upper().removesuffix("+").split("+"):
        match = re.fullmatch(r"([A-Z_]+)([*~#!%$@^-]*)", part)
        if match is None:
            raise ValueError(f"State = {text} is not a state of a node")
        states |= {match[1], *(_SUFFIXES[mark] for mark in match[2])}
    if unknown := states - _LEFT_OUT - _USABLE - _SAID.keys():
        raise ValueError(f"State = {text}: {', '.join(sorted(unknown))} is not known; take the node out of the answer")
    if states & _ASLEEP:  # a node that sleeps or starts does not respond yet
        states -= {"NOT_RESPONDING", "NO_RESPOND"}
    why = " ".join(sorted(states & _LEFT_OUT))
    return why, tuple(dict.fromkeys(_SAID[state] for state in sorted(states & _SAID.keys())))


def _remarks(gres: NodeGres) -> Iterator[str]:
    if shares := [name for name in gres.others if name in PARTS_OF_GPUS]:
        yield f"also offers {' and '.join(shares)} of the same devices"
    if others := [name for name in gres.others if name not in PARTS_OF_GPUS]:
        yield f"has {', '.join(others)}, not taken for accelerators"
    if gres.num_drained:
        yield f"has {gres.num_drained} of its accelerators drained, left out"
    if gres.is_shared:
        yield "gives its accelerators to several jobs at once (no_consume)"


def _host(name: str, fields: Mapping[str, str], *, gres: NodeGres, sizes: DeviceDefaults) -> HostFacts:
    devices: list[HostDevice] = []
    for kind, count in gres.counts.items():
        devices += accelerators(kind, count=count, memory_bytes=mig_memory_bytes(kind, sizes), sizes=sizes)
    mebibytes = _whole(fields, "RealMemory")
    return HostFacts(
        name=name,
        devices=tuple(devices),
        cores=_whole(fields, "CPUTot"),
        memory_bytes=None if mebibytes is None else mebibytes * 2**20,
    )


def _whole(fields: Mapping[str, str], field: str) -> int | None:
    value = fields.get(field)
    if value is None:
        return None
    if not value.isdecimal():
        raise ValueError(f"{field} = {value} is not a whole number; give the answer of {_QUESTION}")
    return int(value)
