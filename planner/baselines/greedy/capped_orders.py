"""Greedy orders under memory: I if one is ready, else F while few enough are in flight and there is room, else W.

The caps on microbatches in flight, and what is preferred among the chunks of a device, are tried in a small grid; the
methods of this family differ in where their stages are (`capped_greedy`, `capped_interleaved`, `capped_v`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from planner.baselines.applicability import NoRoomError, require_few_steps
from planner.baselines.encoded_orders import make_net, name_actions
from planner.baselines.pipeline import DeviceOrders, Pipeline
from solver_models.device_rows import column
from solver_models.simulation.evaluator import FAR, Net
from solver_models.simulation.list_schedule import ListSchedule, list_schedule, play_orders
from solver_models.simulation.preferences import BACKWARD_FIRST, DEEPEST, OLDEST, ROUND_ROBIN

_Chunks = Literal["deepest", "oldest", "turns"]
"""Which chunk of a device comes first: the one nearest to the loss, the one whose microbatch is the oldest, or, of so
many microbatches as there are devices, first all in one chunk, then all in the next (Megatron's order)."""

CHUNKS: dict[_Chunks, int] = {"deepest": DEEPEST, "oldest": OLDEST, "turns": ROUND_ROBIN}
"""Their numbers in compiled code."""

_MAX_TRIED_ACTIONS = 30_000
"""Actions of trials after which no other one begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Priorities by which each device chooses its next action."""

    caps: tuple[int, ...]
    """Per stage, most microbatches between F and I."""
    chunks: _Chunks = "deepest"
    """Priority among the chunks of a device."""
    splits: bool = True
    """I and W apart; otherwise B."""
    most_pending: int | None = None
    """So many W may wait before one is run in place of an F; None: any number."""


def best_capped(pipeline: Pipeline, rules: Iterable[Rule]) -> DeviceOrders:
    """The best order of several rules, as many of them as a limit on actions allows; a twin's is best on its original.

    Raises NoRoomError if the memory of some device does not hold one microbatch of every stage.
    """
    require_few_steps(pipeline.num_stages, pipeline.num_microbatches)
    actions, tried = 3 * pipeline.num_stages * pipeline.num_microbatches, 0
    net, best = make_net(pipeline), None
    original = None if pipeline.original is None else make_net(pipeline.original)
    for rule in rules:
        if best is not None and tried > _MAX_TRIED_ACTIONS:
            break
        # one that is longer is of no use: its last ticks are not played
        threshold = FAR if best is None or pipeline.minimises_span else best.makespan + 1
        found = _play(net, rule, threshold=threshold if original is None else FAR)
        tried += actions
        if original is not None and found.makespan < FAR:
            found = play_orders(original, found, threshold=threshold)
        rank = pipeline.rank_of(found.makespan, found.span)
        if found.makespan < FAR and (best is None or rank < pipeline.rank_of(best.makespan, best.span)):
            best = found
    if best is None:
        raise NoRoomError("has no room for one microbatch of every stage at a time")
    return name_actions(best.device_orders, best.lengths)


def _play(net: Net, rule: Rule, *, threshold: int) -> ListSchedule:
    return list_schedule(
        net,
        column(rule.caps),
        kinds=BACKWARD_FIRST,
        stages=CHUNKS[rule.chunks],
        splits=rule.splits,
        most_pending=FAR if rule.most_pending is None else rule.most_pending,
        threshold=threshold,
    )


def room_for(pipeline: Pipeline) -> tuple[int, ...]:
    """Per stage, how many of its microbatches fit beside one of every other stage of its device."""
    held = [cost.held_bytes for cost in pipeline.costs]
    of_position = [0] * pipeline.num_positions
    for stage, size in enumerate(held):
        of_position[pipeline.position_of[stage]] += size
    rooms = []
    for stage, size in enumerate(held):
        position = pipeline.position_of[stage]
        free = pipeline.devices[position].memory - of_position[position]
        rooms.append(max(1, 1 + free // size) if size else pipeline.num_microbatches)
    return tuple(rooms)


def caps_within(pipeline: Pipeline, numerator: int, *, denominator: int) -> tuple[int, ...]:
    """Caps that fall along the pipeline: (stages left) x numerator / denominator, and no more than there is room."""
    rooms, stages = room_for(pipeline), pipeline.num_stages
    return tuple(min(room, max(1, -(-(stages - s) * numerator // denominator))) for s, room in enumerate(rooms))


def largest_slope(pipeline: Pipeline, *, steps: int = 24) -> int:
    """The largest numerator over `steps` whose caps, all reached at once, fit into memory; 1 if none does."""
    for numerator in range(2 * steps, 1, -1):
        held = [0] * pipeline.num_positions
        for stage, cap in enumerate(caps_within(pipeline, numerator, denominator=steps)):
            held[pipeline.position_of[stage]] += cap * pipeline.costs[stage].held_bytes
        if all(size <= device.memory for size, device in zip(held, pipeline.devices, strict=True)):
            return numerator
    return 1
