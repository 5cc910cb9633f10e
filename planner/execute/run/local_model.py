"""The part of a model that is on this process: stages, layers and parameters by name, ties, and what is reduced."""

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import distributed, nn

from planner.errors import ExecutionError
from planner.execute.data.batch_share import BatchCutter, split_batch
from planner.execute.model.batch_norms import exchange_in, running_averages
from planner.execute.model.cut.outside_state import OutsideVariable
from planner.execute.model.layer_state import is_memory
from planner.execute.model.random_layers import takes_none
from planner.execute.model.user_code import calling
from planner.execute.parallel.active_weights import ActiveLayers
from planner.execute.parallel.full_sharding import FullyShardedReduction, LayerSharder, ShardedLayers, unique_parts
from planner.execute.parallel.group_parts import GroupParts
from planner.execute.parallel.process_groups import ProcessGroups, gather, new_group
from planner.execute.parallel.reduction import StageReduction, Tie, bucket_bytes_of
from planner.execute.parallel.sharding import ShardedReduction, ShardPiece
from planner.execute.record.action_log import ActionLog
from planner.execute.run.preparation import Preparation
from planner.execute.run.width_check import GroupTrial, stand_ins
from planner.execute.stage.plan_stage import PlanStage, defer_layers
from planner.execute.stage.split_stage import SplitStage
from planner.execute.stage.stage_module import MemoryTrial, SamplePlaces, StageModule, make_layer, unflatten
from planner.execute.table.routes import make_routes
from planner.execute.table.wiring import BATCH
from planner.execute.training import Batch, Tensors, as_tuple

_KEEP_NOTHING = "keep nothing from one to the next"
_ONE_REPLICA = "plan without replicas (pipeplan plan --max-replicas 1)"


