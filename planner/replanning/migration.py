"""Which parameters have to move from one plan's devices to another's, and how long that takes on the links."""

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from planner.document import plan_sha256
from planner.plan import Plan, Stage
from planner.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """State that one device sends to another, or that nobody has any more."""

    source: str | None
    """The device that has it; None: only a checkpoint has."""
    target: str
    """The device that needs it."""
    layers: tuple[str, ...]
    """Whose weights, buffers and optimizer state."""
    num_bytes: int
    duration_ns: int | None
    """On its route, alone; None from a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a job continues under another plan."""

    moves: tuple[Move, ...]
    """By pair of devices, in the order of the new plan."""
    duration_ns: int
    """The longest that one link is busy if all move at once: no order of the moves is faster."""
    checkpoint: str | None = None
    """The checkpoint that the job continues from, where that is settled."""
    iteration: int | None = None
    """How many iterations it has: one number for all layers."""

    plan_before: str | None = None
    """Content hash of the plan whose live copies are taken where they have every layer; None: none are."""
    lost: tuple[str, ...] = ()
    """Devices whose copies are left alone."""

    @property
    def moved_bytes(self) -> int:
        """Bytes that travel from device to device."""
        return sum(move.num_bytes for move in self.moves if move.source is not None)

    @property
    def restored_bytes(self) -> int:
        """Bytes that only a checkpoint has."""
        return sum(move.num_bytes for move in self.moves if move.source is None)


def make_recipe(
    problem: Problem, *, before: Sequence[Stage], after: Sequence[Stage], lost: Collection[str] = ()
) -> Recipe:
    """What moves when the stages `after` take over from those `before`, the devices `lost` being gone.

    `problem`: with the links that are left; the state of a layer counts whole, on every device that holds it. Where
    several devices have it, the one that can send it soonest does.
    """
    had, needed = _holders(before), _holders(after)
    size = {layer.name: layer.state_bytes for layer in problem.profile.layers}
    by_pair: dict[tuple[str | None, str], list[str]] = {}
    for layer, targets in needed.items():
        alive = [device for device in had.get(layer, ()) if device not in lost]
        for target in targets:
            if target not in alive:
                source = min(alive, key=lambda s: _duration(problem, s, target=target, size=size[layer]), default=None)
                by_pair.setdefault((source, target), []).append(layer)
    moves = tuple(
        Move(
            source=source,
            target=target,
            layers=tuple(layers),
            num_bytes=(total := sum(size[name] for name in layers)),
            duration_ns=None if source is None else _duration(problem, source, target=target, size=total),
        )
        for (source, target), layers in by_pair.items()
    )
    return Recipe(moves=moves, duration_ns=_busiest_link_ns(problem, moves))


def _holders(stages: Sequence[Stage]) -> dict[str, tuple[str, ...]]:
    """The devices that hold each layer's state, first replica first."""
    return {
        name: tuple(dict.fromkeys(device for group in stage.replicas for device in group))
        for stage in stages
        for name in stage.layers
    }


def _duration(problem: Problem, source: str, *, target: str, size: int) -> int:
    return problem.cluster.route(source, target, num_bytes=size).duration_ns(size)


def _busiest_link_ns(problem: Problem, moves: Collection[Move]) -> int:
    busy: dict[int, int] = {}
    for move in moves:
        if move.source is not None and move.duration_ns is not None:
            for link in problem.cluster.route(move.source, move.target, num_bytes=move.num_bytes).links:
                busy[link] = busy.get(link, 0) + move.duration_ns
    return max(busy.values(), default=0)


def restore_ns(recipe: Recipe, *, bytes_per_s: float) -> int:
    """How long what only a checkpoint has takes to read, where all devices share one storage; links work meanwhile."""
    return max(recipe.duration_ns, math.ceil(recipe.restored_bytes / bytes_per_s * 1e9))


def summarise_recipe(recipe: Recipe) -> dict[str, Any]:
    """The recipe for programs: what `torch.distributed.checkpoint` loads on every device, by prefix of its keys."""
    return {
        "moves": [
            {
                "from": move.source,
                "to": move.target,
                "bytes": move.num_bytes,
                "duration_ns": move.duration_ns,
                "keys": [f"{what}/{layer}:" for layer in move.layers for what in ("weights", "optimizer")],
            }
            for move in recipe.moves
        ],
        "moved_bytes": recipe.moved_bytes,
        "restored_bytes": recipe.restored_bytes,
        "duration_ns": recipe.duration_ns,
    }


def render_recipe(recipe: Recipe, plan: Plan) -> str:
    """The same as a JSON document, bound to the plan that it leads to."""
    head: dict[str, Any] = {"format": "pipeline-recipe/1", "plan_sha256": plan_sha256(plan)}
    if recipe.checkpoint is not None:
        head |= {"checkpoint": recipe.checkpoint, "iteration": recipe.iteration}
    if recipe.plan_before is not None:
        head |= {"copies": {"plan_sha256": recipe.plan_before, "lost": recipe.lost}}
    return json.dumps(head | summarise_recipe(recipe), ensure_ascii=False, indent=1) + "\n"
