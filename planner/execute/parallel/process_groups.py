"""The process groups of a layout, and what all its processes tell each other."""

from collections.abc import Set
from typing import Any

from torch import distributed

from planner.execute.table.layout import Layout


class ProcessGroups:
    """The process groups of a layout, seen from this process; making them is a collective call."""

    def __init__(self, layout: Layout) -> None:
        rank = distributed.get_rank()
        self.stages: list[Any] = [None] * layout.num_stages
        """Per stage the processes that hold what this one holds of it, one per replica, if there are several."""
        self.teams: list[Any] = [None] * layout.num_stages
        """Per stage the processes that run its actions together with this one, if there are several."""
        teams = dict[tuple[int, ...], Any]()
        for number in range(layout.num_stages):
            for ranks in layout.alike(number):
                group = new_group(set(ranks))
                if rank in ranks:
                    self.stages[number] = group
            for ranks in layout.groups_of(number):
                if ranks not in teams:
                    teams[ranks] = new_group(set(ranks))
                if rank in ranks:
                    self.teams[number] = teams[ranks]


def new_group(ranks: Set[int]) -> Any:
    """A group of these ranks, or None where it would have one member; a collective call of all processes."""
    return distributed.new_group(sorted(ranks)) if len(ranks) > 1 else None


def gather(mine: Any, *, group: Any = None) -> list[Any]:
    """What each process gives, by rank; a collective call of a group's processes, without one of all."""
    told: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(told, mine, group=group)
    return told
