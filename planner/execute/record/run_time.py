"""What a run says of its time: that of an iteration beside the plan's."""

import statistics
from collections.abc import Sequence


def describe_time(durations_ns: Sequence[int], *, planned_ns: int | None) -> str:
    """Median of the iterations, without the first, in which much is done once; and what the plan says, if it does.

    `durations_ns`: of at least one iteration, in order.
    """
    later = durations_ns[1:] or durations_ns
    ran_ns = statistics.median(later)
    what = f"median of {len(later)} iterations after the first" if durations_ns[1:] else "the only iteration"
    if not planned_ns:
        return f"an iteration: ran {ran_ns / 1e6:,.3f} ms ({what})"
    ratio = f"{ran_ns / planned_ns:.2f}×"
    return f"an iteration: planned {planned_ns / 1e6:,.3f} ms, ran {ran_ns / 1e6:,.3f} ms ({ratio}; {what})"
