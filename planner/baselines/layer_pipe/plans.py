"""LayerPipe under a synchronous barrier: a plan in which F, the halves of I, and W of a layer are placed freely."""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

from planner.actions import Action, Kind
from planner.baselines.applicability import (
    DoesNotApplyError,
    require_choices,
    require_split_backward,
    require_time,
)
from planner.baselines.layer_pipe.loads import Task, Work, place_freely
from planner.clock import HasTime, always
from planner.layout.costs import CostModel
from planner.plan import Plan, Share, Stage
from planner.simulation.simulate import simulate
from solver_models.simulation.job_list import NOBODY, list_jobs, make_jobs


def make_layer_pipe_plan(costs: CostModel, *, halves: bool = True, has_time: HasTime = always) -> Plan:
    """Every layer a stage, its tasks where the loads are most even; orders by list scheduling, backwards first.

    The processor of a layer's F holds its optimizer state. Raises DoesNotApplyError without the option
    `split_placement`, or if the options limit the stages per device or have decided otherwise.
    """
    require_split_backward(costs.problem)
    if not costs.problem.options.split_placement:
        raise DoesNotApplyError("needs split_placement")
    stages = _place_stages(costs, halves=halves, has_time=has_time)
    owned: dict[str, int] = {}
    for stage in stages:
        owned[stage.replicas[0][0]] = owned.get(stage.replicas[0][0], 0) + 1
    limit = costs.problem.options.max_stages_per_device
    if max(owned.values()) > limit:
        raise DoesNotApplyError(f"needs {max(owned.values())} stages per device, max_stages_per_device = {limit}")
    require_choices(costs, stages)
    return make_split_plan(costs, stages, has_time=has_time)


def _place_stages(costs: CostModel, *, halves: bool, has_time: HasTime = always) -> tuple[Stage, ...]:
    """The layers as stages, placed by `place_freely` on devices of the first one's type."""
    names = [device.name for device in costs.problem.cluster.devices]
    halves = halves and costs.has_share(Fraction(1, 2))
    processor_of = place_freely(_work_of(costs), len(names), halves=halves, has_time=has_time)
    stages = []
    for number, layer in enumerate(costs.problem.profile.topological_order):
        owner, first, weight = (names[processor_of[Task(part, number)]] for part in ("F", "I", "W"))
        second = names[processor_of[Task("I'", number)]] if halves else first
        if not costs.problem.profile.trains([layer]):
            weight = owner
        stages.append(_make_stage(layer, owner=owner, input_grads=(first, second), weight=weight))
    return tuple(stages)


def _make_stage(layer: str, *, owner: str, input_grads: tuple[str, str], weight: str) -> Stage:
    first, second = input_grads
    halves = tuple(Share(group=(name,), numerator=1, denominator=2) for name in input_grads)
    shares = (Share(group=(first,)),) if first == second else halves
    return Stage(
        layers=(layer,),
        replicas=((owner,),),
        input_grad_replicas=() if first == second == owner else shares,
        weight_grad_replicas=() if weight == owner else (Share(group=(weight,)),),
    )


def _work_of(costs: CostModel) -> Work:
    kind = costs.problem.cluster.devices[0].type
    layers = costs.problem.profile.topological_order
    works = [costs.layer_work(name, kind, width=1, replicas=1) for name in layers]
    found = [work for work in works if work is not None]  # baselines are made where every layer was measured at width 1
    return Work(
        forward=tuple(work.forward_ns for work in found),
        input_grad=tuple(work.input_grad_ns for work in found),
        weight_grad=tuple(work.weight_grad_ns for work in found),
    )


class _Job(NamedTuple):
    """An action on one of the devices that take part in it."""

    action: Action
    device: str


def make_split_plan(costs: CostModel, stages: tuple[Stage, ...], *, has_time: HasTime = always) -> Plan:
    """Stages with split placement in the better of two orders by list scheduling: I before W before F, or W last."""
    jobs = _list_jobs(costs, stages)
    links = _link_jobs(costs, stages, jobs=jobs)
    plans = []
    for ranks in RANKS:
        require_time(has_time)
        schedule = _order(costs, jobs, links=links, ranks=ranks)
        plans.append(Plan(problem=costs.problem.reference(), stages=stages, schedule=schedule))
    return min(plans, key=lambda plan: simulate(costs.problem, plan, costs=costs).makespan_ns)


