"""Plans run by the executor on gloo processes, against the same training in one process."""

import json
import os
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from planner.actions import Action, parse_action
from planner.baselines.layouts import EVEN
from planner.baselines.registry import METHODS, make_method_plan
from planner.document import render_plan
from planner.execute.table.layout import make_layout
from planner.layout.costs import CostModel
from planner.plan import Plan
from planner.problem import Options
from planner.progress import Limits
from profiles.model_profile import Edge
from tests.integration.forked_ranks import Rank, run_forked
from tests.long_runs import IS_LONG, shortened
from tests.planner.execute.orders import make_random_plan
from tests.planner.export import chains
from tests.planner.hasty import make_plan
from tests.planner.offloads import random_offloads

WORKER = Path(__file__).parents[3] / "integration/execute_worker.py"

SAMPLES = 12
"""Of a microbatch of `execute_models`, which imports torch: three seconds for every process that collects tests."""

TOLERANCES = {"float64": 1e-12, "bfloat16": 2.0**-6}
"""Relative to the largest gradient, where sums are added up in another order; where the order is the same, 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A plan that the processes run, and what they train."""

    plan: Plan
    kinds: str
    """A letter per layer."""
    model: str = "vectors"
    """Which of `execute_models`."""
    then: Plan | None = None
    """The plan under which it goes on from a checkpoint after the first iteration."""
    steps: int = 2
    dtype: str = "float64"
    fully_shard: bool = False
    """Whether stages that shard hold their parts only."""

    @property
    def plans(self) -> list[Plan]:
        """The plan, and the one under which it goes on."""
        return [self.plan] if self.then is None else [self.plan, self.then]

    @property
    def is_exact(self) -> bool:
        """Every gradient is added up in the order of the microbatches, by one process: no bit may differ."""
        if self.model.startswith(("tied", "clipped", "compiled")) or any(
            len(stage.replicas) > 1 for plan in self.plans for stage in plan.stages
        ):
            return False
        if self.model in ("skipping", "branching"):
            return False  # what the consumers of a tensor want of it is added up stage by stage
        if self.model == "last_channels":
            return False  # a sent gradient lies as its tensor does, one that stays as the layer behind it made it
        return all(is_added_up_in_order(plan) for plan in self.plans)


def is_added_up_in_order(plan: Plan) -> bool:
    for number in range(len(plan.stages)):
        order = [a.microbatch for word in plan.schedule.values() for a in word if a.stage == number and a.kind in "WB"]
        if order != sorted(order):
            return False
    return True


def named(case: Case, *names: str) -> Case:
    """The same plan for layers of other names."""
    old = [layer for stage in case.plan.stages for layer in stage.layers]
    new = dict(zip(old, names, strict=True))
    stages = tuple(replace(stage, layers=tuple(map(new.__getitem__, stage.layers))) for stage in case.plan.stages)
    return replace(case, plan=replace(case.plan, stages=stages))


def drawn(placement: str, *, kinds: str = "", cut: tuple[int, ...] | None = None, **more: Any) -> Case:
    """A plan as `make_random_plan` makes it; unless `kinds` says otherwise every layer is a block."""
    own = {key: more.pop(key) for key in ("model", "steps", "dtype", "then") if key in more}
    kinds = kinds or "w" * sum(cut or [1] * len(placement.split()))
    return Case(plan=make_random_plan(placement, kinds=kinds, cut=cut, **more), kinds=kinds, **own)


def sharded(*arguments: Any, **more: Any) -> Case:
    """As `drawn`; replicas shard the optimizer's state."""
    case = drawn(*arguments, **more)
    then = None if case.then is None else shard(case.then)
    return replace(case, plan=shard(case.plan), then=then)


def by_layer(case: Case) -> Case:
    """The same plan with every other layer of every stage recomputing, which the stages say layer by layer."""
    maps = [tuple((name, "full") for name in stage.layers[::2]) for stage in case.plan.stages]
    stages = tuple(replace(stage, recompute=own) for stage, own in zip(case.plan.stages, maps, strict=True))
    return replace(case, plan=replace(case.plan, stages=stages))


def by_microbatch(case: Case) -> Case:
    """The same plan with every other microbatch of the stages that recompute keeping everything."""
    count = case.plan.problem.num_microbatches
    listed = [
        tuple(range(number % 2, count, 2)) if each.recompute else () for number, each in enumerate(case.plan.stages)
    ]
    pairs = zip(case.plan.stages, listed, strict=True)
    stages = tuple(replace(stage, recompute_microbatches=own) for stage, own in pairs)
    return replace(case, plan=replace(case.plan, stages=stages))


def offloaded(case: Case) -> Case:
    """The same plan with every stash that is kept and can travel in host memory meanwhile."""
    plan = random_offloads(Random(1), case.plan, count=case.plan.problem.num_microbatches, share=1)
    assert any(stage.offload for stage in plan.stages)
    return replace(case, plan=plan)


