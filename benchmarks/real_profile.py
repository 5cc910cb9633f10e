"""From samples of layers to a problem that can be planned, and from a method's name to its plan."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.real_pool import Pool
from planner.baselines.registry import make_baselines
from planner.layout.costs import CostModel
from planner.plan import Plan
from planner.planning import Limits, make_plan
from planner.problem import Options, Problem
from profiles.cluster import Cluster, Device, Link
from profiles.documents.validation import validate
from profiles.measure.assemble import Origin
from profiles.measure.assemble import make_profile as assemble
from profiles.measure.measure_layers import Survey
from profiles.measure.record import LayerRecord, summarise
from profiles.model_profile import ModelProfile

PLENTY_BYTES = 2**36

RECEIVE_BUFFERS = 1
"""So many messages of a way are under way at once, in nearly all of these plans."""

FUSED = ("GPipe", "1F1B", "interleaved 1F1B")
"""Methods that run B alone."""

Samples = Mapping[str, Mapping[str, Sequence[int]]]
"""Per layer and phase (F, I, W, B, R) the nanoseconds of every round of one process."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What was measured beside the layers."""

    num_devices: int
    links: Mapping[int, int]
    """Nanoseconds of a message by its bytes."""
    surveys: Mapping[int, Any]
    """By the number of replicas what the first process answered to `survey`."""

    def cluster(self) -> Cluster:
        """All pairs of processes are linked alike."""
        names = [f"d{number}" for number in range(self.num_devices)]
        small, middle, large = min(self.links), sorted(self.links)[-2], max(self.links)
        extra_ns = max(1, self.links[large] - self.links[middle])
        link = {
            "bandwidth_bytes_per_s": max(10**6, (large - middle) * 10**9 // extra_ns),
            "latency_ns": self.links[small],
        }
        return Cluster(
            name=f"{self.num_devices} processes",
            devices=tuple(Device(name=name, type="cpu", memory_bytes=PLENTY_BYTES) for name in names),
            links=tuple(Link(a=a, b=b, **link) for n, a in enumerate(names) for b in names[n + 1 :]),
        )


def measure_machine(pool: Pool, *, replicas: Iterable[int], **common: Any) -> Machine:
    """Survey and links, by all processes at once; `replicas`: numbers of replicas that will be planned with."""
    return Machine(
        num_devices=pool.size,
        links={int(size): ns for size, ns in pool.ask("links", repetitions=50)[0].items()},
        surveys={
            count: pool.ask("survey", timeout_s=300, **common, replicas=count)[0] for count in sorted({1, *replicas})
        },
    )


def make_profile(
    name: str, samples: Sequence[Samples], *, machine: Machine, replicas: int, is_split: bool = True
) -> ModelProfile:
    """What `profiles.measure` makes of the survey, with the times of the rounds in place of those of layers that were
    repeated alone; `samples`: of the share of a microbatch that one of `replicas` gets, from all processes.
    """
    whole, part = machine.surveys[1], machine.surveys[replicas]
    records = {(layer, whole["size"], 1): _record(tree) for layer, tree in whole["records"].items()}
    records |= {(layer, part["size"], 1): _record(tree) for layer, tree in part["records"].items()}
    for layer in whole["takes"]:
        record = records[layer, part["size"], 1]
        phases = {phase for one in samples for phase in one[layer]}
        timings = {
            phase: summarise([ns for one in samples for ns in one[layer].get(phase, ())], None, clock="wall")
            for phase in sorted(phases)
        }
        records[layer, part["size"], 1] = replace(record, timings=record.timings | timings)
    return assemble(
        name,
        takes={layer: tuple(sources) for layer, sources in whole["takes"].items()},
        records=records,
        asked=Survey(microbatch_sizes=tuple(dict.fromkeys((whole["size"], part["size"]))), clock="wall"),
        origin=Origin(model=name, machine=whole["machine"], notes=("layers in rounds, all processes at once",)),
        is_split=is_split,
    )


def _record(tree: Any) -> LayerRecord:
    return validate(LayerRecord, tree, source="survey")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One plan to be run."""

    method: str
    """A baseline's name, or `planner`."""
    where: str = ""
    """Per stage the devices of its replicas, as `0/2 1/3`; empty: as the method, or the planner, likes it."""
    cut: tuple[int, ...] = ()
    """Layers per stage; empty: the same number in each."""
    recompute: str = ""
    """`y` or `n` per stage."""

    @property
    def is_split(self) -> bool:
        """Whether its method splits backwards."""
        return self.method not in FUSED

    @property
    def replicas(self) -> int:
        """Of every stage."""
        return 1 + self.where.split(" ")[0].count("/")

    def __str__(self) -> str:
        parts = [self.method, f"on {self.where}" if self.where else "", "-".join(map(str, self.cut))]
        return ", ".join(filter(None, [*parts, f"recompute {self.recompute}" if self.recompute else ""]))


def make_problem(case: Case, profile: ModelProfile, *, cluster: Cluster, num_microbatches: int) -> Problem:
    """The question that a case asks."""
    options = Options(
        receive_buffers=RECEIVE_BUFFERS,
        split_backward=case.is_split,
        max_replicas=case.replicas,
        uneven_replication=False,
        recompute=bool(case.recompute),
        **_layout(case, profile) if case.where else {},
    )
    return Problem(profile=profile, cluster=cluster, num_microbatches=num_microbatches, options=options)


def _layout(case: Case, profile: ModelProfile) -> dict[str, Any]:
    names, owners = list(profile.topological_order), case.where.split(" ")
    cut = case.cut or [len(names) * (n + 1) // len(owners) - len(names) * n // len(owners) for n in range(len(owners))]
    ends = [sum(cut[: n + 1]) for n in range(len(cut))]
    return {
        "partition": tuple(tuple(names[end - size : end]) for end, size in zip(ends, cut, strict=True)),
        "placement": tuple(tuple((f"d{device}",) for device in owner.split("/")) for owner in owners),
    }


def make_case_plan(case: Case, problem: Problem, *, time_limit_s: float = 3) -> Plan:
    """The plan of a case; raises ValueError if its method has none."""
    if case.method == "planner":
        plan = replace(make_plan(problem, limits=Limits(time_limit_s=time_limit_s)), evidence=None)
    else:
        rows = [row for row in make_baselines(problem, CostModel(problem)) if row.name.startswith(f"{case.method} (")]
        found = [row.plan for row in rows if row.plan is not None]
        if not found:
            raise ValueError(f"{case.method} has no plan: {rows[0].note if rows else 'unknown'}")
        plan = found[0]
    if case.recompute:
        flags: Sequence[str] = case.recompute
        stages = tuple(replace(s, recompute=f == "y") for s, f in zip(plan.stages, flags, strict=True))
        plan = replace(plan, stages=stages)
    return plan
