"""Hostfiles, as mpirun, DeepSpeed and batch systems write them."""

import re
from collections import Counter

from profiles.discovery.hosts import DeviceDefaults, FoundHosts, HostFacts, accelerators

_HOST = r"(\[[0-9a-fA-F:.]+\]|(?:[\w.-]+@)?\w[\w.-]*)"
_LINE = re.compile(_HOST + r"(?::([0-9]+))?((?:\s+[\w-]+=\S+)*)")
_PASSED_OVER = {
    *("max_slots", "max-slots", "slots_max", "slots-max", "sockets", "boards"),
    *("user", "username", "port", "binding"),
}
"""Keys that say nothing of how many devices a host has."""


def parse_hostfile(text: str, *, sizes: DeviceDefaults, kind: str) -> FoundHosts:
    """Lines `HOST`, `HOST slots=N` or `HOST:N`; comments begin with #. Lines of one host add up.

    PBS writes a line per slot, and so may Open MPI's files. `kind`: device type of every slot. Raises ValueError that
    names the line for anything else.
    """
    slots: Counter[str] = Counter()
    for number, line in enumerate(text.splitlines(), start=1):
        told = line.partition("#")[0].strip()
        if not told:
            continue
        match = _LINE.fullmatch(re.sub(r"\s*=\s*", "=", told))
        stated = re.findall(r"([\w-]+)=(\S+)", match[3]) if match else []
        counts = {value for key, value in [("slots", match and match[2]), *stated] if key == "slots" and value} or {"1"}
        count = "".join(counts)
        if not match or len(counts) > 1 or not count.isdecimal() or dict(stated).keys() - _PASSED_OVER - {"slots"}:
            raise ValueError(f"line {number} of the hostfile: {told[:60]!r}; write HOST, HOST slots=N or HOST:N")
        slots[match[1]] += int(count)
    if not slots:
        raise ValueError("the hostfile names no host; write HOST, HOST slots=N or HOST:N on each line")
    if empty := [host for host, count in slots.items() if not count]:
        raise ValueError(f"host {empty[0]} of the hostfile has 0 slots; leave its line out")
    hosts = (
        HostFacts(name=host, devices=accelerators(kind, count=count, memory_bytes=None, sizes=sizes))
        for host, count in slots.items()
    )
    return FoundHosts(hosts=tuple(hosts))
