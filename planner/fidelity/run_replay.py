"""A step of a production job played by the contract's rules: the order as run, each operation's own duration."""

from collections.abc import Mapping

from profiles.importers.straggler import Key, RunStep, last_stages, needed_by, product_of


def replay_ns(step: RunStep, *, durations_ns: Mapping[Key, int] | None = None) -> int:
    """When the last action ends, the first one starting at 0; arguments and errors as for `replay_ends_ns`."""
    return max(replay_ends_ns(step, durations_ns=durations_ns).values())


def replay_ends_ns(step: RunStep, *, durations_ns: Mapping[Key, int] | None = None) -> dict[Key, int]:
    """When every action ends, the first one starting at 0.

    `durations_ns`: of some actions other durations than their own. Raises ValueError if the order as run waits for
    itself.
    """
    other = durations_ns or {}
    devices, last = step.of_stages(), last_stages(step.actions)
    end: dict[Key, int] = {}
    made: dict[Key, int] = {}
    free = dict.fromkeys(step.actions, 0)
    place = dict.fromkeys(step.actions, 0)
    counts: dict[tuple[int, int, str], int] = {}
    is_moving = True
    while is_moving:
        is_moving = False
        for replica, row in step.actions.items():
            while place[replica] < len(row):
                action = row[place[replica]]
                key: Key = (replica[0], action.stage, action.kind, action.microbatch)
                source = needed_by(key, last=last[replica[0]])
                if source is not None and source not in made:
                    break
                start = free[replica] + action.gap_ns
                if source is not None:
                    lag = 0
                    if devices[source[:2]] != replica:
                        channel = source[:3]
                        number = counts[channel] = counts.get(channel, -1) + 1
                        lag = step.transfers_ns.get((*channel, number), 0)
                    start = max(start, made[source] + lag)
                end[key] = free[replica] = made[product_of(key)] = start + other.get(key, action.duration_ns)
                place[replica] += 1
                is_moving = True
    stuck = [(replica, row[place[replica]].stage) for replica, row in step.actions.items() if place[replica] < len(row)]
    if stuck:
        (pipeline, _), stage = stuck[0]
        raise ValueError(f"step {step.number}: stage {stage} of pipeline {pipeline} waits for itself")
    return end
