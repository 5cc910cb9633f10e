"""Runs by construction: a plan played on a cluster some of whose devices, links or layers are slow, as traces."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from planner.actions import Action, Kind
from planner.plan import Plan, Stage
from planner.problem import Options, Problem
from planner.replanning.link_times import slow_down
from planner.replanning.observations import Observations, read_observations
from planner.simulation.simulate import simulate
from profiles.cluster import Cluster, Device, Link
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile
from tests.strategies import random_schedule


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What is slow, by how much."""

    devices: Mapping[str, float]
    links: Mapping[int, float]
    stages: Mapping[int, float]


def random_chain(rng: Random, *, num_devices: int, num_layers: int) -> Problem:
    """Layers of 0.1 to 2 ms on devices that are all connected, with transfers from short to longer than actions."""
    layers, edges = [], []
    for number in range(num_layers):
        forward, inputs, weights = (rng.randint(100_000, 2_000_000) for _ in "FIW")
        cost = LayerCost(
            device_type="gpu",
            forward_ns=forward,
            input_grad_ns=inputs,
            weight_grad_ns=weights,
            backward_ns=rng.randint(max(inputs, weights), inputs + weights),
        )
        layers.append(Layer(name=f"l{number}", costs=(cost,), parameter_bytes=rng.randint(1, 4) * 10**6))
    for number in range(num_layers - 1):
        size = rng.choice((10**4, 10**6, 4 * 10**6))
        edges.append(Edge(producer=f"l{number}", consumer=f"l{number + 1}", bytes=size))
    devices = tuple(Device(name=f"d{i}", type="gpu", memory_bytes=2**40) for i in range(num_devices))
    links = tuple(
        Link(a=f"d{j}", b=f"d{i}", bandwidth_bytes_per_s=rng.choice((10**9, 10**10)), latency_ns=rng.choice((0, 5_000)))
        for i in range(num_devices)
        for j in range(i)
    )
    return Problem(
        profile=ModelProfile(name="chain", layers=tuple(layers), edges=tuple(edges)),
        cluster=Cluster(name="cluster", devices=devices, links=links),
        num_microbatches=rng.randint(3, 8),
        options=Options(split_backward=rng.random() < 0.5, idle_devices=True),
    )


def random_running_plan(rng: Random, problem: Problem) -> Plan:
    """One stage per device in 1F1B, with replicas now and then, or two chunks per device in some order."""
    names = [layer.name for layer in problem.profile.layers]
    devices = [device.name for device in problem.cluster.devices]
    shape = rng.choice(("plain", "replicas", "chunks"))
    if shape == "chunks":
        seats = [((device,),) for device in devices] * 2
    elif shape == "replicas":
        seats, left = [], list(devices)
        while left:
            count = min(len(left), rng.choice((1, 2, 2, 3)))
            seats.append(tuple((device,) for device in left[:count]))
            left = left[count:]
    else:
        seats = [((device,),) for device in devices]
    seats = seats[: len(names)]
    cuts = [0, *sorted(rng.sample(range(1, len(names)), len(seats) - 1)), len(names)]
    stages = tuple(
        Stage(layers=tuple(names[a:b]), replicas=groups) for a, b, groups in zip(cuts, cuts[1:], seats, strict=False)
    )
    if shape == "chunks":
        schedule = random_schedule(rng, problem, stages=stages)
    else:
        schedule = {
            group[0]: _one_f_one_b(problem, number, num_stages=len(stages))
            for number, stage in enumerate(stages)
            for group in stage.replicas
        }
    return Plan(problem=problem.reference(), stages=stages, schedule=schedule)


def _one_f_one_b(problem: Problem, stage: int, *, num_stages: int) -> tuple[Action, ...]:
    count, word = problem.num_microbatches, []
    ahead = min(count, num_stages - stage)
    word += [Action("F", stage, m) for m in range(ahead)]
    for m in range(count):
        kinds: tuple[Kind, ...] = ("I", "W") if problem.options.split_backward else ("B",)
        word += [Action(kind, stage, m) for kind in kinds]
        if m + ahead < count:
            word.append(Action("F", stage, m + ahead))
    return tuple(word)


