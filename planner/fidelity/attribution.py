"""Why an iteration took another time than predicted: the plan replayed with measured quantities, kind by kind.

docs/reference/comparison.md defines every part. The parts add up exactly, because each is the difference of two
replays, the first replay is the prediction and the last one is what was measured.
"""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from planner.actions import KIND_NAMES, Action, Kind
from planner.fidelity.executed_run import ExecutedIteration, ExecutedRow
from planner.layout.costs import CostModel
from planner.layout.stage_replicas import lay_out
from planner.plan import Plan
from planner.problem import Problem
from planner.simulation.timeline import MemoryPoint, TimedAction, TimedTransfer, Timeline
from solver_models.simulation.in_order import OrderedSteps, play_in_order

_KINDS = "FBIW"

PARTS = ("compute", "transfer", "synchronisation", "optimizer", "launch overhead", "waiting")
"""In the order in which measured quantities take the place of predicted ones."""

CAUSES = {
    "compute": "card", "transfer": "messages", "synchronisation": "messages", "optimizer": "card",
    "launch overhead": "host", "waiting": "messages",
}  # fmt: skip
"""Whose each part is: what computes (a card, or the cores of a host without one), the host that asks, or messages."""


class TransferPart(NamedTuple):
    """All transfers of one size and way: between two stages on two devices."""

    sender: str
    receiver: str
    from_stage: int
    to_stage: int
    num_bytes: int


