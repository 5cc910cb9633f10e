"""Plays a plan: every action, transfer and synchronisation gets its time, every device its memory trace.

Event driven: nothing is decided here, everything runs in the plan's order as early as the rules allow (MODEL.md 3, 4).
What takes no time occupies nothing. Transfers equal in readiness, stage, microbatch and direction go in the order of
the sending replicas, then of the edges, then of the receiving replicas.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, NamedTuple

from planner.actions import Action
from planner.costs import CostModel, StageCost, StageTraffic, overlaps
from planner.encoding import Words, encode
from planner.errors import PlanError
from planner.fast_evaluation import make_fast_evaluation
from planner.plan import DeviceGroup, Plan
from planner.problem import Problem
from planner.split_placement import BEFORE_FIRST, common, input_grad_ranges, part_of
from planner.timeline import (
    Direction,
    MemoryPoint,
    TimedAction,
    TimedSynchronisation,
    TimedTransfer,
    Timeline,
)
from profiles.cluster import Route

__all__ = [
    "Direction",
    "MemoryPoint",
    "StageReplica",
    "TimedAction",
    "TimedSynchronisation",
    "TimedTransfer",
    "Timeline",
    "make_lanes",
    "memory_steps",
    "simulate",
]

_Call = tuple[Callable[[int, Any], None], object]
"""What happens at an event: a method, and what it is given beside the time."""


@dataclass(slots=True, kw_only=True)
class StageReplica:
    """One replica of one stage while it is played."""

    stage: int
    replica: int
    group: DeviceGroup
    cost: StageCost
    forward_to: list[tuple["StageReplica", int, Route | None]]
    """Receivers of its activations: (lane, bytes, route; None inside the same group)."""
    backward_to: list[tuple["StageReplica", int, Route | None]]
    """Receivers of its gradients."""
    kinds: str = "FIWB"
    """The kinds of its actions."""
    num_inputs: int = 0
    num_gradients: int = 0
    num_input_grads: int = 1
    """How many I its W waits for: with split placement one per share."""
    missing_inputs: list[int] = field(default_factory=list)
    missing_gradients: list[int] = field(default_factory=list)
    missing_input_grads: list[int] = field(default_factory=list)
    forward_done: list[bool] = field(default_factory=list)

    def reset(self, num_microbatches: int) -> None:
        """Nothing has arrived yet."""
        self.missing_inputs = [self.num_inputs] * num_microbatches
        self.missing_gradients = [self.num_gradients] * num_microbatches
        self.missing_input_grads = [self.num_input_grads] * num_microbatches
        self.forward_done = [False] * num_microbatches


class _Parcel(NamedTuple):
    """What one lane sends another for one microbatch; no route: inside a device."""

    sender: StageReplica
    target: StageReplica
    microbatch: int
    direction: Direction
    num_bytes: int
    route: Route | None


def simulate(problem: Problem, plan: Plan, *, costs: CostModel | None = None, words: Words | None = None) -> Timeline:
    """Play `plan` on `problem`; `words` may give the words of its schedule as arrays.

    Raises PlanError if the plan cannot be played to its end (`planner.verify` says in detail why).
    """
    model = costs or CostModel(problem)
    lanes = make_lanes(problem, plan, costs=model)
    course = make_fast_evaluation(plan, lanes=lanes, words=words or encode(plan.schedule), costs=model)
    return _Player(problem, plan, costs=model, lanes=lanes).play() if course is None else course.play()


class _Player:
    """The state of one game: what has happened up to the event at hand."""

    def __init__(self, problem: Problem, plan: Plan, *, costs: CostModel, lanes: list[StageReplica]) -> None:
        self.problem, self.plan, self.costs, self.lanes = problem, plan, costs, lanes
        for lane in lanes:
            lane.reset(problem.num_microbatches)
        self.lane_of = {(device, lane.stage): lane for lane in self.lanes for device in lane.group}
        self.words = {device: list(word) for device, word in plan.schedule.items()}
        self.position = dict.fromkeys(self.words, 0)
        self.action_end = dict.fromkeys(self.words, 0)
        self.device_free = dict.fromkeys(self.words, 0)  # later than action_end only where transfers do not overlap
        self.link_free: dict[int, int] = {}
        self.actions: dict[str, list[TimedAction]] = {device: [] for device in self.words}
        self.transfers: list[TimedTransfer] = []
        self.synchronisations: list[TimedSynchronisation] = []
        self.weights, self.finished = _make_single_parcels(problem, plan, costs=costs, lanes=self.lanes)
        self.unfinished = [0] * len(plan.stages)
        for device, word in self.words.items():
            for action in word:
                lane = self._lane(device, action)
                self.unfinished[action.stage] += device == lane.group[0]
        self.events: list[tuple[int, int, tuple[int, ...], int, _Call]] = []
        self.num_events = 0

    def _lane(self, device: str, action: Action) -> StageReplica:
        lane = self.lane_of.get((device, action.stage))
        if lane is None or not 0 <= action.microbatch < self.problem.num_microbatches:
            raise PlanError(f"{device} cannot run {action}: it holds no such stage, or there is no such microbatch")
        if action.kind not in lane.kinds:
            raise PlanError(f"{device} cannot run {action}: of stage {action.stage} it runs only {lane.kinds}")
        return lane

    def _push(self, time: int, order: int, *, call: _Call, key: tuple[int, ...] = ()) -> None:
        """At `time`, in the order of `order`, `key` and arrival, run the method `call[0]` with the rest of `call`."""
        self.num_events += 1
        heappush(self.events, (time, order, key, self.num_events, call))

    def play(self) -> Timeline:
        for rank, parcel in enumerate(self.weights):
            self._send(0, parcel, rank=rank)
        self._resume(0, tuple(self.words))
        while self.events:
            time, *_, (handler, subject) = heappop(self.events)
            handler(time, subject)
        stuck = [f"{d} at {self.words[d][p]}" for d, p in self.position.items() if p < len(self.words[d])]
        if stuck:
            raise PlanError(f"the schedule deadlocks: {'; '.join(stuck[:5])}")
        return self._timeline()

    def _try_run(self, device: str, now: int, *, is_instant: bool = False) -> None:
        """Start the next action of `device` if everything it needs is there (if `is_instant`: and it takes no time)."""
        position = self.position[device]
        if position >= len(self.words[device]) or self.action_end[device] > now:
            return
        action = self.words[device][position]
        lane = self.lane_of[device, action.stage]
        end = now + lane.cost.duration_ns(action.kind)
        if (is_instant and end > now) or not _is_ready(lane, action):
            return
        free = self.device_free if end > now else self.action_end
        if not all(free[other] <= now and self._is_at(other, action) for other in lane.group):
            return
        for other in lane.group:
            self.position[other] += 1
            self.action_end[other] = end
            self.device_free[other] = max(self.device_free[other], end)
            self.actions[other].append(TimedAction(action, now, end))
        self._push(end, 0, call=(self._on_end, (lane, action)))

    def _is_at(self, device: str, action: Action) -> bool:
        position = self.position[device]
        word = self.words[device]
        return position < len(word) and word[position] == action

    def _on_end(self, now: int, ended: tuple[StageReplica, Action]) -> None:
        lane, action = ended
        microbatch = action.microbatch
        if action.kind == "F":
            lane.forward_done[microbatch] = True
            self._send_all(now, lane, microbatch=microbatch, direction="forward")
        elif action.kind in "IB":
            lane.missing_input_grads[microbatch] -= 1
            self._send_all(now, lane, microbatch=microbatch, direction="backward")
        self.unfinished[lane.stage] -= 1
        if self.unfinished[lane.stage] == 0:
            key = (lane.stage, self.problem.num_microbatches, 2)
            self._push(now, 1, key=key, call=(self._on_synchronise, lane.stage))
            if lane.stage in self.finished:
                self._send(now, self.finished[lane.stage], rank=0)
        self._resume(now, lane.group)

    def _send_all(self, now: int, lane: StageReplica, *, microbatch: int, direction: Direction) -> None:
        receivers = lane.backward_to if direction == "backward" else lane.forward_to
        for rank, (target, num_bytes, route) in enumerate(receivers):
            self._send(now, _Parcel(lane, target, microbatch, direction, num_bytes, route), rank=rank)

    def _send(self, now: int, parcel: _Parcel, *, rank: int) -> None:
        """Queue a transfer; one that takes no time occupies nothing and arrives at once."""
        lane, _, microbatch, direction, num_bytes, route = parcel
        if route is not None and route.duration_ns(num_bytes) > 0:
            key = (lane.stage, microbatch, int(direction == "backward"), lane.replica, rank)
            self._push(now, 1, key=key, call=(self._on_send, parcel))
        else:
            if route is not None:
                self._note(parcel, ready=now, start=now)
            self._push(now, 0, call=(self._on_arrival, parcel))

    def _on_send(self, now: int, parcel: _Parcel) -> None:
        route = parcel.route
        assert route is not None
        start = max([now, *(self.link_free.get(link, 0) for link in route.links)])
        if not self.problem.cluster.overlap:
            devices = (parcel.sender.group[0], parcel.target.group[0])
            start = max([start, *(self.device_free[device] for device in devices)])
        end = self._note(parcel, ready=now, start=start)
        for link in route.links:
            self.link_free[link] = end
        if not self.problem.cluster.overlap:
            for device in devices:
                self.device_free[device] = end
            self._push(end, 3, call=(self._resume, devices))
        self._push(end, 0, call=(self._on_arrival, parcel))

    def _note(self, parcel: _Parcel, *, ready: int, start: int) -> int:
        """Write the transfer down; returns its end."""
        sender, target, microbatch, direction, num_bytes, route = parcel
        assert route is not None
        end = start + route.duration_ns(num_bytes)
        ends = (sender.group[0], target.group[0], sender.stage, target.stage)
        self.transfers.append(TimedTransfer(*ends, microbatch, direction, num_bytes, route.links, ready, start, end))
        return end

    def _on_arrival(self, now: int, parcel: _Parcel) -> None:
        lane = parcel.target
        if lane.stage == parcel.sender.stage:
            self._on_arrival_within(lane, parcel.microbatch, direction=parcel.direction)
        else:
            missing = lane.missing_inputs if parcel.direction == "forward" else lane.missing_gradients
            missing[parcel.microbatch] -= 1
        self._resume(now, lane.group)

    def _on_arrival_within(self, lane: StageReplica, microbatch: int, *, direction: Direction) -> None:
        """With split placement: weights, stash or weight stash have arrived (the finished gradient: all is done)."""
        if microbatch == BEFORE_FIRST:
            lane.missing_gradients = [missing - 1 for missing in lane.missing_gradients]
        elif direction == "forward":
            lane.forward_done[microbatch] = True
        elif microbatch < self.problem.num_microbatches:
            lane.missing_input_grads[microbatch] -= 1

    def _resume(self, now: int, devices: DeviceGroup) -> None:
        """Let devices go on; without overlap, actions that take time come after the transfers ready at this instant."""
        for device in devices:
            self._try_run(device, now, is_instant=not self.problem.cluster.overlap)
        if not self.problem.cluster.overlap:
            self._push(now, 2, call=(self._on_resume, devices))

    def _on_resume(self, now: int, devices: DeviceGroup) -> None:
        for device in devices:
            self._try_run(device, now)

    def _on_synchronise(self, now: int, number: int) -> None:
        stage = self.plan.stages[number]
        duration = self.costs.synchronisation_ns(stage)
        if duration == 0:
            return
        start = now
        if self.problem.options.synchronisation == "bucketed":
            links = self._ring_links(number)
            start = max([now, *(self.link_free.get(link, 0) for link in links)])
            self.link_free.update(dict.fromkeys(links, start + duration))
        self.synchronisations.append(TimedSynchronisation(number, start, start + duration))

    def _ring_links(self, number: int) -> list[int]:
        stage = self.plan.stages[number]
        size = self.costs.gradient_bytes(stage)
        ring = zip(stage.replicas, (*stage.replicas[1:], stage.replicas[0]), strict=True)
        return [link for a, b in ring for link in self.problem.cluster.route(a[0], b[0], num_bytes=size).links]

    def _timeline(self) -> Timeline:
        ends = [timed.end_ns for word in self.actions.values() for timed in word]
        ends += [timed.end_ns for timed in self.synchronisations]
        if self.finished:
            ends += [sent.end_ns for sent in self.transfers if sent.microbatch == self.problem.num_microbatches]
        makespan = max(ends, default=0) + self.problem.profile.optimizer_ns
        work = sum(timed.end_ns - timed.start_ns for word in self.actions.values() for timed in word)
        memory = self._memory()
        return Timeline(
            actions={device: tuple(word) for device, word in self.actions.items()},
            transfers=tuple(self.transfers),
            synchronisations=tuple(sorted(self.synchronisations, key=lambda timed: timed.start_ns)),
            makespan_ns=makespan,
            span_ns=max((word[-1].end_ns - word[0].start_ns for word in self.actions.values() if word), default=0),
            bubble=1 - work / (len(self.actions) * makespan) if makespan else 0.0,
            memory=memory,
            peak_bytes={device: max(point.num_bytes for point in trace) for device, trace in memory.items()},
        )

    def _memory(self) -> dict[str, tuple[MemoryPoint, ...]]:
        """Replay the words: what is held depends on their order alone, only the times come from the game."""
        static = self.costs.static_bytes(self.plan.stages)
        traces = {}
        for device, word in self.actions.items():
            held = static[device]
            trace = [MemoryPoint(0, held)]
            for action, start, end in word:
                cost = self.lane_of[device, action.stage].cost
                during, after = memory_steps(cost, action.kind)
                trace.append(MemoryPoint(start, held + during))
                held += after
                trace.append(MemoryPoint(end, held))
            traces[device] = tuple(trace)
        return traces


def memory_steps(cost: StageCost, kind: str) -> tuple[int, int]:
    """Bytes that an action adds while it runs, and bytes it adds (or gives back, negative) for good."""
    if kind == "F":
        return cost.held_bytes + cost.workspace_bytes, cost.held_bytes
    rest = cost.stash_bytes - cost.held_bytes
    if kind == "I":
        return rest + cost.workspace_bytes, cost.weight_stash_bytes - cost.held_bytes
    if kind == "W":
        return cost.received_bytes + cost.workspace_bytes, -cost.weight_stash_bytes
    return rest + cost.workspace_bytes, -cost.held_bytes


def _is_ready(lane: StageReplica, action: Action) -> bool:
    microbatch = action.microbatch
    if action.kind == "F":
        return lane.missing_inputs[microbatch] == 0
    if action.kind == "W":
        return lane.missing_input_grads[microbatch] == 0
    return lane.forward_done[microbatch] and lane.missing_gradients[microbatch] == 0


def make_lanes(problem: Problem, plan: Plan, *, costs: CostModel) -> list[StageReplica]:
    """One lane per stage and replica, connected by the transfers between them."""
    costs.find_routes(plan.stages)
    lanes = [_stage_lanes(plan, number, costs=costs) for number in range(len(plan.stages))]
    for (a, b), traffic in costs.traffic(plan.stages).items():
        if plan.stages[a].is_split or plan.stages[b].is_split:
            _connect_split(plan, (lanes[a], lanes[b]), traffic=traffic, costs=costs)
            continue
        for i, j, share, whole in overlaps(len(lanes[a]), len(lanes[b])):
            sender, receiver = lanes[a][i], lanes[b][j]
            size = -(-traffic.forward_bytes * share // whole)
            sender.forward_to.append((receiver, size, _route(problem, (sender, receiver), num_bytes=size)))
            receiver.num_inputs += 1
            if traffic.has_gradient:
                size = -(-traffic.backward_bytes * share // whole)
                receiver.backward_to.append((sender, size, _route(problem, (receiver, sender), num_bytes=size)))
                sender.num_gradients += 1
    for group in lanes:
        _connect_parts(plan, group, costs=costs)
    return [lane for group in lanes for lane in group]


def _stage_lanes(plan: Plan, number: int, *, costs: CostModel) -> list[StageReplica]:
    """One lane per replica; with split placement one per device that works for the stage, its owner first."""
    stage = plan.stages[number]
    if not stage.is_split:
        seats = [(group, costs.stage_cost(stage, replica), "FIWB") for replica, group in enumerate(stage.replicas)]
    else:
        seats = [((part.device,), costs.part_cost(stage, part), part.kinds) for part in costs.parts(stage)]
    return [_new_lane((number, replica), seat) for replica, seat in enumerate(seats)]


def _connect_split(
    plan: Plan, ends: tuple[list[StageReplica], list[StageReplica]], *, traffic: StageTraffic, costs: CostModel
) -> None:
    """Activations go between owners, gradients between the lanes that run I for the same samples."""
    problem = costs.problem
    stages = [plan.stages[lanes[0].stage] for lanes in ends]
    makers, takers = (lanes[: len(stage.replicas)] for lanes, stage in zip(ends, stages, strict=True))
    for i, j, share, whole in overlaps(len(makers), len(takers)):
        sender, receiver = makers[i], takers[j]
        size = -(-traffic.forward_bytes * share // whole)
        sender.forward_to.append((receiver, size, _route(problem, (sender, receiver), num_bytes=size)))
        receiver.num_inputs += 1
    for taker in input_grad_ranges(stages[0]) if traffic.has_gradient else ():
        for maker in input_grad_ranges(stages[1]):
            if both := common(taker, maker):
                sender, receiver = ends[1][maker.number], ends[0][taker.number]
                size = part_of(both, traffic.backward_bytes)
                sender.backward_to.append((receiver, size, _route(problem, (sender, receiver), num_bytes=size)))
                receiver.num_gradients += 1


def _connect_parts(plan: Plan, lanes: list[StageReplica], *, costs: CostModel) -> None:
    """With split placement: the stash goes from the owner to every other I, the weight stash from every I to W."""
    stage = plan.stages[lanes[0].stage]
    if not stage.is_split:
        return
    parts, whole = costs.parts(stage), costs.stage_cost(stage, 0)
    owner, weight = lanes[0], next((lane for lane in lanes if "W" in lane.kinds), None)
    for part, lane in zip(parts, lanes, strict=True):
        if part.share and lane is not owner:
            size = part_of(part.share, whole.stash_bytes)
            owner.forward_to.append((lane, size, _route(costs.problem, (owner, lane), num_bytes=size)))
            lane.num_gradients += 1  # the weights, which arrive once for all microbatches
        if part.share and weight is not None and lane is not weight:
            size = part_of(part.share, whole.weight_stash_bytes)
            lane.backward_to.append((weight, size, _route(costs.problem, (lane, weight), num_bytes=size)))
    if weight is not None:
        weight.num_input_grads = sum(part.share > 0 for part in parts)


def _make_single_parcels(
    problem: Problem, plan: Plan, *, costs: CostModel, lanes: list[StageReplica]
) -> tuple[list[_Parcel], dict[int, _Parcel]]:
    """What travels once per iteration with split placement: the weights, and per stage the finished gradient."""
    weights, finished = [], {}
    for number, stage in enumerate(plan.stages):
        if not stage.is_split:
            continue
        owner, *others = (lane for lane in lanes if lane.stage == number)
        for lane in others:
            if "I" in lane.kinds:
                size = costs.parameter_bytes(stage)
                route = _route(problem, (owner, lane), num_bytes=size)
                weights.append(_Parcel(owner, lane, BEFORE_FIRST, "forward", size, route))
            if "W" in lane.kinds:
                size = costs.gradient_bytes(stage)
                route = _route(problem, (lane, owner), num_bytes=size)
                finished[number] = _Parcel(lane, owner, problem.num_microbatches, "backward", size, route)
    return weights, finished


def _new_lane(where: tuple[int, int], seat: tuple[DeviceGroup, StageCost, str]) -> StageReplica:
    return StageReplica(
        stage=where[0],
        replica=where[1],
        group=seat[0],
        cost=seat[1],
        kinds=seat[2],
        forward_to=[],
        backward_to=[],
    )


def _route(problem: Problem, ends: tuple[StageReplica, StageReplica], *, num_bytes: int) -> Route | None:
    """Transfers go between the first devices of the groups; inside one device nothing moves."""
    a, b = ends[0].group[0], ends[1].group[0]
    return None if a == b else problem.cluster.route(a, b, num_bytes=num_bytes)
