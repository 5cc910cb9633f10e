"""Statements of a question that exclude each other are refused with both, before anything is searched."""

from dataclasses import replace
from random import Random

import pytest

from api.failures import Exit, describe_failure
from planner.batch_problem import BatchProblem
from planner.errors import ContradictionError, InfeasibleProblemError, NoPlanFoundError
from planner.option_conflicts import require_consistent
from planner.planning import Limits
from planner.problem import Options, PinnedLayer, Problem
from planner.verify import verify
from profiles.cluster import Cluster, Device, Link
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile, WidthBytes
from tests.long_runs import shortened
from tests.planner.hasty import make_plan


def pins(**device_of: str) -> tuple[PinnedLayer, ...]:
    return tuple(PinnedLayer(layer=layer, device=device) for layer, device in device_of.items())


def question(
    types: str = "gg", *, widths: dict[str, tuple[int, ...]] | None = None, size: int | None = 4, **options: object
) -> Problem:
    """Layers a, b and c in a chain with an edge from a to c, on devices d0, d1 ... of these types, all linked."""
    layers = tuple(
        Layer(
            name=name,
            parameter_bytes=1,
            state_bytes=1,
            costs=tuple(
                LayerCost(device_type=kind, width=width, forward_ns=10, input_grad_ns=10, weight_grad_ns=10)
                for kind in "gh"
                for width in (widths or {}).get(name, (1,))
            ),
            wider=tuple(
                WidthBytes(width=width, state_bytes=1, stash_bytes=0)
                for width in (widths or {}).get(name, ())
                if width > 1
            ),
        )
        for name in "abc"
    )
    edges = tuple(Edge(producer=pair[0], consumer=pair[1], bytes=1) for pair in ("ab", "bc", "ac"))
    names = [f"d{number}" for number in range(len(types))]
    devices = tuple(Device(name=name, type=kind, memory_bytes=1000) for name, kind in zip(names, types, strict=True))
    links = tuple(Link(a=a, b=b, bandwidth_bytes_per_s=10**9) for a in names for b in names if a < b)
    return Problem(
        profile=ModelProfile(name="p", layers=layers, edges=edges, microbatch_size=size, scaling="linear"),
        cluster=Cluster(name="c", devices=devices, links=links),
        num_microbatches=2,
        options=Options(**options),  # type: ignore[arg-type]
    )


def placed(*groups: str, **options: object) -> dict[str, object]:
    """A partition into ab and c, each on groups of devices by number: `01` is two replicas, `0+1` one of two."""
    placement = tuple(
        tuple(tuple(f"d{number}" for number in group.split("+")) for group in stage.split()) for stage in groups
    )
    partition = {1: (("a", "b", "c"),), 2: (("a", "b"), ("c",)), 3: (("a",), ("b",), ("c",))}[len(groups)]
    return {"partition": partition, "placement": placement, **options}


ONE, TWO, EACH = (("a", "b", "c"),), (("a", "b"), ("c",)), (("a",), ("b",), ("c",))
WIDE = {"a": (2,), "b": (1, 2), "c": (1,)}

