"""Faults seeded in the core, one by one: each makes its costs, its traffic, its routes or its game a little wrong."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

import planner.layout.costs
import planner.layout.stage_replicas
import planner.simulation.simulate
from planner.layout.costs import CostModel, StageCost, StageTraffic
from planner.layout.stage_replicas import LaidOut
from planner.plan import Plan, Stage
from planner.problem import Problem
from planner.simulation.simulate import Timeline, _Playback
from profiles.cluster import Cluster, Route
from profiles.model_profile import Layer, ModelProfile
from profiles.routing import DirectedLink
from tests.planner.judge.broken_plans import cut_sample, halved, unmeasured_share

Patch = pytest.MonkeyPatch
Fault = Callable[[Patch], None]


def wrap(owner: Any, name: str, change: Callable[[Any], Any]) -> Fault:
    """What `owner.name` returns is changed."""

    def seed(patch: Patch) -> None:
        original = getattr(owner, name)
        patch.setattr(owner, name, lambda *args, **kwargs: change(original(*args, **kwargs)))

    return seed


def put(owner: Any, name: str, function: Callable[..., Any]) -> Fault:
    """`owner.name` is another one, which gets the original as its first argument."""

    def seed(patch: Patch) -> None:
        original = getattr(owner, name)
        patch.setattr(owner, name, lambda *args, **kwargs: function(original, *args, **kwargs))

    return seed


def stage_cost(**changes: Callable[[StageCost], Any]) -> Fault:
    """A stage costs something else."""

    def change(cost: StageCost) -> StageCost:
        return replace(cost, **{name: make(cost) for name, make in changes.items()})

    return wrap(CostModel, "_make_stage_cost", change)


def traffic(change: Callable[[StageTraffic], StageTraffic]) -> Fault:
    """Something else flows between stages."""
    return wrap(CostModel, "traffic", lambda found: {pair: change(each) for pair, each in found.items()})


def layer_work(**fields: int) -> Fault:
    """A layer's work has other figures."""
    return wrap(planner.layout.costs, "_work", lambda work: replace(work, **fields))


def timeline(**changes: Callable[[Timeline], Any]) -> Fault:
    """The played timeline states another figure, whoever has played it."""

    def change(played: Timeline) -> Timeline:
        return replace(played, **{name: make(played) for name, make in changes.items()})

    return wrap(_Playback, "_timeline", change)


def without_options(**options: Any) -> Callable[..., dict[str, int]]:
    """`static_bytes` under other options."""

    def changed(original: Callable[..., dict[str, int]], model: CostModel, *args: Any) -> dict[str, int]:
        known = model.problem
        buffers = {name: make(known.options) for name, make in options.items()}
        model.problem = replace(known, options=replace(known.options, **buffers))
        try:
            return original(model, *args)
        finally:
            model.problem = known

    return changed


def forgetful_of_workspaces(original: Any, model: CostModel, stage: Any, **where: Any) -> StageCost:
    """I gives back its workspace, whatever the options say."""
    known = model.problem
    model.problem = replace(known, options=replace(known.options, keep_workspace=False))
    try:
        cost: StageCost = original(model, stage, **where)
        return cost
    finally:
        model.problem = known


def gradient_of_frozen_layers(original: Any, model: CostModel, stage: Any) -> int:
    return sum(model.problem.profile.by_name[name].parameter_bytes for name in stage.layers)


def no_queue(patch: Patch) -> None:
    """Transfers do not wait for their links."""

    wrap(planner.simulation.simulate, "timed_send", lambda sent: replace(sent, links=()))(patch)


def slow_links_first(original: Any, way: DirectedLink, num_bytes: int) -> int:
    """Routes are chosen by latency and number of links alone."""
    return (way.latency_ns << 20) + 1


def other_direction(route: Route) -> Route:
    return replace(route, links=tuple(link ^ 1 for link in route.links))


def floor_time(original: Any, route: Route, num_bytes: int) -> int:
    return route.latency_ns + num_bytes * 10**9 // route.bandwidth_bytes_per_s


def without_latency(original: Any, route: Route, num_bytes: int) -> int:
    return int(original(route, num_bytes)) - route.latency_ns


def narrower(original: Any, sender: Stage, receiver: Stage) -> list[tuple[int, int, int, int]]:
    """Every replica sends its whole share to each it meets."""
    shares = [(i, j, sender.share_of(i)) for i, j, _, _ in original(sender, receiver)]
    return [(i, j, share.numerator, share.denominator) for i, j, share in shares]


