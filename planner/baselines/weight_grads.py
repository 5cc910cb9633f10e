"""Puts every W into given orders of F and I: where a device would wait, where memory asks for it, or at the end.

This is the heuristic of the zero-bubble paper (Qi et al., 2024, arXiv 2401.10241, section 3.1).
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from planner.actions import Action
from planner.baselines.applicability import require_time
from planner.baselines.pipeline import Pipeline, Words


@dataclass(frozen=True, slots=True, kw_only=True)
class Habit:
    """When a W is run although an F or an I could come next."""

    quarters: int
    """It is run where the wait for the next F or I is at least this many quarters of it."""
    evens_out: bool = False
    """It is also run in shorter waits if the device would otherwise become the one that has waited longest."""
    at_once: bool = False
    """It is also run directly after its I as long as the device has forwards to run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """Complete orders, and how long they take when every transfer has its links to itself."""

    words: Words
    """F, I and W on every position."""
    makespan_ns: int
    """End of the last action."""
    span_ns: int
    """Longest time from first to last action of a position."""


def best_filled(pipeline: Pipeline, trials: Iterable[tuple[Words, Habit]], *, limits: Sequence[int]) -> Words:
    """The best outcome of several trials: orders of F and I, each with a habit; `limits` are bytes per position."""
    filled = []
    for orders, habit in trials:
        require_time(pipeline.has_time)
        filled.append(fill(pipeline, orders, habit=habit, limits=limits))
    if pipeline.minimises_span:
        return min(filled, key=lambda outcome: (outcome.span_ns, outcome.makespan_ns)).words
    return min(filled, key=lambda outcome: (outcome.makespan_ns, outcome.span_ns)).words


def fill(pipeline: Pipeline, orders: Words, *, habit: Habit, limits: Sequence[int]) -> Filled:
    """Play `orders` (F and I only, free of deadlock) and put the W in on the way.

    A W is run before an F that would not fit `limits` otherwise; if there is no W left to run, the F does not wait.
    """
    return _Filler(pipeline, orders, habit=habit, limits=limits).run()


class _Filler:
    """Plays every position as far as what it waits for is known, in turn."""

    def __init__(self, pipeline: Pipeline, orders: Words, *, habit: Habit, limits: Sequence[int]) -> None:
        positions, stages, count = pipeline.num_positions, pipeline.num_stages, pipeline.num_microbatches
        self.pipeline, self.orders, self.habit, self.limits = pipeline, orders, habit, limits
        self.forwards_left = [sum(action.kind == "F" for action in order) for order in orders]
        self.next = [0] * positions
        self.clock = [0] * positions
        self.first_start: list[int | None] = [None] * positions
        self.waited = [0] * positions
        self.longest_wait = 0
        self.held = [0] * positions
        self.pending: list[deque[Action]] = [deque() for _ in range(positions)]
        self.words: Words = [[] for _ in range(positions)]
        num_inputs, num_gradients = [0] * stages, [0] * stages
        for stage in range(stages):
            for consumer, _ in pipeline.activations_to[stage]:
                num_inputs[consumer] += 1
            for producer, _ in pipeline.gradients_to[stage]:
                num_gradients[producer] += 1
        # Per stage and microbatch: what has not arrived yet, and when the latest of the rest arrives.
        self.missing = {"F": [[n] * count for n in num_inputs], "I": [[n] * count for n in num_gradients]}
        self.ready = {"F": [[0] * count for _ in range(stages)], "I": [[0] * count for _ in range(stages)]}

    def run(self) -> Filled:
        waiting = deque(range(self.pipeline.num_positions))
        while waiting:
            waiting.extend(self._play(waiting.popleft()))
        assert all(place == len(order) for place, order in zip(self.next, self.orders, strict=True))
        for position, pending in enumerate(self.pending):
            while pending:
                self._run_weight_grad(position)
        spans = [end - start for end, start in zip(self.clock, self.first_start, strict=True) if start is not None]
        return Filled(words=self.words, makespan_ns=max(self.clock), span_ns=max(spans))

    def _play(self, position: int) -> list[int]:
        """Play a position until something it needs is unknown; return the positions that it has sent something to."""
        order, reached = self.orders[position], set()
        while self.next[position] < len(order):
            action = order[self.next[position]]
            kind, stage, microbatch = action
            if self.missing[kind][stage][microbatch]:
                break
            self._make_use_of_wait(position, self.ready[kind][stage][microbatch])
            if kind == "F":
                self._make_room(position, self.pipeline.costs[stage].held_bytes)
            start = max(self.clock[position], self.ready[kind][stage][microbatch])
            reached.update(self._run(position, action, start=start))
            self.next[position] += 1
        reached.discard(position)
        return list(reached)

    def _make_use_of_wait(self, position: int, ready: int) -> None:
        pending, habit = self.pending[position], self.habit
        while pending:
            wait = ready - self.clock[position]
            duration = self.pipeline.costs[pending[0].stage].weight_grad_ns
            evens_out = habit.evens_out and self.waited[position] + wait > self.longest_wait
            if wait <= 0 or (4 * wait < habit.quarters * duration and not evens_out):
                return
            self._run_weight_grad(position)

    def _make_room(self, position: int, num_bytes: int) -> None:
        while self.pending[position] and self.held[position] + num_bytes > self.limits[position]:
            self._run_weight_grad(position)

    def _run_weight_grad(self, position: int) -> None:
        action = self.pending[position].popleft()
        cost = self.pipeline.costs[action.stage]
        self.words[position].append(action)
        self.clock[position] += cost.weight_grad_ns
        self.held[position] -= cost.weight_stash_bytes

    def _run(self, position: int, action: Action, *, start: int) -> list[int]:
        """Run an F or an I; return the positions that receive something."""
        self._note_wait(position, start)
        self.words[position].append(action)
        kind, stage, microbatch = action
        cost = self.pipeline.costs[stage]
        if kind == "F":
            self.clock[position] = end = start + cost.forward_ns
            self.held[position] += cost.held_bytes
            self.forwards_left[position] -= 1
            self.ready["I"][stage][microbatch] = max(end, self.ready["I"][stage][microbatch])
        else:
            self.clock[position] = end = start + cost.input_grad_ns
            self.held[position] += cost.weight_stash_bytes - cost.held_bytes
            self._owe_weight_grad(position, action)
        legs = self.pipeline.activations_to if kind == "F" else self.pipeline.gradients_to
        for target, delay in legs[stage]:
            self.missing[kind][target][microbatch] -= 1
            self.ready[kind][target][microbatch] = max(end + delay, self.ready[kind][target][microbatch])
        return [self.pipeline.position_of[target] for target, _ in legs[stage]]

    def _note_wait(self, position: int, start: int) -> None:
        if self.first_start[position] is None:
            self.first_start[position] = start
        else:
            self.waited[position] += start - self.clock[position]
            self.longest_wait = max(self.longest_wait, self.waited[position])

    def _owe_weight_grad(self, position: int, input_grad: Action) -> None:
        if self.pipeline.costs[input_grad.stage].has_weight_grad:
            self.pending[position].append(Action("W", input_grad.stage, input_grad.microbatch))
            if self.habit.at_once and self.forwards_left[position]:
                self._run_weight_grad(position)
