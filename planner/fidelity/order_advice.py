"""A step in other orders: the same actions on the same devices, whatever stages these have, backwards whole or halved.

Orders are made by list scheduling: whichever action can start first starts, and of several the one that a rule prefers.
No device has more microbatches in flight than it had as run, so that an order needs no more memory.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import median

import numpy

from planner.fidelity.run_pipelines import one_pipeline
from planner.fidelity.run_replay import replay_ns
from profiles.importers.straggler import Key, ReplicaKey, RunAction, RunStep, last_stages, needed_by, product_of
from solver_models.simulation.job_list import NOBODY, list_jobs, make_jobs

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
    best, shortest, scheduling = step, replay_ns(step), _ListScheduling(step, lag=lag)
    for rule in RULES:
        order = scheduling.order(rule)
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


class _ListScheduling:
    """The actions of a step as jobs that wait for one another, and for room."""

    def __init__(self, step: RunStep, *, lag: Mapping[tuple[int, int, str], int]) -> None:
        self.step = step
        self.keys, self.actions = zip(*step.keyed(), strict=True)
        devices, last, replicas = step.of_stages(), last_stages(step.actions), list(step.actions)
        self.paths = _paths_to_the_end(step, last=last)
        self.device = [replicas.index(devices[key[:2]]) for key in self.keys]
        made = {product_of(key): number for number, key in enumerate(self.keys)}
        weights = {(key[0], key[1], key[3]) for key in self.keys if key[2] == "W"}
        edges = [
            (made[need], number, lag.get(need[:3], 0) if devices[key[:2]] != devices[need[:2]] else 0, NOBODY)
            for number, key in enumerate(self.keys)
            if (need := needed_by(key, last=last[key[0]])) is not None
        ]
        takes = [
            int(key[2] == "F") - int(key[2] in "BW" or (key[2] == "I" and (key[0], key[1], key[3]) not in weights))
            for key in self.keys
        ]
        columns = {
            "device": self.device,
            "ticks": [action.duration_ns for action in self.actions],
            "gap": [action.gap_ns for action in self.actions],
            "after": takes,
        }
        room = [_most_in_flight(row) for row in step.actions.values()]
        self.jobs = make_jobs(columns, budget=room, edges=edges)

    def order(self, rule: Rule) -> dict[ReplicaKey, tuple[RunAction, ...]] | None:
        """The orders; None where the room as run leads this rule into a dead end."""
        wanted = [
            (*rule(key, self.paths[product_of(key)]), device, key)
            for key, device in zip(self.keys, self.device, strict=True)
        ]
        ranking = sorted(range(len(wanted)), key=wanted.__getitem__)
        order, _ = list_jobs(self.jobs._replace(rank=numpy.argsort(numpy.array(ranking))))
        if len(order) < len(wanted):
            return None
        rows: dict[ReplicaKey, list[RunAction]] = {replica: [] for replica in self.step.actions}
        names = list(rows)
        for number in order.tolist():
            rows[names[self.device[number]]].append(self.actions[number])
        return {replica: tuple(row) for replica, row in rows.items()}


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
