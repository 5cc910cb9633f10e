"""The orders that SPP compares: by slots, with a bound on the makespan, and greedy, first in first out, without one."""

from heapq import heappop, heappush

from planner.actions import Action
from planner.baselines.alternation import fused_backward
from planner.baselines.pipeline import Legs, Pipeline, Words


def order_slotted(pipeline: Pipeline) -> Words:
    """Every stage goes by slot = microbatch + number of the block, the backward block first inside a slot.

    A microbatch is a chain of 4 S - 3 blocks: F and transfer in turn, F and B of the last stage as one block, transfer
    and B in turn. One microbatch is never longer than C on a resource, so that the order takes at most
    (M + 4 S - 4) C, plus the longest all-reduce, on links that no two channels share.
    """
    last, count = pipeline.num_stages - 1, pipeline.num_microbatches
    words: Words = []
    for stage in range(last):
        backward = [(m + 4 * last - 2 * stage, 0, fused_backward(pipeline, stage, microbatch=m)) for m in range(count)]
        forward = [(m + 2 * stage, 1, Action("F", stage, m)) for m in range(count)]
        words.append([action for *_, action in sorted(backward + forward)])
    merged = [(Action("F", last, m), fused_backward(pipeline, last, microbatch=m)) for m in range(count)]
    words.append([action for block in merged for action in block])
    return words


def order_greedy(pipeline: Pipeline) -> Words:
    """Every stage runs what has waited longest; channels send one thing at a time, in order of readiness."""
    return _Greedy(pipeline).play()


class _Greedy:
    """Events in order of time; every stage has a device of its own."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        stages = range(pipeline.num_stages)
        self.missing = {"F": _receivers(pipeline, pipeline.activations_to), "B": [1] * pipeline.num_stages}
        for stage, gradients in enumerate(_receivers(pipeline, pipeline.gradients_to)):
            self.missing["B"][stage] += gradients
        self.left: dict[tuple[str, int, int], tuple[int, int]] = {}
        self.waiting: list[list[tuple[int, int, str, int]]] = [[] for _ in stages]
        self.is_busy = [False for _ in stages]
        self.channel_free: dict[tuple[int, int], int] = {}
        self.events: list[tuple[int, int, str, int, int]] = []
        self.words: Words = [[] for _ in stages]

    def play(self) -> Words:
        for stage, missing in enumerate(self.missing["F"]):
            for microbatch in range(self.pipeline.num_microbatches if not missing else 0):
                heappush(self.events, (0, 0, "F", stage, microbatch))
        while self.events:
            now = self.events[0][0]
            touched = set()
            while self.events and self.events[0][0] == now:
                _, is_end, kind, stage, microbatch = heappop(self.events)
                touched.add(stage)
                if is_end:
                    self._end(now, kind, stage=stage, microbatch=microbatch)
                else:
                    heappush(self.waiting[stage], (now, int(kind == "F"), kind, microbatch))
            for stage in touched:
                self._start(now, stage)
        return self.words

    def _start(self, now: int, stage: int) -> None:
        if self.is_busy[stage] or not self.waiting[stage]:
            return
        _, _, kind, microbatch = heappop(self.waiting[stage])
        cost = self.pipeline.costs[stage]
        backward = fused_backward(self.pipeline, stage, microbatch=microbatch)
        action = Action("F", stage, microbatch) if kind == "F" else backward
        self.words[stage].append(action)
        self.is_busy[stage] = True
        heappush(self.events, (now + cost.duration_ns(action.kind), 1, kind, stage, microbatch))

    def _end(self, now: int, kind: str, *, stage: int, microbatch: int) -> None:
        self.is_busy[stage] = False
        if kind == "F":
            self._arrive(now, "B", stage=stage, microbatch=microbatch)
        legs = self.pipeline.activations_to if kind == "F" else self.pipeline.gradients_to
        for target, delay in legs[stage]:
            end = max(now, self.channel_free.get((stage, target), 0)) + delay
            self.channel_free[stage, target] = end
            self._arrive(end, kind, stage=target, microbatch=microbatch)

    def _arrive(self, now: int, kind: str, *, stage: int, microbatch: int) -> None:
        """One of the things that an action waits for is there at `now`, or will be."""
        key = kind, stage, microbatch
        missing, ready = self.left.get(key, (self.missing[kind][stage], 0))
        self.left[key] = missing, ready = missing - 1, max(ready, now)
        if missing == 0:
            heappush(self.events, (ready, 0, kind, stage, microbatch))


def _receivers(pipeline: Pipeline, legs: tuple[Legs, ...]) -> list[int]:
    """How many stages send to each stage."""
    counts = [0] * pipeline.num_stages
    for sent in legs:
        for target, _ in sent:
            counts[target] += 1
    return counts
