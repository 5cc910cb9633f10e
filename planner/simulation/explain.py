"""Says where the time of a played plan goes: all of every device's, and the chain of events that sets the end.

A device's makespan is cut into work and idle time, and the idle time by what the device waited for (`DeviceTime`).
Idle time between two actions is cut by these rules, each taking from what the ones before it left:

1. *transfers*: without overlap, the device itself was sending or receiving; or the stage's weights were gathered.
2. *memory* and *order*: a later action of the device's own order was ready and would have ended in the idle time:
   running it there would have delayed nothing. If its bytes would have broken the memory limit between there and its
   own place, its duration is a memory stall; otherwise the plan's order left it for later. Of every kind and stage the
   next actions of the device order are tried, and each fills idle time once.
3. *transfers* and *links*: the last input that the next action needs was on its way, or waited for a busy link.
4. *others*: the work that this input comes from had not ended yet (or a device of the same group was busy).
"""

from collections import Counter, deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate, takewhile
from typing import NamedTuple

from planner.actions import Action, Kind
from planner.layout.costs import CostModel, StageCost
from planner.layout.gathers import TimedGather
from planner.layout.offload import TimedOffload, moved_bytes
from planner.layout.split_placement import BEFORE_FIRST
from planner.layout.stage_replicas import lay_out, memory_steps
from planner.plan import DeviceGroup, Plan
from planner.problem import Problem
from planner.simulation.offloads import journeys
from planner.simulation.simulate import TimedAction, TimedTransfer, Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTime:
    """The makespan of one device, cut by what it did or waited for; the parts add up to the makespan exactly."""

    device: str
    forward_ns: int
    """F."""
    input_grad_ns: int
    """I."""
    weight_grad_ns: int
    """W."""
    backward_ns: int
    """B."""
    fill_ns: int
    """Before its first action."""
    others_ns: int
    """Between actions: the other devices had not done what the next action needs."""
    transfer_ns: int
    """Between actions: an input was on its way, or weights (without overlap: or the device itself sent or received)."""
    link_ns: int
    """Between actions: an input waited for a link that was busy with other transfers."""
    memory_ns: int
    """Between actions: a later action would have fitted into the time but not into the memory."""
    order_ns: int
    """Between actions: a later action would have fitted into time and memory; the plan's order has it later."""
    synchronisation_ns: int
    """After its last action: a stage it holds synchronised its gradients; and what reductions beside actions cost."""
    drain_ns: int
    """After its last action, the rest until the last device has ended."""
    optimizer_ns: int
    """The optimizer step; where replicas shard, until the weights are gathered."""

    @property
    def work_ns(self) -> int:
        """Time in which the device ran actions."""
        return self.forward_ns + self.input_grad_ns + self.weight_grad_ns + self.backward_ns

    @property
    def total_ns(self) -> int:
        """The sum of all parts: the makespan."""
        return sum(getattr(self, field.name) for field in fields(self) if field.name != "device")


class _PathStep(NamedTuple):
    """One link of the critical chain, from `start_ns` to `end_ns`."""

    kind: str
    """`F`, `I`, `W`, `B`, `transfer`, `link` (waiting for a busy one), `gather`, `synchronisation`, `optimizer` or
    `wait`."""
    stage: int | None
    """The stage that works, sends or synchronises; None where there is none."""
    start_ns: int
    end_ns: int
    place: str = ""
    """The device that works, or `sender → receiver`; empty for the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Binding:
    """A resource that holds the plan back."""

    kind: str
    """`device` or `link`: on the critical chain; `memory`: no further microbatch fits."""
    subject: str
    """Which device, or `sender → receiver`."""
    nanoseconds: int
    """On the critical chain (waiting for the link included); for memory: idle because a later action did not fit."""
    headroom_bytes: int | None = None
    """For memory: what is left at the peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Where the time of a plan goes."""

    makespan_ns: int
    """End of the iteration."""
    devices: tuple[DeviceTime, ...]
    """In the plan's order."""
    path: tuple[_PathStep, ...]
    """One chain of events, each starting when the one before it ended, from 0 to the makespan."""
    binds: tuple[_Binding, ...]
    """What holds the plan back: resources on the critical chain, longest first, then devices whose memory is full."""

    def path_shares(self) -> dict[tuple[str, int | None], int]:
        """Nanoseconds of the critical chain per kind and stage (transfers and links not by stage), longest first."""
        shares: dict[tuple[str, int | None], int] = {}
        for step in self.path:
            key = step.kind, None if step.kind in {"transfer", "link"} else step.stage
            shares[key] = shares.get(key, 0) + step.end_ns - step.start_ns
        return dict(sorted(shares.items(), key=lambda item: -item[1]))