def random_truth(rng: Random, problem: Problem, plan: Plan, *, kinds: Sequence[str]) -> Truth:
    """One to three slow devices, links or stages of these kinds, of several kinds at least two; factors 1.05 to 5."""
    population = {
        "devices": list(problem.cluster.by_name),
        "links": list(range(len(problem.cluster.links))),
        "stages": list(range(len(plan.stages))),
    }
    every = [(kind, each) for kind in kinds for each in population[kind]]
    most = min(len(problem.cluster.devices), len(every)) if len(kinds) == 1 else 3
    while True:
        chosen = rng.sample(every, min(rng.randint(min(2, len(kinds)), 3), most))
        if len({kind for kind, _ in chosen}) >= min(2, len(kinds)):
            break
    factors = {key: rng.uniform(1.05, 5) for key in chosen}
    return Truth(**{kind: {e: f for (k, e), f in factors.items() if k == kind} for kind in population})


def can_be_told(plan: Plan, truth: Truth) -> bool:
    """Whether something is as planned wherever devices and stages hang together, so that products can be told apart."""
    joined: list[set[str | int]] = []
    for number, stage in enumerate(plan.stages):
        nodes: set[str | int] = {number, *(group[0] for group in stage.replicas)}
        for other in [each for each in joined if each & nodes]:
            nodes |= other
            joined.remove(other)
        joined.append(nodes)
    return not any(nodes <= {*truth.devices, *truth.stages} for nodes in joined)


def slowed(problem: Problem, plan: Plan, truth: Truth) -> Problem:
    """The problem as it really is: every device a type of its own."""
    stage_of = {name: number for number, stage in enumerate(plan.stages) for name in stage.layers}
    devices = tuple(replace(device, type=device.name) for device in problem.cluster.devices)
    layers = []
    for layer in problem.profile.layers:
        (cost,) = layer.costs
        costs = []
        for device in devices:
            factor = truth.devices.get(device.name, 1.0) * truth.stages.get(stage_of[layer.name], 1.0)
            times = {
                "forward_ns": round(cost.forward_ns * factor),
                "input_grad_ns": round(cost.input_grad_ns * factor),
                "weight_grad_ns": round(cost.weight_grad_ns * factor),
                "backward_ns": round(cost.fused_backward_ns * factor),
            }
            times["backward_ns"] = min(times["backward_ns"], times["input_grad_ns"] + times["weight_grad_ns"])
            costs.append(replace(cost, device_type=device.name, **times))
        layers.append(replace(layer, costs=tuple(costs)))
    cluster = slow_down(replace(problem.cluster, devices=devices), truth.links)
    return replace(problem, profile=replace(problem.profile, layers=tuple(layers)), cluster=cluster)


def traces(
    problem: Problem, plan: Plan, *, num_iterations: int = 3, noise: float = 0.0, rng: Random | None = None
) -> list[tuple[str, str]]:
    """What the ranks would write down if the plan were played on `problem` (the slow one), documents by name."""
    timeline = simulate(problem, plan)
    rows: dict[str, list[list[tuple[str, int, int]]]] = {device: [] for device in timeline.actions}
    times: dict[str, list[dict[str, object]]] = {device: [] for device in timeline.actions}
    for number in range(num_iterations):
        begin = 10**9 + number * 2 * timeline.makespan_ns
        stretch = 1.0 if rng is None else 1 + noise * rng.uniform(-1, 1)
        for device, word in timeline.actions.items():
            spans = [(str(a), begin + round(s * stretch), begin + round(e * stretch)) for a, s, e in word]
            mine = [n for n, stage in enumerate(plan.stages) if any(device in group for group in stage.replicas)]
            partners = {group[0] for n in mine for group in plan.stages[n].replicas}
            reduced = max(timeline.actions[other][-1].end_ns for other in partners)
            reduced = max([reduced, *(s.end_ns for s in timeline.synchronisations if s.stage in mine)])
            rows[device].append(spans)
            times[device].append(
                {
                    "taken_up_ns": [begin, *(end for _, _, end in spans[:-1])],
                    "begin_ns": begin,
                    "reduced_ns": begin + round(reduced * stretch),
                    "end_ns": begin + round((reduced + problem.profile.optimizer_ns) * stretch),
                }
            )
    return [
        (f"rank{rank}.json", json.dumps({"device": device, "iterations": rows[device], "times": times[device]}))
        for rank, device in enumerate(rows)
    ]


def read_documents(documents: Sequence[tuple[str, str]], plan: Plan) -> Observations:
    """What documents say that are given by name and text."""
    with TemporaryDirectory() as folder:
        files = [Path(folder, name) for name, _ in documents]
        for path, (_, text) in zip(files, documents, strict=True):
            path.write_text(text)
        return read_observations(files, plan)


def observe(problem: Problem, plan: Plan) -> Observations:
    """Those of a run on `problem`."""
    return read_documents(traces(problem, plan), plan)
