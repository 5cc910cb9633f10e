"""The times at which given words play, every action and transfer as early as the rules allow (MODEL.md section 3)."""

from dataclasses import dataclass
from heapq import heappop, heappush

from solver_models.instance import BACKWARD, FORWARD, INPUT_GRAD, WEIGHT_GRAD, ScheduleInstance, StageReplica, Word


def duration_of(lane: StageReplica, kind: int) -> int:
    """Ticks of an action of `kind` on `lane`."""
    return (lane.forward, lane.input_grad, lane.weight_grad, lane.backward)[kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOrders:
    """Words with their times."""

    instance: ScheduleInstance
    """What was played."""
    starts: dict[tuple[int, int, int], int]
    """Start of every action: (kind, lane, microbatch)."""
    sends: dict[tuple[int, int], int]
    """Start of every transfer: (flow, microbatch)."""

    def is_fused(self, lane: int, microbatch: int) -> bool:
        """Whether I and W of this microbatch are one B."""
        return (BACKWARD, lane, microbatch) in self.starts

    def backward_start(self, lane: int, microbatch: int) -> int:
        """Start of I or B."""
        kind = BACKWARD if self.is_fused(lane, microbatch) else INPUT_GRAD
        return self.starts[kind, lane, microbatch]

    def backward_end(self, lane: int, microbatch: int) -> int:
        """End of I or B."""
        kind = BACKWARD if self.is_fused(lane, microbatch) else INPUT_GRAD
        return self.starts[kind, lane, microbatch] + duration_of(self.instance.lanes[lane], kind)

    def weight_start(self, lane: int, microbatch: int) -> int:
        """Start of W; where there is none, the end of the last W before it."""
        for earlier in range(microbatch, -1, -1):
            start = self.starts.get((WEIGHT_GRAD, lane, earlier))
            if start is not None:
                return start if earlier == microbatch else start + self.instance.lanes[lane].weight_grad
        return 0

    def kept(self, lane: int, microbatch: int) -> int:
        """Ticks from the end of I to the end of W; 0 if both are one B."""
        if self.is_fused(lane, microbatch):
            return 0
        end = self.weight_start(lane, microbatch) + self.instance.lanes[lane].weight_grad
        return end - self.backward_end(lane, microbatch)

    def lane_end(self, lane: int) -> int:
        """End of the last action of a lane."""
        last = self.instance.num_microbatches - 1
        numbers = [number for number in range(last + 1) if (WEIGHT_GRAD, lane, number) in self.starts]
        ends = [self.backward_end(lane, last)]
        ends += [self.weight_start(lane, number) + self.instance.lanes[lane].weight_grad for number in numbers]
        return max(ends)

    @property
    def makespan(self) -> int:
        """End of the iteration."""
        lanes = enumerate(self.instance.lanes)
        return (
            max(self.lane_end(n) + self.instance.synchronisation[lane.stage] for n, lane in lanes) + self.instance.tail
        )

    @property
    def span(self) -> int:
        """Longest time from first to last action of a device."""
        spans: dict[int, tuple[int, int]] = {}
        for number, lane in enumerate(self.instance.lanes):
            first, last = spans.get(lane.device, (self.starts[FORWARD, number, 0], 0))
            spans[lane.device] = min(first, self.starts[FORWARD, number, 0]), max(last, self.lane_end(number))
        return max(last - first for first, last in spans.values())

    @property
    def objective(self) -> int:
        """Makespan or span, whichever is minimised."""
        return self.span if self.instance.objective == "span" else self.makespan


def play(instance: ScheduleInstance, words: dict[int, Word]) -> TimedOrders | None:
    """Play `words`; None if they are not every action once, or deadlock."""
    return _OrderPlayer(instance, in_order(words)).play()


def in_order(words: dict[int, Word]) -> dict[int, Word]:
    """The same words with the microbatches of every lane renumbered so that they come in order (MODEL.md section 6)."""
    return {device: _renumber(word) for device, word in words.items()}


def _renumber(word: Word) -> Word:
    seen: dict[tuple[int, int], int] = {}
    splits: dict[int, list[int]] = {}
    result: Word = []
    for kind, stage, _ in word:
        group = INPUT_GRAD if kind == BACKWARD else kind
        count = seen.get((group, stage), 0)
        seen[group, stage] = count + 1
        if kind == INPUT_GRAD:
            splits.setdefault(stage, []).append(count)
        ready = splits.get(stage, [])
        result.append((kind, stage, ready[count] if kind == WEIGHT_GRAD and count < len(ready) else count))
    return result


class _OrderPlayer:
    """The state of one game: what has happened up to the event at hand."""

    def __init__(self, instance: ScheduleInstance, words: dict[int, Word]) -> None:
        self.instance = instance
        self.words = words
        self.lane_of = {(lane.device, lane.stage): number for number, lane in enumerate(instance.lanes)}
        self.position = dict.fromkeys(words, 0)
        self.device_free = dict.fromkeys(words, 0)
        self.link_free: dict[int, int] = {}
        self.starts: dict[tuple[int, int, int], int] = {}
        self.sends: dict[tuple[int, int], int] = {}
        self.arrived: dict[tuple[bool, int, int], int] = {}
        self.done: set[tuple[int, int, int]] = set()
        self.outgoing: dict[tuple[bool, int], list[int]] = {}
        self.expected: dict[tuple[bool, int], int] = {}
        for number, flow in enumerate(instance.flows):
            self.outgoing.setdefault((flow.is_backward, flow.sender), []).append(number)
            self.expected[flow.is_backward, flow.receiver] = self.expected.get((flow.is_backward, flow.receiver), 0) + 1
        self.events: list[tuple[int, int, int, int, bool, int, tuple[int, ...]]] = []
        self.num_events = 0

    def play(self) -> TimedOrders | None:
        for device in self.words:
            self._try_run(device, 0)
        while self.events:
            now, order, _, microbatch, is_backward, _, what = heappop(self.events)
            if order == 1:
                self._send(now, flow=what[0], microbatch=microbatch)
            elif len(what) == 1:
                lane = self.instance.flows[what[0]].receiver
                self.arrived[is_backward, lane, microbatch] = self.arrived.get((is_backward, lane, microbatch), 0) + 1
                self._try_run(self.instance.lanes[lane].device, now)
            else:
                self._end(now, kind=what[0], lane=what[1], microbatch=microbatch)
        if not self._is_complete():
            return None
        return TimedOrders(instance=self.instance, starts=self.starts, sends=self.sends)

    def _is_complete(self) -> bool:
        """Whether every lane has done F, then B or I and W, for every microbatch, and nothing else."""
        expected = 0
        for number, lane in enumerate(self.instance.lanes):
            for microbatch in range(self.instance.num_microbatches):
                is_split = (BACKWARD, number, microbatch) not in self.starts
                needed = [FORWARD, INPUT_GRAD if is_split else BACKWARD]
                needed += [WEIGHT_GRAD] if is_split and lane.has_weight_grad else []
                if any((kind, number, microbatch) not in self.starts for kind in needed):
                    return False
                expected += len(needed)
        return expected == len(self.starts) == sum(map(len, self.words.values()))

    def _push(
        self, now: int, order: int, *, lane: int, microbatch: int, is_backward: bool, what: tuple[int, ...]
    ) -> None:
        self.num_events += 1
        stage = self.instance.lanes[lane].stage
        heappush(self.events, (now, order, stage, microbatch, is_backward, self.num_events, what))

    def _try_run(self, device: int, now: int) -> None:
        """Start the next action of `device` if everything it needs is there."""
        position = self.position[device]
        if position >= len(self.words[device]) or self.device_free[device] > now:
            return
        kind, stage, microbatch = self.words[device][position]
        lane = self.lane_of.get((device, stage))
        if lane is None or not self._is_ready(kind, lane=lane, microbatch=microbatch):
            return
        end = now + duration_of(self.instance.lanes[lane], kind)
        self.position[device] += 1
        self.device_free[device] = end
        self.starts[kind, lane, microbatch] = now
        self._push(end, 0, lane=lane, microbatch=microbatch, is_backward=False, what=(kind, lane))

    def _is_ready(self, kind: int, *, lane: int, microbatch: int) -> bool:
        if kind == WEIGHT_GRAD:
            return (INPUT_GRAD, lane, microbatch) in self.done
        is_backward = kind != FORWARD
        arrived = self.arrived.get((is_backward, lane, microbatch), 0)
        return arrived == self.expected.get((is_backward, lane), 0) and (
            not is_backward or (FORWARD, lane, microbatch) in self.done
        )

    def _end(self, now: int, *, kind: int, lane: int, microbatch: int) -> None:
        self.done.add((kind, lane, microbatch))
        if kind != WEIGHT_GRAD:
            way = kind != FORWARD
            for flow in self.outgoing.get((way, lane), []):
                self._push(now, 1, lane=lane, microbatch=microbatch, is_backward=way, what=(flow,))
        self._try_run(self.instance.lanes[lane].device, now)

    def _send(self, now: int, *, flow: int, microbatch: int) -> None:
        what = self.instance.flows[flow]
        start = max([now, *(self.link_free.get(link, 0) for link in what.links)])
        self.link_free.update(dict.fromkeys(what.links, start + what.duration))
        self.sends[flow, microbatch] = start
        end = start + what.duration
        self._push(end, 0, lane=what.receiver, microbatch=microbatch, is_backward=what.is_backward, what=(flow,))
