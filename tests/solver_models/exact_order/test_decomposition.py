"""Tests of solver_models/exact_order/decomposition.py."""

from dataclasses import replace

from solver_models.exact_order.decomposition import likeness, split_net
from solver_models.simulation.evaluator import FAR
from tests.planner.builders import make_layer, make_link, make_problem, make_stage
from tests.solver_models.every_order import enumerate_orders
from tests.solver_models.exact_order.test_branch_and_bound import MANY
from tests.solver_models.nets import Case


def test_parts_are_searched_one_by_one():
    """Tests that replicas of two stages that talk in pairs are two parts, twins or not, and make up the optimum."""
    layers = [make_layer("p", (6, 4, 4)), make_layer("q", (8, 10, 6))]
    problem = make_problem(layers, [make_link("a b")], num_microbatches=2, microbatch_size=2, split_backward=False)
    one, other = problem.cluster.devices
    for size in (one.memory_bytes, 900):
        devices = (one, replace(other, memory_bytes=size))
        unlike = replace(problem, cluster=replace(problem.cluster, devices=devices))
        case = Case(unlike, (make_stage("p @ a | b"), make_stage("q @ a | b")))
        parts = split_net(case.net)
        assert [part.replica_device.tolist() for part in parts] == [[0, 0], [1, 1]]
        assert (likeness(parts[0]) == likeness(parts[1])) == (size == one.memory_bytes)
        is_closed, best = case.searcher.sequence(case.candidate(), threshold=FAR, most_nodes=MANY)
        assert is_closed
        assert best is not None
        is_done, least = enumerate_orders(
            case.searcher, case.candidate(), threshold=FAR, most_orders=5_000, most_plays=10**7
        )
        assert is_done
        assert least is not None
        assert best.objective == least.objective == case.searcher.play(best).objective


def test_parts_hold_what_their_own_stages_do():
    """Tests that of two stages that share nothing the small one fits where the large one would not, in its B too."""
    layers = [make_layer("p", (6, 4, 4), stash_bytes=800), make_layer("q", (8, 10, 6), stash_bytes=1)]
    problem = make_problem(layers, [make_link("a b")], edges=[], num_microbatches=2, split_backward=False)
    one, other = problem.cluster.devices
    devices = (one, replace(other, memory_bytes=300))
    case = Case(
        replace(problem, cluster=replace(problem.cluster, devices=devices)), (make_stage("p @ a"), make_stage("q @ b"))
    )
    for number, part in enumerate(split_net(case.net)):
        for name in ("held", "stash", "whole_backward", "weight_stash", "workspace", "weight_workspace", "duration"):
            assert getattr(part, name).tolist() == getattr(case.net, name)[[number]].tolist()
    is_closed, best = case.searcher.sequence(case.candidate(), threshold=FAR, most_nodes=MANY)
    assert is_closed
    assert best is not None
    assert best.objective == 2 * (8 + 10 + 6)