def explain(problem: Problem, plan: Plan, *, timeline: Timeline) -> Explanation:
    """Where the time of `plan` goes; `timeline` is the plan played on `problem`.

    Raises ValueError where the question lists microbatches, whose costs differ.
    """
    problem.require_alike("an explanation")
    replayed = _PlayedPlan(problem, plan, timeline=timeline)
    devices = tuple(_device_time(replayed, device) for device in timeline.actions)
    path = tuple(_critical_path(replayed))[::-1]
    return Explanation(
        makespan_ns=timeline.makespan_ns,
        devices=devices,
        path=path,
        binds=(*_bound_by_time(path), *_bound_by_memory(replayed, devices)),
    )


def _bound_by_time(path: Sequence[_PathStep]) -> list[_Binding]:
    """Devices and links on the critical chain, longest first."""
    found: Counter[tuple[str, str]] = Counter()
    for step in path:
        if step.place:
            kind = "link" if step.kind in {"transfer", "link"} else "device"
            found[kind, step.place] += step.end_ns - step.start_ns
    return [_Binding(kind=kind, subject=place, nanoseconds=each) for (kind, place), each in found.most_common() if each]


def _bound_by_memory(replayed: "_PlayedPlan", devices: Sequence[DeviceTime]) -> Iterator[_Binding]:
    """Devices on which the smallest stash of theirs no longer fits beside the peak, or which waited for memory."""
    for row in devices:
        headroom = replayed.problem.cluster.by_name[row.device].usable_bytes - replayed.timeline.peak_bytes[row.device]
        stashes = [
            replica.cost.held_bytes for (device, _), replica in replayed.replica_of.items() if device == row.device
        ]
        if row.memory_ns or headroom < min(stashes, default=0):
            yield _Binding(kind="memory", subject=row.device, nanoseconds=row.memory_ns, headroom_bytes=headroom)


