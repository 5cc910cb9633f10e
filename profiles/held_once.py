"""What two layers both count and a stage that has both holds once."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from profiles.documents.strict_record import StrictRecord
from profiles.field_rules import Bytes, Name, require_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOnce(StrictRecord):
    """What two layers both count, and a stage that has both holds once: a tensor between them, a weight they share.

    Of several layers that keep one tensor each but the first stands in an entry with one before it.
    """

    first: Name
    """A layer."""
    second: Name
    """One behind it, of whose bytes those below are also the first one's."""
    state_bytes: Bytes = 0
    """Of its `state_bytes`: a tied weight, its gradient and its part of the optimizer's state."""
    stash_bytes: Bytes = 0
    """Of its `stash_bytes`, per microbatch."""
    weight_stash_bytes: Bytes = 0
    """Of its `weight_stash_bytes`."""

    def __post_init__(self) -> None:
        require_fields(f"held together by {self.first!r} and {self.second!r}", self)

    def at(self, factor: Fraction) -> "HeldOnce":
        """For so many times the samples, rounded down: what layers hold is rounded up."""
        stash, weight_stash = int(factor * self.stash_bytes), int(factor * self.weight_stash_bytes)
        return replace(self, stash_bytes=stash, weight_stash_bytes=weight_stash)


def require_held_once(owner: str, entries: Iterable[HeldOnce], *, layers: Sequence[Any]) -> None:
    """Raise ValueError unless both layers are known, in their order, and the second has what its entries add up to."""
    place = {layer.name: number for number, layer in enumerate(layers)}
    sums: dict[tuple[str, str], int] = {}
    for entry in entries:
        what = f"{owner}: held_once of {entry.first!r} and {entry.second!r}"
        if not place.get(entry.first, len(place)) < place.get(entry.second, -1):
            raise ValueError(f"{what}: they are not two layers in topological order; correct the names")
        for field in ("state_bytes", "stash_bytes", "weight_stash_bytes"):
            size = sums[entry.second, field] = sums.get((entry.second, field), 0) + getattr(entry, field)
            if size > (most := getattr(layers[place[entry.second]], field)):
                raise ValueError(
                    f"{what}: {field} adds up to {size} of the second, which has {most}; state a part of it"
                )
