"""Tests of planner/bounds/device_packing/stage_assignments.py: trees over orders of whole plans in scarce memory."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from random import Random

import pytest

from benchmarks.generate import make_workload, parse_family
from planner.bounds.cases.refutation import RULES
from planner.bounds.device_packing import packing_bound
from planner.bounds.device_packing.boundaries import Boundaries
from planner.bounds.device_packing.packing_bound import Packing, applies_to, write_cases
from planner.bounds.device_packing.price_search import Refutation
from planner.bounds.device_packing.stage_assignments import DeviceAssignment, DeviceAssignments
from planner.bounds.minimum_costs import Least
from planner.evidence.certificate import check_certificate
from planner.layout.costs import CostModel
from planner.plan import Plan, Stage
from planner.problem import Options, Problem
from profiles.model_profile import Layer
from solver_models.covering import Covering
from tests.long_runs import shortened
from tests.planner.evidence.test_certificate import make_chain
from tests.planner.exactly import search_exactly
from tests.planner.plan_in_packing import keys_of, seat

SEEDS, SECONDS = shortened(([15, 19, 23], 600.0), whole=(range(2000), 1.0))

NUM_CHANGES, MOST_CLOSED = 20, 4
"""Of a tree or a certificate; and plans of a problem that are solved once more."""

WORK = 2_000
"""Units of work for one tree."""


def test_no_more_is_listed_than_steps_allow():
    """Tests that the orders of many replicas end the list as soon as they are more than there may be steps."""
    options = Options(max_replicas=8, max_stages_per_device=2)
    problem = make_chain([(10, 10, 10)] * 2, num_devices=8, num_microbatches=8, options=options)
    packing = Packing(Boundaries(Least(problem, CostModel(problem))), 10**4)
    assignments = DeviceAssignments(packing.stages, packing.loads)
    assert assignments.find(most=10**6, steps=500) is None
    assert assignments.steps == 501


def random_times(rng: Random, layer: Layer) -> Layer:
    """The layer, now and then frozen or with a B that is shorter than I and W."""
    if rng.random() < 0.2:
        costs = tuple(replace(cost, weight_grad_ns=0, backward_ns=None) for cost in layer.costs)
        return replace(layer, frozen=True, weight_stash_bytes=0, costs=costs)
    share = rng.uniform(0.7, 1.0)
    costs = tuple(
        replace(
            cost,
            backward_ns=max(cost.input_grad_ns, int(share * (cost.input_grad_ns + cost.weight_grad_ns))),
            recompute_ns=cost.forward_ns,
        )
        for cost in layer.costs
    )
    return replace(layer, costs=costs, checkpoint_bytes=layer.stash_bytes // rng.choice([2, 5]))


def scarce(seed: int) -> Problem:
    """A chain whose devices have memory for about one microbatch of all layers, and all that the exact search knows."""
    rng = Random(seed)
    size = f"{rng.choice([6, 7, 8])}x{rng.choice([2, 3, 3])}-m{rng.choice([3, 4, 5])}"
    links, speeds = rng.choice(["homogeneous", "homogeneous", "two-level"]), rng.choice(["equal", "equal", "classes"])
    workload = make_workload(parse_family(f"chain-{size}-scarce-{links}-{speeds}", seed=seed))
    profile, cluster = workload.profile, workload.cluster
    assert cluster is not None
    layers, is_plain = profile.layers, rng.random() < 0.7
    if not is_plain:
        layers = tuple(random_times(rng, layer) for layer in layers)
    needed = sum(layer.state_bytes + 3 * layer.stash_bytes for layer in layers)
    memory = int(needed * rng.uniform(0.55, 0.8) / len(cluster.devices))
    options = Options(
        split_backward=rng.random() < 0.7,
        max_replicas=rng.choice([1, 1, 1, 2]),
        max_stages_per_device=rng.choice([1, 2, 2, 2, 2]),
        recompute=not is_plain and rng.random() < 0.3,
        receive_buffers=rng.choice([0, 1, 2]),
        synchronisation=rng.choice(["after", "after", "bucketed"]),
        keep_workspace=rng.random() < 0.2,
    )
    devices = tuple(replace(device, memory_bytes=memory) for device in cluster.devices)
    return Problem(
        profile=replace(profile, layers=layers, optimizer_ns=rng.choice([0, 10**6])),
        cluster=replace(cluster, devices=devices, overlap=rng.random() < 0.8),
        num_microbatches=int(size.rpartition("-m")[2]),
        options=options,
    )


@cache
def best_known(seed: int) -> tuple[int | None, Plan | None]:
    """What the exact search finds for `scarce`, once for all tests: a makespan and a plan, if any."""
    plans = list[Plan]()
    value, _ = search_exactly(scarce(seed), seconds=SECONDS, plans=plans)
    return value, plans[-1] if plans else None


class Trees:
    """A problem, its best known plan, and the whole plans that trees close for earlier deadlines."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        problem = scarce(seed)
        self.problem, self.closed = problem, dict[tuple[Stage, ...], tuple[int, tuple[int, ...]]]()
        """By stages: the deadline, with the optimizer, and the tree."""
        self.boundaries = Boundaries(Least(problem, CostModel(problem)))
        self.optimizer = self.boundaries.least.optimizer_ns
        self.monkeypatch = monkeypatch
        self.value, self.plan = best_known(seed)

    def refute(self, value: int) -> Refutation:
        """What a search finds that shows that no plan has a makespan of at most `value`."""
        find = Packing.find_tree

        def note(
            packing: Packing, assignment: DeviceAssignment, given: Sequence[int] | None = None
        ) -> Sequence[int] | None:
            tree = find(packing, assignment, given)
            if tree is not None:
                self.closed.setdefault(packing.write(assignment), (value, tuple(tree)))
            return tree

        refutation = Refutation(self.boundaries, Covering, most=63, effort=2 * 10**7, wanted=100, with_trees=True)
        with self.monkeypatch.context() as patch:
            patch.setattr(packing_bound, "_MOST_TREE_WORK", WORK)
            patch.setattr(Packing, "find_tree", note)
            refutation.find(value - self.optimizer)
        return refutation

    def best_of(self, stages: tuple[Stage, ...]) -> int | None:
        """The makespan of the best plan found with these stages, if any."""
        options = replace(
            self.problem.options,
            partition=tuple(stage.layers for stage in stages),
            placement=tuple(stage.replicas for stage in stages),
        )
        plans = list[Plan]()
        value, _ = search_exactly(replace(self.problem, options=options), seconds=0.5, plans=plans)
        is_alike = bool(plans) and [s.recompute for s in plans[-1].stages] == [s.recompute for s in stages]
        return value if is_alike else None

    def require_open(self, rng: Random, trees: Sequence[tuple[int, ...]]) -> int:
        """Neither a tree that is found nor others that are like these deny the best plan; how many others there were.

        They may be the trees of other plans, for other deadlines.
        """
        assert self.plan is not None
        assert self.value is not None
        packing = Packing(self.boundaries, self.value - self.optimizer)
        seating = seat(self.problem, packing, self.plan.stages, held=keys_of(packing, self.plan.stages))
        assert not packing.is_late(seating)
        with self.monkeypatch.context() as patch:
            patch.setattr(packing_bound, "_MOST_TREE_WORK", WORK)
            assert packing.find_tree(seating) is None
        others = [changed(rng, list(tree)) for tree in trees for _ in range(NUM_CHANGES)]
        for other in others:
            with suppress(ValueError):
                assert packing.find_tree(seating, other) is None
        return len(others)


