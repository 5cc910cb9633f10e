"""Runtime concurrency control under a pipeline: how many cores of its host each stage gets.

The operations of the method are a stage's F, I and W, its resource the cores of a host, which are devices here
(docs/reference/contract.md, "What the planner considers"): the stages of a host use no more cores than it has, and a
stage's width is one at which all its layers were measured. It is compared with the even split, one width for all.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray

from planner.baselines.alternation import order_one_f_one_b
from planner.baselines.applicability import (
    DoesNotApplyError,
    require_choices,
    require_few_actions,
    require_time,
)
from planner.baselines.out_of_order.pipelined import order_fast_forward
from planner.baselines.pipeline import make_pipeline, make_plan
from planner.baselines.recomputing import breaks_memory, with_recomputation
from planner.clock import HasTime, always
from planner.layout.costs import CostModel
from planner.layout.device_groups import open_widths
from planner.plan import Plan, Stage
from planner.simulation.simulate import simulate

Floats = NDArray[numpy.float64]

MAX_CELLS = 5 * 10**8
"""Layers squared x devices x widths x stages that the dynamic programme looks at, at most."""

MOST_STAGES = 16
"""Most stages that are tried."""

_MAX_TRIES = 10_000
"""Blocks of cores that are tried before stages simply follow one another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _CoreDivision:
    """Layers in a row on cores in a row."""

    period_ns: float
    """F and backward of the slowest stage, for one microbatch."""
    cuts: tuple[tuple[int, int], ...]
    """First layer of every stage in topological order, and the first behind it."""
    slots: tuple[tuple[int, int], ...]
    """Number of the first core of every stage, cores numbered host by host, and its width."""


def make_uneven_cores_plan(costs: CostModel, *, recompute: bool = False, has_time: HasTime = always) -> Plan:
    """The shortest plan in which every stage has a width of its own; of those that fit into memory, if any does.

    Divisions of one width are tried as well: a longer period with less to fill may take less time in all.
    Raises DoesNotApplyError if no width above 1 is open, or the options exclude every division.
    """
    widths = _widths(costs)
    return _best(costs, [widths, *((width,) for width in widths)], recompute=recompute, has_time=has_time)


def make_even_cores_plan(costs: CostModel, *, recompute: bool = False, has_time: HasTime = always) -> Plan:
    """The shortest plan in which all stages have the same width."""
    return _best(costs, [(width,) for width in _widths(costs)], recompute=recompute, has_time=has_time)


def _widths(costs: CostModel) -> tuple[int, ...]:
    options, wider = costs.problem.options, open_widths(costs.problem)
    if not wider:
        raise DoesNotApplyError("needs costs at several widths, and max_width above 1")
    if options.partition is not None:
        raise DoesNotApplyError("divides the layers itself, and a partition is given")
    return (1, *wider)


def _best(costs: CostModel, choices: Sequence[tuple[int, ...]], *, recompute: bool, has_time: HasTime) -> Plan:
    best: tuple[bool, int, Plan] | None = None
    reason = DoesNotApplyError("has no division")
    divisions = [division for widths in choices for division in divide_cores(costs, widths)]
    for division in sorted(divisions, key=lambda division: division.period_ns):
        if best and not best[0] and division.period_ns * costs.problem.num_microbatches >= best[1]:
            break
        stages = make_core_stages(costs, division)
        try:
            require_choices(costs, stages)
            require_few_actions(costs.problem, len(stages))
        except DoesNotApplyError as excluded:
            reason = excluded
            continue
        require_time(has_time)
        for found in _play(costs, with_recomputation(stages) if recompute else stages):
            best = found if best is None else min(best, found, key=lambda each: each[:2])
    if best is None:
        raise reason
    return best[2]


def _play(costs: CostModel, stages: tuple[Stage, ...]) -> Iterator[tuple[bool, int, Plan]]:
    """Whether it breaks the memory, its makespan and the plan, as 1F1B and in fast-forwarded order."""
    pipeline = make_pipeline(costs, stages)
    orders = (order_one_f_one_b, order_fast_forward) if costs.problem.options.split_backward else (order_one_f_one_b,)
    for order in orders:
        plan = make_plan(costs, stages, device_orders=order(pipeline))
        yield breaks_memory(costs, plan), simulate(costs.problem, plan, costs=costs).makespan_ns, plan


def host_runs(costs: CostModel) -> list[list[str]]:
    """The cores of every host and type, in listed order."""
    runs: dict[tuple[str, str], list[str]] = {}
    for device in costs.problem.cluster.devices:
        runs.setdefault((device.host or device.name, device.type), []).append(device.name)
    return list(runs.values())


