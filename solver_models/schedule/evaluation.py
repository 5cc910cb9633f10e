"""The times at which given words play, every action and transfer as early as the rules allow (contract, "Time")."""

from dataclasses import dataclass

import numpy as np

from solver_models.instance import (
    BACKWARD,
    FORWARD,
    INPUT_GRAD,
    WEIGHT_GRAD,
    Integers,
    ScheduleInstance,
    StageReplica,
    Word,
)
from solver_models.simulation.recorded_play import Game, play_game


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
            for device in lane.devices:
                first, last = spans.get(device, (self.starts[FORWARD, number, 0], 0))
                spans[device] = min(first, self.starts[FORWARD, number, 0]), max(last, self.lane_end(number))
        return max(last - first for first, last in spans.values())

    @property
    def objective(self) -> int:
        """Makespan or span, whichever is minimised."""
        return self.span if self.instance.objective == "span" else self.makespan


def play(instance: ScheduleInstance, words: dict[int, Word]) -> TimedOrders | None:
    """Play `words`; None if they are not every action once, or deadlock."""
    lane_of = {(device, lane.stage): n for n, lane in enumerate(instance.lanes) for device in lane.devices}
    actions = _actions(in_order(words), lane_of=lane_of)
    if actions is None or not _is_complete(instance, actions):
        return None
    game = _make_game(instance, actions)
    times = play_game(game)
    if (times.start < 0).any():
        return None
    starts = zip(game.kind.tolist(), game.lane.tolist(), game.microbatch.tolist(), strict=True)
    sent = np.where(times.sent[:, :-1] < 0, _inside(game, times.start), times.sent[:, :-1])
    sends = {(flow, m): start for flow, row in enumerate(sent.tolist()) for m, start in enumerate(row)}
    return TimedOrders(instance=instance, starts=dict(zip(starts, times.start.tolist(), strict=True)), sends=sends)


def in_order(words: dict[int, Word]) -> dict[int, Word]:
    """The same words with the microbatches of every lane renumbered in order (contract, "Schedule")."""
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


_Actions = dict[int, list[tuple[int, int, int]]]
"""Per device (kind, lane, microbatch)."""


def _actions(words: dict[int, Word], *, lane_of: dict[tuple[int, int], int]) -> _Actions | None:
    """The words with lanes for stages; None if a device lacks one, or an action stands before what it needs there."""
    found: _Actions = {}
    for device, word in words.items():
        seen = set[tuple[int, int, int]]()
        for kind, stage, microbatch in word:
            lane = lane_of.get((device, stage))
            before = {FORWARD: None, WEIGHT_GRAD: INPUT_GRAD}.get(kind, FORWARD)
            if lane is None or (before is not None and (before, lane, microbatch) not in seen):
                return None
            seen.add((kind, lane, microbatch))
            found.setdefault(device, []).append((kind, lane, microbatch))
    return found


def _is_complete(instance: ScheduleInstance, actions: _Actions) -> bool:
    """Whether every lane does F, then B or I and W, for every microbatch, and nothing else."""
    done, expected = {action for word in actions.values() for action in word}, 0
    for number, lane in enumerate(instance.lanes):
        for microbatch in range(instance.num_microbatches):
            is_split = (BACKWARD, number, microbatch) not in done
            needed = [FORWARD, INPUT_GRAD if is_split else BACKWARD]
            needed += [WEIGHT_GRAD] if is_split and lane.has_weight_grad else []
            if any((kind, number, microbatch) not in done for kind in needed):
                return False
            expected += len(needed)
    listed = sum(len(instance.lanes[lane].devices) for _, lane, _ in done)
    return expected == len(done) and listed == sum(map(len, actions.values()))


def _make_game(instance: ScheduleInstance, actions: _Actions) -> Game:
    lanes, num_devices = instance.lanes, len(instance.budgets)
    waits = np.zeros((len(lanes), 2), np.int64)
    for flow in instance.flows:
        waits[flow.receiver, int(flow.is_backward)] += 1
    lengths = [len(actions.get(device, [])) for device in range(num_devices)]
    rows = [action for device in range(num_devices) for action in actions.get(device, [])]
    kind, lane, microbatch = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    return Game(
        num_microbatches=instance.num_microbatches,
        stage=np.array([each.stage for each in lanes], dtype=np.int64),
        devices=[each.devices for each in lanes],
        duration=np.array([[duration_of(each, k) for k in range(FORWARD, BACKWARD + 1)] for each in lanes]),
        flows=instance.flows,
        waits=waits,
        waits_once=np.zeros(len(lanes), np.int64),
        first=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        lane=lane,
        kind=kind,
        microbatch=microbatch,
    )


def _inside(game: Game, start: Integers) -> Integers:
    """[P, M] the ends of what sends every flow: there a transfer inside a device begins."""
    ends = np.zeros((len(game.stage), 2, game.num_microbatches), np.int64)
    sends = game.kind != WEIGHT_GRAD
    lane, kind = game.lane[sends], game.kind[sends]
    ends[lane, (kind != FORWARD).astype(np.int64), game.microbatch[sends]] = start[sends] + game.duration[lane, kind]
    found: Integers = ends[[flow.sender for flow in game.flows], [int(flow.is_backward) for flow in game.flows]]
    return found
