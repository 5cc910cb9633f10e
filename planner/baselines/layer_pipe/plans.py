"""LayerPipe under a synchronous barrier: a plan in which F, the halves of I, and W of a layer are placed freely."""

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from planner.actions import Action, Kind
from planner.baselines.applicability import DoesNotApplyError, require_split_backward
from planner.baselines.layer_pipe.loads import Task, Work, place_freely
from planner.costs import CostModel
from planner.plan import Plan, Share, Stage
from planner.simulate import Timeline


def make_layer_pipe_plan(costs: CostModel, *, halves: bool = True) -> Plan:
    """Every layer a stage, its tasks where the loads are most even; orders by list scheduling, backwards first.

    The processor of a layer's F holds its optimizer state. Raises DoesNotApplyError without the option
    `split_placement`, or if the options limit the stages per device.
    """
    require_split_backward(costs.problem)
    if not costs.problem.options.split_placement:
        raise DoesNotApplyError("needs split_placement")
    stages = place_stages(costs, halves=halves)
    owned: dict[str, int] = {}
    for stage in stages:
        owned[stage.replicas[0][0]] = owned.get(stage.replicas[0][0], 0) + 1
    limit = costs.problem.options.max_stages_per_device
    if max(owned.values()) > limit:
        raise DoesNotApplyError(f"needs {max(owned.values())} stages per device, max_stages_per_device = {limit}")
    return make_split_plan(costs, stages)


def place_stages(costs: CostModel, *, halves: bool) -> tuple[Stage, ...]:
    """The layers as stages, seated by `place_freely` on devices of the first one's type."""
    names = [device.name for device in costs.problem.cluster.devices]
    seat = place_freely(_work_of(costs), len(names), halves=halves)
    stages = []
    for number, layer in enumerate(costs.problem.profile.topological_order):
        owner, first, weight = (names[seat[Task(part, number)]] for part in ("F", "I", "W"))
        second = names[seat[Task("I'", number)]] if halves else first
        if not costs.problem.profile.by_name[layer].is_trainable:
            weight = owner
        stages.append(_make_stage(layer, owner=owner, input_grads=(first, second), weight=weight))
    return tuple(stages)


def _make_stage(layer: str, *, owner: str, input_grads: tuple[str, str], weight: str) -> Stage:
    first, second = input_grads
    shares = (Share(group=(first,)),) if first == second else tuple(_half(name) for name in input_grads)
    return Stage(
        layers=(layer,),
        replicas=((owner,),),
        input_grad_replicas=() if first == second == owner else shares,
        weight_grad_replicas=() if weight == owner else (Share(group=(weight,)),),
    )


def _half(device: str) -> Share:
    return Share(group=(device,), numerator=1, denominator=2)


def _work_of(costs: CostModel) -> Work:
    kind = costs.problem.cluster.devices[0].type
    layers = costs.problem.profile.topological_order
    works = [costs.layer_work(name, kind, width=1, replicas=1) for name in layers]
    found = [work for work in works if work is not None]  # a Problem has every layer measured at width 1
    return Work(
        forward=tuple(work.forward_ns for work in found),
        input_grad=tuple(work.input_grad_ns for work in found),
        weight_grad=tuple(work.weight_grad_ns for work in found),
    )


class _Job(NamedTuple):
    """An action on one of the devices that take part in it."""

    action: Action
    device: str


def make_split_plan(costs: CostModel, stages: tuple[Stage, ...]) -> Plan:
    """Stages with split placement, ordered by list scheduling, I before W before F, without transfers."""
    jobs = _list_jobs(costs, stages)
    waits, followers = _link_jobs(costs, stages, jobs=jobs)
    words = _schedule(jobs, waits, followers=followers)
    return Plan(
        problem=costs.problem.reference(), stages=stages, schedule={d: tuple(word) for d, word in words.items()}
    )


