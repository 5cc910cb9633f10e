"""Questions about some of the devices alone: tests of planner/device_subsets.py."""

from dataclasses import replace
from random import Random

from planner.batch_problem import batch_problem_of
from planner.decisions.price.device_kinds import DeviceKinds
from planner.device_subsets import problem_on, question_on
from planner.evidence.certificate import make_bound
from planner.layout.costs import CostModel
from planner.simulation.simulate import simulate
from tests.planner.decisions.price.test_bound import small_problem
from tests.planner.test_batch_problem import make_batch
from tests.planner.test_batch_problem import make_layer as batch_layer
from tests.strategies import random_plan, random_problem


def test_idle_devices_pass_traffic_on():
    """Tests that a plan takes as long on its own devices alone as among all of them."""
    rng, count = Random(7), 0
    while count < 25:
        problem = random_problem(rng)
        if problem.options.pinned or not problem.options.idle_devices:
            continue
        plan = random_plan(rng, problem)
        alone = problem_on(replace(problem, options=replace(problem.options, objective="makespan")), plan.devices)
        assert simulate(alone, plan).makespan_ns == simulate(problem, plan).makespan_ns
        count += 1


def test_sizes_are_those_of_all_devices():
    """Tests that a size that only some devices were measured at is none, whatever devices are left."""
    times = {1: 10, 2: 14, 4: 24}
    question = make_batch([batch_layer(name, times) for name in "xy"], memory_bytes=1000)
    slow = [
        replace(layer, costs=(*layer.costs, *(replace(cost, device_type="old") for cost in layer.costs[:2])))
        for layer in question.profile.layers
    ]
    first, second = question.cluster.devices
    mixed = replace(
        question,
        profile=replace(question.profile, layers=tuple(slow)),
        cluster=replace(question.cluster, devices=(first, replace(second, type="old"))),
    )
    assert mixed.sizes == (1, 2)
    assert question_on(mixed, ["a"]).sizes == (1, 2)
    assert batch_problem_of(problem_on(mixed.at(2), ["a"])) == question_on(mixed, ["a"])


def test_alike_subsets_have_one_bound():
    """Tests that the bound on the makespan does not depend on which devices of a class are taken."""
    rng, count = Random(11), 0
    while count < 25:
        problem = small_problem(rng)
        kinds = DeviceKinds(problem=problem)
        names = max(kinds.members, key=len)
        if len(names) < 2:
            continue
        values = []
        for kept in names[:2]:
            others = [name for name in problem.cluster.by_name if name not in names]
            alone = problem_on(problem, [kept, *others])
            values.append(make_bound(alone, CostModel(alone), time_limit_s=0.0).value_ns)
        assert values[0] == values[1]
        count += 1
