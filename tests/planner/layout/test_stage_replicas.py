"""The laid-out plan: stage replicas and transfers by number."""

from dataclasses import replace
from fractions import Fraction

from planner.layout.costs import CostModel
from planner.layout.stage_replicas import LaidOut, lay_out, lay_out_stages
from planner.plan import Plan
from planner.problem import Problem
from tests.planner.builders import make_edge, make_layer, make_link, make_problem, make_split, make_stage


def chain(**fields: object) -> Problem:
    """Layer x sends y 10 bytes and gets 6 back; a byte takes a nanosecond between any two of a, b and c."""
    layers = [make_layer(name, (1, 2, 3), stash_bytes=8, weight_stash_bytes=4, parameter_bytes=20) for name in "xy"]
    links = [make_link("a b"), make_link("b c"), make_link("c a")]
    return make_problem(layers, links, edges=[make_edge("x y", num_bytes=10, gradient_bytes=6)], **fields)


def sent(laid_out: LaidOut) -> list[tuple[int, int, str, int, int]]:
    """Sender, receiver, direction, bytes and ticks of every transfer."""
    return [(s, r, "FB"[back], size, ticks) for s, r, back, size, _, ticks in laid_out.transfers]


def test_replicas_exchange_what_they_share():
    """Tests the drawing: x on a and b, each with half of y's samples on c.

    a ──5 bytes──▶ c ──3 bytes──▶ a
    b ──5 bytes──▶ c ──3 bytes──▶ b
    """
    stages = make_stage("x @ a | b"), make_stage("y @ c")
    laid_out = lay_out_stages(stages, costs=CostModel(chain()))
    assert [(each.stage, each.replica, each.group, each.kinds) for each in laid_out.replicas] == [
        (0, 0, ("a",), "FIWB"), (0, 1, ("b",), "FIWB"), (1, 0, ("c",), "FIWB"),
    ]  # fmt: skip
    assert sent(laid_out) == [(0, 2, "F", 5, 5), (2, 0, "B", 3, 3), (1, 2, "F", 5, 5), (2, 1, "B", 3, 3)]
    assert laid_out.arrivals() == [[0, 1, 0], [0, 1, 0], [2, 0, 0]]
    assert laid_out.by_place["c", 1] is laid_out.replicas[2]
    assert laid_out.synchronisation_ns == (20, 0)
    assert laid_out.static_bytes.keys() == laid_out.steps_ns.keys() == {"a", "b", "c"}


def test_inside_a_device_nothing_moves():
    """Tests that stages of one device exchange nothing that takes time or links."""
    laid_out = lay_out_stages((make_stage("x @ a"), make_stage("y @ a")), costs=CostModel(chain()))
    assert [(each.route, each.ticks, each.links) for each in laid_out.transfers] == [(None, 0, ())] * 2


def test_split_placement_sends_once_and_every_time():
    """Tests that a (F, half of I), b (half of I) and c (W) of x are stage replicas, and those that send once idle.

    Weights go a ▶ b before all else, the stash a ▶ b and weight stashes a, b ▶ c every time, the gradient c ▶ a at
    the end.
    """
    stage = make_split("x y @ a", input_grad="a 1/2, b 1/2", weight_grad="c 1/1")
    costs = CostModel(chain(split_placement=True))
    laid_out = lay_out_stages((stage,), costs=costs)
    names = [(each.group[0], each.kinds) for each in laid_out.replicas]
    assert names == [("a", "FI"), ("b", "I"), ("c", ""), ("c", "W"), ("a", ""), ("c", "")]
    assert (laid_out.opening, laid_out.closing) == ((4,), {0: 5})
    assert sent(laid_out) == [
        (4, 1, "F", 40, 40), (5, 0, "B", 40, 40), (0, 3, "B", 4, 4), (0, 1, "F", 8, 8), (1, 3, "B", 4, 4),
    ]  # fmt: skip
    assert laid_out.arrivals() == [[0, 0, 0], [1, 0, 1], [0, 0, 0], [0, 2, 0], [0, 0, 0], [0, 0, 0]]
    assert {each.sender for each in laid_out.working_transfers} == {0, 1}
    assert [part.share for part in costs.parts(stage)] == [Fraction(1, 2), Fraction(1, 2), 0]


def test_a_replica_for_every_size():
    """Tests that sizes of microbatches have stage replicas and transfers of their own, by stage, then size."""
    alike = chain()
    problem = replace(
        alike,
        profile=replace(alike.profile, microbatch_size=2, scaling="linear"),
        microbatches=(1, 2, 2),
        num_microbatches=3,
    )
    stages = make_stage("x @ a"), make_stage("y @ b")
    plan = Plan(problem=problem.reference(), stages=stages, schedule={})
    laid_out = lay_out(plan, costs=CostModel(problem))
    assert [(each.stage, each.size, each.cost.forward_ns) for each in laid_out.replicas] == [
        (0, 1, 1), (0, 2, 1), (1, 1, 1), (1, 2, 1),
    ]  # fmt: skip
    assert sent(laid_out) == [(0, 2, "F", 5, 5), (2, 0, "B", 3, 3), (1, 3, "F", 10, 10), (3, 1, "B", 6, 6)]


def test_a_partition_is_laid_out_once():
    """Tests that all orders of a partition share what was laid out."""
    costs, stages = CostModel(chain()), (make_stage("x @ a"), make_stage("y @ b"))
    assert lay_out_stages(list(stages), costs=costs) is lay_out_stages(stages, costs=costs)
