"""This process's part of a plan, ready to run in a process group that exists: one iteration after the other."""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import distributed, nn

from planner.errors import ExecutionError
from planner.execute.data.batch_share import BatchCutter, BatchShare
from planner.execute.model.cut.hooks import describe_gradient_hook
from planner.execute.model.layer_run import Moment, evaluating
from planner.execute.model.listed_microbatches import are_listed
from planner.execute.model.loss_totals import LossSums, LossTotals
from planner.execute.model.loss_trial import ComparedLoss, TriedLoss
from planner.execute.model.user_code import calling
from planner.execute.parallel.active_weights import ActiveStages
from planner.execute.parallel.full_sharding import free_weights
from planner.execute.parallel.process_groups import ProcessGroups
from planner.execute.parallel.update import Update
from planner.execute.record.action_log import ActionLog, CudaClock, HostClock
from planner.execute.record.executed_timeline import IterationTimes
from planner.execute.record.memory_use import MemoryMeter
from planner.execute.run.content_check import require_fit_batch, require_same_replicas
from planner.execute.run.kept_memory import outside_the_heap
from planner.execute.run.local_model import LocalModel
from planner.execute.run.microbatch_rounds import MicrobatchRounds
from planner.execute.run.nonfinite import locate_nonfinite
from planner.execute.run.preparation import Preparation
from planner.execute.run.shard_check import find_trained, require_sharding
from planner.execute.run.unused_stages import forget_unused_weights
from planner.execute.stage.direct_runtime import DirectRuntime, is_direct
from planner.execute.stage.forward_pass import ForwardPass
from planner.execute.stage.host_stash import HostStashes
from planner.execute.stage.plan_stage import PlanStage
from planner.execute.stage.routed_runtime import RoutedRuntime, meet
from planner.execute.stage.split_stage import SplitRuntime
from planner.execute.table.layout import Layout
from planner.execute.table.message_queues import make_queues
from planner.execute.table.routes import make_inner_routes
from planner.execute.table.watch import describe_needs
from planner.execute.training import Batch, Microbatches, Tensors

CHECK_EVERY = 100
"""Iterations between two comparisons of contents, unless another number is given."""


_ROOMY = (torch.float32, torch.float64, torch.bfloat16)
"""Types in which gradients that are smaller by the number of microbatches are as exact: their exponents have room."""


