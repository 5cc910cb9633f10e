"""The answer: stages on device groups, one order of actions per device, and the evidence (contract, "Documents")."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal, get_args

from planner.actions import Action, Offload
from planner.option_values import Objective, ranked_by

ProvedBy = Literal["certificate", "complete search"]

Shard = Literal["none", "optimizer", "weights", "full"]
"""What is sharded over the replicas of a stage: nothing, the optimizer's state (ZeRO-1), the weights as well, which are
gathered for runs of actions, or fully: gradients, too, and layers are gathered one by one in every action (FSDP2)."""

SHARDS: tuple[Shard, ...] = get_args(Shard)

PLAN_FORMAT = "pipeline-plan/1"

_STRICT = {"extra": "forbid"}

DeviceGroup = tuple[str, ...]
"""The devices that work on one replica together; one device is the usual case."""

ALL = Fraction(1)
"""The share of the only replica of a stage."""

FULL_RECOMPUTATION = "full"
"""The kind of recomputation that every layer has."""

RecomputeMap = tuple[tuple[str, str], ...]
"""Layers of a stage that recompute, each with the kind, in the stage's order."""

Schedule = Mapping[str, tuple[Action, ...]]
"""For every device that holds a stage, its actions in the order it runs them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A device group that runs a share of every I, or every W, of a stage that it does not hold."""

    group: DeviceGroup
    """The devices; with split placement always a single one."""
    numerator: int = 1
    """The share is `numerator` / `denominator` of every microbatch."""
    denominator: int = 1
    """See `numerator`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A convex set of layers on one or more device groups; its index in the plan is its stage number."""

    layers: tuple[str, ...]
    """Names of the layers, in the profile's topological order."""
    replicas: tuple[DeviceGroup, ...]
    """The device groups; each takes a share of every microbatch, an equal one unless `samples` says otherwise."""
    recompute: bool | RecomputeMap = False
    """Whether activations are recomputed in the backward pass; true: those of all layers, fully; or which layers do,
    and by which kind."""
    recompute_microbatches: tuple[int, ...] = ()
    """The microbatches that recompute so, ascending, where the others keep everything; empty: all of them do."""
    offload: tuple[Offload, ...] = ()
    """The microbatches that keep everything and whose stash is in host memory meanwhile, ascending."""
    shard: Shard = "none"
    """What is sharded over its replicas, where there are several."""
    samples: tuple[int, ...] = ()
    """How many samples of every microbatch each replica takes, where these are unequal; empty: equally many."""
    degrees: tuple[tuple[str, int], ...] = ()
    """What the devices of a group share, by name, with degrees above 1; empty: not stated."""
    input_grad_replicas: tuple[Share, ...] = ()
    """Split placement: who runs I; empty: the stage's own replicas."""
    weight_grad_replicas: tuple[Share, ...] = ()
    """Split placement: who runs W; empty: the stage's own replicas."""

    def share_of(self, replica: int) -> Fraction:
        """What one of its replicas takes of every microbatch."""
        if len(self.replicas) == 1:
            return ALL
        return Fraction(self.samples[replica], sum(self.samples)) if self.samples else Fraction(1, len(self.replicas))

    @property
    def is_sharded(self) -> bool:
        """Whether its replicas shard the optimizer's state."""
        return self.shard != "none" and len(self.replicas) > 1

    @property
    def is_gathered(self) -> bool:
        """Whether its replicas shard the weights, too, and gather them for runs of actions."""
        return self.shard == "weights" and len(self.replicas) > 1

    @property
    def is_fully_sharded(self) -> bool:
        """Whether its replicas shard weights, gradients and state, and gather each layer in F and again in B."""
        return self.shard == "full" and len(self.replicas) > 1

    @property
    def gathers_after_step(self) -> bool:
        """Whether its replicas gather the weights that each has stepped a part of: those that hold them whole."""
        return self.shard == "optimizer" and len(self.replicas) > 1

    @property
    def recomputed(self) -> dict[str, str]:
        """The layers that recompute, each with the kind."""
        if isinstance(self.recompute, bool):
            return dict.fromkeys(self.layers, FULL_RECOMPUTATION) if self.recompute else {}
        return dict(self.recompute)

    @property
    def keeping(self) -> "Stage | None":
        """The stage as it is for the microbatches that keep everything, where only some recompute; None: it is one."""
        return replace(self, recompute=False, recompute_microbatches=()) if self.recompute_microbatches else None

    def recomputes(self, microbatch: int) -> bool:
        """Whether a microbatch, by its number, leaves no whole stash."""
        return bool(self.recompute) and (not self.recompute_microbatches or microbatch in self.recompute_microbatches)

    def kept_of(self, count: int) -> frozenset[int]:
        """Of so many microbatches those that keep everything where others recompute."""
        return frozenset(range(count)).difference(self.recompute_microbatches or range(count))

    @property
    def is_split(self) -> bool:
        """Whether other devices run its I or its W."""
        return bool(self.input_grad_replicas or self.weight_grad_replicas)

    @property
    def groups(self) -> tuple[DeviceGroup, ...]:
        """All device groups that run its actions: its replicas first, then those named for I and for W."""
        if not self.is_split:
            return self.replicas
        shares = self.input_grad_replicas + self.weight_grad_replicas
        return tuple(dict.fromkeys([*self.replicas, *(share.group for share in shares)]))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemReference:
    """The question that a plan answers: names and hashes of its documents, and options."""

    profile: str
    """Name of the model profile."""
    profile_sha256: str
    """Its content hash."""
    cluster_sha256: str
    """Content hash of the cluster."""
    num_microbatches: int
    """Microbatches per iteration."""
    options: Mapping[str, Any]
    """The options that differ from their defaults."""
    microbatch_size: int | None = None
    """Samples per microbatch, where the planner decided on it; None: the profile's own size."""
    global_batch_size: int | None = None
    """Samples per iteration, where the question states them: `microbatch_size` x `num_microbatches`."""
    microbatch_sizes: tuple[int, ...] | None = None
    """The sizes that might be chosen, if not every measured one that divides the batch."""
    microbatches: tuple[int, ...] | None = None
    """The size of every microbatch, where the question lists them."""


