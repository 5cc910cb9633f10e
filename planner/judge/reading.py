"""One plan read by all pages of the contract."""

from collections.abc import Callable
from fractions import Fraction
from functools import cached_property
from typing import TypeVar

import numpy

from planner.judge.active_stages import GatheredLayer, GatheringRank, active_bytes, fully_sharded_times, ranks_of
from planner.judge.batch import measured_near, profile_of_size, profile_run
from planner.judge.costs import (
    KINDS,
    Times,
    action_overhead,
    exchange_times,
    is_linear,
    layer_times,
    measured_sizes,
    stage_times,
    step_time,
    unit_size,
)
from planner.judge.device_orders import Booleans, DeviceOrders, Integers, Positions, read_orders
from planner.judge.host_memory import OffloadedStash, host_routes, moved_bytes, rows_of, rows_on
from planner.judge.host_pace import Pace, TimedLayer, after_gathers, asking_times, stage_paces
from planner.judge.memory import MemoryUse, Step, Steps, memory_uses, steps, usable_bytes
from planner.judge.microbatches import (
    Batch,
    alone,
    assignment_of,
    batches_of,
    kept_microbatches,
    without_recomputation,
)
from planner.judge.recomputation import NONE, kind_in
from planner.judge.routes import Route, Routes
from planner.judge.samples import ALL_SAMPLES, cut, round_up
from planner.judge.sizes import StageBytes, bytes_at, gathered_bytes, gradient_bytes, is_trained, stage_bytes
from planner.judge.stage_replicas import (
    StageReplica,
    is_fully_sharded,
    is_gathered,
    is_sharded,
    is_split,
    make_stage_replicas,
)
from planner.judge.synchronisation import Ring, gathering_ns, make_ring
from planner.judge.traffic import Channel, Reduction, Tensor, make_channels, static_bytes, tensors
from planner.plan import Plan, Stage
from planner.problem import Problem
from profiles.model_profile import Layer, LayerCost, ModelProfile

Row = TypeVar("Row")


