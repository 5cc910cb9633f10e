"""Random small problems and plans, for hypothesis (`problems`, `cases`) and for plain seeds (`random_problem`, ...).

Everything is drawn from a `random.Random`; under hypothesis it is one of `RANDOMS`.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise, product
from random import Random

from hypothesis import strategies as st

from planner.actions import Action
from planner.layout.costs import CostModel
from planner.plan import DeviceGroup, Plan, Share, Stage
from planner.problem import Options, Problem
from profiles.cluster import Cluster, Device, Link, MessageTime
from profiles.held_once import HeldOnce
from profiles.host_times import HostTime
from profiles.model_profile import ActionOverhead, Edge, Layer, LayerCost, ModelProfile, WidthBytes

AMPLE = 2**40
"""More memory than any plan here needs."""

BANDWIDTHS = (10**9, 2 * 10**9, 5 * 10**8, 3 * 10**8)
"""A byte takes 1, 0.5, 2 or 10/3 nanoseconds."""


RANDOMS = st.one_of(st.integers(0, 2**32 - 1).map(Random), st.randoms(use_true_random=False))
"""Plain seeds, whose choices are spread evenly, and recorded choices, which hypothesis can simplify."""


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Problems of every kind the model knows, with ample memory and permissive options."""
    return random_problem(draw(RANDOMS))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Problem, Plan]:
    """Problems with a valid plan each."""
    rng = draw(RANDOMS)
    problem = random_problem(rng)
    return problem, random_plan(rng, problem)


@st.composite
def chain_problems(
    draw: st.DrawFn, *, max_layers: int = 6, max_devices: int = 3, max_microbatches: int = 3, tight: bool = True
) -> Problem:
    """Chains small enough for `tests.planner.brute_force.brute_force`: one stage per device, no replicas."""
    rng = draw(RANDOMS)
    return random_chain(rng, sizes=(max_layers, max_devices, max_microbatches), tight=tight)


@st.composite
def tiny_problems(draw: st.DrawFn) -> Problem:
    """Problems of every kind that `tests.planner.brute_force` knows: graphs, replicas, two stages per device."""
    return tiny_problem(draw(RANDOMS))


def tiny_problem(rng: Random) -> Problem:
    """At most three layers, two devices, two microbatches, with everything that a problem may have but groups."""
    problem = random_problem(rng)
    layers = problem.profile.layers[: rng.randint(1, 3)]
    names = {layer.name for layer in layers}
    edges = tuple(edge for edge in problem.profile.edges if {edge.producer, edge.consumer} <= names)
    memory = rng.choice([10**6, 10**6, rng.randint(20, 120)])
    devices = tuple(replace(device, memory_bytes=memory) for device in problem.cluster.devices[:2])
    links = random_links(rng, [device.name for device in devices])
    options = replace(
        problem.options,
        max_stages_per_device=rng.randint(1, 2),
        max_width=1,
        recompute=problem.options.recompute and rng.random() < 0.3,
    )
    return Problem(
        profile=replace(problem.profile, layers=layers, edges=edges),
        cluster=Cluster(name="cluster", devices=devices, links=links, overlap=problem.cluster.overlap),
        num_microbatches=rng.randint(1, 2),
        options=options,
    )