def _list_jobs(costs: CostModel, stages: Sequence[Stage]) -> dict[_Job, int]:
    """Every action on every device that runs it (a part of), with its duration."""
    jobs: dict[_Job, int] = {}
    for number, stage in enumerate(stages):
        for device, kinds, duration in _durations_on(costs, stage):
            for kind in kinds:
                for microbatch in range(costs.problem.num_microbatches):
                    jobs[_Job(Action(kind, number, microbatch), device)] = duration[kind]
    return jobs


def _durations_on(costs: CostModel, stage: Stage) -> Iterator[tuple[str, tuple[Kind, ...], dict[Kind, int]]]:
    kinds: tuple[Kind, ...] = ("F", "I", "W")
    if stage.is_split:
        for part in costs.parts(stage):
            cost = costs.part_cost(stage, part)
            yield part.device, tuple(k for k in kinds if k in part.kinds), {k: cost.duration_ns(k) for k in kinds}
        return
    cost = costs.stage_cost(stage, 0)
    yield stage.replicas[0][0], kinds if cost.has_weight_grad else kinds[:2], {k: cost.duration_ns(k) for k in kinds}


class _Wait(NamedTuple):
    """A job that waits for another one, and the bytes that go from the one to the other if they are apart."""

    job: _Job
    num_bytes: int


def _link_jobs(costs: CostModel, stages: Sequence[Stage], *, jobs: dict[_Job, int]) -> dict[_Job, list[_Wait]]:
    """Which jobs wait for each one (every I for all shares of its consumers')."""
    devices: dict[tuple[Kind, int], list[str]] = {}
    for action, device in jobs:
        if action.microbatch == 0:
            devices.setdefault((action.kind, action.stage), []).append(device)
    before: dict[tuple[Kind, int], list[tuple[Kind, int, int]]] = {}
    for kind, number in devices:
        cost = costs.stage_cost(stages[number], 0)
        own: dict[Kind, list[tuple[Kind, int, int]]] = {
            "I": [("F", number, cost.stash_bytes)],
            "W": [("I", number, cost.weight_stash_bytes)],
        }
        before[kind, number] = own.get(kind, [])
    for (a, b), traffic in costs.traffic(stages).items():
        before["F", b].append(("F", a, traffic.forward_bytes))
        before["I", a].append(("I", b, traffic.backward_bytes))
    followers: dict[_Job, list[_Wait]] = {job: [] for job in jobs}
    for job in jobs:
        kind, number, microbatch = job.action
        shares = len(devices[kind, number])
        for other, source, num_bytes in before[kind, number]:
            parts = max(shares, len(devices[other, source]))
            for device in devices[other, source]:
                wait = _Wait(job, -(-num_bytes // parts))
                followers[_Job(Action(other, source, microbatch), device)].append(wait)
    return followers


RANKS = ("IWF", "IFW")
"""What goes first of what is ready: W before F holds fewer stashes, F before W keeps others busy."""


def _order(
    costs: CostModel, jobs: dict[_Job, int], *, links: dict[_Job, list[_Wait]], ranks: str
) -> dict[str, tuple[Action, ...]]:
    """Device orders by list scheduling; between two devices one thing is sent at a time, and memory is no matter."""
    numbers, names = {job: number for number, job in enumerate(jobs)}, list(dict.fromkeys(job.device for job in jobs))
    ranking = sorted(jobs, key=lambda job: (ranks.index(job.action.kind), job.action.microbatch, job.action.stage))
    rank = {job: number for number, job in enumerate(ranking)}
    edges, channels = list[tuple[int, int, int, int]](), dict[tuple[str, str], int]()
    for job in jobs:
        for wait in links[job]:
            pair, lag, channel = (job.device, wait.job.device), 0, NOBODY
            if pair[0] != pair[1]:
                channel = channels.setdefault(pair, len(channels))
                lag = costs.problem.cluster.route(*pair, num_bytes=wait.num_bytes).duration_ns(wait.num_bytes)
            edges.append((numbers[job], numbers[wait.job], lag, channel))
    columns = {
        "device": [names.index(job.device) for job in jobs],
        "ticks": list(jobs.values()),
        "rank": [rank[job] for job in jobs],
    }
    order, _ = list_jobs(make_jobs(columns, budget=[0] * len(names), edges=edges))
    every = list(jobs)
    ordered = [every[number] for number in order.tolist()]
    return {name: tuple(job.action for job in ordered if job.device == name) for name in names}
