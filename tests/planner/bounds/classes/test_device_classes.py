"""The classes bound: against brute force and plans, on devices of several types and links, and against forgery."""

import json
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.chains import make_one_by_one
from benchmarks.generate import parse_family
from planner.bounds.classes.classes_bound import Sequence, applies_to, is_exact, raise_bound
from planner.bounds.classes.device_classes import Classes, fits, num_states, propose
from planner.bounds.heaviest_path import Trunk
from planner.bounds.minimum_costs import Least
from planner.evidence.certificate import check_certificate, make_bound
from planner.layout.costs import CostModel
from planner.planning import make_plan
from planner.problem import Options, Problem
from planner.progress import Limits
from profiles.cluster import Cluster, Device, Link
from tests.long_runs import examples
from tests.planner.brute_force import brute_force
from tests.planner.evidence.test_certificate import bound_of, make_chain, plans_of
from tests.strategies import chain_problems, random_problem, with_memory

ONE_EACH = Options(receive_buffers=0, max_stages_per_device=1, max_replicas=1)


def one_each(problem: Problem) -> Problem:
    """The problem with one stage per device and no replicas, for the makespan."""
    options = replace(problem.options, max_stages_per_device=1, max_replicas=1, max_width=1, objective="makespan")
    return replace(problem, options=options)


def random_division(rng: Random, problem: Problem) -> list[list[str]]:
    """The devices in classes at random, types mixed."""
    classes: list[list[str]] = [[] for _ in range(rng.randint(1, 3))]
    for device in problem.cluster.devices:
        rng.choice(classes).append(device.name)
    return [names for names in classes if names]


def is_ruled_out(problem: Problem, value: int, *, members: list[list[str]]) -> bool:
    """Whether these classes deny that some plan has the given makespan."""
    least = Least(problem, CostModel(problem))
    classes, deadline = Classes(Trunk(least), members), value - problem.profile.optimizer_ns
    return applies_to(least) and is_exact(classes, deadline) and Sequence(classes, deadline).is_out_of_reach()


@settings(max_examples=examples(200), deadline=None)
@given(problem=chain_problems(max_layers=5), rng=st.randoms(use_true_random=False))
def test_the_best_plan_is_never_ruled_out(problem, rng):
    """Tests that the optimum of tiny problems is not denied, whatever the classes, nor below the bound."""
    best = brute_force(problem)
    if best is not None:
        assert not is_ruled_out(problem, best, members=random_division(rng, problem))
        assert not is_ruled_out(problem, best, members=[[device.name] for device in problem.cluster.devices])
        assert bound_of(problem).value_ns <= best


