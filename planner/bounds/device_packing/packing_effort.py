"""What the check of a packing certificate may cost: counted in loads of devices, not timed.

Who makes a certificate counts the same, so that none is made that nobody would check.
"""

from planner.bounds.device_packing.boundaries import Boundaries
from planner.clock import InterruptedStepError

MAX_EFFORT = 1_500_000
"""Loads that a check may look at, of about a microsecond each. A certificate keeps to it or is refused."""

SMALL, SMALL_FACTOR = 256, 16
"""With so many keys x devices at most there may be so many times as many: there, many cases close a gap."""

_FORMS_SMALL = 4_096
"""Where stages have several forms, there may be as many times as many as keys x devices are fewer than this, and
`SMALL_FACTOR` times as many at most: a first case has more stages there, and needs few further ones.
"""

_SCARCE_FACTOR = 4
"""So many times as many where memory forbids most replicas: no other bound knows that."""

PER_CASE = 4_000
"""Loads that narrowing a case counts for, or a round of prices, however small."""

PER_STAGE = 8
"""Loads that a stage counts for whose heads, tails and turnarounds are raised."""

PER_STATE = 1
"""Loads that a stage of a round of prices counts for, by replicas before it and slots that are left."""

PER_STEP = 40
"""Loads that a stage on devices counts for where whole plans are listed."""

PER_ASSIGNMENT = 15_000
"""Loads that a whole plan counts for which the schedule bound looks at, for every `MICROBATCHES` begun."""

MICROBATCHES = 16
"""Microbatches that count as one unit of the schedule bound."""


class MuchToCheckError(InterruptedStepError):
    """A check would look at more loads than it may."""


def most_effort(boundaries: Boundaries) -> int:
    """Loads that a check may look at here."""
    size = boundaries.size * boundaries.num_devices
    if size <= SMALL:
        return MAX_EFFORT * SMALL_FACTOR
    has_forms = len(boundaries.forms.width) > 1
    factor = min(max(_FORMS_SMALL // size, 1), SMALL_FACTOR) if has_forms else 1
    return MAX_EFFORT * max(factor, _SCARCE_FACTOR * boundaries.is_scarce)


class CheckEffort:
    """Loads that a check may still look at."""

    def __init__(self, boundaries: Boundaries) -> None:
        self.left = most_effort(boundaries)

    def take(self, loads: int) -> None:
        """So many are about to be looked at; MuchToCheckError if they are too many."""
        self.require(loads)
        self.left -= loads

    def require(self, loads: int) -> None:
        """MuchToCheckError if so many are too many."""
        if loads > self.left:
            raise MuchToCheckError
