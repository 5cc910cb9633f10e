"""MODEL.md read a second time, naively: figures of a plan instant by instant, and the best plan among all there are.

Nothing here uses planner.costs, planner.simulate, planner.judge or solver_models; speed matters to `brute_force` only,
whose inner loop is in `exhaustive.py`.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations, pairwise, permutations, product
from math import ceil
from typing import NamedTuple

import numpy

from planner.actions import Action
from planner.plan import SHARDS, Plan, Shard, Stage
from planner.problem import Problem
from profiles.model_profile import Edge, Layer, WidthBytes
from tests.planner.exhaustive import explore

Seat = tuple[int, int]
"""Stage and replica."""


class RefusedError(Exception):
    """The plan breaks a rule, or cannot be played, or does not fit."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What a plan amounts to."""

    makespan_ns: int
    span_ns: int
    bubble: float
    peak_bytes: dict[str, int]


class Leg(NamedTuple):
    """What flows from one seat to another for every microbatch."""

    sender: Seat
    receiver: Seat
    is_backward: bool
    rank: int
    duration: int
    links: tuple[int, ...]
    is_local: bool


def evaluate(problem: Problem, plan: Plan) -> Figures:
    """The figures of a plan; raises RefusedError for one that is not valid."""
    check(problem, plan)
    reading = Reading(problem, plan.stages)
    peaks = {device: reading.peak(device, plan.schedule[device]) for device in plan.schedule}
    for device, peak in peaks.items():
        if peak > problem.cluster.by_name[device].usable_bytes:
            raise RefusedError(f"{device} holds {peak} bytes")
    return Game(problem, plan, reading).play(peaks)


def demand(condition: bool, what: str) -> None:
    """Raise RefusedError unless the condition holds."""
    if not condition:
        raise RefusedError(what)


def check(problem: Problem, plan: Plan) -> None:
    """Stages, groups and lists are what MODEL.md sections 1 to 3 ask for."""
    listed = [name for stage in plan.stages for name in stage.layers]
    demand(sorted(listed) == sorted(problem.profile.by_name), "every layer is in one stage")
    demand(all(stage.layers and stage.replicas and all(stage.replicas) for stage in plan.stages), "nothing is empty")
    place = {name: (number, i) for number, s in enumerate(plan.stages) for i, name in enumerate(s.layers)}
    demand(all(place[e.producer] < place[e.consumer] for e in problem.profile.edges), "edges point forward")
    demand(may_shard(problem, plan.stages), "sharding is allowed")
    devices = problem.cluster.by_name
    for number, stage in enumerate(plan.stages):
        used = [name for group in stage.replicas for name in group]
        demand(set(used) <= set(devices) and len(set(used)) == len(used), "a stage's devices are known and differ")
        widths = {len(group) for group in stage.replicas}
        demand(len(widths) == 1 and max(widths) <= problem.options.max_width, "one width, within the limit")
        demand(all(len({devices[d].type for d in group}) == 1 for group in stage.replicas), "one type per group")
        demand(len(stage.replicas) <= most_replicas(problem), "not too many replicas")
        demand(has_whole_samples(problem, len(stage.replicas)) or bool(stage.samples), "whole samples")
        demand(problem.options.unequal_shares or not stage.samples, "equal shares")
        demand(stage.samples in ((), *every_cut(problem, len(stage.replicas))), "unequal shares of a microbatch")
        demand(is_measured(problem, stage), "measured for that share")
        demand(problem.options.recompute or not stage.recompute, "recomputation is allowed")
        demand(isinstance(stage.recompute, bool) or problem.options.recompute_layers, "layer by layer, too")
        demand(stage.shard == "none" or len(stage.replicas) > 1, "nobody shards alone")
        for group in stage.replicas:
            for layer in (problem.profile.by_name[name] for name in stage.layers):
                measured = {(cost.device_type, cost.width) for cost in layer.costs}
                demand((devices[group[0]].type, len(group)) in measured, "measured there")
                demand(len(group) == 1 or any(w.width == len(group) for w in layer.wider), "measured at that width")
            for device in group:
                demand(device in plan.schedule, "every device has a list")
                check_list(problem, stage, [a for a in plan.schedule[device] if a.stage == number])
    for device, word in plan.schedule.items():
        held = {s for s, stage in enumerate(plan.stages) if any(device in group for group in stage.replicas)}
        demand(0 < len(held) <= problem.options.max_stages_per_device, "not too many stages on a device")
        demand({action.stage for action in word} <= held, "no foreign actions")


def may_shard(problem: Problem, stages: Sequence[Stage]) -> bool:
    """Whether replicas shard the optimizer's state only where they may, and wherever they have to."""
    shards = {stage.shard for stage in stages if len(stage.replicas) > 1}
    known = {"never": [{"none"}], "always": [{"optimizer"}], "together": [{"none"}, {"optimizer"}]}
    choice = problem.options.shard_optimizer
    return not shards or choice == "allow" or shards in known[choice]


def most_replicas(problem: Problem) -> int:
    """What the options and the cluster allow, whatever a microbatch holds."""
    return min(problem.options.max_replicas or len(problem.cluster.devices), len(problem.cluster.devices))


