"""A plan and a training, ready to run on this process of a process group that exists."""

import hashlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
from torch import distributed, nn

from planner.document import render_plan
from planner.execute.action_log import ActionLog, CudaClock, HostClock
from planner.execute.executed_timeline import IterationTimes
from planner.execute.layout import Layout, Pipelines, make_layout
from planner.execute.reduction import StageReduction, Tie, clip_gradients
from planner.execute.route_check import check_routed_rows
from planner.execute.routed_runtime import RoutedRuntime, RoutedStage, meet
from planner.execute.routes import Cell, lower, make_routes
from planner.execute.runtime import PlanRuntime, PlanStage, StepRuntime
from planner.execute.stage_module import StageModule, StageShape, fingerprint, make_layer, trace_stages
from planner.execute.table_check import check_compute_table, check_replicas
from planner.execute.training import Tensors, Training, as_tuple
from planner.execute.watch import describe_needs
from planner.execute.wiring import BATCH, StageEdge, StageWiring, find_edges, is_chain, make_wirings
from planner.plan import Plan

Split = Literal["deferred", "native"]
"""How a backward is split into I and W: `deferred` puts weight gradients off, `native` walks the graph twice."""

Skip = Literal["direct", "relay"]
"""How a tensor gets over stages that do not use it: straight to those that do, or handed on by those between."""


