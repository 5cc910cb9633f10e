"""A production step as the viewer draws plans: as it ran, as the contract replays it, dealt anew, and cut anew."""

import base64
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from planner.actions import KINDS
from planner.fidelity.advice import advise, cut_anew
from planner.fidelity.balance_advice import rebalance
from planner.fidelity.run_replay import replay_ends_ns
from profiles.importers.straggler import Key, ReplicaKey, RunStep, TraceCeiling, read_straggler_trace

CEILING = TraceCeiling(rows=500_000, num_bytes=64 * 2**20)
"""More cannot be looked at within the seconds that a service gives; a production trace of 43 steps holds a fifth."""

_BLOCKS_PER_STAGE = 8
"""Equal blocks that a stage is assumed to be, for remedies that cut anew."""


def read_trace_text(data: str) -> tuple[RunStep, ...]:
    """The steps of a trace that came as base64; raises ValueError as `read_straggler_trace` does."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.parquet")
        path.write_bytes(base64.b64decode(data))
        try:
            return read_straggler_trace(path, ceiling=CEILING)
        except ValueError as error:
            raise ValueError(str(error).replace(str(path), "body")) from None


def summarise_trace(data: str) -> dict[str, Any]:
    """The advice on a trace, and the median step as it ran beside its replay and its remedies."""
    steps = read_trace_text(data)
    step = sorted(steps, key=lambda each: each.measured_ns)[(len(steps) - 1) // 2]
    anew, _ = rebalance(step)
    drawn = {"run": _drawn(step, step.ends_as_run_ns()), "replay": _drawn(step, replay_ends_ns(step))}
    drawn["dealt"] = _drawn(anew, replay_ends_ns(anew))
    other = cut_anew(step, blocks_per_stage=_BLOCKS_PER_STAGE)
    if other is not None:
        drawn["cut"] = _drawn(other.step, replay_ends_ns(other.step))
    advice = asdict(advise(steps, blocks_per_stage=_BLOCKS_PER_STAGE))
    return {"advice": advice, "num_steps": len(steps), "step": step.number, "content": _content((step, anew), drawn)}


def _content(steps: tuple[RunStep, ...], drawn: Mapping[str, Any]) -> dict[str, Any]:
    """Like `viewer.picture_content`, with a name for each of the plans; nothing is known of memory and links."""
    numbers = [action.microbatch for step in steps for row in step.actions.values() for action in row]
    return {
        "profile": f"step {steps[0].number}",
        "provenance": "a trace",
        "cluster": f"{len(steps[0].actions)} devices",
        "numMicrobatches": max(numbers) + 1,
        "microbatchSize": 1,
        "objective": "makespan",
        "machine": {"devices": [], "switches": [], "links": []},
        "lowerBoundNs": None,
        "plans": drawn,
    }


def _drawn(step: RunStep, ends_ns: Mapping[Key, int]) -> dict[str, Any]:
    """Every row is a device that holds a stage of its own."""
    replicas = sorted(step.actions)
    makespan_ns = max(ends_ns.values())
    work_ns = sum(action.duration_ns for row in step.actions.values() for action in row)
    return {
        "figures": {
            "makespanNs": makespan_ns,
            "spanNs": makespan_ns,
            "bubble": 1 - work_ns / (len(replicas) * max(1, makespan_ns)),
        },
        "optimizerNs": 0,
        "stages": [_stage(replica, row) for row, replica in enumerate(replicas)],
        "devices": [_device(step, replica, row=row, ends_ns=ends_ns) for row, replica in enumerate(replicas)],
        "legs": _transfers(replicas),
        "linkUse": [],
        "bars": [],
        "baselines": [],
    }


def _stage(replica: ReplicaKey, row: int) -> dict[str, Any]:
    return {
        "layers": [f"stage {replica[1]}"],
        "replicas": [[row]],
        "recompute": "",
        "durationsNs": [0] * len(KINDS),
        "hasWeightGrad": False,
        "layerNs": [0],
        "layerBytes": [0],
    }


def _device(step: RunStep, replica: ReplicaKey, *, row: int, ends_ns: Mapping[Key, int]) -> dict[str, Any]:
    flat: list[int] = []
    free = 0
    for action in step.actions[replica]:
        end = ends_ns[(*replica, action.kind, action.microbatch)]
        start = max(free, end - action.duration_ns)
        flat += [4 * row + KINDS.index(action.kind), action.microbatch, start - free, end - start]
        free = end
    name = f"pipeline {replica[0]}, stage {replica[1]}"
    memory = {"limitBytes": 0, "peakBytes": 0, "memory": [], "memorySteps": []}
    return {"name": name, "type": "traced", "host": "", "actions": flat, "optimizerNs": 0, **memory}


def _transfers(replicas: list[ReplicaKey]) -> list[dict[str, Any]]:
    """Who hands on to whom; when transfers moved is not drawn."""
    rows = {replica: row for row, replica in enumerate(replicas)}
    found = []
    for (pipeline, stage), row in rows.items():
        for other, backward in ((stage + 1, 0), (stage - 1, 1)):
            to = rows.get((pipeline, other))
            if to is not None:
                ends = {"from": row, "to": to, "fromStage": row, "toStage": to, "backward": backward}
                found.append({**ends, "bytes": 0, "route": [], "durationNs": 0, "transfers": []})
    return found
