"""Which process of a job drives which device: from a device of the plan to (host, local device) to a rank, purely."""

from collections.abc import Mapping
from dataclasses import dataclass

from planner.execute.table.layout import make_layout
from planner.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class _RankSlot:
    """One process of the job."""

    rank: int
    """Its number in the plan's layout, and in the process group."""
    device: str
    """The plan's device that it drives."""
    host: str
    """The host of that device."""
    index: int
    """The device's position among all devices of its host, used or not: the accelerator's number."""
    slot: int
    """Its position among the processes on its host: what launchers call the local rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMapping:
    """The processes of a job, in order of rank."""

    slots: tuple[_RankSlot, ...]
    """Slot r is that of rank r."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts in order of their first rank, each once: the host of rank 0 comes first."""
        return tuple(dict.fromkeys(slot.host for slot in self.slots))

    def on(self, host: str) -> tuple[_RankSlot, ...]:
        """The processes of a host in order of slot."""
        return tuple(sorted((slot for slot in self.slots if slot.host == host), key=lambda slot: slot.slot))


def place_ranks(plan: Plan, hosts: Mapping[str, tuple[str, int]]) -> RankMapping:
    """Give every process a slot.

    `hosts`: host, and index there, of every device of the cluster. Ranks follow `planner.execute.table.layout`; slots
    follow the indices of the devices that are used, so that a process knows its device from its host and slot alone
    (`planner.execute.table.placement.find_position`). Raises ValueError for a plan that cannot be executed, or whose
    devices are not in the cluster.
    """
    devices = make_layout(plan).devices
    if missing := [device for device in devices if device not in hosts]:
        raise ValueError(f"device {missing[0]!r} of the plan is not in the cluster; give the cluster it was made for")
    used: dict[str, list[int]] = {}
    for device in devices:
        used.setdefault(hosts[device][0], []).append(hosts[device][1])
    return RankMapping(
        slots=tuple(
            _RankSlot(
                rank=rank,
                device=device,
                host=hosts[device][0],
                index=hosts[device][1],
                slot=sorted(used[hosts[device][0]]).index(hosts[device][1]),
            )
            for rank, device in enumerate(devices)
        )
    )
