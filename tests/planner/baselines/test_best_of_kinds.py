"""The best of each kind of plan, over all sizes of microbatches."""

from dataclasses import replace
from typing import Any

import pytest

from planner.baselines.best_of_kinds import KINDS, OWN, Kind, best_of_kinds, kind_of_stages, why_no_replicas
from planner.baselines.registry import METHODS
from planner.batch_problem import BatchProblem, problem_for
from planner.plan import Plan, Stage
from planner.planning import Limits
from planner.problem import Options, Problem
from planner.verify import verify
from profiles.load import load_workload
from profiles.model_profile import WidthBytes
from tests.planner.builders import make_layer, make_link, make_problem
from tests.planner.hasty import make_plan

LAYERS = [make_layer("x", (40, 40, 40)), make_layer("y", (40, 40, 40))]


def small(**given: Any) -> Problem:
    more: dict[str, Any] = {"num_microbatches": 4, "microbatch_size": 2, "scaling": "linear"}
    return make_problem(LAYERS, [make_link("a b")], **(more | given))


@pytest.mark.parametrize(
    ("replicas", "count", "kind"),
    [
        ([1], 8, "one process"),
        ([2], 1, "data parallel at once"),
        ([2], 8, "data parallel, accumulating"),
        ([1, 1], 8, "pipeline"),
        ([2, 1], 8, "mixed"),
    ],
)
def test_kinds_are_told_by_stages(replicas: list[int], count: int, kind: Kind):
    """Tests that stages, their replicas and the number of microbatches say what a plan is."""
    stages = [Stage(layers=("x",), replicas=tuple((f"d{k}",) for k in range(each))) for each in replicas]
    assert kind_of_stages(stages, num_microbatches=count) == kind


def test_each_kind_is_found_at_its_best_size():
    """Tests that a global batch gives the time of each kind at the size that suits it: here by hand.

    Two layers of F, I and W of 20 ns a sample each; 8 samples on two devices; links that take no time.
    """
    question = BatchProblem(profile=small().profile, cluster=small().cluster, global_batch_size=8,
                            microbatch_sizes=(2, 8))  # fmt: skip
    plan = make_plan(question, limits=Limits(time_limit_s=30, max_rounds=0))
    problem = problem_for(question, plan)
    found = best_of_kinds(problem, plan)
    assert list(found) == [kind for kind in KINDS if kind in found]
    one, at_once, accumulating, pipeline = (found[kind] for kind in KINDS if kind not in ("fully sharded", "mixed"))
    assert one.row.makespan_ns == 8 * 2 * 3 * 20
    assert (at_once.row.makespan_ns, at_once.problem.num_microbatches) == (4 * 2 * 3 * 20 + 2, 1)  # and two bytes
    assert (accumulating.row.makespan_ns, accumulating.problem.num_microbatches) == (4 * 2 * 3 * 20 + 2, 4)
    assert pipeline.problem.num_microbatches == 4
    assert pipeline.row.makespan_ns == 4 * 120 + 40  # the second stage waits for one forward, then both are busy
    assert all(verify(each.problem, each.plan).passed for each in found.values() if each.row.name != OWN)
    assert found["fully sharded"].breaks == "needs --fully-shard"
    own = {each.kind: kind_of_stages(each.plan.stages, num_microbatches=each.problem.num_microbatches)
           for each in found.values()}  # fmt: skip
    assert own == {kind: kind for kind in found}


def test_the_plan_stands_for_its_own_kind():
    """Tests that the plan is never shown as slower than itself, and others keep to what fits and is allowed first."""
    problem = small(idle_devices=False)
    plan = make_plan(problem, limits=Limits(time_limit_s=30, max_rounds=0))
    found = best_of_kinds(problem, plan)
    own = found[kind_of_stages(plan.stages, num_microbatches=4)]
    assert own.row.name == "this plan"
    assert found["one process"].breaks == "leaves 1 of 2 devices idle"