class _PlayedPlan:
    """A played plan with the indices that the questions below need."""

    def __init__(self, problem: Problem, plan: Plan, *, timeline: Timeline) -> None:
        self.problem, self.plan, self.timeline = problem, plan, timeline
        self.laid_out = lay_out(plan, costs=CostModel(problem))
        self.replica_of = self.laid_out.by_place
        stage_ends = [self.stage_end_ns(number) for number in range(len(plan.stages))]
        self.lost_ns = self.laid_out.lost_ns(stage_ends)
        self.work_end_ns = timeline.makespan_ns - self.laid_out.tail_ns - self.lost_ns
        self.kept = [stage.kept_of(problem.num_microbatches) for stage in plan.stages]
        self.times = {d: {timed.action: timed for timed in order} for d, order in timeline.actions.items()}
        self.position = {d: {t.action: i for i, t in enumerate(order)} for d, order in timeline.actions.items()}
        self.last_input: dict[tuple[str, Action], TimedTransfer] = {}
        for transfer in timeline.transfers:
            for action in self._consumers(transfer):
                known = self.last_input.get((transfer.receiver, action))
                if known is None or transfer.end_ns > known.end_ns:
                    self.last_input[transfer.receiver, action] = transfer
        self.gathers: dict[int, list[TimedGather]] = {}
        """By stage, in order."""
        for gather in sorted(timeline.gathers, key=lambda each: each.position):
            self.gathers.setdefault(gather.stage, []).append(gather)
        self.stashes = {(each.device, each.end_ns): each for each in timeline.offloads if each.start_ns < each.end_ns}
        """Those that travel, by device and end."""
        travelling = journeys(plan, self.laid_out.replicas, cluster=problem.cluster)
        self.moved = moved_bytes(travelling, lengths={device: len(order) for device, order in plan.schedule.items()})
        self.local_inputs = self._local_inputs()
        self.own_transfers = self._own_transfers()

    def _own_transfers(self) -> dict[str, list[TimedTransfer]]:
        """Per device, the transfers that keep it from computing, in order: none if they overlap."""
        found: dict[str, list[TimedTransfer]] = {device: [] for device in self.timeline.actions}
        if not self.problem.cluster.overlap:
            for sent in sorted(self.timeline.transfers, key=lambda sent: sent.start_ns):
                found[sent.sender].append(sent)
                found[sent.receiver].append(sent)
        return found

    def _local_inputs(self) -> dict[tuple[str, int, bool], list[int]]:
        """Stages whose outputs reach (device, stage, is gradient) without a transfer."""
        found: dict[tuple[str, int, bool], list[int]] = {}
        for sent in self.laid_out.working_transfers:
            if sent.route is None:
                receiver = self.laid_out.replicas[sent.receiver]
                at = receiver.group[0], receiver.stage, sent.is_backward
                found.setdefault(at, []).append(self.laid_out.replicas[sent.sender].stage)
        return found

    def _consumers(self, transfer: TimedTransfer) -> tuple[Action, ...]:
        """The actions that wait for a transfer (of I and B only one exists)."""
        stage, microbatch = transfer.to_stage, transfer.microbatch
        if transfer.from_stage == stage and microbatch == BEFORE_FIRST:
            return tuple(Action("I", stage, each) for each in range(self.problem.num_microbatches))
        if transfer.from_stage == stage:
            return (Action("I" if transfer.direction == "forward" else "W", stage, microbatch),)
        if transfer.direction == "forward":
            return (Action("F", stage, microbatch),)
        return Action("I", stage, microbatch), Action("B", stage, microbatch)

    def group(self, device: str, stage: int) -> DeviceGroup:
        """The devices that run the stage's actions together with `device`."""
        return self.replica_of[device, stage].group

    def cost(self, device: str, action: Action) -> StageCost:
        """What the stage of an action costs on the device, for its microbatch."""
        return self.replica_of[device, action.stage].cost_of(keeps=action.microbatch in self.kept[action.stage])

    def end_of(self, device: str, action: Action, *, kinds: tuple[Kind, ...]) -> int:
        """When the action of one of `kinds` on the same stage and microbatch ended on the device; 0 if elsewhere."""
        times = self.times[device]
        ends = (times[found].end_ns for kind in kinds if (found := action._replace(kind=kind)) in times)
        return next(ends, 0)

    def ready_ns(self, device: str, action: Action) -> int:
        if action.kind == "W":
            last = self.last_input.get((device, action))
            return max(self.end_of(device, action, kinds=("I", "B")), last.end_ns if last else 0)
        is_gradient = action.kind != "F"
        head = self.group(device, action.stage)[0]
        ends = [self.end_of(device, action, kinds=("F",))] if is_gradient else [0]
        if (head, action) in self.last_input:
            ends.append(self.last_input[head, action].end_ns)
        kinds: tuple[Kind, ...] = ("I", "B") if is_gradient else ("F",)
        for stage in self.local_inputs.get((head, action.stage, is_gradient), ()):
            ends.append(self.end_of(head, action._replace(stage=stage), kinds=kinds))
        return max(ends)

    def stage_end_ns(self, stage: int) -> int:
        """When the last action of the stage ended."""
        devices = (device for device, number in self.replica_of if number == stage)
        return max(timed.end_ns for d in devices for timed in self.timeline.actions[d] if timed.action.stage == stage)

    def last_action(self, end_ns: int, stage: int | None) -> tuple[str, TimedAction] | None:
        """An action (of `stage`, if given) that ended at `end_ns`."""
        found = (
            (device, timed)
            for device, order in self.timeline.actions.items()
            for timed in reversed(order)
            if timed.end_ns == end_ns and stage in (None, timed.action.stage)
        )
        return next(found, None)

    def last_gradient(self) -> TimedTransfer | None:
        """With split placement: the finished gradient whose arrival ended the work, if one did."""
        total = self.problem.num_microbatches
        found = (sent for sent in self.timeline.transfers if sent.microbatch == total)
        return next((sent for sent in found if sent.end_ns == self.work_end_ns), None)

    def previous_on_device(self, device: str, timed: TimedAction) -> tuple[str, TimedAction] | None:
        """The action before `timed` on a device of its group, if it ended just then."""
        for name in self.group(device, timed.action.stage):
            position = self.position[name][timed.action]
            if position and self.timeline.actions[name][position - 1].end_ns == timed.start_ns:
                return name, self.timeline.actions[name][position - 1]
        return None

    def stash_for(self, device: str, timed: TimedAction) -> TimedOffload | None:
        """The stash whose way out, or back, ended when `timed` could start."""
        own = (self.stashes.get((name, timed.start_ns)) for name in self.group(device, timed.action.stage))
        return next(filter(None, own), None)

    def gather_for(self, stage: int, position: int) -> TimedGather | None:
        """The gathering that the action at a place in its device's order waits for; None if its weights are whole."""
        own = self.gathers.get(stage, ())
        return next((each for each in reversed(own) if each.position <= position), None)

    def before_gather(self, gather: TimedGather) -> TimedGather | tuple[str, TimedAction] | None:
        """What ended when it began: a gathering of the same devices, or the action before it on one of them."""
        rank = next(each for each in self.laid_out.ranks if gather.stage in each.stages)
        earlier = (each for stage in rank.stages for each in self.gathers.get(stage, ()))
        if found := next((each for each in earlier if each.start_ns < each.end_ns == gather.start_ns), None):
            return found
        rows = [(device, self.timeline.actions[device][gather.position - 1]) for device in rank.devices]
        return next((each for each in rows if gather.position and each[1].end_ns == gather.start_ns), None)

    def cause(self, device: str, timed: TimedAction) -> TimedTransfer | None:
        """The transfer whose end let `timed` start."""
        group = self.group(device, timed.action.stage)
        last = self.last_input.get((group[0], timed.action))
        if last is not None and last.end_ns == timed.start_ns:
            return last
        own = (sent for name in group for sent in self.own_transfers[name])
        return next((t for t in own if t.start_ns < t.end_ns == timed.start_ns), None)

    def producer(self, sent: TimedTransfer) -> tuple[str, TimedAction] | None:
        """The action whose result a transfer carried; None for weights."""
        if sent.microbatch == BEFORE_FIRST:
            return None
        if sent.microbatch == self.problem.num_microbatches:
            return self.last_action(sent.ready_ns, sent.from_stage)
        times = self.times[sent.sender]
        kinds: tuple[Kind, ...] = ("F",) if sent.direction == "forward" else ("I", "B")
        actions = (Action(kind, sent.from_stage, sent.microbatch) for kind in kinds)
        return sent.sender, next(times[action] for action in actions if action in times)