def _list_jobs(costs: CostModel, stages: Sequence[Stage]) -> dict[_Job, int]:
    """Every action on every device that runs it (a part of), with its duration."""
    jobs: dict[_Job, int] = {}
    for number, stage in enumerate(stages):
        for device, kinds, duration in _seats(costs, stage):
            for kind in kinds:
                for microbatch in range(costs.problem.num_microbatches):
                    jobs[_Job(Action(kind, number, microbatch), device)] = duration[kind]
    return jobs


def _seats(costs: CostModel, stage: Stage) -> Iterator[tuple[str, tuple[Kind, ...], dict[Kind, int]]]:
    kinds: tuple[Kind, ...] = ("F", "I", "W")
    if stage.is_split:
        for part in costs.parts(stage):
            cost = costs.part_cost(stage, part)
            yield part.device, tuple(k for k in kinds if k in part.kinds), {k: cost.duration_ns(k) for k in kinds}
        return
    cost = costs.stage_cost(stage, 0)
    yield stage.replicas[0][0], kinds if cost.has_weight_grad else kinds[:2], {k: cost.duration_ns(k) for k in kinds}


def _link_jobs(
    costs: CostModel, stages: Sequence[Stage], *, jobs: dict[_Job, int]
) -> tuple[dict[_Job, int], dict[_Job, list[_Job]]]:
    """How many jobs each one waits for, and which wait for it (every I for all shares of its consumers')."""
    devices: dict[tuple[str, int], list[str]] = {}
    for action, device in jobs:
        if action.microbatch == 0:
            devices.setdefault((action.kind, action.stage), []).append(device)
    before: dict[tuple[str, int], list[tuple[str, int]]] = {}
    for kind, stage in devices:
        before[kind, stage] = [("F", stage)] if kind == "I" else [("I", stage)] if kind == "W" else []
    for a, b in costs.traffic(stages):
        before["F", b].append(("F", a))
        before["I", a].append(("I", b))
    waits: dict[_Job, int] = {}
    followers: dict[_Job, list[_Job]] = {job: [] for job in jobs}
    for job in jobs:
        kind, stage, microbatch = job.action
        needed = [(other, device) for other in before[kind, stage] for device in devices[other]]
        waits[job] = len(needed)
        for (other, number), device in needed:
            followers[_Job(Action(other, number, microbatch), device)].append(job)  # type: ignore[arg-type]
    return waits, followers


_RANK = {"I": 0, "W": 1, "F": 2}


def _schedule(
    jobs: dict[_Job, int], waits: dict[_Job, int], *, followers: dict[_Job, list[_Job]]
) -> dict[str, list[Action]]:
    """List scheduling of jobs that wait for one another."""
    waiting: dict[str, list[tuple[int, int, int, Action]]] = {device: [] for _, device in jobs}
    words: dict[str, list[Action]] = {device: [] for device in waiting}
    busy = dict.fromkeys(waiting, False)
    events: list[tuple[int, _Job]] = []

    def release(job: _Job) -> None:
        action = job.action
        heappush(waiting[job.device], (_RANK[action.kind], action.microbatch, action.stage, action))

    def start(device: str, now: int) -> None:
        if not busy[device] and waiting[device]:
            action = heappop(waiting[device])[-1]
            busy[device] = True
            words[device].append(action)
            heappush(events, (now + jobs[_Job(action, device)], _Job(action, device)))

    for job, count in waits.items():
        if count == 0:
            release(job)
    for device in waiting:
        start(device, 0)
    while events:
        now, ended = heappop(events)
        busy[ended.device] = False
        touched = {ended.device}
        for job in followers[ended]:
            waits[job] -= 1
            if waits[job] == 0:
                release(job)
                touched.add(job.device)
        for device in sorted(touched):
            start(device, now)
    return words


def bytes_moved(timeline: Timeline) -> int:
    """Bytes of all transfers between devices in an iteration: activations, gradients, weights, stashes."""
    return sum(sent.num_bytes for sent in timeline.transfers)