class LocalModel:
    """The stages of this process, and which of several holders of a parameter speaks for it."""

    def __init__(
        self,
        preparation: Preparation,
        *,
        groups: ProcessGroups,
        cutter: BatchCutter,
        device: torch.device,
        log: ActionLog,
    ) -> None:
        """Make, cut and tie the layers; a collective call of all processes.

        Raises ExecutionError, on every process the same, if a layer that a group cuts is not what it is whole.
        """
        self.preparation, self.groups, self.device, self.log = preparation, groups, device, log
        self.plan, self.training, self.layout = preparation.plan, preparation.training, preparation.layout
        self.rank = distributed.get_rank()
        self.routes = make_routes(self.layout, preparation.edges)
        self.parts = GroupParts()
        """What of layers that a group runs together is held here."""
        self.reaches = dict[int, Any]()
        """Per stage what a backward from each output comes to, once that was asked."""
        self._problems = list[str]()
        self.active = dict[int, ActiveLayers]()
        """Of stages here that gather their weights for runs of actions."""
        self.stages = [self._make_stage(number, cutter) for number in self.layout.stages_of(self.rank)]
        self.helped = [self._make_split_stage(number) for number in self.layout.helped_by(self.rank)]
        """Stages of others of which I or W runs here, on copies of their layers."""
        self._require_alike()
        self.ties = self._make_ties()
        for stage in self.stages:
            stage.reduction = self._make_reduction(stage, bucket_bytes=bucket_bytes_of(self.plan))

    def is_keeper(self, stage: int) -> bool:
        """Whether this process, of all replicas of a stage, speaks for it."""
        return self.rank == self.layout.owners[stage][0]

    def is_in_first(self, stage: int) -> bool:
        """Whether this process belongs to the first replica of a stage, whose members together speak for it."""
        return self.rank in self.layout.groups_of(stage)[0]

    def speaks(self, stage: int) -> bool:
        """Whether this process has a part of what speaks for a stage."""
        return stage in self.preparation.fully_sharded or self.is_in_first(stage)

    def share_averages(self) -> None:
        """Give all replicas the first one's running averages where each takes its own statistics; a collective call."""
        for number in sorted(self.preparation.averaging.intersection(self.layout.stages_of(self.rank))):
            first = next(ranks[0] for ranks in self.layout.alike(number) if self.rank in ranks)
            for name in self.plan.stages[number].layers:
                for average in running_averages(self.layer(name)):
                    distributed.broadcast(average, first, group=self.groups.stages[number])

    def held(self, name: str) -> list[tuple[str, nn.Parameter]]:
        """The parameters of a layer that is here, by path; of those that a group holds together, the parts here."""
        return self.parts.plain(name, list(self.layer(name).named_parameters()))

    def layer(self, name: str) -> nn.Module:
        """A layer that is here; raises KeyError for any other."""
        for stage in self.stages:
            if name in self.plan.stages[stage.stage_index].layers:
                return stage.module.layer(name)
        raise KeyError(name)

    @property
    def running(self) -> list[PlanStage]:
        """The stages here, and those of others of which I or W runs here."""
        return [*self.stages, *self.helped]

    @property
    def reductions(self) -> list[StageReduction]:
        """Gradient reductions of the stages on this rank."""
        return [stage.reduction for stage in self.stages if stage.reduction is not None]

    @property
    def sharded(self) -> dict[int, ShardedReduction]:
        """Of those stages here whose replicas shard the optimizer's state."""
        found = {stage.stage_index: stage.reduction for stage in self.stages}
        return {number: each for number, each in found.items() if isinstance(each, ShardedReduction)}

    def named(self) -> list[tuple[str, nn.Parameter]]:
        """All parameters here, as `layer:path`."""
        return [
            (f"{layer}:{path}", parameter)
            for stage in self.stages
            for layer in self.preparation.wirings[stage.stage_index].layers
            for path, parameter in self.held(layer)
        ]

    def counted(self, pieces: Mapping[int, ShardPiece]) -> list[nn.Parameter]:
        """The parameters that no other process counts: of a stage's replicas the first has them, or each its piece; of
        what a group cuts, each member its part; of a tie its first parameter.
        """
        again = {name for names in self.training.tied for name in names[1:]}
        stage_of = {name: number for number, stage in enumerate(self.plan.stages) for name in stage.layers}
        found = []
        for name, parameter in self.named():
            stage, piece = stage_of[name.partition(":")[0]], pieces.get(id(parameter))
            counts = self.speaks(stage) if self.parts.is_cut(parameter) else self.is_keeper(stage)
            if piece is not None:
                counts = self.parts.is_cut(parameter) or self.rank == self.layout.team_of(stage, self.rank)[0]
            if counts and name not in again:
                found.append(parameter if piece is None else piece.parameter)
        return found

    def _make_stage(self, number: int, cutter: BatchCutter) -> PlanStage:
        wiring, shape = self.preparation.wirings[number], self.preparation.shape_at(number, rank=self.rank)
        if self.layout.parts_of(number):
            return self._make_split_stage(number)
        sharded = None
        if self.layout.width(number) > 1:
            layers = self._make_cut_layers(number, cutter)
        elif number in self.preparation.fully_sharded:
            layers, sharded = self._make_sharded_layers(number)
        else:
            layers = {name: make_layer(self.training, name, device=self.device) for name in wiring.layers}
        is_split = any(each.stage == number and each.kind in "IW" for row in self.layout.rows for each in row)
        planned, count = self.plan.stages[number], self.plan.problem.num_microbatches
        if not (planned.is_sharded or self.layout.width(number) > 1):
            _join_copies(layers, self.training.tied)
        module = StageModule(
            wiring, layers, counts=shape.counts, recompute=planned.recomputed, kept=planned.kept_of(count)
        )
        module.is_loss_known = takes_none(self.training.loss)
        module.trial, module.places = self._find_trial(number), self._find_places(number)
        if number in self.preparation.synchronised:
            module.exchange = exchange_in(self.groups.stages[number])
        stage = PlanStage(module, number, **self._options(number))
        if is_split:
            defer_layers(module, stage.store, shape=shape)
        if sharded is not None:
            stage.putting_off, stage.store.after = sharded.putting_off, sharded.reduce
        return stage

    def _find_trial(self, number: int) -> MemoryTrial | None:
        """What layers of a stage may not remember: the plan runs microbatches in another order, other replicas see
        others, or other processes have variables of their own.
        """
        row = [each.microbatch for each in self.layout.rows[self.rank] if (each.stage, each.kind) == (number, "F")]
        for first, second in itertools.pairwise(row):
            if first > second:
                text = f"the plan runs microbatch {first} before {second}; {_KEEP_NOTHING}, or plan another order"
                return MemoryTrial(is_memory, text, "in order")
        if self.layout.num_replicas_of(number) > 1:
            text = f"each replica sees others; {_KEEP_NOTHING}, or {_ONE_REPLICA}"
            kept: Any = "of each" if self.layout.dealing else ""
            return MemoryTrial(partial(is_memory, has_buffers=False), text, kept)
        elsewhere = set(range(self.layout.num_stages)).difference(self.layout.stages_of(self.rank))
        shared = set[OutsideVariable]().union(*(self.preparation.outside[other] for other in elsewhere))
        if shared.isdisjoint(self.preparation.outside[number]):
            return None
        text = "layers on other processes use one of their own; keep it in a buffer or attribute of one layer"
        return MemoryTrial(shared.__contains__, text)

    def _find_places(self, number: int) -> SamplePlaces | None:
        """Where the samples of a microbatch lie of which a stage's replicas have a part each."""
        if not self.preparation.sample_dims or self.layout.num_replicas_of(number) == 1:
            return None
        samples, first = self.layout.samples_of(number), self.layout.samples_of(0)
        count = len(self.preparation.shapes[0].inputs[0]) * sum(first) // first[0]
        count = count * samples[self.layout.replica_at(number, self.rank)] // sum(samples)
        is_sum = self.training.loss_is_sum and number == self.layout.num_stages - 1
        return SamplePlaces(self.preparation.sample_dims, count, is_sum)

    def _options(self, number: int) -> dict[str, Any]:
        return {
            "num_stages": self.layout.num_stages,
            "shape": self.preparation.shape_at(number, rank=self.rank),
            "routes": self.routes,
            "device": self.device,
            "log": self.log,
        }

    def _make_split_stage(self, number: int) -> SplitStage:
        """A stage whose I or W is elsewhere, tried on two microbatches; its owner has a copy of the layers for that."""
        wiring, shape = self.preparation.wirings[number], self.preparation.shape_at(number, rank=self.rank)
        modules = []
        for _ in range(1 + (self.rank in self.layout.owners[number])):
            layers = {name: make_layer(self.training, name, device=self.device) for name in wiring.layers}
            modules.append(StageModule(wiring, layers, counts=shape.counts))
        stage = SplitStage(
            modules[0], number, copy=modules[-1], parts=self.layout.parts_of(number), **self._options(number)
        )
        one, other = (self._trial_inputs(number, place) for place in (0, -1))
        if problem := stage.backward.prepare(one, other):
            self._problems.append(f"stage {number}: {problem}")
        for parameter in stage.backward.parameters if self.training.float32_gradients else ():
            if parameter.dtype in (torch.bfloat16, torch.float16):
                parameter.grad_dtype = torch.float32
        return stage

    def _trial_inputs(self, number: int, place: int) -> Tensors:
        """What a stage could be given for a microbatch of batch 0: noise where it comes from other stages."""
        shape = self.preparation.shape_at(number, rank=self.rank)
        values = unflatten(stand_ins(shape.inputs, device=self.device, seed=1 - place), shape.counts)
        if BATCH in values:
            cut = (split_batch(each, self.layout, samples=(1,), replica=0)[place] for each in self._first_inputs())
            values[BATCH] = tuple(tensor.to(self.device) for tensor in cut)
        return tuple(tensor for tensors in values.values() for tensor in tensors)

    def _first_inputs(self) -> Tensors:
        """Of the batch of iteration 0, where it is one to be cut."""
        with calling("the batch of iteration 0"):
            return as_tuple(cast(Batch, self.training.batch(0))[0])

    def _make_cut_layers(self, number: int, cutter: BatchCutter) -> dict[str, nn.Module]:
        """The layers of a stage that a group runs together, each made whole, cut and tried before the next one is made;
        a collective call of the group.
        """
        wiring, shape = self.preparation.wirings[number], self.preparation.shape_at(number, rank=self.rank)
        trial = GroupTrial(self.training, group=self.groups.teams[number], device=self.device)
        values = unflatten(stand_ins(shape.inputs, device=self.device), shape.counts)
        if BATCH in values:
            samples = self.preparation.example
            if samples is None:
                samples = tuple(cutter.part(tensor, number)[0] for tensor in self._first_inputs())
            values[BATCH] = tuple(tensor.to(self.device) for tensor in samples)
        layers = {}
        for name in wiring.layers:
            layers[name] = make_layer(self.training, name, device=self.device)
            arguments = [tensor for source in wiring.takes[name] for tensor in values[source]]
            parts, values[name] = trial.cut(name, layers[name], arguments=arguments)
            self.parts.add(name, parts)
        self._problems += [f"stage {number}: {trial.problem}"] if trial.problem else []
        return layers

    def _make_sharded_layers(self, number: int) -> tuple[dict[str, nn.Module], ShardedLayers | None]:
        """The layers of a stage of which each replica holds a part, each made whole and cut before the next."""
        tied, planned = {name for names in self.training.tied for name in names}, self.plan.stages[number]
        is_counted = planned.is_gathered or planned.is_fully_sharded
        group = self.groups.stages[number]
        sharder = LayerSharder(group=group, device=self.device, tied=tied, keeps_frozen=is_counted)
        layers = {}
        for name in self.preparation.wirings[number].layers:
            layers[name] = make_layer(self.training, name, device=self.device)
            self.parts.add(name, sharder.cut(name, layers[name]))
        if not planned.is_gathered:
            return layers, sharder.join(keeps_last=planned.is_fully_sharded)
        self.active[number] = sharder.activate()
        return layers, None

    def _require_alike(self) -> None:
        """Raise ExecutionError, on all processes the same, if a layer in parts or elsewhere is not what it is whole."""
        if not self.layout.widths and not self.layout.parts:
            return
        if found := [text for told in gather(self._problems) for text in told]:
            raise ExecutionError(found[0])

    def _make_reduction(self, stage: PlanStage, *, bucket_bytes: int) -> StageReduction:
        number, layers = stage.stage_index, self.plan.stages[stage.stage_index].layers
        parameters = list({id(each): each for name in layers for _, each in self.held(name)}.values())
        parts = [part for name in layers for part in self.parts.of_layer.get(name, {}).values()]
        group = self.groups.stages[number]
        if self.plan.stages[number].shard == "none":
            return StageReduction(parameters, group=group, parts=parts, bucket_bytes=bucket_bytes)
        tied = [copy for tie in self.ties for copy in tie.copies]
        if number in self.preparation.fully_sharded:
            held = [part for name in layers for part in unique_parts(self.parts.of_layer.get(name, {}))]
            whole = [each for each in parameters if self.parts.of(each) is None]
            active = self.active.get(number)
            return FullyShardedReduction(
                whole, group=group, parts=held, tied=tied, bucket_bytes=bucket_bytes, active=active
            )
        return ShardedReduction(parameters, group=group, parts=parts, tied=tied, bucket_bytes=bucket_bytes)

    def _make_ties(self) -> list[Tie]:
        """Collective: every process makes the groups of all ties, its own or not."""
        stage_of = {name: number for number, stage in enumerate(self.plan.stages) for name in stage.layers}
        ties = []
        for names in self.training.tied:
            _require_known(names, stage_of)
            holders = {name: stage_of[name.partition(":")[0]] for name in names}
            ranks = {rank for stage in holders.values() for rank in self.layout.owners[stage]}
            group = new_group(ranks)
            mine = [name for name, stage in holders.items() if self.rank in self.layout.owners[stage]]
            copies = list(dict.fromkeys(map(self._parameter, mine)))
            if len(copies) > 1 or (mine and len({*holders.values()}) > 1):
                counted = list(dict.fromkeys(self._parameter(name) for name in mine if self.is_keeper(holders[name])))
                source = self.layout.owners[holders[names[0]]][0]
                ties.append(Tie(copies, counted=counted, group=group, source=source))
        for tie in ties:
            tie.share_value()
        return ties

    def _parameter(self, name: str) -> nn.Parameter:
        layer, _, path = name.partition(":")
        return self.layer(layer).get_parameter(path)


def _join_copies(layers: Mapping[str, nn.Module], tied: Sequence[Sequence[str]]) -> None:
    """Let the copies of a weight within a stage be one parameter, as in the model: one gradient to send, one step.

    Copies of another shape or type stay copies.
    """
    for names in tied:
        here = [(layers[name], path) for name, _, path in (each.partition(":") for each in names) if name in layers]
        held = [layer.get_parameter(path) for layer, path in here]
        for (layer, _), copy in zip(here[1:], held[1:], strict=True):
            if (copy.shape, copy.dtype, copy.requires_grad) != (held[0].shape, held[0].dtype, held[0].requires_grad):
                continue
            for part in layer.modules():
                for own in [own for own, each in part._parameters.items() if each is copy]:
                    setattr(part, own, held[0])


def _require_known(names: Sequence[str], stage_of: dict[str, int]) -> None:
    for name in names:
        if name.partition(":")[0] not in stage_of:
            raise ValueError(f"`tied` names {name!r}, which is not a layer; write layer:path.of.parameter")