@settings(max_examples=examples(100), deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_no_plan_is_ruled_out(rng):
    """Tests that no random plan of graphs, frozen layers, recomputation and shared links is denied, in any memory."""
    problem = one_each(random_problem(rng))
    for tight, _, value in plans_of(rng, problem, tries=6):
        assert not is_ruled_out(tight, value, members=random_division(rng, tight))
        assert bound_of(tight).value_ns <= value


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


@settings(max_examples=examples(60), deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_reach_grows_with_time_memory_and_coarser_classes(rng):
    """Tests that more time, more memory and fewer classes put nothing out of reach that was within."""
    problem = with_memory(one_each(random_problem(rng)), {f"d{i}": rng.randint(1, 200) for i in range(4)})
    roomy = with_memory(problem, {device.name: 2 * device.memory_bytes for device in problem.cluster.devices})
    fine = [[device.name] for device in problem.cluster.devices]
    coarse = [[device.name for device in problem.cluster.devices]]
    if not applies_to(Least(problem, CostModel(problem))):
        return
    deadlines = sorted(rng.randint(1, 300) + problem.profile.optimizer_ns for _ in range(5))
    out = [is_ruled_out(problem, deadline, members=fine) for deadline in deadlines]
    assert out == sorted(out, reverse=True)
    for deadline, was_out in zip(deadlines, out, strict=True):
        assert was_out or not is_ruled_out(roomy, deadline, members=fine)
        assert was_out or not is_ruled_out(problem, deadline, members=coarse)


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


def hosts(count: int, *, per_host: int) -> Cluster:
    """Devices with fast links inside a host and slow ones between hosts."""
    devices = tuple(
        Device(name=f"d{i}", type="gpu", memory_bytes=2**40, host=f"h{i // per_host}") for i in range(count)
    )
    links = tuple(
        Link(a=a.name, b=b.name, bandwidth_bytes_per_s=10**9, latency_ns=1 if a.host == b.host else 500)
        for i, a in enumerate(devices)
        for b in devices[i + 1 :]
    )
    return Cluster(name="hosts", devices=devices, links=links)


def test_links_between_hosts_are_seen():
    """Tests that four heavy layers on two hosts of two cross the slow link once, there and back."""
    problem = make_chain([(100, 100, 0)] * 4, num_devices=4, num_microbatches=2, options=ONE_EACH)
    problem = replace(problem, cluster=hosts(4, per_host=2))
    least = Least(problem, CostModel(problem))
    alike, apart = (
        raise_bound(Classes(Trunk(least), members), 1, figures=10**9)
        for members in ([["d0", "d1", "d2", "d3"]], [["d0", "d1"], ["d2", "d3"]])
    )
    assert propose(Trunk(least)) == [[["d0", "d1", "d2", "d3"]], [["d0", "d1"], ["d2", "d3"]]]
    assert alike < apart <= brute_force(problem)


@pytest.mark.parametrize("factor", [2, 7, 1000])
def test_scaled_times_scale_the_bound(factor):
    """Tests that with all times a factor larger the bound is as much larger."""
    times = [(10, 12, 7), (31, 29, 11), (5, 6, 4), (17, 20, 9), (23, 19, 13)]
    small, large = (
        unlike(
            make_chain(
                [(k * f, k * i, k * w) for f, i, w in times], num_devices=3, num_microbatches=4, options=ONE_EACH
            ),
            slow=1,
        )
        for k in (1, factor)
    )
    low, high = (
        raise_bound(Classes(Trunk(Least(p, CostModel(p))), [["d0", "d1"], ["d2"]]), 1, figures=10**9)
        for p in (small, large)
    )
    assert factor * (low - 1) <= high <= factor * low


@pytest.mark.parametrize(("memory", "above"), [("loose", 441_000_000), ("tight", 511_000_000)])
def test_hosts_of_two_speeds(memory, above):
    """Tests that on a random chain over hosts of two speeds the bound is far above what every device may have."""
    problem = make_one_by_one(parse_family(f"chain-48x8-m16-{memory}-two-level-classes"))
    bound = bound_of(problem)
    assert bound.kind == "classes"
    assert bound.value_ns >= above
    assert check_certificate(problem, json.loads(json.dumps(bound.certificate))) == bound.value_ns


def test_devices_wait_for_a_slower_one_before_them():
    """Tests that a device is seen to stand idle while a stage with a longer F fills it, though it has work later."""
    problem = make_one_by_one(parse_family("chain-96x16-m32-loose-homogeneous-equal"))
    trunk = Trunk(Least(problem, CostModel(problem)))
    head_and_work = 784_200_000
    assert Sequence(Classes(trunk, propose(trunk)[0]), head_and_work + 16_000_000).is_out_of_reach()


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


def test_sums_stay_within_64_bits():
    """Tests that times and bytes whose sums would wrap around are refused, not added up."""
    problem = make_chain(
        [(10**13, 10**13, 10**13)] * 40, num_devices=4, num_microbatches=64, memory=2**50, stash=(2**50, 2**49),
        options=ONE_EACH,
    )  # fmt: skip
    classes = Classes(Trunk(Least(problem, CostModel(problem))), [["d0", "d1", "d2", "d3"]])
    assert not is_exact(classes, 10**16)
    with pytest.raises(ValueError, match="64 bits"):
        check_certificate(problem, {"kind": "classes", "value_ns": 10**16, "classes": [["d0", "d1", "d2", "d3"]]})
