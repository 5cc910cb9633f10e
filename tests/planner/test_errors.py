"""Where no plan is found, what is known of why is said: before the search where no search can mend it."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from planner.errors import InfeasibleProblemError, NoPlanFoundError
from planner.export.targets import TARGETS, restrict_problem
from planner.planning import Limits
from planner.problem import Options, PinnedLayer, Problem
from profiles.model_profile import WidthBytes
from tests.planner.builders import make_edge, make_layer, make_link, make_problem
from tests.planner.hasty import make_plan

ROUND = Limits(time_limit_s=30, max_rounds=1)
ROOT = Path(__file__).parents[2]
LINKS = [make_link("d0 d1"), make_link("d1 d2"), make_link("d2 d3")]


def named(*names: str, edges: list[str] | None = None, **rest: object) -> Problem:
    """A chain, or what `edges` says, of layers of these names on four devices."""
    layers = [make_layer(name) for name in names]
    given = {"microbatch_size": 4, "num_microbatches": 4} | rest
    if edges is not None:
        given["edges"] = [make_edge(ends) for ends in edges]
    return make_problem(layers, LINKS, **given)


def blocks(count: int, **rest: object) -> Problem:
    """So many blocks of a transformer."""
    return named(*(f"block{number}" for number in range(count)), **rest)


def cut_in(problem: Problem, stages: int, *, devices: str = "") -> Problem:
    """One layer per stage, on devices of these numbers where they are given."""
    partition = tuple((layer.name,) for layer in problem.profile.layers)
    assert len(partition) == stages
    placement = tuple(((f"d{number}",),) for number in devices) or None
    return replace(problem, options=replace(problem.options, partition=partition, placement=placement))


def pinned(problem: Problem, where: str) -> Problem:
    """The first layers on devices of these numbers, each stage on one."""
    pins = tuple(
        PinnedLayer(layer=layer.name, device=f"d{number}")
        for layer, number in zip(problem.profile.layers, where, strict=False)
    )
    return replace(problem, options=replace(problem.options, pinned=pins, max_replicas=1, max_stages_per_device=1))


HEAD_FIRST = named("head", "block0", "block1")
BACKWARDS = named("block1", "block0", edges=["block0 block1"])
TWO_HEADS = cut_in(named("embedding", "block0", "norm", "head"), 4)
MTP = named("embedding", "block0", "mtp0", "head")
HUGE = named("block0", "block1", memory_bytes=1)


@pytest.mark.parametrize(
    ("target", "problem", "words"),
    [
        *((name, HEAD_FIRST, f"target {name}: the layers are 'ELtt' by their names") for name in
          ("megatron", "torchtitan")),
        *((name, BACKWARDS, f"target {name}: the stages take layer 'block0' where the model has 'block1'") for name in
          ("megatron", "deepspeed", "torchtitan")),
        *((name, TWO_HEADS, "the layers of .*head are in several stages") for name in ("megatron", "torchtitan")),
        ("torchtitan", MTP, "does not support multi-token prediction"),
        ("megatron", cut_in(blocks(6, num_microbatches=5, max_stages_per_device=3), 6), "partition has 6 stages"),
        ("megatron", cut_in(blocks(4), 4, devices="0123"), ""),
        ("megatron", cut_in(blocks(4), 4, devices="0110"), "stage 2 is on 'd1', but a loop of 2 ranks"),
        ("deepspeed", cut_in(blocks(4), 4, devices="0110"), "stage 2 is on 'd1', but a loop of 2 ranks"),
        *((name, blocks(1, microbatch_size=3, idle_devices=False, max_width=1), "cut into whole samples") for name in
          (*TARGETS, None)),
        *((name, pinned(blocks(4), "010"), "pinned to device 'd0' are in 2 stages at least") for name in
          (*TARGETS, None)),
        *((name, HUGE, "but the largest device has 1") for name in (*TARGETS, None)),
    ],
)  # fmt: skip
def test_what_no_search_mends_is_said_before_it(target: str | None, problem: Problem, words: str):
    """Tests that names, orders, stages, pins, samples and memory that rule out every plan are named at once."""
    if words.startswith("but the largest"):
        layers = tuple(replace(layer, state_bytes=2) for layer in problem.profile.layers)
        problem = replace(problem, profile=replace(problem.profile, layers=layers))
    program = None if target is None else TARGETS[target]
    asked = problem if program is None else restrict_problem(problem, program)
    heard: list[str] = []

    def plan() -> None:
        make_plan(asked, limits=ROUND, target=program, on_progress=lambda progress: heard.append(progress.phase))

    if not words:
        plan()
        return
    with pytest.raises(InfeasibleProblemError, match=words) as refusal:
        plan()
    assert not heard
    assert "time" not in str(refusal.value)


def test_pinned_layers_need_room_together():
    """Tests that layers pinned to one device that hold more state than it has are named, and fewer of them are not."""
    layers = [make_layer(f"l{number}", state_bytes=40, workspace_bytes=5) for number in range(4)]
    problem = make_problem(layers, LINKS, memory_bytes=130)
    pins = tuple(PinnedLayer(layer=f"l{number}", device="d2") for number in (0, 2, 3))
    for fit, memory in ((True, 125), (False, 124)):
        devices = tuple(
            replace(each, memory_bytes=memory if each.name == "d2" else 130) for each in problem.cluster.devices
        )
        asked = replace(
            problem,
            cluster=replace(problem.cluster, devices=devices),
            options=replace(problem.options, pinned=pins, max_stages_per_device=4, receive_buffers=0),
        )
        if fit:
            assert "d2" in make_plan(asked, limits=ROUND).devices
            continue
        words = r"'d2' needs at least 125 bytes for the 3 layers that are pinned to it \('l0', 'l2', 'l3'\), .* has 124"
        with pytest.raises(InfeasibleProblemError, match=words):
            make_plan(asked, limits=ROUND)


def on_one_rank() -> Problem:
    """Three stages that are on one of two devices, or no loop: Megatron interleaves on two ranks or more."""
    layers = [make_layer(f"block{number}") for number in range(3)]
    return cut_in(make_problem(layers, LINKS[:1], num_microbatches=4, max_stages_per_device=3, max_replicas=1), 3)


def warm_up_too_large() -> Problem:
    """A forward ahead, as 1F1B has it on the first of two ranks, does not fit; one microbatch after another does."""
    layers = [make_layer(f"block{number}", stash_bytes=10, state_bytes=5) for number in range(2)]
    return make_problem(
        layers, LINKS[:1], num_microbatches=4, memory_bytes=18, max_replicas=1, receive_buffers=0, idle_devices=False
    )


@pytest.mark.parametrize(
    ("target", "make", "words"),
    [
        ("megatron", on_one_rank, r"plans? w.* dropped: .*(one rank holds 3 stages|a multiple of 2 ranks)"),
    ],
)
def test_what_the_search_learned_is_said(target: str, make: Callable[[], Problem], words: str):
    """Tests that where a search ends without a plan, it says what plans were dropped for, or that none has room."""
    problem = make()
    assert make_plan(problem, limits=ROUND).stages
    with pytest.raises(NoPlanFoundError, match=words) as refusal:
        make_plan(restrict_problem(problem, TARGETS[target]), limits=ROUND, target=TARGETS[target])
    assert "nothing that is known" not in str(refusal.value)
    assert "time" not in str(refusal.value)


@pytest.mark.parametrize("target", ["megatron", "deepspeed"])
def test_a_warm_up_without_room_is_refuted(target: str):
    """Tests that programs whose first forwards have no room are told so by a bound, with the bytes, before a search."""
    problem = warm_up_too_large()
    assert make_plan(problem, limits=ROUND).stages
    with pytest.raises(InfeasibleProblemError, match=r"memory: the cuts bound rules out .* 18 usable bytes"):
        make_plan(restrict_problem(problem, TARGETS[target]), limits=ROUND, target=TARGETS[target])


def test_only_wider_layers_are_named_with_the_target():
    """Tests that layers measured on groups alone are refused for a program without groups, by name and width."""
    layer, problem = make_layer("block0"), named("block0")
    costs = tuple(replace(cost, width=2) for cost in layer.costs)
    wide = replace(layer, costs=costs, wider=(WidthBytes(width=2, state_bytes=0, stash_bytes=0),))
    asked = replace(problem, profile=replace(problem.profile, layers=(wide,)), options=Options(max_width=2))
    with pytest.raises(ValueError, match=r"target deepspeed: layer 'block0' was measured at width 2 only, .* width 1"):
        restrict_problem(asked, TARGETS["deepspeed"])


def test_no_message_tells_to_wait():
    """Tests that no message about a plan that was not found says that more time may help."""
    found = [
        (path.name, line.strip())
        for path in (ROOT / "api" / "failures.py", *(ROOT / "planner").rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"more time|longer --?time|time[- ]limit may", line)
    ]
    assert not found
