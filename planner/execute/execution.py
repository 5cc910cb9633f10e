"""A plan and a training, ready to run on this process of a process group that exists."""

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import distributed, nn

from planner.document import render_plan
from planner.errors import ExecutionError
from planner.execute.action_log import ActionLog, CudaClock, HostClock
from planner.execute.batch_copies import ready_to_copy, to_device
from planner.execute.batch_norms import exchange_in
from planner.execute.data_agreement import (
    digest_batch,
    digest_stage,
    find_batch_difference,
    find_drift,
    find_team_drift,
)
from planner.execute.executed_timeline import IterationTimes
from planner.execute.forward_pass import ForwardPass, Held, evaluating
from planner.execute.group_parts import GroupParts
from planner.execute.layer_run import Moment
from planner.execute.layout import Layout, Pipelines, make_layout
from planner.execute.memory_use import MemoryMeter
from planner.execute.message_queues import make_queues
from planner.execute.reduction import StageReduction, Tie, bucket_bytes_of
from planner.execute.route_check import check_routed_rows
from planner.execute.routed_runtime import RoutedRuntime, RoutedStage, meet
from planner.execute.routes import Cell, lower, make_routes
from planner.execute.runtime import ChainStage, PlanRuntime, PlanStage, StepRuntime
from planner.execute.shard_check import require_sharding
from planner.execute.sharding import ShardedReduction, ShardPiece
from planner.execute.stage_module import (
    StageModule,
    StageShape,
    fingerprint,
    make_layer,
    trace_stages,
    unflatten,
)
from planner.execute.table_check import check_compute_table, check_replicas
from planner.execute.torch_versions.supported import sends_itself
from planner.execute.training import Batch, Tensors, Training, as_tuple
from planner.execute.update import Update, UpdateOutcome
from planner.execute.user_code import calling
from planner.execute.watch import describe_needs
from planner.execute.width_check import GroupTrial, require_widths, stand_ins
from planner.execute.wiring import BATCH, StageEdge, StageWiring, find_edges, is_chain, make_wirings
from planner.plan import Plan

Split = Literal["deferred", "native"]
"""How a backward is split into I and W: `deferred` puts weight gradients off, `native` walks the graph twice."""

Skip = Literal["direct", "relay"]
"""How a tensor gets over stages that do not use it: straight to those that do, or handed on by those between."""

CHECK_EVERY = 100
"""Iterations between two comparisons of contents, unless another number is given."""

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
    loss: float | None = None
    """Of the whole iteration, as the gradient is of: the mean, the sum, or per token; None as for `losses`."""
    is_updated: bool = True
    """Whether the optimizers took a step: not while gradients accumulate, nor where one is not finite and left out."""


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
    synchronised: frozenset[int] = frozenset()
    """Stages whose replicas take the statistics of batch norms together."""

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
    stages, layers = [stage.layers for stage in plan.stages], list(training.layers)
    wirings = make_wirings(stages, layers, inputs=training.inputs, is_relayed=False)
    is_plain = (
        messages == "auto" and sends_itself() and has_like_replicas(layout) and (skip == "relay" or is_chain(wirings))
    )
    if is_plain or skip == "relay":
        wirings = make_wirings(stages, layers, inputs=training.inputs)
    require_widths(training, stages, widths=layout.widths, split=split)
    shapes = _trace(training, wirings, layout=layout)
    if split == "native":
        if any(stage.recompute for stage in plan.stages):
            raise ValueError(
                "the native split recomputes once per weight in W; use --split deferred, or plan with recompute = false"
            )
        _require_no_inner_gradients(shapes)
        layout = _with_whole_backward(layout, shapes)
    edges = find_edges(wirings)
    synchronised = _find_synchronised(layout, shapes, split=split)
    if synchronised:
        _require_joint_order(layout, edges, synchronised=synchronised, shapes=shapes)
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
        rows=None if is_plain else _lower(layout, edges, joint=synchronised),
        synchronised=synchronised,
    )