def test_no_baseline_of_the_evidence_is_faster():
    """Tests that the best pipeline is no slower than any that stands in the table of baselines above it."""
    demo = load_workload("demo:vgg16-ethernet")
    problem = Problem(profile=demo.profile, cluster=demo.cluster, num_microbatches=4, options=Options())
    plan = make_plan(problem, limits=Limits(time_limit_s=30, max_rounds=0))
    methods = {method.name for method in METHODS}
    assert plan.evidence is not None
    stated = [
        row.makespan_ns for row in plan.evidence.baselines
        if row.name.partition(" (")[0] in methods and row.fits_memory and row.makespan_ns is not None
    ]  # fmt: skip
    assert (best_of_kinds(problem, plan)["pipeline"].row.makespan_ns or 0) <= min(stated)


def test_time_ends_the_look_at_others():
    """Tests that without time the plan itself is left."""
    problem = small()
    plan = make_plan(problem, limits=Limits(time_limit_s=30, max_rounds=0))
    assert len(best_of_kinds(problem, plan, has_time=lambda: False)) == 1


@pytest.mark.parametrize(
    ("given", "reason"),
    [({}, ""), ({"max_replicas": 1}, "max_replicas = 1"), ({"microbatch_size": 1}, "cannot cut microbatch_size = 1")],
)
def test_why_there_are_no_copies(given: dict[str, Any], reason: str):
    """Tests that what keeps the model from being replicated is named."""
    said = why_no_replicas(small(**given))
    assert reason in said
    assert bool(said) == bool(reason)


def test_others_are_as_the_program_runs_them():
    """Tests that a plan which a program runs in another order has the time of that, and what it refuses comes last."""

    def one_after_the_other(problem: Problem, plan: Plan) -> Plan:
        if len(plan.stages) == 1:
            raise ValueError("has stages only")
        in_turn = {name: tuple(sorted(order, key=lambda action: action.microbatch))
                   for name, order in plan.schedule.items()}  # fmt: skip
        return replace(plan, schedule=in_turn)

    problem = small()
    plan = make_plan(problem, limits=Limits(time_limit_s=30, max_rounds=0))
    own = kind_of_stages(plan.stages, num_microbatches=4)
    freely, found = best_of_kinds(problem, plan), best_of_kinds(problem, plan, fit=one_after_the_other)
    assert {kind for kind, each in found.items() if each.refused} == {
        kind for kind, each in found.items() if kind != own and len(each.plan.stages) == 1
    }
    assert (found["pipeline"].row.makespan_ns or 0) > (freely["pipeline"].row.makespan_ns or 0)
    assert verify(problem, found["pipeline"].plan).passed


@pytest.mark.parametrize(("wide", "fits", "name"), [(15, True, "one process on 2 devices"), (40, True, "one process"),
                                                    (15, False, "one process")])  # fmt: skip
def test_one_process_has_all_threads_that_were_measured(wide: int, fits: bool, name: str):
    """Tests that a group of a host's devices counts as one process where it is quicker and fits, asked for or not."""
    layers = [
        replace(
            layer,
            costs=(*layer.costs, replace(layer.costs[0], width=2, forward_ns=wide)),
            wider=(WidthBytes(width=2, state_bytes=1 if fits else 2000, stash_bytes=0),),
        )
        for layer in LAYERS
    ]
    problem = small()
    devices = tuple(replace(device, host="h") for device in problem.cluster.devices)
    problem = replace(problem, profile=replace(problem.profile, layers=tuple(layers)),
                      cluster=replace(problem.cluster, devices=devices))  # fmt: skip
    plan = make_plan(problem, limits=Limits(time_limit_s=30, max_rounds=0))
    found = best_of_kinds(problem, plan)["one process"]
    assert (found.row.name, found.breaks) == (name, "needs --max-width 2" if "2" in name else "")
    assert verify(found.problem, found.plan).passed
    assert found.row.makespan_ns == 4 * 2 * (min(wide, 40) if fits else 40) + 4 * 2 * 80
    apart = replace(problem, cluster=replace(problem.cluster, devices=small().cluster.devices))
    assert best_of_kinds(apart, plan)["one process"].row.name == "one process"
