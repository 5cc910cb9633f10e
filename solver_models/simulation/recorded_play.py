"""Any schedule played by the evaluator, with the time of every action and of every transfer.

The search knows nets whose microbatches come in order and whose transfers repeat. A schedule that somebody wrote may
order microbatches as it likes, let several devices run an action together, hold devices while they send, and send some
things once. All of that is a `Game`; the evaluator's `play` is what plays it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solver_models.instance import BACKWARD, FORWARD, INPUT_GRAD, Integers, ShortIntegers, Transfer
from solver_models.simulation.columns import ACTIVATIONS, GRADIENTS
from solver_models.simulation.evaluator import FAR, OPTIONS, Net, Policy, Recording, play
from solver_models.simulation.event_heap import MOST_FLOWS, MOST_MICROBATCHES, MOST_STAGES


@dataclass(frozen=True, slots=True, kw_only=True)
class Game:
    """N lanes of S stages on D devices, P flows between them, and A actions, one device after the other."""

    num_microbatches: int
    """M; actions name one of 0 ... M - 1."""
    stage: Integers
    """[N] stage of every lane."""
    devices: Sequence[tuple[int, ...]]
    """[N] devices of every lane, all of which run its actions together; transfers go to and from the first."""
    duration: Integers
    """[N, 4] ticks of F, I, W and B."""
    flows: Sequence[Transfer]
    """[P] what lanes send, or to themselves what holds links alone.

    What is ready at once goes by stage, microbatch, direction, lane, and place in this list.
    """
    waits: Integers
    """[N, 2] activations and gradients that every microbatch of a lane waits for; W waits for its lane's gradients."""
    waits_once: Integers
    """[N] arrivals before the first action of a lane."""
    opening: Sequence[int] = ()
    """Lanes whose activations leave at time 0, once."""
    closing: Sequence[int] = ()
    """[S] lane whose gradients leave once all actions of the stage have ended, or -1; empty if there are none."""
    overlaps: bool = True
    """Whether devices compute while they send and receive."""
    first: Integers
    """[D + 1] where the actions of every device begin."""
    lane: Integers
    """[A] lane of every action."""
    kind: Integers
    """[A] kind of every action; F before I or B before W for every lane and microbatch."""
    microbatch: Integers
    """[A] microbatch of every action."""

    @property
    def num_stages(self) -> int:
        """S, stages without lanes at the end left out."""
        return int(self.stage.max(initial=0)) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedTimes:
    """When everything began; -1 where it never did, because the schedule deadlocks."""

    start: Integers
    """[A] ticks."""
    sent: Integers
    """[P, M + 1] ticks; in the last column transfers that were sent once."""


def play_game(game: Game) -> PlayedTimes:
    """Play; ValueError if there are more stages, microbatches or flows than an event's key has room for."""
    check_size(num_stages=game.num_stages, num_microbatches=game.num_microbatches)
    if max(len(game.flows), len(game.stage)) > MOST_FLOWS:
        raise ValueError(f"{len(game.flows)} flows between {len(game.stage)} lanes; at most {MOST_FLOWS} can be played")
    table, words, nothing = _FlowTable(game), _Words(game), np.zeros(1, np.int64)
    recording = _make_recording(game, table=table, words=words)
    policy = Policy(nothing, nothing, nothing)
    play(table.net(), policy, words.codes, words.lengths, True, FAR, recording)
    sent = np.full(recording.sent.shape, -1, np.int64)
    sent[table.order] = recording.sent
    return PlayedTimes(start=recording.start[words.is_used], sent=sent)


def check_size(*, num_stages: int = 0, num_microbatches: int = 0) -> None:
    """ValueError if there are more stages or microbatches than an event's key has room for."""
    if num_stages > MOST_STAGES:
        raise ValueError(f"{num_stages} stages; at most {MOST_STAGES} can be played: give stages more layers")
    if num_microbatches > MOST_MICROBATCHES:
        raise ValueError(
            f"num_microbatches = {num_microbatches}; at most {MOST_MICROBATCHES} can be played: make them larger"
        )