def _require_no_inner_gradients(shapes: Sequence[StageShape]) -> None:
    for number, shape in enumerate(shapes):
        for name, traits in shape.traits.items():
            if traits.differentiates:
                raise ValueError(
                    f"layer {name!r} of stage {number} calls torch.autograd itself, and the native split would walk "
                    "its graph twice; use --split deferred"
                )


def _find_synchronised(layout: Layout, shapes: Sequence[StageShape], *, split: Split) -> frozenset[int]:
    """Stages with replicas and batch norms; raises ValueError where their statistics cannot be taken together."""
    found = set()
    for number, shape in enumerate(shapes):
        num_replicas = layout.num_replicas_of(number)
        for name, traits in shape.traits.items():
            if num_replicas > 1 and (traits.has_batch_norm or traits.has_unanswered_batch_norm):
                what = f"layer {name!r} of stage {number} normalises over the microbatch, of which each of its "
                what += f"{num_replicas} replicas has a part"
                if traits.has_unanswered_batch_norm:
                    raise ValueError(
                        f"{what}, by a function of torch's that cannot be synchronised; {_NORM_REMEDY}, or call "
                        "torch.nn.functional.batch_norm"
                    )
                if split == "native":
                    raise ValueError(
                        f"{what}: the native split would ask the other replicas in I and again in W; {_NORM_REMEDY}, "
                        "or use --split deferred"
                    )
                found.add(number)
    return frozenset(found)


_NORM_REMEDY = "plan with --no-replication, use GroupNorm, or set the layer's batch norms to eval()"


def _require_joint_order(
    layout: Layout, edges: Sequence[StageEdge], *, synchronised: frozenset[int], shapes: Sequence[StageShape]
) -> None:
    """Replicas that ask each other in the middle of F and I must come to them together."""
    try:
        lower(layout, edges, joint=synchronised)
    except ValueError as error:
        number = min(synchronised)
        name = next(name for name, traits in shapes[number].traits.items() if traits.has_batch_norm)
        raise ValueError(
            f"layer {name!r} of stage {number} normalises over the microbatch, of which each replica has a part, but "
            f"the plan's replicas do not run their actions in one order: {error}; {_NORM_REMEDY}"
        ) from None


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


def _lower(layout: Layout, edges: Sequence[StageEdge], *, joint: frozenset[int]) -> tuple[tuple[Cell, ...], ...]:
    try:
        rows = lower(layout, edges, joint=joint)
    except ValueError as error:
        raise ValueError(f"the plan's schedule cannot run: {error}") from None
    faults = check_routed_rows(
        rows,
        owners=layout.owners,
        edges=[(edge.producer, edge.consumer) for edge in edges],
        num_microbatches=layout.num_microbatches,
        widths=layout.widths,
    )
    if faults:
        raise ValueError(f"the plan's schedule cannot run: {'; '.join(faults[:3])}")
    return tuple(map(tuple, rows))


