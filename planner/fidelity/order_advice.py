"""A step in other orders: the same actions on the same devices, whatever stages these have, backwards whole or halved.

Orders are made by list scheduling: whichever action can start first starts, and of several the one that a rule prefers.
No device has more microbatches in flight than it had as run, so that an order needs no more memory.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from statistics import median

from planner.fidelity.run_pipelines import one_pipeline
from planner.fidelity.run_replay import replay_ns
from profiles.importers.straggler import Key, ReplicaKey, RunAction, RunStep, last_stages, needed_by, product_of

Rule = Callable[[Key, int], tuple[int, ...]]
"""Of an action and the way from it to the end: the smallest goes first."""

RULES: tuple[Rule, ...] = (
    lambda key, path: (key[2] == "W", -path, key[3]),
    lambda key, path: ("BIFW".index(key[2]), key[3], -path),
    lambda key, path: (key[2] == "W", key[2] == "F", -path, key[3]),
)
"""Longest way to the end; backwards and then microbatches in turn; backwards and then the longest way."""


def reorder(step: RunStep) -> RunStep:
    """The step with every pipeline in the best order found, or as it is.

    What is used from elsewhere takes what its way usually took.
    """
    taken: dict[tuple[int, int, str], list[int]] = defaultdict(list)
    for key, duration_ns in step.transfers_ns.items():
        taken[key[:3]].append(duration_ns)
    lag = {path: round(median(found)) for path, found in taken.items()}
    actions = dict(step.actions)
    for pipeline in {replica[0] for replica in step.actions}:
        actions |= _reorder_pipeline(one_pipeline(step, pipeline), lag=lag).actions
    return replace(step, actions=actions)


def _reorder_pipeline(step: RunStep, *, lag: Mapping[tuple[int, int, str], int]) -> RunStep:
    best, shortest = step, replay_ns(step)
    for rule in RULES:
        order = _ListScheduling(step, lag=lag, rule=rule).run()
        if order is not None and (length := replay_ns(replace(step, actions=order))) < shortest:
            best, shortest = replace(step, actions=order), length
    return best


def bound_orders(step: RunStep) -> int:
    """No order ends before, whatever transfers take.

    Before a device's first action, the forwards of the stages before it have run for some microbatch. Its last action
    is W, or a backward behind which the backwards of the stages before it run. In between it runs all its actions, one
    at a time. And every microbatch goes through all forwards and backwards, one after the other, and then through W of
    the first stage, if it has one.
    """
    durations = {product_of(key): action.duration_ns for key, action in step.keyed()}
    by_pipeline: dict[int, dict[tuple[int, str, int], int]] = defaultdict(dict)
    for (pipeline, stage, kind, microbatch), duration_ns in durations.items():
        by_pipeline[pipeline][stage, kind, microbatch] = duration_ns
    found = [_bound_paths(times) for times in by_pipeline.values()]
    for (pipeline, _), row in step.actions.items():
        times = by_pipeline[pipeline]
        first = min(_before(times, action, kind="F") for action in row)
        has_weights = any(action.kind == "W" for action in row)
        last = 0 if has_weights else min(_before(times, action, kind="B") for action in row)
        found.append(first + sum(action.duration_ns for action in row) + last)
    return max(found)


def _before(times: Mapping[tuple[int, str, int], int], action: RunAction, *, kind: str) -> int:
    """What the stages before an action's take for its microbatch."""
    return sum(times[stage, kind, action.microbatch] for stage in range(action.stage))


def _bound_paths(times: Mapping[tuple[int, str, int], int]) -> int:
    paths: dict[int, int] = defaultdict(int)
    for (stage, kind, microbatch), duration_ns in times.items():
        if kind != "W" or stage == 0:
            paths[microbatch] += duration_ns
    return max(paths.values())


_Choice = tuple[int, tuple[int, ...], ReplicaKey, Key]
"""When an action could start, how much the rule wants it, its device and which one it is."""


@dataclass(kw_only=True)
class _State:
    """A device."""

    room: int
    """Microbatches of its stages that it may hold beside those in flight."""
    ready: dict[Key, tuple[RunAction, int]] = field(default_factory=dict)
    """Actions whose input is made, and when it is there."""
    free_ns: int = 0