def has_whole_samples(problem: Problem, replicas: int) -> bool:
    """Whether so many replicas cut no sample, as far as the profile says how many a microbatch has."""
    size = problem.profile.microbatch_size
    return size is None or size % replicas == 0


def every_cut(problem: Problem, replicas: int) -> Iterator[tuple[int, ...]]:
    """All ways in which so many replicas may take unequal shares of a microbatch, each a whole number of samples."""
    size = problem.profile.microbatch_size or 0
    for borders in combinations(range(1, size), replicas - 1):
        ends = (0, *borders, size)
        samples = tuple(b - a for a, b in pairwise(ends))
        if len(set(samples)) > 1:
            yield samples


def ranges_of(stage: Stage) -> list[tuple[Fraction, Fraction]]:
    """Where the samples of every replica begin and end, in parts of a microbatch."""
    parts = stage.samples or (1,) * len(stage.replicas)
    ends = [Fraction(sum(parts[:i]), sum(parts)) for i in range(len(parts) + 1)]
    return list(pairwise(ends))


def share_of(stage: Stage, replica: int) -> Fraction:
    """What a replica takes of a microbatch."""
    start, end = ranges_of(stage)[replica]
    return end - start


def may_scale(problem: Problem) -> bool:
    """Whether costs outside the measured sizes are in proportion to the nearest one."""
    profile = problem.profile
    if profile.scaling is None:
        kinds = Counter((x.name, c.device_type, c.width) for x in profile.layers for c in x.costs)
        return max(kinds.values()) == 1
    return profile.scaling == "linear"


def check_list(problem: Problem, stage: Stage, word: list[Action]) -> None:
    """One device runs everything of one stage once, and F before I before W."""
    has_weights = any(problem.profile.by_name[name].is_trainable for name in stage.layers)
    allowed = ("FIW", "FB") if has_weights else ("FI",)
    if not problem.options.split_backward and has_weights:
        allowed = ("FB",)
    by_microbatch: dict[int, str] = {}
    for action in word:
        by_microbatch[action.microbatch] = by_microbatch.get(action.microbatch, "") + action.kind
    demand(set(by_microbatch) == set(range(problem.num_microbatches)), "all microbatches and no others")
    demand(all(kinds in allowed for kinds in by_microbatch.values()), "F, then I and W or B")


