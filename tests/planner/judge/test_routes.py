"""Links that state what messages of some sizes take: judge and core alike, and bounds below the best plan."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import planner.judge.routes
import planner.judge.synchronisation
from planner.evidence.certificate import check_certificate, make_bound
from planner.layout.costs import CostModel
from planner.plan import Plan
from planner.problem import Problem
from planner.verify import verify
from profiles.cluster import Link, MessageTime, Route
from tests.long_runs import examples
from tests.planner.brute_force import brute_force
from tests.planner.builders import make_edge, make_layer, make_link, make_problem
from tests.planner.judged import judged
from tests.strategies import random_plan, random_problem, tiny_problem, with_memory, with_message_times

CURVE = replace(
    make_link("a b", latency=5), message_times=tuple(MessageTime(bytes=b, time_ns=t) for b, t in ((10, 25), (20, 30)))
)
"""Beyond its latency: 2 ns a byte up to 10 bytes, then half a nanosecond, then one as its bandwidth says."""


def sized_case(rng: Random) -> tuple[Problem, Plan]:
    problem = with_message_times(rng, random_problem(rng))
    roomy = {device.name: 10**9 for device in problem.cluster.devices}
    problem = with_memory(problem, roomy)
    return problem, random_plan(rng, problem)


@pytest.mark.parametrize(
    ("num_bytes", "time_ns"), [(0, 0), (1, 2), (9, 18), (10, 20), (11, 21), (13, 22), (20, 25), (21, 26), (120, 125)]
)
def test_times_lie_on_straight_lines(num_bytes: int, time_ns: int):
    """Tests that a message takes what is stated, between two sizes its part, rounded up, and beyond the bandwidth."""
    assert CURVE.moving_ns(num_bytes) == time_ns


@pytest.mark.parametrize(
    ("points", "complaint"),
    [
        (((10, 25), (10, 26)), "rising order"),
        (((10, 25), (12, 24)), "rising order"),
        (((10, 14),), "faster than latency and bandwidth, 15 ns"),
        (((0, 14),), "bytes = 0 is out of range"),
    ],
)
def test_times_rise_and_keep_below_the_bandwidth(points: tuple[tuple[int, int], ...], complaint: str):
    """Tests that times that fall, or that a bound by latency and bandwidth would be above, are refused."""
    with pytest.raises(ValueError, match=complaint):
        replace(CURVE, message_times=tuple(MessageTime(bytes=size, time_ns=time) for size, time in points))


def test_a_changed_link_keeps_its_shape():
    """Tests that a link at half the speed takes twice as long beyond its latency, and one made later so much more."""
    slow, late = CURVE.at_speed(0.5, latency=2), CURVE.later_by(-9)
    for size in (1, 10, 15, 20, 40):
        assert slow.moving_ns(size) == pytest.approx(2 * CURVE.moving_ns(size), abs=1)
        assert late.moving_ns(size) == CURVE.moving_ns(size)
    assert (slow.latency_ns, late.latency_ns) == (10, 0)
    assert all(point.time_ns >= 0 for point in late.message_times)


def test_a_message_by_hand():
    """Tests that a transfer of 10 bytes takes 25 instead of 15, and that a ring of two sends halves, there and back."""
    layers = [make_layer(name, (100, 100, 100), parameter_bytes=20) for name in "xy"]
    problem = make_problem(layers, [CURVE], edges=[make_edge("x y", num_bytes=10)], max_stages_per_device=1)
    assert problem.cluster.route("a", "b", num_bytes=10).duration_ns(10) == 25
    assert CostModel(problem).ring_ns((("a",), ("b",)), 20, rounds=2) == 2 * (20 + 5)
    assert CostModel(problem).ring_ns((("a",), ("b",)), 40, rounds=1) == 25 + 5


@settings(max_examples=examples(60), deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_judge_and_core_agree(rng: Random):
    """Tests that random plans on such links take the same by simulator and judge."""
    problem, plan = sized_case(rng)
    judged(problem, plan)
    assert verify(problem, plan).violations == ()


@pytest.mark.slow
@settings(max_examples=examples(40), deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_brute_force_is_not_below_any_bound(rng: Random):
    """Tests that the best of all plans on such links is not below the bound, whose certificate holds."""
    problem = with_message_times(rng, tiny_problem(rng))
    best = brute_force(problem)
    if best is not None:
        bound = make_bound(problem, CostModel(problem))
        assert bound.value_ns <= best
        assert check_certificate(problem, bound.certificate) == bound.value_ns


def cases() -> Iterator[tuple[Problem, Plan]]:
    for seed in range(20):
        yield sized_case(Random(seed))


def step(link: Link, num_bytes: int) -> int:
    """The time of the next larger size that is stated."""
    later = [point.time_ns - link.latency_ns for point in link.message_times if point.bytes >= num_bytes]
    return later[0] if later else link.moving_ns(num_bytes)


Change = Callable[[pytest.MonkeyPatch], None]
whole = planner.judge.routes.Route.sized_ns
stated = Link.moving_ns

FAULTS: dict[str, Change] = {
    "core: times by message size are forgotten": lambda patch: patch.setattr(Link, "moving_ns", lambda *_: 0),
    "core: a message takes what the next larger size takes": lambda patch: patch.setattr(Link, "moving_ns", step),
    "core: latency counts twice in times by message size": lambda patch: patch.setattr(
        Link, "moving_ns", lambda link, size: stated(link, size) + link.latency_ns * bool(link.message_times)
    ),
    "core: the links of a route add their times by message size": lambda patch: patch.setattr(
        Route,
        "duration_ns",
        lambda route, size: (
            route.latency_ns
            + max(-(-size * 10**9 // route.bandwidth_bytes_per_s), sum(stated(link, size) for link in route.sized))
        ),
    ),
    "core: a ring sends all its bytes in one message": lambda patch: patch.setattr(
        CostModel, "ring_ns", ring_in_one(CostModel.ring_ns)
    ),
    "judge: times by message size are forgotten": lambda patch: patch.setattr(
        planner.judge.routes.Route, "sized_ns", lambda *_: 0
    ),
    "judge: times by message size are rounded down to the smaller size": lambda patch: patch.setattr(
        planner.judge.routes.Direction,
        "moving_ns",
        lambda way, size: max((time for least, time in way.corners if least <= size), default=0),
    ),
    "judge: a ring sends all its bytes in one message": lambda patch: patch.setattr(
        planner.judge.synchronisation, "_go_round", in_one(planner.judge.synchronisation._go_round)
    ),
}
"""Each by what is wrong."""


def ring_in_one(original: Callable[..., int]) -> Callable[..., int]:
    def changed(model: CostModel, groups: tuple[tuple[str, ...], ...], size: int, *, rounds: int) -> int:
        time, r = original(model, groups, size, rounds=rounds), len(groups)
        if r == 1:
            return time
        heads = [group[0] for group in groups]
        routes = [
            model.problem.cluster.route(a, b, num_bytes=size)
            for a, b in zip(heads, [*heads[1:], heads[0]], strict=True)
        ]
        at_once = max((stated(link, size) for route in routes for link in route.sized), default=0)
        return max(time, rounds * (r - 1) * (at_once + max(route.latency_ns for route in routes)))

    return changed


def in_one(original: Callable[..., planner.judge.synchronisation.Ring]) -> Callable[..., object]:
    def changed(*args: object, **kw: object) -> object:
        with pytest.MonkeyPatch.context() as patch:
            replicas = len(args[0].replicas)  # type: ignore[attr-defined]
            patch.setattr(planner.judge.routes.Route, "sized_ns", lambda route, size: whole(route, size * replicas))
            return original(*args, **kw)

    return changed


def test_these_plans_are_valid():
    """Tests that without a fault the judge agrees with the core on every plan that the faults are tried on."""
    assert all(verify(problem, plan).violations == () for problem, plan in cases())


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_noticed(fault: str, monkeypatch: pytest.MonkeyPatch):
    """Tests that with one thing wrong about times by message size, judge and core differ on some plan."""
    FAULTS[fault](monkeypatch)
    assert any(not verify(problem, plan).passed for problem, plan in cases())
