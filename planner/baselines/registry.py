"""Every baseline of a problem, one after the other, and the row that each of them gets in a comparison."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from math import ceil

from planner.baselines.alternation import order_gpipe, order_one_f_one_b, order_zb_h
from planner.baselines.applicability import (
    DoesNotApplyError,
    NoRoomError,
    OutOfTimeError,
    require_choices,
    require_split_backward,
    require_time,
)
from planner.baselines.breadth_first import order_breadth_first
from planner.baselines.data_parallel import make_replicated_stage, order_data_parallel
from planner.baselines.fully_sharded import NAME as FULLY_SHARDED
from planner.baselines.fully_sharded import make_fully_sharded_plan
from planner.baselines.greedy.capped_chunks import order_capped_chunks, order_capped_whole_chunks
from planner.baselines.greedy.capped_greedy import order_capped_greedy, order_capped_whole
from planner.baselines.idealised import twins
from planner.baselines.interleaved import order_interleaved
from planner.baselines.layer_pipe.plans import make_layer_pipe_plan
from planner.baselines.layouts import (
    EVEN,
    GIVEN,
    LOOPED,
    ONE_EACH,
    SMALLEST_LARGEST,
    TRANSFERS_TOO,
    V_SHAPED,
    Cut,
    StagePlacement,
    looped,
    make_stages,
    zigzag,
)
from planner.baselines.out_of_order.first_k import make_first_k_plan
from planner.baselines.out_of_order.pipelined import make_fast_forward_plan, make_modulo_plan
from planner.baselines.pipeline import DeviceOrders, Pipeline, make_pipeline, make_plan
from planner.baselines.recomputing import breaks_memory, with_recomputation
from planner.baselines.spp.plans import make_spp_plan
from planner.baselines.uneven_cores import make_even_cores_plan, make_uneven_cores_plan
from planner.baselines.zero_bubble.v_half import order_v_half
from planner.baselines.zero_bubble.v_min import order_v_min
from planner.baselines.zero_bubble.zb_automatic import order_zb_automatic
from planner.baselines.zero_bubble.zb_interleaved import order_zb_interleaved
from planner.baselines.zero_bubble.zb_v import order_zb_v
from planner.clock import HasTime, always
from planner.errors import OutOfRangeError
from planner.layout.costs import CostModel
from planner.layout.device_groups import open_widths
from planner.plan import NO_TIME, BaselineResult, Plan, Stage
from planner.problem import Problem
from planner.simulation.simulate import Timeline, simulate


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What one published method makes of a problem."""

    name: str
    """Method and partition, e.g. `1F1B (even layers)`."""
    plan: Plan | None
    """None if the method does not apply; it may break the memory limit, as the method may."""
    note: str = ""
    """Why there is no plan, in a phrase."""
    lacks_room: bool = False
    """Whether that is for lack of memory."""
    played: tuple[Plan, Timeline] | None = None
    """A plan and its timeline, known from the choice among twins; not of use for another plan than that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A published way to run a pipeline."""

    name: str
    """As its authors call it."""
    placement: StagePlacement
    """Mapping of stages to devices."""
    order: Callable[[Pipeline], DeviceOrders]
    """The order of actions on every device."""
    splits_backward: bool
    """Whether it runs I and W apart."""
    is_slow: bool = False
    """Whether it tries many orders; such methods come last."""
    has_twins: bool = False
    """Whether it decides in order of time, so that its order for an idealised twin may be the better one."""
    is_always_played: bool = False
    """Whether it is played even where time is short: no plan is ever above it."""


_MAX_QUICK_CUTS = 1000
"""Layers x devices up to which layers are cut into stages within milliseconds."""