class Reading:
    """Costs, flows and memory of stages, straight from the profile."""

    def __init__(self, problem: Problem, stages: Sequence[Stage]) -> None:
        self.problem, self.stages = problem, stages
        self.layers = [[problem.profile.by_name[name] for name in stage.layers] for stage in stages]
        self.seats = [(s, r) for s, stage in enumerate(stages) for r in range(len(stage.replicas))]
        self.has_weights = [any(layer.parameter_bytes and not layer.frozen for layer in ls) for ls in self.layers]
        self.durations = {seat: {kind: self.duration(seat, kind) for kind in "FIWB"} for seat in self.seats}
        self.pairs = self.traffic()
        self.legs = self.make_legs()

    def duration(self, seat: Seat, kind: str) -> int:
        """Sum over the layers of their device time, over the replicas that share it, rounded up."""
        stage = self.stages[seat[0]]
        r, total = 1 / share_of(stage, seat[1]), 0
        profile, group_type = self.problem.profile, self.problem.cluster.by_name[stage.replicas[seat[1]][0]].type
        entries = [each for each in profile.action_overhead_ns if each.device_type == group_type]
        for layer in self.layers[seat[0]]:
            counts = {"F": layer.forward_exchanges, "I": layer.backward_exchanges, "B": layer.backward_exchanges}
            total += ceil(r * counts.get(kind, 0) * sum(each.exchange_ns for each in entries)) * (r > 1)
            total += ceil(r * self.layer_time(layer, seat, kind))
            if kind in "IB" and (way := way_of(stage, layer)) is not None:
                total += ceil(r * self.layer_time(layer, seat, way))
        fields = {"F": "forward_ns", "I": "input_grad_ns", "W": "weight_grad_ns", "B": "backward_ns"}
        return ceil(Fraction(total, r)) + sum(getattr(each, fields[kind]) for each in entries)

    def layer_time(self, layer: Layer, seat: Seat, kind: str) -> Fraction:
        """Time for a replica's share of a microbatch: measured, between two measurements, or in proportion to one."""
        group = self.stages[seat[0]].replicas[seat[1]]
        device_type = self.problem.cluster.by_name[group[0]].type
        whole = self.problem.profile.microbatch_size or 1
        size = whole * share_of(self.stages[seat[0]], seat[1])
        points = {}
        for cost in layer.costs:
            if (cost.device_type, cost.width) == (device_type, len(group)):
                both = cost.input_grad_ns + cost.weight_grad_ns
                fused = both if cost.backward_ns is None else cost.backward_ns
                times = {"F": cost.forward_ns, "I": cost.input_grad_ns, "W": cost.weight_grad_ns, "B": fused}
                ways = {"full": cost.recompute_ns} | {each.kind: each.recompute_ns for each in cost.recompute_kinds}
                points[cost.microbatch_size or whole] = (times | ways)[kind]
        lower, upper = [x for x in points if x <= size], [x for x in points if x >= size]
        if not lower:
            return points[min(upper)] * size / min(upper)
        if not upper:
            return points[max(lower)] * size / max(lower)
        a, b = max(lower), min(upper)
        return Fraction(points[a]) if a == b else points[a] + (points[b] - points[a]) * (size - a) / (b - a)

    def closing(self) -> int:
        """The profile's time after everything, and the optimizer's steps of the device for which they take longest."""
        taken = dict.fromkeys((device.name for device in self.problem.cluster.devices), 0)
        for (s, r), device in ((seat, d) for seat in self.seats for d in self.stages[seat[0]].replicas[seat[1]]):
            group_type, total = self.problem.cluster.by_name[device].type, 0
            for layer in self.layers[s]:
                total += max([c.optimizer_ns for c in layer.costs if c.device_type == group_type], default=0)
            taken[device] += ceil(Fraction(total, len(self.stages[s].replicas[r]) * self.sharers(s)))
        for s in (number for number, stage in enumerate(self.stages) if stage.shard == "optimizer"):
            own = [device for group in self.stages[s].replicas for device in group]
            ready = max(taken[device] for device in own)
            for device in own:
                taken[device] = ready + self.round_trip(s, self.weight_bytes(s), rounds=1)[0]
        return self.problem.profile.optimizer_ns + max(taken.values())

    def traffic(self) -> dict[tuple[int, int], tuple[int, int, bool]]:
        """Forward bytes, backward bytes and whether a gradient flows, per pair of stages."""
        stage_of = {layer.name: s for s, layers in enumerate(self.layers) for layer in layers}
        edges: dict[tuple[int, int], dict[str, list[Edge]]] = {}
        for edge in self.problem.profile.edges:
            a, b = stage_of[edge.producer], stage_of[edge.consumer]
            if a != b:
                edges.setdefault((a, b), {}).setdefault(edge.producer, []).append(edge)

        def back(edge: Edge) -> int:
            return edge.bytes if edge.gradient_bytes is None else edge.gradient_bytes

        return {
            pair: (
                sum(max(e.bytes for e in same) for same in outputs.values()),
                sum(max(back(e) for e in same) for same in outputs.values()),
                any(e.gradient_bytes != 0 for same in outputs.values() for e in same),
            )
            for pair, outputs in edges.items()
        }

    def make_legs(self) -> list[Leg]:
        """Every pair of replicas of two stages exchanges the overlap of its sample ranges."""
        legs: list[Leg] = []
        for (a, b), (forward, backward, has_gradient) in self.pairs.items():
            for (i, made), (j, used) in product(*(enumerate(ranges_of(self.stages[s])) for s in (a, b))):
                share = min(made[1], used[1]) - max(made[0], used[0])
                if share > 0:
                    legs.append(self.make_leg((a, i), (b, j), legs, ceil(forward * share)))
                    if has_gradient:
                        legs.append(self.make_leg((b, j), (a, i), legs, ceil(backward * share)))
        return legs

    def make_leg(self, sender: Seat, receiver: Seat, legs: list[Leg], num_bytes: int) -> Leg:
        a, b = (self.stages[s].replicas[r][0] for s, r in (sender, receiver))
        is_backward = sender > receiver
        rank = sum(leg.sender == sender and leg.is_backward == is_backward for leg in legs)
        if a == b:
            return Leg(sender, receiver, is_backward, rank, 0, (), True)
        route = self.problem.cluster.route(a, b, num_bytes=num_bytes)
        duration = route.latency_ns + max(self.moving(link, num_bytes) for link in route.links)
        return Leg(sender, receiver, is_backward, rank, duration, route.links, False)

    def moving(self, resource: int, num_bytes: int) -> int:
        """What so many bytes take on a link beyond its latency: straight lines through what it states."""
        link = self.problem.cluster.links[resource // 2]
        corners = [(0, 0), *((point.bytes, point.time_ns - link.latency_ns) for point in link.message_times)]
        size, time = max(corner for corner in corners if corner[0] <= num_bytes)
        slope = Fraction(10**9, link.bandwidth_bytes_per_s)
        for next_size, next_time in corners:
            if next_size > num_bytes:
                slope = Fraction(next_time - time, next_size - size)
                break
        return ceil(time + slope * (num_bytes - size))

    def sharers(self, stage: int) -> int:
        """How many replicas hold a part each of the optimizer's state of a stage."""
        return len(self.stages[stage].replicas) if self.stages[stage].shard == "optimizer" else 1

    def ring(self, stage: int) -> tuple[int, tuple[int, ...]]:
        """Time of a stage's all-reduce or reduce-scatter, and the links under it."""
        return self.round_trip(stage, self.gradient_bytes(stage), rounds=2 if self.sharers(stage) == 1 else 1)

    def round_trip(self, stage: int, size: int, *, rounds: int) -> tuple[int, tuple[int, ...]]:
        """Time in which a stage's replicas pass so many bytes round a ring, and the links under it."""
        groups = self.stages[stage].replicas
        r = len(groups)
        if r == 1 or all(layer.frozen for layer in self.layers[stage]):
            return 0, ()
        routes = [self.problem.cluster.route(groups[i][0], groups[(i + 1) % r][0], num_bytes=size) for i in range(r)]
        slowest = min(route.bandwidth_bytes_per_s for route in routes)
        latency = rounds * (r - 1) * max(route.latency_ns for route in routes)
        links = [link for route in routes for link in route.links]
        stated = [link for link in links if self.problem.cluster.links[link // 2].message_times]
        by_size = rounds * (r - 1) * max((self.moving(link, ceil(Fraction(size, r))) for link in stated), default=0)
        time = max(ceil(Fraction(rounds * (r - 1) * size * 10**9, r * slowest)), by_size) + latency
        return time, tuple(link for route in routes for link in route.links)

    def gradient_bytes(self, stage: int) -> int:
        """What the replicas of a stage synchronise, per device."""
        width = len(self.stages[stage].replicas[0])
        trained = [x for x in self.layers[stage] if x.parameter_bytes and not x.frozen]
        stated, whole = dict[str, int | None](), dict[str, int]()
        for x in trained:
            whole[x.name] = x.parameter_bytes if x.gradient_bytes is None else x.gradient_bytes
            for w in x.wider:
                if w.width == width:
                    as_weights = w.parameter_bytes if x.gradient_bytes is None else None
                    stated[x.name] = as_weights if w.gradient_bytes is None else w.gradient_bytes
        size = sum(stated.get(x.name) or 0 for x in trained)
        return size + ceil(Fraction(sum(whole[x.name] for x in trained if stated.get(x.name) is None), width))

    def weight_bytes(self, stage: int) -> int:
        """Trained weights of a stage, per device."""
        width, stated, whole = len(self.stages[stage].replicas[0]), 0, 0
        for x in self.layers[stage]:
            known = {w.width: w.parameter_bytes for w in x.wider}.get(width)
            stated += 0 if x.frozen or not x.parameter_bytes else known or 0
            whole += 0 if x.frozen or known is not None else x.parameter_bytes
        return stated + ceil(Fraction(whole, width))

    def state(self, stage: int) -> int:
        """What a stage holds on each device whatever it does: a part of the optimizer's state where replicas shard."""
        whole, width = 0, len(self.stages[stage].replicas[0])
        for x in self.layers[stage]:
            entry = x if width == 1 else next(w for w in x.wider if w.width == width)
            whole += 0 if x.frozen or not x.parameter_bytes else entry.optimizer_bytes or 0
        return self.size(stage, "state_bytes") - whole + ceil(Fraction(whole, self.sharers(stage)))

    def size(self, stage: int, field: str, replica: int = 0) -> int:
        """Bytes of a stage per device: state undivided, of everything that grows with the batch a replica's share."""
        groups = self.stages[stage].replicas
        entries = [
            layer if len(groups[0]) == 1 else next(w for w in layer.wider if w.width == len(groups[0]))
            for layer in self.layers[stage]
        ]
        if field == "held_bytes":
            ways = [way_of(self.stages[stage], layer) for layer in self.layers[stage]]
            values = [left_by(entry, way) for entry, way in zip(entries, ways, strict=True)]
        else:
            values = [getattr(entry, field) for entry in entries]
        if field == "workspace_bytes":
            return max(values)
        return sum(values) if field == "state_bytes" else ceil(sum(values) * share_of(self.stages[stage], replica))

    def static(self, device: str) -> int:
        """State, the largest bucket and receive buffers of a device."""
        held = [s for s, stage in enumerate(self.stages) if any(device in group for group in stage.replicas)]
        total = sum(self.state(s) for s in held)
        held_twice = [s for s in held if len(self.stages[s].replicas) > 1]
        if self.problem.profile.gradient_as_bucket_view:
            held_twice = [s for s in held_twice if self.sharers(s) > 1]
        reduced = [self.gradient_bytes(s) * min(2, self.sharers(s)) for s in held_twice]
        total += min(self.problem.profile.bucket_bytes, max(reduced, default=0))
        for (a, b), (forward, backward, _) in self.pairs.items():
            for mine, other, num_bytes in ((b, a, forward), (a, b, backward)):
                groups = self.stages[mine].replicas
                own = next((r for r, group in enumerate(groups) if device in group), None)
                if own is not None and self.stages[other].replicas != (groups[own],):
                    share = share_of(self.stages[mine], own)
                    total += ceil(self.problem.options.receive_buffers * num_bytes * share)
        return total

    def peak(self, device: str, word: Sequence[Action]) -> int:
        """The most that a device ever holds, by looking at all that went before, for every action anew."""
        static = self.static(device)
        peak = static
        for index, action in enumerate(word):
            begun = {(self.seat_on(device, a.stage), a.microbatch) for a in word[:index]}
            before = static + sum(self.held_after(word[:index], seat, m) for seat, m in begun)
            peak = max(peak, before, before + self.extra(action, self.seat_on(device, action.stage)))
        return peak

    def seat_on(self, device: str, stage: int) -> Seat:
        """Which replica of a stage a device belongs to."""
        return stage, next(r for r, group in enumerate(self.stages[stage].replicas) if device in group)

    def held_after(self, word: Sequence[Action], seat: Seat, microbatch: int) -> int:
        """What a replica holds for a microbatch once `word` is done."""
        stage, replica = seat
        kinds = "".join(action.kind for action in word if action[1:] == (stage, microbatch))
        if kinds == "F":
            return self.size(stage, "held_bytes", replica)
        if kinds != "FI" or not self.has_weights[stage]:
            return 0
        return self.size(stage, "weight_stash_bytes", replica) + self.kept_workspace(stage)

    def kept_workspace(self, stage: int) -> int:
        """What I keeps for its W beside the weight stash."""
        return self.size(stage, "workspace_bytes") if self.problem.options.keep_workspace else 0

    def extra(self, action: Action, seat: Seat) -> int:
        """What an action holds on top while it runs."""
        held = self.size(action.stage, "held_bytes", seat[1])
        own = {"F": held, "W": 0}.get(action.kind, self.size(action.stage, "stash_bytes", seat[1]) - held)
        left = self.kept_workspace(action.stage) if action.kind == "W" else 0
        return own + self.size(action.stage, "workspace_bytes") - left


class Game:
    """A plan played instant by instant: at every instant everything is looked at anew."""

    def __init__(self, problem: Problem, plan: Plan, reading: Reading) -> None:
        self.problem, self.plan, self.reading = problem, plan, reading
        self.seat_of = {(device, s): (s, r) for s, r in reading.seats for device in plan.stages[s].replicas[r]}
        self.position = dict.fromkeys(plan.schedule, 0)
        self.first: dict[str, int] = {}
        self.last_end = dict.fromkeys(plan.schedule, 0)
        self.blocked = dict.fromkeys(plan.schedule, 0)
        self.link_free: dict[int, int] = {}
        self.end: dict[tuple[Seat, str, int], int] = {}
        self.arrival: dict[tuple[Leg, int], int] = {}
        self.sync_end: dict[int, int] = {}
        self.work = 0

    def play(self, peaks: dict[str, int]) -> Figures:
        now = 0
        while now is not None:
            while any(self.start(device, now, lasting=False) for device in self.plan.schedule):
                pass
            self.send(now)
            for device in self.plan.schedule:
                self.start(device, now, lasting=True)
            times = [*self.last_end.values(), *self.blocked.values(), *self.arrival.values()]
            now = min((time for time in times if time > now), default=None)
        demand(all(self.position[d] == len(word) for d, word in self.plan.schedule.items()), "no deadlock")
        makespan = max([*self.end.values(), *self.sync_end.values()]) + self.reading.closing()
        return Figures(
            makespan_ns=makespan,
            span_ns=max(self.last_end[device] - self.first[device] for device in self.first),
            bubble=1 - self.work / (len(self.plan.schedule) * makespan) if makespan else 0.0,
            peak_bytes=peaks,
        )

    def start(self, device: str, now: int, *, lasting: bool) -> bool:
        """Start the next action of a device (one that takes time, or one that takes none) if it can."""
        word = self.plan.schedule[device]
        if self.position[device] == len(word):
            return False
        action = word[self.position[device]]
        seat = self.seat_of[device, action.stage]
        group = self.plan.stages[seat[0]].replicas[seat[1]]
        duration = self.takes(seat, action)
        if (duration > 0) != lasting or not self.has_inputs(seat, action, now):
            return False
        for other in group:
            at = self.position[other]
            is_here = at < len(self.plan.schedule[other]) and self.plan.schedule[other][at] == action
            if not is_here or self.last_end[other] > now or (lasting and self.blocked[other] > now):
                return False
        for other in group:
            self.position[other] += 1
            self.first.setdefault(other, now)
            self.last_end[other] = now + duration
            self.work += duration
        self.end[seat, action.kind.replace("B", "I"), action.microbatch] = now + duration
        return True

    def has_inputs(self, seat: Seat, action: Action, now: int) -> bool:
        if action.kind == "W":
            return self.has_ended(seat, "I", action.microbatch, now)
        is_backward = action.kind != "F"
        if is_backward and not self.has_ended(seat, "F", action.microbatch, now):
            return False
        return all(
            self.has_arrived(leg, action.microbatch, now)
            for leg in self.legs_for(action.microbatch)
            if leg.receiver == seat and leg.is_backward == is_backward
        )

    def takes(self, seat: Seat, action: Action) -> int:
        """Nanoseconds of an action."""
        return self.reading.durations[seat][action.kind]

    def legs_for(self, microbatch: int) -> list[Leg]:
        """What flows for a microbatch."""
        return self.reading.legs

    def has_ended(self, seat: Seat, kind: str, microbatch: int, now: int) -> bool:
        return self.end.get((seat, kind, microbatch), now + 1) <= now

    def has_arrived(self, leg: Leg, microbatch: int, now: int) -> bool:
        if leg.duration == 0:
            return self.has_ended(leg.sender, "I" if leg.is_backward else "F", microbatch, now)
        return self.arrival.get((leg, microbatch), now + 1) <= now

    def send(self, now: int) -> None:
        """Everything that has become ready at this instant takes its links, in order."""
        ready = [
            ((leg.sender[0], m, int(leg.is_backward), leg.sender[1], leg.rank), leg)
            for m in range(self.problem.num_microbatches)
            for leg in self.legs_for(m)
            if leg.duration and self.end.get((leg.sender, "I" if leg.is_backward else "F", m)) == now
        ]
        done = [stage for stage in range(len(self.plan.stages)) if self.is_done(stage, now)]
        ready += [((stage, self.problem.num_microbatches, 2), None) for stage in done]
        for key, leg in sorted(ready, key=lambda item: item[0]):
            if leg is None:
                self.synchronise(key[0], now)
                continue
            devices = [self.plan.stages[s].replicas[r][0] for s, r in (leg.sender, leg.receiver)]
            waits = [now, *(self.link_free.get(link, 0) for link in leg.links)]
            if not self.problem.cluster.overlap:
                waits += [max(self.blocked[d], self.last_end[d]) for d in devices]
            end = max(waits) + leg.duration
            self.arrival[leg, key[1]] = end
            self.link_free.update(dict.fromkeys(leg.links, end))
            if not self.problem.cluster.overlap:
                self.blocked.update(dict.fromkeys(devices, end))

    def is_done(self, stage: int, now: int) -> bool:
        """Whether the last action of a stage has ended, and it has not synchronised yet."""
        ends = [end for (seat, _, _), end in self.end.items() if seat[0] == stage]
        left = any(a.stage == stage for d, word in self.plan.schedule.items() for a in word[self.position[d] :])
        return not left and max(ends) <= now and stage not in self.sync_end

    def synchronise(self, stage: int, now: int) -> None:
        duration, links = self.reading.ring(stage)
        start = now
        if self.problem.options.synchronisation == "bucketed" and duration:
            start = max([now, *(self.link_free.get(link, 0) for link in links)])
            self.link_free.update(dict.fromkeys(links, start + duration))
        self.sync_end[stage] = start + duration


def brute_force(problem: Problem) -> int | None:
    """The least objective over every partition, mapping and order; None if no plan fits."""
    best = brute_force_plan(problem)
    return None if best is None else best[0]


def brute_force_plan(problem: Problem) -> tuple[int, Plan] | None:
    """The same with a plan that attains it.

    Tries every monotone map of layers to stages, every assignment of stages to devices or groups of several (replicas
    in every order, and several stages per device, as far as the options allow), every choice of recomputation, and
    every order on every device in which each stage takes its (identical) microbatches in order, with B as well as with
    I and W. Groups of a plan are equal or disjoint, as they must be with one stage per device.
    """
    candidates = []
    for stages in every_mapping(problem):
        tables = make_tables(problem, stages)
        if tables is not None:
            candidates.append((int(explore(*tables, LIMIT, True)[0]), stages, tables))
    candidates.sort(key=lambda candidate: candidate[0])
    for limit in growing_limits(candidates[0][0]) if candidates else ():
        best, found = limit, None
        for bound, stages, tables in candidates:
            if bound < best:
                value, length, path = explore(*tables, best, False)
                if value < best:
                    best, found = int(value), (stages, path[:length])
        if found is not None:
            return best, make_plan(problem, *found)
    return None


def growing_limits(bound: int) -> Iterator[int]:
    """Objectives to stay below, the first just above the bound: a search with a close limit is short."""
    step = 1 + bound // 64
    yield from (bound + step * 2**doubling for doubling in range(7))
    yield LIMIT


LIMIT = 2**60
"""Longer than any plan."""


def every_mapping(problem: Problem, *, has_symmetry: bool = True) -> Iterator[tuple[Stage, ...]]:
    """All stages on all devices that the options allow; of plans that differ by a symmetry of the cluster only one.

    `has_symmetry`: whether such plans are alike to the caller as well.
    """
    options, names = problem.options, [device.name for device in problem.cluster.devices]
    most = len(names) * options.max_stages_per_device
    groups, symmetric = list(every_group(problem)), has_symmetry and is_symmetric(problem)
    for parts in every_partition(problem, most):
        for placement in every_placement(groups, len(parts), limit=options.max_stages_per_device):
            first_used = list(dict.fromkeys(name for replicas in placement for group in replicas for name in group))
            if symmetric and first_used != names[: len(first_used)]:
                continue
            ways = [product(every_way(problem, part), every_shard(options.shard_optimizer)) for part in parts]
            cuts = product(*(every_share(problem, len(replicas)) for replicas in placement))
            for flags, samples in product(list(product(*map(list, ways))), list(cuts)):
                sharers = [r for (_, shard), r in zip(flags, placement, strict=True) if shard == "optimizer"]
                if any(len(replicas) == 1 for replicas in sharers):
                    continue
                stages = tuple(
                    Stage(layers=part, replicas=replicas, recompute=flag, shard=shard, samples=taken)
                    for part, replicas, (flag, shard), taken in zip(parts, placement, flags, samples, strict=True)
                )
                if is_allowed(problem, stages):
                    yield stages


def every_share(problem: Problem, replicas: int) -> list[tuple[int, ...]]:
    """How so many replicas may share a microbatch: equally, where that cuts no sample, and unequally if allowed."""
    unequal = list(every_cut(problem, replicas)) if problem.options.unequal_shares else []
    return [*([()] if has_whole_samples(problem, replicas) else []), *unequal]


def way_of(stage: Stage, layer: Layer) -> str | None:
    """By which kind a layer of a stage recomputes, if it does."""
    if isinstance(stage.recompute, bool):
        return "full" if stage.recompute else None
    found = [kind for name, kind in stage.recompute if name == layer.name]
    return found[0] if found else None


def left_by(entry: Layer | WidthBytes, way: str | None) -> int:
    """What F leaves of a layer."""
    others = {each.kind: each.checkpoint_bytes for each in entry.recompute_kinds}
    return ({"full": entry.checkpoint_bytes, None: entry.stash_bytes} | others)[way]


def every_way(problem: Problem, part: Sequence[str]) -> list[bool | tuple[tuple[str, str], ...]]:
    """How a stage of these layers may recompute: none, all of them fully, or each as it likes."""
    if not problem.options.recompute_layers:
        return [False, True] if problem.options.recompute else [False]
    kinds = [[None, "full", *(entry.kind for entry in problem.profile.by_name[name].recompute_kinds)] for name in part]
    return [tuple((n, k) for n, k in zip(part, ways, strict=True) if k is not None) for ways in product(*kinds)]


def every_shard(choice: str) -> tuple[Shard, ...]:
    """What a stage may do with the optimizer's state, as far as that does not depend on other stages."""
    return SHARDS[:1] if choice == "never" else SHARDS


def every_group(problem: Problem) -> Iterator[tuple[tuple[str, ...], ...]]:
    """All replicas in all orders: devices, or groups of one width and of one type each.

    Of the members of a group only the first matters.
    """
    types = {device.name: device.type for device in problem.cluster.devices}
    for width in range(1, min(problem.options.max_width, len(types)) + 1):
        units = [(a, *rest) for a in types for rest in combinations([b for b in types if b != a], width - 1)]
        units = [unit for unit in units if len({types[name] for name in unit}) == 1]
        for r in range(1, most_replicas(problem) + 1):
            if not every_share(problem, r):
                continue
            for replicas in permutations(units, r):
                if len({name for unit in replicas for name in unit}) == r * width:
                    yield replicas


def every_partition(problem: Problem, most: int) -> Iterator[tuple[tuple[str, ...], ...]]:
    """Every map of layers onto stages 0, 1, ... (at most `most`) under which no edge points backward."""
    order = problem.profile.topological_order
    producers = {name: [e.producer for e in problem.profile.edges if e.consumer == name] for name in order}

    def extend(stage_of: dict[str, int]) -> Iterator[dict[str, int]]:
        if len(stage_of) == len(order):
            yield stage_of
            return
        name = order[len(stage_of)]
        for number in range(max((stage_of[p] for p in producers[name]), default=0), min(most, len(order))):
            yield from extend({**stage_of, name: number})

    for stage_of in extend({}):
        count = max(stage_of.values()) + 1
        if set(stage_of.values()) == set(range(count)):
            yield tuple(tuple(name for name in order if stage_of[name] == number) for number in range(count))


def every_placement(
    groups: list[tuple[tuple[str, ...], ...]], count: int, *, limit: int
) -> Iterator[tuple[tuple[tuple[str, ...], ...], ...]]:
    """Replicas for each of `count` stages: no device is used more than `limit` times, and no two groups overlap."""

    def extend(
        chosen: tuple[tuple[tuple[str, ...], ...], ...],
    ) -> Iterator[tuple[tuple[tuple[str, ...], ...], ...]]:
        if len(chosen) == count:
            yield chosen
            return
        used = [unit for replicas in chosen for unit in replicas]
        for replicas in groups:
            if all(
                used.count(unit) < limit and all(other == unit or set(other).isdisjoint(unit) for other in used)
                for unit in replicas
            ):
                yield from extend((*chosen, replicas))

    yield from extend(())


def is_symmetric(problem: Problem) -> bool:
    """Whether any two devices may change places: equal devices, and equal direct links between all, or none needed."""
    cluster = problem.cluster
    if len({(device.type, device.usable_bytes) for device in cluster.devices}) > 1 or problem.options.pinned:
        return False
    num_pairs = len(cluster.devices) * (len(cluster.devices) - 1) // 2
    is_complete = len(cluster.links) == num_pairs and all({x.a, x.b} <= set(cluster.by_name) for x in cluster.links)
    return is_complete and len({replace(x, a="a", b="b") for x in cluster.links}) <= 1


def is_allowed(problem: Problem, stages: tuple[Stage, ...]) -> bool:
    """Whether the stages obey the options that the enumeration does not know."""
    options = problem.options
    stage_of = {name: number for number, stage in enumerate(stages) for name in stage.layers}
    pairs = {(stage_of[e.producer], stage_of[e.consumer]) for e in problem.profile.edges}
    counts = {len(stage.replicas) for stage in stages} - {1}
    used = {name for stage in stages for group in stage.replicas for name in group}
    return (
        all(is_measured(problem, stage) for stage in stages)
        and may_shard(problem, stages)
        and (options.skip_edges or all(b - a <= 1 for a, b in pairs))
        and (options.uneven_replication or len(counts) <= 1)
        and (options.idle_devices or len(used) == len(problem.cluster.devices))
        and all(pin.device in group for pin in options.pinned for group in stages[stage_of[pin.layer]].replicas)
        and (options.partition is None or [set(p) for p in options.partition] == [set(s.layers) for s in stages])
        and (options.placement is None or options.placement == tuple(stage.replicas for stage in stages))
    )


def is_measured(problem: Problem, stage: Stage) -> bool:
    """Whether all layers of a stage were measured on the types of its groups, at their width, around their share."""
    width, whole = len(stage.replicas[0]), problem.profile.microbatch_size or 1
    shares = [whole * share_of(stage, r) for r in range(len(stage.replicas))]
    kinds = [problem.cluster.by_name[group[0]].type for group in stage.replicas]
    types, scales = set(kinds), may_scale(problem)
    layers = [problem.profile.by_name[name] for name in stage.layers]
    return all(
        types <= {cost.device_type for cost in layer.costs if cost.width == width}
        and (
            scales
            or all(
                is_within(layer, device_type, width=width, share=share, whole=whole)
                for device_type, share in zip(kinds, shares, strict=True)
            )
        )
        and (width == 1 or any(entry.width == width for entry in layer.wider))
        for layer in layers
    )


def is_within(layer: Layer, device_type: str, *, width: int, share: Fraction, whole: int) -> bool:
    """Whether a share lies between the sizes at which the layer was measured."""
    sizes = [c.microbatch_size or whole for c in layer.costs if (c.device_type, c.width) == (device_type, width)]
    return min(sizes) <= share <= max(sizes)


def make_tables(problem: Problem, stages: tuple[Stage, ...]) -> tuple[numpy.ndarray, ...] | None:
    """What `explore` needs; None if the state alone does not fit."""
    reading = Reading(problem, stages)
    index = {device.name: number for number, device in enumerate(problem.cluster.devices)}
    seat_index = {seat: number for number, seat in enumerate(reading.seats)}
    room = [0] * len(index)
    for group in {group for stage in stages for group in stage.replicas}:
        left = [problem.cluster.by_name[name].usable_bytes - reading.static(name) for name in group]
        room[index[group[0]]] = min(left)
    if min(room) < 0:
        return None
    seats = [
        [
            *(s, index[stages[s].replicas[r][0]], int(reading.has_weights[s])),
            *(reading.durations[s, r][kind] for kind in "FIWB"),
            reading.size(s, "held_bytes", r),
            reading.size(s, "stash_bytes", r),
            (reading.size(s, "weight_stash_bytes", r) + reading.kept_workspace(s)) * reading.has_weights[s],
            reading.size(s, "workspace_bytes"),
            reading.size(s, "workspace_bytes") - reading.kept_workspace(s),
        ]
        for s, r in reading.seats
    ]
    legs = [
        [seat_index[x.sender], seat_index[x.receiver], int(x.is_backward), x.duration, x.sender[1] * 1000 + x.rank]
        for x in reading.legs
    ]
    rings = [reading.ring(s) for s in range(len(stages))]
    options = problem.options
    scalars = [
        *(problem.num_microbatches, int(options.split_backward), int(problem.cluster.overlap)),
        *(int(options.synchronisation == "bucketed"), reading.closing(), int(options.objective == "span")),
    ]
    num_links = 2 * len(problem.cluster.links)
    return (
        numpy.array(scalars),
        numpy.array(seats),
        numpy.array(legs, dtype=numpy.int64).reshape(-1, 5),
        incidence([x.links for x in reading.legs], num_links),
        numpy.array([time for time, _ in rings]),
        incidence([links for _, links in rings], num_links),
        numpy.array(room),
    )


def incidence(rows: Sequence[Sequence[int]], num_links: int) -> numpy.ndarray:
    """[row, link] 1 where the row occupies the link."""
    table = numpy.zeros((len(rows), num_links), dtype=numpy.int64)
    for row, links in enumerate(rows):
        table[row, list(links)] = 1
    return table


def make_plan(problem: Problem, stages: tuple[Stage, ...], path: numpy.ndarray) -> Plan:
    """The plan that a path of `explore` (rows: seat, kind, microbatch) stands for."""
    seats = [(s, r) for s, stage in enumerate(stages) for r in range(len(stage.replicas))]
    words: dict[str, list[Action]] = {d: [] for stage in stages for group in stage.replicas for d in group}
    for seat, kind, microbatch in path.tolist():
        stage, replica = seats[seat]
        for device in stages[stage].replicas[replica]:
            words[device].append(Action("FIWB"[kind], stage, microbatch))
    schedule = {device: tuple(word) for device, word in words.items()}
    return Plan(problem=problem.reference(), stages=stages, schedule=schedule)