class Iteration(NamedTuple):
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
        trained = find_trained(self.training)
        require_sharding(self.plan, self.training, trained=trained, device=device)
        self.log = log or make_log(device)
        self.log.needs = describe_needs(self.layout, preparation.edges, rank=self.rank)
        groups = ProcessGroups(self.layout)
        self.cutter = BatchCutter(self.layout, preparation.wirings, rank=self.rank, device=device)
        self.rounds = None
        if preparation.example is not None:
            self.rounds = MicrobatchRounds(preparation, self.cutter, rank=self.rank, device=device)
        with outside_the_heap():
            self.model = LocalModel(preparation, groups=groups, cutter=self.cutter, device=device, log=self.log)
        self.active, self.stashes = self._find_active(), self._find_stashes()
        self._carried: LossSums | None = None
        """Losses that travel with the present gradients."""
        self._parts = {number: self.layout.part_at(number, self.rank) for number in self.layout.stages_of(self.rank)}
        self.runtime = self._make_runtime()
        pieces = {key: piece for each in self.model.sharded.values() for key, piece in each.pieces.items()}
        self.update = Update(
            self.training,
            self.model.named(),
            counted=self.model.counted(pieces),
            device=self.device,
            pieces=pieces,
            wholes=self.model.parts.wholes,
            whole=trained,
        )
        whole, *more = self.plan.stages
        is_whole = all(len(group) == 1 for group in whole.replicas) and not (whole.is_split or whole.is_sharded)
        self._are_alike = is_whole and not more
        """Whether all processes have the same gradients, added up."""
        self.totals = LossTotals(self.training, weight=self._loss_weight, group=groups.stages[-1], device=device)
        self._forward_pass: ForwardPass | None = None
        self._settle()
        teams = [self.layout.team_of(number, self.rank) for number in self.layout.stages_of(self.rank)]
        first = min((rank for team in teams for rank in team), default=self.rank)
        torch.manual_seed(self.training.seed * 1_000_003 + 500_009 + first)  # for what draws outside of layers

    def _settle(self) -> None:
        """What is the same in every iteration."""
        self._is_checked = self.training.on_nonfinite != "ignore" or self.training.loss_scale is not None
        """Whether losses and gradients are to be finite."""
        self._reductions = self.model.reductions
        self._can_leave_alone = any(stage.wanting for stage in self.model.running)
        """Whether an input of a stage here may end without a gradient."""
        traits = [each for shape in self.preparation.shapes for each in shape.traits.values()]
        self._moves_weights = any(each.moved_weights for each in traits)
        """Whether the forward of a layer of any process changes a weight."""
        self._means = 0
        self._means = self._num_means(self.layout)
        """Of a step of the whole plan."""
        self._root_factor = self._find_root_factor()
        """What losses are multiplied by in place of dividing gradients afterwards."""

    def _find_active(self) -> ActiveStages | None:
        """Stages here whose weights come and go with the actions."""
        most = self.plan.max_active_stages
        if most is None or not self.model.active:
            return None
        return ActiveStages(self.model.active, order=self.layout.rows[self.rank], most=most)

    def _find_stashes(self) -> HostStashes | None:
        """What stages here save for microbatches whose stash travels to the host."""
        offloads = {each.stage_index: self.plan.stages[each.stage_index].offload for each in self.stages}
        if not any(offloads.values()):
            return None
        found = HostStashes(offloads, order=self.layout.rows[self.rank], device=self.device)
        for stage in self.stages:
            stage.module.offloading = partial(found.forward, stage.stage_index)
        return found

    def _make_runtime(self) -> RoutedRuntime | DirectRuntime:
        count, loss, actions = self.layout.num_microbatches, self.training.loss, self.layout.rows[self.rank]
        if self.preparation.sample_dims and self.layout.num_replicas_of(-1) > 1:
            dims = self.preparation.sample_dims[self.plan.stages[-1].layers[-1]]
            loss = TriedLoss(loss, dims=dims, is_sum=self.training.loss_is_sum)
        elif count > 1 and self.is_speaker:
            loss = ComparedLoss(loss, count=count, is_sum=self.training.loss_is_sum)
        if self.rounds is None and is_direct(self.stages, actions=actions):
            reduction = self.model.reductions[0]
            reduction.num_carried, reduction.is_direct = count, True
            return DirectRuntime(self.stages[0], actions=actions, loss=loss, take_losses=self._carry)
        routes = (*self.model.routes, *make_inner_routes(self.layout))
        queues = make_queues(routes, rank=self.rank, device=self.device)
        meet(routes, device=self.device, queues=queues)
        held = sorted(self.model.running, key=lambda stage: stage.stage_index)
        make_runtime = SplitRuntime if self.layout.parts else RoutedRuntime
        row = self.preparation.rows[self.rank]
        return make_runtime(held, row=row, loss=loss, queues=queues)

    @property
    def stages(self) -> list[PlanStage]:
        """The stages that this process runs, in their order."""
        return self.model.stages

    @property
    def takes_batch(self) -> bool:
        """Whether this process has a use for inputs or targets."""
        return self.cutter.takes_batch

    @property
    def pipeline(self) -> int:
        """Which of the pipelines this process belongs to, where microbatches are dealt to them."""
        return self.layout.replica_at(self.layout.stages_of(self.rank)[0], self.rank)

    def layer(self, name: str) -> nn.Module:
        """A layer that is here; raises KeyError for any other."""
        return self.model.layer(name)

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """The first optimizer of this process."""
        return self.update.optimizers[0] if self.update.optimizers else None

    @property
    def is_speaker(self) -> bool:
        """Whether this process, of all that know the losses, tells them."""
        return self.rank == self.layout.owners[-1][0]

    def parameters(self) -> list[nn.Parameter]:
        """All parameters on this process; of those that a group holds together, its parts."""
        return [parameter for _, parameter in self.model.named()]

    def step(self, batch: int | Batch | Microbatches | None) -> Iteration:
        """Run an iteration: all actions of this process, the reduction and the optimizer; a collective call.

        `batch`: inputs and target of the whole iteration, or its microbatches, the same on every process (None will do
        where neither the batch nor the target is taken, see `takes_batch`), or the number of an iteration for
        `Training.batch`. Raises ExecutionError, on every process the same, if processes were given different batches,
        if replicas have drifted apart or would take means over different numbers of targets, or if a loss or a gradient
        is not finite.
        """
        with nullcontext() if self.update.num_updates else outside_the_heap():
            return self._step(batch)

    def _step(self, batch: int | Batch | Microbatches | None) -> Iteration:
        self.number = batch if isinstance(batch, int) else self.number
        is_checking = self.check_every > 0 and (not self.has_trained or self.number % self.check_every == 0)
        share = self._take(self.cutter.given(batch, self.training.batch), is_checking=is_checking)
        is_due = self.update.is_due(self.number)
        start, begin = time.perf_counter_ns(), self.log.clock.mark()
        losses = self._run(share, is_due=is_due)
        if is_checking and self._moves_weights:  # a step on pieces would give all replicas the same again
            require_same_replicas(self.model, number=self.number)
        sums = self._add_up(share, losses, is_due=is_due)
        reduced = self.log.clock.mark()
        if self._is_checked and is_due and self.training.max_norm is None:
            self.update.start_check()
        values, loss = self.totals.tell(sums)
        norm, is_updated = self._finish(share, values, is_due=is_due)
        duration, end, resolve = time.perf_counter_ns() - start, self.log.clock.mark(), self.log.clock.resolve
        taken_up, actions = tuple(self.log.taken_up()), tuple(self.log.end_iteration())
        times = IterationTimes(taken_up, begin_ns=resolve(begin), reduced_ns=resolve(reduced), end_ns=resolve(end))
        if is_checking:
            require_same_replicas(self.model, number=self.number)
        self.number, self.has_trained = self.number + 1, True
        return Iteration(
            losses=values,
            gradient_norm=norm,
            duration_ns=duration,
            actions=actions,
            times=times,
            loss=loss,
            is_updated=is_updated,
        )

    def _add_up(self, share: BatchShare, losses: Mapping[int, torch.Tensor], *, is_due: bool) -> LossSums:
        """Gradients over all processes that have some of one weight; losses are on their way afterwards."""
        self.log.note("the reduction of its gradients")
        tokens = dict[int, float]()
        if self.training.num_tokens is not None:
            tokens = self.totals.count_tokens(share.targets)
            self.update.num_tokens += self.totals.add_up_tokens(tokens)
        self.update.num_means += self._num_means(share.layout) * self._root_factor
        sums, self._carried = self._carried, None
        if sums is None:
            sums = self.totals.start(losses, tokens, count=share.layout.num_microbatches)  # on its way beside gradients
        if is_due:
            self.update.add_up(self._reductions, self.model.ties)
        return sums

    def _take(self, given: Batch | Microbatches | None, *, is_checking: bool) -> BatchShare:
        """This process's share of what it was given, which is compared with that of others where it is time to."""
        if self.rounds is not None:
            return self.rounds.take(given, number=self.number, is_checking=is_checking)
        if given is not None and are_listed(given):
            raise ValueError(
                f"iteration {self.number} is given as microbatches, but that of `Training.batch(0)` is one batch, to "
                "be cut into equal ones; give lists of microbatches from the first on"
            )
        batch = cast(Batch | None, given)
        if is_checking:
            require_fit_batch(batch, self.training, layout=self.layout, number=self.number)
        return self.cutter.cut(batch)

    def _run(self, share: BatchShare, *, is_due: bool) -> dict[int, torch.Tensor]:
        """All actions; the generators are as they were afterwards: layers have their own numbers."""
        self._give_out(share)
        for stage in self.stages:
            number = stage.stage_index
            stage.moment = Moment(self.training.seed, self.number, 0, self._parts[number])
            if stage.reduction is not None:
                stage.reduction.is_due = is_due
                stage.reduction.prepare()
        runtime = self.runtime
        if share.row is not None and isinstance(runtime, RoutedRuntime):
            runtime.take_row(share.row.cells)
            self.log.needs = share.row.needs
        runtime.loss_factor = self.update.scale * self._root_factor
        if self.layout.samples and self.cutter.is_last and not self.training.loss_is_sum:
            runtime.loss_factor *= self._loss_weight
        self.log.on_note = None if self.active is None else self.active.take
        if self.stashes is not None:
            self.stashes.begin()
            self.log.on_note = self.stashes.take
        with _own_generators(self.device), nullcontext() if self.active is None else self.active.iteration():
            losses = runtime.run(share.targets)
        self.log.on_note = None
        for stage in self.stages:
            stage.module.trial = None  # the first iteration is over
        return losses

    def _give_out(self, share: BatchShare) -> None:
        """To every stage here what it takes of the batch, and the shapes of its microbatches where they differ."""
        for stage in self.stages:
            number = stage.stage_index
            stage.batch, stage.shapes = share.batches.get(number, {}), share.shapes.get(number, {})

    def _carry(self, losses: Mapping[int, torch.Tensor]) -> None:
        """Let gradients take the losses along, where there are no tokens to be counted first."""
        reduction = self.stages[0].reduction
        if reduction is not None and reduction.carries and self.training.num_tokens is None:
            values = reduction.carry(self.totals.weighted(losses, count=len(losses)))
            self._carried = None if values is None else LossSums(values=values, counts=None, works=())

    def _finish(self, share: BatchShare, losses: tuple[float, ...], *, is_due: bool) -> tuple[float | None, bool]:
        """Clip, look whether all is finite, and let the optimizers take their step; gives the norm of the gradients
        before they were clipped, and whether a step was taken.
        """
        norm = self.update.clip() if is_due else None
        are_losses_good = not self._is_checked or all(map(math.isfinite, losses))
        is_norm_good = norm is not None and math.isfinite(norm)  # of everything: then all that it adds up is, too
        are_grads_good = not (self._is_checked and is_due) or is_norm_good or self.update.has_finite_gradients()
        leaves_alone = is_due and self._can_leave_alone and any(each.leaves_alone for each in self.model.running)
        has_bad_loss, has_bad_grad, has_unused = self._on_any(not are_losses_good, not are_grads_good, leaves_alone)
        is_good = not (has_bad_loss or has_bad_grad)
        is_expected = self.training.loss_scale is not None and not has_bad_loss
        if not is_good and self.training.on_nonfinite == "stop" and not is_expected:
            forward, gradients = self._make_forward_pass(share), self.update.nonfinite_gradients()
            text = locate_nonfinite(self.model, forward, losses=losses, gradients=gradients, number=self.number)
            raise ExecutionError(text)
        self.update.is_spoiled |= not is_good
        if has_unused:
            forget_unused_weights(self.model, self.update)
        for stage in self.model.running if is_due and self._can_leave_alone else ():
            stage.used_inputs.clear()
        is_updated = is_due and self.update.finish(is_good=is_good)
        for reduction in self._reductions if is_updated else ():
            reduction.share()
        return norm, is_updated

    def _on_any(self, *mine: bool) -> tuple[bool, ...]:
        """Whether on any process; replicas of one stage that holds all and shards nothing have the same, added up."""
        if self._are_alike or self.layout.world_size == 1:
            return mine
        flags = torch.tensor(mine, dtype=torch.int32, device=self.device)
        distributed.all_reduce(flags, distributed.ReduceOp.MAX)
        return tuple(map(bool, flags.tolist()))

    def _num_means(self, layout: Layout) -> int:
        """Losses are means over a microbatch's samples: those of replicas that have equal shares count alike."""
        if self.training.loss_is_sum:
            return 1
        if layout is self.layout and self._means:
            return self._means
        replicas = 1 if layout.samples or layout.dealing else layout.num_replicas_of(-1)
        return layout.num_microbatches * replicas

    def _find_root_factor(self) -> float:
        """One over the number of means, where gradients are the same bits so: a power of two, and types with room."""
        count = self._num_means(self.layout)
        parameters = self.parameters()
        is_exact = not count & (count - 1) and all(each.dtype in _ROOMY for each in parameters)
        is_seen = any(describe_gradient_hook(layer) for layer in self._layers())
        is_seen |= any(each.has_hooks for shape in self.preparation.shapes for each in shape.traits.values())
        return 1 / count if isinstance(self.runtime, DirectRuntime) and is_exact and not is_seen else 1.0

    def _layers(self) -> Iterator[nn.Module]:
        for stage in self.stages:
            yield from stage.module.layers

    @property
    def _loss_weight(self) -> float:
        """How much the mean over the samples here counts in that over the samples of a microbatch."""
        if self.layout.dealing:
            return 1.0
        samples = self.layout.samples_of(-1)
        return samples[self.layout.replica_at(-1, self.rank)] / sum(samples) if self.cutter.is_last else 0.0

    def evaluate(self, batch: int | Batch | Microbatches | None) -> tuple[float, ...]:
        """The losses of every microbatch, in evaluation mode and without gradients; a collective call.

        `batch`: as for `step`, but a number asks `Training.evaluation` (or `batch`). Empty where the last stage is not.
        """
        given = self.cutter.given(batch, self.training.evaluation or self.training.batch)
        share = self._take(given, is_checking=False)
        found, count = dict[int, torch.Tensor](), share.layout.num_microbatches
        forward = self._make_forward_pass(share)
        self.model.share_averages()

        def visit(microbatch: int, number: int, outputs: Tensors) -> None:
            if number == self.layout.num_stages - 1 and share.targets is not None:
                with calling("the loss"):
                    output = outputs if len(outputs) > 1 else outputs[0]
                    found[microbatch] = self.training.loss(output, share.targets[microbatch])

        for stage in self.stages:
            stage.module.moment = None
        with evaluating([stage.module for stage in self.stages]):
            for microbatch in range(count):
                forward.run(microbatch, partial(visit, microbatch))
        for stage in self.stages:
            if stage.stage_index in self.preparation.fully_sharded:
                free_weights(stage.module)
        return self.totals.tell(self.totals.start(found, self.totals.count_tokens(share.targets), count=count))[0]

    def _make_forward_pass(self, share: BatchShare) -> ForwardPass:
        routes = self.model.routes
        if self._forward_pass is None:
            meet(routes, device=self.device)
        self._give_out(share)
        assignments = {number: share.layout.assignment_of(number, self.rank) for number in self._parts}
        self._forward_pass = ForwardPass(self.stages, assignments=assignments, routes=routes)
        return self._forward_pass


@contextmanager
def _own_generators(device: torch.device) -> Iterator[None]:
    """Layers have their own numbers; the process's generators are as they were afterwards."""
    if device.type == "cuda":
        with torch.random.fork_rng([device]):
            yield
        return
    state = torch.default_generator.get_state()
    try:
        yield
    finally:
        torch.default_generator.set_state(state)


def make_log(device: torch.device) -> ActionLog:
    """A log whose clock fits the device."""
    return ActionLog(CudaClock() if device.type == "cuda" else HostClock())
