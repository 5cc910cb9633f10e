"""A plan and a training, ready to run on this process of a process group that exists."""

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import distributed, nn

from planner.document import render_plan
from planner.execute.action_log import ActionLog, CudaClock, HostClock
from planner.execute.executed_timeline import IterationTimes
from planner.execute.layout import Layout, make_layout
from planner.execute.reduction import StageReduction, Tie
from planner.execute.runtime import PlanRuntime, PlanStage
from planner.execute.stage_module import StageModule, StageShape, fingerprint, make_layer, trace_stages
from planner.execute.table_check import check_compute_table, check_replicas
from planner.execute.training import Tensors, Training, as_tuple
from planner.execute.wiring import StageWiring, make_wirings
from planner.plan import Plan

Split = Literal["deferred", "native"]
"""How a backward is split into I and W: `deferred` puts weight gradients off, `native` walks the graph twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """What one process knows about one iteration."""

    losses: tuple[float, ...]
    """Per microbatch, mean (or sum) over the replicas; empty where the last stage is not here."""
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
    shapes: tuple[StageShape, ...]
    split: Split

    @property
    def plan_sha256(self) -> str:
        """Content hash of the plan."""
        return hashlib.sha256(render_plan(self.plan).encode()).hexdigest()

    @property
    def model_sha256(self) -> str:
        """Content hash of all shapes of the model."""
        return fingerprint(self.shapes)


def prepare(plan: Plan, training: Training, *, split: Split = "deferred") -> Preparation:
    """Check that plan and training fit together, without weights and without other processes.

    Raises ValueError that says what does not fit, the same on every process.
    """
    layout = make_layout(plan)
    faults = [
        fault
        for replica in range(layout.num_replicas)
        for fault in check_compute_table(
            layout.table(replica), num_stages=layout.num_stages, num_microbatches=layout.num_microbatches
        )
    ]
    if faults:
        raise ValueError(f"the plan's schedule cannot run on a chain of stages: {'; '.join(faults[:3])}")
    wirings = make_wirings([stage.layers for stage in plan.stages], list(training.layers), inputs=training.inputs)
    inputs, target = training.batch(0)
    share = [split_batch(tensor, layout, replica=0)[:1] for tensor in (*as_tuple(inputs), target)]
    shapes = trace_stages(training, wirings, batch=tuple(part.flatten(0, 1) for part in share[:-1]))
    if split == "native" and any(stage.recompute for stage in plan.stages):
        raise ValueError(
            "the native split recomputes once per weight in W; use --split deferred, or plan with recompute = false"
        )
    return Preparation(
        plan=plan,
        training=training,
        layout=_with_whole_backward(layout, shapes) if split == "native" else layout,
        wirings=wirings,
        shapes=shapes,
        split=split,
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
    return Layout(
        devices=layout.devices,
        num_replicas=layout.num_replicas,
        owners=layout.owners,
        rows=rows,
        num_microbatches=layout.num_microbatches,
    )


def split_batch(tensor: torch.Tensor, layout: Layout, *, replica: int) -> torch.Tensor:
    """The samples of one replica as (microbatch, sample, ...); raises ValueError if they cannot be cut evenly."""
    parts = layout.num_microbatches * layout.num_replicas
    if tensor.dim() == 0 or tensor.shape[0] == 0 or tensor.shape[0] % parts:
        size = "no samples" if tensor.dim() == 0 else f"{tensor.shape[0]} samples"
        raise ValueError(
            f"the batch has {size}, which cannot be cut into {layout.num_microbatches} microbatches for "
            f"{layout.num_replicas} replicas; give a positive multiple of {parts}"
        )
    cut = tensor.reshape(layout.num_microbatches, layout.num_replicas, -1, *tensor.shape[1:])
    return cut[:, replica]


class Execution:
    """This process's part of a plan: its stages, its optimizer, and one iteration after the other."""

    def __init__(self, preparation: Preparation, *, device: torch.device, log: ActionLog | None = None) -> None:
        """The default process group has to exist and to be as large as the plan's layout; a collective call."""
        self.preparation, self.device = preparation, device
        self.plan, self.training, self.layout = preparation.plan, preparation.training, preparation.layout
        self.rank = distributed.get_rank()
        self.replica = self.layout.replica_of(self.rank)
        self.log = log or make_log(device)
        self.groups = _Groups(self.layout)
        self.stages = [self._make_stage(number) for number in self.layout.stages_of(self.rank)]
        self.ties = self._make_ties()
        for stage in self.stages:
            stage.reduction = StageReduction(
                list(stage.submod.parameters()), group=self.groups.stages[stage.stage_index], divisor=self._divisor
            )
        self.runtime = PlanRuntime(
            self.stages,
            table=self.layout.table(self.replica),
            num_microbatches=self.layout.num_microbatches,
            loss=self.training.loss,
        )
        self._require_like_replicas()
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        self.optimizer = self.training.optimizer(trained) if trained else None
        torch.manual_seed(self.training.seed * 1_000_003 + 500_009 + self.rank)  # dropout: every rank its own

    @property
    def _divisor(self) -> int:
        return 1 if self.training.loss_is_sum else self.layout.num_microbatches * self.layout.num_replicas

    @property
    def is_first(self) -> bool:
        """Whether the first stage is here."""
        return self.stages[0].stage_index == 0

    @property
    def is_last(self) -> bool:
        """Whether the last stage is here."""
        return self.stages[-1].stage_index == self.layout.num_stages - 1

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
        return PlanStage(
            module,
            number,
            num_stages=self.layout.num_stages,
            shape=shape,
            device=self.device,
            group=self.groups.pipeline,
            log=self.log,
            is_deferring=self.preparation.split == "deferred",
        )

    def _make_ties(self) -> list[Tie]:
        """Collective: every process makes the groups of all ties, its own or not."""
        stage_of = {name: number for number, stage in enumerate(self.plan.stages) for name in stage.layers}
        ties = []
        for names in self.training.tied:
            _require_known(names, stage_of)
            holders = [stage_of[name.partition(":")[0]] for name in names]
            groups = [
                _new_group({self.layout.owner(stage, replica=replica) for stage in holders})
                for replica in range(self.layout.num_replicas)
            ]
            mine = [name for name in names if stage_of[name.partition(":")[0]] in self.layout.stages_of(self.rank)]
            if mine:
                copies = [self.layer(name.partition(":")[0]).get_parameter(name.partition(":")[2]) for name in mine]
                source = self.layout.owner(holders[0], replica=self.replica)
                ties.append(Tie(copies, group=groups[self.replica], source=source))
        for tie in ties:
            tie.share_value()
        return ties

    def _require_like_replicas(self) -> None:
        """The replicas' tables are known to every process, so each comes to the same conclusion."""
        tables = [
            _with_reductions(self.layout.table(replica), self.layout.num_microbatches)
            for replica in range(self.layout.num_replicas)
        ]
        if faults := check_replicas(tables):
            raise ValueError(f"the replicas would wait for each other: {'; '.join(faults[:3])}")

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
        if self.optimizer is not None:
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        values = self._reduced(losses)
        duration, end, resolve = time.perf_counter_ns() - start, self.log.clock.mark(), self.log.clock.resolve
        taken_up = tuple(self.log.taken_up())
        actions = tuple(self.log.end_iteration())
        times = IterationTimes(taken_up, begin_ns=resolve(begin), reduced_ns=resolve(reduced), end_ns=resolve(end))
        return Iteration(losses=values, duration_ns=duration, actions=actions, times=times)

    def _batch(self, number: int) -> tuple[Tensors, torch.Tensor | None]:
        if not (self.is_first or self.is_last):
            return (), None
        inputs, target = self.training.batch(number)
        return (
            tuple(self._share(tensor) for tensor in as_tuple(inputs)) if self.is_first else (),
            self._share(target) if self.is_last else None,
        )

    def _share(self, tensor: torch.Tensor) -> torch.Tensor:
        """This replica's samples of all microbatches, one microbatch after the other."""
        return split_batch(tensor, self.layout, replica=self.replica).flatten(0, 1).to(self.device)

    def _reduced(self, losses: dict[int, torch.Tensor]) -> tuple[float, ...]:
        if not losses:
            return ()
        values = torch.stack(list(losses.values()))
        if group := self.groups.stages[self.layout.num_stages - 1]:
            distributed.all_reduce(values, group=group)
            values = values if self.training.loss_is_sum else values / self.layout.num_replicas
        return tuple(values.tolist())


class _Groups:
    """The process groups of a layout, seen from this process; making them is a collective call."""

    def __init__(self, layout: Layout) -> None:
        rank = distributed.get_rank()
        self.pipeline: Any = None
        """Its pipeline's processes; None: all there are."""
        self.stages: list[Any] = [None] * layout.num_stages
        """Per stage the processes that hold it, if there are several."""
        if layout.num_replicas == 1:
            return
        for replica in range(layout.num_replicas):
            group = distributed.new_group(list(layout.pipeline(replica)))
            if replica == layout.replica_of(rank):
                self.pipeline = group
        for number, ranks in enumerate(layout.owners):
            group = distributed.new_group(sorted(ranks))
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
