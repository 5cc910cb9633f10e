"""What effort goes into looking for a bound: it decides how large a bound is found, never whether it holds.

Constants that say what a certificate proves (how often windows are narrowed, how large a table may be) are no
parameters: who checks a certificate has to do the same.
"""

from dataclasses import dataclass
from typing import Annotated, get_args, get_type_hints

ENTRIES_PER_S = 10_000_000
"""Table entries of the pipeline and the classes bound that a slow machine fills in a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundParams:
    """Effort of `planner.evidence.certificate.make_bound`, which is counted rather than timed."""

    max_s: Annotated[float, (0.0, 10.0**6)] = 6.0
    """Seconds that the bound over all plans may take, roughly and at most."""
    packing_per_s: Annotated[int, (1, 10**12)] = 1_500_000
    """Loads of devices that the packing bound rates in a second, about."""
    loop_actions_per_s: Annotated[int, (0, 10**7)] = 150_000
    """Actions of a loop's order that are played for each deadline per second that its bound may take."""

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self), include_extras=True).items():
            (kind, (least, most)), value = get_args(hint), getattr(self, name)
            noun = "a whole number" if kind is int else "a number"
            is_one = isinstance(value, int if kind is int else (int, float)) and not isinstance(value, bool)
            if not is_one or not least <= value <= most:
                shown = f"search parameter bound.{name} = {repr(value)[:60]}"
                raise ValueError(f"{shown} is not allowed; give {noun} from {least} to {most}")
