"""The question that a configuration answers: one of its equal pipelines, a group of devices as one.

What the pipelines exchange at the end, and what they shard, stands in the layers' optimizer times and state.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from planner.actions import parse_action
from planner.baselines.alternation import order_gpipe
from planner.baselines.pipeline import make_pipeline
from planner.baselines.pipeline import make_plan as play_order
from planner.baselines.zero_bubble.zb_v import order_zb_v
from planner.export.looped_pipelines import as_looped
from planner.export.model_parts import letter_of
from planner.export.targets import TARGETS, Target, restrict, with_chunks
from planner.export.torch_table import render_torch_table
from planner.layout.costs import CostModel
from planner.plan import FULL_RECOMPUTATION, Plan, Stage
from planner.problem import Options, Problem
from planner.verify import verify
from profiles.cluster import Cluster, Device, Link, assumed_reserve_bytes
from profiles.configurations.known_models import GpuSheet, find_sheet
from profiles.configurations.run_configuration import Recomputation, RunConfiguration
from profiles.configurations.torchtitan_run import TABLE_FIELD
from profiles.estimates.composed_profile import OPTIMIZER_BYTES, CompositionQuestion, Figure, compose
from profiles.estimates.networks import RING_SHARE
from profiles.estimates.operations import Rates
from profiles.estimates.run_settings import settings_of
from profiles.importers.aiconfigurator.default_rates import default_rates_of
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile

WEIGHT_BYTES = 2
MOST_RANKS, MOST_BLOCKS, MOST_PLAYED = 256, 2_000, 10**6
"""Largest configuration that is audited: ranks, blocks, and actions of a simulation."""
LATENCY_NS = 10_000
HOST_NS = 7_600_000
"""What a host takes at least to launch a block with experts, forward and backward, of a microbatch of any size.

The middle of what three of Megatron-Bridge's rows on B200 say, as a part of what estimates are short of there. Rows on
H100 had no part in it. Those of Grace's hosts show nothing of it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedProblem:
    """The question, and what its times were made of."""

    run: RunConfiguration
    """Configuration that was read."""
    sheet: GpuSheet
    """Of the devices."""
    problem: Problem
    """A device is a rank of the pipeline, which may be a group."""
    figures: tuple[Figure, ...]
    """Every time of an operation."""
    origin: str
    """Source of the times: tables, rates or a profile."""
    recompute: Recomputation | None
    """What stages recompute; None: nothing, or it stands in the layers' times."""
    target: Target


def make_audited_problem(
    run: RunConfiguration, *, gpu: str | GpuSheet, measured: ModelProfile | None = None
) -> AuditedProblem:
    """Times by a measured profile, or by the available tables or rates; raises ValueError where none are known."""
    _require_moderate(run)
    sheet = find_sheet(gpu) if isinstance(gpu, str) else gpu
    if sheet.is_stated and run.devices <= sheet.node:
        raise ValueError(f"--network-gb-per-s: all {run.devices} GPUs are in one node; leave it out, or give --devices")
    target = TARGETS[run.program]
    decides = bool(target.restrictions.get("recompute", True))
    profile, figures, origin = _estimated(run, sheet) if measured is None else _measured(run, sheet, profile=measured)
    if not decides and run.recompute is not None:
        once = tuple(replace(each, stash_bytes=0, weight_stash_bytes=0) for each in profile.held_once)
        profile = replace(profile, layers=tuple(map(_recomputing, profile.layers)), held_once=once)
    options = Options(
        max_replicas=1, recompute=decides, recompute_layers=decides, recompute_in_turn=decides, idle_devices=False
    )
    options = restrict(with_chunks(options, target), target)
    if run.chunks > options.max_stages_per_device:
        options = replace(options, max_stages_per_device=run.chunks)
    problem = Problem(
        profile=profile,
        cluster=_cluster(run, sheet),
        num_microbatches=run.num_microbatches,
        options=options,
    )
    return AuditedProblem(
        run=run,
        sheet=sheet,
        problem=problem,
        figures=figures,
        origin=origin,
        recompute=run.recompute if decides else None,
        target=target,
    )


