"""All that is known of a run before processes meet: whether plan and training fit, shapes, and who does what when."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import cast

import torch
from torch import nn

from planner.execute.data.batch_share import split_batch
from planner.execute.data.dealt_rows import rebalance
from planner.execute.model.cut.hooks import describe_gradient_hook
from planner.execute.model.cut.outside_state import OutsideVariable, find_outside
from planner.execute.model.cut.whole_model import BatchReader
from planner.execute.model.listed_microbatches import are_listed, list_microbatches
from planner.execute.model.user_code import calling
from planner.execute.run.full_shard_check import find_fully_sharded
from planner.execute.run.width_check import require_widths
from planner.execute.stage.sample_parts import mark_whole
from planner.execute.stage.stage_module import StageShape, StageTracer
from planner.execute.table.layout import Layout, make_layout
from planner.execute.table.own_actions import find_wrong_actions
from planner.execute.table.routes import Cell, lower
from planner.execute.table.wiring import StageEdge, StageWiring, find_edges, make_wirings
from planner.execute.training import Batch, Microbatches, Tensors, Training, as_tuple
from planner.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """All that is known without talking to another process."""

    plan: Plan
    training: Training
    layout: Layout
    wirings: tuple[StageWiring, ...]
    edges: tuple[StageEdge, ...]
    """Edges between stages, with the tensors on them."""
    shapes: tuple[StageShape, ...]
    """Per stage, of its first replica."""
    rows: tuple[tuple[Cell, ...], ...]
    """Per rank what it does, messages included."""
    outside: tuple[frozenset[OutsideVariable], ...]
    """Per stage what its layers reach outside of them."""
    synchronised: frozenset[int] = frozenset()
    """Stages whose replicas take the statistics of batch norms together."""
    averaging: frozenset[int] = frozenset()
    """Stages whose replicas take them apart, each with running averages of its own."""
    fully_sharded: frozenset[int] = frozenset()
    """Stages of whose weights and gradients every replica holds a part."""
    unequal: Mapping[int, tuple[StageShape, ...]] = field(default_factory=dict)
    """The shapes of every replica, of stages whose replicas take unequal shares of the samples."""
    example: Tensors | None = None
    """The inputs of a microbatch, where these are given one by one or dealt; None: they are equal parts of a batch."""
    sample_dims: Mapping[str, tuple[int | None, ...]] = field(default_factory=dict)
    """Of the batch and of what each layer gives the dimension per tensor along which samples lie, where replicas cut
    microbatches; None: it belongs to no sample."""
    tracer: StageTracer | None = None
    """What finds the shapes of further microbatches, where they are given one by one or dealt."""

    def shape_at(self, stage: int, *, rank: int) -> StageShape:
        """The shapes of a stage that a rank holds, or works for."""
        own = self.unequal.get(stage)
        return self.shapes[stage] if own is None else own[self.layout.replica_at(stage, rank)]

    def list_microbatches(self, given: Batch | Microbatches) -> dict[int, Batch]:
        """The microbatches of an iteration by their numbers, as they were given or cut out of a batch."""
        return _listed(given, plan=self.plan, training=self.training)


def prepare(plan: Plan, training: Training, *, fully_shard: bool = False) -> Preparation:
    """Check that plan and training fit together, without weights and without other processes.

    `fully_shard`: as in `Choices`. Raises ValueError that says what does not fit, the same on every process.
    """
    layout = make_layout(plan)
    with calling("the batch of iteration 0"):
        batch = training.batch(0)
    if layout.num_microbatches * layout.num_parts > 1 and not are_listed(batch):
        _require_no_offsets(cast(Batch, batch))
    if training.deal is not None:
        layout = rebalance(layout)
    example = _find_example(batch, plan=plan, training=training, layout=layout)
    stages, layers = [stage.layers for stage in plan.stages], list(training.layers)
    wirings = make_wirings(stages, layers, inputs=training.inputs)
    require_widths(training, stages, widths=layout.widths)
    tracer = StageTracer(training, wirings)
    traced, dims = _trace(tracer, layout=layout, batch=batch, example=example)
    shapes = tuple(replicas[0] for replicas in traced)
    edges = find_edges(wirings)
    normalising = _find_normalising(layout, shapes, is_synchronised=training.sync_batch_norm)
    synchronised = normalising if training.sync_batch_norm else frozenset[int]()
    fully = frozenset[int]()
    if fully_shard or plan.shards_weights:
        fully = find_fully_sharded(plan, training, layout=layout, layers=tracer.layers, is_asked=fully_shard)
    _require_no_compiled(layout, shapes, synchronised=synchronised, fully=fully)
    _require_still_weights(layout, training, stages=stages, shapes=shapes, fully=fully)
    _require_no_gradient_hooks(layout, tracer.layers, shapes=shapes, fully=fully)
    _require_no_tied_hooks(training, tracer.layers)
    _require_joint_order(layout, edges, synchronised=synchronised, fully=fully, shapes=shapes)
    if isinstance(training.batch, BatchReader):
        given = _listed(batch, plan=plan, training=training).values()
        training.batch.try_sizes([each.shape for each in as_tuple(inputs)] for inputs, _ in given)
    return Preparation(
        plan=plan,
        training=training,
        layout=layout,
        wirings=wirings,
        edges=edges,
        shapes=shapes,
        rows=_lower(layout, edges, joint=synchronised, alike=fully),
        outside=tuple(frozenset(v for each in own.values() for v in find_outside(each)) for own in tracer.layers),
        synchronised=synchronised,
        averaging=normalising - synchronised,
        fully_sharded=fully,
        unequal={number: traced[number] for number, own in enumerate(layout.samples) if own},
        example=example,
        sample_dims=dims,
        tracer=None if example is None else tracer,
    )


def _require_no_offsets(batch: Batch) -> None:
    """ValueError for offsets of packed sequences, from 0 to what another tensor has: parts of them mean nothing."""
    lengths = {tensor.shape[0] for tensor in (*as_tuple(batch[0]), batch[1]) if tensor.dim()}
    for place, each in enumerate(as_tuple(batch[0])):
        if each.dim() == 1 and len(each) > 1 and each.dtype in (torch.int32, torch.int64):
            last = int(each[-1])
            if not each[0] and last in lengths and bool((each[1:] >= each[:-1]).all()):
                raise ValueError(
                    f"input {place} of the batch has whole numbers from 0 to {last}, as offsets of packed sequences "
                    "(cu_seqlens) have, which cannot be cut into microbatches; list the microbatches in `batch`"
                )


def _listed(given: Batch | Microbatches, *, plan: Plan, training: Training) -> dict[int, Batch]:
    planned = plan.problem.microbatches if training.deal is None else None
    return list_microbatches(given, planned=planned, count=plan.problem.num_microbatches)


def _find_example(batch: Batch | Microbatches, *, plan: Plan, training: Training, layout: Layout) -> Tensors | None:
    """The inputs of a microbatch, unless all are equal parts of one batch.

    Raises ValueError where the plan cuts what is given whole.
    """
    sizes = set(plan.problem.microbatches or ())
    if not (are_listed(batch) or layout.dealing or len(sizes) > 1):
        return None
    for number in range(layout.num_stages):
        count = layout.num_replicas_of(number)
        if layout.parts_of(number) or (count > 1 and not layout.dealing):
            what = f"cuts every microbatch for {count} replicas" if count > 1 else "places its I or W elsewhere"
            raise ValueError(
                f"stage {number} {what}, but microbatches are given one by one, to be run whole; give `Training.deal`, "
                "or plan with --no-replication and split_placement = false"
            )
    given = _listed(batch, plan=plan, training=training)
    if not given:
        raise ValueError("the batch of iteration 0 has no microbatches; give at least one")
    return as_tuple(given[min(given)][0])


def _require_no_compiled(
    layout: Layout, shapes: Sequence[StageShape], *, synchronised: frozenset[int], fully: frozenset[int]
) -> None:
    """Where something has to look into a layer."""
    for number, shape in enumerate(shapes):
        reasons = {
            "a group of devices would cut its parts": layout.width(number) > 1,
            "its backward would run on another process than its forward": bool(layout.parts_of(number)),
            "the statistics of its batch norms are those of all replicas": number in synchronised,
            "its weights would be gathered and freed around it (fully_shard)": number in fully,
        }
        for reason in (text for text, is_so in reasons.items() if is_so and shape.compiled):
            raise ValueError(
                f"layer {shape.compiled[0]!r} of stage {number} is compiled, but {reason}; leave `compile()` out"
            )


def _require_still_weights(
    layout: Layout,
    training: Training,
    *,
    stages: Sequence[Sequence[str]],
    shapes: Sequence[StageShape],
    fully: frozenset[int],
) -> None:
    """What a forward does to a weight is done where it runs, and only there."""
    held = {name: number for number, names in enumerate(stages) for name in names}
    ties = {each: {held.get(other.partition(":")[0]) for other in names} for names in training.tied for each in names}
    for number, shape in enumerate(shapes):
        for name, path in ((name, path) for name, traits in shape.traits.items() for path in traits.moved_weights):
            tied = ties.get(f"{name}:{path}", ())
            reasons = {
                "its replicas hold parts of it, which stay as they are; run without fully_shard": number in fully,
                "another process that runs its backward has a copy, which stays as it is; plan with split_placement = "
                "false": bool(layout.parts_of(number)),
                "it is tied to one of another stage, which stays as it is; plan one stage for both": len(tied) > 1,
            }
            for reason in (text for text, is_so in reasons.items() if is_so):
                raise ValueError(
                    f"layer {name!r} of stage {number} changes its weight {path!r} in its forward, but {reason}, or "
                    "change it after the optimizer's step"
                )


def _require_no_gradient_hooks(
    layout: Layout,
    layers: Sequence[Mapping[str, nn.Module]],
    *,
    shapes: Sequence[StageShape],
    fully: frozenset[int],
) -> None:
    """A hook wants the gradient that a whole microbatch gives to a whole tensor, once."""
    for number, own in enumerate(layers):
        reasons = {
            "a group of devices would cut its layer": layout.width(number) > 1,
            "its backward would run on another process than its forward": bool(layout.parts_of(number)),
            "each replica would hold a part of it (fully_shard)": number in fully,
            f"each of {layout.num_replicas_of(number)} replicas has a part of a microbatch, and the hook would see the "
            "gradient of that": layout.num_replicas_of(number) > 1 and not layout.dealing,
        }
        for reason in (text for text, is_so in reasons.items() if is_so):
            for name, layer in own.items():
                found = "its forward hooks something to a gradient" if shapes[number].traits[name].has_hooks else ""
                if found := describe_gradient_hook(layer) or found:
                    raise ValueError(
                        f"layer {name!r} of stage {number}: {found}, but {reason}; plan with --no-replication and "
                        "without groups, or take the hook off"
                    )


def _require_no_tied_hooks(training: Training, layers: Sequence[Mapping[str, nn.Module]]) -> None:
    """A hook on a weight wants the sum of what all that use it give."""
    stages = {name: number for number, own in enumerate(layers) for name in own}
    for names in training.tied:
        holders = {each: stages.get(each.partition(":")[0], 0) for each in names}
        for each, number in holders.items() if len({*holders.values()}) > 1 else ():
            name, _, path = each.partition(":")
            if name in layers[number] and (found := describe_gradient_hook(layers[number][name], only=path)):
                raise ValueError(
                    f"layer {name!r} of stage {number}: {found}, which would see a part of the gradient, as the "
                    "weight is tied to one of another stage; take the hook off, or plan one stage for both"
                )


def _find_normalising(layout: Layout, shapes: Sequence[StageShape], *, is_synchronised: bool) -> frozenset[int]:
    """Stages with replicas and batch norms; raises ValueError where statistics cannot be taken together, but are to."""
    found = set()
    for number, shape in enumerate(shapes):
        num_replicas = layout.num_replicas_of(number)
        for name, traits in shape.traits.items():
            if num_replicas > 1 and (traits.has_batch_norm or traits.has_unanswered_batch_norm):
                found.add(number)
                if not is_synchronised:
                    continue
                what = f"layer {name!r} of stage {number} normalises over the microbatch, of which each of its "
                what += f"{num_replicas} replicas has a part"
                if layout.dealing:
                    raise ValueError(
                        f"layer {name!r} of stage {number} keeps averages over microbatches, but each of its "
                        f"{num_replicas} replicas sees other microbatches; {_NORM_REMEDY}"
                    )
                if traits.has_unanswered_batch_norm:
                    raise ValueError(
                        f"{what}, by a function of torch's that cannot be synchronised; {_NORM_REMEDY}, or call "
                        "torch.nn.functional.batch_norm"
                    )
                if len(set(layout.samples_of(number))) > 1:
                    raise ValueError(
                        f"{what}: their statistics are put together from equal parts only; plan with unequal_shares = "
                        f"false, or {_NORM_REMEDY}"
                    )
    return frozenset(found)


_NORM_REMEDY = (
    "plan with --no-replication, give Training sync_batch_norm = False, use GroupNorm, or set the layer's batch norms "
    "to eval()"
)


def _require_joint_order(
    layout: Layout,
    edges: Sequence[StageEdge],
    *,
    synchronised: frozenset[int],
    fully: frozenset[int],
    shapes: Sequence[StageShape],
) -> None:
    """Replicas that ask each other in the middle of F, I and B must come to them together."""
    if synchronised and (fault := _find_circle(layout, edges, joint=synchronised)):
        number = min(synchronised)
        name = next(name for name, traits in shapes[number].traits.items() if traits.has_batch_norm)
        raise ValueError(
            f"layer {name!r} of stage {number} normalises over parts of a microbatch, but the plan's replicas run "
            f"their actions in different orders: {fault}; {_NORM_REMEDY}"
        )
    if fully and (fault := _find_circle(layout, edges, joint=synchronised, alike=fully)):
        raise ValueError(
            "the replicas of stages that are fully sharded gather their weights together, but do not run their actions "
            f"in one order: {fault}; plan the same order for them, or run without fully_shard"
        )


def _find_circle(
    layout: Layout, edges: Sequence[StageEdge], *, joint: frozenset[int], alike: Container[int] = ()
) -> str:
    """A sentence if the ranks would wait for each other."""
    try:
        lower(layout, edges, joint=joint, alike=alike)
    except ValueError as error:
        return str(error)
    return ""


def _lower(
    layout: Layout, edges: Sequence[StageEdge], *, joint: frozenset[int], alike: frozenset[int]
) -> tuple[tuple[Cell, ...], ...]:
    try:
        rows = lower(layout, edges, joint=joint, alike=alike)
    except ValueError as error:
        raise ValueError(f"the plan's schedule cannot run: {error}") from None
    if faults := find_wrong_actions(layout):
        raise ValueError(f"the plan's schedule cannot run: {'; '.join(faults[:3])}; plan again")
    return tuple(map(tuple, rows))


def _trace(
    tracer: StageTracer, *, layout: Layout, batch: Batch | Microbatches, example: Tensors | None
) -> tuple[tuple[tuple[StageShape, ...], ...], dict[str, tuple[int | None, ...]]]:
    """The shapes of every replica of every stage with its own share of the samples, and where samples lie; of
    microbatches that are run whole the shapes of the first.
    """
    if example is not None:
        return tuple((shape,) for shape in tracer.trace(example)), {}
    inputs, target = cast(Batch, batch)
    traced = dict[Fraction, tuple[StageShape, ...]]()
    sizes = dict[Fraction, Mapping[str, tuple[torch.Size, ...]]]()
    taken = [layout.samples_of(number) for number in range(layout.num_stages)]
    shares = [[Fraction(count, sum(samples)) for count in samples] for samples in taken]
    for samples, own in sorted(zip(taken, shares, strict=True), key=lambda pair: len(pair[0])):
        for replica, share in enumerate(own):
            if share not in traced:
                mine = [split_batch(each, layout, samples=samples, replica=replica)[0] for each in as_tuple(inputs)]
                traced[share], sizes[share] = tracer.trace(tuple(mine)), tracer.sizes
    if len(traced) == 1 and 1 not in traced:
        tracer.trace(tuple(split_batch(each, layout, samples=(1,), replica=0)[0] for each in as_tuple(inputs)))
        sizes[Fraction(1)] = tracer.sizes
    split_batch(target, layout, samples=(1,), replica=0)
    edges = [edge for edge in find_edges(tracer.wirings) if shares[edge.producer] != shares[edge.consumer]]
    every = {number: {share: found[number] for share, found in traced.items()} for number in range(layout.num_stages)}
    marked = mark_whole(every, edges)
    shapes = tuple(tuple(marked[number][share] for share in own) for number, own in enumerate(shares))
    return shapes, {} if len(sizes) == 1 else _find_dims(*list(sizes.values())[:2])


def _find_dims(
    one: Mapping[str, tuple[torch.Size, ...]], other: Mapping[str, tuple[torch.Size, ...]]
) -> dict[str, tuple[int | None, ...]]:
    """Per value and tensor the first dimension that depends on the number of samples."""
    return {
        name: tuple(
            next((dim for dim, (a, b) in enumerate(zip(*pair, strict=False)) if a != b), None)
            for pair in zip(sizes, other[name], strict=True)
        )
        for name, sizes in one.items()
    }
