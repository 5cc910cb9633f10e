"""The tree of switches over hosts, without those that join nothing."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

ROOT = "network"
"""What joins the hosts where nobody names a switch, and what stands above the highest switches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchTree:
    """The hosts and switches below each switch."""

    hosts: Mapping[str, str]
    """The switch that each host hangs on; empty for a single host."""
    switches: Mapping[str, str]
    """The switch that each switch hangs on; the highest one is not listed."""

    @property
    def names(self) -> tuple[str, ...]:
        """Every switch once, those with hosts first."""
        return tuple(dict.fromkeys((*self.hosts.values(), *self.switches, *self.switches.values())))

    @property
    def num_hosts(self) -> Mapping[str, int]:
        """How many hosts are below each switch."""
        counts: Counter[str] = Counter()
        for switch in self.hosts.values():
            here: str | None = switch
            while here is not None:
                counts[here] += 1
                here = self.switches.get(here)
        return counts


def make_switch_tree(paths: Mapping[str, tuple[str, ...]], *, taken: Iterable[str] = ()) -> SwitchTree:
    """The tree out of the switches above every host, the outermost first.

    A switch with one thing below it is left out: it joins nothing. Where no one switch is above all hosts, `network`
    is. A switch whose name is `taken`, or a host's, is called `switch NAME`.
    """
    others = {*paths, *taken, ROOT}
    hosts: dict[str, str] = {}
    above: dict[str, str] = {}
    for host, path in paths.items():
        names = [ROOT, *(f"switch {name}" if name in others else name for name in path)]
        for upper, lower in pairwise(names):
            above.setdefault(lower, upper)
        hosts[host] = names[-1]
    while lonely := _find_lonely(hosts, above):
        _leave_out(lonely, hosts, above=above)
    return SwitchTree(hosts=hosts if len(hosts) > 1 else {}, switches=above)


def _find_lonely(hosts: Mapping[str, str], above: Mapping[str, str]) -> str | None:
    counts = Counter([*hosts.values(), *above.values()])
    return next((switch for switch, count in counts.items() if count == 1 and not (switch == ROOT and not above)), None)


def _leave_out(lonely: str, hosts: dict[str, str], *, above: dict[str, str]) -> None:
    """Hang what is below a switch on what is above it."""
    upper = above.pop(lonely, None)
    for table in (hosts, above):
        for name in [name for name, switch in table.items() if switch == lonely]:
            if upper is None:
                del table[name]
            else:
                table[name] = upper