def _trace(training: Training, wirings: Sequence[StageWiring], *, layout: Layout) -> tuple[StageShape, ...]:
    """The shapes of every stage with its own number of replicas; samples have to lie along dimension 0 between stages
    with different ones.
    """
    with calling("the batch of iteration 0"):
        inputs, target = training.batch(0)
    traced = {}
    for count in layout.replica_counts:
        mine = [split_batch(tensor, layout, num_replicas=count, replica=0)[0] for tensor in as_tuple(inputs)]
        traced[count] = trace_stages(training, wirings, batch=tuple(mine))
    split_batch(target, layout, num_replicas=1, replica=0)
    counts = [layout.num_replicas_of(number) for number in range(layout.num_stages)]
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

    def __init__(
        self,
        preparation: Preparation,
        *,
        device: torch.device,
        log: ActionLog | None = None,
        check_every: int = CHECK_EVERY,
    ) -> None:
        """The default process group has to exist and to be as large as the plan's layout; a collective call.

        `check_every`: after how many iterations contents are compared between processes again; 0: never.
        """
        self.memory = MemoryMeter(device)
        self.check_every, self.number, self.has_trained = check_every, 0, False
        self.preparation, self.device = preparation, device
        self.plan, self.training, self.layout = preparation.plan, preparation.training, preparation.layout
        self.rank = distributed.get_rank()
        require_sharding(self.plan, self.training, device=device)
        self.log = log or make_log(device)
        self.log.needs = describe_needs(self.layout, preparation.edges, rank=self.rank)
        self.groups = _Groups(self.layout, is_routed=preparation.rows is not None)
        self.routes = () if preparation.rows is None else make_routes(self.layout, preparation.edges)
        self.parts = GroupParts()
        """What of layers that a group runs together is held here."""
        self._problems = list[str]()
        self.stages = [self._make_stage(number) for number in self.layout.stages_of(self.rank)]
        self._require_alike()
        self.ties = self._make_ties()
        bucket_bytes = bucket_bytes_of(self.plan)
        for stage in self.stages:
            stage.reduction = self._make_reduction(stage, bucket_bytes=bucket_bytes)
        self.runtime = self._make_runtime()
        pieces = {key: piece for each in self.sharded.values() for key, piece in each.pieces.items()}
        self.update = Update(
            self.training,
            self._named(),
            counted=self._counted(pieces),
            device=self.device,
            pieces=pieces,
            wholes=self.parts.wholes,
        )
        self._forward_pass: ForwardPass | None = None
        first = min(
            rank for number in self.layout.stages_of(self.rank) for rank in self.layout.team_of(number, self.rank)
        )
        torch.manual_seed(self.training.seed * 1_000_003 + 500_009 + first)  # for what draws outside of layers

    @property
    def _divisor(self) -> int:
        """Losses are means over the samples of one replica of the last stage."""
        return 1 if self.training.loss_is_sum else self.layout.num_microbatches * self.layout.num_replicas_of(-1)

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """The first optimizer of this process."""
        return self.update.optimizers[0] if self.update.optimizers else None

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

    def is_in_first(self, stage: int) -> bool:
        """Whether this process belongs to the first replica of a stage, whose members together speak for it."""
        return self.rank in self.layout.groups_of(stage)[0]

    def parameters(self) -> list[nn.Parameter]:
        """All parameters on this process; of those that a group holds together, its parts."""
        return [parameter for _, parameter in self._named()]

    def held(self, name: str) -> list[tuple[str, nn.Parameter]]:
        """The parameters of a layer that is here, by path; of those that a group holds together, the parts here."""
        return self.parts.plain(name, list(self.layer(name).named_parameters()))

    def layer(self, name: str) -> nn.Module:
        """A layer that is here; raises KeyError for any other."""
        for stage in self.stages:
            if name in self.plan.stages[stage.stage_index].layers:
                return cast(StageModule, stage.submod).layer(name)
        raise KeyError(name)

    def _make_stage(self, number: int) -> PlanStage:
        wiring, shape = self.preparation.wirings[number], self.preparation.shapes[number]
        if self.layout.width(number) > 1:
            layers = self._make_cut_layers(number)
        else:
            layers = {name: make_layer(self.training, name, device=self.device) for name in wiring.layers}
        module = StageModule(wiring, layers, counts=shape.counts, recompute=self.plan.stages[number].recomputed)
        options: dict[str, Any] = {
            "num_stages": self.layout.num_stages,
            "shape": shape,
            "device": self.device,
            "group": self.groups.pipeline,
            "log": self.log,
            "is_deferring": self.preparation.split == "deferred",
        }
        if number in self.preparation.synchronised:
            module.exchange = exchange_in(self.groups.stages[number])
        if self.preparation.rows is None:
            return ChainStage(module, number, **options)
        return RoutedStage(module, number, edges=self.preparation.edges, routes=self.routes, **options)

    def _make_cut_layers(self, number: int) -> dict[str, nn.Module]:
        """The layers of a stage that a group runs together, each made whole, cut and tried before the next one is made;
        a collective call of the group.
        """
        wiring, shape = self.preparation.wirings[number], self.preparation.shapes[number]
        trial = GroupTrial(self.training, group=self.groups.teams[number], device=self.device)
        values = unflatten(stand_ins(shape.inputs, device=self.device), shape.counts)
        if BATCH in values:
            with calling("the batch of iteration 0"):
                inputs, _ = self.training.batch(0)
            values[BATCH] = tuple(self._share(tensor, number)[0].to(self.device) for tensor in as_tuple(inputs))
        layers = {}
        for name in wiring.layers:
            layers[name] = make_layer(self.training, name, device=self.device)
            arguments = [tensor for source in wiring.takes[name] for tensor in values[source]]
            parts, values[name] = trial.cut(name, layers[name], arguments=arguments)
            self.parts.add(name, parts)
        self._problems += [f"stage {number}: {trial.problem}"] if trial.problem else []
        return layers

    def _require_alike(self) -> None:
        """Raise ExecutionError, on every process the same, if a layer in parts is not what it is whole."""
        if not self.layout.widths:
            return
        if found := [text for told in self._gather(self._problems) for text in told]:
            raise ExecutionError(found[0])

    def _make_runtime(self) -> StepRuntime:
        count, loss = self.layout.num_microbatches, self.training.loss
        if self.preparation.rows is not None:
            queues = make_queues(self.routes, rank=self.rank, device=self.device)
            meet(self.routes, device=self.device, queues=queues)
            stages, row = cast(list[RoutedStage], self.stages), self.preparation.rows[self.rank]
            return RoutedRuntime(stages, row=row, num_microbatches=count, loss=loss, queues=queues)
        assert isinstance(self.layout, Pipelines)
        table = self.layout.table(self.layout.replica_of(self.rank))
        return PlanRuntime(cast(list[ChainStage], self.stages), table=table, num_microbatches=count, loss=loss)

    def _make_reduction(self, stage: PlanStage, *, bucket_bytes: int) -> StageReduction:
        number, layers = stage.stage_index, self.plan.stages[stage.stage_index].layers
        parameters = list({id(each): each for name in layers for _, each in self.held(name)}.values())
        parts = [part for name in layers for part in self.parts.of_layer.get(name, {}).values()]
        group = self.groups.stages[number]
        if self.plan.stages[number].shard == "none":
            return StageReduction(parameters, group=group, parts=parts, bucket_bytes=bucket_bytes)
        tied = [copy for tie in self.ties for copy in tie.copies]
        return ShardedReduction(parameters, group=group, parts=parts, tied=tied, bucket_bytes=bucket_bytes)

    @property
    def reductions(self) -> list[StageReduction]:
        """Of the stages here."""
        return [stage.reduction for stage in self.stages if stage.reduction is not None]

    @property
    def sharded(self) -> dict[int, ShardedReduction]:
        """Of those stages here whose replicas shard the optimizer's state."""
        found = {stage.stage_index: stage.reduction for stage in self.stages}
        return {number: each for number, each in found.items() if isinstance(each, ShardedReduction)}

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

    def step(self, batch: int | Batch | None) -> Iteration:
        """Run an iteration: all actions of this process, the reduction and the optimizer; a collective call.

        `batch`: inputs and target of the whole iteration, the same on every process (None will do where neither the
        batch nor the target is taken, see `takes_batch`), or the number of an iteration for `Training.batch`. Raises
        ExecutionError, on every process the same, if processes were given different batches, if replicas have drifted
        apart, or if a loss or a gradient is not finite.
        """
        self.number = batch if isinstance(batch, int) else self.number
        given = self._given(batch, self.training.batch)
        is_checking = self._is_time_to_check()
        if is_checking:
            self._check_batch(given)
        share = self._cut(given)
        is_due = self.update.is_due(self.number)
        start, begin = time.perf_counter_ns(), self.log.clock.mark()
        losses = self._run(share, is_due=is_due)
        self.log.note("the reduction of its gradients")
        tokens = self._count(share)
        if is_due:
            self.update.add_up(self.reductions, self.ties, divisor=self._divisor)
        reduced = self.log.clock.mark()
        values, loss = self._tell(losses, tokens)
        outcome = self._finish(share, values, is_due=is_due)
        duration, end, resolve = time.perf_counter_ns() - start, self.log.clock.mark(), self.log.clock.resolve
        taken_up = tuple(self.log.taken_up())
        actions = tuple(self.log.end_iteration())
        times = IterationTimes(taken_up, begin_ns=resolve(begin), reduced_ns=resolve(reduced), end_ns=resolve(end))
        if is_checking:
            self._check_replicas()
        self.number, self.has_trained = self.number + 1, True
        return Iteration(
            losses=values,
            gradient_norm=outcome.norm,
            duration_ns=duration,
            actions=actions,
            times=times,
            loss=loss,
            is_updated=outcome.is_updated,
        )

    def _run(self, share: "_Share", *, is_due: bool) -> dict[int, torch.Tensor]:
        """All actions; the generators are as they were afterwards: layers have their own numbers."""
        for stage in self.stages:
            number = stage.stage_index
            replica = self.layout.replica_at(number, self.rank), self.layout.num_replicas_of(number)
            stage.moment = Moment(seed=self.training.seed, iteration=self.number, microbatch=0, replica=replica)
            if stage.reduction is not None:
                stage.reduction.is_due = is_due
                stage.reduction.prepare()
            if isinstance(stage, RoutedStage):
                stage.batch = share.batches.get(stage.stage_index, [])
        self.runtime.loss_factor = self.update.scale
        inputs: Tensors = ()
        if self.preparation.rows is None and (rows := share.batches.get(0)):
            inputs = tuple(to_device(torch.cat(tensors), device=self.device) for tensors in zip(*rows, strict=True))
        target = None if share.target is None else share.target.flatten(0, 1)
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            return self.runtime.run(inputs, target)

    def _finish(self, share: "_Share", losses: tuple[float, ...], *, is_due: bool) -> UpdateOutcome:
        """Clip, look whether all is finite, and let the optimizers take their step."""
        norm = self.update.clip() if is_due else None
        is_good = True
        if self.training.on_nonfinite != "ignore" or self.training.loss_scale is not None:
            are_losses_good = all(map(math.isfinite, losses))
            are_grads_good = not is_due or self.update.has_finite_gradients()
            flags = torch.tensor([not are_losses_good, not are_grads_good], dtype=torch.int32, device=self.device)
            if self.layout.world_size > 1:
                distributed.all_reduce(flags, distributed.ReduceOp.MAX)
            has_bad_loss, has_bad_grad = map(bool, flags.tolist())
            is_good = not (has_bad_loss or has_bad_grad)
            is_expected = self.training.loss_scale is not None and not has_bad_loss
            if not is_good and self.training.on_nonfinite == "stop" and not is_expected:
                raise ExecutionError(self._locate(share, losses))
            self.update.is_spoiled |= not is_good
        is_updated = is_due and self.update.finish(is_good=is_good)
        for reduction in self.reductions if is_updated else ():
            reduction.share()
        return UpdateOutcome(norm, is_updated)

    def evaluate(self, batch: int | Batch | None) -> tuple[float, ...]:
        """The losses of every microbatch, in evaluation mode and without gradients; a collective call.

        `batch`: as for `step`, but a number asks `Training.evaluation` (or `batch`). Empty where the last stage is not.
        """
        share = self._cut(self._given(batch, self.training.evaluation or self.training.batch))
        found = dict[int, torch.Tensor]()
        forward = self._make_forward_pass(share)

        def visit(number: int, outputs: Tensors) -> None:
            if number == self.layout.num_stages - 1 and share.target is not None:
                with calling("the loss"):
                    found[len(found)] = self.training.loss(outputs[0], share.target[len(found)])

        for stage in self.stages:
            cast(StageModule, stage.submod).moment = None
        with evaluating([stage.submod for stage in self.stages]):
            for microbatch in range(self.layout.num_microbatches):
                forward.run(microbatch, visit)
        return self._tell(found, self._count_tokens(share))[0]

    def _make_forward_pass(self, share: "_Share") -> ForwardPass:
        routes = make_routes(self.layout, self.preparation.edges)
        if self._forward_pass is None:
            meet(routes, device=self.device)
        held = [
            Held(
                stage.stage_index,
                cast(StageModule, stage.submod),
                self.preparation.shapes[stage.stage_index].inputs,
                share.batches.get(stage.stage_index, []),
            )
            for stage in self.stages
        ]
        self._forward_pass = ForwardPass(held, routes=routes, edges=self.preparation.edges, device=self.device)
        return self._forward_pass

    def _locate(self, share: "_Share", losses: tuple[float, ...]) -> str:
        """What is not finite, and which layer it first came out of; a collective call."""
        mine: dict[str, Any] = {
            "losses": [(k, loss) for k, loss in enumerate(losses) if not math.isfinite(loss)],
            "grads": self.update.nonfinite_gradients(),
        }
        told = self._gather(mine)
        bad: list[tuple[int, float]] = next((each["losses"] for each in told if each["losses"]), [])
        if bad:
            microbatch, loss = bad[0]
            places = self._gather(self._run_again(share, microbatch))
            place = min((each for each in places if each is not None), default=None)
            where = "no layer gives such a value, so it is the loss's own" if place is None else place[2]
            return f"iteration {self.number}: the loss of microbatch {microbatch} is {loss}: {where}; {_UNTOUCHED}"
        rank = max(rank for rank, each in enumerate(told) if each["grads"])
        name = told[rank]["grads"][-1]
        return (
            f"iteration {self.number}: all losses are finite, but the gradient of {name} on rank {rank} "
            f"({self.layout.devices[rank]}), summed over all microbatches, is not; {_UNTOUCHED}"
        )

    def _run_again(self, share: "_Share", microbatch: int) -> tuple[int, int, str] | None:
        """Stage, layer and a sentence: what first gives a value that is not finite, of the layers here."""
        found = list[tuple[int, int, str]]()
        hooks = []
        for stage in self.stages:
            module, number = cast(StageModule, stage.submod), stage.stage_index
            if stage.moment is not None:
                module.moment = replace(stage.moment, microbatch=microbatch)
            for place, name in enumerate(module.wiring.layers):

                def look(
                    _: Any, __: Any, given: Any, *, key: tuple[int, int] = (number, place), name: str = name
                ) -> None:
                    floats = [each for each in as_tuple(given) if each.is_floating_point()]
                    if any(bool(each.isnan().any()) for each in floats) or not all(
                        bool(each.isfinite().all()) for each in floats
                    ):
                        device = self.layout.devices[self.rank]
                        text = (
                            f"layer {name!r} of stage {key[0]} on rank {self.rank} ({device}) is the first to give it"
                        )
                        found.append((*key, text))

                hooks.append(module.layer(name).register_forward_hook(look))
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            self._make_forward_pass(share).run(microbatch, lambda *_: None)
        for hook in hooks:
            hook.remove()
        return min(found, default=None)

    def _gather(self, mine: Any) -> list[Any]:
        told: list[Any] = [None] * self.layout.world_size
        distributed.all_gather_object(told, mine)
        return told

    def _is_time_to_check(self) -> bool:
        return self.check_every > 0 and (not self.has_trained or self.number % self.check_every == 0)

    def _check_batch(self, given: Batch | None) -> None:
        digest = None if given is None else (digest_batch(as_tuple(given[0])), digest_batch([given[1]]))
        text = find_batch_difference(self._gather(digest), devices=self.layout.devices, number=self.number)
        if text:
            raise ExecutionError(text)

    def _check_replicas(self) -> None:
        layout = self.layout
        if max(map(len, layout.owners)) == 1:
            return
        mine, whole = dict[str, int](), dict[str, int]()
        for stage in self.stages:
            if len(layout.owners[stage.stage_index]) > 1:
                layers = self.plan.stages[stage.stage_index].layers
                tensors = [
                    (f"{name}:{path}", tensor)
                    for name in layers
                    for path, tensor in (*self.held(name), *self.layer(name).named_buffers())
                ]
                mine |= digest_stage(stage.stage_index, tensors)
                uncut = [(name, tensor) for name, tensor in tensors if not self.parts.is_cut(tensor)]
                whole |= digest_stage(stage.stage_index, uncut)
        told = self._gather((mine, whole))
        alike = [(number, ranks) for number in range(layout.num_stages) for ranks in layout.alike(number)]
        teams = [(number, ranks) for number in range(layout.num_stages) for ranks in layout.groups_of(number)]
        text = find_drift([sums for sums, _ in told], alike=alike, devices=layout.devices, number=self.number)
        text = text or find_team_drift(
            [sums for _, sums in told], teams=teams, devices=layout.devices, number=self.number
        )
        if text:
            raise ExecutionError(text)

    def _named(self) -> list[tuple[str, nn.Parameter]]:
        return [
            (f"{layer}:{path}", parameter)
            for stage in self.stages
            for layer in self.preparation.wirings[stage.stage_index].layers
            for path, parameter in self.held(layer)
        ]

    def _counted(self, pieces: Mapping[int, ShardPiece]) -> list[nn.Parameter]:
        """The parameters that no other process counts: of a stage's replicas the first has them, or each its piece; of
        what a group cuts, each member its part; of a tie its first parameter.
        """
        again = {name for names in self.training.tied for name in names[1:]}
        stage_of = {name: number for number, stage in enumerate(self.plan.stages) for name in stage.layers}
        found = []
        for name, parameter in self._named():
            stage, piece = stage_of[name.partition(":")[0]], pieces.get(id(parameter))
            counts = self.is_in_first(stage) if self.parts.is_cut(parameter) else self.is_keeper(stage)
            if piece is not None:
                counts = self.parts.is_cut(parameter) or self.rank == self.layout.team_of(stage, self.rank)[0]
            if counts and name not in again:
                found.append(parameter if piece is None else piece.parameter)
        return found

    @property
    def takes_batch(self) -> bool:
        """Whether this process has a use for inputs or targets."""
        return bool(self._takers()) or self.is_last

    def _takers(self) -> list[int]:
        """The stages here that are given the batch."""
        numbers = [stage.stage_index for stage in self.stages]
        takers = [number for number in numbers if BATCH in self.preparation.wirings[number].arrives]
        return [number for number in takers if number == 0 or self.preparation.skip == "direct"]

    def _given(self, batch: int | Batch | None, ask: Callable[[int], Batch]) -> Batch | None:
        if not self.takes_batch:
            return None
        if isinstance(batch, int):
            with calling(f"the batch of iteration {batch}"):
                return ask(batch)
        if batch is None:
            raise ValueError(f"rank {self.rank} takes the batch or the target, but was given none")
        return batch

    def _cut(self, given: Batch | None) -> "_Share":
        if given is None:
            return _Share({}, None)
        inputs, target = given
        last = self.layout.num_stages - 1
        batches = {
            number: list(zip(*(self._share(tensor, number) for tensor in as_tuple(inputs)), strict=True))
            for number in self._takers()
        }
        return _Share(batches, to_device(self._share(target, last), device=self.device) if self.is_last else None)

    def _share(self, tensor: torch.Tensor, stage: int) -> torch.Tensor:
        """The samples of a stage's replica here, as (microbatch, sample, ...)."""
        count, replica = self.layout.num_replicas_of(stage), self.layout.replica_at(stage, self.rank)
        mine = split_batch(tensor, self.layout, num_replicas=count, replica=replica)
        return ready_to_copy(mine, device=self.device)

    def _count_tokens(self, share: "_Share") -> list[float]:
        """Per microbatch, of this replica."""
        if self.training.num_tokens is None or share.target is None:
            return []
        with calling("`num_tokens`"):
            return [float(self.training.num_tokens(target)) for target in share.target]

    def _count(self, share: "_Share") -> list[float]:
        """As `_count_tokens`; the sum over all replicas is kept for the optimizers' step."""
        tokens = self._count_tokens(share)
        if tokens:
            total = torch.tensor(sum(tokens), dtype=torch.float64, device=self.device)
            if group := self.groups.stages[-1]:
                distributed.all_reduce(total, group=group)
            self.update.num_tokens += float(total)
        return tokens

    def _tell(self, losses: dict[int, torch.Tensor], tokens: list[float]) -> tuple[tuple[float, ...], float | None]:
        """The losses over all replicas, per microbatch and of all."""
        if not losses:
            return (), None
        values = torch.stack(list(losses.values())).detach()
        counts = torch.tensor(tokens, dtype=torch.float64, device=self.device)
        if group := self.groups.stages[-1]:
            distributed.all_reduce(values, group=group)
            values = values if self.training.loss_is_sum else values / self.layout.num_replicas_of(-1)
            if tokens:
                distributed.all_reduce(counts, group=group)
        told = tuple(values.tolist())
        if tokens:
            per_token = [value / count if count else 0.0 for value, count in zip(told, counts.tolist(), strict=True)]
            return tuple(per_token), sum(told) / max(float(counts.sum()), 1.0)
        return told, sum(told) if self.training.loss_is_sum else sum(told) / len(told)


