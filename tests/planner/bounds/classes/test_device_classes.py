"""The classes bound: against brute force and plans, on devices of several types and links, and against forgery."""

import json
from dataclasses import replace
from random import Random

import pytest

from benchmarks.generate import parse_family
from planner.bounds.classes.classes_bound import Sequence, applies_to, is_exact
from planner.bounds.classes.device_classes import Classes, fits, num_states, propose
from planner.bounds.heaviest_path import Trunk
from planner.bounds.minimum_costs import Least
from planner.evidence.certificate import check_certificate, make_bound
from planner.layout.costs import CostModel
from planner.problem import Options, Problem
from planner.progress import Limits
from tests.planner.brute_force import brute_force
from tests.planner.evidence.test_certificate import bound_of, make_chain
from tests.planner.generated_chains import make_one_by_one
from tests.planner.hasty import make_plan

ONE_EACH = Options(receive_buffers=0, max_stages_per_device=1, max_replicas=1)


def is_ruled_out(problem: Problem, value: int, *, members: list[list[str]]) -> bool:
    """Whether these classes deny that some plan has the given makespan."""
    least = Least(problem, CostModel(problem))
    classes, deadline = Classes(Trunk(least), members), value - problem.profile.optimizer_ns
    return applies_to(least) and is_exact(classes, deadline) and Sequence(classes, deadline).is_out_of_reach()


@pytest.mark.parametrize("seed", range(8))
def test_good_plans_are_not_ruled_out(seed):
    """Tests that plans found by search on unlike devices, in ample memory and in little, are not below the bound."""
    rng = Random(seed)
    times = [
        (rng.randint(5, 40), rng.randint(5, 40), rng.choice([0, rng.randint(1, 40)])) for _ in range(rng.randint(4, 9))
    ]
    stash = rng.randint(1, 20)
    problem = make_chain(
        times,
        num_devices=rng.randint(2, 4),
        num_microbatches=rng.randint(4, 9),
        memory=rng.choice([2**40, rng.randint(3, 8) * len(times) * stash // 2]),
        stash=(stash, stash // 2),
        edge_bytes=rng.choice([0, 3, 20]),
        options=ONE_EACH,
    )
    problem = unlike(problem, slow=1, factor=rng.randint(1, 3))
    plan = make_plan(problem, limits=Limits(time_limit_s=60, max_rounds=1))
    assert plan.evidence is not None
    assert not is_ruled_out(problem, plan.evidence.makespan_ns, members=[[d.name] for d in problem.cluster.devices])
    assert not is_ruled_out(
        problem, plan.evidence.makespan_ns, members=propose(Trunk(Least(problem, CostModel(problem))))[0]
    )


def unlike(problem: Problem, *, slow: int, factor: int = 3) -> Problem:
    """The problem with the last `slow` devices so many times slower."""
    layers = tuple(
        replace(
            layer,
            costs=(
                *layer.costs,
                *(
                    replace(
                        cost,
                        device_type="slow",
                        forward_ns=factor * cost.forward_ns,
                        input_grad_ns=factor * cost.input_grad_ns,
                        weight_grad_ns=factor * cost.weight_grad_ns,
                    )
                    for cost in layer.costs
                ),
            ),
        )
        for layer in problem.profile.layers
    )
    count = len(problem.cluster.devices)
    devices = tuple(
        replace(device, type="slow") if number >= count - slow else device
        for number, device in enumerate(problem.cluster.devices)
    )
    return replace(
        problem,
        profile=replace(problem.profile, layers=layers),
        cluster=replace(problem.cluster, devices=devices),
    )


def test_whole_layers_do_not_fill_unlike_devices_evenly():
    """Tests that of three equal layers none fits a device three times slower in the time two take on the fast one.

    The fast device alone takes 4 x 90; two layers there and one on the slow device take 4 x 90 and a head of 20, or
    a head of 30 if the slow device is the first.
    """
    problem = unlike(make_chain([(10, 10, 10)] * 3, num_devices=2, num_microbatches=4, options=ONE_EACH), slow=1)
    bound = bound_of(problem)
    assert brute_force(problem) == 360
    assert (bound.kind, bound.value_ns) == ("classes", 360)
    assert bound.certificate["classes"] == [["d0"], ["d1"]]


@pytest.mark.parametrize(("memory", "above"), [("loose", 441_000_000), ("tight", 511_000_000)])
def test_hosts_of_two_speeds(memory, above):
    """Tests that on a random chain over hosts of two speeds the bound is far above what every device may have."""
    problem = make_one_by_one(parse_family(f"chain-48x8-m16-{memory}-two-level-classes"))
    bound = bound_of(problem)
    assert bound.kind == "classes"
    assert bound.value_ns >= above
    assert check_certificate(problem, json.loads(json.dumps(bound.certificate))) == bound.value_ns


def test_many_types_are_merged():
    """Tests that devices all of different speed are put into as many classes as tables hold."""
    problem = make_one_by_one(parse_family("chain-24x16-m16-loose-random-different"))
    trunk = Trunk(Least(problem, CostModel(problem)))
    (members,) = propose(trunk)
    assert 1 < len(members) < 16
    assert fits(trunk, members)
    assert num_states(members) > 100
    bound = make_bound(problem, CostModel(problem))
    assert check_certificate(problem, bound.certificate) == bound.value_ns


def forged() -> tuple[Problem, dict[str, object]]:
    """A problem whose certificate has classes."""
    problem = unlike(make_chain([(10, 10, 10)] * 3, num_devices=2, num_microbatches=4, options=ONE_EACH), slow=1)
    return problem, bound_of(problem).certificate


@pytest.mark.parametrize(
    "change",
    [
        {"value_ns": 361},
        {"value_ns": 10**9},
        {"value_ns": 2**59},
        {"value_ns": 0},
        {"classes": [["d0", "d1"]]},
        {"classes": [["d0"]]},
        {"classes": [["d0"], ["d0", "d1"]]},
        {"classes": [["d0"], ["d1"], []]},
        {"classes": [["d0"], ["d9"]]},
        {"classes": [["d0"], [1]]},
        {"classes": [["d0"], [["d1"]]]},
        {"classes": [["d0"], "d1"]},
        {"classes": {"d0": 1}},
        {"classes": None},
        {"price": 1},
    ],
)
def test_forged_certificates_are_refused(change):
    """Tests that no larger value, and no classes that are not all devices, each in one, are accepted."""
    problem, certificate = forged()
    assert check_certificate(problem, certificate) == 360
    with pytest.raises(ValueError, match="certificate: "):
        check_certificate(problem, {**certificate, **change})


@pytest.mark.parametrize(
    "options",
    [
        replace(ONE_EACH, objective="span"),
        replace(ONE_EACH, max_stages_per_device=2),
        replace(ONE_EACH, max_replicas=2),
        replace(ONE_EACH, split_placement=True),
    ],
)
def test_it_is_left_out_where_it_does_not_hold(options):
    """Tests that spans, two stages per device, replicas and split placement have no classes bound."""
    problem, certificate = forged()
    other = replace(problem, options=options)
    assert bound_of(other).kind != "classes"
    with pytest.raises(ValueError, match="certificate: "):
        check_certificate(other, certificate)


def test_too_many_classes_are_refused():
    """Tests that a checker is not made to fill tables of any size."""
    problem = make_one_by_one(parse_family("chain-24x24-m16-loose-random-different"))
    certificate = {"kind": "classes", "value_ns": 1000, "classes": [[d.name] for d in problem.cluster.devices]}
    with pytest.raises(ValueError, match="too many"):
        check_certificate(problem, certificate)