class _Idle:
    """A stretch of idle time that is given away piece by piece."""

    def __init__(self, start_ns: int, end_ns: int) -> None:
        self.free = [(start_ns, end_ns)] if start_ns < end_ns else []

    @property
    def rest_ns(self) -> int:
        """What has not been given away yet."""
        return sum(end - start for start, end in self.free)

    def take(self, start_ns: int, end_ns: int) -> int:
        """Give away whatever is left between the two times; the answer is how much that was."""
        before = self.rest_ns
        pieces = []
        for start, end in self.free:
            pieces += [(start, min(end, start_ns)), (max(start, end_ns), end)]
        self.free = [(start, end) for start, end in pieces if start < end]
        return before - self.rest_ns

    def fit(self, ready_ns: int, duration_ns: int) -> int | None:
        """The earliest time from `ready_ns` on at which `duration_ns` fit in one piece, or None."""
        starts = (max(start, ready_ns) for start, end in self.free if max(start, ready_ns) + duration_ns <= end)
        return next(starts, None)


def _device_time(replayed: _PlayedPlan, device: str) -> DeviceTime:
    order = replayed.timeline.actions[device]
    parts = dict.fromkeys((field.name for field in fields(DeviceTime) if field.name != "device"), 0)
    names = {"F": "forward_ns", "I": "input_grad_ns", "W": "weight_grad_ns", "B": "backward_ns"}
    for timed in order:
        parts[names[timed.action.kind]] += timed.end_ns - timed.start_ns
    tail = _Idle(order[-1].end_ns if order else 0, replayed.work_end_ns)
    held = {stage for (name, stage) in replayed.replica_of if name == device}
    parts["synchronisation_ns"] = sum(
        tail.take(sync.start_ns, sync.end_ns) for sync in replayed.timeline.synchronisations if sync.stage in held
    )
    parts["optimizer_ns"] = replayed.laid_out.steps_ns[device]
    parts["synchronisation_ns"] += replayed.lost_ns
    parts["drain_ns"] = tail.rest_ns + replayed.laid_out.tail_ns - replayed.laid_out.steps_ns[device]
    if order:
        parts["fill_ns"] = order[0].start_ns
        _Gaps(replayed, device, parts=parts).cut()
    return DeviceTime(device=device, **parts)