def with_samples(case: Case, *samples: tuple[int, ...]) -> Case:
    """The same plan with so many samples for the replicas of each stage."""
    stages = tuple(replace(stage, samples=own) for stage, own in zip(case.plan.stages, samples, strict=True))
    return replace(case, plan=replace(case.plan, stages=stages))


def shard(plan: Plan) -> Plan:
    """The same plan with every replicated stage's optimizer state sharded."""
    stages = tuple(replace(each, shard="optimizer" if len(each.replicas) > 1 else "none") for each in plan.stages)
    return replace(plan, stages=stages)


def by_method(name: str, *, num_devices: int, num_microbatches: int, num_layers: int = 8, **more: Any) -> Case:
    """What a published method makes of a chain."""
    problem = chains.make_chain("w" * num_layers, num_devices=num_devices, num_microbatches=num_microbatches)
    method = next(method for method in METHODS if method.name == name)
    return Case(plan=make_method_plan(CostModel(problem), method, cut=EVEN), kinds="w" * num_layers, **more)


def anywhere(seed: int) -> Case:
    """Four stages, each with one to four replicas on any of four devices, in a random order; every other one with
    edges that skip stages."""
    rng = random.Random(seed)
    edges = SKIPS if seed % 2 else "0-1 1-2 2-3"
    groups = ["0/1/2/3", *("/".join(map(str, rng.sample(range(4), rng.choice([1, 2, 3, 4])))) for _ in range(3))]
    rng.shuffle(groups)
    return drawn(
        " ".join(groups),
        cut=(1, 2, 1, 1),
        num_microbatches=rng.randint(2, 5),
        model="skipping" if seed % 2 else "vectors",
        edges=edges,
        seed=seed,
    )


def planned(*, is_branching: bool) -> Case:
    """What the planner makes of stages that are decided: uneven replicas of a chain, or branches."""
    if is_branching:
        partition: tuple[tuple[str, ...], ...] = (("l0",), ("l1", "l2"), ("l3",), ("l4",))
        options = Options(
            max_stages_per_device=3, max_replicas=1, partition=partition, placement=as_placement("0 0 1 0")
        )
        ends = [("l0", "l1"), ("l1", "l2"), ("l0", "l3"), ("l2", "l4"), ("l3", "l4")]
    else:
        partition = (("l0", "l1"), ("l2", "l3", "l4"))
        options = Options(max_stages_per_device=2, partition=partition, placement=as_placement("0/1 1"))
        ends = [(f"l{number}", f"l{number + 1}") for number in range(4)]
    problem = chains.make_chain("wwwww", num_devices=2, num_microbatches=4, options=options)
    edges = tuple(Edge(producer=a, consumer=b, bytes=100) for a, b in ends)
    problem = replace(problem, profile=replace(problem.profile, edges=edges, microbatch_size=SAMPLES))
    plan = make_plan(problem, limits=Limits(time_limit_s=60, max_rounds=1))
    return Case(plan=plan, kinds="wwwww", model="branching" if is_branching else "vectors")


def as_placement(text: str) -> tuple[tuple[tuple[str, ...], ...], ...]:
    """As `0/1 1`."""
    return tuple(tuple((f"d{device}",) for device in stage.split("/")) for stage in text.split())


def methods(num_devices: int, *counts: int) -> dict[str, Case]:
    names = ["GPipe", "1F1B", "interleaved 1F1B", "ZB-H1", "ZB-H2", "ZB-V"]
    return {
        f"{name}, {count} microbatches": by_method(name, num_devices=num_devices, num_microbatches=count)
        for name in names
        for count in counts
        if not (name == "interleaved 1F1B" and count % num_devices)
    }


def crossed() -> Case:
    """Two replicas of two stages on one device each, of which the second puts off another weight gradient."""
    case = drawn("0/1 0/1", num_microbatches=1)
    late = tuple(sorted(case.plan.schedule["d1"], key=lambda action: (action.kind == "W", action == Action("W", 1, 0))))
    return replace(case, plan=replace(case.plan, schedule=case.plan.schedule | {"d1": late}))


def blocked() -> Case:
    """Rank 0 takes microbatch 0 first, rank 1 microbatch 1."""
    case = drawn("0 1 0", num_microbatches=2)
    rows = {"d0": "0F0 2F0 0F1 2F1 2B0 2B1 0B0 0B1", "d1": "1F1 1F0 1B0 1B1"}
    schedule = {device: tuple(map(parse_action, row.split())) for device, row in rows.items()}
    return replace(case, plan=replace(case.plan, schedule=schedule))


SKIPS = "0-1 1-2 2-3 0-3"
"""The stages of `execute_models.skipping`, cut 1 2 1 1."""
BRANCHES = "0-1 0-2 1-3 2-3"
"""Those of `execute_models.branching`, cut 1 2 1 1."""