Messages = Literal["auto", "own"]
"""Who sends: `auto` leaves it to torch where stages form chains; `own` never does, and needs fewer receive buffers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """What one process knows about one iteration."""

    losses: tuple[float, ...]
    """Per microbatch, mean (or sum) over the replicas; empty where the last stage is not here."""
    gradient_norm: float | None
    """Of all gradients of the model before they were clipped; None if they are not."""
    duration_ns: int
    """From the first action to the end of the optimizer's step."""
    actions: tuple[tuple[str, int, int], ...]
    """Name, start and end of every action of this process, in nanoseconds of its host's wall clock."""
    times: IterationTimes
    """What lies around the actions, by the same clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """All that is known without talking to another process."""

    plan: Plan
    training: Training
    layout: Layout
    wirings: tuple[StageWiring, ...]
    edges: tuple[StageEdge, ...]
    """Which stage talks to which."""
    shapes: tuple[StageShape, ...]
    """Per stage, of one replica."""
    split: Split
    skip: Skip
    rows: tuple[tuple[Cell, ...], ...] | None
    """Per rank what it does, messages included; None where torch finds that out by itself: pipelines of chains."""

    @property
    def plan_sha256(self) -> str:
        """Content hash of the plan."""
        return hashlib.sha256(render_plan(self.plan).encode()).hexdigest()

    @property
    def model_sha256(self) -> str:
        """Content hash of all shapes of the model."""
        return fingerprint(self.shapes)


def prepare(
    plan: Plan,
    training: Training,
    *,
    split: Split = "deferred",
    skip: Skip = "direct",
    messages: Messages = "auto",
) -> Preparation:
    """Check that plan and training fit together, without weights and without other processes.

    Raises ValueError that says what does not fit, the same on every process.
    """
    layout = make_layout(plan)
    if training.max_norm is not None and not training.max_norm > 0:
        raise ValueError(f"max_norm = {training.max_norm} is not positive; leave it out, or give the norm to clip to")
    stages, layers = [stage.layers for stage in plan.stages], list(training.layers)
    wirings = make_wirings(stages, layers, inputs=training.inputs, is_relayed=False)
    is_plain = messages == "auto" and has_like_replicas(layout) and (skip == "relay" or is_chain(wirings))
    if is_plain or skip == "relay":
        wirings = make_wirings(stages, layers, inputs=training.inputs)
    shapes = _trace(training, wirings, layout=layout)
    if split == "native":
        if any(stage.recompute for stage in plan.stages):
            raise ValueError(
                "the native split recomputes once per weight in W; use --split deferred, or plan with recompute = false"
            )
        layout = _with_whole_backward(layout, shapes)
    edges = find_edges(wirings)
    if is_plain:
        _require_chains(layout)
    return Preparation(
        plan=plan,
        training=training,
        layout=layout,
        wirings=wirings,
        edges=edges,
        shapes=shapes,
        split=split,
        skip=skip,
        rows=None if is_plain else _lower(layout, edges),
    )


def has_like_replicas(layout: Layout) -> bool:
    """Whether pipelines run side by side and reduce their stages in one order: torch does so as each stage ends."""
    if not isinstance(layout, Pipelines):
        return False
    tables = [
        _with_reductions(layout.table(replica), layout.num_microbatches) for replica in range(layout.num_replicas)
    ]
    return not check_replicas(tables)


def _require_chains(layout: Layout) -> None:
    assert isinstance(layout, Pipelines)
    faults = [
        fault
        for replica in range(layout.num_replicas)
        for fault in check_compute_table(
            layout.table(replica), num_stages=layout.num_stages, num_microbatches=layout.num_microbatches
        )
    ]
    if faults:
        raise ValueError(f"the plan's schedule cannot run on a chain of stages: {'; '.join(faults[:3])}")


def _lower(layout: Layout, edges: Sequence[StageEdge]) -> tuple[tuple[Cell, ...], ...]:
    try:
        rows = lower(layout, edges)
    except ValueError as error:
        raise ValueError(f"the plan's schedule cannot run: {error}") from None
    faults = check_routed_rows(
        rows,
        owners=layout.owners,
        edges=[(edge.producer, edge.consumer) for edge in edges],
        num_microbatches=layout.num_microbatches,
    )
    if faults:
        raise ValueError(f"the plan's schedule cannot run: {'; '.join(faults[:3])}")
    return tuple(map(tuple, rows))


def _trace(training: Training, wirings: Sequence[StageWiring], *, layout: Layout) -> tuple[StageShape, ...]:
    """The shapes of every stage with its own number of replicas; samples have to lie along dimension 0 between stages
    with different ones.
    """
    inputs, _ = training.batch(0)
    traced = {}
    for count in layout.replica_counts:
        mine = [split_batch(tensor, layout, num_replicas=count, replica=0)[0] for tensor in as_tuple(inputs)]
        traced[count] = trace_stages(training, wirings, batch=tuple(mine))
    split_batch(training.batch(0)[1], layout, num_replicas=1, replica=0)
    counts = [len(ranks) for ranks in layout.owners]
    for number, wiring in enumerate(wirings):
        shapes = {count: traced[count][number] for count in traced}
        for edge in find_edges(wirings):
            if edge.consumer == number and counts[edge.producer] != counts[number]:
                _require_samples_first(shapes, wiring.arrives, stage=number)
    return tuple(traced[count][number] for number, count in enumerate(counts))


def _require_samples_first(shapes: dict[int, StageShape], names: Sequence[str], *, stage: int) -> None:
    """Between different numbers of replicas, dimension 0 shrinks as the number of samples does, and no other."""
    first, *others = shapes.items()
    for count, shape in others:
        for mine, theirs in zip(first[1].inputs, shape.inputs, strict=True):
            is_cut = mine.dim() > 0 and mine.shape[0] * first[0] == theirs.shape[0] * count
            if not is_cut or mine.shape[1:] != theirs.shape[1:]:
                raise ValueError(
                    f"stage {stage} takes {', '.join(names)}: with {first[0]} and {count} replicas of what gives them "
                    f"the shapes are {tuple(mine.shape)} and {tuple(theirs.shape)}, but samples have to lie along "
                    "dimension 0 where the number of replicas changes; plan with uneven_replication = false"
                )


def _with_whole_backward(layout: Layout, shapes: Sequence[StageShape]) -> Layout:
    """Torch's native I does nothing where nothing before is trained, and its W then leaves every gradient out."""
    whole = {number for number, shape in enumerate(shapes) if number and not any(t.requires_grad for t in shape.inputs)}
    rows = tuple(
        tuple(
            action._replace(kind="B") if action.kind == "I" and action.stage in whole else action
            for action in row
            if not (action.kind == "W" and action.stage in whole)
        )
        for row in layout.rows
    )
    return replace(layout, rows=rows)


