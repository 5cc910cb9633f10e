"""What a change to a job would bring."""

from dataclasses import dataclass

from planner.fidelity.placement_advice import Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """What a change would bring in the median step."""

    what: str
    """The change, with what it assumes."""
    makespan_ns: int
    """Verified by replay with every action's own duration."""
    lower_bound_ns: int
    """Certified: no change of this kind ends earlier; transfers take nothing, or the step's median (other dealing, and
    other cut)."""


def describe_placing(placed: Placement, *, orders: str) -> Remedy:
    """Devices at other places, in words; `orders`: how other orders are made."""
    moved = f"{placed.num_moved or 'none'} of {len(placed.device_of)} devices elsewhere"
    return Remedy(
        what=f"placed again: {moved} (orders as run, in {placed.num_reordered or 'no'} "
        f"pipeline{'' if placed.num_reordered == 1 else 's'} by {orders}; assumes that what a device takes longer "
        "than the others of its place over all steps is its own, where chance hardly explains it; links alike)",
        makespan_ns=placed.makespan_ns,
        lower_bound_ns=placed.lower_bound_ns,
    )