CONTRADICTIONS: dict[str, tuple[Problem, tuple[str, str]]] = {
    "an edge back": (question(partition=(("a", "c"), ("b",))), ("partition", "edge from 'b' to 'c'")),
    "stages turned round": (question(partition=(("c",), ("a", "b"))), ("partition", "edge from")),
    "an empty stage": (question(partition=(*ONE, ())), ("partition", "stage 1 no layers")),
    "an edge that skips": (question(partition=EACH, skip_edges=False), ("partition", "skip_edges = false")),
    "more stages than room": (question("g", partition=EACH), ("3 stages", "max_stages_per_device = 2")),
    "no device": (question(partition=ONE, placement=((),)), ("partition", "placement")),
    "an empty group": (question(partition=ONE, placement=(((),),)), ("partition", "placement")),
    "a device twice": (question(**placed("0 0")), ("placement", "'d0' twice")),
    "a device twice in a group": (question(**placed("0+0"), max_width=2), ("placement", "'d0' twice")),
    "mixed types": (question("gh", **placed("0+1"), max_width=2), ("placement", "types g and h")),
    "mixed widths": (question("ggg", **placed("0 1+2"), max_width=2), ("placement", "1 and 2 devices")),
    "too wide": (question(**placed("0+1")), ("placement", "max_width = 1")),
    "not measured so wide": (question(**placed("0+1"), max_width=2), ("placement", "layer 'a' of that stage")),
    "replicas": (question(**placed("0 1", max_replicas=1)), ("placement", "max_replicas = 1")),
    "uneven": (
        question("ggggg", **placed("0 1", "2 3 4"), uneven_replication=False, size=6),
        ("placement", "uneven_replication = false"),
    ),
    "crowded": (
        question(**placed("0", "1", "0"), max_stages_per_device=1), ("placement", "max_stages_per_device = 1")
    ),
    "idle as placed": (question(**placed("0"), idle_devices=False), ("placement", "idle_devices = false")),
    "idle by stages": (
        question("gggg", partition=ONE, idle_devices=False, max_replicas=2), ("1 stages", "idle_devices = false")
    ),
    "idle by pins": (
        question("gg", partition=ONE, idle_devices=False, pinned=pins(a="d0")), ("pinned", "idle_devices = false")
    ),
    "idle by pins of one device": (
        question("ggg", idle_devices=False, pinned=pins(a="d0", b="d0", c="d2")),
        ("pinned leaves 3 one replica, on d0, d2", "idle_devices = false"),
    ),
    "idle by pins of stages": (
        question("ggg", idle_devices=False, partition=EACH, pinned=pins(a="d0", b="d1", c="d1")),
        ("pinned leaves 3 one replica, on d0, d1", "idle_devices = false"),
    ),
    "idle by pins of groups": (
        question(
            "gggg", idle_devices=False, max_width=2, widths={"a": (1, 2)}, pinned=pins(a="d0", b="d0", c="d1")
        ),
        ("pinned leaves 3 one replica, on d0, d1", "idle_devices = false"),
    ),
    "idle by layers": (question("gggg", idle_devices=False, max_replicas=1), ("3 layers", "idle_devices = false")),
    "pinned elsewhere": (question(**placed("0", "1"), pinned=pins(a="d1")), ("pinned", "placement")),
    "pinned and replicated": (question(**placed("0 1"), pinned=pins(b="d1")), ("pinned", "placement")),
    "pinned apart": (question(partition=TWO, pinned=pins(a="d0", b="d1")), ("pinned", "partition")),
    "pinned together": (
        question(partition=EACH, pinned=pins(a="d0", c="d0"), max_stages_per_device=1),
        ("pinned", "max_stages_per_device = 1"),
    ),
    "pinned in turn": (
        question(pinned=pins(a="d0", b="d1", c="d0"), max_stages_per_device=1),
        ("pinned", "max_stages_per_device = 1"),
    ),
    "no common width": (question(widths=WIDE, max_width=2, partition=ONE), ("partition", "max_width = 2")),
    "listed sizes": (
        replace(question("ggg", **placed("0", "1 2")), microbatches=(3, 2)), ("placement", "microbatches")
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_both_statements_are_named(name: str):
    """Tests that statements that exclude each other are refused as a mistake of the input that names both."""
    problem, statements = CONTRADICTIONS[name]
    with pytest.raises(ContradictionError, match=r"^options: ") as refusal:
        make_plan(problem, limits=Limits(max_rounds=0))
    assert all(each in str(refusal.value) for each in statements), str(refusal.value)
    assert describe_failure(refusal.value).code == Exit.USAGE
    assert refusal.match(";")


CONSISTENT = {
    "nothing decided": question(),
    "stages in order": question(partition=EACH),
    "replicas of all": question(**placed("0 1")),
    "a group": question(**placed("0+1"), max_width=2, widths={"a": (1, 2), "b": (2,), "c": (2,)}),
    "as many stages as fit": question(**placed("0", "1", "0")),
    "pinned where it is placed": question(**placed("0", "1"), pinned=pins(a="d0", c="d1")),
    "two pins on a group": question(
        partition=ONE, pinned=pins(a="d0", b="d1"), max_width=2, widths=dict.fromkeys("abc", (2,))
    ),
    "pins in turn with room": question(pinned=pins(a="d0", b="d1", c="d0")),
    "pins on every device": question("ggg", idle_devices=False, pinned=pins(a="d0", b="d1", c="d2")),
    "pins, and a layer on the rest": question("ggg", idle_devices=False, pinned=pins(a="d0", b="d0")),
    "pins of a group": question(
        "ggg", idle_devices=False, max_width=2, widths={"a": (1, 2)}, pinned=pins(a="d0", b="d2", c="d2")
    ),
    "helpers are not idle": question(**placed("0"), idle_devices=False, split_placement=True),
    "dealt whole": replace(question(**placed("0 1")), microbatches=(3, 2)),
    "cut at every size": replace(question("ggg", **placed("0", "1 2")), microbatches=(4, 2)),
}


@pytest.mark.parametrize("name", CONSISTENT)
def test_what_can_be_is_not_refused(name: str):
    """Tests that the neighbours of contradictions that do have a plan pass."""
    require_consistent(CONSISTENT[name])


def test_a_size_that_is_possible_suffices():
    """Tests that an open size of microbatches is refused only if the statements exclude each other at every size."""
    base = question("ggg", idle_devices=False, max_replicas=3, partition=ONE)
    batch = BatchProblem(
        profile=base.profile, cluster=base.cluster, global_batch_size=12, microbatch_sizes=(2, 3), options=base.options
    )
    require_consistent(batch)
    with pytest.raises(ContradictionError, match="idle_devices"):
        require_consistent(replace(batch, microbatch_sizes=(2, 4)))


def drawn(rng: Random) -> Problem:
    """A question with a few statements that may exclude each other."""
    options: dict[str, object] = {"max_stages_per_device": rng.choice([1, 2])}
    stages = rng.choice([ONE, TWO, EACH])
    if rng.random() < 0.7:
        options["partition"] = stages
        if rng.random() < 0.6:
            options["placement"] = tuple(
                tuple((name,) for name in rng.sample(["d0", "d1", "d2"], rng.choice([1, 1, 2]))) for _ in stages
            )
    if rng.random() < 0.5:
        options["pinned"] = pins(
            **{name: rng.choice(["d0", "d1"]) for name in rng.sample("abc", rng.choice([1, 2, 3]))}
        )
    for name in ("idle_devices", "skip_edges", "uneven_replication"):
        options[name] = rng.random() < 0.7
    return question("ggg", **options, max_replicas=rng.choice([None, 1, 2]))


@pytest.mark.slow
def test_what_is_left_is_planned_or_said_to_have_none():
    """Tests that questions without a contradiction get a plan that passes, or are said to have none."""
    planned = 0
    for seed in range(shortened(10, whole=1_000)):
        problem = drawn(Random(seed))
        try:
            plan = make_plan(problem, limits=Limits(max_rounds=1, time_limit_s=60))
        except (InfeasibleProblemError, NoPlanFoundError):
            continue
        planned += 1
        assert verify(problem, plan).passed, seed
    assert planned > 2
