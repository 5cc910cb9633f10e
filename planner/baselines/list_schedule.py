"""List scheduling: every device runs, of what could start now, what a rule prefers."""

from collections.abc import Callable
from heapq import heappop, heappush

from planner.actions import Action, Kind
from planner.baselines.applicability import require_time
from planner.baselines.pipeline import DeviceOrders, Pipeline, Transfers

Key = Callable[[int, Action], tuple[int, ...]]
"""What comes first among the waiting actions: least key of (time at which it became ready, action)."""


_ASK_EVERY = 64
"""Actions of the first device between two looks at the clock."""


def list_schedule(pipeline: Pipeline, *, key: Key, splits: bool) -> DeviceOrders:
    """The order in which greedy devices run everything; `splits`: I and W apart, otherwise B.

    Between two stages one thing is sent at a time in each direction, in order of readiness.
    """
    return _EventSimulation(pipeline, key=key, splits=splits).play()


class _EventSimulation:
    """Events in order of time."""

    def __init__(self, pipeline: Pipeline, *, key: Key, splits: bool) -> None:
        self.pipeline, self.key, self.splits = pipeline, key, splits
        self.num_inputs = _num_senders(pipeline.activations_to)
        self.num_gradients = _num_senders(pipeline.gradients_to)
        self.left: dict[Action, tuple[int, int]] = {}
        self.waiting: list[list[tuple[tuple[int, ...], Action]]] = [[] for _ in range(pipeline.num_positions)]
        self.is_busy = [False] * pipeline.num_positions
        self.channel_free: dict[tuple[int, int], int] = {}
        self.events: list[tuple[int, int, Action]] = []
        self.device_orders: DeviceOrders = [[] for _ in range(pipeline.num_positions)]

    def play(self) -> DeviceOrders:
        for stage, missing in enumerate(self.num_inputs):
            for microbatch in range(self.pipeline.num_microbatches if not missing else 0):
                heappush(self.events, (0, 0, Action("F", stage, microbatch)))
        while self.events:
            if len(self.device_orders[0]) % _ASK_EVERY == 0:
                require_time(self.pipeline.has_time)
            self._advance()
        return self.device_orders

    def _advance(self) -> None:
        """Everything that happens at one instant, then whatever can start."""
        now, touched = self.events[0][0], set()
        while self.events and self.events[0][0] == now:
            _, is_end, action = heappop(self.events)
            position = self.pipeline.position_of[action.stage]
            touched.add(position)
            if is_end:
                self.is_busy[position] = False
                self._end(now, action)
            else:
                heappush(self.waiting[position], (self.key(now, action), action))
        for position in sorted(touched):
            self._start(now, position)

    def _start(self, now: int, position: int) -> None:
        if self.is_busy[position] or not self.waiting[position]:
            return
        _, action = heappop(self.waiting[position])
        self.device_orders[position].append(action)
        self.is_busy[position] = True
        duration = self.pipeline.costs[action.stage].duration_ns(action.kind)
        heappush(self.events, (now + duration, 1, action))

    def _end(self, now: int, action: Action) -> None:
        kind, stage, microbatch = action
        backward = self._backward(stage)
        if kind == "F":
            self._arrive(now, Action(backward, stage, microbatch))
        elif kind == "I" and self.pipeline.costs[stage].has_weight_grad:
            heappush(self.events, (now, 0, Action("W", stage, microbatch)))
        if kind == "W":
            return
        transfers = self.pipeline.activations_to if kind == "F" else self.pipeline.gradients_to
        for target, delay in transfers[stage]:
            end = max(now, self.channel_free.get((stage, target), 0)) + delay
            self.channel_free[stage, target] = end
            self._arrive(end, Action("F" if kind == "F" else self._backward(target), target, microbatch))

    def _backward(self, stage: int) -> Kind:
        return "I" if self.splits or not self.pipeline.costs[stage].has_weight_grad else "B"

    def _arrive(self, time: int, action: Action) -> None:
        """One of the things that an action waits for is there at `time`."""
        needed = self.num_inputs[action.stage] if action.kind == "F" else 1 + self.num_gradients[action.stage]
        missing, ready = self.left.get(action, (needed, 0))
        self.left[action] = missing, ready = missing - 1, max(ready, time)
        if missing == 0:
            heappush(self.events, (ready, 0, action))


def _num_senders(transfers: tuple[Transfers, ...]) -> list[int]:
    """How many stages send to each stage."""
    counts = [0] * len(transfers)
    for sent in transfers:
        for target, _ in sent:
            counts[target] += 1
    return counts