def ring_of(change: Callable[[int, int], int]) -> Fault:
    """The time of the all-reduce, given the true one and the number of replicas."""

    def changed(original: Any, model: CostModel, stage: Any) -> int:
        time = int(original(model, stage))
        return change(time, len(stage.replicas)) if time else 0

    return put(CostModel, "synchronisation_ns", changed)


def unsharded(stages: Iterable[Stage]) -> list[Stage]:
    """The same stages, none of which shards."""
    return [replace(stage, shard="none") for stage in stages]


def steps_of_all(original: Any, model: CostModel, stages: Sequence[Stage]) -> dict[str, int]:
    """Every replica steps all weights before they are gathered."""
    found: dict[str, int] = original(model, unsharded(stages))
    for stage in stages:
        own = [device for group in stage.replicas for device in group if stage.is_sharded]
        end = max((found[device] for device in own), default=0) + model.gathering_ns(stage)
        found.update(dict.fromkeys(own, end))
    return found


def gathered_alone(original: Any, model: CostModel, stages: Sequence[Stage]) -> dict[str, int]:
    """Nobody waits for others: a device gathers as soon as it has stepped."""
    found: dict[str, int] = original(model, unsharded(stages))
    for device in found:
        for stage in stages:
            if stage.is_sharded and any(device in group for group in stage.replicas):
                alone = replace(stage, replicas=tuple(group for group in stage.replicas if device in group))
                whole = original(model, [alone])[device] - model.problem.profile.optimizer_ns
                found[device] += model.gathering_ns(stage) + -(-whole // len(stage.replicas)) - whole
    return found


def without_bucket(original: Any, model: CostModel, stage: Stage) -> int:
    """What any reduction holds is all."""
    return min(int(original(model, stage)), model.problem.profile.reduction_bytes)


def without_what_any_holds(original: Any, model: CostModel, stage: Stage) -> int:
    """The bucket alone is held."""
    return max(0, int(original(model, stage)) - model.problem.profile.reduction_bytes)


def with_whole_bucket(original: Any, model: CostModel, stage: Stage) -> int:
    """Where there is a bucket it has room for all gradients."""
    bucket = without_what_any_holds(original, model, stage)
    return without_bucket(original, model, stage) + (model.gradient_bytes(stage) if bucket else 0)


def reduced_to_all(original: Any, model: CostModel, stage: Stage) -> int:
    """A reduce-scatter takes what an all-reduce does."""
    return int(original(model, replace(stage, shard="none")))


def room_for_what_is_sent(original: Any, model: CostModel, stage: Stage) -> int:
    """A bucket holds what an all-reduce copies, and not what else a reduce-scatter receives."""
    return int(original(model, replace(stage, shard="none")))


def early_synchronisation(patch: Patch) -> None:
    """A stage synchronises a nanosecond before its last action has ended."""
    wrap(_Playback, "_synchronisations", lambda found: tuple(
        each._replace(start_ns=each.start_ns - 1, end_ns=each.end_ns - 1) for each in found
    ))(patch)  # fmt: skip


def impatient(kind: str) -> Fault:
    """Actions of one kind do not wait for what comes from other stages."""

    column = "FI".index(kind)
    return wrap(
        LaidOut, "arrivals", lambda rows: [[0 if n == column else count for n, count in enumerate(row)] for row in rows]
    )


def down(original: Any, share: Fraction, total: int) -> int:
    return int(share * total)


def parts_down(patch: Patch) -> None:
    put(planner.layout.costs, "part_of", down)(patch)
    put(planner.layout.stage_replicas, "part_of", down)(patch)


def no_memory_step(kind: str, step: int) -> Fault:
    """The given part of what an action of a kind adds is forgotten."""

    def changed(original: Any, cost: StageCost, what: str) -> tuple[int, int]:
        during, after = original(cost, what)
        return (during, after) if what != kind else (0, after) if step == 0 else (during, 0)

    return put(planner.layout.stage_replicas, "memory_steps", changed)


def whole_samples(patch: Patch) -> None:
    """Any part of a microbatch counts as whole samples."""
    patch.setattr(ModelProfile, "is_whole", lambda profile, share: True)


def all_linear(patch: Patch) -> None:
    """Costs that were not measured are taken in proportion, whatever the profile says."""
    patch.setattr(ModelProfile, "scales_linearly", True)


def more_overhead(kind: str, more: Callable[[Any, int, int], int]) -> Fault:
    """Actions of a kind take more: `more` of their stage, its replicas and the overhead."""
    field = {"F": "forward_ns", "I": "input_grad_ns"}[kind]

    def changed(original: Any, model: CostModel, stage: Any, *, device_type: str, **where: Any) -> StageCost:
        cost: StageCost = original(model, stage, device_type=device_type, **where)
        has_stages = model._has_others(stage)
        overhead = model.problem.profile.overhead_ns(device_type, kind, has_stages=has_stages)
        extra = more(stage, len(stage.replicas), overhead)
        return replace(cost, **{field: getattr(cost, field) + extra})

    return put(CostModel, "_make_stage_cost", changed)


def fused_overhead(original: Any, profile: ModelProfile, device_type: str, kind: str, *, has_stages: bool) -> int:
    """A fused backward has the overhead of two actions."""
    kinds = "IW" if kind == "B" else kind
    return int(sum(original(profile, device_type, each, has_stages=has_stages) for each in kinds))


def part_of_overhead(original: Any, model: CostModel, stage: Any, part: Any, *, device_type: str) -> int:
    """A part of I has a part of the overhead."""
    overhead = model.problem.profile.overhead_ns(device_type, "I", has_stages=model._has_others(stage))
    time = int(original(model, stage, part, device_type=device_type))
    return time - overhead + planner.layout.costs.part_of(part.share, overhead) if time else 0


def part_of_whole(original: Any, model: CostModel, stage: Any, part: Any, *, device_type: str) -> int:
    """A part of I takes that part of what all of it takes."""
    overhead = model.problem.profile.overhead_ns(device_type, "I", has_stages=model._has_others(stage))
    works = [model._require_work(name, device_type, width=1, replicas=1) for name in stage.layers]
    time = planner.layout.costs.part_of(part.share, sum(work.input_grad_ns for work in works))
    return time + overhead if part.share else 0


def nearest_size(original: Any, low: Any, high: Any, *, shares: tuple[Any, Any, int], source: str) -> Any:
    """A cost between two measured sizes is that of the nearest."""
    if source == "interpolated":
        low = high = low if shares[0] >= shares[1] else high
    return original(low, high, shares=shares, source=source)


def message(change: Callable[[list[int]], int]) -> Fault:
    """A message costs something else beyond its links; `change` of their overheads."""

    def changed(original: Any, cluster: Cluster, path: Any) -> Route:
        beyond = [cluster._network.arcs[number].message_overhead_ns for number in path]
        route: Route = original(cluster, path)
        return replace(route, latency_ns=route.latency_ns - max(beyond) + change(beyond))

    return put(Cluster, "_make_route", changed)


def one_message(original: Any, model: CostModel, stage: Any) -> int:
    """The messages of a ring have their overhead once together."""
    time, hops = int(original(model, stage)), 2 * (len(stage.replicas) - 1)
    heads = [group[0] for group in stage.replicas]
    links = {frozenset((link.a, link.b)): link.message_overhead_ns or 0 for link in model.problem.cluster.links}
    beyond = max(links.get(frozenset((a, b)), 0) for a, b in zip(heads, heads[1:] + heads[:1], strict=True))
    return time - (hops - 1) * beyond if time else 0


def whole_steps(original: Any, model: CostModel, stages: Any) -> dict[str, int]:
    """Every device of a group takes the optimizer's step of the whole stage."""
    alone = [replace(stage, replicas=(group[:1],)) for stage in stages for group in stage.replicas for _ in group]
    members = [device for stage in stages for group in stage.replicas for device in group]
    base, found = model.problem.profile.optimizer_ns, dict.fromkeys(members, model.problem.profile.optimizer_ns)
    for stage, device in zip(alone, members, strict=True):
        found[device] += max(original(model, [stage]).values()) - base
    return found


def one_step(original: Any, model: CostModel, stages: Any) -> dict[str, int]:
    """Of several stages on a device, only the one with the longest step takes it."""
    found: dict[str, int] = {}
    for stage in stages:
        found |= {device: max(time, found.get(device, 0)) for device, time in original(model, [stage]).items()}
    return found


def largest_size(original: Any, costs: CostModel, size: int | None) -> CostModel:
    """The costs of the largest microbatch, whichever it is."""
    return original(costs, size if size is None else costs.problem.sizes[-1])  # type: ignore[no-any-return]


def smallest_buffers(original: Any, costs: CostModel, plan: Plan) -> dict[str, int]:
    """What is resident if all microbatches were as small as the smallest."""
    problem = costs.problem
    if problem.microbatches is None:
        return original(costs, plan)  # type: ignore[no-any-return]
    same = replace(problem, microbatches=(problem.sizes[0],) * problem.num_microbatches)
    return original(CostModel(same), plan)  # type: ignore[no-any-return]


CORE_FAULTS: dict[str, Fault] = {
    "stash / 100": stage_cost(stash_bytes=lambda c: c.stash_bytes // 100, held_bytes=lambda c: c.held_bytes // 100),
    "F / 2": stage_cost(forward_ns=lambda c: c.forward_ns // 2),
    "I takes a nanosecond more": stage_cost(input_grad_ns=lambda c: c.input_grad_ns + 1),
    "W takes no time": stage_cost(weight_grad_ns=lambda c: 0),
    "B takes I + W": stage_cost(backward_ns=lambda c: c.input_grad_ns + c.weight_grad_ns),
    "F and I change places": stage_cost(forward_ns=lambda c: c.input_grad_ns, input_grad_ns=lambda c: c.forward_ns),
    "a byte of state is dropped": wrap(CostModel, "state_bytes", lambda size: size - 1),
    "the weight stash is given back with I": stage_cost(weight_stash_bytes=lambda c: 0),
    "the workspace is forgotten": stage_cost(workspace_bytes=lambda c: 0),
    "I gives back the workspace that it keeps": put(CostModel, "_make_stage_cost", forgetful_of_workspaces),
    "W has a workspace beside the one kept": stage_cost(weight_workspace_bytes=lambda c: c.workspace_bytes),
    "layers recompute at once": stage_cost(whole_backward_bytes=lambda c: c.stash_bytes),
    "a turn is forgotten": stage_cost(whole_backward_bytes=lambda c: c.held_bytes),
    "a stage that recomputes keeps its stash": stage_cost(held_bytes=lambda c: c.stash_bytes),
    "the recomputation is forgotten": layer_work(recompute_ns=0),
    "a layer's W is forgotten": layer_work(weight_grad_ns=0),
    "replicas do not share the work": put(
        planner.layout.costs, "_ceil", lambda original, total, parts: total if parts < 5 else original(total, parts)
    ),
    "shares are rounded down": put(planner.layout.costs, "_ceil", lambda original, total, parts: total // parts),
    "a byte of activations is dropped": traffic(lambda t: replace(t, forward_bytes=max(0, t.forward_bytes - 1))),
    "gradients are as large as activations": traffic(lambda t: replace(t, backward_bytes=t.forward_bytes)),
    "gradients flow everywhere": traffic(lambda t: replace(t, has_gradient=True)),
    "replicas send all they have": put(planner.layout.stage_replicas, "replica_overlaps", narrower),
    "receive buffers: one too many": put(
        CostModel, "static_bytes", without_options(receive_buffers=lambda o: o.receive_buffers + 1)
    ),
    "receive buffers are forgotten": put(CostModel, "static_bytes", without_options(receive_buffers=lambda o: 0)),
    "buckets are forgotten": put(CostModel, "reduction_bytes", without_bucket),
    "a bucket is as large as the gradients": put(CostModel, "reduction_bytes", with_whole_bucket),
    "what any reduction holds is forgotten": put(CostModel, "reduction_bytes", without_what_any_holds),
    "frozen layers synchronise gradients": put(CostModel, "gradient_bytes", gradient_of_frozen_layers),
    "the ring has a hop less": ring_of(lambda time, r: time * (r - 1) // r),
    "the ring goes once round": ring_of(lambda time, r: time // 2),
    "no stage synchronises": ring_of(lambda time, r: 0),
    "synchronisation begins too soon": early_synchronisation,
    "split placement: parts are rounded down": parts_down,
    "split placement: weights weigh nothing": put(CostModel, "parameter_bytes", lambda original, *_: 0),
    "latency is forgotten": put(Route, "duration_ns", without_latency),
    "transfers are rounded down": put(Route, "duration_ns", floor_time),
    "routes ignore bandwidth": put(DirectedLink, "weight", slow_links_first),
    "directions of links are mixed up": wrap(Cluster, "_make_route", other_direction),
    "the narrowest link is not the slowest": wrap(
        Cluster, "_make_route", lambda route: replace(route, bandwidth_bytes_per_s=2 * route.bandwidth_bytes_per_s)
    ),
    "the queue on links is skipped": no_queue,
    "F does not wait for its inputs": impatient("F"),
    "I does not wait for its gradients": impatient("I"),
    "F's memory is not seen while it runs": no_memory_step("F", 0),
    "I gives nothing back": no_memory_step("I", 1),
    "W gives nothing back": no_memory_step("W", 1),
    "the makespan is 5 ns short": timeline(makespan_ns=lambda t: t.makespan_ns - 5),
    "the span starts at zero": timeline(span_ns=lambda t: t.makespan_ns),
    "the bubble is half as large": timeline(bubble=lambda t: t.bubble / 2),
    "peaks are a byte too low": timeline(peak_bytes=lambda t: {d: max(0, b - 1) for d, b in t.peak_bytes.items()}),
    "the overhead of actions is forgotten": put(ModelProfile, "overhead_ns", lambda *_, **__: 0),
    "several stages cost no more than one": put(CostModel, "_has_others", lambda *_: False),
    "one stage costs as much as several": put(CostModel, "_has_others", lambda *_: True),
    "replicas share the overhead of actions": more_overhead(
        "F", lambda stage, replicas, overhead: -(-overhead // replicas) - overhead
    ),
    "every layer has the overhead of an action": more_overhead(
        "I", lambda stage, replicas, overhead: (len(stage.layers) - 1) * overhead
    ),
    "replicas exchange nothing": put(ModelProfile, "exchange_ns", lambda *_: 0),
    "B has the overhead of I and W": put(ModelProfile, "overhead_ns", fused_overhead),
    "a part of I has a part of the overhead": put(CostModel, "_shared_input_grad_ns", part_of_overhead),
    "a part of I is priced as a part of the whole": put(CostModel, "_shared_input_grad_ns", part_of_whole),
    "costs between sizes are those of the nearest": put(planner.layout.costs, "_work", nearest_size),
    "the overhead of messages is forgotten": message(lambda beyond: 0),
    "every link adds its overhead to a message": message(sum),
    "the messages of a ring have their overhead once": put(CostModel, "synchronisation_ns", one_message),
    "the optimizer's steps are forgotten": put(Layer, "optimizer_ns", lambda *_: 0),
    "groups take the optimizer's steps whole": put(CostModel, "steps_ns", whole_steps),
    "a device takes one stage's optimizer's step": put(CostModel, "steps_ns", one_step),
    "sharding replicas hold all of the optimizer's state": put(CostModel, "_elsewhere_bytes", lambda *_, **__: 0),
    "sharding replicas step all": put(CostModel, "steps_ns", steps_of_all),
    "sharding replicas do not gather the weights": put(CostModel, "gathering_ns", lambda *_: 0),
    "sharding replicas gather when they like": put(CostModel, "steps_ns", gathered_alone),
    "sharding replicas reduce gradients to all": put(CostModel, "synchronisation_ns", reduced_to_all),
    "sharding replicas have no room for what comes": put(CostModel, "reduction_bytes", room_for_what_is_sent),
    "overheads of messages decide the route": put(
        DirectedLink, "weight", lambda original, way, size: original(way, size) + (way.message_overhead_ns << 20)
    ),
    "microbatches cost what the largest does": put(CostModel, "at", largest_size),
    "receive buffers are for the smallest microbatch": put(CostModel, "static_bytes_of", smallest_buffers),
}
"""Each with what it is called in faults.json."""

ACCEPTING_FAULTS: dict[str, tuple[Fault, Callable[[], tuple[Problem, Plan]]]] = {
    "replicas may cut samples": (whole_samples, cut_sample),
    "a share of I may cut samples": (whole_samples, halved(microbatch_size=3)),
    "costs outside the measured sizes are scaled": (all_linear, unmeasured_share),
    "a share of I is priced by scaling": (all_linear, halved(microbatch_size=2, scaling="measured")),
}
"""Faults by which the core accepts what the contract does not allow, each with a plan that it accepts then."""
