"""Where the pipelines of a dealing stand, what an assignment takes on each, and the plan that assignments make."""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import NamedTuple

import numpy

from planner.actions import Action, Kind
from planner.baselines.applicability import DoesNotApplyError
from planner.baselines.partitions import Partition, even_layers, smallest_largest_stage
from planner.layout.costs import CostModel
from planner.layout.stage_replicas import lay_out_stages
from planner.plan import DeviceGroup, Plan, Stage
from planner.problem import Problem
from solver_models.device_rows import column
from solver_models.instance import Integers
from solver_models.simulation.job_list import JobTable, StageJobs, list_jobs, stage_jobs

KINDS: tuple[Kind, ...] = ("F", "I", "W", "B")

STUCK = 1 << 61
"""When an assignment ends that does not fit into memory."""

Assignments = Sequence[Sequence[int]]
"""By pipeline its microbatches, in order."""


def device_blocks(problem: Problem, pipelines: int) -> list[tuple[str, ...]]:
    """So many rows of devices, with equally many of every type each; none if a row would be empty."""
    of_type: dict[str, list[str]] = {}
    for device in problem.cluster.devices:
        of_type.setdefault(device.type, []).append(device.name)
    sizes = {name: len(members) // pipelines for name, members in of_type.items()}
    if not any(sizes.values()):
        return []
    place = {device.name: number for number, device in enumerate(problem.cluster.devices)}
    rows = []
    for k in range(pipelines):
        row = [name for kind, size in sizes.items() for name in of_type[kind][k * size : (k + 1) * size]]
        rows.append(tuple(sorted(row, key=place.__getitem__)) if len(of_type) == 1 else tuple(row))
    return rows


def cuts_for(costs: CostModel, devices: Sequence[str]) -> Iterator[Partition]:
    """Stages one after the other on these devices, or on the first of them where there are fewer layers."""
    problem = costs.problem
    if problem.options.partition is not None:
        if len(problem.options.partition) <= len(devices):
            yield problem.options.partition
        return
    count = min(len(devices), len(problem.profile.layers))
    found = []
    for make in (smallest_largest_stage, even_layers):
        try:
            cut = make(costs, devices[:count]) if make is smallest_largest_stage else even_layers(problem, count)
        except DoesNotApplyError:
            continue
        if cut not in found:
            found.append(cut)
            yield cut


def stages_on(cut: Partition, blocks: Sequence[Sequence[str]]) -> tuple[Stage, ...]:
    """Stage s on device s of every block."""
    return tuple(
        Stage(layers=layers, replicas=tuple((block[number],) for block in blocks)) for number, layers in enumerate(cut)
    )


def carried_over(stages: Sequence[Stage], blocks: Sequence[Sequence[str]]) -> tuple[Stage, ...]:
    """Stages of one replica on the first block, repeated on all of them."""
    place = {device: number for number, device in enumerate(blocks[0])}
    groups: list[tuple[DeviceGroup, ...]] = [
        tuple(tuple(block[place[device]] for device in stage.replicas[0]) for block in blocks) for stage in stages
    ]
    return tuple(replace(stage, replicas=own) for stage, own in zip(stages, groups, strict=True))


class _StageTables(NamedTuple):
    """S stages on P positions, with E transfers between them, for microbatches of C sizes."""

    position: Integers
    """[S] who runs the stage."""
    has_weight: list[bool]
    """[S] whether there is a W."""
    ticks: Integers
    """[C, S, 4] of F, I, W and B."""
    steps: Integers
    """[C, S, 4, 2] bytes that an action adds while it runs, and those that it adds for good."""
    transfers: list[tuple[int, int, bool]]
    """[E] sending stage, receiving stage, whether a gradient."""
    delay: Integers
    """[C, E + 1] ticks of the transfers; nothing in the last column."""
    budget: Integers
    """[P] bytes beside what is resident."""


@dataclass(frozen=True, kw_only=True)
class AssignmentTable:
    """What assignments take on the stages of a layout: on those of its first pipeline, which the others are like."""

    costs: CostModel
    """Of the problem that lists microbatches."""
    stages: tuple[Stage, ...]
    """With a replica per pipeline."""
    depth: float = 1.0
    """How many times as many microbatches are between F and I as in 1F1B."""
    fuses: bool = True
    """Whether I and W run as B."""

    @property
    def problem(self) -> Problem:
        """The planning problem."""
        return self.costs.problem

    def run_otherwise(self, *, depth: float, fuses: bool) -> "AssignmentTable":
        """The same stages with another depth, or with I and W apart; what stages cost is not added up again."""
        other = replace(self, depth=depth, fuses=fuses)
        same: dict[str, object] = {
            name: self.__dict__[name] for name in ("own", "sizes", "tables") if name in self.__dict__
        }
        other.__dict__.update(same)
        return other

    @cached_property
    def own(self) -> tuple[Stage, ...]:
        """The stages of the first pipeline."""
        return tuple(replace(stage, replicas=stage.replicas[:1], shard="none") for stage in self.stages)

    @cached_property
    def sizes(self) -> Integers:
        """[M] the number of every microbatch's size."""
        order = {size: number for number, size in enumerate(self.problem.sizes)}
        return numpy.array([order[size] for size in self.problem.microbatches or ()], dtype=numpy.int64)

    @cached_property
    def tables(self) -> _StageTables:
        """What the actions of the stages take, hold and send."""
        at = [lay_out_stages(self.own, costs=self.costs.at(size)) for size in self.problem.sizes]
        groups = list(dict.fromkeys(stage.replicas[0] for stage in self.own))
        transfers = [sent[:3] for sent in at[-1].transfers]
        ticks = [{sent[:3]: sent.ticks for sent in laid_out.transfers} for laid_out in at]
        return _StageTables(
            position=column([groups.index(stage.replicas[0]) for stage in self.own]),
            has_weight=[each.cost.has_weight_grad for each in at[0].replicas],
            ticks=numpy.stack([laid_out.durations_ns[:, 0] for laid_out in at]),
            steps=numpy.stack([laid_out.memory_steps[:, 0] for laid_out in at]),
            transfers=transfers,
            delay=column([[*(row.get(sent, 0) for sent in transfers), 0] for row in ticks]),
            budget=column([self._room(group) for group in groups]),
        )

    @cached_property
    def _jobs_of(self) -> Callable[[int], StageJobs]:
        """The jobs of so many microbatches."""
        num_positions = len(self.tables.budget)
        caps = [self._cap(number, num_positions=num_positions) for number in range(len(self.own))]
        kinds = [(0, 3) if has and self.fuses else (0, 1, 2) if has else (0, 1) for has in self.tables.has_weight]
        return cache(lambda count: stage_jobs(kinds, self.tables.transfers, caps=caps, count=count))

    def _cap(self, number: int, *, num_positions: int) -> int:
        """Microbatches of a stage between F and I: in 1F1B with one stage per device those of the stages after it."""
        chunks = len(self.own) // num_positions
        ahead = num_positions - int(self.tables.position[number]) + (chunks - 1) * num_positions
        return max(1, round(self.depth * (len(self.own) - number if chunks == 1 else ahead)))

    def _room(self, group: DeviceGroup) -> int:
        """What the tightest device of a group has beside what is resident, were the largest microbatch its own."""
        devices = self.problem.cluster.by_name
        return min(devices[name].usable_bytes - self._static[name] for name in group)

    @cached_property
    def _static(self) -> dict[str, int]:
        everything = tuple(range(self.problem.num_microbatches))
        plan = Plan(problem=self.problem.reference(), stages=self.stages, schedule={})
        return self.costs.static_bytes_of(replace(plan, dealing=(everything,) * len(self.stages[0].replicas)))

    def play(self, assignment: Sequence[int]) -> int:
        """When a pipeline with these microbatches, in this order, ends."""
        if not assignment:
            return 0
        jobs = self._jobs(assignment)
        order, end = list_jobs(jobs)
        return end if len(order) == len(jobs.device) else STUCK

    def _jobs(self, assignment: Sequence[int]) -> JobTable:
        of, tables, sizes = self._jobs_of(len(assignment)), self.tables, self.sizes[list(assignment)]
        place = sizes[of.microbatch], of.stage, of.kind
        return of.table(
            tables.position,
            ticks=tables.ticks[place],
            steps=tables.steps[place],
            lag=tables.delay[sizes[of.sent], of.transfer],
            budget=tables.budget,
        )

    def fits(self, assignments: Assignments) -> bool:
        """Whether every assignment can be played to its end."""
        return all(assignment and self.play(assignment) < STUCK for assignment in assignments)

    def plan(self, assignments: Assignments) -> Plan:
        """The plan in which every pipeline plays its assignment."""
        schedule: dict[str, tuple[Action, ...]] = {}
        dealing = []
        for number, assignment in enumerate(assignments):
            device_orders: list[list[Action]] = [[] for _ in self.own]
            of = self._jobs_of(len(assignment))
            for job in list_jobs(self._jobs(assignment))[0]:
                action = Action(KINDS[of.kind[job]], int(of.stage[job]), assignment[of.microbatch[job]])
                device_orders[self.tables.position[action.stage]].append(action)
            groups = dict.fromkeys(stage.replicas[number] for stage in self.stages)
            for group, device_order in zip(groups, device_orders, strict=False):
                schedule |= dict.fromkeys(group, tuple(device_order))
            dealing.append(tuple(assignment))
        return Plan(problem=self.problem.reference(), stages=self.stages, schedule=schedule, dealing=tuple(dealing))


def longest_first(table: AssignmentTable, pipelines: int) -> list[list[int]]:
    """Longest first onto the least loaded pipeline, by the position that has most to do."""
    load = loads(table)
    assignments: list[list[int]] = [[] for _ in range(pipelines)]
    sums = [(0, number) for number in range(pipelines)]
    for number in sorted(range(len(load)), key=lambda number: -load[number]):
        total, least = sums[0]
        assignments[least].append(number)
        heapq.heapreplace(sums, (total + load[number], least))
    return assignments


def loads(table: AssignmentTable) -> list[int]:
    """[M] what every microbatch takes on the position that has most to do."""
    ticks = table.tables.ticks[:, :, [0, 3]].sum(axis=2)
    by_position = numpy.stack(
        [ticks[:, table.tables.position == p].sum(axis=1) for p in range(len(table.tables.budget))], axis=1
    )
    whole = by_position[table.sizes].sum(axis=0)
    return [int(value) for value in by_position[table.sizes, int(whole.argmax())]]