def _require_moderate(run: RunConfiguration) -> None:
    """Raise ValueError for what takes too long to play."""
    played = run.num_microbatches * max(run.pipeline, len(run.stages))
    for what, value, most in (
        ("ranks of a pipeline", run.pipeline, MOST_RANKS),
        ("blocks", run.shape.blocks, MOST_BLOCKS),
        ("microbatches times stages", played, MOST_PLAYED),
    ):
        if value > most:
            raise ValueError(f"{value:,} {what}: an audit reads at most {most:,}; use fewer")


def _estimated(run: RunConfiguration, sheet: GpuSheet) -> tuple[ModelProfile, tuple[Figure, ...], str]:
    """The profile, its figures, and what they rest on."""
    rates = _rates(sheet)
    profile, figures = compose(
        CompositionQuestion(
            shape=run.shape, rates=[rates], sizes=(run.micro_batch,), degrees=(run.tensor,), **settings_of(run)
        )
    )
    costs = _StateCosts(run, sheet)
    layers = [
        costs.layer(layer.as_one_device(layer.costs[0]), block=number - 1)
        for number, layer in enumerate(profile.layers)
    ]
    if run.shape.is_tied and run.pipeline == 1:
        layers[-1] = _without_state(layers[-1])
    paced = [
        _at_hosts_pace(layer) if _waits(run, sheet, block=number - 1) else layer for number, layer in enumerate(layers)
    ]
    waits = "" if paced == layers else f", and a host that takes {HOST_NS / 1e6:g} ms for a block with experts"
    return _with_layers(profile, paced, predicting=run.predicting), figures, rates.origin + waits


def _waits(run: RunConfiguration, sheet: GpuSheet, *, block: int) -> bool:
    """Whether a layer is a block with experts whose kernels Megatron's host launches one by one."""
    is_whole = 0 <= block < run.shape.blocks and run.shape.is_mixture(block) and not run.shape.pattern
    return is_whole and run.program == "megatron" and not run.is_one_graph and not sheet.name.startswith("g")


def _at_hosts_pace(layer: Layer) -> Layer:
    """The layer with no shorter passes than its host takes to launch them."""
    cost = layer.costs[0]
    factor = HOST_NS / (cost.forward_ns + cost.input_grad_ns + cost.weight_grad_ns)
    return layer if factor <= 1 else replace(layer, costs=(_longer(cost, factor),))


def _longer(cost: LayerCost, factor: float) -> LayerCost:
    names = ("forward_ns", "input_grad_ns", "weight_grad_ns", "recompute_ns")
    return replace(cost, **{name: round(factor * getattr(cost, name)) for name in names})


def _measured(
    run: RunConfiguration, sheet: GpuSheet, *, profile: ModelProfile
) -> tuple[ModelProfile, tuple[Figure, ...], str]:
    costs = _StateCosts(run, sheet)
    layers = tuple(costs.measured_layer(layer) for layer in _measured_layers(profile, run, gpu=sheet.name))
    once = profile.held_once if run.tensor == 1 else ()
    if run.shards != "nothing":  # each replica has a part of every layer's
        once = tuple(replace(each, state_bytes=0) for each in once)
    kept = replace(profile, layers=layers, held_once=once, measurements=(), assumptions=None)
    return kept, (), f"measured profile {profile.name!r}"


def _rates(sheet: GpuSheet) -> Rates:
    try:
        return default_rates_of(sheet.name, network_bytes_per_s=sheet.outside if sheet.is_stated else None)
    except KeyError:
        raise ValueError(
            f"--gpu {sheet.name}: its rates are only in the measured tables; run pip install 'pipeline-planner[tables]'"
        ) from None