TWO = methods(2, 3, 4) | {
    "one microbatch": drawn("0 1", num_microbatches=1),
    "V of six layers": drawn("0 1 1 0", cut=(1, 2, 2, 1), num_microbatches=5),
    "adjacent and revisited": drawn("0 0 1 0 1 1", num_microbatches=3),
    "whole backward": drawn("0 1 0 1", num_microbatches=4, backward="B"),
    "uneven stages": drawn("1 0", cut=(4, 1), num_microbatches=4),
    "random order": drawn("0 1 0 1", num_microbatches=4, seed=1),
    "a compiled layer": drawn("0 1 0 1", num_microbatches=4, seed=1, model="compiled"),
    "a compiled layer, recomputed": drawn("0 1", num_microbatches=2, recompute="ny", model="compiled"),
    "random order, V": drawn("0 1 1 0", num_microbatches=4, seed=2),
    "random order, last stage out of order": drawn("1 0", num_microbatches=6, seed=7),
    "frozen in front": drawn("0 1 1", kinds="fffww", cut=(2, 2, 1), num_microbatches=3),
    "frozen in front, a stage of it elsewhere": drawn("0 1 0", kinds="fnw", num_microbatches=3),
    "frozen between": drawn("0 1 0 1", kinds="wfnw", num_microbatches=3),
    "nothing to train at the end": drawn("0 1 1", kinds="wwn", num_microbatches=4),
    "recomputation": drawn("0 1", cut=(2, 3), num_microbatches=4, recompute="yn"),
    "recomputation layer by layer": by_layer(drawn("0 1 0", cut=(3, 2, 2), num_microbatches=4)),
    "recomputation of some microbatches": by_microbatch(
        drawn("0 1 0", cut=(3, 2, 2), num_microbatches=4, recompute="yyn", seed=5)
    ),
    "GPT, some microbatches recomputed": by_microbatch(
        drawn("0 1", cut=(2, 2), num_microbatches=3, model="gpt", recompute="yy", backward="B")
    ),
    "activations in host memory": offloaded(drawn("0 1 0", cut=(3, 2, 2), num_microbatches=4, seed=5)),
    "GPT, activations in host memory or recomputed": offloaded(
        by_microbatch(drawn("0 1", cut=(2, 2), num_microbatches=4, model="gpt", recompute="yy", backward="B"))
    ),
    "recomputation everywhere, V": drawn("0 1 1 0", num_microbatches=4, recompute="yyyy", seed=3),
    "bfloat16": drawn("0 1", cut=(2, 2), num_microbatches=4, model="bfloat16", dtype="bfloat16"),
    "bfloat16, random order": drawn("0 1 0", num_microbatches=4, model="bfloat16", seed=4, dtype="bfloat16"),
    "autocast": drawn("0 1", cut=(2, 2), num_microbatches=2, model="autocast"),
    "sum of losses": drawn("0 1", num_microbatches=4, model="summed"),
    "skip edges": drawn("0 1 0 1", cut=(1, 2, 1, 1), kinds="wwwww", num_microbatches=3, model="skipping"),
    "skip edges in one stage": drawn("0 1", cut=(4, 1), kinds="wwwww", num_microbatches=2, model="skipping"),
    "skip edges, recomputed": drawn("0 1 0", cut=(2, 2, 1), num_microbatches=2, model="skipping", recompute="yyy"),
    "tied across processes": drawn("0 1", cut=(2, 2), num_microbatches=4, model="tied"),
    "tied within a process": drawn("0 1 0", cut=(2, 1, 1), num_microbatches=4, model="tied"),
    "tied within replicas, then across": drawn(
        "0/1",
        cut=(4,),
        num_microbatches=4,
        steps=3,
        backward="B",
        model="clipped_tied",
        then=make_random_plan("1 0", cut=(2, 2), num_microbatches=4),
    ),
    "tied across processes, then within": drawn(
        "0 1",
        cut=(2, 2),
        num_microbatches=4,
        steps=3,
        model="tied_gpt",
        then=make_random_plan("0/1", cut=(4,), num_microbatches=4, backward="B"),
    ),
    "LoRA": drawn("0 1 0 1", num_microbatches=4, model="adapted", seed=6),
    "LoRA, recomputed, two replicas": drawn("0/1", cut=(3,), num_microbatches=3, model="adapted", recompute="y"),
    "GPT": drawn("0 1 0 1", cut=(1, 2, 1, 1), num_microbatches=4, model="gpt"),
    "GPT, head tied to embedding": drawn("0 1", cut=(2, 3), num_microbatches=4, model="tied_gpt"),
    "GPT, recomputed": drawn("0 1", cut=(2, 2), num_microbatches=3, model="gpt", recompute="yy"),
    "convolutions": drawn("0 1", cut=(2, 2), num_microbatches=4, model="images"),
    "channels last": drawn("0 1 0", cut=(2, 1, 1), num_microbatches=4, model="last_channels"),
    "channels last, replicated": drawn("0/1 0", cut=(2, 2), num_microbatches=2, model="last_channels"),
    "data parallel": drawn("0/1", cut=(3,), num_microbatches=3),
    "data parallel, two stages each": drawn("0/1 0/1", cut=(2, 2), num_microbatches=4),
    "data parallel, sum of losses": drawn("0/1", num_microbatches=2, model="summed"),
    "views between stages": drawn("0 1 0 1", kinds="vsvw", num_microbatches=3),
    "skip edges, random order": drawn(
        "0 1 0 1", cut=(1, 2, 1, 1), num_microbatches=4, model="skipping", edges=SKIPS, seed=8
    ),
    "skip edges, whole backward": drawn(
        "0 1 1 0", cut=(1, 2, 1, 1), num_microbatches=4, model="skipping", edges=SKIPS, backward="B"
    ),
    "branches": drawn("0 0 1 0", cut=(1, 2, 1, 1), num_microbatches=4, model="branching", edges=BRANCHES),
    "branches, random order": drawn(
        "1 0 1 0", cut=(1, 2, 1, 1), num_microbatches=5, model="branching", edges=BRANCHES, seed=9
    ),
    "branches, one frozen": drawn(
        "0 0 1 1", kinds="wwwfw", cut=(1, 2, 1, 1), num_microbatches=3, model="branching", edges=BRANCHES
    ),
    "branches, recomputed": drawn(
        "0 0 1 0", cut=(1, 2, 1, 1), num_microbatches=3, model="branching", edges=BRANCHES, recompute="ynyy"
    ),
    "planned with uneven replicas": planned(is_branching=False),
    "planned branches": planned(is_branching=True),
    "replicas in different orders": crossed(),
    "one to two replicas of 9 and 3 samples": with_samples(drawn("0 0/1", num_microbatches=3), (), (9, 3)),
    "replicas of 5 and 7 samples, then of 3 and 1": with_samples(
        drawn("0/1 0/1 1", cut=(1, 2, 1), num_microbatches=3, seed=4), (5, 7), (9, 3), ()
    ),
    "the same 1 and 2 samples everywhere": with_samples(drawn("0/1 0/1", num_microbatches=2), (1, 2), (1, 2)),
    "two replicas to one": drawn("0/1 0", num_microbatches=3),
    "one replica to two": drawn("1 0/1", cut=(2, 2), num_microbatches=4),
    "replicas crossed": drawn("0/1 1/0", num_microbatches=3),
    "V of five microbatches, random order": drawn("0 1 1 0", num_microbatches=5, seed=12),
    "functions that hold weights": drawn("0 1", cut=(2, 2), num_microbatches=4, model="own_function"),
    "integers between stages": drawn("0 1 0", num_microbatches=3, model="marked"),
    "integers between uneven stages": drawn("0/1 1 0/1", num_microbatches=3, model="marked"),
    "parameters without use": drawn("0 1", cut=(2, 2), num_microbatches=4, model="unused"),
    "from one plan to another": drawn(
        "0 1", cut=(2, 2), num_microbatches=4, steps=3, then=make_random_plan("1 0 1 0", num_microbatches=4)
    ),
    "from one plan to another with uneven replicas": drawn(
        "0/1", cut=(4,), num_microbatches=4, steps=3, then=make_random_plan("0 0/1", cut=(1, 3), num_microbatches=4)
    ),
    "from uneven replicas to a plan without, tied": drawn(
        "0/1 1",
        cut=(2, 2),
        num_microbatches=4,
        steps=3,
        model="tied",
        then=make_random_plan("1 0 1 0", num_microbatches=4),
    ),
    "the example GPT": named(
        drawn("0 1 0", cut=(2, 3, 1), num_microbatches=4, model="example_gpt", steps=8),
        "embedding",
        "block0",
        "block1",
        "block2",
        "block3",
        "head",
    ),
    "the example ResNet": named(
        drawn("0 1", cut=(4, 4), num_microbatches=4, model="example_resnet", steps=shortened(2, whole=8)),
        "stem",
        "block0",
        "block1",
        "block2",
        "block3",
        "block4",
        "block5",
        "head",
    ),
    "clipped": drawn("0 1", cut=(2, 2), num_microbatches=4, model="clipped"),
    "clipped, frozen in front": drawn("0 1 1", kinds="ffw", num_microbatches=4, model="clipped"),
    "norm out of reach": drawn("0 1", cut=(2, 2), num_microbatches=4, model="hardly_clipped"),
}

