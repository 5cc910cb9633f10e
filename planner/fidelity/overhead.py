"""What the executor costs beyond layers and links, from a short run of two stages (docs/reference/contract.md)."""

import itertools
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

from planner.actions import Action, parse_action
from planner.fidelity.attribution import Comparison
from planner.fidelity.calibration import divided, scaled_layer, with_held, with_shorter_step
from planner.fidelity.executed_run import ExecutedIteration, make_iteration
from planner.fidelity.expected import expected, low
from planner.fidelity.whole_batch import (
    WholeBatchRun,
    batch_at_once,
    held_permille,
    lengths_by_kind,
    plan_whole_batch,
    reduction_ns,
    waiting_ns,
    with_whole_batch,
)
from planner.layout.costs import CostModel
from planner.plan import Plan, Stage
from planner.problem import Problem
from planner.simulation.simulate import simulate
from profiles.cluster import Cluster, Device, Link
from profiles.model_profile import MAX_EXCHANGE_NS, ActionOverhead, Layer, ModelProfile

DEVICES = ("probe0", "probe1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """Overheads of actions and transfers that the comparison found."""

    layers: tuple[Layer, ...]
    """As they took in the run, their exchanges aside."""
    action: ActionOverhead
    message_ns: int
    """Beyond what the link takes."""
    exchanges: Mapping[str, tuple[int, int]]
    """Per layer that has any: how often its replicas tell each other of their samples in F, and on the way back."""
    iteration_ns: int
    """What a process does in an iteration beyond its actions and the optimizer's steps of its layers, in every plan."""
    stages_iteration_ns: int
    """What plans of several stages add to that."""
    reserved_bytes: int | None
    """What processes held beyond the plan's peak: runtime, messages, the allocator's slack; None: unknown."""
    reduction_bytes: int
    """What processes of a replicated stage held beyond that, too; 0: nothing, or unknown."""
    reduction_ns: int | None
    """What it took to put all gradients together, over `reduced_bytes`; None: nothing was replicated."""
    reduced_bytes: int
    """The model's gradients."""
    num_actions: int
    """Actions that were timed."""
    predicted_ns: int
    """What an iteration of the probe takes by these figures."""
    measured_ns: int
    """What it took by the wall's clock, the median: what is more is waiting that nothing here explains."""
    sharded: tuple[Mapping[str, Any], ...] = ()
    """Iterations of processes that share all state, each with its part of the whole batch; none: nothing was sharded.
    """


def make_probe(profile: ModelProfile, *, device_type: str, num_microbatches: int, link: Link | None) -> Problem:
    """The question that the probe's plan answers: two devices, with a link like `link`."""
    like = Link(
        a=DEVICES[0],
        b=DEVICES[1],
        bandwidth_bytes_per_s=10**10 if link is None else link.bandwidth_bytes_per_s,
        latency_ns=0 if link is None else link.latency_ns,
        message_times=() if link is None else link.message_times,
    )
    devices = tuple(Device(name=name, type=device_type, memory_bytes=2**45) for name in DEVICES)
    cluster = Cluster(name="probe", devices=devices, links=(like,))
    return Problem(profile=profile, cluster=cluster, num_microbatches=num_microbatches)


def make_probe_plan(problem: Problem) -> Plan:
    """One forward and one backward in turn on two stages; every other backward is split. At least two layers."""
    names = list(problem.profile.topological_order)
    times = [problem.profile.by_name[name].costs[0].forward_ns for name in names]
    cut = min(range(1, len(names)), key=lambda at: abs(sum(times[:at]) - sum(times[at:])))
    stages = tuple(
        Stage(layers=tuple(part), replicas=((device,),))
        for part, device in zip((names[:cut], names[cut:]), DEVICES, strict=True)
    )
    schedule = {
        device: _make_order(problem, number, stage=stage)
        for number, (device, stage) in enumerate(zip(DEVICES, stages, strict=True))
    }
    return Plan(problem=problem.reference(), stages=stages, schedule=schedule)


def make_replicated_plan(problem: Problem) -> Plan | None:
    """One stage on both devices, its backwards whole; None where a microbatch has no two equal parts."""
    size = problem.profile.microbatch_size
    names, costs = problem.profile.topological_order, CostModel(problem)
    stage = Stage(layers=names, replicas=tuple((device,) for device in DEVICES))
    if size is None or size % 2 or not costs.has_share(Fraction(1, 2)):
        return None
    last: Literal["I", "B"] = "B" if problem.profile.trains(names) else "I"
    order = tuple(Action(kind, 0, m) for m in range(problem.num_microbatches) for kind in ("F", last))
    return Plan(problem=problem.reference(), stages=(stage,), schedule=dict.fromkeys(DEVICES, order))


def _make_order(problem: Problem, number: int, *, stage: Stage) -> tuple[Action, ...]:
    """One F more before the first backward on the first stage than on the last."""
    has_weights = problem.profile.trains(stage.layers)
    total, ahead = problem.num_microbatches, 2 - number
    order = [Action("F", number, m) for m in range(min(ahead, total))]
    for m in range(total):
        kinds: Sequence[Literal["F", "I", "W", "B"]] = ("I", "W") if m % 2 or total == 1 else ("B",)
        order += [Action(kind, number, m) for kind in (kinds if has_weights else ("I",))]
        if m + ahead < total:
            order.append(Action("F", number, m + ahead))
    return tuple(order)


def find_overheads(
    problem: Problem,
    plan: Plan,
    *,
    ranks: Sequence[Mapping[str, Any]],
    device_type: str,
    has_idle_cores: bool = False,
) -> Overheads:
    """What the processes of a probe wrote, on average.

    `has_idle_cores`: threads that serve messages run beside the actions; otherwise actions pay for them.
    """
    inside = _lengths(ranks, plan=plan)
    layers = _as_run(problem, plan, inside=inside, device_type=device_type)
    problem = replace(problem, profile=replace(problem.profile, layers=layers))
    direct = _find_direct(problem, ranks=ranks, device_type=device_type)
    if direct is not None:
        problem = replace(problem, profile=replace(problem.profile, layers=direct.layers))
    exchanges = {name: (f, b) for name, (f, b) in ranks[0]["exchanges"].items() if f or b}
    exchange_ns = _find_exchange(problem, ranks=ranks)
    layers = _with_whole_batch(problem, direct, ranks=ranks, device_type=device_type, exchange_ns=exchange_ns)
    problem = replace(problem, profile=replace(problem.profile, layers=layers))
    surplus = {} if direct is None else _surplus(problem, plan, inside=inside)
    serving = 0.0 if has_idle_cores else expected([each for rank in ranks for each in rank["serving"]])
    pairs = 2 * problem.num_microbatches  # a message per F, and one per I or B
    found = {
        kind: round(expected(samples) + surplus.get(kind, 0) + (serving / pairs if kind != "W" else 0))
        for kind, samples in _between([entry for rank in ranks for entry in rank["thread"]]).items()
    }
    split, message_ns = (found.get("I", 0), found.get("W", 0)), _find_message(problem, plan, ranks=ranks)
    action = ActionOverhead(
        device_type=device_type,
        forward_ns=found.get("F", 0),
        input_grad_ns=split[0],
        weight_grad_ns=split[1],
        backward_ns=min(found.get("B", sum(split)), sum(split)),
        exchange_ns=exchange_ns,
    )
    always_ns = iteration_ns = _find_closing(problem, plan, ranks=ranks, message_ns=message_ns)
    if direct is not None:
        action, always_ns = divided(action, direct.action), min(direct.iteration_ns, iteration_ns)
    layers, reserve = problem.profile.layers, _find_reserve(problem, plan, ranks=ranks)
    return Overheads(
        layers=layers,
        action=action,
        exchanges=exchanges,
        message_ns=message_ns,
        iteration_ns=always_ns,
        stages_iteration_ns=iteration_ns - always_ns,
        reserved_bytes=reserve,
        reduction_bytes=_find_reduction(problem, layers=layers, reserve=reserve, ranks=ranks),
        reduction_ns=_find_reduction_ns(ranks, has_idle_cores=has_idle_cores),
        reduced_bytes=_gradient_bytes(problem),
        num_actions=sum(len(entry["actions"]) for rank in ranks for entry in rank["thread"]),
        predicted_ns=_predict(problem, plan, action=action, message_ns=message_ns, iteration_ns=iteration_ns),
        measured_ns=round(_middle([each.duration_ns for each in _iterations(plan, ranks)])),
    )


def _find_reduction_ns(ranks: Sequence[Mapping[str, Any]], *, has_idle_cores: bool) -> int | None:
    """What putting gradients together adds to an iteration: from the end of the actions on, and beneath them.

    Buckets that are sent during the last backward take the processor from it, unless a core is idle. The thread's clock
    does not count that. Nor does an average over processes count that all wait for the slowest. Replicas that exchange
    statistics send no bucket early.
    """
    visible = reduction_ns([[*rank["replicated"], *rank["whole"]] for rank in ranks])
    waiting = waiting_ns([[*rank["replicated_thread"], *rank["whole_thread"]] for rank in ranks])
    served = [each for rank in ranks for each in (*rank["replicated_served"], *rank["whole_served"])]
    exchanges = any(any(each) for each in ranks[0]["exchanges"].values())
    hidden = 0.0 if has_idle_cores or exchanges else expected(served)
    return None if visible is None else visible + round(waiting + hidden)


def _gradient_bytes(problem: Problem) -> int:
    whole = Stage(layers=tuple(problem.profile.by_name), replicas=((DEVICES[0],),))
    return CostModel(problem).gradient_bytes(whole)


def _predict(problem: Problem, plan: Plan, *, action: ActionOverhead, message_ns: int, iteration_ns: int) -> int:
    profile = replace(problem.profile, action_overhead_ns=(action,), optimizer_ns=iteration_ns, stages_optimizer_ns=0)
    links = tuple(replace(link, message_overhead_ns=message_ns) for link in problem.cluster.links)
    cluster = replace(problem.cluster, links=links)
    return simulate(replace(problem, profile=profile, cluster=cluster), plan).makespan_ns


def _lengths(ranks: Sequence[Mapping[str, Any]], *, plan: Plan) -> dict[tuple[int, str], list[int]]:
    """How long actions worked, by stage and kind; what F takes longer before an I is counted with I, as profiles do."""
    found = defaultdict[tuple[int, str], list[int]](list)
    split = {(each.stage, each.microbatch) for row in plan.schedule.values() for each in row if each.kind == "I"}
    noting = defaultdict[int, list[int]](list)
    for entry in (entry for rank in ranks for entry in rank["thread"]):
        for name, start, end in entry["actions"]:
            action = parse_action(name)
            is_noting = action.kind == "F" and (action.stage, action.microbatch) in split
            lengths = noting[action.stage] if is_noting else found[action.stage, action.kind]
            lengths.append(end - start)
    for stage, lengths in noting.items():
        plain = found[stage, "F"] = found.get((stage, "F")) or lengths
        longer = max(0, round(_middle(lengths) - _middle(plain)))
        found[stage, "I"] = [each + longer for each in found[stage, "I"]]
    return found


def _between(entries: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
    """What a process did before actions of each kind, since the last one; on its own clock waiting takes no time."""
    found = defaultdict[str, list[int]](list)
    for entry in entries:
        for (_, _, last), (name, start, _) in itertools.pairwise(entry["actions"]):
            found[parse_action(name).kind].append(start - last)
    return found


def _as_run(
    problem: Problem, plan: Plan, *, inside: Mapping[tuple[int, str], Sequence[int]], device_type: str
) -> tuple[Layer, ...]:
    """The layers as they take in actions of their stage, where one autograd pass goes through all of them."""
    costs, layers = CostModel(problem), dict(problem.profile.by_name)
    for number, stage in enumerate(plan.stages):
        planned = {kind: costs.planned_ns(stage, 0, kind=kind) for at, kind in inside if at == number}
        ratios = {
            kind: (round(expected(samples)), planned[kind])
            for (at, kind), samples in inside.items()
            if at == number and planned[kind]
        }
        for name in stage.layers:
            layers[name] = scaled_layer(layers[name], device_type, ratios=ratios)
    return tuple(layers[layer.name] for layer in problem.profile.layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Direct:
    """What a stage that is the whole model takes: run as a training loop does it, without messages."""

    layers: tuple[Layer, ...]
    """Of which F and B of all together take as long as they did there, and no longer than in the pipeline."""
    action: ActionOverhead
    """Beyond the layers."""
    iteration_ns: int


def _find_direct(problem: Problem, *, ranks: Sequence[Mapping[str, Any]], device_type: str) -> _Direct | None:
    """From the run on replicas; None where there was none, or where replicas wait for each other within actions."""
    plan, entries = make_replicated_plan(problem), [entry for rank in ranks for entry in rank["replicated_thread"]]
    if plan is None or not entries or any(any(each) for rank in ranks for each in rank["exchanges"].values()):
        return None
    (stage,), profile = plan.stages, replace(problem.profile, action_overhead_ns=())
    planned = CostModel(replace(problem, profile=profile)).stage_cost(stage, 0)
    usual = {kind: round(expected(samples)) for kind, samples in lengths_by_kind(entries).items()}
    ratios = {kind: (min(ns, planned.duration_ns(kind)), planned.duration_ns(kind)) for kind, ns in usual.items()}
    if "I" in ratios or not all(whole for _, whole in ratios.values()):  # nothing to train, or nothing measured
        return None
    layers = [scaled_layer(layer, device_type, ratios=ratios) for layer in profile.layers]
    gaps = _between(entries)
    over = {
        kind: round(expected(gaps.get(kind, ()))) + max(0, ns - planned.duration_ns(kind)) for kind, ns in usual.items()
    }
    adding = [int(entry["times"]["reduced_ns"] - entry["actions"][-1][2]) for entry in entries]  # which is the link's
    around = round(expected([_around(entry) - ns for entry, ns in zip(entries, adding, strict=True)]))
    steps = sum(layer.optimizer_ns(device_type) for layer in layers)
    if around < steps:  # a step of all layers at once takes less than one of each
        layers = [with_shorter_step(layer, (around, steps)) for layer in layers]
    return _Direct(
        layers=tuple(layers),
        action=ActionOverhead(
            device_type=device_type,
            forward_ns=over.get("F", 0),
            input_grad_ns=over.get("B", 0),
            backward_ns=over.get("B", 0),
        ),
        iteration_ns=max(0, around - steps),
    )


def _with_whole_batch(
    problem: Problem,
    direct: _Direct | None,
    *,
    ranks: Sequence[Mapping[str, Any]],
    device_type: str,
    exchange_ns: int,
) -> tuple[Layer, ...]:
    """The layers as they take, and as much as they hold, where replicas take the whole batch at once, if they did.

    Layers were timed by the thread's clock, but replicas that exchange statistics wait for each other within
    actions: of these the host's clock tells.
    """
    small, entries = make_replicated_plan(problem), [entry for rank in ranks for entry in rank["whole"]]
    whole = plan_whole_batch(problem, small, memory_bytes=None)
    if small is None or whole is None or not entries:
        return problem.profile.layers
    beyond = {kind: sum(each) * exchange_ns for kind, each in _exchange_counts(ranks).items()}
    if direct is not None:
        entries = [entry for rank in ranks for entry in rank["whole_thread"]]
        beyond = {kind: direct.action.of(kind, has_stages=False) for kind in "FIB"}
    runs = [
        WholeBatchRun(problem=at, plan=plan, entries=entries, peak_bytes=_peaks(ranks, f"{name}_peak_bytes"))
        for name, at, plan in (("replicated", problem, small), ("whole", batch_at_once(problem), whole))
    ]
    least = 2 if direct is not None else 1
    at_once = batch_at_once(replace(problem, profile=replace(problem.profile, action_overhead_ns=())))
    cost = CostModel(at_once).stage_cost(whole.stages[0], 0)
    planned = {kind: cost.duration_ns(kind) for kind in "FIB"}
    layers = with_whole_batch(problem, runs[1], device_type=device_type, planned=planned, beyond=beyond, parts=least)
    permille = held_permille(*runs)
    return tuple(with_held(layer, permille) for layer in layers)


def _peaks(ranks: Sequence[Mapping[str, Any]], name: str) -> dict[str, int]:
    held = {str(rank["device"]): int(rank[name]) for rank in ranks if rank[name] is not None}
    return held if len(held) == len(ranks) else {}


def _exchange_counts(ranks: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
    """How often replicas exchange statistics in F, and on the way back."""
    pairs = list(ranks[0]["exchanges"].values())
    back = [backward for _, backward in pairs]
    return {"F": [forward for forward, _ in pairs], "I": back, "B": back}


def _surplus(problem: Problem, plan: Plan, *, inside: Mapping[tuple[int, str], Sequence[int]]) -> dict[str, float]:
    """By how much actions of a kind of the pipeline took longer than their layers, on the mean over its stages."""
    costs, found = CostModel(problem), defaultdict[str, list[float]](list)
    for (number, kind), samples in inside.items():
        found[kind].append(max(0.0, expected(samples) - costs.planned_ns(plan.stages[number], 0, kind=kind)))
    return {kind: statistics.fmean(each) for kind, each in found.items()}


def _find_reserve(problem: Problem, plan: Plan, *, ranks: Sequence[Mapping[str, Any]]) -> int | None:
    """What processes held beyond the plan's peak, the mean: where a heap's holes lie differs, and one run has few."""
    peaks = simulate(problem, plan).peak_bytes
    if any(rank["peak_bytes"] is None for rank in ranks):
        return None
    return round(statistics.fmean(max(0, rank["peak_bytes"] - peaks[rank["device"]]) for rank in ranks))


def _find_reduction(
    problem: Problem, *, layers: tuple[Layer, ...], reserve: int | None, ranks: Sequence[Mapping[str, Any]]
) -> int:
    """What processes held as replicas of the whole model beyond what the plan says of them by now, the mean."""
    plan, held = make_replicated_plan(problem), [rank["replicated_peak_bytes"] for rank in ranks]
    if plan is None or reserve is None or None in held:
        return 0
    profile = replace(problem.profile, layers=layers, reduction_bytes=0)
    peaks = simulate(replace(problem, profile=profile), plan).peak_bytes
    beyond = statistics.fmean(size - peaks[rank["device"]] for size, rank in zip(held, ranks, strict=True))
    return max(0, round(beyond - reserve))


def _find_closing(problem: Problem, plan: Plan, *, ranks: Sequence[Mapping[str, Any]], message_ns: int) -> int:
    """What the process that has most to do does around its actions, on its own clock, and the messages of two in turn
    by which all processes agree that losses and gradients are finite.

    The optimizer's steps of the layers that a process holds are taken off: the profile has them.
    """
    all_ns, own = CostModel(problem).steps_ns(plan.stages), problem.profile.optimizer_ns
    steps = [all_ns[rank["device"]] - own for rank in ranks]
    worked = max(expected([_around(e) for e in rank["thread"]]) - s for rank, s in zip(ranks, steps, strict=True))
    return max(0, round(worked)) + 2 * (problem.cluster.links[0].latency_ns + message_ns)


def _around(entry: Mapping[str, Any]) -> int:
    """From the begin to the first action, waiting for its inputs aside, and from the last one to the end."""
    times = entry["times"]
    return int(times["taken_up_ns"][0] - times["begin_ns"] + times["end_ns"] - entry["actions"][-1][2])


def _middle(samples: Sequence[int]) -> float:
    return statistics.median(samples) if samples else 0.0


def _find_exchange(problem: Problem, *, ranks: Sequence[Mapping[str, Any]]) -> int:
    """What one exchange adds to the actions of replicas: all that they take beyond their layers, by the wall.

    0 where nothing was run on replicas.
    """
    plan = make_replicated_plan(problem)
    counts = {kind: sum(each) for kind, each in _exchange_counts(ranks).items()}
    taken = lengths_by_kind(entry for rank in ranks for entry in rank["replicated"])
    total = sum(counts[kind] for kind in taken)
    if plan is None or not total:
        return 0
    cost = CostModel(problem).stage_cost(plan.stages[0], 0)
    beyond = sum(expected(samples) - cost.duration_ns(kind) for kind, samples in taken.items())
    return min(MAX_EXCHANGE_NS, max(0, round(beyond / total)))


def _iterations(plan: Plan, ranks: Sequence[Mapping[str, Any]]) -> list[ExecutedIteration]:
    return [
        make_iteration(
            number,
            plan=plan,
            rows={rank["device"]: (rank["wall"][number]["actions"], rank["wall"][number]["times"]) for rank in ranks},
        )
        for number in range(len(ranks[0]["wall"]))
    ]


def _find_message(problem: Problem, plan: Plan, *, ranks: Sequence[Mapping[str, Any]]) -> int:
    """What messages took beyond their link, where the receiver waited: the lower quartile, others only ever add."""
    iterations = _iterations(plan, ranks)
    comparison = Comparison(problem, plan, timeline=simulate(problem, plan), iterations=iterations)
    extra = []
    for channel, samples in comparison.lag_samples().items():
        route = problem.cluster.route(channel.sender, channel.receiver, num_bytes=channel.num_bytes)
        extra += [lag - route.duration_ns(channel.num_bytes) for lag in samples]
    return max(0, round(low(extra)))