class _FlowTable:
    """The flows of a game by sender and direction, each with a route of its own."""

    def __init__(self, game: Game) -> None:
        self.game = game
        keys = _column([2 * flow.sender + flow.is_backward for flow in game.flows])
        self.order = np.argsort(keys, kind="stable")
        self.starts = np.concatenate([[0], np.cumsum(np.bincount(keys, minlength=2 * len(game.stage)))])
        self.flows = [game.flows[number] for number in self.order.tolist()]
        self.head = _column([group[0] for group in game.devices])
        number = {link: index for index, link in enumerate(dict.fromkeys(x for flow in self.flows for x in flow.links))}
        self.num_links = len(number)
        self.links = [[number[link] for link in flow.links] for flow in self.flows]
        self.sender = _column([flow.sender for flow in self.flows])
        self.target = _column([flow.receiver for flow in self.flows])
        self.duration = _column([flow.duration for flow in self.flows])

    def net(self) -> Net:
        """The lanes and flows as the evaluator reads them; what only policies read is zero or empty."""
        game, zeros = self.game, np.zeros(len(self.game.stage), np.int64)
        num_devices = len(game.first) - 1
        return Net(
            lane_stage=game.stage, lane_device=self.head, duration=np.ascontiguousarray(game.duration),
            has_weight=zeros, held=zeros, stash=zeros, whole_backward=zeros, weight_stash=zeros, workspace=zeros,
            weight_workspace=zeros,
            device_start=np.zeros(num_devices + 1, np.int64), device_lanes=np.zeros(0, np.int64),
            budget=np.zeros(num_devices, np.int64), flow_start=self.starts.astype(np.int64),
            flow_way=_column([int(flow.is_backward) for flow in self.flows]), flow_target=self.target,
            flow_duration=self.duration, flow_route=self._routes(), flow_shared=self._is_shared(),
            num_inputs=zeros, num_gradients=zeros,
            route_start=np.concatenate([[0], np.cumsum(_column(list(map(len, self.links))))]).astype(np.int64),
            route_links=_column([link for links in self.links for link in links]),
            synchronisation=np.zeros(game.num_stages, np.int64),
            scalars=_column([self._scalar(name) for name in OPTIONS]),
        )  # fmt: skip

    def _scalar(self, name: str) -> int:
        """What playing reads of the options; the rest is the policies'."""
        return {"num_microbatches": self.game.num_microbatches, "num_links": self.num_links}.get(name, 0)

    def _routes(self) -> Integers:
        """[P] its own route for every flow; -1 inside a device."""
        inside = (self.head[self.sender] == self.head[self.target]) & (self.duration == 0)
        routes: Integers = np.where(inside, -1, np.arange(len(self.flows)))
        return routes

    def _is_shared(self) -> Integers:
        """[P] 1 if the flow has to wait for its turn: its links, or its devices, may be wanted by another one.

        After an action that takes no time, several of a flow's own transfers may be ready at once.
        """
        used = np.bincount(_column([link for links in self.links for link in links]), minlength=1)
        busy = np.array([any(used[link] > 1 for link in links) for links in self.links], dtype=np.bool_)
        ticks = self.game.duration[self.sender]
        is_backward = np.array([flow.is_backward for flow in self.flows], dtype=np.bool_)
        least = np.where(is_backward, np.minimum(ticks[:, INPUT_GRAD], ticks[:, BACKWARD]), ticks[:, FORWARD])
        waits = busy | (least == 0) | (not self.game.overlaps)
        shared: Integers = (waits & (self.duration > 0)).astype(np.int64)
        return shared


class _Words:
    """The words of a game, a row per device."""

    def __init__(self, game: Game) -> None:
        self.lengths = np.diff(game.first)
        shape = len(self.lengths), int(self.lengths.max(initial=1))
        self.is_used = np.arange(shape[1]) < self.lengths[:, None]
        self.codes, self.microbatch = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
        self.codes[self.is_used] = 4 * game.lane + game.kind
        self.microbatch[self.is_used] = game.microbatch


def _make_recording(game: Game, *, table: _FlowTable, words: _Words) -> Recording:
    """Room for the times, and what the search's nets do not know."""
    count, num_devices = game.num_microbatches, len(words.lengths)
    is_heading = table.head[game.lane] == np.repeat(np.arange(num_devices), words.lengths)
    left = np.bincount(game.stage[game.lane[is_heading]], minlength=game.num_stages).astype(np.int64)
    held = np.zeros(0 if game.overlaps else num_devices, np.int64)
    return Recording(
        microbatch=words.microbatch,
        start=np.full(words.codes.shape, -1, np.int64),
        missing=_make_missing(game),
        sent=np.full((len(game.flows), count + 1), -1, np.int64),
        sender=np.where(table.sender == table.target, -1, table.sender),
        member_start=np.concatenate([[0], np.cumsum(_column(list(map(len, game.devices))))]).astype(np.int64),
        members=_column([device for group in game.devices for device in group]),
        closing=np.stack((left, _column(game.closing or [-1] * game.num_stages)), axis=1),
        opening=_column(game.opening),
        held_until=held,
        resumed=held.copy(),
    )


def _make_missing(game: Game) -> ShortIntegers:
    missing = np.zeros((len(game.stage), GRADIENTS + 1, game.num_microbatches + 1), np.int32)
    missing[:, :, :-1] = game.waits[:, :, None]
    missing[:, ACTIVATIONS, -1] = game.waits_once
    return missing


def _column(values: Sequence[int]) -> Integers:
    return np.array(values, dtype=np.int64)
