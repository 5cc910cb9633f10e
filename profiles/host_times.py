"""What the host takes to ask an accelerator for the kernels of an action, apart from what these take on the card."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from profiles.documents.strict_record import StrictRecord
from profiles.field_rules import Name, Nanoseconds, require_distinct, require_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTime(StrictRecord):
    """How long the host asks for one action of a layer, per microbatch."""

    action: Name
    """`F`, `I`, `W`, `B`, or a kind of recomputation: `full`, or another that the layer states."""
    host_ns: Nanoseconds
    """Until the host has asked for all of its kernels; 0 for a captured graph."""
    first_ns: Nanoseconds = 0
    """Until it has asked for the first kernel; 0 where that is not known."""
    last_ns: Nanoseconds = 0
    """What the card takes for the last kernel, a part of what it takes for all; 0 where that is not known."""

    def __post_init__(self) -> None:
        owner = f"host time of {str(self.action)[:80]!r}"
        require_fields(owner, self)
        if self.first_ns > self.host_ns:
            raise ValueError(
                f"{owner}: first_ns = {self.first_ns} exceeds host_ns = {self.host_ns}; it counts until the first "
                "kernel, host_ns until the last: lower it or raise host_ns"
            )


def require_host_times(owner: str, host: Sequence[HostTime], *, card_ns: Mapping[str, int]) -> None:
    """Raise ValueError unless the host times belong to actions of a cost and none of its actions lacks one.

    `card_ns`: what the card takes, by action; B may be left out, and is then asked for as I and W are.
    """
    if not host:
        return
    require_distinct(f"{owner}: host time of", (each.action for each in host))
    stated = {each.action for each in host}
    for each in host:
        if each.action not in card_ns:
            raise ValueError(
                f"{owner}: host states {each.action!r}, which is none of its actions ({', '.join(card_ns)}); correct "
                "the name or leave it out"
            )
    for action, taken in card_ns.items():
        if action not in stated and action != "B" and (taken or action in "FI"):
            raise ValueError(
                f"{owner}: host states no time for {action!r}; give its host_ns (0 where the host asks for nothing), "
                "or leave host out"
            )