def random_chain(rng: Random, *, sizes: tuple[int, int, int], tight: bool) -> Problem:
    """A chain with at most `sizes` layers, devices and microbatches; `tight`: memory often binds."""
    types = ("fast", "slow")[: rng.randint(1, 2)]
    layers = tuple(
        random_layer(rng, f"l{i}", types=types, widths=(1,), size=1) for i in range(rng.randint(1, sizes[0]))
    )
    needed = sum(layer.state_bytes for layer in layers) + sizes[2] * sum(layer.stash_bytes for layer in layers)
    num_devices = rng.randint(1, sizes[1])
    devices = tuple(
        Device(
            name=f"d{i}",
            type=rng.choice(types),
            memory_bytes=rng.randint(max(1, needed // num_devices), needed + 1) if tight else AMPLE,
        )
        for i in range(num_devices)
    )
    edges = tuple(Edge(producer=f"l{i}", consumer=f"l{i + 1}", bytes=rng.randint(0, 8)) for i in range(len(layers) - 1))
    return Problem(
        profile=ModelProfile(name="chain", layers=layers, edges=edges, microbatch_size=1),
        cluster=Cluster(name="cluster", devices=devices, links=random_links(rng, [d.name for d in devices])),
        num_microbatches=rng.randint(1, sizes[2]),
        options=Options(max_stages_per_device=1, max_replicas=1, receive_buffers=rng.randint(0, 2)),
    )


def random_problem(rng: Random) -> Problem:
    """A chain or a graph of up to six layers on up to four devices, with everything the model knows."""
    types = ("fast", "slow")[: rng.randint(1, 2)]
    widths = (1, 2) if rng.random() < 0.3 else (1,)
    size = rng.choice([None, 1, 2, 4, 6, 12])
    layers = tuple(random_layer(rng, f"l{i}", types=types, widths=widths, size=size) for i in range(rng.randint(1, 6)))
    return Problem(
        profile=ModelProfile(
            name="profile",
            layers=layers,
            edges=random_edges(rng, [layer.name for layer in layers]),
            microbatch_size=size,
            scaling=rng.choice([None, "linear", "measured"]),
            optimizer_ns=rng.choice([0, 0, 5]),
            stages_optimizer_ns=Random(f"stages of {drawn_from(layers)}").choice([0, 0, 4]),
            action_overhead_ns=random_overheads(types, like=layers),
            bucket_bytes=random_bucket(layers),
            gradient_as_bucket_view=draws_bucket_views(layers),
            reduction_bytes=random_reduction(layers),
        ),
        cluster=random_cluster(rng, types),
        num_microbatches=rng.randint(1, 4),
        options=Options(
            split_backward=rng.random() < 0.8,
            max_stages_per_device=6,
            max_width=max(widths),
            recompute=rng.random() < 0.5,
            receive_buffers=rng.randint(0, 2),
            synchronisation=rng.choice(["after", "bucketed"]),
            objective=rng.choice(["makespan", "makespan", "span"]),
            keep_workspace=draws_workspace(layers),
        ),
    )


def drawn_from(layers: Sequence[Layer]) -> str:
    """What further draws depend on: all of the layers but their exchanges and the optimizer's steps."""
    return re.sub(r", (forward_exchanges|backward_exchanges|optimizer_ns)=\d+", "", without_kinds(layers))


def without_kinds(drawn: object) -> str:
    """Layers or costs as text, without kinds of recomputation and host times, of which those drawn here have none."""
    text = repr(drawn)
    for later in (", recompute_kinds=()", ", host=()", ", fixed_workspace_bytes=0"):
        text = text.replace(later, "")
    return text


def random_bucket(layers: Sequence[Layer]) -> int:
    """Bytes of a bucket, often none, drawn from the layers so that other draws stay as they are."""
    return Random(f"bucket of {drawn_from(layers)}").choice([0, 0, 2, 30])


def random_reduction(layers: Sequence[Layer]) -> int:
    """Bytes that any reduction holds, mostly none, drawn from the layers so that other draws stay as they are."""
    return Random(f"reduction of {drawn_from(layers)}").choice([0, 0, 0, 4])


def with_shared(problem: Problem) -> Problem:
    """The problem in which most layers hold some bytes together with one before them."""
    layers = [problem.profile.by_name[name] for name in problem.profile.topological_order]
    rng, found = Random(f"shared by {drawn_from(layers)}"), []
    for place, layer in enumerate(layers[1:], start=1):
        names = ("state_bytes", "stash_bytes", "weight_stash_bytes")
        sizes = {name: rng.randint(0, getattr(layer, name)) for name in names}
        first = rng.choice(layers[max(0, place - 2) : place]).name
        found += [HeldOnce(first=first, second=layer.name, **sizes)] if rng.random() < 0.7 else []
    return replace(problem, profile=replace(problem.profile, held_once=tuple(found)))


def draws_bucket_views(layers: Sequence[Layer]) -> bool:
    """Whether gradients lie in their buckets, drawn from the layers so that other draws stay as they are."""
    return Random(f"views of {drawn_from(layers)}").random() < 0.3


def draws_turns(layers: Sequence[Layer]) -> bool:
    """Whether layers recompute in turn, drawn from the layers so that other draws stay as they are."""
    return Random(f"turns of {drawn_from(layers)}").random() < 0.5


def draws_workspace(layers: Sequence[Layer]) -> bool:
    """Whether I keeps its workspace, drawn from the layers so that other draws stay as they are."""
    return Random(f"workspace of {drawn_from(layers)}").random() < 0.3


def random_layer(rng: Random, name: str, *, types: Iterable[str], widths: Sequence[int], size: int | None) -> Layer:
    """A layer, now and then without weights or frozen, measured on every type and width at the size of a microbatch.

    Now and then at others too, and not at the same ones everywhere.
    """
    parameter_bytes = rng.choice([0, 3, 8, 20])
    frozen = rng.random() < 0.15
    has_weight_grad = parameter_bytes > 0 and not frozen
    exchanges = random_exchanges(name, (parameter_bytes, frozen, size))
    others = [] if size is None else [s for s in (1, 2, 3, 8) if s != size]
    some = rng.sample(others, min(len(others), rng.choice([0, 0, 1, 2])))
    sizes = {
        (device_type, width): [None, *(some if rng.random() < 0.9 else some[:1])]
        for device_type in types
        for width in widths
    }
    costs = tuple(
        random_cost(rng, where=(device_type, width, measured), has_weight_grad=has_weight_grad)
        for (device_type, width), measured_there in sizes.items()
        for measured in measured_there
    )
    return Layer(
        name=name,
        parameter_bytes=parameter_bytes,
        frozen=frozen,
        costs=with_steps(costs, name=name) if has_weight_grad else costs,
        wider=tuple(WidthBytes(width=width, **random_bytes(rng, has_weight_grad)) for width in widths if width > 1),
        forward_exchanges=exchanges[0],
        backward_exchanges=exchanges[1],
        **random_bytes(rng, has_weight_grad),
    )


def with_steps(costs: Sequence[LayerCost], *, name: str) -> tuple[LayerCost, ...]:
    """Costs with optimizer's steps, now and then none, drawn so that other draws stay as they are."""
    if Random(f"whether {name} steps of {without_kinds(costs)}").random() < 0.5:
        return tuple(costs)
    steps = {cost.device_type: Random(f"step of {name} {without_kinds(cost)}").choice([0, 1, 3, 15]) for cost in costs}
    return tuple(replace(cost, optimizer_ns=steps[cost.device_type]) for cost in costs)


def random_exchanges(*like: object) -> tuple[int, int]:
    """Exchanges in F and on the way back, now and then none, drawn so that other draws stay as they are."""
    rng = Random(f"exchanges of {without_kinds(like)}")
    return (rng.randint(0, 2), rng.randint(0, 2)) if rng.random() < 0.8 else (0, 0)


def random_overheads(types: Iterable[str], *, like: Sequence[Layer]) -> tuple[ActionOverhead, ...]:
    """Overheads on some of the types, now and then none, drawn from the layers so that other draws stay as they are."""
    rng = Random(drawn_from(like))
    chosen = [name for name in types if rng.random() < 0.6]
    drawn = [(name, rng.randint(0, 4), rng.randint(0, 4), rng.randint(0, 4)) for name in chosen]
    return tuple(
        ActionOverhead(
            device_type=name,
            forward_ns=forward,
            input_grad_ns=input_grad,
            weight_grad_ns=weight_grad,
            backward_ns=rng.randint(0, input_grad + weight_grad),
            exchange_ns=Random(f"exchange on {name} of {rng.getstate()!r}").randint(0, 3),
            **random_stage_overhead(f"stages on {name} of {rng.getstate()!r}"),
        )
        for name, forward, input_grad, weight_grad in drawn
    )


def random_stage_overhead(like: str) -> dict[str, int]:
    """What plans of several stages add, now and then nothing, drawn so that other draws stay as they are."""
    rng = Random(like)
    if rng.random() < 0.4:
        return {}
    found = {f"stages_{name}_ns": rng.randint(0, 3) for name in ("forward", "input_grad", "weight_grad")}
    most = found["stages_input_grad_ns"] + found["stages_weight_grad_ns"]
    return {**found, "stages_backward_ns": rng.randint(0, most)}


def with_host_times(rng: Random, problem: Problem) -> Problem:
    """The problem where the host asks for actions on some device types, now and then without its part of a B.

    Devices compute while they send.
    """
    types = {name for name in problem.cluster.device_types if rng.random() < 0.8} or {problem.cluster.device_types[0]}
    layers = tuple(
        replace(
            layer,
            costs=tuple(
                replace(cost, host=random_host(rng, cost)) if cost.device_type in types else cost
                for cost in layer.costs
            ),
        )
        for layer in problem.profile.layers
    )
    return replace(
        problem,
        profile=replace(problem.profile, layers=layers),
        cluster=replace(problem.cluster, overlap=True),
    )


def random_host(rng: Random, cost: LayerCost) -> tuple[HostTime, ...]:
    """What the host takes for each action of a cost, mostly less than the card."""
    actions = [*("FIWB" if rng.random() < 0.7 else "FIW"), "full", *(entry.kind for entry in cost.recompute_kinds)]
    card = {"F": cost.forward_ns, "I": cost.input_grad_ns, "W": cost.weight_grad_ns, "B": cost.fused_backward_ns}
    found = []
    for action in actions:
        host = rng.choice([0, rng.randint(0, 4), rng.randint(0, 20)])
        first = rng.choice([0, rng.randint(0, host)])
        last = min(rng.choice([0, 0, 2]), card.get(action, 0))
        found.append(HostTime(action=action, host_ns=host, first_ns=first, last_ns=last))
    return tuple(found)


def scaled_overheads(profile: ModelProfile, factor: int) -> tuple[ActionOverhead, ...]:
    """Those of a profile, `factor` times as long."""
    return tuple(
        replace(
            each,
            forward_ns=factor * each.forward_ns,
            input_grad_ns=factor * each.input_grad_ns,
            weight_grad_ns=factor * each.weight_grad_ns,
            backward_ns=factor * each.backward_ns,
            exchange_ns=factor * each.exchange_ns,
            stages_forward_ns=factor * each.stages_forward_ns,
            stages_input_grad_ns=factor * each.stages_input_grad_ns,
            stages_weight_grad_ns=factor * each.stages_weight_grad_ns,
            stages_backward_ns=factor * each.stages_backward_ns,
            sharded_forward_ns=factor * each.sharded_forward_ns,
            sharded_backward_ns=factor * each.sharded_backward_ns,
        )
        for each in profile.action_overhead_ns
    )


def random_cost(rng: Random, *, where: tuple[str, int, int | None], has_weight_grad: bool) -> LayerCost:
    """Times from 0 to 9 ns, so that ties abound; sometimes a fused backward that saves something."""
    input_grad, weight_grad = rng.randint(0, 9), rng.randint(0, 9) if has_weight_grad else 0
    return LayerCost(
        device_type=where[0],
        width=where[1],
        microbatch_size=where[2],
        forward_ns=rng.randint(0, 9),
        input_grad_ns=input_grad,
        weight_grad_ns=weight_grad,
        backward_ns=rng.choice([None, None, rng.randint(0, input_grad + weight_grad)]),
        recompute_ns=rng.randint(0, 5),
    )


def random_bytes(rng: Random, has_weight_grad: bool) -> dict[str, int]:
    """The byte fields of a layer."""
    stash = rng.randint(0, 12)
    return {
        "state_bytes": rng.randint(0, 20),
        "stash_bytes": stash,
        "weight_stash_bytes": rng.randint(0, stash) if has_weight_grad else 0,
        "checkpoint_bytes": rng.randint(0, stash),
        "workspace_bytes": rng.choice([0, 0, 7]),
    }


def random_edges(rng: Random, names: Sequence[str]) -> tuple[Edge, ...]:
    """A chain, or a graph in which some edges skip layers and others are missing."""
    is_chain = rng.random() < 0.4
    pairs = [
        (a, b)
        for a in range(len(names))
        for b in range(a + 1, len(names))
        if (b == a + 1 and (is_chain or rng.random() < 0.7)) or (not is_chain and rng.random() < 0.25)
    ]
    return tuple(
        Edge(
            producer=names[a],
            consumer=names[b],
            bytes=rng.randint(0, 9),
            gradient_bytes=rng.choice([None, None, 0, rng.randint(0, 9)]),
        )
        for a, b in pairs
    )


def random_cluster(rng: Random, types: Sequence[str]) -> Cluster:
    """Up to four devices of one or two types; links may be few, shared, slow, or go through a switch or a host."""
    devices = tuple(
        Device(name=f"d{i}", type=rng.choice(types), memory_bytes=AMPLE, host=rng.choice(["", "host"]))
        for i in range(rng.randint(1, 4))
    )
    ends = [device.name for device in devices]
    switches = ("switch",) if rng.random() < 0.3 else ()
    inner = [*switches, *sorted({device.host for device in devices} - {""})]
    links = random_links(rng, [*ends, *(end for end in inner if rng.random() < 0.6)])
    return Cluster(name="cluster", devices=devices, links=links, switches=switches, overlap=rng.random() < 0.75)


def random_links(rng: Random, ends: Sequence[str]) -> tuple[Link, ...]:
    """A random tree over all ends, and some links more."""
    order = list(ends)
    rng.shuffle(order)
    pairs = [(order[rng.randrange(i)], order[i]) for i in range(1, len(order))]
    pairs += [
        (a, b)
        for index, a in enumerate(ends)
        for b in ends[index + 1 :]
        if rng.random() < 0.4 and (a, b) not in pairs and (b, a) not in pairs
    ]
    overheads = Random(repr(pairs))
    return tuple(
        Link(
            a=a,
            b=b,
            bandwidth_bytes_per_s=rng.choice(BANDWIDTHS),
            latency_ns=rng.choice([0, 0, 1, 4]),
            duplex=rng.random() < 0.7,
            message_overhead_ns=overheads.choice([None, None, 0, 3]),
        )
        for a, b in pairs
    )


def with_message_times(rng: Random, problem: Problem) -> Problem:
    """The same question with links, or some of them, that state what messages of some sizes take."""
    links = []
    for link in problem.cluster.links:
        points = list[MessageTime]()
        for size in sorted(rng.sample(range(1, 40), rng.choice([0, 1, 2, 3]))):
            least = link.latency_ns - (-size * 10**9 // link.bandwidth_bytes_per_s) + rng.choice([0, 0, 3, 11])
            points.append(MessageTime(bytes=size, time_ns=max([least, *(point.time_ns for point in points[-1:])])))
        links.append(replace(link, message_times=tuple(points)))
    return replace(problem, cluster=replace(problem.cluster, links=tuple(links)))


def random_plan(rng: Random, problem: Problem) -> Plan:
    """A plan that can be played to its end: random stages, groups and orders."""
    stages = random_stages(rng, problem)
    return Plan(problem=problem.reference(), stages=stages, schedule=random_schedule(rng, problem, stages=stages))


def random_stages(rng: Random, problem: Problem) -> tuple[Stage, ...]:
    """A random topological order cut into stages, each on random groups of devices of one width, as the costs allow."""
    order = random_topological_order(rng, problem.profile)
    position = {name: index for index, name in enumerate(problem.profile.topological_order)}
    cuts = sorted(rng.sample(range(1, len(order)), rng.randint(0, min(3, len(order) - 1))))
    costs = CostModel(problem)
    return tuple(
        Stage(
            layers=tuple(sorted(order[start:end], key=position.__getitem__)),
            replicas=random_groups_for(rng, costs, order[start:end]),
            recompute=problem.options.recompute and rng.random() < 0.5,
        )
        for start, end in zip([0, *cuts], [*cuts, len(order)], strict=True)
    )


def random_topological_order(rng: Random, profile: ModelProfile) -> list[str]:
    """The layers in an order in which every edge points forward."""
    producers: dict[str, set[str]] = {layer.name: set() for layer in profile.layers}
    for edge in profile.edges:
        producers[edge.consumer].add(edge.producer)
    order: list[str] = []
    while len(order) < len(producers):
        order.append(rng.choice([n for n in producers if n not in order and producers[n] <= set(order)]))
    return order


def random_groups_for(rng: Random, costs: CostModel, names: Sequence[str]) -> tuple[DeviceGroup, ...]:
    """Random groups on which all of these layers have costs; a single device always does."""
    for _ in range(20):
        groups = random_groups(rng, costs.problem)
        places = {(costs.group_type(group), len(group)) for group in groups}
        if len(groups) in costs.problem.allowed_replicas and all(
            costs.layer_work(name, device_type, width=width, replicas=len(groups)) is not None
            for name in names
            for device_type, width in places
        ):
            return groups
    return ((rng.choice(costs.problem.cluster.devices).name,),)


def random_groups(rng: Random, problem: Problem) -> tuple[DeviceGroup, ...]:
    """One to three groups of one or two devices; the devices of a group are of one type."""
    width = rng.randint(1, problem.options.max_width)
    left = list(problem.cluster.devices)
    rng.shuffle(left)
    groups: list[DeviceGroup] = []
    wanted = rng.choice([1, 1, 1, 2, 2, 3])
    while left and len(groups) < wanted:
        first = left.pop()
        mates = [device for device in left if device.type == first.type][: width - 1]
        if len(mates) == width - 1:
            groups.append((first.name, *(mate.name for mate in mates)))
            left = [device for device in left if device not in mates]
    return tuple(groups) or ((rng.choice(problem.cluster.devices).name,),)


def random_schedule(rng: Random, problem: Problem, *, stages: tuple[Stage, ...]) -> dict[str, tuple[Action, ...]]:
    """Orders that arise from running, again and again, a random action whose inputs are there."""
    seats = [(s, r) for s, stage in enumerate(stages) for r in range(len(stage.replicas))]
    forward, backward = _links_between(problem, stages)
    words: dict[str, list[Action]] = {d: [] for stage in stages for group in stage.replicas for d in group}
    todo = {
        (s, r, Action(kind, s, m))
        for s, r in seats
        for m in range(problem.num_microbatches)
        for kind in random_kinds(rng, problem, stages[s])
    }
    finished = {(s, r, m, kind): False for s, r in seats for m in range(problem.num_microbatches) for kind in "FI"}
    while todo:
        ready = [
            (s, r, action)
            for s, r, action in sorted(todo)
            if _is_ready((s, r, action), finished, needs=(forward, backward))
        ]
        s, r, action = rng.choice(ready)
        todo.remove((s, r, action))
        if action.kind != "W":
            finished[s, r, action.microbatch, "F" if action.kind == "F" else "I"] = True
        for device in stages[s].replicas[r]:
            words[device].append(action)
    return {device: tuple(word) for device, word in words.items()}


def random_kinds(rng: Random, problem: Problem, stage: Stage) -> str:
    """F with I alone, with B, or with I and W, as the stage and the options allow."""
    if not any(problem.profile.by_name[name].is_trainable for name in stage.layers):
        return "FI"
    return "FIW" if problem.options.split_backward and rng.random() < 0.7 else "FB"


Seats = dict[tuple[int, int], list[tuple[int, int]]]


def _links_between(problem: Problem, stages: Sequence[Stage]) -> tuple[Seats, Seats]:
    """For every (stage, replica): those whose F it needs, and those whose I it needs."""
    stage_of = {name: number for number, stage in enumerate(stages) for name in stage.layers}
    forward: Seats = {(s, r): [] for s, stage in enumerate(stages) for r in range(len(stage.replicas))}
    backward: Seats = {seat: [] for seat in forward}
    for edge in problem.profile.edges:
        a, b = stage_of[edge.producer], stage_of[edge.consumer]
        if a != b:
            for (i, made), (j, used) in product(*(enumerate(_ranges(stages[s])) for s in (a, b))):
                if max(made[0], used[0]) < min(made[1], used[1]):
                    forward[b, j].append((a, i))
                    if edge.has_gradient:
                        backward[a, i].append((b, j))
    return forward, backward


def _ranges(stage: Stage) -> list[tuple[Fraction, Fraction]]:
    """Where the samples of every replica begin and end, in parts of a microbatch."""
    parts = stage.samples or (1,) * len(stage.replicas)
    return [
        (Fraction(sum(parts[:r]), sum(parts)), Fraction(sum(parts[: r + 1]), sum(parts))) for r in range(len(parts))
    ]


@st.composite
def unequal_cases(draw: st.DrawFn) -> tuple[Problem, Plan]:
    """Problems with a valid plan each, in which the replicas of some stages take unequal shares of the samples."""
    return random_unequal_case(draw(RANDOMS))


def random_unequal_case(rng: Random) -> tuple[Problem, Plan]:
    """A random plan whose stages take random shares, where their layers have costs for these."""
    problem = random_problem(rng)
    problem = replace(problem, options=replace(problem.options, unequal_shares=True))
    stages = tuple(random_shares(rng, problem, stage) for stage in random_stages(rng, problem))
    return problem, Plan(
        problem=problem.reference(), stages=stages, schedule=random_schedule(rng, problem, stages=stages)
    )


def random_shares(rng: Random, problem: Problem, stage: Stage) -> Stage:
    """The stage on random groups, which take unequal shares of the samples where that is possible."""
    size, costs = problem.profile.microbatch_size or 1, CostModel(problem)
    for _ in range(8):
        groups = random_groups(rng, problem)
        if 1 < len(groups) <= size:
            ends = [0, *sorted(rng.sample(range(1, size), len(groups) - 1)), size]
            samples = tuple(b - a for a, b in pairwise(ends))
            if len(set(samples)) > 1 and all(
                costs.layer_work(name, costs.group_type(group), width=len(group), replicas=Fraction(size, taken))
                is not None
                for name in stage.layers
                for group, taken in zip(groups, samples, strict=True)
            ):
                return replace(stage, replicas=groups, samples=samples)
    return stage


@st.composite
def split_cases(draw: st.DrawFn) -> tuple[Problem, Plan]:
    """Problems with a valid plan each, in which some stages run their I or W on other devices."""
    rng = draw(RANDOMS)
    problem = random_problem(rng)
    options = replace(problem.options, split_placement=True, split_backward=True, keep_workspace=False)
    problem = replace(problem, options=options)
    stages = tuple(random_split(rng, problem, stage) for stage in random_stages(rng, problem))
    return problem, Plan(
        problem=problem.reference(), stages=stages, schedule=random_split_schedule(rng, problem, stages=stages)
    )


def random_split(rng: Random, problem: Problem, stage: Stage) -> Stage:
    """The stage on one device, most of the time, with other devices for its I, or halves of it, and for its W."""
    owner = stage.replicas[0][:1]
    others = [(device.name,) for device in problem.cluster.devices if (device.name,) != owner]
    if not others or rng.random() < 0.2:
        return stage
    has_weights = any(problem.profile.by_name[name].is_trainable for name in stage.layers)
    first = rng.choice(others)
    second = rng.choice([owner, *(group for group in others if group != first)])
    cut = rng.choice([(1, 2), (1, 2), (1, 3), (2, 3)])
    halves = [
        Share(group=first, numerator=cut[0], denominator=cut[1]),
        Share(group=second, numerator=cut[1] - cut[0], denominator=cut[1]),
    ]
    rng.shuffle(halves)
    if not all(can_take(problem, stage, share) for share in halves):
        halves = [Share(group=first)]
    return Stage(
        layers=stage.layers,
        replicas=(owner,),
        input_grad_replicas=rng.choice([(), (Share(group=first),), tuple(halves), tuple(halves)]),
        weight_grad_replicas=(Share(group=rng.choice(others)),) if has_weights and rng.random() < 0.6 else (),
    )


def can_take(problem: Problem, stage: Stage, share: Share) -> bool:
    """Whether a share of I of the stage is whole samples, and was measured where it would run."""
    part, costs = Fraction(share.numerator, share.denominator), CostModel(problem)
    return problem.profile.is_whole(part) and all(
        costs.layer_work(name, costs.group_type(share.group), width=1, replicas=1 / part) is not None
        for name in stage.layers
    )


def random_split_schedule(rng: Random, problem: Problem, *, stages: tuple[Stage, ...]) -> dict[str, tuple[Action, ...]]:
    """Orders that arise from running random actions once everything before them, on whatever devices, has been run."""
    stage_of = {name: number for number, stage in enumerate(stages) for name in stage.layers}
    pairs = {(stage_of[e.producer], stage_of[e.consumer], e.has_gradient) for e in problem.profile.edges}
    todo = [
        (group, Action(kind, number, microbatch))
        for number, stage in enumerate(stages)
        for microbatch in range(problem.num_microbatches)
        for group, kind in random_work(rng, problem, stage)
    ]
    words: dict[str, list[Action]] = {device: [] for stage in stages for group in stage.groups for device in group}

    def is_ready(action: Action) -> bool:
        kind, number, microbatch = action
        if kind == "F":
            needed = {("F", a) for a, b, _ in pairs if b == number != a}
        elif kind == "W":
            needed = {("I", number)}
        else:
            needed = {("F", number)} | {("I", b) for a, b, has_gradient in pairs if a == number != b and has_gradient}
        left = {("I" if other.kind == "B" else other.kind, other.stage) for _, other in todo if other[2] == microbatch}
        return not needed & left

    while todo:
        group, action = rng.choice([item for item in todo if is_ready(item[1])])
        todo.remove((group, action))
        for device in group:
            words[device].append(action)
    return {device: tuple(word) for device, word in words.items()}


def random_work(rng: Random, problem: Problem, stage: Stage) -> list[tuple[DeviceGroup, str]]:
    """Which groups run which kinds for one microbatch."""
    if not stage.is_split:
        return [(group, kind) for group in stage.replicas for kind in random_kinds(rng, problem, stage)]
    has_weights = any(problem.profile.by_name[name].is_trainable for name in stage.layers)
    owner = [Share(group=stage.replicas[0])]
    return [
        *((share.group, "F") for share in owner),
        *((share.group, "I") for share in stage.input_grad_replicas or owner),
        *((share.group, "W") for share in (stage.weight_grad_replicas or owner) if has_weights),
    ]


def _is_ready(
    item: tuple[int, int, Action], finished: dict[tuple[int, int, int, str], bool], *, needs: tuple[Seats, Seats]
) -> bool:
    stage, replica, action = item
    if action.kind == "F":
        return all(finished[s, r, action.microbatch, "F"] for s, r in needs[0][stage, replica])
    if action.kind == "W":
        return finished[stage, replica, action.microbatch, "I"]
    own = finished[stage, replica, action.microbatch, "F"]
    return own and all(finished[s, r, action.microbatch, "I"] for s, r in needs[1][stage, replica])


def with_memory(problem: Problem, memory_bytes: dict[str, int]) -> Problem:
    """The same problem with other usable memory on some devices, beside a reserve of 7 bytes."""
    devices = tuple(
        replace(device, memory_bytes=memory_bytes[device.name] + 7, reserved_bytes=7)
        if device.name in memory_bytes
        else device
        for device in problem.cluster.devices
    )
    return replace(problem, cluster=replace(problem.cluster, devices=devices))


def with_reference(problem: Problem, plan: Plan) -> Plan:
    """The same plan as an answer to `problem`."""
    return replace(plan, problem=problem.reference())