METHODS = (
    Method(name="GPipe", placement=ONE_EACH, order=order_gpipe, splits_backward=False),
    Method(name="1F1B", placement=ONE_EACH, order=order_one_f_one_b, splits_backward=False),
    Method(
        name="capped greedy",
        placement=ONE_EACH,
        order=order_capped_greedy,
        splits_backward=True,
        has_twins=True,
        is_always_played=True,
    ),
    Method(name="capped 1F1B", placement=ONE_EACH, order=order_capped_whole, splits_backward=False, has_twins=True),
    Method(name="ZB-H1", placement=ONE_EACH, order=partial(order_zb_h, number=1), splits_backward=True),
    Method(name="ZB-H2", placement=ONE_EACH, order=partial(order_zb_h, number=2), splits_backward=True),
    Method(name="ZB automatic", placement=ONE_EACH, order=order_zb_automatic, splits_backward=True, is_slow=True),
    Method(name="interleaved 1F1B", placement=LOOPED, order=order_interleaved, splits_backward=False),
    Method(name="ZB-V", placement=V_SHAPED, order=order_zb_v, splits_backward=True, is_slow=True),
    Method(name="V-Half", placement=V_SHAPED, order=order_v_half, splits_backward=True, is_slow=True),
    Method(name="V-Min", placement=V_SHAPED, order=order_v_min, splits_backward=True, is_slow=True),
    Method(name="breadth-first", placement=LOOPED, order=order_breadth_first, splits_backward=False),
    Method(name="interleaved ZB", placement=LOOPED, order=order_zb_interleaved, splits_backward=True),
    Method(name="capped loop", placement=LOOPED, order=order_capped_chunks, splits_backward=True, has_twins=True),
    Method(
        name="capped loop 1F1B",
        placement=LOOPED,
        order=order_capped_whole_chunks,
        splits_backward=False,
        has_twins=True,
    ),
    Method(name="capped V", placement=V_SHAPED, order=order_capped_chunks, splits_backward=True, has_twins=True),
    Method(
        name="capped V 1F1B", placement=V_SHAPED, order=order_capped_whole_chunks, splits_backward=False, has_twins=True
    ),
)
"""From simple to elaborate; those that any number of chunks can have come with two here (see `all_methods`)."""

_ANY_CHUNKS = {
    "interleaved 1F1B": looped,
    "breadth-first": looped,
    "interleaved ZB": looped,
    "capped loop": looped,
    "capped loop 1F1B": looped,
    "capped V": zigzag,
    "capped V 1F1B": zigzag,
}
"""Methods that are defined for more than two chunks, and their placements."""