def split_batch(tensor: torch.Tensor, layout: Layout, *, num_replicas: int, replica: int) -> torch.Tensor:
    """The samples of one replica of several as (microbatch, sample, ...); raises ValueError if they cannot be cut
    evenly for every stage.
    """
    counts = layout.replica_counts
    parts = layout.num_microbatches * math.lcm(*counts)
    if tensor.dim() == 0 or tensor.shape[0] == 0 or tensor.shape[0] % parts:
        size = "no samples" if tensor.dim() == 0 else f"{tensor.shape[0]} samples"
        raise ValueError(
            f"the batch has {size}, which cannot be cut into {layout.num_microbatches} microbatches for "
            f"{' and '.join(map(str, counts))} replicas; give a positive multiple of {parts}"
        )
    cut = tensor.reshape(layout.num_microbatches, num_replicas, -1, *tensor.shape[1:])
    return cut[:, replica]


class Execution:
    """This process's part of a plan: its stages, its optimizer, and one iteration after the other."""

    def __init__(self, preparation: Preparation, *, device: torch.device, log: ActionLog | None = None) -> None:
        """The default process group has to exist and to be as large as the plan's layout; a collective call."""
        self.preparation, self.device = preparation, device
        self.plan, self.training, self.layout = preparation.plan, preparation.training, preparation.layout
        self.rank = distributed.get_rank()
        self.log = log or make_log(device)
        self.log.needs = describe_needs(self.layout, preparation.edges, rank=self.rank)
        self.groups = _Groups(self.layout, is_routed=preparation.rows is not None)
        self.routes = () if preparation.rows is None else make_routes(self.layout, preparation.edges)
        self.stages = [self._make_stage(number) for number in self.layout.stages_of(self.rank)]
        self.ties = self._make_ties()
        for stage in self.stages:
            stage.reduction = StageReduction(
                list(stage.submod.parameters()), group=self.groups.stages[stage.stage_index], divisor=self._divisor
            )
        self.runtime = self._make_runtime()
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        self.optimizer = self.training.optimizer(trained) if trained else None
        torch.manual_seed(self.training.seed * 1_000_003 + 500_009 + self.rank)  # dropout: every rank its own

    @property
    def _divisor(self) -> int:
        """Losses are means over the samples of one replica of the last stage."""
        return 1 if self.training.loss_is_sum else self.layout.num_microbatches * len(self.layout.owners[-1])

    @property
    def is_last(self) -> bool:
        """Whether the last stage is here."""
        return self.stages[-1].stage_index == self.layout.num_stages - 1

    @property
    def is_speaker(self) -> bool:
        """Whether this process, of all that know the losses, tells them."""
        return self.rank == self.layout.owners[-1][0]

    def is_keeper(self, stage: int) -> bool:
        """Whether this process, of all replicas of a stage, speaks for it."""
        return self.rank == self.layout.owners[stage][0]

    def parameters(self) -> list[nn.Parameter]:
        """All parameters on this process."""
        return [parameter for stage in self.stages for parameter in stage.submod.parameters()]

    def layer(self, name: str) -> nn.Module:
        """A layer that is here; raises KeyError for any other."""
        for stage in self.stages:
            if name in self.plan.stages[stage.stage_index].layers:
                return cast(StageModule, stage.submod).layer(name)
        raise KeyError(name)

    def _make_stage(self, number: int) -> PlanStage:
        wiring, shape = self.preparation.wirings[number], self.preparation.shapes[number]
        layers = {name: make_layer(self.training, name, device=self.device) for name in wiring.layers}
        module = StageModule(wiring, layers, counts=shape.counts, recompute=self.plan.stages[number].recompute)
        options: dict[str, Any] = {
            "num_stages": self.layout.num_stages,
            "shape": shape,
            "device": self.device,
            "group": self.groups.pipeline,
            "log": self.log,
            "is_deferring": self.preparation.split == "deferred",
        }
        if self.preparation.rows is None:
            return PlanStage(module, number, **options)
        return RoutedStage(module, number, edges=self.preparation.edges, routes=self.routes, **options)

    def _make_runtime(self) -> StepRuntime:
        count, loss = self.layout.num_microbatches, self.training.loss
        if self.preparation.rows is not None:
            meet(self.routes, device=self.device)
            row = self.preparation.rows[self.rank]
            return RoutedRuntime(cast(list[RoutedStage], self.stages), row=row, num_microbatches=count, loss=loss)
        assert isinstance(self.layout, Pipelines)
        table = self.layout.table(self.layout.replica_of(self.rank))
        return PlanRuntime(self.stages, table=table, num_microbatches=count, loss=loss)

    def _make_ties(self) -> list[Tie]:
        """Collective: every process makes the groups of all ties, its own or not."""
        stage_of = {name: number for number, stage in enumerate(self.plan.stages) for name in stage.layers}
        ties = []
        for names in self.training.tied:
            _require_known(names, stage_of)
            holders = {name: stage_of[name.partition(":")[0]] for name in names}
            ranks = {rank for stage in holders.values() for rank in self.layout.owners[stage]}
            group = _new_group(ranks)
            mine = [name for name, stage in holders.items() if self.rank in self.layout.owners[stage]]
            if mine:
                counted = [self._parameter(name) for name in mine if self.is_keeper(holders[name])]
                source = self.layout.owners[holders[names[0]]][0]
                copies = [self._parameter(name) for name in mine]
                ties.append(Tie(copies, counted=counted, group=group, source=source))
        for tie in ties:
            tie.share_value()
        return ties

    def _parameter(self, name: str) -> nn.Parameter:
        layer, _, path = name.partition(":")
        return self.layer(layer).get_parameter(path)

    def step(self, number: int) -> Iteration:
        """Run iteration `number`: all actions of this process, the reduction and the optimizer."""
        inputs, target = self._batch(number)
        start, begin = time.perf_counter_ns(), self.log.clock.mark()
        losses = self.runtime.run(inputs, target)
        self.log.note("the reduction of its gradients")
        for stage in self.stages:
            if stage.reduction is not None:
                stage.reduction.finish()
        for tie in self.ties:
            tie.share_grad()
        reduced = self.log.clock.mark()
        norm = self._clip()
        if self.optimizer is not None:
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        values = self._reduced(losses)
        duration, end, resolve = time.perf_counter_ns() - start, self.log.clock.mark(), self.log.clock.resolve
        taken_up = tuple(self.log.taken_up())
        actions = tuple(self.log.end_iteration())
        times = IterationTimes(taken_up, begin_ns=resolve(begin), reduced_ns=resolve(reduced), end_ns=resolve(end))
        return Iteration(losses=values, gradient_norm=norm, duration_ns=duration, actions=actions, times=times)

    def _clip(self) -> float | None:
        if self.training.max_norm is None:
            return None
        return clip_gradients(
            self.parameters(), counted=self._counted(), max_norm=self.training.max_norm, device=self.device
        )

    def _counted(self) -> list[nn.Parameter]:
        """The parameters that no other process counts: of a stage's replicas the first has them, of a tie its first
        parameter.
        """
        again = {name for names in self.training.tied for name in names[1:]}
        return [
            parameter
            for stage in self.stages
            if self.is_keeper(stage.stage_index)
            for layer in self.plan.stages[stage.stage_index].layers
            for path, parameter in self.layer(layer).named_parameters()
            if f"{layer}:{path}" not in again
        ]

    def _batch(self, number: int) -> tuple[Tensors, torch.Tensor | None]:
        """The whole of this process's share for torch's own stages; routed ones are given theirs at once."""
        takers = [stage for stage in self.stages if BATCH in self.preparation.wirings[stage.stage_index].arrives]
        takers = [stage for stage in takers if stage.stage_index == 0 or self.preparation.skip == "direct"]
        if not (takers or self.is_last):
            return (), None
        inputs, target = self.training.batch(number)
        arguments: Tensors = ()
        for stage in takers:
            shares = [self._share(tensor, stage.stage_index) for tensor in as_tuple(inputs)]
            if isinstance(stage, RoutedStage):
                stage.batch = list(zip(*shares, strict=True))
            else:
                arguments = tuple(share.flatten(0, 1) for share in shares)
        last = self.layout.num_stages - 1
        return arguments, self._share(target, last).flatten(0, 1) if self.is_last else None

    def _share(self, tensor: torch.Tensor, stage: int) -> torch.Tensor:
        """The samples of a stage's replica here, as (microbatch, sample, ...)."""
        owners = self.layout.owners[stage]
        replica = owners.index(self.rank)
        return split_batch(tensor, self.layout, num_replicas=len(owners), replica=replica).to(self.device)

    def _reduced(self, losses: dict[int, torch.Tensor]) -> tuple[float, ...]:
        if not losses:
            return ()
        values = torch.stack(list(losses.values()))
        last = self.layout.num_stages - 1
        if group := self.groups.stages[last]:
            distributed.all_reduce(values, group=group)
            values = values if self.training.loss_is_sum else values / len(self.layout.owners[last])
        return tuple(values.tolist())