class _Gaps:
    """The idle times between the actions of one device; `cut` adds them to `parts` by the four rules."""

    def __init__(self, replayed: _PlayedPlan, device: str, *, parts: dict[str, int]) -> None:
        self.replayed, self.device, self.parts = replayed, device, parts
        self.order = replayed.timeline.actions[device]
        self.limit_bytes = replayed.problem.cluster.by_name[device].usable_bytes
        plain = (memory_steps(replayed.cost(device, t.action), t.action.kind) for t in self.order)
        moved = replayed.moved[device].tolist()
        self.steps = [(during + size, after + size) for (during, after), size in zip(plain, moved, strict=True)]
        self.held = list(accumulate((after for _, after in self.steps), initial=replayed.laid_out.static_bytes[device]))
        self.own = deque(replayed.own_transfers[device])
        self.moved: set[int] = set()
        self.later: dict[tuple[str, int], deque[int]] = {}
        for position, timed in enumerate(self.order):
            self.later.setdefault((timed.action.kind, timed.action.stage), deque()).append(position)

    def cut(self) -> None:
        """Walk through the order and cut the idle time before each action but the first."""
        for position in range(1, len(self.order)):
            idle = _Idle(self.order[position - 1].end_ns, self.order[position].start_ns)
            if idle.free:
                self.parts["transfer_ns"] += self._take_own_transfers(idle)
                if gather := self.replayed.gather_for(self.order[position].action.stage, position):
                    self.parts["transfer_ns"] += idle.take(gather.start_ns, gather.end_ns)
                for queue in self.later.values():
                    self._fill(idle, queue, position=position)
                self._wait(idle, self.order[position].action)

    def _take_own_transfers(self, idle: _Idle) -> int:
        """Rule 1; gaps come in order, so transfers that ended before this one are done with."""
        start_ns, end_ns = idle.free[0]
        while self.own and self.own[0].end_ns <= start_ns:
            self.own.popleft()
        sent_here = takewhile(lambda sent: sent.start_ns < end_ns, self.own)
        return sum(idle.take(sent.start_ns, sent.end_ns) for sent in sent_here)

    def _fill(self, idle: _Idle, queue: deque[int], *, position: int) -> None:
        """Rule 2 for the actions of one kind and stage, as many as fit."""
        while queue:
            if queue[0] > position:
                timed = self.order[queue[0]]
                duration = timed.end_ns - timed.start_ns
                start = idle.fit(self.replayed.ready_ns(self.device, timed.action), duration)
                if start is None or not duration:
                    return
                idle.take(start, start + duration)
                self.parts["order_ns" if self._move(queue[0], position) else "memory_ns"] += duration
            queue.popleft()

    def _move(self, later: int, position: int) -> bool:
        """Run the action at `later` just before `position`, if the memory allows; whether it does."""
        during, after = self.steps[later]
        levels = (self.held[k] + self.steps[k][0] for k in range(position, later) if k not in self.moved)
        fits = self.held[position] + during <= self.limit_bytes and all(x + after <= self.limit_bytes for x in levels)
        if fits:
            self.moved.add(later)
            for k in range(position, later + 1):
                self.held[k] += after
        return fits

    def _wait(self, idle: _Idle, action: Action) -> None:
        """Rules 3 and 4."""
        if idle.free and (stash := self.replayed.stashes.get((self.device, idle.free[-1][1]))):
            self.parts["transfer_ns"] += idle.take(stash.start_ns, stash.end_ns)
            self.parts["link_ns"] += idle.take(stash.ready_ns, stash.start_ns)
        last = self.replayed.last_input.get((self.replayed.group(self.device, action.stage)[0], action))
        if last is not None:
            self.parts["transfer_ns"] += idle.take(last.start_ns, last.end_ns)
            self.parts["link_ns"] += idle.take(last.ready_ns, last.start_ns)
        self.parts["others_ns"] += idle.rest_ns


