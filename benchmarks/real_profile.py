"""From samples of layers to a problem that can be planned, and from a method's name to its plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from planner.baselines.portfolio import make_baselines
from planner.costs import CostModel
from planner.plan import Plan
from planner.planning import Limits, make_plan
from planner.problem import Options, Problem
from profiles.cluster import Cluster, Device, Link
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile

MICROBATCH_SIZE = 4
"""What profiles call a microbatch; replicas take a half or a quarter of it."""

PLENTY_BYTES = 2**36


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What was measured beside the layers."""

    num_devices: int
    links: Mapping[int, int]
    """Nanoseconds of a message by its bytes."""
    sizes: Mapping[str, Mapping[str, int]]
    """Bytes of every layer."""
    optimizer_ns: int
    """Of all layers together."""

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


def make_profile(name: str, times: Mapping[str, Mapping[str, int]], *, machine: Machine, replicas: int) -> ModelProfile:
    """`times`: medians per layer and phase, of the microbatch's share of one of `replicas`."""
    layers = tuple(
        _make_layer(layer, times[layer], sizes=machine.sizes[layer], replicas=replicas) for layer in machine.sizes
    )
    edges = tuple(Edge(producer=a, consumer=b, bytes=machine.sizes[a]["output"]) for a, b in pairwise(machine.sizes))
    return ModelProfile(
        name=name,
        layers=layers,
        edges=edges,
        microbatch_size=MICROBATCH_SIZE,
        optimizer_ns=machine.optimizer_ns // machine.num_devices if replicas == 1 else machine.optimizer_ns,
    )


def _make_layer(name: str, times: Mapping[str, int], *, sizes: Mapping[str, int], replicas: int) -> Layer:
    cost = LayerCost(
        device_type="cpu",
        microbatch_size=MICROBATCH_SIZE // replicas,
        forward_ns=times["F"],
        input_grad_ns=times["I"],
        weight_grad_ns=times["W"] if sizes["parameters"] else 0,
        backward_ns=min(times["B"], times["I"] + (times["W"] if sizes["parameters"] else 0)),
        recompute_ns=max(0, times["R"] - times["B"]) if "R" in times else times["F"],
    )
    return Layer(
        name=name,
        costs=(cost,),
        parameter_bytes=sizes["parameters"],
        state_bytes=2 * sizes["parameters"],
        stash_bytes=sizes["stash"],
        weight_stash_bytes=sizes["weight_stash"],
        checkpoint_bytes=min(sizes["input"], sizes["stash"]),
        workspace_bytes=sizes["workspace"],
    )


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
    def replicas(self) -> int:
        """Of every stage."""
        return 1 + self.where.split(" ")[0].count("/")

    def __str__(self) -> str:
        parts = [self.method, f"on {self.where}" if self.where else "", "-".join(map(str, self.cut))]
        return ", ".join(filter(None, [*parts, f"recompute {self.recompute}" if self.recompute else ""]))


def make_problem(case: Case, profile: ModelProfile, *, cluster: Cluster, num_microbatches: int) -> Problem:
    """The question that a case asks."""
    options = Options(
        receive_buffers=num_microbatches,
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
