"""Greedy orders under memory: I if one is ready, else F while few enough are in flight and there is room, else W.

The caps on microbatches in flight, and what is preferred among the chunks of a device, are tried in a small grid; the
methods of this family differ in where their stages are (`capped_greedy`, `capped_interleaved`, `capped_v`).
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Literal

from planner.actions import Action
from planner.baselines.applicability import NoRoomError, require_few_steps
from planner.baselines.pipeline import Legs, Pipeline, Words

Chunks = Literal["deepest", "oldest", "turns"]
"""Which chunk of a device comes first: the one nearest to the loss, the one whose microbatch is the oldest, or, of so
many microbatches as there are devices, first all in one chunk, then all in the next (Megatron's order)."""

MAX_TRIED_ACTIONS = 30_000
"""Actions of trials after which no other one begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How every device chooses."""

    caps: tuple[int, ...]
    """Per stage, most microbatches between F and I."""
    chunks: Chunks = "deepest"
    """Which chunk comes first."""
    splits: bool = True
    """I and W apart; otherwise B."""
    most_pending: int | None = None
    """So many W may wait before one is run in place of an F; None: any number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CappedSchedule:
    """What a rule makes of a pipeline when every transfer has its links to itself."""

    words: Words
    """The order of every position."""
    makespan_ns: int
    """End of the last action."""
    span_ns: int
    """Longest time from first to last action of a position."""


def best_capped(pipeline: Pipeline, rules: Iterable[Rule]) -> Words:
    """The best order of several rules, as many of them as a limit on actions allows.

    Raises NoRoomError if the memory of some device does not hold one microbatch of every stage.
    """
    require_few_steps(pipeline.num_stages, pipeline.num_microbatches)
    actions, tried = 3 * pipeline.num_stages * pipeline.num_microbatches, 0
    best: CappedSchedule | None = None
    for rule in rules:
        if best is not None and tried > MAX_TRIED_ACTIONS:
            break
        found = play_rule(pipeline, rule)
        tried += actions
        if found is not None and (best is None or _worth(pipeline, found) < _worth(pipeline, best)):
            best = found
    if best is None:
        raise NoRoomError("has no room for one microbatch of every stage at a time")
    return best.words


def _worth(pipeline: Pipeline, played: CappedSchedule) -> tuple[int, int]:
    both = played.makespan_ns, played.span_ns
    return both[::-1] if pipeline.minimises_span else both


def room_for(pipeline: Pipeline) -> tuple[int, ...]:
    """Per stage, how many of its microbatches fit beside one of every other stage of its device."""
    held = [cost.held_bytes for cost in pipeline.costs]
    of_position = [0] * pipeline.num_positions
    for stage, size in enumerate(held):
        of_position[pipeline.position_of[stage]] += size
    rooms = []
    for stage, size in enumerate(held):
        position = pipeline.position_of[stage]
        free = pipeline.budgets[position] - of_position[position]
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
        if all(size <= budget for size, budget in zip(held, pipeline.budgets, strict=True)):
            return numerator
    return 1


def play_rule(pipeline: Pipeline, rule: Rule) -> CappedSchedule | None:
    """Play a rule; None if it ends with actions left over, none of which has room."""
    return _Greedy(pipeline, rule).play()


class _Greedy:
    """Counters per stage, events in order of time; microbatches are taken in order everywhere."""

    def __init__(self, pipeline: Pipeline, rule: Rule) -> None:
        stages, positions, count = pipeline.num_stages, pipeline.num_positions, pipeline.num_microbatches
        self.pipeline, self.rule, self.count = pipeline, rule, count
        self.of_position: list[list[int]] = [[] for _ in range(positions)]
        for stage, position in enumerate(pipeline.position_of):
            self.of_position[position].append(stage)
        self.forwards, self.returns = [0] * stages, [0] * stages
        self.pending: list[deque[Action]] = [deque() for _ in range(positions)]
        self.held, self.free = [0] * positions, [0] * positions
        self.began: list[int | None] = [None] * positions
        self.words: Words = [[] for _ in range(positions)]
        self.forward_at = [_arrivals(count, n) for n in _num_senders(pipeline.activations_to)]
        self.return_at = [_arrivals(count, 1 + n) for n in _num_senders(pipeline.gradients_to)]
        self.channel: dict[tuple[int, int], int] = {}
        self.events: list[tuple[int, int]] = []

    def play(self) -> CappedSchedule | None:
        """All events; every device that is idle chooses whenever something happens to it."""
        positions = list(range(self.pipeline.num_positions))
        now = 0
        while True:
            for position in positions:
                if self.free[position] <= now:
                    self._start(now, position)
            if not self.events:
                break
            now = self.events[0][0]
            touched = set()
            while self.events and self.events[0][0] == now:
                touched.add(heappop(self.events)[1])
            positions = sorted(touched)
        if min(self.returns) < self.count or any(self.pending):
            return None
        spans = [end - begin for end, begin in zip(self.free, self.began, strict=True) if begin is not None]
        return CappedSchedule(words=self.words, makespan_ns=max(self.free), span_ns=max(spans))

    def _start(self, now: int, position: int) -> None:
        """The action that the rule prefers, if any can start."""
        backward = self._backward(now, position)
        waits = self.rule.most_pending is not None and len(self.pending[position]) > self.rule.most_pending
        if backward is not None:
            self._run_backward(now, backward)
        elif not waits and (forward := self._forward(now, position)) is not None:
            self._run_forward(now, forward)
        elif self.pending[position]:
            self._run_weight_grad(now, position)

    def _backward(self, now: int, position: int) -> int | None:
        """The stage whose I comes next, if one is ready and has room."""
        best: tuple[tuple[int, ...], int] | None = None
        for stage in self.of_position[position]:
            number, cost = self.returns[stage], self.pipeline.costs[stage]
            if number >= self.forwards[stage] or not self._is_there(self.return_at[stage], number, now=now):
                continue
            if self.held[position] + cost.stash_bytes - cost.held_bytes > self.pipeline.budgets[position]:
                continue
            key = self._rank(stage, number, is_backward=True), stage
            best = key if best is None or key < best else best
        return None if best is None else best[1]

    def _forward(self, now: int, position: int) -> int | None:
        """The stage whose F comes next, if one is ready, below its cap and leaves room for one F of the later ones."""
        best: tuple[tuple[int, ...], int] | None = None
        reserved = 0
        for stage in reversed(self.of_position[position]):
            number, held = self.forwards[stage], self.pipeline.costs[stage].held_bytes
            flight = number - self.returns[stage]
            is_ready = number < self.count and self._is_there(self.forward_at[stage], number, now=now)
            fits = self.held[position] + held + reserved <= self.pipeline.budgets[position]
            if is_ready and fits and flight < self.rule.caps[stage]:
                key = self._rank(stage, number, is_backward=False), stage
                best = key if best is None or key < best else best
            if flight == 0 and number < self.count:
                reserved += held
        return None if best is None else best[1]

    def _rank(self, stage: int, number: int, *, is_backward: bool) -> tuple[int, ...]:
        if self.rule.chunks == "deepest":
            return (-stage,)
        if self.rule.chunks == "oldest":
            return number, -stage
        return number // self.pipeline.num_positions, -stage if is_backward else stage

    def _is_there(self, arrivals: tuple[list[int], list[int]], number: int, *, now: int) -> bool:
        return not arrivals[0][number] and arrivals[1][number] <= now

    def _run_forward(self, now: int, stage: int) -> None:
        cost, position = self.pipeline.costs[stage], self.pipeline.position_of[stage]
        microbatch = self.forwards[stage]
        end = self._run(now, position, action=Action("F", stage, microbatch), duration=cost.forward_ns)
        self.forwards[stage] += 1
        self.held[position] += cost.held_bytes
        self._arrive(self.return_at, stage, microbatch=microbatch, time=end)
        self._send(self.pipeline.activations_to[stage], self.forward_at, stage=stage, microbatch=microbatch, end=end)

    def _run_backward(self, now: int, stage: int) -> None:
        cost, position = self.pipeline.costs[stage], self.pipeline.position_of[stage]
        microbatch = self.returns[stage]
        fuses = cost.has_weight_grad and not self.rule.splits
        action = Action("B" if fuses else "I", stage, microbatch)
        end = self._run(now, position, action=action, duration=cost.backward_ns if fuses else cost.input_grad_ns)
        self.returns[stage] += 1
        self.held[position] -= cost.held_bytes
        if cost.has_weight_grad and not fuses:
            self.held[position] += cost.weight_stash_bytes
            self.pending[position].append(Action("W", stage, microbatch))
        self._send(self.pipeline.gradients_to[stage], self.return_at, stage=stage, microbatch=microbatch, end=end)

    def _run_weight_grad(self, now: int, position: int) -> None:
        action = self.pending[position].popleft()
        cost = self.pipeline.costs[action.stage]
        self._run(now, position, action=action, duration=cost.weight_grad_ns)
        self.held[position] -= cost.weight_stash_bytes

    def _run(self, now: int, position: int, *, action: Action, duration: int) -> int:
        """Put an action down; returns its end."""
        self.words[position].append(action)
        if self.began[position] is None:
            self.began[position] = now
        self.free[position] = end = now + duration
        heappush(self.events, (end, position))
        return end

    def _send(
        self,
        legs: Legs,
        table: list[tuple[list[int], list[int]]],
        *,
        stage: int,
        microbatch: int,
        end: int,
    ) -> None:
        """Between two stages one thing is sent at a time in each direction."""
        for target, delay in legs:
            arrival = end + delay
            if delay:
                arrival = max(end, self.channel.get((stage, target), 0)) + delay
                self.channel[stage, target] = arrival
            self._arrive(table, target, microbatch=microbatch, time=arrival)

    def _arrive(self, table: list[tuple[list[int], list[int]]], stage: int, *, microbatch: int, time: int) -> None:
        missing, ready = table[stage]
        missing[microbatch] -= 1
        ready[microbatch] = max(ready[microbatch], time)
        if not missing[microbatch]:
            heappush(self.events, (ready[microbatch], self.pipeline.position_of[stage]))


def _arrivals(count: int, missing: int) -> tuple[list[int], list[int]]:
    """Per microbatch: what has not arrived yet, and when the latest of the rest arrives."""
    return [missing] * count, [0] * count


def _num_senders(legs: Sequence[Legs]) -> list[int]:
    """How many stages send to each stage."""
    counts = [0] * len(legs)
    for sent in legs:
        for target, _ in sent:
            counts[target] += 1
    return counts
