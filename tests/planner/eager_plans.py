"""Random problems of every shape that a refutation knows, and random plans that leave little time unused."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from random import Random

from planner.actions import Action
from planner.layout.costs import CostModel, overlaps
from planner.plan import Plan, Stage
from planner.problem import Problem
from planner.simulation.simulate import simulate
from profiles.cluster import Cluster, Device, Link
from profiles.model_profile import Edge
from tests.planner.builders import make_edge, make_layer, make_link, make_problem, make_stage
from tests.strategies import AMPLE, BANDWIDTHS, random_kinds, random_links, random_problem, random_topological_order

Task = tuple[int, int, str, int]
"""Stage, replica, kind and microbatch."""


def varied_problem(rng: Random) -> Problem:
    """One to six layers on one to five devices: any graph, few or all links, one type of devices or two."""
    problem = random_problem(rng)
    profile, shape = problem.profile, rng.choice(["as is", "tree", "direct", "direct", "few links"])
    if shape == "tree":
        names = [layer.name for layer in profile.layers]
        ends = [(a, names[rng.randint(n, len(names) - 1)]) for n, a in enumerate(names[:-1], start=1)]
        profile = replace(profile, edges=tuple(Edge(producer=a, consumer=b, bytes=rng.randint(0, 9)) for a, b in ends))
    if shape in ("direct", "few links"):
        types = sorted({device.type for device in problem.cluster.devices})
        problem = replace(problem, cluster=_cluster(rng, types, is_direct=shape == "direct"))
    options = replace(
        problem.options,
        objective="makespan",
        max_width=1,
        max_stages_per_device=rng.choice([1, 2, 2]),
        max_replicas=rng.choice([None, None, None, 1]),
    )
    return replace(problem, profile=profile, num_microbatches=rng.choice([1, 2, 3, 4, 5, 8]), options=options)


def _cluster(rng: Random, types: list[str], *, is_direct: bool) -> Cluster:
    """Two to five devices; with links between all, now and then all alike."""
    kinds = [rng.choice(types)] if rng.random() < 0.6 else types
    devices = tuple(
        Device(name=f"d{n}", type=rng.choice(kinds), memory_bytes=AMPLE, host=rng.choice(["", "host"]))
        for n in range(rng.randint(2, 5))
    )
    names = [device.name for device in devices]
    speeds = BANDWIDTHS[: rng.choice([1, 1, 2])]
    direct = tuple(
        Link(a=a, b=b, bandwidth_bytes_per_s=rng.choice(speeds), latency_ns=rng.choice([0, 1][: len(speeds)]))
        for n, a in enumerate(names)
        for b in names[n + 1 :]
    )
    return Cluster(name="cluster", devices=devices, links=direct if is_direct else random_links(rng, names))


def varied_stages(rng: Random, problem: Problem, *, costs: CostModel) -> tuple[Stage, ...]:
    """Up to five stages with any number of replicas on devices of any types, each held to the places it has."""
    order = random_topological_order(rng, problem.profile)
    position = {name: index for index, name in enumerate(problem.profile.topological_order)}
    names = [device.name for device in problem.cluster.devices]
    most = problem.options.max_stages_per_device
    while True:
        cuts = sorted(rng.sample(range(1, len(order)), rng.randint(0, min(4, len(order) - 1))))
        stages = tuple(
            Stage(
                layers=tuple(sorted(order[start:end], key=position.__getitem__)),
                replicas=tuple((name,) for name in rng.sample(names, rng.choice(problem.allowed_replicas))),
                recompute=problem.options.recompute and rng.random() < 0.3,
            )
            for start, end in zip([0, *cuts], [*cuts, len(order)], strict=True)
        )
        held = Counter(group[0] for stage in stages for group in stage.replicas)
        if max(held.values()) <= most and all(is_measured(costs, stage) for stage in stages):
            return stages


def is_measured(costs: CostModel, stage: Stage) -> bool:
    """Whether all of its layers have a cost on all of its devices."""
    return all(
        costs.layer_work(name, costs.group_type(group), width=1, replicas=len(stage.replicas)) is not None
        for group in stage.replicas
        for name in stage.layers
    )


def eager_plan(rng: Random, problem: Problem) -> Plan:
    """A plan whose devices run, again and again, one of the actions that could start first."""
    costs = CostModel(problem)
    stages = varied_stages(rng, problem, costs=costs)
    return Plan(problem=problem.reference(), stages=stages, schedule=_Eager(rng, costs, stages).schedule())


def queued_problem(rng: Random, *, num_microbatches: int) -> Problem:
    """Three or four layers that feed any later ones, on two devices: transfers last as long as actions, or longer.

    Now and then actions or transfers take no time, and the way leads through a switch.
    """
    names, least = "pqrs"[: rng.choice([3, 4, 4])], rng.choice([0, 1, 1])
    layers = [make_layer(name, (rng.randint(least, 6), rng.randint(least, 6), rng.randint(0, 3))) for name in names]
    pairs = [(a, b) for a, b in combinations(names, 2) if b == names[-1] or rng.random() < 0.6]
    edges = [
        make_edge(f"{a} {b}", num_bytes=rng.randint(least, 6), gradient_bytes=rng.choice([None, None, 0, 7]))
        for a, b in rng.sample(pairs, len(pairs))
    ]
    ways, switches = rng.choice([(["a b"], ()), (["a switch", "b switch"], ("switch",))])
    links = [make_link(ends, duplex=rng.random() < 0.8) for ends in ways]
    sizes = {"num_microbatches": num_microbatches, "max_replicas": 1, "max_stages_per_device": 2}
    return make_problem(layers, links, edges=edges, switches=switches, **sizes)


def diamond_stages() -> tuple[Stage, ...]:
    """A stage per layer: the ends of the diamond on one device, what is between them on the other."""
    return tuple(make_stage(text) for text in ("p @ a", "q @ b", "r @ b", "s @ a"))


def queued_stages(rng: Random, problem: Problem) -> tuple[Stage, ...]:
    """A stage per layer, two at most on a device."""
    names = [layer.name for layer in problem.profile.layers]
    return tuple(make_stage(f"{name} @ {at}") for name, at in zip(names, rng.sample("aabb", len(names)), strict=True))


def queued_plan(rng: Random, problem: Problem) -> Plan:
    """Such stages, in an order of actions that could start first."""
    stages = queued_stages(rng, problem)
    return Plan(problem=problem.reference(), stages=stages, schedule=_Eager(rng, CostModel(problem), stages).schedule())


def with_memory_of(rng: Random, problem: Problem, plan: Plan) -> Problem:
    """The problem with as much memory as the plan needs, and any on the devices that it leaves idle."""
    peaks = simulate(problem, plan).peak_bytes
    devices = tuple(
        replace(device, memory_bytes=max(1, peaks.get(device.name, rng.randint(1, 200))), reserved_bytes=None)
        for device in problem.cluster.devices
    )
    return replace(problem, cluster=replace(problem.cluster, devices=devices))


class _Eager:
    """A list schedule with preferences that are drawn."""

    def __init__(self, rng: Random, costs: CostModel, stages: tuple[Stage, ...]) -> None:
        self.rng, self.costs, self.stages = rng, costs, stages
        self.needs = dict[tuple[int, int, str], list[tuple[int, int, str, int]]]()
        """Per stage replica and kind: what it waits for, and for how long after its end."""
        self._connect()
        self.prefer = rng.choice(["FIBW", "IBFW", "WIBF", "IBWF"])
        self.done = dict[Task, int]()
        self.free = dict.fromkeys((group[0] for stage in stages for group in stage.replicas), 0)
        count = costs.problem.num_microbatches
        self.most = [rng.choice([count, count, len(stages) + 1 - s, 1]) for s in range(len(stages))]

    def _connect(self) -> None:
        cluster = self.costs.problem.cluster
        for (a, b), traffic in self.costs.traffic(self.stages).items():
            senders, receivers = self.stages[a].replicas, self.stages[b].replicas
            for i, j, share, whole in overlaps(len(senders), len(receivers)):
                for way, size in enumerate((traffic.forward_bytes, traffic.backward_bytes)):
                    ends = (senders[i][0], receivers[j][0])[:: 1 - 2 * way]
                    part = -(-size * share // whole)
                    route = None if ends[0] == ends[1] else cluster.route(*ends, num_bytes=part)
                    lag = 0 if route is None else route.duration_ns(part)
                    if way == 0:
                        self.needs.setdefault((b, j, "F"), []).append((a, i, "F", lag))
                    elif traffic.has_gradient:
                        self.needs.setdefault((a, i, "I"), []).append((b, j, "I", lag))

    def _tasks(self) -> Iterator[Task]:
        for number, stage in enumerate(self.stages):
            kinds = random_kinds(self.rng, self.costs.problem, stage)
            is_mixed = len(kinds) == 3 and self.rng.random() < 0.4
            for microbatch in range(self.costs.problem.num_microbatches):
                own = "FB" if is_mixed and self.rng.random() < 0.5 else kinds
                yield from ((number, r, kind, microbatch) for r in range(len(stage.replicas)) for kind in own)

    def _arrival(self, task: Task) -> int | None:
        stage, replica, kind, microbatch = task
        at = stage, replica, "I" if kind == "B" else kind
        needs = [(s, r, k, lag) for s, r, k, lag in self.needs.get(at, [])]
        needs += [(stage, replica, "F" if kind in "IB" else "I", 0)] if kind != "F" else []
        ends = [self.done.get((s, r, k, microbatch)) for s, r, k, _ in needs]
        if any(end is None for end in ends):
            return None
        return max((end + need[3] for end, need in zip(ends, needs, strict=True) if end is not None), default=0)

    def _is_full(self, task: Task) -> bool:
        """Whether the stage replica holds as many microbatches as it should."""
        stage, replica, kind, _ = task
        begun, ended = (sum(t[:3] == (stage, replica, k) for t in self.done) for k in "FI")
        return kind == "F" and begun - ended >= self.most[stage]

    def schedule(self) -> dict[str, tuple[Action, ...]]:
        """Per device, its actions in order."""
        words: dict[str, list[Action]] = {name: [] for name in self.free}
        todo = set(self._tasks())
        while todo:
            ready = [(task, at) for task in sorted(todo) if (at := self._arrival(task)) is not None]
            ranked = [
                (self._is_full(task), max(at, self.free[self._device(task)]), self.prefer.index(task[2]), task)
                for task, at in ready
            ]
            _, start, _, task = min(ranked)
            stage, replica, kind, microbatch = task
            end = start + self.costs.stage_cost(self.stages[stage], replica).duration_ns(kind)
            self.free[self._device(task)] = end
            self.done[stage, replica, "I" if kind == "B" else kind, microbatch] = end
            words[self._device(task)].append(Action(kind, stage, microbatch))
            todo.remove(task)
        return {name: tuple(word) for name, word in words.items()}

    def _device(self, task: Task) -> str:
        return self.stages[task[0]].replicas[task[1]][0]