class Reading:
    """Costs, sizes, traffic and orders of one plan, as the contract has them; each is read when it is asked for."""

    def __init__(self, problem: Problem, plan: Plan, *, profile: ModelProfile | None = None) -> None:
        self.problem, self.plan = problem, plan
        self.profile = profile or profile_run(problem, plan)
        """With the size of microbatches that the plan states."""
        self.layers = {layer.name: layer for layer in self.profile.layers}
        self.devices = {device.name: device for device in problem.cluster.devices}
        self._measured: dict[tuple[str, str, int], dict[int, LayerCost]] = {}
        self._layer_times: dict[tuple[str, str, int, str, Fraction], Times | None] = {}

    def layers_of(self, stage: Stage) -> list[Layer]:
        """The layers of a stage that the profile has."""
        return [self.layers[name] for name in stage.layers if name in self.layers]

    @cached_property
    def stage_of(self) -> dict[str, int]:
        """The first stage that names each layer."""
        found: dict[str, int] = {}
        for number, stage in enumerate(self.plan.stages):
            for name in stage.layers:
                found.setdefault(name, number)
        return found

    @cached_property
    def has_weight_grad(self) -> list[bool]:
        """Per stage: whether it has a W."""
        return [any(map(is_trained, self.layers_of(stage))) for stage in self.plan.stages]

    @cached_property
    def replicas(self) -> list[StageReplica]:
        """All stage replicas, ordered by stage, then replica."""
        return make_stage_replicas(self.plan.stages, has_weight_grad=self.has_weight_grad)

    def times_of(
        self, layer: Layer, device_type: str, *, width: int, share: Fraction, kind: str = NONE
    ) -> Times | None:
        """What a layer that recomputes by a kind takes for a share of a microbatch; None if not measured there."""
        key = layer.name, device_type, width, kind, share
        if key not in self._layer_times:
            place, whole = key[:3], unit_size(self.profile)
            if place not in self._measured:
                self._measured[place] = measured_sizes(layer, where=(device_type, width), whole=whole)
            measured = self._measured[place]
            self._layer_times[key] = layer_times(measured, whole * share, kind=kind, is_linear=self.is_linear)
        return self._layer_times[key]

    @cached_property
    def is_linear(self) -> bool:
        """Whether costs that were not measured are in proportion to the nearest."""
        return is_linear(self.profile)

    def is_measured(self, layer: Layer, device_type: str, *, width: int, share: Fraction) -> bool:
        """Whether times and bytes of a layer are known there."""
        has_times = self.times_of(layer, device_type, width=width, share=share) is not None
        return has_times and bytes_at(layer, width) is not None

    @cached_property
    def parts(self) -> list[tuple[Batch, "Reading"]]:
        """Where the question lists its microbatches: those of one size in one pipeline, each with the plan read so."""
        listed, known = self.problem.microbatches, dict[int, ModelProfile]()
        whole = bool(self.plan.dealing)
        shares = {part.share for stage in self.plan.stages for part in ([ALL_SAMPLES] if whole else cut(stage))}
        found = []
        for batch in batches_of(listed or (), self.plan.dealing):
            if batch.size not in known:
                near = measured_near(self.problem.profile, {batch.size * share for share in shares})
                known[batch.size] = profile_of_size(near, batch.size)
            found.append((batch, Reading(self.problem, alone(self.plan, batch.pipeline), profile=known[batch.size])))
        return found

    @cached_property
    def size_number(self) -> Integers:
        """[M] which of the sizes every microbatch has, counted from the smallest."""
        listed = self.problem.microbatches
        if listed is None:
            return numpy.zeros(self.problem.num_microbatches, dtype=numpy.int64)
        order = {size: number for number, size in enumerate(sorted(set(listed)))}
        return numpy.array([order[size] for size in listed], dtype=numpy.int64)

    def replicas_in(self, batch: Batch) -> list[int]:
        """The stage replicas that run these microbatches, in the order in which their part lists them."""
        return [n for n, each in enumerate(self.replicas) if batch.pipeline in (None, each.number)]

    def taken_by(self, replica: StageReplica) -> Integers:
        """The microbatches that a stage replica runs, whole or its share of them."""
        if self.plan.dealing:
            return numpy.array(sorted(self.plan.dealing[replica.number]), dtype=numpy.int64)
        return numpy.arange(self.problem.num_microbatches, dtype=numpy.int64)

    @cached_property
    def is_assigned(self) -> Booleans:
        """[actions] whether the microbatch is one that its stage replica runs; what neither knows is not."""
        if not self.plan.dealing:
            return numpy.ones(len(self.runner), dtype=numpy.bool_)
        assignment = assignment_of(self.problem.num_microbatches, self.plan.dealing)[self.orders.microbatch]
        own = numpy.array([each.number for each in self.replicas], dtype=numpy.int64)[self.runner]
        found: Booleans = (assignment == own) & (self.orders.microbatch >= 0)
        return found

    @cached_property
    def keeping(self) -> "Reading | None":
        """The plan as it is for microbatches that keep everything; None where no stage lists those that recompute."""
        if not any(stage.recompute_microbatches for stage in self.plan.stages):
            return None
        return Reading(self.problem, without_recomputation(self.plan), profile=self.profile)

    @cached_property
    def variant(self) -> Integers:
        """[actions] column of `durations` and `added`: the size of the microbatch, then whether it keeps everything."""
        found = self.size_number[self.orders.microbatch]
        if self.keeping is None:
            return found
        kept = kept_microbatches(self.plan.stages, count=self.problem.num_microbatches)
        return found + (int(self.size_number.max()) + 1) * kept[self.orders.stage, self.orders.microbatch]

    @cached_property
    def durations(self) -> list[list[tuple[int, ...]]]:
        """[stage replicas][variants][F, I, W, B] nanoseconds: as stages say for every size, then keeping all."""
        return self._with_keeping(lambda reading: reading.own_durations, nothing=(0,) * len(KINDS))

    @cached_property
    def paces(self) -> list[list[tuple[Pace, ...]]]:
        """[stage replicas][variants] F, I, W and B of the hosts, as `durations`; empty where no host takes time."""
        if not any(cost.host for layer in self.profile.layers for cost in layer.costs):
            return []
        return self._with_keeping(lambda reading: reading.own_paces, nothing=(Pace(0, 0),) * len(KINDS))

    def _with_keeping(self, own: Callable[["Reading"], list[Row]], *, nothing: Row) -> list[list[Row]]:
        """[stage replicas][variants] rows as stages say for every size, then those of microbatches that keep all."""
        kept = [[] for _ in self.replicas] if self.keeping is None else self.keeping._by_size(own, nothing=nothing)
        return [stated + more for stated, more in zip(self._by_size(own, nothing=nothing), kept, strict=True)]

    def _by_size(self, own: Callable[["Reading"], list[Row]], *, nothing: Row) -> list[list[Row]]:
        """[stage replicas][sizes] rows; of sizes that a replica never runs `nothing`."""
        if self.problem.microbatches is None:
            return [[row] for row in own(self)]
        found = [[nothing] * (int(self.size_number.max()) + 1) for _ in self.replicas]
        for batch, part in self.parts:
            number = int(self.size_number[batch.microbatches[0]])
            for replica, row in zip(self.replicas_in(batch), own(part), strict=True):
                found[replica][number] = row
        return found

    @cached_property
    def own_durations(self) -> list[tuple[int, ...]]:
        """[stage replicas][F, I, W, B] at the profile's size; with split placement I is that of its own share."""
        known: dict[tuple[int, str, Fraction], dict[str, int]] = {}

        def times(replica: StageReplica, share: Fraction) -> dict[str, int]:
            key = replica.stage, self.devices[replica.head].type, share
            if key not in known:
                known[key] = self._stage_times(replica, share)
            return known[key]

        found = []
        for replica in self.replicas:
            has_parts = is_split(self.plan.stages[replica.stage])
            own = times(replica, ALL_SAMPLES.share if has_parts else replica.samples.share)
            if has_parts and replica.samples.share:
                own = {**own, "I": times(replica, replica.samples.share)["I"]}
            found.append(tuple(own[kind] for kind in KINDS))
        return found

    @cached_property
    def own_paces(self) -> list[tuple[Pace, ...]]:
        """[stage replicas][F, I, W, B] what the hosts do, at the profile's size."""
        return [self._stage_paces(replica) or (Pace(0, 0),) * len(KINDS) for replica in self.replicas]

    def _stage_paces(self, replica: StageReplica) -> tuple[Pace, ...]:
        stage, device_type, width = self.plan.stages[replica.stage], self.devices[replica.head].type, len(replica.group)
        found, share = [], replica.samples.share
        for layer in self.layers_of(stage):
            kind = kind_in(stage, layer)
            times = self.times_of(layer, device_type, width=width, share=share, kind=kind)
            assert times is not None
            exchanges = exchange_times(self.profile, layer, device_type=device_type)
            measured = self._measured[layer.name, device_type, width]
            found.append(TimedLayer(times, exchanges, asking_times(measured, unit_size(self.profile) * share), kind))
        paces = stage_paces(found, share=share, overhead=self._overhead(device_type))
        if not paces or not is_fully_sharded(stage):
            return paces
        return after_gathers(paces, found, share=share, taken=self._fully_sharded_times(stage, share))

    def _fully_sharded_times(self, stage: Stage, share: Fraction) -> dict[str, int]:
        """What its actions take: every layer as long as on the slowest of its devices, for all wait for all."""
        types = sorted({self.devices[name].type for group in stage.replicas for name in group})
        overheads = [action_overhead(self.profile, each, num_stages=1, is_sharded=True) for each in types]
        found = []
        for layer in self.layers_of(stage):
            own = [self._layer_times_on(layer, each, share=share, kind=kind_in(stage, layer)) for each in types]
            sent = {"gather": gathered_bytes([layer], width=1), "scatter": gradient_bytes([layer], width=1)}
            messages = (
                gathering_ns(stage, self.routes, num_bytes=n, is_frozen=not is_trained(layer), collective=name)
                for name, n in sent.items()
            )
            found.append(GatheredLayer({kind: max(each[kind] for each in own) for kind in KINDS}, *messages))
        overhead = {kind: max(each[kind] for each in overheads) for kind in KINDS}
        occupancies = self.problem.cluster.collective_occupancy, self.problem.cluster.sharding_occupancy
        return fully_sharded_times(found, overhead=overhead, occupancy=max(occupancies))

    def _layer_times_on(self, layer: Layer, device_type: str, *, share: Fraction, kind: str) -> dict[str, int]:
        """Of one layer on a single device, without an overhead."""
        times = self.times_of(layer, device_type, width=1, share=share, kind=kind)
        if times is None:
            raise ValueError(f"layer {layer.name!r} has no cost on {device_type!r} at width 1 for {share}")
        exchanges = [exchange_times(self.profile, layer, device_type=device_type)]
        return stage_times([times], share=share, overhead=dict.fromkeys(KINDS, 0), exchanges=exchanges)

    def _overhead(self, device_type: str) -> dict[str, int]:
        return action_overhead(self.profile, device_type, num_stages=len(self.plan.stages))

    def _stage_times(self, replica: StageReplica, share: Fraction) -> dict[str, int]:
        """What its stage takes on the devices of a stage replica, for a share of the samples."""
        stage, device_type, width = self.plan.stages[replica.stage], self.devices[replica.head].type, len(replica.group)
        if is_fully_sharded(stage):
            return self._fully_sharded_times(stage, share)
        known = []
        layers = self.layers_of(stage)
        for layer in layers:
            times = self.times_of(layer, device_type, width=width, share=share, kind=kind_in(stage, layer))
            if times is None:
                raise ValueError(f"layer {layer.name!r} has no cost on {device_type!r} at width {width} for {share}")
            known.append(times)
        overhead = self._overhead(device_type)
        exchanges = [exchange_times(self.profile, layer, device_type=device_type) for layer in layers]
        return stage_times(known, share=share, overhead=overhead, exchanges=exchanges)

    @cached_property
    def closing_ns(self) -> int:
        """What follows the last gradient: the profile's own time, then steps, then stages gather what they sharded."""
        taken = dict.fromkeys(self.devices, 0)
        for stage, group in ((each, group) for each in self.plan.stages for group in each.replicas):
            layers, device_type = self.layers_of(stage), self.devices[group[0]].type
            sharers = len(group) * (len(stage.replicas) if is_sharded(stage) else 1)
            for device in group:
                taken[device] += step_time(layers, device_type=device_type, sharers=sharers)
        for stage, size in zip(self.plan.stages, self.sizes, strict=True):
            if is_sharded(stage) and not is_gathered(stage) and not is_fully_sharded(stage):
                own = {device for group in stage.replicas for device in group}
                end = max(taken[device] for device in own) + self.gathering_ns(stage, size)
                taken |= dict.fromkeys(own, end)
        several = self.profile.stages_optimizer_ns if len(self.plan.stages) > 1 else 0
        return self.profile.optimizer_ns + several + max(taken.values())

    @cached_property
    def slowed_devices(self) -> set[str]:
        """Devices that lose time to reductions."""
        if not self.problem.cluster.collective_occupancy:
            return set()
        return {name for stage in self.plan.stages for group in stage.replicas for name in group}

    def lost_ns(self, device: str, ended: Integers) -> int:
        """What a device's actions lose to its reductions, but to the longest of stages that have `ended` [S] last."""
        own = [n for n, stage in enumerate(self.plan.stages) if any(device in group for group in stage.replicas)]
        own.sort(key=lambda n: (ended[n], self.rings[n].duration_ns))
        occupancy = self.problem.cluster.collective_occupancy
        return sum(-(-self.rings[number].duration_ns * occupancy // 1000) for number in own[:-1])

    def gathering_ns(self, stage: Stage, size: StageBytes) -> int:
        """How long the replicas of a sharding stage take to gather its weights once."""
        is_frozen = all(layer.frozen for layer in self.layers_of(stage))
        return gathering_ns(stage, self.routes, num_bytes=size.gathered, is_frozen=is_frozen)

    @cached_property
    def sizes(self) -> list[StageBytes]:
        """Per stage: its bytes on every device of a replica."""
        return [
            stage_bytes(stage, self.layers_of(stage), width=len(stage.replicas[0]), profile=self.profile)
            for stage in self.plan.stages
        ]

    @cached_property
    def tensors(self) -> dict[tuple[int, int], Tensor]:
        """Tensors between stages, with producers and consumers."""
        return tensors(self.profile.edges, self.stage_of)

    @cached_property
    def channels(self) -> list[Channel]:
        """What flows between stage replicas, for each size of microbatches on its own."""
        if self.problem.microbatches is None:
            return self.own_channels
        found = []
        for batch, part in self.parts:
            replicas = self.replicas_in(batch)
            taken = None if len(batch.microbatches) == self.problem.num_microbatches else batch.microbatches
            found += [
                channel._replace(sender=replicas[channel.sender], receiver=replicas[channel.receiver], taken=taken)
                for channel in part.own_channels
            ]
        return found

    @cached_property
    def own_channels(self) -> list[Channel]:
        """What flows between stage replicas for a microbatch of the profile's size."""
        return make_channels(
            self.plan.stages,
            self.replicas,
            tensors=self.tensors,
            sizes=self.sizes,
            num_microbatches=self.problem.num_microbatches,
        )

    @cached_property
    def routes(self) -> Routes:
        """The routes of the cluster."""
        return Routes(self.problem.cluster)

    @cached_property
    def channel_routes(self) -> list[Route | None]:
        """Per channel: its route; None inside a device, where nothing travels."""
        found: list[Route | None] = []
        for channel in self.channels:
            ends = self.replicas[channel.sender].head, self.replicas[channel.receiver].head
            found.append(None if ends[0] == ends[1] else self.routes.find(*ends, num_bytes=channel.num_bytes))
        return found

    @cached_property
    def rings(self) -> list[Ring]:
        """Per stage: how its replicas synchronise."""
        found = []
        for stage, size in zip(self.plan.stages, self.sizes, strict=True):
            is_frozen = is_fully_sharded(stage) or all(layer.frozen for layer in self.layers_of(stage))
            found.append(make_ring(stage, self.routes, gradient_bytes=size.gradients, is_frozen=is_frozen))
        return found

    @cached_property
    def static(self) -> dict[str, int]:
        """Bytes resident on every device: receive buffers are as large as the largest microbatch needs them."""
        buffers = self.problem.options.receive_buffers
        if self.problem.microbatches is None:
            return self._static_with(buffers)
        found = self._static_with(0)
        most = dict.fromkeys(found, 0)
        for _, part in self.parts:
            bare = part._static_with(0)
            for device, size in part._static_with(buffers).items():
                most[device] = max(most[device], size - bare[device])
        return {device: size + most[device] for device, size in found.items()}

    def _static_with(self, receive_buffers: int) -> dict[str, int]:
        """Bytes resident on every device with so many buffers per edge, for microbatches of the profile's size."""
        active = active_bytes(self.plan.stages, self.sizes, most=self.plan.max_active_stages or 0)
        resident = static_bytes(
            self.plan.stages,
            self.replicas,
            tensors=self.tensors,
            sizes=self.sizes,
            receive_buffers=receive_buffers,
            reduction=Reduction(
                bucket_bytes=self.profile.bucket_bytes,
                is_in_place=self.profile.gradient_as_bucket_view,
                beside_bytes=self.profile.reduction_bytes,
            ),
        )
        return {device: size + active.get(device, 0) for device, size in resident.items()}

    @cached_property
    def gathering_ranks(self) -> list[GatheringRank]:
        """What devices gather, where the plan says how many stages are active at a time."""
        most = self.plan.max_active_stages
        return [] if most is None else ranks_of(self.plan.stages, self.orders, most=most)

    @cached_property
    def orders(self) -> DeviceOrders:
        """The device orders of the schedule, as arrays."""
        sizes = {"num_stages": len(self.plan.stages), "num_microbatches": self.problem.num_microbatches}
        return read_orders(self.plan.schedule, **sizes)

    @cached_property
    def positions(self) -> Positions:
        """Position of each action in its device's order."""
        sizes = {"num_stages": len(self.plan.stages), "num_microbatches": self.problem.num_microbatches}
        return Positions(self.orders, **sizes)

    @cached_property
    def runner(self) -> Integers:
        """[actions] index of the stage replica that runs each."""
        return self.orders.runners(self.replicas)

    @cached_property
    def memory(self) -> dict[str, MemoryUse]:
        """What every device holds at most."""
        limits = {name: usable_bytes(device) for name, device in self.devices.items()}
        return memory_uses(
            self.orders,
            self.runner,
            added=self.added,
            variant=self.variant,
            static=self.static,
            limits=limits,
            moved=moved_bytes(self.stashes, count=len(self.runner)),
        )

    @cached_property
    def stashes(self) -> list[OffloadedStash]:
        """Stashes that travel, by stage, replica and device; that each can is for rules to say."""
        found, sizes = list[OffloadedStash](), (self.keeping or self).sizes
        for replica in self.replicas if any(stage.offload for stage in self.plan.stages) else ():
            size = round_up(replica.samples.share * sizes[replica.stage].stash)
            for device in replica.group:
                order, own = rows_on(self.orders, device), self.devices[device]
                routes = host_routes(self.problem.cluster, own, routes=self.routes, num_bytes=size)
                for moved in self.plan.stages[replica.stage].offload:
                    rows = rows_of(moved, replica.stage, order=order)
                    if rows is not None and routes is not None:
                        found.append(OffloadedStash(replica.stage, moved.microbatch, device, size, routes, *rows))
        return found

    @cached_property
    def added(self) -> list[list[Steps]]:
        """[stage replicas][variants] what the actions add to what is held, as `durations`."""
        return self._with_keeping(lambda reading: reading.own_steps, nothing=(Step(0, 0),) * 4)

    @cached_property
    def own_steps(self) -> list[Steps]:
        """[stage replicas] what the actions for a microbatch of the profile's size add to what is held."""
        return [
            steps(
                each,
                self.plan.stages[each.stage],
                size=self.sizes[each.stage],
                options=self.problem.options,
                has_weight_grad=self.has_weight_grad[each.stage],
            )
            for each in self.replicas
        ]