class _Share(NamedTuple):
    """What this process takes of one iteration's batch."""

    batches: dict[int, list[Tensors]]
    """Per stage and microbatch."""
    target: torch.Tensor | None
    """As (microbatch, sample, ...)."""


_UNTOUCHED = "the optimizer has not been run; to leave such steps out, or to look away: --on-nonfinite skip, or ignore"


class _Groups:
    """The process groups of a layout, seen from this process; making them is a collective call."""

    def __init__(self, layout: Layout, *, is_routed: bool) -> None:
        rank = distributed.get_rank()
        self.pipeline: Any = None
        """The processes that torch's stages know; None: all there are."""
        self.stages: list[Any] = [None] * layout.num_stages
        """Per stage the processes that hold what this one holds of it, one per replica, if there are several."""
        self.teams: list[Any] = [None] * layout.num_stages
        """Per stage the processes that run its actions together with this one, if there are several."""
        if is_routed:  # torch's stages want a group no larger than the pipeline, and send nothing through it
            self.pipeline = distributed.new_group([rank], use_local_synchronization=True)
        elif isinstance(layout, Pipelines) and layout.num_replicas > 1:
            for circle in map(layout.pipeline, range(layout.num_replicas)):
                group = distributed.new_group(list(circle))
                if rank in circle:
                    self.pipeline = group
        teams = dict[tuple[int, ...], Any]()
        for number in range(layout.num_stages):
            for ranks in layout.alike(number):
                group = _new_group(set(ranks))
                if rank in ranks:
                    self.stages[number] = group
            for ranks in layout.groups_of(number):
                if ranks not in teams:
                    teams[ranks] = _new_group(set(ranks))
                if rank in ranks:
                    self.teams[number] = teams[ranks]


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
