"""Faults seeded in the judge, one by one: each makes its reading of the contract a little wrong."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import planner.judge.costs
import planner.judge.reading
import planner.judge.routes
import planner.judge.sizes
import planner.judge.traffic
import planner.judge.transfer_queue
import planner.verify
from planner.judge.device_orders import Positions
from planner.judge.memory import MemoryUse, Step
from planner.judge.recomputation import NONE
from planner.judge.routes import Direction, Route
from planner.judge.rules import (
    agreement,
    deadlock_rules,
    dealt,
    evidence,
    groups,
    lists,
    loops,
    options,
    partition,
    reference,
    split_placement,
)
from planner.judge.synchronisation import NO_RING, Ring
from planner.judge.times import _Check
from planner.judge.traffic import Channel, Reduction, Tensor
from planner.judge.transfer_queue import TransferQueue, Transfers
from planner.problem import Options
from tests.planner.judge.core_faults import Fault, Patch, put, wrap

READING = planner.judge.reading


def silent(*rules: Callable[..., Any]) -> Fault:
    """Some rules find nothing."""

    def nothing(*_: object) -> Iterator[Any]:
        return iter(())

    def seed(patch: Patch) -> None:
        known = tuple(
            (gate, {rule: group[rule] for rule in group if rule not in rules}) for gate, group in planner.verify.GROUPS
        )
        patch.setattr(planner.verify, "GROUPS", known)

    return seed


def no_findings(owner: type, name: str) -> Fault:
    """One of the equations is not checked."""
    return lambda patch: patch.setattr(owner, name, lambda *_: iter(()))


def sizes(**fields: Callable[[Any], int]) -> Fault:
    """A stage has other bytes."""

    def change(size: Any) -> Any:
        return size._replace(**{name: make(size) for name, make in fields.items()})

    return wrap(READING, "stage_bytes", change)


def times(change: Callable[[dict[str, int]], dict[str, int]]) -> Fault:
    """A stage takes another time."""
    return wrap(READING, "stage_times", change)


def tensors(change: Callable[[Tensor], Tensor]) -> Fault:
    """Something else flows between stages."""
    return wrap(READING, "tensors", lambda found: {pair: change(each) for pair, each in found.items()})


def flows(change: Callable[[list[Channel]], list[Channel]]) -> Fault:
    """Something else flows between stage replicas."""
    return wrap(READING, "make_channels", change)


def rings(change: Callable[[Ring], Ring]) -> Fault:
    """Stages synchronise otherwise."""
    return wrap(READING, "make_ring", change)


def unsharded_ring(original: Any, stage: Any, routes: Any, **sizes: Any) -> Ring:
    """A reduce-scatter goes round as often as an all-reduce."""
    return original(replace(stage, shard="none"), routes, **sizes)  # type: ignore[no-any-return]


def added(change: Callable[[tuple[Step, ...]], tuple[Step, ...]]) -> Fault:
    """Actions take and give back other bytes."""
    return wrap(READING, "steps", change)


def floor(value: Fraction) -> int:
    return value.numerator // value.denominator


def static_under(**changes: Callable[[int], int]) -> Fault:
    """What is resident is counted with another number of receive buffers."""

    def changed(original: Any, *args: Any, **kwargs: Any) -> dict[str, int]:
        changed_ones = {name: change(kwargs[name]) for name, change in changes.items()}
        return original(*args, **kwargs | changed_ones)  # type: ignore[no-any-return]

    return put(READING, "static_bytes", changed)


def reduced_under(**changes: Callable[[int], int]) -> Fault:
    """What is held to reduce gradients is counted as if the profile said something else of it."""

    def changed(original: Any, *args: Any, reduction: Reduction, **kwargs: Any) -> dict[str, int]:
        other = {name: change(getattr(reduction, name)) for name, change in changes.items()}
        return original(*args, reduction=reduction._replace(**other), **kwargs)  # type: ignore[no-any-return]

    return put(READING, "static_bytes", changed)


def no_direct_links(patch: Patch) -> None:
    """A direct link is taken only where it is the shortest way."""

    def find(original: Any, routes: Any, source: str, target: str, *, num_bytes: int) -> Route:
        return planner.judge.routes._make_route(routes._shortest(source, target, num_bytes=num_bytes))

    put(planner.judge.routes.Routes, "find", find)(patch)


def queue_by(key: Callable[[Any], Any]) -> Fault:
    """Transfers take their turns in another order."""

    def ranks(original: Any, queue: TransferQueue, ready: Any) -> Any:
        found = original(queue, ready)
        return key(found)

    return put(TransferQueue, "_ranks", ranks)


def ample_memory(uses: dict[str, MemoryUse]) -> dict[str, MemoryUse]:
    return {device: MemoryUse(use.peak_bytes - 1, None) for device, use in uses.items()}


def only_devices(check: _Check) -> Iterator[str]:
    """Which devices there are is compared, but not what they run."""
    if set(check.timeline.actions) != set(check.orders.schedule):
        yield "the timeline's devices are not the plan's"


def late_forward(original: Any, positions: Positions, rows: Any, kind: str) -> Any:
    """An action before which another has to stand may stand anywhere."""
    found = original(positions, rows, kind)
    return found if (found < 0).any() else found.clip(max=0)


def whole_parts(patch: Patch) -> None:
    """A device that runs a part of I takes the time of all of it."""

    def times(original: Any, reading: Any, replica: Any, share: Fraction) -> dict[str, int]:
        count = len(reading.plan.stages[replica.stage].replicas)
        return original(reading, replica, Fraction(1, count))  # type: ignore[no-any-return]

    put(READING.Reading, "_stage_times", times)(patch)


def nearest_size(original: Any, measured: dict[int, Any], samples: Fraction, *, kind: str, is_linear: bool) -> Any:
    """A cost between two measured sizes is that of the nearest."""
    if not min(measured) <= samples <= max(measured):
        return original(measured, samples, kind=kind, is_linear=is_linear)
    nearest = min(measured, key=lambda size: abs(size - samples))
    return planner.judge.costs.measured_times(measured[nearest], kind=kind)


def route(**changes: Callable[[list[Direction]], int]) -> Fault:
    """A route has other figures."""

    def changed(original: Any, path: list[Direction]) -> Route:
        found: Route = original(path)
        return found._replace(**{name: make(path) for name, make in changes.items()})

    return put(planner.judge.routes, "_make_route", changed)


def costly_overheads(patch: Patch) -> None:
    """The overhead of a message counts where routes are chosen."""
    routes = planner.judge.routes

    def shortest(original: Any, network: Any, source: str, target: str, *, num_bytes: int) -> list[Direction]:
        known, latency = network.leaving, 1
        network.leaving = {
            end: {other: way._replace(latency_ns=way[latency] + way.message_overhead_ns) for other, way in ways.items()}
            for end, ways in known.items()
        }
        try:
            path = original(network, source, target, num_bytes=num_bytes)
        finally:
            network.leaving = known
        ends = [source, *(way.target for way in path)]
        return [known[end][way.target] for end, way in zip(ends, path, strict=False)]

    put(routes.Routes, "_shortest", shortest)(patch)


class NoOverhead:
    """Routes whose messages have no overhead."""

    def __init__(self, routes: Any) -> None:
        self.routes = routes

    def find(self, *ends: str, num_bytes: int) -> Route:
        found: Route = self.routes.find(*ends, num_bytes=num_bytes)
        return found._replace(message_overhead_ns=0)


def second_workspace(original: Any, *args: Any, size: Any, options: Options, **rest: Any) -> tuple[Step, ...]:
    """W takes a workspace of its own beside the one that its I has kept."""
    forward, input_grad, weight_grad, fused = original(*args, size=size, options=options, **rest)
    if options.keep_workspace and rest["has_weight_grad"]:
        weight_grad = weight_grad._replace(during=size.workspace)
    return forward, input_grad, weight_grad, fused


def without_rule(name: str) -> Any:
    """A rule of memory is not looked at."""

    def steps(original: Any, *args: Any, options: Options, **rest: Any) -> Any:
        return original(*args, options=replace(options, **{name: False}), **rest)

    return steps


JUDGE_FAULTS: dict[str, Fault] = {
    "F / 2": times(lambda t: t | {"F": t["F"] // 2}),
    "I takes a nanosecond more": times(lambda t: t | {"I": t["I"] + 1}),
    "B takes I + W": times(lambda t: t | {"B": t["I"] + t["W"]}),
    "recomputation is free": put(READING, "kind_in", lambda original, stage, layer: NONE),
    "times are those of the whole microbatch": put(
        READING, "layer_times", lambda original, measured, samples, **kw: original(measured, Fraction(1), **kw)
    ),
    "durations are rounded down": lambda patch: patch.setattr(planner.judge.costs, "round_up", floor),
    "stash / 100": sizes(stash=lambda s: s.stash // 100),
    "the weight stash is forgotten": sizes(weight_stash=lambda s: 0),
    "the checkpoint is a byte too large": sizes(held=lambda s: s.held + (s.held < s.stash)),
    "the workspace is forgotten": sizes(workspace=lambda s: 0),
    "I gives back the workspace that it keeps": put(READING, "steps", without_rule("keep_workspace")),
    "W has a workspace beside the one kept": put(READING, "steps", second_workspace),
    "layers recompute at once": put(READING, "steps", without_rule("recompute_in_turn")),
    "a turn is forgotten": sizes(rebuilt=lambda s: 0),
    "a byte of state is dropped": sizes(state=lambda s: s.state - 1),
    "gradients are half as large": sizes(gradients=lambda s: s.gradients // 2),
    "frozen layers are trained": put(
        planner.judge.sizes, "is_trained", lambda original, layer: layer.parameter_bytes > 0
    ),
    "a byte of activations is dropped": tensors(lambda t: t._replace(forward_bytes=max(0, t.forward_bytes - 1))),
    "gradients are as large as activations": tensors(lambda t: t._replace(backward_bytes=t.forward_bytes)),
    "gradients flow everywhere": tensors(lambda t: t._replace(has_gradient=True)),
    "a flow is forgotten": flows(lambda found: found[1:]),
    "flows take their turns backward": flows(lambda found: found[::-1]),
    "receive buffers: one too many": static_under(receive_buffers=lambda count: count + 1),
    "receive buffers are forgotten": static_under(receive_buffers=lambda count: 0),
    "buckets are forgotten": reduced_under(bucket_bytes=lambda size: 0),
    "gradients are always copied to be reduced": reduced_under(is_in_place=lambda is_view: False),
    "no gradient is copied to be reduced": reduced_under(is_in_place=lambda is_view: True),
    "a bucket is as large as the gradients": reduced_under(bucket_bytes=lambda size: size and 2**40),
    "what any reduction holds is forgotten": reduced_under(beside_bytes=lambda size: 0),
    "latency is forgotten": put(
        Route, "time_ns", lambda original, route, size: original(route, size) - route.latency_ns
    ),
    "transfers are rounded down": put(
        Route, "time_ns", lambda original, route, size: route.delay_ns + size * 10**9 // route.bandwidth_bytes_per_s
    ),
    "direct links are not preferred": no_direct_links,
    "routes ignore bytes": put(
        planner.judge.routes.Routes,
        "_shortest",
        lambda original, routes, source, target, num_bytes: original(routes, source, target, num_bytes=0),
    ),
    "directions of links are mixed up": put(
        planner.judge.routes, "Direction", lambda original, *fields: Direction(*fields[:3], fields[3] ^ 1, fields[4])
    ),
    "no stage synchronises": rings(lambda ring: NO_RING),
    "the ring goes once round": rings(lambda ring: ring._replace(duration_ns=ring.duration_ns // 2)),
    "the ring occupies no links": rings(lambda ring: ring._replace(links=frozenset())),
    "I gives nothing back": added(lambda steps: (steps[0], steps[1]._replace(after=0), *steps[2:])),
    "F takes nothing while it runs": added(lambda steps: (steps[0]._replace(during=0), *steps[1:])),
    "peaks are a byte too low": wrap(READING, "memory_uses", ample_memory),
    "the queue on links is not checked": no_findings(TransferQueue, "starts"),
    "the later transfer goes first": queue_by(lambda ranks: -ranks),
    "starts of actions are not checked": no_findings(_Check, "starts"),
    "durations of actions are not checked": no_findings(_Check, "action_durations"),
    "readiness is not checked": no_findings(Transfers, "readiness"),
    "claims about transfers are not compared": no_findings(Transfers, "_read_listed"),
    "synchronisations are not checked": no_findings(_Check, "synchronisations"),
    "the makespan is not compared": no_findings(_Check, "ending"),
    "the order of actions is not compared": lambda patch: patch.setattr(_Check, "order", only_devices),
    "memory is not limited": silent(agreement.memory_exceeded),
    "the reserve of a device may be filled": put(agreement, "usable_bytes", lambda _, device: device.memory_bytes),
    "an action may stand before what it needs": put(Positions, "twin", late_forward),
    "B may stand beside I": silent(lists.backward_mixed),
    "actions may be missing": silent(lists.action_missing),
    "deadlocks are not looked for": silent(deadlock_rules.deadlock),
    "layers of a stage may stand in any order": silent(partition.layer_order),
    "a plan may answer another problem": silent(reference.profile_hash),
    "replicas are not limited": silent(options.replica_limit),
    "groups may mix types": silent(groups.group_mixed),
    "devices may stay idle": silent(options.device_idle),
    "several stages cost no more than one": put(
        READING, "action_overhead", lambda original, *given, num_stages: original(*given, num_stages=min(1, num_stages))
    ),
    "one stage costs as much as several": put(
        READING, "action_overhead", lambda original, *given, num_stages: original(*given, num_stages=2 * num_stages)
    ),
    "the overhead of actions is forgotten": wrap(READING, "action_overhead", lambda found: dict.fromkeys(found, 0)),
    "replicas share the overhead of actions": put(
        READING,
        "stage_times",
        lambda original, layers, *, share, overhead, **kw: original(
            layers, share=share, overhead={k: int(share * each) for k, each in overhead.items()}, **kw
        ),
    ),
    "replicas exchange nothing": wrap(READING, "exchange_times", lambda found: found._replace(forward=0, backward=0)),
    "B has the overhead of I and W": wrap(READING, "action_overhead", lambda each: each | {"B": each["I"] + each["W"]}),
    "a part of I is priced as the whole": whole_parts,
    "costs between sizes are those of the nearest": put(READING, "layer_times", nearest_size),
    "costs outside the measured sizes are scaled": put(READING, "is_linear", lambda *_: True),
    "costs are never scaled": put(READING, "is_linear", lambda *_: False),
    "the overhead of messages is forgotten": route(message_overhead_ns=lambda path: 0),
    "every link adds its overhead to a message": route(
        message_overhead_ns=lambda path: sum(way.message_overhead_ns for way in path)
    ),
    "the messages of a ring have no overhead": put(
        READING, "make_ring", lambda original, stage, routes, **kw: original(stage, NoOverhead(routes), **kw)
    ),
    "overheads of messages decide the route": costly_overheads,
    "replicas may cut samples": silent(groups.samples_cut),
    "a share of I may cut samples": silent(split_placement.share_cut),
    "the optimizer's steps are forgotten": put(READING, "step_time", lambda *_, **__: 0),
    "groups take the optimizer's steps whole": put(
        READING, "step_time", lambda original, layers, **kw: original(layers, **kw | {"sharers": 1})
    ),
    "sharding replicas hold all of the optimizer's state": put(planner.judge.sizes, "sharded_away", lambda *_, **__: 0),
    "sharding replicas do not gather the weights": put(READING, "gathering_ns", lambda *_, **__: 0),
    "sharding replicas reduce gradients to all": put(READING, "make_ring", unsharded_ring),
    "sharding replicas have no room for what comes": put(planner.judge.traffic, "is_sharded", lambda *_: False),
    "anybody may shard": silent(options.shard_option),
    "one replica may shard": silent(groups.shard_alone),
    "stages may stand anywhere in a loop": silent(loops.loop_stages),
    "a loop may have any order": silent(loops.loop_order),
    "anything may be called the proof": silent(evidence.evidence_proof),
    "microbatches cost what the profile states": put(READING, "profile_of_size", lambda _, profile, size: profile),
    "a pipeline runs what others are dealt": silent(lists.action_undealt),
    "a microbatch may be dealt twice": silent(dealt.dealing_once),
    "a device may work for two pipelines": silent(dealt.dealing_devices),
    "the gap may be anything": lambda patch: patch.setattr(evidence, "TOLERANCE", 1.0),
}
"""Each with what it is called in faults.json."""