def all_methods(problem: Problem) -> Iterator[Method]:
    """Every method, and those for any number of chunks with as many as the options and the layers allow."""
    yield from METHODS
    devices, layers = len(problem.cluster.devices), len(problem.profile.layers)
    most = problem.options.max_stages_per_device
    if problem.options.partition is not None:
        layers = len(problem.options.partition)
    for method in METHODS:
        for chunks in range(3, min(most, layers // devices) + 1 if method.name in _ANY_CHUNKS else 0):
            if problem.options.partition is None or layers == chunks * devices:
                name = f"{method.name} x {chunks}"
                yield replace(method, name=name, placement=_ANY_CHUNKS[method.name](chunks))


def make_baselines(problem: Problem, costs: CostModel, *, has_time: HasTime = always) -> Iterator[Baseline]:
    """Pure data parallelism, every method with every cut, then the planners; each is made when it is asked for.

    Those that try many orders come last. The cut that counts transfers is left out where it is known to be the same
    as without them. A plan that breaks the memory is followed by the same one with recomputation, if the options
    offer it. A plan with replicas is followed by the one whose replicas shard the optimizer's state, if they may;
    where they must, that is the only one. Once `has_time` denies it, no more plans are made: the baselines that are
    left come without one, and say so. All methods put layers on single devices: where some exist only wider, every
    row is without a plan, and names the layer.
    """
    if problem.only_wider:
        yield from _left_out(problem)
        return
    maker = _Maker(costs, has_time=has_time)
    for baseline in _with_recomputation(problem, maker, has_time=has_time):
        sharded = _with_sharding(problem, baseline)
        if sharded is None or problem.options.shard_optimizer != "always":
            yield replace(baseline, played=maker.played)
        if sharded is not None:
            yield sharded


def _left_out(problem: Problem) -> Iterator[Baseline]:
    """The methods, none of which has a stage whose devices are also those of others."""
    note = f"has stages on single devices, and layer {problem.only_wider[0]!r} has no cost at width 1"
    for name in ("data parallel", *(method.name for method in all_methods(problem)), "SPP"):
        yield Baseline(name=name, plan=None, note=note)


def _with_sharding(problem: Problem, baseline: Baseline) -> Baseline | None:
    """The same method with the optimizer's state sharded in every stage with replicas, if there is one, and it may."""
    plan = baseline.plan
    if not problem.may_shard or plan is None or plan.shards_weights or all(len(s.replicas) == 1 for s in plan.stages):
        return None
    stages = tuple(replace(s, shard="optimizer") if len(s.replicas) > 1 else s for s in plan.stages)
    return replace(baseline, name=f"{baseline.name}, sharded optimizer", plan=replace(plan, stages=stages))


def _with_recomputation(problem: Problem, maker: "_Maker", *, has_time: HasTime) -> Iterator[Baseline]:
    costs = maker.costs
    for baseline, again in _attempts(problem, maker, has_time=has_time):
        yield baseline
        if problem.options.recompute and _may_recompute(costs, baseline):
            yield _attempt_in_time(f"{baseline.name}, recomputing", again, has_time=has_time)


def _may_recompute(costs: CostModel, baseline: Baseline) -> bool:
    """Whether a plan needs too much memory, and could be made again with recomputation: not with split placement."""
    plan = baseline.plan
    if plan is None:
        return baseline.lacks_room
    return not any(stage.is_split for stage in plan.stages) and breaks_memory(costs, plan)


def _attempts(problem: Problem, maker: "_Maker", *, has_time: HasTime) -> Iterator[tuple[Baseline, Callable[[], Plan]]]:
    """Every baseline, and how to make it again with recomputation."""
    attempt = partial(_attempt_in_time, has_time=has_time)
    whole = partial(maker.make_data_parallel, recompute=True)
    yield attempt("data parallel", maker.make_data_parallel), whole
    if problem.options.fully_shard:
        full = partial(make_fully_sharded_plan, maker.costs)
        yield _attempt_in_time(FULLY_SHARDED, full, has_time=always), partial(full, recompute=True)
    yield from _method_attempts(problem, maker, is_slow=False)
    yield from _spp_attempts(maker)
    for name, make, remake in _planners(maker):
        yield attempt(name, make), remake
    if problem.options.split_placement:
        layer_pipe = partial(make_layer_pipe_plan, maker.costs, has_time=has_time)
        yield attempt("LayerPipe", layer_pipe), layer_pipe
    yield from _method_attempts(problem, maker, is_slow=True)


def _method_attempts(
    problem: Problem, maker: "_Maker", *, is_slow: bool
) -> Iterator[tuple[Baseline, Callable[[], Plan]]]:
    cuts = (EVEN, SMALLEST_LARGEST, TRANSFERS_TOO) if problem.options.partition is None else (GIVEN,)
    for method in all_methods(problem):
        for cut in cuts if method.is_slow == is_slow else ():
            has_time = always if method.is_always_played else maker.has_time
            if cut is not TRANSFERS_TOO or maker.may_depend_on_transfers(method, has_time=has_time):
                make = partial(maker.make, method, cut=cut)
                again = partial(maker.make, method, cut=cut, recompute=True)
                yield _attempt_in_time(f"{method.name} ({cut.name})", make, has_time=has_time), again


def _planners(maker: "_Maker") -> Iterator[tuple[str, Callable[[], Plan], Callable[[], Plan]]]:
    """Methods with a placement of their own: their names, how to make their plans, and once more with recomputation."""
    costs, has_time = maker.costs, maker.has_time
    ahead, modulo = (partial(make, costs, has_time=has_time) for make in (make_fast_forward_plan, make_modulo_plan))
    yield "OOO fast-forward", ahead, partial(ahead, recompute=True)
    yield "OOO modulo", modulo, partial(modulo, recompute=True)
    if costs.problem.options.synchronisation == "bucketed":
        first_k = partial(make_first_k_plan, costs, has_time=has_time)
        yield "OOO reverse first-k", first_k, partial(first_k, recompute=True)
    if open_widths(costs.problem):
        even = partial(make_even_cores_plan, costs, has_time=has_time)
        uneven = partial(make_uneven_cores_plan, costs, has_time=has_time)
        yield "even widths", even, partial(even, recompute=True)
        yield "concurrency control", uneven, partial(uneven, recompute=True)


def _spp_attempts(maker: "_Maker") -> Iterator[tuple[Baseline, Callable[[], Plan]]]:
    """SPP, which does not know of memory, and, where its best plan needs too much, the best of those that fit."""
    make = partial(make_spp_plan, maker.costs, has_time=maker.has_time)
    fitting, again = partial(make, within_memory=True), partial(make, recompute=True, within_memory=True)
    yield (found := _attempt_in_time("SPP", make, has_time=maker.has_time)), again
    if found.plan is not None and breaks_memory(maker.costs, found.plan):
        yield _attempt_in_time("SPP (least that fits)", fitting, has_time=maker.has_time), again


def make_method_plan(costs: CostModel, method: Method, *, cut: Cut) -> Plan:
    """The plan of one pipelined method; raises DoesNotApplyError if the options exclude it."""
    return _Maker(costs).make(method, cut=cut)


def _attempt_in_time(name: str, make: Callable[[], Plan], *, has_time: HasTime) -> Baseline:
    try:
        require_time(has_time)
        return Baseline(name=name, plan=make())
    except OutOfTimeError:
        return Baseline(name=name, plan=None, note=NO_TIME)
    except (DoesNotApplyError, OutOfRangeError) as reason:
        return Baseline(name=name, plan=None, note=str(reason), lacks_room=isinstance(reason, NoRoomError))


class _Maker:
    """Makes plans for one problem; methods that place their stages alike share them."""

    def __init__(self, costs: CostModel, *, has_time: HasTime = always) -> None:
        self.costs, self.has_time = costs, has_time
        self.stages = cache(self._make_stages)
        self.pipeline = cache(partial(make_pipeline, costs, has_time=has_time))
        self.played: tuple[Plan, Timeline] | None = None
        """The last plan that was the best of twins."""
        self._ordered: dict[tuple[str, tuple[Stage, ...]], tuple[Plan, tuple[Plan, Timeline] | None]] = {}
        """Plans of the last method by its name and stages, which several cuts may share."""

    def make_data_parallel(self, *, recompute: bool = False) -> Plan:
        stages = make_replicated_stage(self.costs)
        stages = with_recomputation(stages) if recompute else stages
        require_choices(self.costs, stages)
        return make_plan(self.costs, stages, device_orders=order_data_parallel(self.pipeline(stages)))

    def make(self, method: Method, *, cut: Cut, recompute: bool = False) -> Plan:
        if method.splits_backward:
            require_split_backward(self.costs.problem)
        stages = self.stages(method.placement, cut)
        stages = with_recomputation(stages) if recompute else stages
        if (method.name, stages) not in self._ordered:
            self._ordered = {key: known for key, known in self._ordered.items() if key[0] == method.name}
            self._ordered[method.name, stages] = self._order(stages, method), self.played
        plan, self.played = self._ordered[method.name, stages]
        return plan

    def _order(self, stages: tuple[Stage, ...], method: Method) -> Plan:
        pipeline = self.pipeline(stages)
        plan = make_plan(self.costs, stages, device_orders=method.order(pipeline))
        return self._best_of_twins(plan, pipeline, method=method) if method.has_twins else plan

    def _best_of_twins(self, plan: Plan, pipeline: Pipeline, *, method: Method) -> Plan:
        """The plan, or the one with the order of an idealised twin, whichever is the shorter on the real costs.

        Raises OutOfTimeError rather than leave twins out: a row that states less than its method finds is wrong.
        """
        plans = {tuple(plan.schedule.items()): plan}
        for twin in twins(pipeline):
            require_time(always if method.is_always_played else self.has_time)
            other = make_plan(self.costs, plan.stages, device_orders=method.order(twin))
            plans.setdefault(tuple(other.schedule.items()), other)
        if len(plans) == 1:
            return plan
        played = [(each, simulate(self.costs.problem, each, costs=self.costs)) for each in plans.values()]
        self.played = min(played, key=lambda one: self._objective(one[1]))
        return self.played[0]

    def _objective(self, timeline: Timeline) -> tuple[bool, int]:
        problem = self.costs.problem
        return _fullest(problem, timeline)[1] > 1, timeline.objective_ns(problem.options.objective)

    def may_depend_on_transfers(self, method: Method, *, has_time: HasTime) -> bool:
        """Whether counting transfers changes the stages, as far as the method has any; else it is no other baseline.

        Where that takes long and there is no time for it, nobody knows.
        """
        problem = self.costs.problem
        if len(problem.profile.layers) * len(problem.cluster.devices) > _MAX_QUICK_CUTS and not has_time():
            return True
        try:
            return self.stages(method.placement, TRANSFERS_TOO) != self.stages(method.placement, SMALLEST_LARGEST)
        except DoesNotApplyError:
            return False

    def _make_stages(self, placement: StagePlacement, cut: Cut) -> tuple[Stage, ...]:
        stages = make_stages(self.costs, placement, cut=cut)
        require_choices(self.costs, stages)
        return stages


def play_baseline(problem: Problem, baseline: Baseline, *, costs: CostModel) -> tuple[BaselineResult, Timeline | None]:
    """Play a baseline; its row for the evidence, and its timeline if it has a plan."""
    if baseline.plan is None:
        return BaselineResult(name=baseline.name, makespan_ns=None, note=baseline.note), None
    known = baseline.played if baseline.played is not None and baseline.played[0] is baseline.plan else None
    try:
        timeline = known[1] if known is not None else simulate(problem, baseline.plan, costs=costs)
    except OutOfRangeError as reason:
        return BaselineResult(name=baseline.name, makespan_ns=None, note=str(reason)), None
    device, fraction = _fullest(problem, timeline)
    excess = f"needs {ceil(100 * fraction) / 100:.2f} x the memory of {device}" if fraction > 1 else ""
    row = BaselineResult(
        name=baseline.name,
        makespan_ns=timeline.makespan_ns,
        span_ns=timeline.span_ns,
        bubble=timeline.bubble,
        peak_fraction=fraction,
        fits_memory=fraction <= 1,
        note=excess,
    )
    return row, timeline


def _fullest(problem: Problem, timeline: Timeline) -> tuple[str, float]:
    """The device whose peak is the largest part of its memory, and that part."""
    memory = problem.cluster.by_name
    parts = {name: peak / max(1, memory[name].usable_bytes) for name, peak in timeline.peak_bytes.items()}
    device = max(parts, key=lambda name: parts[name])
    return device, parts[device]
