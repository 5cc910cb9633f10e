"""Whether every rank runs what its stages want of each microbatch: nothing left out, repeated, or another's.

Who waits for whom, and in which order both ends list their messages, is settled as rows are lowered (`routes.lower`).
"""

from collections import Counter
from collections.abc import Iterator

from planner.execute.table.layout import Layout


def find_wrong_actions(layout: Layout) -> tuple[str, ...]:
    """A sentence for every action that is missing, repeated or not the rank's own; none for a whole plan."""
    return tuple(fault for rank in range(layout.world_size) for fault in _faults_of(layout, rank))


def _faults_of(layout: Layout, rank: int) -> Iterator[str]:
    count, kinds_of = Counter(layout.rows[rank]), _kinds_of(layout, rank)
    wanted = {(stage, microbatch) for stage in kinds_of for microbatch in layout.assignment_of(stage, rank)}
    ran: dict[tuple[int, int], set[str]] = {}
    for action, times in count.items():
        ran.setdefault((action.stage, action.microbatch), set()).add(action.kind)
        if times > 1:
            yield f"rank {rank} runs {action} {times} times"
        if (action.stage, action.microbatch) not in wanted:
            yield f"rank {rank} runs {action}, which is not its own"
    for stage, microbatch in sorted(wanted):
        kinds = "".join(kind for kind in "FIWB" if kind in ran.get((stage, microbatch), ()))
        if kinds not in kinds_of[stage]:
            allowed = " or ".join(" ".join(each) for each in kinds_of[stage])
            what = f"{kinds or 'nothing'} of stage {stage} for microbatch {microbatch}"
            yield f"rank {rank} runs {what}, not {allowed}"


def _kinds_of(layout: Layout, rank: int) -> dict[int, tuple[str, ...]]:
    """Per stage that a rank works for, what it may run of every microbatch."""
    found = dict[int, tuple[str, ...]].fromkeys(layout.stages_of(rank), ("FIW", "FB"))
    parts = [(stage, part) for stage, own in enumerate(layout.parts) for part in own if part.rank == rank]
    return found | {stage: (part.kinds,) for stage, part in parts}