def _critical_path(replayed: _PlayedPlan) -> Iterator[_PathStep]:
    """From the makespan back to 0, one step at a time."""
    step_ns = replayed.work_end_ns + replayed.lost_ns
    if step_ns < replayed.timeline.makespan_ns:
        yield _PathStep("optimizer", None, step_ns, replayed.timeline.makespan_ns)
    if replayed.lost_ns:
        yield _PathStep("synchronisation", None, replayed.work_end_ns, step_ns)
    sync = next((s for s in replayed.timeline.synchronisations if s.end_ns == replayed.work_end_ns), None)
    end_ns = replayed.work_end_ns
    if sync is not None:
        yield _PathStep("synchronisation", *sync)
        end_ns = replayed.stage_end_ns(sync.stage)
        if end_ns < sync.start_ns:
            yield _PathStep("link", sync.stage, end_ns, sync.start_ns)
    at = replayed.last_action(end_ns, None if sync is None else sync.stage)
    if at is None and (last := replayed.last_gradient()):
        yield from _transfer_steps(last)
        at = replayed.producer(last)
    while at is not None:
        device, timed = at
        yield _PathStep(timed.action.kind, timed.action.stage, timed.start_ns, timed.end_ns, place=device)
        at = replayed.previous_on_device(device, timed)
        if at is None and timed.start_ns > 0:
            gather = replayed.gather_for(timed.action.stage, replayed.position[device][timed.action])
            if gather is not None and gather.end_ns == timed.start_ns:
                at = yield from _gather_steps(replayed, gather)
                continue
            if (stash := replayed.stash_for(device, timed)) is not None:
                at = yield from _stash_steps(replayed, stash)
                continue
            cause = replayed.cause(device, timed)
            if cause is None:
                yield _PathStep("wait", timed.action.stage, 0, timed.start_ns)
                return
            yield from _transfer_steps(cause)
            at = replayed.producer(cause)


def _gather_steps(
    replayed: _PlayedPlan, gather: TimedGather
) -> Generator[_PathStep, None, tuple[str, TimedAction] | None]:
    """Gatherings one after the other; returns the action that was waited for before, if there was one."""
    before: TimedGather | tuple[str, TimedAction] | None = gather
    while isinstance(before, TimedGather):
        yield _PathStep("gather", before.stage, before.start_ns, before.end_ns)
        before = replayed.before_gather(before)
    return before


def _stash_steps(
    replayed: _PlayedPlan, stash: TimedOffload
) -> Generator[_PathStep, None, tuple[str, TimedAction] | None]:
    """Stashes of a device one after the other; returns the action that they waited for before."""
    before: TimedOffload | None = stash
    while before is not None:
        stash, ends = before, (f"{before.device}", "its host")
        place = " → ".join(ends[::-1] if stash.is_back else ends)
        yield _PathStep("transfer", stash.stage, stash.start_ns, stash.end_ns, place=place)
        if stash.ready_ns < stash.start_ns:
            yield _PathStep("link", stash.stage, stash.ready_ns, stash.start_ns, place=place)
        before = replayed.stashes.get((stash.device, stash.ready_ns))
    order = replayed.timeline.actions[stash.device]
    return next(((stash.device, each) for each in reversed(order) if each.end_ns == stash.ready_ns), None)


def _transfer_steps(sent: TimedTransfer) -> Iterator[_PathStep]:
    place = f"{sent.sender} → {sent.receiver}"
    yield _PathStep("transfer", sent.from_stage, sent.start_ns, sent.end_ns, place=place)
    if sent.ready_ns < sent.start_ns:
        yield _PathStep("link", sent.from_stage, sent.ready_ns, sent.start_ns, place=place)