class _ListScheduling:
    """Actions one by one."""

    def __init__(self, step: RunStep, *, lag: Mapping[tuple[int, int, str], int], rule: Rule) -> None:
        self._lag, self._rule = lag, rule
        self._devices, last = step.of_stages(), last_stages(step.actions)
        self._states = {replica: _State(room=_most_in_flight(row)) for replica, row in step.actions.items()}
        self._paths = _paths_to_the_end(step, last=last)
        self._waiting: dict[Key, list[tuple[Key, RunAction]]] = defaultdict(list)
        self._has_weights = {(key[0], key[1], key[3]) for key, _ in step.keyed() if key[2] == "W"}
        self._orders: dict[ReplicaKey, list[RunAction]] = {replica: [] for replica in step.actions}
        self._changed = set(step.actions)
        self._best: dict[ReplicaKey, _Choice | None] = {}
        self._num_left = 0
        for key, action in step.keyed():
            self._num_left += 1
            if (product := needed_by(key, last=last[key[0]])) is None:
                self._states[self._devices[key[:2]]].ready[key] = action, 0
            else:
                self._waiting[product].append((key, action))

    def run(self) -> dict[ReplicaKey, tuple[RunAction, ...]] | None:
        """The orders; None where the room as run leads this rule into a dead end."""
        while self._num_left:
            for replica in self._changed:
                self._best[replica] = min(self._choices(replica), default=None)
            self._changed.clear()
            if not (found := [one for one in self._best.values() if one is not None]):
                return None
            start, _, replica, key = min(found)
            self._take(replica, key, start=start)
        return {replica: tuple(row) for replica, row in self._orders.items()}

    def _choices(self, replica: ReplicaKey) -> Iterator[_Choice]:
        """When an action could start, and how much the rule wants it."""
        state = self._states[replica]
        for key, (action, there) in state.ready.items():
            if key[2] != "F" or state.room:
                start = max(there, state.free_ns + action.gap_ns)
                yield start, self._rule(key, self._paths[product_of(key)]), replica, key

    def _take(self, replica: ReplicaKey, key: Key, *, start: int) -> None:
        state, product = self._states[replica], product_of(key)
        action, _ = state.ready.pop(key)
        state.free_ns = start + action.duration_ns
        is_held_on = key[2] == "I" and (key[0], key[1], key[3]) in self._has_weights
        state.room += -1 if key[2] == "F" else int(not is_held_on)
        self._orders[replica].append(action)
        self._num_left -= 1
        self._changed.add(replica)
        for other, waiting in self._waiting.pop(product, ()):
            user = self._devices[other[:2]]
            lag = self._lag.get(product[:3], 0) if user != replica else 0
            self._changed.add(user)
            self._states[user].ready[other] = waiting, state.free_ns + lag


def _most_in_flight(row: tuple[RunAction, ...]) -> int:
    """The most microbatches that a device held at once, counted for each of its stages; until W where that is apart."""
    separate = {(action.stage, action.microbatch) for action in row if action.kind == "W"}
    held = most = 0
    for action in row:
        if action.kind == "F":
            held += 1
            most = max(most, held)
        elif action.kind != "I" or (action.stage, action.microbatch) not in separate:
            held -= 1
    return most


def _paths_to_the_end(step: RunStep, *, last: Mapping[int, int]) -> dict[Key, int]:
    """By product: what at least has to run from the begin of the action that makes it."""
    durations = {product_of(key): action.duration_ns for key, action in step.keyed()}
    found: dict[Key, int] = {}
    for key in sorted(durations, key=lambda key: ("WBF".index(key[2]), key[1] if key[2] == "B" else -key[1])):
        pipeline, stage, kind, microbatch = key
        behind: Key | None = None
        if kind == "F":
            behind = (
                (pipeline, stage, "B", microbatch)
                if stage == last[pipeline]
                else (pipeline, stage + 1, "F", microbatch)
            )
        elif kind == "B" and stage:
            behind = pipeline, stage - 1, "B", microbatch
        weights = durations.get((pipeline, stage, "W", microbatch), 0) if kind == "B" else 0
        found[key] = durations[key] + max(weights, 0 if behind is None else found[behind])
    return found