REFUSED = {
    "last sample missing": (
        drawn("0 1", num_microbatches=4, model="ragged"),
        "the batch has 47 samples, which cannot be",
    ),
    "one tensor in two layers": (
        drawn("0 1 0", num_microbatches=2, model="sharing"),
        "l2:inner.weight and l0:inner.weight are one tensor; make each layer its own and declare them in `tied`",
    ),
    "dictionary between stages": (
        drawn("0 1 0", num_microbatches=2, model="dictionaries"),
        "stage 1 (layers 'l1' to 'l1') cannot take what it is given: a dict cannot be sent between stages",
    ),
    "a weight that several processes hold": (
        drawn("0 1", num_microbatches=2, model="held_by_several"),
        "parameter 'weight' of layer 'l1' is a DTensor, which several processes hold already",
    ),
    "no module": (
        drawn("0 1", num_microbatches=2, model="no_module"),
        "layer 'l1' is made as a int, not as a torch.nn",
    ),
    "tied to a weight that a forward changes": (
        drawn("0 1", num_microbatches=2, model="bounded_tied"),
        "layer 'l0' of stage 0 changes its weight 'inner.weight' in its forward, but it is tied to one of another",
    ),
    "tied to nothing": (
        drawn("0 1", num_microbatches=2, model="tied_to_nothing"),
        "`tied` names 'l9:inner.weight', which is not a layer",
    ),
    "a layer wrapped by torch.compile": (
        drawn("0 1", num_microbatches=2, model="wrapped_by_compile"),
        "layer 'l1' is wrapped by torch.compile, which renames its weights; call the layer's `compile",
    ),
    "a sharded layer": (
        drawn("0 1", num_microbatches=2, model="sharded"),
        "layer 'l1' is a FSDPBlock, which reduces gradients by itself",
    ),
    "norm of nothing": (
        drawn("0 1", num_microbatches=2, model="no_norm"),
        "max_norm = 0.0 is not positive",
    ),
    "batch norms of unequal parts": (
        with_samples(drawn("0 0/1", cut=(2, 2), num_microbatches=2, model="images"), (), (3, 1)),
        "layer 'l2' of stage 1 normalises over the microbatch, of which each of its 2 replicas has a part: their "
        "statistics are put together from equal parts only; plan with unequal_shares = false, or ",
    ),
    "unequal parts of unequal microbatches": (
        with_samples(drawn("0/1 0/1", num_microbatches=2), (3, 1), (1, 2)),
        "stage 0 has samples = [3, 1] for 2 replicas: give each of them 1 at least, in all stages those of one ",
    ),
    "targets that do not count, by unequal parts": (
        with_samples(drawn("0 0/1", num_microbatches=2, model="some_ignored"), (), (3, 1)),
        "iteration 0: of the targets of microbatch 0, the 2 replicas of the last stage have 8 and 3 that are not -100",
    ),
    "samples along another dimension": (
        drawn("0/1 0", num_microbatches=2, model="turned"),
        "stage 1 takes l0: for 1 and 1/2 of the samples its shapes are (6, 12) and (6, 6), not divided ",
    ),
    "a chain that the order cannot follow": (
        blocked(),
        (  # where torch does not send by itself, no chain is spoken of
            "the plan's schedule cannot run on a chain of stages: the ranks wait for each other: rank 0 in 2F0, rank ",
            "the plan's schedule cannot run: the ranks wait for each other: rank 0 in 2F0, rank 1 in 1F1",
        ),
    ),
}
"""Plans and trainings that do not fit, and what every rank says."""

