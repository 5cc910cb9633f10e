"""What steers a planning run and was chosen by hand: `SearchParams`, every parameter of every room in one place.

The groups of the solvers' floor are those of `solver_models.search_params`, those of the bounds are in
`planner.bounds.bound_params`, because bounds know nothing of solvers; here are those of the steps of a run, and what
collects them all. `make_plan` takes one, `SearchState` and `Searcher` carry it to where it is read. What differs from
the defaults stands in the evidence, so that a plan can be made again.
"""

from dataclasses import dataclass, field
from typing import Annotated

from planner.bounds.bound_params import BoundParams
from solver_models.search_params import (
    Amount,
    Count,
    FallingHeat,
    Heat,
    ParamGroup,
    Ratio,
    Seconds,
    Share,
    SolverParams,
    Work,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstPlansParams(ParamGroup):
    """First candidates of large problems, baselines and looped layouts (`planner.planning.runs.run`)."""

    large_actions: Work = 40_000
    """Problems with more actions than this are large: their plans take so long to play that not everything can be
    tried. Measured: 50 and 200 change plans by -0.20 and +0.00 % and bounds by -0.30 and +0.00 %, for 1.01 and 1.05 of
    the processor time (docs/benchmarks/search_params.md)."""
    quick_actions: Work = 300_000
    """Plans with no more actions are verified at once where there is none yet; of longer ones only the best of all
    first candidates is. Measured: 3 million actions take 8 to 12 s."""
    min_seed_plays: Count = 6
    """First candidates of a large problem that are played at least. Measured: 3 and 12 change no plan (taken for large
    in 5 s, where seeds differ by 1.1 %; docs/benchmarks/search_params.md)."""
    max_seed_actions: Work = 200_000_000
    """Actions that they may be in all. Measured: 100000000 and 400000000 change no plan (taken for large in 5 s, where
    seeds differ by 1.1 %; docs/benchmarks/search_params.md)."""
    seed_share: Share = 0.1
    """Part of the time limit by whose end they are played. Measured: 0.05 and 0.2 change no plan (taken for large in 5
    s, where seeds differ by 1.1 %; docs/benchmarks/search_params.md)."""
    baseline_share: Share = 0.3
    """Part of the time limit by whose end the baselines are played. Measured: 0.15 and 0.6 change no plan (24 layers on
    4 unlike devices in 6 s, where seeds differ by 0.8 %; docs/benchmarks/search_params.md)."""
    no_plan_share: Share = 0.6
    """The same as long as none of them fits. Measured: 0.3 changes no plan (24 layers on 4 unlike devices in 6 s, where
    seeds differ by 0.8 %; docs/benchmarks/search_params.md)."""
    min_baseline_s: Seconds = 2.0
    """Seconds that baselines have at least, but at most half of the limit. Measured: 1 and 4 change no plan (24 layers
    on 4 unlike devices in 6 s, where seeds differ by 0.8 %; docs/benchmarks/search_params.md)."""
    first_layouts_share: Share = 0.3
    """Part of the time limit up to which layouts in a loop are looked for before the baselines. Measured: 0.15 and 0.6
    change no plan (a loop in 5 s; docs/benchmarks/search_params.md)."""
    layouts_share: Share = 0.8
    """The same after the bound. Measured: 0.4 changes no plan (a loop in 5 s; docs/benchmarks/search_params.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceParams(ParamGroup):
    """What is expected of a slow machine before anything was timed (`planner.planning.search_state`)."""

    plays_per_round: Count = 8
    """Plays that the first round of a large problem is expected to take. Measured: 4 and 16 change no plan (24 layers
    on 4 unlike devices in 6 s, where seeds differ by 0.8 %; docs/benchmarks/search_params.md)."""
    slow_play_s: Seconds = 0.001
    """A play that takes longer says how long the first round of the joint search takes. Measured: 0.1 to 0.4 ms on up
    to 16 devices, 1.5 to 3.2 on 320 of two types (Sailor's clusters)."""
    timed_plays: Count = 5
    """Plays that are timed for that, at most; the least counts. Measured: 2 and 10 change no plan (24 layers on 6
    and on 4 devices, 12 s, one thread, two seeds)."""
    actions_per_s: Work = 1_000_000
    """Actions that a slow machine plays in a second. Not measured: on purpose several times too few."""
    max_bounded_actions: Work = 400_000
    """Larger plans come without a schedule bound, which would take as long as the rest. Measured: 200000 and 800000
    change neither plans nor bounds, for 1.12 and 1.07 of the processor time (docs/benchmarks/search_params.md)."""
    bounded_actions_per_s: Work = 10_000
    """Actions and transfers for which a slow machine finds the schedule bound in a second. Measured: plans on 128
    to 512 devices with 10,000 to 15,000 of them took 0.7 to 1.3 processor seconds."""
    longer_round: Ratio = 1.25
    """How many times as long as the one before a round is expected to take: they grow, and other processes come and go.
    Measured: 2.5 changes no plan (24 layers on 4 unlike devices in 6 s, where seeds differ by 0.8 %;
    docs/benchmarks/search_params.md)."""
    max_late_s: Seconds = 0.3
    """By how much a run may exceed its time limit for the sake of a schedule bound or of verifying a last plan. Not
    measured: the promise is 1 s and 5 %."""
    max_late_share: Share = 0.02
    """And by which part of the limit beyond that. Measured: 0.01 and 0.04 change neither plans nor bounds, for 1.03 and
    1.03 of the processor time (docs/benchmarks/search_params.md)."""
    counted_part: Count = 8
    """Where rounds are counted instead of seconds, of which somebody waits for every one, the packing bound gets one
    part in so many of its effort. Measured: 12 layers on 4 devices take 4 instead of 7 processor seconds, the bound is
    275 instead of 282 (a plan takes 288)."""
    max_seed_actions: Work = 200_000_000
    """Actions that all balanced seeds of a large problem may be in all. Measured: 100000000 and 400000000 change
    neither plans nor bounds, for 1.05 and 1.12 of the processor time (docs/benchmarks/search_params.md)."""
    all_seeds: Count = 1_000
    """How many plays all balanced seeds take, about. Measured: 500 and 2000 change neither plans nor bounds, for 1.16
    and 1.00 of the processor time (docs/benchmarks/search_params.md)."""
    seed_actions_per_s: Work = 3_000_000
    """Actions of seeds that a slow machine plays in a second. Measured: 1500000 and 6000000 change neither plans nor
    bounds, for 1.11 and 1.08 of the processor time (docs/benchmarks/search_params.md)."""
    seed_share: Share = 0.3
    """Part of the time left that first candidates may take, once without and once with orders of their own, and the
    seats of sequential stages. Measured: 0.15 and 0.6 change neither plans nor bounds, for 1.00 and 0.99 of the
    processor time (docs/benchmarks/search_params.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NearBoundParams(ParamGroup):
    """Stages that the classes bound leaves possible (`planner.planning.starts.class_layouts`, `successive_halving`)."""

    min_left_s: Seconds = 3.0
    """Seconds that must be left for them to be looked for. Measured: 0.25 and 1 change no plan (two classes, one stage
    each in 6 s; docs/benchmarks/search_params.md); 5 leaves them out of some runs of 8 s on 96 layers and 16 devices,
    whose plans are then up to 3 % longer."""
    share: Share = 0.2
    """Part of the time left that looking for them may take, about. Measured: without a limit they took 3 to 4 of 8 s on
    a chain of 96 layers and 16 devices, so that nothing was searched and the plan was 5 % longer; with 0.1 plans of 48
    layers on unlike devices are 0.4 % longer in 10 s than with 0.25."""
    slacks: tuple[Share, ...] = (0.003, 0.01, 0.02)
    """How far above the bound stages are looked for, as parts of it. Measured: [0.0015, 0.005, 0.01] and [0.006, 0.02,
    0.04] change no plan (two classes, one stage each in 6 s; docs/benchmarks/search_params.md)."""
    min_ways: Count = 20
    """Ways through the stages that are rated for every slack, at least. Measured: 10 and 40 change no plan (two
    classes, one stage each in 6 s; docs/benchmarks/search_params.md)."""
    max_ways: Count = 50
    """Ways, at most. Measured: 25 and 100 change no plan (two classes, one stage each in 6 s;
    docs/benchmarks/search_params.md)."""
    way_actions: Work = 100_000
    """Between these, as many ways as have so many actions in all. Measured: 50000 and 200000 change no plan (two
    classes, one stage each in 6 s; docs/benchmarks/search_params.md)."""
    layouts: Count = 40
    """How many of all ways are kept, those with the least schedule bounds. Measured: 20 and 80 change no plan (two
    classes, one stage each in 6 s; docs/benchmarks/search_params.md)."""
    seed_layouts: Amount = 12
    """How many of those the joint search begins with. Measured: 6 and 24 change neither plans nor bounds, for 1.07 and
    1.09 of the processor time (docs/benchmarks/search_params.md)."""
    first_plays: Work = 900
    """Work on the orders of each of them in the first turn, in plays; doubled for the better half. Measured: 450 and
    1800 change neither plans nor bounds, for 1.03 and 1.02 of the processor time (docs/benchmarks/search_params.md)."""
    turn_actions: Work = 60_000_000
    """Most work of a turn on all of them, in played actions. Measured: 3000000 and 12000000 change neither plans nor
    bounds, for 0.98 and 1.00 of the processor time (docs/benchmarks/search_params.md)."""
    trial_share: Share = 0.2
    """Part of the time that is left after which no turn begins. Measured: 0.1 and 0.4 change neither plans nor bounds,
    for 1.08 and 1.19 of the processor time (docs/benchmarks/search_params.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalParams(ParamGroup):
    """Cuts of the layers in one topological order (`planner.planning.improvers.intervals`)."""

    max_candidates: Count = 8
    """Cuts taken from the dynamic programme. Measured: 4 and 16 change neither plans nor bounds, for 1.19 and 1.24 of
    the processor time (docs/benchmarks/search_params.md)."""
    max_devices: Count = 128
    """Most devices for either programme. Measured: 64 changes neither plans nor bounds, for 0.99 of the processor time
    (docs/benchmarks/search_params.md)."""
    dynamic_share: Share = 0.2
    """Part of the time left that the dynamic programme, and playing what it finds, may take. Measured: 0.1 and 0.4
    change neither plans nor bounds, for 1.03 and 1.03 of the processor time (docs/benchmarks/search_params.md)."""
    limit_s: Seconds = 2.0
    """Seconds for building and solving the integer programme. Measured: 1 and 4 change no plan (Tessel's X in 5 s;
    docs/benchmarks/search_params.md)."""
    share: Share = 0.1
    """Part of the time left for it. Measured: 0.05 and 0.2 change no plan (Tessel's X in 5 s;
    docs/benchmarks/search_params.md)."""
    max_nodes: Count = 200
    """Where rounds are counted: nodes of HiGHS's tree for every largest load that is tried. Measured: 100 and 400
    change neither plans nor bounds, for 1.06 and 1.08 of the processor time (docs/benchmarks/search_params.md)."""
    min_left_s: Seconds = 4.0
    """Without so many seconds left it is not begun. Measured: 2.0 and 8.0 change neither plans nor bounds, for 1.02 and
    1.09 of the processor time (docs/benchmarks/search_params.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionParams(ParamGroup):
    """Order search between rounds of the joint search (`planner.planning.improvers.order_sessions`)."""

    every_rounds: Count = 4
    """Joint rounds between two sessions. Measured: 2 and 8 change neither plans nor bounds, for 1.17 and 1.16 of the
    processor time (docs/benchmarks/search_params.md)."""
    rounds: Count = 2
    """Rounds of a session. Measured: 1 and 4 change no plan (24 layers on 4 unlike devices in 6 s, where seeds differ
    by 0.8 %; docs/benchmarks/search_params.md)."""
    max_sessions: Annotated[int, (3, 1000)] = 4
    """Order searches that are under way at once. Measured: 8 changes no plan (24 layers on 4 unlike devices in 6 s,
    where seeds differ by 0.8 %; docs/benchmarks/search_params.md)."""
    most_actions: Work = 4_000_000
    """Work up to which that of a round doubles, in played actions. Measured: 2000000 and 8000000 change no plan (24
    layers on 4 unlike devices in 6 s, where seeds differ by 0.8 %; docs/benchmarks/search_params.md)."""
    max_vees: Annotated[int, (0, 2)] = 2
    """Two-chunk V that get sessions of their own. Measured: 1 changes neither plans nor bounds, for 0.98 of the
    processor time (docs/benchmarks/search_params.md)."""
    max_vee_actions: Work = 30_000
    """Actions of the largest of those. Measured: 15000 and 60000 change neither plans nor bounds, for 1.00 and 0.95 of
    the processor time (docs/benchmarks/search_params.md)."""
    hopeless: Ratio = 1.05
    """The ratio to the incumbent that ends their sessions. Measured: 2.1 changes no plan (24 layers on 4 unlike devices
    in 6 s, where seeds differ by 0.8 %; docs/benchmarks/search_params.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequentialParams(ParamGroup):
    """Orders of the sequential planner's stages (`planner.planning.improvers.sequential_improver`)."""

    max_cells: Work = 500_000
    """Most devices x layers x layers for which the sequential planner is asked. Measured: 250000 and 1000000 change
    neither plans nor bounds, for 0.92 and 0.90 of the processor time (docs/benchmarks/search_params.md)."""
    looks: Count = 200
    """How often it may look at all of them. Measured: 100 and 400 change neither plans nor bounds, for 0.94 and 1.05 of
    the processor time (docs/benchmarks/search_params.md)."""
    equal_rounds: Amount = 8
    """Rounds of order search that follow one joint round each. Measured: in that many rounds the joint search ends
    behind who settles on stages first on none of the problems of docs/benchmarks/sequential.md."""
    later_every_rounds: Count = 4
    """Later, one round in so many is followed by another. Measured: 2 and 8 change no plan (24 layers on 4 devices,
    tight in 8 s, where seeds differ by 1.7 %; docs/benchmarks/search_params.md)."""
    hopeless: Ratio = 1.05
    """Ratio to the incumbent that ends it. Measured: 5 and 20 change no plan and bounds by 0.0 and -0.4 % (24 layers on
    4 devices, tight in 8 s, where seeds differ by 1.7 %; docs/benchmarks/search_params.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPlacementParams(ParamGroup):
    """Where I and W are, as a decision of the search (`planner.planning.improvers.split_placement_improver`)."""

    every_rounds: Annotated[int, (2, 10**6)] = 2
    """Joint rounds between two turns. Measured: 4 changes neither plans nor bounds, for 0.99 of the processor time
    (docs/benchmarks/search_params.md)."""
    pool_size: Count = 6
    """Candidates kept. Measured: 3 and 12 change neither plans nor bounds, for 1.22 and 1.14 of the processor time
    (docs/benchmarks/search_params.md)."""
    fresh_starts: Count = 3
    """How many of the joint pool are begun from in turn. Measured: 2 and 6 change neither plans nor bounds, for 1.14
    and 1.07 of the processor time (docs/benchmarks/search_params.md)."""
    ranks: Count = 3
    """From how many of those kept. Measured: 2 and 6 change neither plans nor bounds, for 1.10 and 1.16 of the
    processor time (docs/benchmarks/search_params.md)."""
    polish_share: Share = 0.5
    """Part of a turn's steps that improve the orders of its best candidate. Measured: 0.25 and 1.0 change neither plans
    nor bounds, for 0.95 and 1.15 of the processor time (docs/benchmarks/search_params.md)."""
    polish_heat: Heat = 0.0003
    """Their temperature. Measured: 0.00015 and 0.0006 change neither plans nor bounds, for 1.45 and 1.51 of the
    processor time (docs/benchmarks/search_params.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputeParams(ParamGroup):
    """Which layers of a stage recompute, and by which kind (`planner.planning.improvers.recompute_improver`)."""

    every_rounds: Count = 1
    """Joint rounds between two turns. Measured: 2 changes neither plan nor bound of "recomputation"."""
    pool_size: Count = 6
    """Candidates kept. Measured: 3 and 12 change neither plan nor bound of "recomputation"."""
    fresh_starts: Count = 6
    """How many candidates of the joint search are begun from in turn. Measured: 3 and 12 change neither plan nor bound
    of "recomputation"."""
    num_cuts: Count = 24
    """Cuts that are balanced with their recomputation to begin with, the best first. Measured: MindFormers' example, in
    5 s with 4: 18,566, in 60 s with 24: 17,651, each once."""
    cut_precision: Count = 200
    """Parts of the whole work in which their longest stages are told apart. Measured: 100 and 400 change neither plan
    nor bound of "recomputation"."""
    anneal_share: Share = 0.5
    """Part of a turn's steps that change partition and mapping, layers keeping their kinds. Measured: 0.25 and 1.0
    change neither plan nor bound of "recomputation"."""
    polish_heat: Heat = 0.0003
    """Temperature of the rest, which improves orders. Measured: 0.00015 and 0.0006 change neither plan nor bound of
    "recomputation"."""
    work: Seconds = 1.0
    """CP-SAT's deterministic limit for one choice of kinds. Measured: 0.5 and 2.0 change neither plans nor bounds, for
    1.05 and 1.00 of the processor time (docs/benchmarks/search_params.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundTurnParams(ParamGroup):
    """The bound over all plans between rounds, and plans that it lets pass
    (`planner.planning.improvers.bound_improver`).
    """

    after_rounds: Count = 2
    """Rounds of the joint search before it goes on. Measured: 1 and 4 change neither plans nor bounds, for 1.13 and
    1.02 of the processor time (docs/benchmarks/search_params.md)."""
    share: Share = 0.4
    """Part of the search's time that it gets at most. Measured: 0.2 and 0.8 change no plan (24 layers on 4 unlike
    devices in 6 s, where seeds differ by 0.8 %; docs/benchmarks/search_params.md)."""
    gap_shares: Count = 4
    """It gets so many times the gap as a part of the search's time. Measured: 2 and 8 change no plan (24 layers on 4
    unlike devices in 6 s, where seeds differ by 0.8 %; docs/benchmarks/search_params.md)."""
    turn_s: Seconds = 0.5
    """Seconds of a turn, about. Measured: 0.25 and 1 change no plan (24 layers on 4 unlike devices in 6 s, where seeds
    differ by 0.8 %; docs/benchmarks/search_params.md)."""
    wanted: Count = 4
    """Whole plans that it lets pass for a deadline until it gives that up. Measured: 2 and 8 change no plan (24 layers
    on 4 unlike devices in 6 s, where seeds differ by 0.8 %; docs/benchmarks/search_params.md)."""
    order_rounds: Count = 2
    """Rounds of order search on the stages of a plan that it lets pass. Measured: 1 and 4 change no plan (a list that
    is too long in 8 s; docs/benchmarks/search_params.md)."""
    most_actions: Work = 4_000_000
    """Work up to which that of a round doubles, in played actions. Measured: 2000000 and 8000000 change plans by 0.0
    and +0.3 % (a list that is too long in 8 s; docs/benchmarks/search_params.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharesParams(ParamGroup):
    """Unequal shares of the samples (`planner.planning.improvers.share_improver`)."""

    every_rounds: Count = 1
    """Joint rounds between two turns. Measured: 2 changes neither plan nor bound of "unequal shares"."""
    most_actions: Work = 60_000
    """Actions that are played in a turn for stages that equal shares do not allow. Measured: 30000 and 120000 change no
    plan (two layers on 3 devices, 5 samples, 3 rounds)."""
    play_actions: Amount = 200
    """What a play takes beside its actions, in actions. Measured: about 3 ms, as 200 actions."""
    neighbours: Count = 48
    """Neighbours of stages that are looked at, at most. Measured: 24 and 96 change no plan (two layers on 3 devices, 5
    samples, 3 rounds)."""
    order_work: Seconds = 1.0
    """CP-SAT's deterministic limit, and seconds, for the order of a plan per turn. Measured: 0.5 and 2 change no plan
    (two layers on 3 devices, 5 samples, 3 rounds)."""
    starts: Count = 4
    """Good candidates of the joint search whose shares are looked for in a turn. Measured: 2 and 8 change neither plan
    nor bound of "unequal shares"."""
    moves: Count = 24
    """Plans that are played with a sample moved, per turn. Measured: 12 and 48 change neither plan nor bound of
    "unequal shares"."""
    together_share: Share = 0.5
    """How often all stages with the same samples are changed alike. Measured: 0.25 and 1.0 change neither plan nor
    bound of "unequal shares"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpOrderParams(ParamGroup):
    """Small orders given to CP-SAT between rounds (`planner.planning.improvers.cp_sat_orders`)."""

    every_rounds: Count = 12
    """Rounds between two orders. Measured: 6 and 24 change no plan (24 layers on 4 unlike devices in 6 s, where seeds
    differ by 0.8 %; docs/benchmarks/search_params.md)."""
    limit_s: Seconds = 5.0
    """Seconds for one order, where rounds are not counted. Measured: 2.5 and 10 change no plan (16 layers on 6 unlike
    devices in 8 s, where seeds differ by 1.8 %; docs/benchmarks/search_params.md)."""
    work: Seconds = 5.0
    """CP-SAT's deterministic limit. Measured: about as long as seconds."""
    max_actions: Work = 300
    """The largest number of actions it is given. Measured: 150 and 600 change neither plans nor bounds, for 0.86 and
    0.88 of the processor time (docs/benchmarks/search_params.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapParams(ParamGroup):
    """Plans whose groups of devices overlap (`planner.planning.improvers.overlap_improver`)."""

    base_rounds: Amount = 3
    """Rounds of the joint search on the layers that single devices can run. Measured: 2 and 6 change neither plans nor
    bounds, for 1.01 and 0.97 of the processor time (docs/benchmarks/search_params.md)."""
    bases: Count = 12
    """How many of its layouts the wide stages are put beside. Measured: 6 and 24 change neither plans nor bounds, for
    0.98 and 0.98 of the processor time (docs/benchmarks/search_params.md)."""
    alignments: Count = 4
    """In how many ways for each of them. Measured: 2 and 8 change neither plans nor bounds, for 0.99 and 1.00 of the
    processor time (docs/benchmarks/search_params.md)."""
    first_periods: tuple[Amount, ...] = (0, 25, 50, 75, 100, 110, 125, 150, 200, 300, 400, 600, 800)
    """Times from one microbatch to the next that are tried first, in percent of what the busiest device needs for one.
    Measured: [1, 12, 25, 38, 50, 55, 62, 75, 100, 150, 200, 300, 400] and [1, 50, 100, 150, 200, 220, 250, 300, 400,
    600, 800, 1200, 1600] change neither plans nor bounds, for 0.93 and 0.96 of the processor time
    (docs/benchmarks/search_params.md)."""
    layout_share: Share = 0.3
    """Part of the time left after which no further layout is tried. Measured: 0.15 and 0.6 change neither plans nor
    bounds, for 0.95 and 0.98 of the processor time (docs/benchmarks/search_params.md)."""
    kept: Count = 6
    """Layouts whose orders are searched, those with the best first orders. Measured: 3 and 12 change no plan (Tessel's
    NN in 6 s, where seeds differ by 3.4 %; docs/benchmarks/search_params.md)."""
    every_rounds: Count = 2
    """Rounds of the joint search between two of this one. Measured: 1 and 4 change no plan (Tessel's NN in 6 s, where
    seeds differ by 3.4 %; docs/benchmarks/search_params.md)."""
    round_actions: Work = 30_000
    """Actions that a round plays in all. Measured: half a second on a slow core."""
    solver_every_rounds: Count = 4
    """Rounds after which a layout is given to CP-SAT, each layout once. Measured: 2 and 8 change no plan (Tessel's NN
    in 6 s, where seeds differ by 3.4 %; docs/benchmarks/search_params.md)."""
    max_solver_actions: Work = 600
    """The largest number of actions it is given. Measured: 300 and 1200 change no plan (Tessel's NN in 6 s, where seeds
    differ by 3.4 %; docs/benchmarks/search_params.md)."""
    solver_limit_s: Seconds = 20.0
    """Seconds for one layout, where rounds are not counted. Measured: 10 and 40 change no plan (Tessel's NN, each
    layout once in 6 s; docs/benchmarks/search_params.md)."""
    solver_work: Seconds = 20.0
    """CP-SAT's deterministic limit. Measured: 10 and 40 change no plan (Tessel's NN, each layout once in 6 s;
    docs/benchmarks/search_params.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopedParams(ParamGroup):
    """Layouts of programs that run stages in a loop (`planner.planning.starts.looped_layouts`)."""

    heats: tuple[FallingHeat, ...] = (0.0003, 0.001, 0.003, 0.0001)
    """First temperatures of anneals, as parts of the objective; they take turns and fall to a twentieth. Measured:
    [0.00015, 0.0005, 0.0015, 5e-05] and [0.0006, 0.002, 0.006, 0.0002] change neither plans nor bounds, for 1.02 and
    1.04 of the processor time (docs/benchmarks/search_params.md)."""
    first_actions: Work = 40_000_000
    """Work of the first anneal of a shape, in actions; each further one has as much more. Measured: 20000 and 80000
    change neither plans nor bounds, for 1.11 and 0.89 of the processor time (docs/benchmarks/search_params.md)."""
    most_actions: Work = 200_000_000
    """Most work of an anneal. Measured: 100000 and 400000 change neither plans nor bounds, for 1.08 and 0.96 of the
    processor time (docs/benchmarks/search_params.md)."""
    min_steps: Count = 200
    """Steps of an anneal, at least, whatever their work. Measured: 10 and 40 change neither plans nor bounds, for 0.98
    and 0.98 of the processor time (docs/benchmarks/search_params.md)."""
    max_steps: Count = 20_000
    """Steps of an anneal, at most. Measured: 100 and 400 change neither plans nor bounds, for 1.11 and 1.01 of the
    processor time (docs/benchmarks/search_params.md)."""
    max_shape_actions: Work = 4_000_000
    """Largest pipeline whose cuts are annealed. Measured: 2000000 and 8000000 change neither plans nor bounds, for 1.05
    and 0.97 of the processor time (docs/benchmarks/search_params.md)."""
    most_shapes: Count = 128
    """Shapes whose cuts are annealed, of more those whose equal parts of the work promise most; up to a quarter may
    lack memory then. Measured: 64 and 256 change neither plans nor bounds, for 1.08 and 1.27 of the processor time
    (docs/benchmarks/search_params.md)."""
    stale_turns: Count = 120
    """Anneals without a better cut after which the search ends. Measured: 6 and 24 change neither plans nor bounds, for
    0.88 and 1.01 of the processor time (docs/benchmarks/search_params.md)."""
    round_turns: Count = 2
    """Anneals of a shape for one round of a limit on rounds. Measured: 1 and 4 change neither plans nor bounds, for
    1.07 and 1.06 of the processor time (docs/benchmarks/search_params.md)."""
    rank_weight: Share = 0.7
    """How likely each next shape is to be annealed, relative to the one before. Measured: 0.35 changes neither plans
    nor bounds, for 0.98 of the processor time (docs/benchmarks/search_params.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactParams(ParamGroup):
    """Turns of the exact search, and the list of its open cases (`planner.planning.improvers.exact_improver`)."""

    after_rounds: Count = 3
    """Rounds of the search before a small problem is searched exactly. Measured: 2 and 6 change bounds by +0.00 and
    -0.07 %, for 1.01 and 1.21 of the processor time (docs/benchmarks/search_params.md)."""
    listing_steps: Count = 2
    """Attempts to list all open cases per turn, once one has failed. Measured: 1 and 4 change neither plans nor bounds,
    for 0.98 and 1.07 of the processor time (docs/benchmarks/search_params.md)."""
    listing_share: Share = 1 / 3
    """Part of the search's time that such attempts get. Measured: 0.166667 and 0.666667 change no plan (24 layers on 4
    unlike devices in 6 s, where seeds differ by 0.8 %; docs/benchmarks/search_params.md)."""
    listing_nodes: Work = 1_200_000
    """With a deterministic limit, nodes of the tree per turn that they may look at; what is left is saved up. Measured:
    600000 and 2400000 change no plan (24 layers on 4 unlike devices, four rounds, where seeds differ by 1.0 %;
    docs/benchmarks/search_params.md)."""
    nodes: tuple[Work, ...] = (600_000, 6_000_000, 40_000_000)
    """Nodes of the tree that are looked at, in all, before a threshold is lowered, in the first, second ... attempt.
    Measured: [300000, 3000000, 20000000] and [1200000, 12000000, 80000000] change neither plans nor bounds, for 0.97
    and 1.06 of the processor time (docs/benchmarks/search_params.md)."""
    master_rounds: Amount = 300
    """Cases that the integer programme is asked for where the tree gave up. Measured: 150 and 600 change plans by 0.0
    and +0.7 % (a tree that gives up in 8 s, where seeds differ by 0.3 %; docs/benchmarks/search_params.md)."""
    master_share: Share = 0.5
    """Part of the time left that it may take. Measured: 0.25 and 1 change no plan (200 layers on 64 devices in 12 s;
    docs/benchmarks/search_params.md)."""
    first_step: Count = 2
    """Where there is no incumbent, so many times the bound is tried first. Measured: 1 and 4 change no plan (24 layers
    on 4 unlike devices in 6 s, where seeds differ by 0.8 %; docs/benchmarks/search_params.md)."""
    smallest_step: Count = 200
    """Steps above less than one part in so many of the bound are not tried. Measured: 100 and 400 change no plan (24
    layers on 4 unlike devices in 6 s, where seeds differ by 0.8 %; docs/benchmarks/search_params.md)."""
    most_pairs: Count = 16_384
    """Pairs of devices whose routes are compared in networks with several paths; none is searched with more. Measured:
    those of 128 devices take half a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseParams(ParamGroup):
    """How the exact search closes one case of partition and mapping (`planner.planning.improvers.branch_and_check`)."""

    max_words: Work = 20_000
    """Words per device that are enumerated. Measured: 10000 and 40000 change plans by -1.1 and 0.0 % and bounds by +1.8
    and 0.0 % (three plans asked for in 5 s, where seeds differ by 0.1 %; docs/benchmarks/search_params.md)."""
    few_plays: Work = 3_000
    """Combinations of words that are played before CP-SAT is asked. Measured: 1500 and 6000 change no plan and bounds
    by +2.1 and +2.1 % (three plans asked for in 5 s, where seeds differ by 0.1 %; docs/benchmarks/search_params.md)."""
    many_plays: Work = 3_000_000
    """Combinations that are played after it failed. Measured: 1500000 and 6000000 change no plan (no overlap in 8 s,
    where seeds differ by 0.5 %; docs/benchmarks/search_params.md)."""
    polish_iterations: Work = 50_000
    """Plays that polish its words where these are too many. Measured: 25000 and 100000 change no plan (no overlap in 8
    s, where seeds differ by 0.5 %; docs/benchmarks/search_params.md)."""
    efforts: tuple[Seconds, ...] = (0.3, 3.0, 30.0)
    """Work that CP-SAT may spend on an order, in its deterministic seconds, one after the other, of cases that the
    integer programme names. Measured: [0.15, 1.5, 15.0] and [0.6, 6.0, 60.0] change no plan (a tree that gives up in 8
    s, where seeds differ by 0.3 %; docs/benchmarks/search_params.md)."""
    rounds: tuple[tuple[Work, Annotated[int, (0, 10**12)], Seconds | None], ...] = (
        (8, 300, None),
        (4, 0, 0.3),
        (100_000, 5, None),
        (100_000, 100, None),
        (100_000, 2_000, 0.3),
        (100_000, 20_000, 3.0),
        (100_000, 200_000, 30.0),
    )
    """How many cases, least floor first, nodes of the branch and bound over the orders of each, and the effort of
    CP-SAT where that does not do (none: it is not asked), round by round. The first two are for good orders: they spare
    most of the others everything. Measured: [[4, 150, null], [2, 1, 0.15], [50000, 2, null], [50000, 50, null], [50000,
    1000, 0.15], [50000, 10000, 1.5], [50000, 100000, 15.0]] and [[16, 600, null], [8, 1, 0.6], [200000, 10, null],
    [200000, 200, null], [200000, 4000, 0.6], [200000, 40000, 6.0], [200000, 400000, 60.0]] change neither plans nor
    bounds, for 1.05 and 1.00 of the processor time (docs/benchmarks/search_params.md)."""
    quick_batch: Count = 16
    """Cases that are branched on at a time, below the same incumbent, with at most `few_nodes`. Measured: 8 and 32
    change neither plans nor bounds, for 1.07 and 1.01 of the processor time (docs/benchmarks/search_params.md)."""
    long_batch: Count = 4
    """The same with more nodes. Measured: 2 and 8 change neither plans nor bounds, for 0.92 and 1.01 of the processor
    time (docs/benchmarks/search_params.md)."""
    few_nodes: Amount = 100
    """So many nodes take no time worth stopping. Measured: 50 and 200 change neither plans nor bounds, for 1.04 and
    0.91 of the processor time (docs/benchmarks/search_params.md)."""
    promising: Amount = 40
    """Cases of least floor whose orders are polished first. Measured: 20 and 80 change plans by +0.8 and -3.3 % (no
    overlap in 8 s, where seeds differ by 0.5 %; docs/benchmarks/search_params.md)."""
    promising_steps: Work = 3_000
    """Plays that this takes. Measured: 1500 and 6000 change plans by -0.4 and 0.0 % (no overlap in 8 s, where seeds
    differ by 0.5 %; docs/benchmarks/search_params.md)."""
    order_batch: Count = 8
    """Orders that are solved side by side, below the same incumbent, however many threads there are. Measured: 4 and 16
    change neither plans nor bounds, for 0.93 and 1.21 of the processor time (docs/benchmarks/search_params.md)."""
    nodes_again: tuple[Work, ...] = (20_000, 200_000)
    """Nodes that a case gets which only CP-SAT closed, once no refutation was found, one after the other. Measured:
    [10000, 100000] and [40000, 400000] change no plan (closed by CP-SAT in 10 s; docs/benchmarks/search_params.md)."""
    most_nodes_again: Work = 1_000_000
    """Nodes of all these cases together; where they would take more, CP-SAT's word remains a claim. Measured: 500000
    and 2000000 change no plan (closed by CP-SAT in 10 s; docs/benchmarks/search_params.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveParams(ParamGroup):
    """Plans of other kinds beside the best, where they are asked for (`planner.planning.archive`)."""

    kinds_per_plan: Count = 4
    """Kinds that are kept, and candidates looked at, for each plan that is asked for: some turn out to be alike, or
    break a rule. Measured: 2 and 8 change no plan and bounds by +2.1 and +2.1 % (three plans asked for in 5 s, where
    seeds differ by 0.1 %; docs/benchmarks/search_params.md)."""
    overtime_share: Share = 0.1
    """Part of the time limit that the last look at them may take beyond it. Measured: 0.05 and 0.2 change plans by -1.1
    and -1.1 % and bounds by +1.8 and +1.8 % (three plans asked for in 5 s, where seeds differ by 0.1 %;
    docs/benchmarks/search_params.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransitionParams(ParamGroup):
    """The plan that takes over from a running one at the least cost (`planner.planning.runs.transition_search`)."""

    share: Share = 0.25
    """Last part of the time limit for layouts by the sum of iterations and moving. Measured: 0.125 and 0.5 change no
    plan (a device lost in 6 s; docs/benchmarks/search_params.md)."""
    starts: Count = 8
    """Candidates of the joint search that it begins with. Measured: 4 and 16 change no plan (a device lost in 6 s;
    docs/benchmarks/search_params.md)."""
    most_layouts: Count = 4_000
    """Layouts that are looked at, most of them by a bound alone. Measured: 2000 and 8000 change no plan (a device lost
    in 6 s; docs/benchmarks/search_params.md)."""
    polish_plays: Count = 200
    """Plays that go into the orders of a layout that could be cheapest. Measured: 100 and 400 change no plan (a device
    lost in 6 s; docs/benchmarks/search_params.md)."""
    most_sequenced_actions: Count = 100
    """Layouts with at most so many actions also get their best order by branch and bound. Measured: 50 and 200 change
    no plan (a device lost in 6 s; docs/benchmarks/search_params.md)."""
    sequence_nodes: Count = 2_000
    """Nodes that it may look at. Measured: 1000 and 4000 change no plan (a device lost in 6 s;
    docs/benchmarks/search_params.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubsetsParams(ParamGroup):
    """Subsets of the devices, where money is minimised (`planner.planning.runs.cost_run`)."""

    runs_per_wave: Count = 4
    """Subsets that are planned for at once. Measured: 2 and 8 change neither plans nor bounds, for 0.86 and 1.53 of the
    processor time (docs/benchmarks/search_params.md)."""
    runs_on_front: Count = 8
    """Subsets that are planned for where the front of time and money is asked for. Measured: 4 and 16 change plans by
    -0.6 and -0.6 % (the front of time and money in 5 s, where seeds differ by 0.3 %;
    docs/benchmarks/search_params.md)."""
    second_wave_share: Share = 0.5
    """Part of the time limit after which no further subsets are begun. Measured: 0.25 and 1.0 change neither plans nor
    bounds, for 0.88 and 0.87 of the processor time (docs/benchmarks/search_params.md)."""
    max_boxes: Count = 192
    """Boxes of subsets that are told apart at most; each has a bound in the certificate. Measured: 96 and 384 change
    neither plans nor bounds, for 0.93 and 1.18 of the processor time (docs/benchmarks/search_params.md)."""
    branch_share: Share = 0.1
    """Part of the time limit for telling them apart, each of two times. Measured: 0.05 and 0.2 change neither plans nor
    bounds, for 0.95 and 0.87 of the processor time (docs/benchmarks/search_params.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedParams(ParamGroup):
    """Microbatches that differ (`planner.planning.runs.variable_microbatches`)."""

    depths: tuple[Ratio, ...] = (1.0, 1.5, 2.0, 1000.0)
    """How many times as many microbatches as in 1F1B may be between F and I. Measured: plans of [1.0, 1.5, 2.0, 250.0]
    and [4.0, 6.0, 8.0, 1000.0] are 2.9 % shorter than those of [2.0, 3.0, 4.0, 500.0] (listed sizes in 4 s, where seeds
    differ by 2.4 %; docs/benchmarks/search_params.md)."""
    quick_plays: Count = 2_000
    """Hands played when a layout is first looked at, and after a layer has moved. Measured: 100 and 400 change neither
    plans nor bounds, for 1.42 and 1.17 of the processor time (docs/benchmarks/search_params.md)."""
    turn_plays: Count = 20_000
    """Hands played in every turn of a layout that is kept. Measured: 1000 and 4000 change neither plans nor bounds, for
    1.19 and 0.94 of the processor time (docs/benchmarks/search_params.md)."""
    kept_layouts: Count = 4
    """Layouts that are annealed and cut anew. Measured: 2 and 8 change neither plans nor bounds, for 0.95 and 0.96 of
    the processor time (docs/benchmarks/search_params.md)."""
    baseline_share: Share = 0.25
    """Part of the time limit for baselines. Measured: 0.125 and 0.5 change neither plans nor bounds, for 0.93 and 0.94
    of the processor time (docs/benchmarks/search_params.md)."""
    layout_share: Share = 0.6
    """Part of it after which no further numbers of pipelines are looked at. Measured: 0.3 changes neither plans nor
    bounds, for 0.91 of the processor time (docs/benchmarks/search_params.md)."""
    usual_share: Share = 0.25
    """Part of it for the search that takes all microbatches for equal. Measured: 0.125 and 0.5 change neither plans nor
    bounds, for 1.07 and 0.99 of the processor time (docs/benchmarks/search_params.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchParams(SolverParams):
    """Every parameter of a planning run, as `group.name`; the defaults are what was tuned and tested."""

    first_plans: FirstPlansParams = field(default_factory=FirstPlansParams)
    """What comes before the search."""
    pace: PaceParams = field(default_factory=PaceParams)
    """What a slow machine is taken to do."""
    bound: BoundParams = field(default_factory=BoundParams)
    """Effort put into the certified bound."""
    near_bound: NearBoundParams = field(default_factory=NearBoundParams)
    """Stages near the bound."""
    interval: IntervalParams = field(default_factory=IntervalParams)
    """Cuts by dynamic and integer programming."""
    session: SessionParams = field(default_factory=SessionParams)
    """Order search between joint rounds."""
    sequential: SequentialParams = field(default_factory=SequentialParams)
    """The sequential planner's stages."""
    split_placement: SplitPlacementParams = field(default_factory=SplitPlacementParams)
    recompute: RecomputeParams = field(default_factory=RecomputeParams)
    """Where I and W are."""
    bound_turn: BoundTurnParams = field(default_factory=BoundTurnParams)
    """The bound between rounds."""
    shares: SharesParams = field(default_factory=SharesParams)
    """Unequal shares of the samples."""
    cp_order: CpOrderParams = field(default_factory=CpOrderParams)
    """CP-SAT on whole orders."""
    overlap: OverlapParams = field(default_factory=OverlapParams)
    """Groups of devices that overlap."""
    looped: LoopedParams = field(default_factory=LoopedParams)
    """Layouts in a loop."""
    exact: ExactParams = field(default_factory=ExactParams)
    """Turns of the exact search."""
    case: CaseParams = field(default_factory=CaseParams)
    """One case of the exact search."""
    archive: ArchiveParams = field(default_factory=ArchiveParams)
    """Plans of other kinds."""
    transition: TransitionParams = field(default_factory=TransitionParams)
    """Plans that take over from a running one."""
    subsets: SubsetsParams = field(default_factory=SubsetsParams)
    """Devices to rent."""
    listed: ListedParams = field(default_factory=ListedParams)
    """Microbatches that differ."""