class _Input(NamedTuple):
    """What an action waits for from another device."""

    producer: tuple[str, int]
    """Device and place in its order."""
    channel: TransferPart


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantities:
    """Everything that times a replay; dictionaries by (device, place in its order), or by device."""

    duration_ns: Mapping[tuple[str, int], int]
    """Of every action."""
    overhead_ns: Mapping[tuple[str, int], int]
    """From when the device is free until the process asks for the action's inputs."""
    lag_ns: Mapping[tuple[str, int], tuple[int, ...]]
    """Per input from elsewhere: from the end of the action that made it until it is there."""
    delay_ns: Mapping[tuple[str, int], int]
    """From when both are through until the action starts."""
    launch_ns: Mapping[tuple[str, int], int]
    """What the model adds to every action beyond its layers; a run has it in `overhead_ns` and in its durations."""
    tail_ns: Mapping[str, int]
    """From the last action of the device, and of the replicas of its stages, until its gradients are put together."""
    optimizer_ns: Mapping[str, int]
    """From there to the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """One iteration against its prediction."""

    predicted_ns: int
    """Makespan of the plan as played."""
    measured_ns: int
    """Duration of the iteration."""
    parts: tuple[tuple[str, int], ...]
    """Name and nanoseconds of every part; they add up to measured - predicted."""
    kinds: tuple[tuple[str, int], ...]
    """The compute part by kind of action; adds up to it."""

    @property
    def causes(self) -> dict[str, int]:
        """Host, card and messages, each with the nanoseconds of its parts; they add up to measured - predicted."""
        found = dict.fromkeys(("host", "card", "messages"), 0)
        for name, part in self.parts:
            found[CAUSES[name]] += part
        return found


class Comparison:
    """A plan, its prediction, and its run."""

    def __init__(
        self, problem: Problem, plan: Plan, *, timeline: Timeline, iterations: Sequence[ExecutedIteration]
    ) -> None:
        """`iterations`: those to learn typical transfers from, the warm-up left out.

        Raises ValueError for plans that the executor does not run, and for groups of devices.
        """
        problem.require_alike("a comparison")
        if any(stage.is_split for stage in plan.stages):
            raise ValueError("stages with split placement are not executed; compare another plan")
        for number, stage in enumerate(plan.stages):
            if (width := max(len(group) for group in stage.groups)) > 1:
                raise ValueError(
                    f"stage {number} is on groups of {width} devices, whose waiting within actions is not separated "
                    "from their work yet; compare a plan with max_width = 1, or see the run's timeline.json"
                )
        self.problem, self.plan, self.timeline, self.iterations = problem, plan, timeline, tuple(iterations)
        self.device_orders = {
            device: tuple(device_order) for device, device_order in plan.schedule.items() if device_order
        }
        self.inputs = self._find_inputs()
        self.order = self._find_order()
        self.lags = self._typical_lags()

    def _find_inputs(self) -> dict[tuple[str, int], tuple[_Input, ...]]:
        place = {
            (device, *action[1:], action.kind == "F"): (device, number)
            for device, device_order in self.device_orders.items()
            for number, action in enumerate(device_order)
            if action.kind != "W"
        }
        found: dict[tuple[str, int], list[_Input]] = defaultdict(list)
        laid_out = lay_out(self.plan, costs=CostModel(self.problem))
        for sent in laid_out.by_sender:
            (sender, from_stage), (receiver, to_stage) = (
                (replica.group[0], replica.stage)
                for replica in (laid_out.replicas[sent.sender], laid_out.replicas[sent.receiver])
            )
            channel = TransferPart(sender, receiver, from_stage, to_stage, sent.num_bytes)
            for microbatch in range(self.problem.num_microbatches) if sender != receiver else ():
                key = place[receiver, to_stage, microbatch, not sent.is_backward]
                found[key].append(_Input(place[sender, from_stage, microbatch, not sent.is_backward], channel))
        return {key: tuple(inputs) for key, inputs in found.items()}

    def _find_order(self) -> list[tuple[str, int]]:
        """All actions, each after those that it waits for."""
        order: list[tuple[str, int]] = []
        reached = dict.fromkeys(self.device_orders, 0)
        is_moving = True
        while is_moving:
            is_moving = False
            for device, device_order in self.device_orders.items():
                while reached[device] < len(device_order) and all(
                    reached[source.producer[0]] > source.producer[1]
                    for source in self.inputs.get((device, reached[device]), ())
                ):
                    order.append((device, reached[device]))
                    reached[device] += 1
                    is_moving = True
        return order

    def _typical_lags(self) -> dict[TransferPart, int]:
        """Median over the actions that waited for their input; ways without any are left out."""
        return {
            channel: round(statistics.median(samples)) for channel, samples in self.lag_samples().items() if samples
        }

    def lag_samples(self) -> dict[TransferPart, list[int]]:
        """Times from the end of an action to the start of one that waited for most of that time."""
        samples: dict[TransferPart, list[int]] = {
            source.channel: [] for inputs in self.inputs.values() for source in inputs
        }
        for iteration in self.iterations:
            for (device, place), inputs in self.inputs.items():
                row = iteration.rows[device]
                ends = [iteration.rows[d].actions[p].end_ns for d, p in (source.producer for source in inputs)]
                last = max(range(len(inputs)), key=lambda number: ends[number])
                start, asked = row.actions[place].start_ns, row.taken_up_ns[place]
                if start - asked >= asked - ends[last]:
                    samples[inputs[last].channel].append(start - ends[last])
        return samples

    def replay(self, quantities: Quantities) -> int:
        """When the iteration ends with these quantities."""
        rows, number = list[tuple[int, ...]](), dict[tuple[str, int], int]()
        devices = {device: index for index, device in enumerate(self.device_orders)}
        for key in self.order:
            gap, time = quantities.overhead_ns[key], quantities.delay_ns[key] + quantities.launch_ns[key]
            lags = zip(self.inputs.get(key, ()), quantities.lag_ns.get(key, ()), strict=True)
            *others, (producer, lag) = [(-1, 0), *((number[source.producer], lag) for source, lag in lags)]
            for other in others:
                rows.append((devices[key[0]], *other, gap, 0))
                gap = 0
            number[key] = len(rows)
            rows.append((devices[key[0]], producer, lag, gap, time + quantities.duration_ns[key]))
        *steps, ticks = zip(*rows, strict=True)
        ends = play_in_order(OrderedSteps(*steps), ticks)
        end = {key: ends[place] for key, place in number.items()}
        closed = self._closing(
            {device: end[device, len(device_order) - 1] for device, device_order in self.device_orders.items()}
        )
        return max(closed[d] + quantities.tail_ns[d] + quantities.optimizer_ns[d] for d in self.device_orders)

    def _closing(self, last: Mapping[str, int]) -> dict[str, int]:
        """Per device the last action of its own and of the replicas of its stages."""
        groups = [{group[0] for group in stage.replicas} for stage in self.plan.stages]
        return {d: max(last[other] for group in groups if d in group for other in group) for d in self.device_orders}

    def predicted(self) -> Quantities:
        """Those of the plan as played: replayed, they give its makespan."""
        arrival = {(t.receiver, t.to_stage, t.microbatch, t.sender, t.from_stage): t for t in self.timeline.transfers}
        actions = {(d, n): timed for d in self.device_orders for n, timed in enumerate(self.timeline.actions[d])}
        lags: dict[tuple[str, int], tuple[int, ...]] = {}
        delays: dict[tuple[str, int], int] = {}
        for key, timed in actions.items():
            inputs = self.inputs.get(key, ())
            ends = []
            for source in inputs:
                channel = source.channel
                sent = arrival[
                    channel.receiver, channel.to_stage, timed.action.microbatch, channel.sender, channel.from_stage
                ]
                ends.append(sent.end_ns)
            lags[key] = tuple(e - actions[s.producer].end_ns for e, s in zip(ends, inputs, strict=True))
            free = actions[key[0], key[1] - 1].end_ns if key[1] else 0
            delays[key] = timed.start_ns - max([free, *ends])
        closed = self._closing({device: self.timeline.actions[device][-1].end_ns for device in self.device_orders})
        done = {
            device: max(
                [closed[device]]
                + [
                    sync.end_ns
                    for sync in self.timeline.synchronisations
                    if (device,) in self.plan.stages[sync.stage].replicas
                ]
            )
            for device in self.device_orders
        }
        closing_ns = CostModel(self.problem).optimizer_ns(self.plan.stages)
        lost_ns = self.timeline.makespan_ns - max(done.values()) - closing_ns
        launches = {key: self._launch_ns(key[0], timed.action.kind) for key, timed in actions.items()}
        return Quantities(
            duration_ns={key: _length(timed) - launches[key] for key, timed in actions.items()},
            overhead_ns=dict.fromkeys(actions, 0),
            lag_ns=lags,
            delay_ns=delays,
            launch_ns=launches,
            tail_ns={device: done[device] - closed[device] + lost_ns for device in self.device_orders},
            optimizer_ns=dict.fromkeys(self.device_orders, closing_ns),
        )

    def _launch_ns(self, device: str, kind: Kind) -> int:
        has_stages = len(self.plan.stages) > 1
        return self.problem.profile.overhead_ns(self.problem.cluster.by_name[device].type, kind, has_stages=has_stages)

    def measured(self, iteration: ExecutedIteration) -> Quantities:
        """Those of a run: replayed, they give its duration."""
        predicted = self.predicted()
        lags, overheads, delays = {}, {}, {}
        rows = iteration.rows
        for key in self.order:
            row, place = rows[key[0]], key[1]
            inputs = self.inputs.get(key, ())
            usual = zip(inputs, predicted.lag_ns[key], strict=True)
            lags[key] = tuple(self.lags.get(source.channel, planned) for source, planned in usual)
            ends = [rows[s.producer[0]].actions[s.producer[1]].end_ns for s in inputs]
            there = max((end + lag for end, lag in zip(ends, lags[key], strict=True)), default=0)
            overheads[key] = _overhead(row, place, there=there)
            free = row.actions[place - 1].end_ns if place else 0
            start = max(free + overheads[key], there) if inputs else free + overheads[key]
            delays[key] = row.actions[place].start_ns - start
        closed = self._closing({device: row.actions[-1].end_ns for device, row in rows.items()})
        return Quantities(
            duration_ns={key: _length(rows[key[0]].actions[key[1]]) for key in self.order},
            overhead_ns=overheads,
            lag_ns=lags,
            delay_ns=delays,
            launch_ns=dict.fromkeys(self.order, 0),
            tail_ns={device: row.reduced_ns - closed[device] for device, row in rows.items()},
            optimizer_ns={device: row.end_ns - row.reduced_ns for device, row in rows.items()},
        )

    def attribute(self, iteration: ExecutedIteration) -> Attribution:
        """Let measured quantities take the place of predicted ones, kind by kind, and note what each does."""
        now, measured = self.predicted(), self.measured(iteration)
        steps = [self.replay(now)]
        for kind in _KINDS:
            chosen = {key for key in self.order if self.device_orders[key[0]][key[1]].kind == kind}
            durations = {key: (measured if key in chosen else now).duration_ns[key] for key in self.order}
            now = replace(now, duration_ns=durations)
            steps.append(self.replay(now))
        kinds = tuple((KIND_NAMES[kind], steps[n + 1] - steps[n]) for n, kind in enumerate(_KINDS))
        parts = [("compute", steps[-1] - steps[0])]
        for name, fields in zip(PARTS[1:], _SWAPS, strict=True):
            now = replace(now, **{field: getattr(measured, field) for field in fields})
            steps.append(self.replay(now))
            parts.append((name, steps[-1] - steps[-2]))
        return Attribution(predicted_ns=steps[0], measured_ns=steps[-1], parts=tuple(parts), kinds=kinds)

    def measured_timeline(self, iteration: ExecutedIteration) -> Timeline:
        """The run as a timeline, to be drawn like any other: memory as planned, transfers of their typical length."""
        rows = iteration.rows
        actions = {device: rows[device].actions for device in self.timeline.actions if device in rows}
        work = sum(_length(timed) for device_order in actions.values() for timed in device_order)
        return Timeline(
            actions=actions,
            transfers=self._drawn_transfers(iteration),
            synchronisations=(),
            makespan_ns=iteration.duration_ns,
            span_ns=max(device_order[-1].end_ns - device_order[0].start_ns for device_order in actions.values()),
            bubble=1 - work / (len(actions) * iteration.duration_ns),
            memory={
                device: _moved(self.timeline.memory[device], device_order) for device, device_order in actions.items()
            },
            peak_bytes=self.timeline.peak_bytes,
        )

    def _drawn_transfers(self, iteration: ExecutedIteration) -> tuple[TimedTransfer, ...]:
        """Each from the end of the action that made it, until it is used at the latest."""
        drawn = []
        found = {(device, timed.action): timed for device, row in iteration.rows.items() for timed in row.actions}
        for planned in self.timeline.transfers:
            channel = TransferPart(
                planned.sender, planned.receiver, planned.from_stage, planned.to_stage, planned.num_bytes
            )
            kinds: tuple[Kind, ...] = ("F",) if planned.direction == "forward" else ("I", "B")
            begin = _either(
                found, channel.sender, stage=channel.from_stage, kinds=kinds, microbatch=planned.microbatch
            ).end_ns
            use = _either(
                found, channel.receiver, stage=channel.to_stage, kinds=kinds, microbatch=planned.microbatch
            ).start_ns
            lag = self.lags.get(channel, planned.end_ns - planned.ready_ns)
            end = max(begin, min(use, begin + lag))
            drawn.append(planned._replace(ready_ns=begin, start_ns=begin, end_ns=end))
        return tuple(sorted(drawn, key=lambda transfer: transfer.ready_ns))


_SWAPS = (("lag_ns",), ("tail_ns",), ("optimizer_ns",), ("overhead_ns", "launch_ns"), ("delay_ns",))
"""Fields of `Quantities` that the parts after compute swap in."""


def _overhead(row: ExecutedRow, place: int, *, there: int) -> int:
    """All the time since the device was free, unless the process asked and had to wait; then only until it asked."""
    free = row.actions[place - 1].end_ns if place else 0
    asked = row.taken_up_ns[place]
    return max(0, asked - free) if there > asked else row.actions[place].start_ns - free


def _length(timed: TimedAction) -> int:
    return timed.end_ns - timed.start_ns


def _either(
    found: Mapping[tuple[str, Action], TimedAction],
    device: str,
    *,
    stage: int,
    kinds: tuple[Kind, ...],
    microbatch: int,
) -> TimedAction:
    """The action on `device` of whichever kind the plan has there."""
    keys = ((device, Action(kind, stage, microbatch)) for kind in kinds)
    return next(found[key] for key in keys if key in found)


def _moved(points: Sequence[MemoryPoint], device_order: Sequence[TimedAction]) -> tuple[MemoryPoint, ...]:
    """The planned steps of memory at the measured times; they depend on the order alone."""
    if len(points) != 1 + 2 * len(device_order):
        return ()
    times = [0, *(time for timed in device_order for time in timed[1:])]
    return tuple(MemoryPoint(time, point.num_bytes) for time, point in zip(times, points, strict=True))