FOUR = methods(4, *shortened((8,), whole=(6, 8))) | {
    "permuted": drawn("3 1 2 0", num_microbatches=8),
    "not in loops": drawn("0 2 1 3 0 2", num_microbatches=6),
    "one to three stages per rank": drawn("0 1 1 1 2 3 0 3", num_microbatches=4),
    "not in loops, random order": drawn("0 2 1 3 0 2", num_microbatches=6, seed=5),
    "two replicas of two stages": drawn("0/2 1/3", cut=(2, 2), num_microbatches=3),
    "two replicas, V": drawn("0/1 2/3 2/3 0/1", num_microbatches=4),
    "two replicas, random order": drawn("0/1 2/3 0/1 2/3", num_microbatches=4, seed=6),
    "two replicas, recomputed": drawn("0/2 1/3", num_microbatches=4, recompute="yn"),
    "two replicas, tied": drawn("0/2 1/3", cut=(2, 2), num_microbatches=2, model="tied"),
    "two replicas, frozen in front": drawn("0/2 1/3 1/3", kinds="ffw", num_microbatches=2),
    "two replicas, skip edges": drawn("0/2 1/3 0/2 1/3", cut=(1, 2, 1, 1), num_microbatches=2, model="skipping"),
    "four replicas": drawn("0/1/2/3", cut=(3,), num_microbatches=2),
    "two replicas, GPT": drawn("0/2 1/3", cut=(2, 2), num_microbatches=2, model="gpt"),
    "two replicas, clipped": drawn("0/2 1/3", cut=(2, 2), num_microbatches=3, model="clipped"),
    "two replicas, tied and clipped": drawn("0/2 1/3", cut=(2, 2), num_microbatches=3, model="clipped_tied"),
    "two replicas, sharded": sharded("0/2 1/3", cut=(2, 2), num_microbatches=3, steps=3),
    "two replicas, sharded and clipped": sharded("0/2 1/3", cut=(2, 2), num_microbatches=3, model="clipped", steps=3),
    "2 to 3, sharded": sharded("0/1 1/2/3", num_microbatches=3, steps=3),
    "2 to 3, sharded, tied and clipped": sharded(
        "0/1 1/2/3", cut=(2, 2), num_microbatches=3, model="clipped_tied", steps=3
    ),
    "1 to 2 to 1, sharded, GPT tied": sharded("0 1/2 3", cut=(1, 2, 1), num_microbatches=4, model="tied_gpt", steps=3),
    "from 2 to 3 sharded replicas": sharded(
        "0/1/2 3",
        cut=(2, 2),
        num_microbatches=2,
        steps=3,
        model="tied",
        then=make_random_plan("0/1 1/2/3", cut=(1, 3), num_microbatches=2),
    ),
    "two replicas, branches": drawn(
        "0/1 0/1 2/3 0/1", cut=(1, 2, 1, 1), num_microbatches=3, model="branching", edges=BRANCHES
    ),
    "3 to 1": drawn("0/1/2 3", cut=(2, 2), num_microbatches=5),
    "1 to 3": drawn("0 1/2/3", cut=(2, 2), num_microbatches=4),
    "1 to 2 to 1": drawn("0 1/2 3", num_microbatches=5),
    "2 to 3": drawn("0/1 1/2/3", num_microbatches=3),
    "3 to 2, random order": drawn("0/1/2 2/3 0", num_microbatches=4, seed=10),
    "4 to 2 to 1": drawn("0/1/2/3 1/3 2", num_microbatches=3),
    "1 to 2 to 1, whole backward": drawn("0 1/2 3", num_microbatches=4, backward="B"),
    "1 to 2 to 1, frozen in front": drawn("0 1/2 3", kinds="fww", num_microbatches=3),
    "1 to 2 to 1, recomputed": drawn("0 1/2 3", cut=(1, 2, 1), num_microbatches=4, recompute="yyn"),
    "1 to 2 to 1, some microbatches recomputed": by_microbatch(
        drawn("0 1/2 3", cut=(1, 2, 1), num_microbatches=4, recompute="yyn")
    ),
    "1 to 2 to 1, activations in host memory": offloaded(drawn("0 1/2 3", cut=(1, 2, 1), num_microbatches=4)),
    "1 to 3, bfloat16": drawn("0 1/2/3", num_microbatches=3, model="bfloat16", dtype="bfloat16"),
    "1 to 3, sum of losses": drawn("0 1/2/3", num_microbatches=2, model="summed"),
    "1 to 3, tied": drawn("0 1/2/3", cut=(2, 2), num_microbatches=3, model="tied"),
    "2 to 3, tied and clipped": drawn("0/1 1/2/3", cut=(2, 2), num_microbatches=3, model="clipped_tied"),
    "1 to 2 to 1, GPT tied": drawn("0 1/2 3", cut=(1, 2, 1), num_microbatches=4, model="tied_gpt"),
    "1 to 2 to 1, skip edges": drawn(
        "0 1/2 3 0/3", cut=(1, 2, 1, 1), num_microbatches=3, model="skipping", edges=SKIPS
    ),
    "1 to 2 to 1, a bias of no sample": drawn("0 1/2 3", num_microbatches=3, model="biased"),
    "3 to 2 to 1, a bias of no sample": drawn("0/1/2 2/3 0", num_microbatches=4, model="biased", seed=10),
    "uneven branches": drawn(
        "0 1/2 3 0", cut=(1, 2, 1, 1), num_microbatches=4, model="branching", edges=BRANCHES, seed=11
    ),
}