NO_TIME = "not played: no time was left for it"
"""The note of a baseline that was left out for want of time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineResult:
    """What one baseline achieves on the same problem, played by the same simulator."""

    name: str
    """Method and partition, e.g. `1F1B (even layers)`."""
    makespan_ns: int | None
    """None if the method does not apply to the problem (then `note` says why)."""
    span_ns: int | None = None
    """Longest time from first to last action of a device."""
    bubble: float | None = None
    """1 - total work / (devices used x makespan)."""
    peak_fraction: float | None = None
    """Peak memory over the limit, on the device where that is largest."""
    fits_memory: bool = False
    """Whether every device stays within its memory."""
    note: str = ""
    """Why it does not apply or does not fit, in a phrase."""

    def objective_ns(self, objective: Objective) -> int | None:
        """Makespan or span, whichever ranks plans; None if the method does not apply."""
        return self.span_ns if ranked_by(objective) == "span" else self.makespan_ns

    @property
    def had_no_time(self) -> bool:
        """Whether it was left out for want of time."""
        return self.makespan_ns is None and self.note == NO_TIME


@dataclass(frozen=True, slots=True, kw_only=True)
class ImproverTally:
    """What one part of the search did."""

    name: str
    """Its name; plans that it found have it as their `source` (those of baselines have the baseline's)."""
    turns: int
    """Times that it was its turn."""
    seconds: float | None = None
    """That it took, those of all threads added up; None with `max_rounds`, so that the document is always the same."""
    improvements: int
    """Plans that it found and that were better than any before."""
    gain_ns: int
    """By how much, in all; the first plan of a run counts as no gain."""
    bounds_raised: int = 0
    """Turns after which the certified bound was higher; 0 in earlier documents, as are the next two."""
    bound_gain_ns: int = 0
    """By how much, in all; the first bound of a run counts as no gain."""
    cases_closed: int = 0
    """Cases of partition and mapping, or of a bound, that were closed on the way."""


SizeState = Literal["best", "better", "open", "closed", "infeasible"]
"""What is known of a size of microbatches: the plan has it; a faster plan of it was found, where this one is not the
fastest asked for (`--top`, or less money); a better plan may have it; its bound reaches the plan's objective; or no
plan of that size fits into memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeResult:
    """What the planner found at one of the sizes that a microbatch might have."""

    microbatch_size: int
    """Samples per microbatch."""
    num_microbatches: int
    """Microbatches per iteration."""
    state: SizeState
    """`best`, `better`, `open`, `closed` or `infeasible`."""
    objective_ns: int | None = None
    """Of the plan itself at its own size, of the best plan found at another; None if there is none."""
    lower_bound_ns: int | None = None
    """No plan of that size is below it, by its entry of the certificate; None if none fits."""
    solver_bound_ns: int | None = None
    """What a complete search of that size rules out, if it is more."""
    baseline: str = ""
    """The best baseline that fits, by its name."""
    baseline_ns: int | None = None
    """Its objective."""
    rounds: int = 0
    """Rounds of search that it was given."""
    seconds: float | None = None
    """Seconds that it was given in all; None with `max_rounds`."""
    note: str = ""
    """Why no plan fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RentalResult:
    """What an iteration costs, and what no plan costs less than, over all subsets of the devices."""

    devices: tuple[str, ...]
    """The devices among which the plan was made, and for which `lower_bound_ns`, `certificate` and `baselines` of the
    evidence hold; it may leave some of them idle."""
    price_per_hour: float
    """Sum over the devices that the plan uses."""
    cost: float
    """Money per iteration: `price_per_hour` x makespan; `certificate` is exact."""
    lower_bound: float
    """No plan that the options allow is cheaper, whatever devices it uses."""
    gap: float
    """(cost - lower bound) / cost."""
    certificate: Mapping[str, Any]
    """A bound for every subset of the devices, in millionths of the currency per hour times nanoseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known about a plan: its figures, its bound, and how it was found."""

    makespan_ns: int
    """End of the iteration."""
    span_ns: int
    """Longest time from first to last action of a device."""
    bubble: float
    """1 - total work / (devices used x makespan)."""
    peak_bytes: Mapping[str, int]
    """Peak memory of every device used."""
    lower_bound_ns: int
    """No plan that the options allow is faster; re-derivable from `certificate` without a solver."""
    bound_kind: str
    """Kind of the bound, e.g. `work` or `pipeline`."""
    certificate: Mapping[str, Any]
    """The numbers needed to recompute the bound, and under `enclosed` the profile and cluster it holds for."""
    gap: float
    """(objective - lower bound) / objective."""
    schedule_bound_ns: int | None
    """No order of actions is faster with this partition and mapping."""
    solver_bound_ns: int | None
    """A bound that a solver claims; not re-derived."""
    solution_status: str
    """`optimal` (`proved_by` says how that is known) or `feasible`."""
    stopped_by: str
    """`proof` (the certificate closes the gap), `complete_search` (no partition, mapping or order is left), `solver`
    (it claims that nothing is better), `gap`, `time`, `rounds`, `no_improvement`, `user`, `solver_failed` (the
    solver that was asked for gave no answer that holds), or `internal_error` (the search broke off)."""
    source: str
    """Which part of the planner found the plan."""
    baselines: tuple[BaselineResult, ...]
    """Every baseline on the same problem."""
    interpolated_costs: tuple[str, ...]
    """Costs that were interpolated or scaled rather than measured."""
    assumed_divisible: tuple[int, ...] | None = None
    """Stages of which several devices take equal parts of a microbatch whose size the profile does not state; None: the
    document says nothing about it (version 1)."""
    planner_version: str
    """Version of this distribution."""
    solver_versions: Mapping[str, str]
    """Versions of the solvers that took part; of one that failed, what happened."""
    seed: int
    """Seed of the search."""
    verdict: Mapping[str, Any]
    """Result of the independent verifier: `{"passed": true, "violations": []}`."""
    proved_by: ProvedBy | None = None
    """How a plan is known to be optimal: by its certificate, or by a complete search, which claims it. None if it is
    not, and in documents from before this field."""
    timings: Mapping[str, str] = field(default_factory=dict)
    """How the times were taken: `conditions` (`busy`, `alone`, `not stated`), and of `action_overhead` and
    `message_overhead` whether they were `measured`; empty in documents of earlier versions."""
    bucket_bytes: int = 0
    """The profile's `bucket_bytes`, which the executor keeps to; 0: not modelled."""
    threads: int | None = None
    """Threads that searched at once; None with `max_rounds`, where their number decides nothing, and in documents of
    earlier versions."""
    workers: int | None = None
    """Tasks that workers elsewhere did at once; None where all was done by one process, and in earlier documents."""
    worker_tasks: int | None = None
    """Tasks that they did, those that were done again counted once; None as for `workers`."""
    search_params: Mapping[str, Any] = field(default_factory=dict)
    """What steered the search otherwise than by default, by `group.field` (`pipeplan search-params`); empty in earlier
    documents."""
    improvers: tuple[ImproverTally, ...] = ()
    """What every part of the search found, in the order of their first turns; empty in earlier documents."""
    sizes: tuple[SizeResult, ...] = ()
    """Every size of microbatches among which the planner decided; empty where the number of them was given."""
    rental: RentalResult | None = None
    """Where money is minimised: what it costs, with the bound over all subsets of devices."""

    def objective_ns(self, objective: Objective) -> int:
        """Makespan or span, whichever ranks plans."""
        return self.span_ns if ranked_by(objective) == "span" else self.makespan_ns

    @property
    def objective_gap(self) -> float:
        """What is open below the figure that the question minimises: of the cost where it is that."""
        return self.gap if self.rental is None else self.rental.gap


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A complete plan; it has no times in it: those come from playing it (`planner.simulation.simulate`)."""

    __pydantic_config__ = _STRICT

    problem: ProblemReference
    """The question it answers."""
    stages: tuple[Stage, ...]
    """The stages, index = stage number."""
    dealing: tuple[tuple[int, ...], ...] = ()
    """The microbatches of every pipeline, in the order in which it begins them, where they are dealt whole: replica k
    of every stage takes those of list k; empty: every microbatch is cut over the replicas of a stage."""
    max_active_stages: int | None = None
    """Where weights are sharded: how many stages of a device are gathered at a time; None: no stage shards them."""
    schedule: Schedule
    """The order of actions on every device."""
    evidence: Evidence | None = None
    """Figures, bound and history; None while a plan is being made."""

    @property
    def shards_weights(self) -> bool:
        """Whether some device holds but a part of its weights between actions."""
        is_stated = self.max_active_stages is not None
        return is_stated or any(stage.is_gathered or stage.is_fully_sharded for stage in self.stages)

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices used, in order of stage number, each once."""
        return tuple(dict.fromkeys(name for stage in self.stages for group in stage.groups for name in group))

    def stages_held(self) -> dict[str, list[int]]:
        """By device, the numbers of the stages that it runs or has a part of."""
        held: dict[str, list[int]] = {}
        for number, stage in enumerate(self.stages):
            for device in (device for group in stage.groups for device in group):
                held.setdefault(device, []).append(number)
        return held

    def stages_in(self, pipeline: int) -> tuple[Stage, ...]:
        """The stages of one pipeline of a dealing: what it alone runs, synchronisation and shards left aside."""
        return tuple(replace(stage, replicas=(stage.replicas[pipeline],), shard="none") for stage in self.stages)