def changed(rng: Random, tree: list[int]) -> list[int]:
    """The tree with another code, a leaf that is split, a part cut off, or all of it behind a decision."""
    code = rng.choice([0, rng.randrange(1, 5_000), *tree])
    place = rng.randrange(len(tree)) if tree else 0
    return rng.choice([
        [*tree[:place], code, *tree[place + 1 :]],
        [*tree[:place], code, 0, 0, *tree[place + 1 :]],
        [],
        [0],
        [code, *tree, *tree],
        tree[:place],
    ])  # fmt: skip


@pytest.mark.slow
def test_trees_deny_no_plan_that_exists(monkeypatch):
    """Tests that neither the best plan that the exact search finds in scarce memory is denied, nor one with stages that
    trees close for a deadline; and that trees close some.
    """
    count = Counter[str]()
    for seed in SEEDS:
        known = Trees(seed, monkeypatch)
        if known.value is None or not applies_to(known.boundaries.least):
            continue
        assert known.refute(known.value).found is None
        for percent in (100, 99, 98, 97):
            refutation = known.refute(known.value * percent // 100 - 1)
            count["refuted"] += refutation.found is not None
        for stages, (deadline, tree) in sorted(known.closed.items(), key=lambda each: -each[1][0])[:MOST_CLOSED]:
            best = known.best_of(stages)
            assert best is None or best > deadline
            count.update({"closed": 1, "split": bool(tree), "solved": best is not None})
        count["changed"] += known.require_open(Random(seed), [tree for _, tree in known.closed.values() if tree])
    assert min(count[name] for name in ("refuted", "closed", "split", "solved", "changed")) > 0


@pytest.mark.slow
def test_changed_certificates_deny_no_plan_that_exists(monkeypatch):
    """Tests that certificates whose trees or value were changed never prove more than the best plan has."""
    num_refused = num_trees = 0
    for seed in SEEDS:
        known, rng = Trees(seed, monkeypatch), Random(seed)
        if known.value is None or not applies_to(known.boundaries.least):
            continue
        values = (known.value * permille // 1000 for permille in (1000, 995, 990, 980, 970))
        found = ((value, known.refute(value - 1)) for value in values)
        value, refutation = next(((v, r) for v, r in found if r.found and r.trees), (0, None))
        if refutation is None or refutation.found is None:
            continue
        num_trees += len(refutation.trees)
        cases = write_cases(refutation.found)
        made = {"kind": "packing", "value_ns": value, "cases": cases, "rules": RULES}
        assert check_certificate(known.problem, {**made, "trees": list(map(list, refutation.trees))}) == value
        for _ in range(NUM_CHANGES):
            trees = [changed(rng, list(tree)) if rng.random() < 0.5 else list(tree) for tree in refutation.trees]
            stated = rng.choice([value, known.value, known.value + 1, known.value + 1, 2 * known.value, 2**59])
            with suppress(ValueError):
                assert check_certificate(known.problem, {**made, "value_ns": stated, "trees": trees}) <= known.value
                continue
            num_refused += 1
    assert num_refused > 0
    assert num_trees > 0