THREE = {
    "7 and 5 samples to one": with_samples(drawn("0/1 2", cut=(2, 2), num_microbatches=3), (7, 5), ()),
    "one to 2, 9 and 1 samples": with_samples(drawn("0 0/1/2", num_microbatches=3), (), (2, 9, 1)),
    "all unequal, random order": with_samples(
        drawn("0/1/2 2/1 0/2", cut=(1, 2, 1), num_microbatches=4, seed=5), (1, 2, 9), (10, 2), (5, 7)
    ),
    "unequal beside equal": with_samples(drawn("0/1 1/2 2", num_microbatches=3, backward="B"), (), (5, 1), ()),
    "unequal, skip edges": with_samples(
        drawn("0 1/2 0/2 1", cut=(1, 2, 1, 1), num_microbatches=3, model="skipping", edges=SKIPS), (), (3, 1), (), ()
    ),
    "unequal, recomputed": with_samples(
        drawn("0 1/2 0", cut=(1, 2, 1), num_microbatches=4, recompute="nyn"), (), (7, 5), ()
    ),
    "unequal, GPT tied": with_samples(
        drawn("0/1 1/2 2", cut=(1, 2, 1), num_microbatches=3, model="tied_gpt"), (1, 3), (3, 1), ()
    ),
    "unequal, tied and clipped": with_samples(
        drawn("0/1 1/2/0", cut=(2, 2), num_microbatches=3, model="clipped_tied"), (5, 1), (1, 2, 3)
    ),
    "unequal, sum of losses": with_samples(drawn("0 1/2", num_microbatches=2, model="summed"), (), (1, 2)),
    "unequal, a bias of no sample": with_samples(
        drawn("0/1/2 2/1 0/2", num_microbatches=3, model="biased"), (1, 2, 9), (), (5, 7)
    ),
    "unequal and sharded": with_samples(
        sharded("0/1/2 2/1", cut=(2, 2), num_microbatches=3, steps=3), (1, 2, 3), (5, 1)
    ),
    "from unequal shares to equal ones": with_samples(
        drawn("0/1 2", cut=(2, 2), num_microbatches=2, then=make_random_plan("0 1/2", cut=(1, 3), num_microbatches=2)),
        (7, 5),
        (),
    ),
}
"""Plans for three processes, of which some take unequal shares of the samples."""