def _recomputing(layer: Layer) -> Layer:
    """The layer as it is where it always recomputes, which its program does whatever the plan is."""
    cost = layer.costs[0]
    whole = replace(cost, input_grad_ns=cost.input_grad_ns + cost.recompute_ns, recompute_ns=0)
    return replace(
        layer,
        costs=(whole,),
        stash_bytes=layer.checkpoint_bytes,
        weight_stash_bytes=min(layer.weight_stash_bytes, layer.checkpoint_bytes),
        workspace_bytes=layer.workspace_bytes + layer.stash_bytes - layer.checkpoint_bytes,
    )


def _without_state(layer: Layer) -> Layer:
    """The layer with weights that another layer of the same device holds and steps."""
    cost = layer.costs[0]
    both_ns = cost.input_grad_ns + cost.weight_grad_ns
    cost = replace(cost, input_grad_ns=both_ns, weight_grad_ns=0, optimizer_ns=0)
    return replace(layer, costs=(cost,), parameter_bytes=0, gradient_bytes=None, optimizer_bytes=None, state_bytes=0)


class _StateCosts:
    """What replicas shard of a layer's state, and what its step and the exchange of its gradients take."""

    def __init__(self, run: RunConfiguration, sheet: GpuSheet) -> None:
        self.run, self.sheet = run, sheet
        self.replicas = run.data * run.context
        """Of weights that are no expert's."""
        self.expert_replicas = max(1, self.replicas * run.tensor // (run.experts or run.tensor))

    def layer(self, layer: Layer, *, block: int) -> Layer:
        """The layer with the state that a replica holds, and with its step and exchange in `optimizer_ns`."""
        weights = (layer.parameter_bytes or 0) // WEIGHT_BYTES
        experts = self._expert_weights(block)
        sharers = self.run.experts or self.run.tensor
        parts = ((weights - experts, self.replicas, self.run.tensor), (experts, self.expert_replicas, sharers))
        run, shards = self.run, self.run.shards
        own = sum(-(-held // max(1, count // self.run.copies)) for held, count, _ in parts)
        optimizer = OPTIMIZER_BYTES * (weights if shards == "nothing" else own)
        gradients = self.run.sum_bytes * (own if shards in ("gradients", "weights") else weights)
        step_ns = layer.costs[0].optimizer_ns * (own if shards != "nothing" else weights) // max(1, weights)
        exchange_ns = sum(self._exchange_ns(held, replicas=count, stride=stride) for held, count, stride in parts)
        if run.shape.is_tied and run.pipeline > 1 and not run.in_v and not 0 <= block < run.shape.blocks:
            # the first stage and the last sum gradients of what both hold, after all else
            exchange_ns += round(1e9 * run.gradient_bytes * weights / self._speed(2, stride=run.devices // 2))
        return replace(
            layer,
            costs=(replace(layer.costs[0], optimizer_ns=step_ns + exchange_ns),),
            gradient_bytes=gradients,
            optimizer_bytes=optimizer,
            state_bytes=WEIGHT_BYTES * weights + gradients + optimizer,
        )

    def measured_layer(self, layer: Layer) -> Layer:
        """A measured layer's state where replicas shard the optimizer's, with the exchange of its gradients."""
        weights = 0 if layer.frozen else layer.parameter_bytes // WEIGHT_BYTES
        held = layer.optimizer_bytes or 0
        own = held if self.run.shards == "nothing" else -(-held // max(1, self.replicas // self.run.copies))
        cost = layer.costs[0]
        step_ns = cost.optimizer_ns * own // held if held else cost.optimizer_ns
        step_ns += self._exchange_ns(weights, replicas=self.replicas, stride=self.run.tensor)
        return replace(
            layer,
            costs=(replace(cost, optimizer_ns=step_ns),),
            optimizer_bytes=own if held else layer.optimizer_bytes,
            state_bytes=layer.state_bytes - held + own,
        )

    def _expert_weights(self, block: int) -> int:
        shape = self.run.shape
        if shape.mixture is None or not 0 <= block < shape.blocks or not shape.is_mixture(block):
            return 0
        own = shape.mixture.experts // (self.run.experts or self.run.tensor)
        return own * (2 + shape.is_gated) * shape.hidden * shape.mixture.inner

    def _exchange_ns(self, weights: int, *, replicas: int, stride: int) -> int:
        """Gradients scattered and weights gathered (or gradients reduced) in a ring over the cards of all replicas of
        a node, which are `stride` apart; of several stages on a rank one stage's stays where the rest runs beside
        backward passes.
        """
        run = self.run
        back = run.gradient_bytes if run.shards == "nothing" else WEIGHT_BYTES
        moved = (replicas - 1) / replicas * (run.gradient_bytes + back) * weights
        speed = self._speed(replicas, stride=stride)
        return round(moved / speed * 1e9 / (run.chunks if run.overlaps_data else 1))

    def _speed(self, replicas: int, *, stride: int) -> float:
        """Bytes per second of such a ring."""
        cards = RING_SHARE * self.sheet.outside * max(1, self.sheet.node // stride)
        return self.sheet.inside if stride * replicas <= self.sheet.node else min(self.sheet.inside, cards)


def _with_layers(profile: ModelProfile, layers: Sequence[Layer], *, predicting: int) -> ModelProfile:
    """Multi-token prediction is so many blocks more before the head, whose work is done once more for each."""
    *before, head = layers
    more = [replace(before[-1], name=f"mtp.{number}") for number in range(predicting)]
    times = predicting + 1
    heavier = replace(
        head,
        costs=(_longer(head.costs[0], times),),
        stash_bytes=times * head.stash_bytes,
        weight_stash_bytes=times * head.weight_stash_bytes,
        checkpoint_bytes=times * head.stash_bytes,
    )
    chain, size = (*before, *more, heavier), profile.edges[0].bytes
    edges = tuple(Edge(producer=a.name, consumer=b.name, bytes=size) for a, b in pairwise(chain))
    return replace(profile, layers=chain, edges=edges, measurements=(), assumptions=None)


def _cluster(run: RunConfiguration, sheet: GpuSheet) -> Cluster:
    """The ranks, each joined to each: within a node where all devices are in one."""
    single = sheet.inside if run.devices <= sheet.node else sheet.outside
    speed = single * min(run.tensor, sheet.node)
    devices = tuple(
        Device(
            name=f"rank{number}",
            type=sheet.name,
            memory_bytes=sheet.memory_bytes,
            reserved_bytes=assumed_reserve_bytes(sheet.memory_bytes),
        )
        for number in range(run.pipeline)
    )
    links = tuple(
        Link(a=a.name, b=b.name, bandwidth_bytes_per_s=speed, latency_ns=LATENCY_NS)
        for number, a in enumerate(devices)
        for b in devices[number + 1 :]
    )
    return Cluster(
        name=f"{run.pipeline} ranks of {run.tensor * run.context} {sheet.name}", devices=devices, links=links
    )


def stage_layers(stages: Sequence[str], names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The layers of every stage by its letters; E and L are all that come before and after the blocks."""
    named = {letter: [name for name in names if letter_of(name) == letter] for letter in "EtmL"}
    blocks = {letter: iter(named[letter]) for letter in "tm"}
    for stage in stages:
        yield tuple(name for letter in stage for name in ([next(blocks[letter])] if letter in "tm" else named[letter]))


def audited_plan(audited: AuditedProblem, *, recompute: Recomputation | None) -> Plan:
    """The configuration as a plan, with the recomputation of its own or another."""
    run, problem = audited.run, audited.problem
    names = [layer.name for layer in problem.profile.layers]
    stages = tuple(
        Stage(layers=layers, replicas=((_device(run, number),),), recompute=_recomputed(layers, recompute))
        for number, layers in enumerate(stage_layers(run.stages, names))
    )
    if run.order == "1F1B":
        rounds = max(1, run.num_microbatches // run.pipeline)
        each = run.num_microbatches // rounds if run.program == "torchtitan" else None
        return as_looped(problem, Plan(problem=problem.reference(), stages=stages, schedule={}), in_round=each)
    if run.order == "table":
        return _tabled_plan(audited, stages)
    costs = CostModel(problem)
    order = order_gpipe if run.order == "GPipe" else order_zb_v
    return play_order(costs, stages, device_orders=order(make_pipeline(costs, stages)))


def _tabled_plan(audited: AuditedProblem, stages: tuple[Stage, ...]) -> Plan:
    """The plan of a table; raises ValueError for what torch cannot run."""
    try:
        schedule = {f"rank{rank}": tuple(map(parse_action, row)) for rank, row in enumerate(audited.run.rows)}
        plan = Plan(problem=audited.problem.reference(), stages=stages, schedule=schedule)
        for each in verify(audited.problem, plan).violations:
            if each.rule != "memory-exceeded":
                raise ValueError(f"{each.message.rstrip('.')}; {each.remedy[0].lower()}{each.remedy[1:].rstrip('.')}")
        render_torch_table(audited.problem, plan)
    except ValueError as reason:
        raise ValueError(f"parallelism.{TABLE_FIELD}: {reason}") from None
    return plan


def _device(run: RunConfiguration, stage: int) -> str:
    """Ranks in a loop, or in a V."""
    cycle, place = divmod(stage, run.pipeline)
    return f"rank{run.pipeline - 1 - place if run.in_v and cycle % 2 else place}"


def _recomputed(layers: Sequence[str], recompute: Recomputation | None) -> bool | tuple[tuple[str, str], ...]:
    if recompute is None:
        return False
    if recompute.blocks is None:
        return True
    blocks = [name for name in layers if letter_of(name) in "tm"][: recompute.blocks]
    return tuple((name, FULL_RECOMPUTATION) for name in blocks)


def _measured_layers(profile: ModelProfile, run: RunConfiguration, *, gpu: str) -> tuple[Layer, ...]:
    """Each with its one cost at the tensor-parallel degree, under the GPU's name.

    Raises ValueError with the profile's name where it is of another model, size of microbatches, degree or device type.
    """
    owner = f"profile {profile.name!r}"
    letters = "".join(letter_of(layer.name) for layer in profile.layers)
    wanted = run.shape.blocks, run.predicting
    if (letters.count("t"), letters.count("m")) != wanted:
        raise ValueError(
            f"{owner}: has {letters.count('t')} blocks and {letters.count('m')} of multi-token prediction, but the "
            f"configuration has {wanted[0]} and {wanted[1]}; give the profile of its model"
        )
    if profile.microbatch_size != run.micro_batch:
        raise ValueError(
            f"{owner}: microbatch_size = {profile.microbatch_size}, but the configuration's is {run.micro_batch}; "
            "measure that size"
        )
    device_type = _device_type(profile, gpu=gpu)
    return tuple(_layer(layer, device_type=device_type, width=run.tensor, gpu=gpu) for layer in profile.layers)


def _device_type(profile: ModelProfile, *, gpu: str) -> str:
    """The only one that there is, or the one that is the GPU's name in some form."""
    types = sorted({cost.device_type for layer in profile.layers for cost in layer.costs})
    if len(types) == 1:
        return types[0]
    for name in types:
        try:
            if find_sheet(name).name == gpu:
                return name
        except ValueError:
            continue
    raise ValueError(f"profile {profile.name!r}: none of its device types ({', '.join(types)}) is --gpu {gpu}")


def _layer(layer: Layer, *, device_type: str, width: int, gpu: str) -> Layer:
    cost = next((each for each in layer.costs if (each.device_type, each.width) == (device_type, width)), None)
    if cost is None or layer.bytes_at(width) is None:
        widths = sorted({each.width for each in layer.costs if each.device_type == device_type})
        raise ValueError(
            f"layer {layer.name!r}: was not measured on {width} devices, of {device_type!r} on "
            f"{', '.join(map(str, widths))}; measure it so, or take another --tp"
        )
    return layer.as_one_device(cost, device_type=gpu)
