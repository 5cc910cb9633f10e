"""A step of a production job played by the contract's rules: the order as run, each operation's own duration."""

from collections.abc import Mapping

from profiles.importers.straggler import Key, RunStep, last_stages, needed_by, product_of
from solver_models.simulation.in_order import OrderedSteps, play_in_order


def replay_ns(step: RunStep, *, durations_ns: Mapping[Key, int] | None = None) -> int:
    """When the last action ends, the first one starting at 0; arguments and errors as for `replay_ends_ns`."""
    return max(replay_ends_ns(step, durations_ns=durations_ns).values())


def replay_ends_ns(step: RunStep, *, durations_ns: Mapping[Key, int] | None = None) -> dict[Key, int]:
    """When every action ends, the first one starting at 0.

    `durations_ns`: of some actions other durations than their own. Raises ValueError if the order as run waits for
    itself.
    """
    keys, steps = list_steps(step)
    durations = {key: action.duration_ns for key, action in step.keyed()} | dict(durations_ns or {})
    return dict(zip(keys, play_in_order(steps, [durations[key] for key in keys]), strict=True))


def list_steps(step: RunStep) -> tuple[list[Key], OrderedSteps]:
    """All actions, each after what it waits for; ValueError if the order as run waits for itself."""
    devices, last = step.of_stages(), last_stages(step.actions)
    keys, rows = list[Key](), list[tuple[int, int, int, int]]()
    made: dict[Key, int] = {}
    place = dict.fromkeys(step.actions, 0)
    counts: dict[tuple[int, int, str], int] = {}
    is_moving = True
    while is_moving:
        is_moving = False
        for number, (replica, row) in enumerate(step.actions.items()):
            while place[replica] < len(row):
                action = row[place[replica]]
                key: Key = (replica[0], action.stage, action.kind, action.microbatch)
                source, lag = needed_by(key, last=last[replica[0]]), 0
                if source is not None and source not in made:
                    break
                if source is not None and devices[source[:2]] != replica:
                    channel = source[:3]
                    counts[channel] = counts.get(channel, -1) + 1
                    lag = step.transfers_ns.get((*channel, counts[channel]), 0)
                rows.append((number, -1 if source is None else made[source], lag, action.gap_ns))
                made[product_of(key)] = len(keys)
                keys.append(key)
                place[replica] += 1
                is_moving = True
    stuck = [(replica, row[place[replica]].stage) for replica, row in step.actions.items() if place[replica] < len(row)]
    if stuck:
        (pipeline, _), stage = stuck[0]
        raise ValueError(
            f"step {step.number}: stage {stage} of pipeline {pipeline} waits for itself; report this trace"
        )
    return keys, OrderedSteps(*zip(*rows, strict=True))
