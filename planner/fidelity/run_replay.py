"""A step of a production job played by the contract's rules: the order as run, each operation's own duration."""

from collections.abc import Mapping

from profiles.importers.straggler import Key, RunStep, maker_of


def replay_ns(step: RunStep, *, durations_ns: Mapping[Key, int] | None = None) -> int:
    """When the last action ends, the first one starting at 0; arguments and errors as for `replay_ends_ns`."""
    return max(replay_ends_ns(step, durations_ns=durations_ns).values())


def replay_ends_ns(step: RunStep, *, durations_ns: Mapping[Key, int] | None = None) -> dict[Key, int]:
    """When every action ends, the first one starting at 0.

    `durations_ns`: of some actions other durations than their own. Raises ValueError if the order as run waits for
    itself.
    """
    other = durations_ns or {}
    last = dict(sorted(step.actions))
    end: dict[Key, int] = {}
    free = dict.fromkeys(step.actions, 0)
    place = dict.fromkeys(step.actions, 0)
    counts: dict[tuple[int, int, str], int] = {}
    is_moving = True
    while is_moving:
        is_moving = False
        for seat, row in step.actions.items():
            while place[seat] < len(row):
                action = row[place[seat]]
                key: Key = (*seat, action.kind, action.microbatch)
                source = maker_of(key, last=last[seat[0]])
                if source is not None and source not in end:
                    break
                start = free[seat] + action.gap_ns
                if source is not None:
                    way = (seat[0], source[1], action.kind)
                    number = counts[way] = counts.get(way, -1) + (source[1] != seat[1])
                    lag = step.transfers_ns.get((*way, number), 0) if source[1] != seat[1] else 0
                    start = max(start, end[source] + lag)
                end[key] = free[seat] = start + other.get(key, action.duration_ns)
                place[seat] += 1
                is_moving = True
    stuck = [seat for seat, row in step.actions.items() if place[seat] < len(row)]
    if stuck:
        raise ValueError(f"step {step.number}: stage {stuck[0][1]} of pipeline {stuck[0][0]} waits for itself")
    return end