FOUR |= {f"anywhere, seed {seed}": anywhere(seed) for seed in range(shortened(4, whole=12))}

LEFT_OUT = {
    2: {
        *(f"{name}, 3 microbatches" for name in ("GPipe", "1F1B", "ZB-H1", "ZB-H2", "ZB-V")),
        *("V of six layers", "random order, V", "adjacent and revisited", "uneven stages", "whole backward"),
        *("frozen between", "clipped, frozen in front", "recomputation"),
        *("bfloat16, random order", "GPT, recomputed"),
        *("skip edges, random order", "skip edges, whole backward", "skip edges, recomputed"),
        *("branches", "branches, one frozen", "planned branches"),
        *("data parallel", "data parallel, sum of losses", "replicas crossed", "two replicas to one"),
        "the same 1 and 2 samples everywhere",
        "from one plan to another with uneven replicas",
        *("a compiled layer, recomputed", "skip edges in one stage", "tied within a process", "branches, random order"),
        "one replica to two",
    },
    3: {
        *("7 and 5 samples to one", "unequal, recomputed", "unequal, GPT tied", "unequal, sum of losses"),
        *("unequal, skip edges", "unequal, tied and clipped"),
    },
    4: {
        *(f"{name}, 8 microbatches" for name in ("GPipe", "1F1B", "ZB-H1", "ZB-H2")),
        *("not in loops", "two replicas, V", "two replicas of two stages", "two replicas, recomputed"),
        *("two replicas, tied", "two replicas, clipped", "two replicas, sharded", "two replicas, skip edges"),
        *("two replicas, tied and clipped", "2 to 3, sharded", "3 to 1", "1 to 2 to 1", "4 to 2 to 1", "1 to 3"),
        *("1 to 3, tied", "1 to 3, bfloat16", "1 to 2 to 1, recomputed", "1 to 2 to 1, GPT tied"),
        *("1 to 2 to 1, whole backward", "1 to 2 to 1, a bias of no sample"),
        *("two replicas, frozen in front", "two replicas, GPT", "two replicas, branches", "permuted"),
        *("1 to 2 to 1, frozen in front", "1 to 3, sum of losses"),
    },
}
"""Plans that `make test` leaves to the long run, by the number of processes: with every part of theirs there are
others."""


def kept(cases: Mapping[str, Case], world_size: int) -> dict[str, Case]:
    """Those that run."""
    assert LEFT_OUT[world_size] <= cases.keys()
    return {name: case for name, case in cases.items() if IS_LONG or name not in LEFT_OUT[world_size]}