def divide_cores(costs: CostModel, widths: Sequence[int]) -> list[_CoreDivision]:
    """For every number of stages the division with the shortest period; a stage's cores are those of one host.

    W(k, c, l) = the least period of the first l layers in k stages on the first c cores
    = min over w, l' of max(W(k - 1, c - w, l'), time of layers l' to l on w cores), or W(k, c - 1, l): a core is idle.
    """
    runs, num_layers = host_runs(costs), len(costs.problem.profile.layers)
    owner = [run for run in runs for _ in run]
    place = [number for run in runs for number in range(1, len(run) + 1)]
    most = min(num_layers, len(owner), MOST_STAGES)
    if num_layers**2 * len(owner) * len(widths) * most > MAX_CELLS:
        raise DoesNotApplyError("too many layers, cores and widths for its dynamic programme")
    types = [costs.problem.cluster.by_name[run[0]].type for run in owner]
    times = {(kind, width): _times(costs, kind, width=width) for kind in dict.fromkeys(types) for width in widths}
    before = numpy.full((len(owner) + 1, num_layers + 1), numpy.inf)
    before[:, 0] = 0
    steps: list[NDArray[numpy.int64]] = []
    found = []
    for _ in range(most):
        after, taken = numpy.full_like(before, numpy.inf), numpy.zeros((*before.shape, 2), numpy.int64)
        for cores in range(1, len(owner) + 1):
            after[cores] = after[cores - 1]
            for width in (width for width in widths if width <= place[cores - 1]):
                known = times[types[cores - 1], width]
                _extend((before[cores - width], after[cores]), known, choice=(taken[cores], width))
        steps.append(taken)
        if numpy.isfinite(after[-1, -1]):
            found.append(_trace(steps, period_ns=float(after[-1, -1])))
        before = after
    return found


def _extend(ends: tuple[Floats, Floats], times: Floats, *, choice: tuple[NDArray[numpy.int64], int]) -> None:
    """One more stage of a width: better values of `ends[1]` in place, with what was chosen."""
    reached = numpy.maximum(ends[0][:, None], times)
    first = reached.argmin(axis=0)
    value = reached[first, numpy.arange(len(first))]
    is_better = value < ends[1]
    ends[1][is_better] = value[is_better]
    choice[0][is_better, 0], choice[0][is_better, 1] = first[is_better], choice[1]


def _trace(steps: Sequence[NDArray[numpy.int64]], *, period_ns: float) -> _CoreDivision:
    """Back from all layers on all cores; a core that adds nothing is passed over."""
    cores, layers = steps[0].shape[0] - 1, steps[0].shape[1] - 1
    cuts, slots = [], []
    for taken in reversed(steps):
        while not taken[cores, layers, 1]:
            cores -= 1
        first, width = (int(each) for each in taken[cores, layers])
        cuts.append((first, layers))
        slots.append((cores - width, width))
        cores, layers = cores - width, first
    return _CoreDivision(period_ns=period_ns, cuts=tuple(reversed(cuts)), slots=tuple(reversed(slots)))


def _times(costs: CostModel, device_type: str, *, width: int) -> Floats:
    """[L + 1, L + 1] nanoseconds of F and backward of layers a to b; infinite where one was not measured, or none."""
    layers = [costs.problem.profile.by_name[name] for name in costs.problem.profile.topological_order]
    works = [costs.layer_work(layer.name, device_type, width=width, replicas=1) for layer in layers]
    is_known = [
        work is not None and layer.bytes_at(width) is not None for work, layer in zip(works, layers, strict=True)
    ]
    own = [work.forward_ns + work.backward_ns if work is not None else 0 for work in works]
    sums, gaps = numpy.cumsum([0, *own]), numpy.cumsum([0, *(not each for each in is_known)])
    times: Floats = (sums[None, :] - sums[:, None]).astype(numpy.float64)
    times[(gaps[None, :] != gaps[:, None]) | numpy.tri(len(sums), dtype=bool)] = numpy.inf
    return times


def make_core_stages(costs: CostModel, division: _CoreDivision) -> tuple[Stage, ...]:
    """The stages of a division, on blocks of their hosts' cores."""
    order, runs = costs.problem.profile.topological_order, host_runs(costs)
    starts = numpy.cumsum([0, *map(len, runs)])
    groups: dict[int, tuple[str, ...]] = {}
    for run, start, end in zip(runs, starts, starts[1:], strict=False):
        own = [number for number, (slot, _) in enumerate(division.slots) if start <= slot < end]
        own.sort(key=lambda number: -division.slots[number][1])
        at = place_blocks([division.slots[number][1] for number in own], len(run))
        for number, begin in zip(own, at, strict=True):
            groups[number] = tuple(run[begin : begin + division.slots[number][1]])
    return tuple(
        Stage(layers=tuple(order[first:last]), replicas=(groups[number],))
        for number, (first, last) in enumerate(division.cuts)
    )


def place_blocks(widths: Sequence[int], cores: int) -> list[int]:
    """The first core of every width, all disjoint: at multiples of the width, as the joint search places them, if
    found.

    Otherwise one behind the other.
    """
    tries = 0

    def place(number: int, free: int) -> list[int] | None:
        nonlocal tries
        if number == len(widths):
            return []
        width = widths[number]
        for begin in range(0, cores - width + 1, width):
            tries += 1
            block = ((1 << width) - 1) << begin
            if free & block == block and tries <= _MAX_TRIES and (rest := place(number + 1, free ^ block)) is not None:
                return [begin, *rest]
        return None

    found = place(0, (1 << cores) - 1)
    return [sum(widths[:number]) for number in range(len(widths))] if found is None else found
