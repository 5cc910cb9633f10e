"""What flows between stage replicas (section 2, "Replication", and section 1, "Cluster").

Between two stages there is one transfer per microbatch and direction; a layer's output counts once per consuming stage.
Every pair of replicas exchanges the samples they have in common. With split placement gradients go from I to I, and

    weights (once)  ->  I elsewhere        stash of m  ->  I elsewhere        weight stash of m  ->  W elsewhere
    finished gradient (once)  ->  owner
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

from planner.judge.samples import Samples, common_share, cut, round_up
from planner.judge.sizes import StageBytes
from planner.judge.stage_replicas import StageReplica, is_fully_sharded, is_sharded, is_split
from planner.plan import Stage
from profiles.model_profile import Edge

FORWARD, INPUT_GRAD, WEIGHT_GRAD = range(3)
"""Places of the actions of a stage replica for one microbatch; I and B stand in the same place."""

EVERY = None
"""Channels that come once per microbatch."""

BEFORE_FIRST = -1
"""The microbatch of a channel that comes once, before all others; one that comes after all has their number."""


class Tensor(NamedTuple):
    """What flows between two stages per microbatch."""

    forward_bytes: int
    backward_bytes: int
    has_gradient: bool


class Reduction(NamedTuple):
    """What a profile says of reducing gradients."""

    bucket_bytes: int
    """Most bytes that are held twice for it."""
    is_in_place: bool
    """Whether an all-reduce holds nothing twice."""
    beside_bytes: int
    """What a process holds in any case whose stages have replicas."""


class Channel(NamedTuple):
    """What one stage replica hands to another; who they are stands as their index among all."""

    sender: int
    receiver: int
    source: int
    """Place of the action that makes it."""
    target: int
    """Place of the action that needs it."""
    is_backward: bool
    num_bytes: int
    microbatch: int | None = EVERY
    """`EVERY`, or when it comes once."""
    taken: tuple[int, ...] | None = None
    """The only microbatches that it comes for, where it does not come for every one."""


def tensors(edges: Sequence[Edge], stage_of: dict[str, int]) -> dict[tuple[int, int], Tensor]:
    """Per pair of stages what flows between them, in the order of their first edges."""
    outputs: dict[tuple[int, int], dict[str, list[Edge]]] = {}
    for edge in edges:
        pair = stage_of[edge.producer], stage_of[edge.consumer]
        if pair[0] != pair[1]:
            outputs.setdefault(pair, {}).setdefault(edge.producer, []).append(edge)
    return {pair: _tensor(list(by_producer.values())) for pair, by_producer in outputs.items()}


def _tensor(outputs: list[list[Edge]]) -> Tensor:
    """Each output counts once, at its largest; an edge that states gradient bytes 0 carries no gradient."""
    return Tensor(
        forward_bytes=sum(max(edge.bytes for edge in same) for same in outputs),
        backward_bytes=sum(max(_back(edge) for edge in same) for same in outputs),
        has_gradient=any(edge.gradient_bytes != 0 for same in outputs for edge in same),
    )


def _back(edge: Edge) -> int:
    return edge.bytes if edge.gradient_bytes is None else edge.gradient_bytes


def make_channels(
    stages: Sequence[Stage], replicas: list[StageReplica], *,
    tensors: dict[tuple[int, int], Tensor], sizes: Sequence[StageBytes], num_microbatches: int,
) -> list[Channel]:  # fmt: skip
    """Everything that flows, in the order in which equal transfers of one sender take their turns."""
    members: list[list[int]] = [[] for _ in stages]
    for index, replica in enumerate(replicas):
        members[replica.stage].append(index)
    found: list[Channel] = []
    for (a, b), tensor in tensors.items():
        found += _between((stages[a], members[a]), (stages[b], members[b]), tensor=tensor, replicas=replicas)
    for number, stage in enumerate(stages):
        if is_split(stage):
            found += _within(members[number], replicas, size=sizes[number])
            found += _once(members[number], replicas, size=sizes[number], num_microbatches=num_microbatches)
    return found


def _between(
    a: tuple[Stage, list[int]], b: tuple[Stage, list[int]], *, tensor: Tensor, replicas: list[StageReplica]
) -> Iterator[Channel]:
    """Activations between those who run F, gradients between those who run I for the same samples."""
    makers, takers = a[1][: len(a[0].replicas)], b[1][: len(b[0].replicas)]
    for i, j, share in meetings(cut(a[0]), cut(b[0])):
        yield Channel(makers[i], takers[j], FORWARD, FORWARD, False, round_up(share * tensor.forward_bytes))
    if tensor.has_gradient:
        for i, j, share in meetings([replicas[n].samples for n in a[1]], [replicas[n].samples for n in b[1]]):
            size = round_up(share * tensor.backward_bytes)
            yield Channel(b[1][j], a[1][i], INPUT_GRAD, INPUT_GRAD, True, size)


def meetings(some: Sequence[Samples], others: Sequence[Samples]) -> Iterator[tuple[int, int, Fraction]]:
    """Every pair of ranges with samples in common, and their share, by the first index, then the second."""
    order = sorted((index for index, each in enumerate(others) if each.share), key=lambda index: others[index].start)
    starts = [others[index].start for index in order]
    for i, range_ in enumerate(some):
        first, last = bisect_right(starts, range_.start) - 1, bisect_left(starts, range_.end)
        pairs = ((j, common_share(range_, others[j])) for j in sorted(order[max(first, 0) : last]))
        yield from ((i, j, share) for j, share in pairs if share)


def _within(members: list[int], replicas: list[StageReplica], *, size: StageBytes) -> Iterator[Channel]:
    """Split placement: the stash of its samples to every I elsewhere, their weight stash to W elsewhere."""
    owner = members[0]
    for member in members:
        share = replicas[member].samples.share
        if share and member != owner:
            yield Channel(owner, member, FORWARD, INPUT_GRAD, False, round_up(share * size.stash))
        for taker in members:
            if share and taker != member and "W" in replicas[taker].kinds:
                yield Channel(member, taker, INPUT_GRAD, WEIGHT_GRAD, True, round_up(share * size.weight_stash))


def _once(
    members: list[int], replicas: list[StageReplica], *, size: StageBytes, num_microbatches: int
) -> Iterator[Channel]:
    """Split placement: weights before the first use, the finished gradient after the last W."""
    owner, *others = members
    for other in others:
        if "I" in replicas[other].kinds:
            yield Channel(owner, other, FORWARD, INPUT_GRAD, False, size.parameters, BEFORE_FIRST)
        if "W" in replicas[other].kinds:
            yield Channel(other, owner, WEIGHT_GRAD, FORWARD, True, size.gradients, num_microbatches)


def static_bytes(
    stages: Sequence[Stage], replicas: list[StageReplica], *,
    tensors: dict[tuple[int, int], Tensor], sizes: Sequence[StageBytes], receive_buffers: int, reduction: Reduction,
) -> dict[str, int]:  # fmt: skip
    """Bytes resident on every device: state, a bucket, and receive buffers for every edge from another device."""
    static = _largest_buckets(stages, sizes=sizes, reduction=reduction)
    static |= {device: 0 for replica in replicas for device in replica.group if device not in static}
    by_stage: list[list[StageReplica]] = [[] for _ in stages]
    for replica in replicas:
        by_stage[replica.stage].append(replica)
        size = _own_bytes(replica, stages[replica.stage], size=sizes[replica.stage], receive_buffers=receive_buffers)
        for device in replica.group:
            static[device] += size
    for (a, b), tensor in tensors.items():
        takers, makers = by_stage[b][: len(stages[b].replicas)], by_stage[a][: len(stages[a].replicas)]
        shares = [samples.share for samples in cut(stages[b])]
        fed = [(taker, shares[taker.number] * tensor.forward_bytes) for taker in _elsewhere(takers, makers)]
        if is_split(stages[a]) or is_split(stages[b]):
            sources = _fed_with_gradients(by_stage[a], by_stage[b])
        else:
            sources = _elsewhere(makers, takers)
        fed += [(taker, taker.samples.share * tensor.backward_bytes) for taker in sources]
        for taker, num_bytes in fed:
            for device in taker.group:
                static[device] += round_up(receive_buffers * num_bytes)
    return static


def _largest_buckets(stages: Sequence[Stage], *, sizes: Sequence[StageBytes], reduction: Reduction) -> dict[str, int]:
    """What a device of a replicated stage holds to reduce gradients: a bucket, for stages are reduced one by one.

    Where replicas shard, a bucket has room for what is sent and for what comes; where they do not, and gradients are
    views of buckets, nothing is held twice. Fully sharded ones hold whole layers instead. What the profile says
    that reductions hold beside that counts once.
    """
    found: dict[str, int] = {}
    for stage, size in zip(stages, sizes, strict=True):
        for device in (name for group in stage.replicas for name in group if len(stage.replicas) > 1):
            most = 2 * size.gradients if is_sharded(stage) else 0 if reduction.is_in_place else size.gradients
            bucket = size.whole_layers if is_fully_sharded(stage) else min(reduction.bucket_bytes, most)
            held = reduction.beside_bytes + bucket
            found[device] = max(found.get(device, 0), held)
    return found


def _elsewhere(takers: list[StageReplica], makers: list[StageReplica]) -> list[StageReplica]:
    """Those of `takers` that get an edge from another device: all but one on the very group that alone feeds it."""
    return [taker for taker in takers if [maker.group for maker in makers] != [taker.group]]


def _fed_with_gradients(takers: list[StageReplica], makers: list[StageReplica]) -> list[StageReplica]:
    """Those of `takers` that get a gradient for some of their samples from another device."""
    pairs = meetings([taker.samples for taker in takers], [maker.samples for maker in makers])
    fed = {i for i, j, _ in pairs if takers[i].group != makers[j].group}
    return [takers[i] for i in sorted(fed)]


def _own_bytes(replica: StageReplica, stage: Stage, *, size: StageBytes, receive_buffers: int) -> int:
    """State; with split placement only the owner's, others hold weights or a gradient, and buffers for what arrives."""
    if not is_split(stage):
        return size.state
    share, is_owner = replica.samples.share, replica.number == 0
    total = size.state if is_owner else 0
    if share and not is_owner:
        total += size.parameters + receive_buffers * round_up(share * size.stash)
    if "W" in replica.kinds:
        total += 0 if is_owner else size.gradients
        total += receive_buffers * round_up((1 - share) * size.weight_stash)
    return total