class _Groups:
    """The process groups of a layout, seen from this process; making them is a collective call."""

    def __init__(self, layout: Layout, *, is_routed: bool) -> None:
        rank = distributed.get_rank()
        self.pipeline: Any = None
        """The processes that torch's stages know; None: all there are."""
        self.stages: list[Any] = [None] * layout.num_stages
        """Per stage the processes that hold it, if there are several."""
        circles = [range(each, each + 1) for each in range(layout.world_size)] if is_routed else []
        if isinstance(layout, Pipelines) and layout.num_replicas > 1 and not is_routed:
            circles = [layout.pipeline(replica) for replica in range(layout.num_replicas)]
        for circle in circles:
            group = distributed.new_group(list(circle))
            if rank in circle:
                self.pipeline = group
        for number, ranks in enumerate(layout.owners):
            group = _new_group(set(ranks))
            if rank in ranks:
                self.stages[number] = group


def make_log(device: torch.device) -> ActionLog:
    """A log whose clock fits the device."""
    return ActionLog(CudaClock() if device.type == "cuda" else HostClock())


def _new_group(ranks: set[int]) -> Any:
    return distributed.new_group(sorted(ranks)) if len(ranks) > 1 else None


def _require_known(names: Sequence[str], stage_of: dict[str, int]) -> None:
    for name in names:
        if name.partition(":")[0] not in stage_of:
            raise ValueError(f"`tied` names {name!r}, but there is no such layer; write layer:path.of.parameter")


def _with_reductions(table: list[list[str]], num_microbatches: int) -> list[list[str]]:
    """Each row with a reduction after the last W or B of a stage, as torch puts them."""
    rows = []
    for row in table:
        count: dict[str, int] = {}
        cells: list[str] = []
        for cell in row:
            cells.append(cell)
            stage, kind = cell.rstrip("0123456789")[:-1], cell.rstrip("0123456789")[-1]
            if kind in "WB":
                count[stage] = count.get(stage, 0) + 1
                if count[stage] == num_microbatches:
                    cells.append(f"{stage}REDUCE_GRAD")
        rows.append(cells)
    return rows