RUN = {2: kept(TWO, 2), 3: kept(THREE, 3), 4: kept(FOUR, 4)}
CASES = {f"{size} processes: {name}": case for size, cases in RUN.items() for name, case in cases.items()}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What every rank says about every case; one start of torch for all cases of a size."""
    answers = {}
    refused = {name: case for name, (case, _) in REFUSED.items()}
    for world_size, cases in (RUN | {2: RUN[2] | refused}).items():
        folder = tmp_path_factory.mktemp(f"execute{world_size}")
        for name, told in run_cases(cases, world_size, folder=folder).items():
            answers[f"{world_size} processes: {name}"] = told
    return answers


def run_cases(cases: Mapping[str, Case], world_size: int, *, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """What every rank says about every case."""
    for number, (name, case) in enumerate(cases.items()):
        (folder / f"{number:03}.plan.json").write_text(render_plan(case.plan))
        document: dict[str, Any] = {key: getattr(case, key) for key in ("kinds", "model", "steps", "fully_shard")}
        document |= {"name": name, "plan": f"{number:03}.plan.json", "then": ""}
        if case.then is not None:
            document["then"] = f"{number:03}.then.json"
            (folder / document["then"]).write_text(render_plan(case.then))
        (folder / f"{number:03}.case.json").write_text(json.dumps(document))
    run_ranks(folder, world_size)
    ranks = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(world_size)]
    return {name: [rank[name] for rank in ranks] for name in cases}


def run_ranks(folder: Path, world_size: int, *, worker: Path = WORKER, needs: Sequence[str] = ()) -> None:
    """All ranks to their end; they meet over loopback through a file in the folder."""
    root = WORKER.parents[2]
    ranks = [
        Rank(
            arguments=[str(folder), str(rank), str(world_size)],
            environment=os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)},
            folder=root,
            log=folder / f"rank{rank}.log",
            program=str(worker),
            needs=needs,
        )
        for rank in range(world_size)
    ]
    answers = run_forked(ranks, timeout_s=240)
    assert [code for code, _ in answers] == [0] * world_size, "\n".join(said[-4000:] for _, said in answers)


@pytest.mark.parametrize("name", CASES)
def test_losses_equal_those_of_one_process(outcomes, name: str):
    """Tests that the loss of every microbatch of every iteration is that of a single process."""
    case, answers = CASES[name], outcomes[name]
    tolerance = 0.0 if case.is_exact else TOLERANCES[case.dtype]
    for number in range(case.steps):
        plan = case.plan if case.then is None or number == 0 else case.then
        told = [answer for answer in answers if answer["losses"][number]]
        assert len(told) == len(plan.stages[-1].replicas)
        for answer in told:
            assert len(answer["losses"][number]) == case.plan.problem.num_microbatches
            assert answer["losses"][number] == pytest.approx(answer["expected_losses"][number], rel=tolerance, abs=0)


@pytest.mark.parametrize("name", CASES)
def test_gradients_equal_those_of_one_process(outcomes, name: str):
    """Tests that every parameter gets its gradient: to the bit, or within a tolerance where sums run otherwise."""
    case, answers = CASES[name], outcomes[name]
    tolerance = 0.0 if case.is_exact else TOLERANCES[case.dtype]
    for answer in answers:
        assert answer["missing"] == []
        assert answer["gradients"] <= tolerance * answer["largest"]
        assert answer["weights"] <= 10 * tolerance * max(answer["largest"], 1)
        assert answer["buffers"] == 0 or any(len(stage.replicas) > 1 for stage in case.plan.stages)
    assert sum(answer["count"] for answer in answers) > 0
    assert max(answer["largest"] for answer in answers) > 0


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_by_every_rank(outcomes, name: str):
    """Tests that what cannot be run as planned is refused in the same words by every rank, before it begins."""
    first, second = outcomes[f"2 processes: {name}"]
    assert first == second
    assert first["refused"].startswith(REFUSED[name][1]), first


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_kept_between_iterations(outcomes, name: str):
    """Tests that no stage holds on to what it received, passed on or made once it was used."""
    for rank in outcomes[name]:
        assert rank["kept"] == 0


@pytest.mark.parametrize("name", CASES)
def test_plan_runs_as_written(outcomes, name: str):
    """Tests that each process executes the actions of its device, all of them, in the plan's order."""
    case, answers = CASES[name], outcomes[name]
    layout = make_layout(case.plan if case.then is None else case.then)
    for rank, answer in enumerate(answers):
        assert answer["executed"][case.then is not None :] == [answer["row"]] * (case.steps - (case.then is not None))
        assert answer["row"] == [str(action) for action in layout.rows[rank]]


@pytest.mark.parametrize("name", ["the example GPT", *shortened([], whole=["the example ResNet"])])
def test_the_examples_learn(outcomes, name: str):
    """Tests that the loss of the examples goes down by a fifth or more within eight iterations."""
    (losses,) = (answer["losses"] for answer in outcomes[f"2 processes: {name}"] if answer["losses"][0])
    first, last = sum(losses[0]), sum(losses[-1])
    assert last < 0.8 * first, losses


@pytest.mark.parametrize("cases", [list(CASES.values()), [*TWO.values(), *THREE.values(), *FOUR.values()]])
def test_most_cases_are_exact(cases: list[Case]):
    """Tests that the tolerance is the exception where the arithmetic is the same, here and among all plans, of which
    there are over a hundred."""
    exact = [case for case in cases if case.is_exact]
    alone = [case for case in cases if all(len(stage.replicas) == 1 for stage in case.plan.stages)]
    assert len(exact) >= len(alone) / 2
    assert len(exact) >= 45 or cases == list(CASES.values())
    assert len(TWO) + len(THREE) + len(FOUR) >= 100
    assert replace(exact[0], model="tied").is_exact is False


def test_every_trap_names_tests_that_exist():
    """Tests that the documentation's table has all 18 traps, each with plans or tests that there are."""
    root = WORKER.parents[2]
    rows = json.loads((root / "docs" / "tables" / "torch-traps.json").read_text(encoding="utf-8"))["rows"]
    assert [row[0] for row in rows if row[0] != "-"] == [str(number) for number in range(1, 19)]
    tests = "".join(path.read_text() for path in (root / "tests").rglob("test_*.py"))
    known = set(REFUSED).union(*RUN.values())
    for *_, cell in rows:
        plans, functions = re.findall(r"`\[(.*?)\]`", cell), re.findall(r"`(test_\w+)`", cell)
        assert set(plans) <= known, cell
        assert all(f"def {name}(" in tests for name in functions), cell
        assert plans or functions or any(word in cell for word in ("time only", "every plan", "every such plan")), cell
