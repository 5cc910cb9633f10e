"""What stages cost, added up by hand."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.layout.costs import CostModel, StageTraffic, layer_work, overlap
from planner.problem import Problem
from profiles.model_profile import ActionOverhead, Layer, LayerCost, WidthBytes
from tests.planner.builders import make_edge, make_layer, make_link, make_problem, make_split, make_stage


def measured(*points: tuple[int | None, int], device_type: str = "gpu", width: int = 1) -> tuple[LayerCost, ...]:
    """Costs whose forward time at each microbatch size is given, I the same, W double, recomputation half."""
    return tuple(
        LayerCost(
            device_type=device_type,
            width=width,
            microbatch_size=size,
            forward_ns=time,
            input_grad_ns=time,
            weight_grad_ns=2 * time,
            recompute_ns=time // 2,
        )
        for size, time in points
    )


@pytest.mark.parametrize(
    ("points", "replicas", "work", "source"),
    [
        ([(None, 80)], 1, 80, "measured"),
        ([(8, 80)], 1, 80, "measured"),
        ([(None, 80), (4, 50)], 2, 2 * 50, "measured"),
        ([(None, 80), (2, 30)], 2, 2 * (30 + (80 - 30) * 2 / 6), "interpolated"),  # at 4, between 2 and 8
        ([(None, 80), (1, 10), (2, 30)], 2, 2 * (30 + 50 * 2 / 6), "interpolated"),  # from the nearest two
        ([(None, 80)], 2, 80, "scaled"),
        ([(None, 80)], 3, 80, "scaled"),
        ([(None, 80), (4, 50)], 4, 100, "scaled"),  # 2 samples each, half of what 4 take
        ([(2, 30), (4, 50)], 1, 100, "scaled"),  # 8 samples, twice what 4 take
    ],
)
def test_work_of_replicas(points: list[tuple[int | None, int]], replicas: int, work: float, source: str):
    """Tests that a share of a microbatch of 8 costs what was measured there, else in between, else in proportion.

    The last only where costs scale linearly: otherwise there is none.
    """
    layer = make_layer("x", costs=measured(*points))
    where = {"device_type": "gpu", "width": 1, "replicas": replicas, "microbatch_size": 8}
    found = layer_work(layer, **where, is_linear=True)
    assert found is not None
    assert (found.forward_ns, found.source) == (-(-work // 1), source)
    assert layer_work(layer, **where, is_linear=False) == (None if source == "scaled" else found)


def test_work_that_was_not_measured_is_absent():
    """Tests that no cost is made up for another type or width."""
    layer = make_layer("x", costs=measured((None, 80)))
    assert layer_work(layer, device_type="cpu", width=1, replicas=1, microbatch_size=8, is_linear=True) is None
    assert layer_work(layer, device_type="gpu", width=2, replicas=1, microbatch_size=8, is_linear=True) is None


def chain(*layers: Layer, **fields: object) -> Problem:
    return make_problem(list(layers), [make_link("a b"), make_link("b c"), make_link("c a")], **fields)


def test_a_stage_costs_the_sum_of_its_layers():
    """Tests that times add up, that B is I + W where no fused backward was measured, and that W says there is one."""
    problem = chain(make_layer("x", (1, 2, 3)), make_layer("y", (10, 20, 30, 45)), make_layer("z", (5, 5, 0)))
    costs = CostModel(problem)
    cost = costs.stage_cost(make_stage("x y @ a"), 0)
    assert (cost.forward_ns, cost.input_grad_ns, cost.weight_grad_ns, cost.backward_ns) == (11, 22, 33, 50)
    assert cost.has_weight_grad
    assert not costs.stage_cost(make_stage("z @ a"), 0).has_weight_grad
    assert [cost.duration_ns(kind) for kind in "FIWB"] == [11, 22, 33, 50]


def test_recomputation_is_paid_in_backward():
    """Tests that the recomputation is added to I and B, not to W, and that only the checkpoint is held before."""
    layer = make_layer("x", costs=measured((None, 8)), stash_bytes=10, checkpoint_bytes=3, weight_stash_bytes=4)
    problem = chain(layer, recompute=True)
    cost = CostModel(problem).stage_cost(make_stage("x @ a", recompute=True), 0)
    assert (cost.forward_ns, cost.input_grad_ns, cost.weight_grad_ns, cost.backward_ns) == (8, 8 + 4, 16, 24 + 4)
    assert (cost.held_bytes, cost.stash_bytes, cost.weight_stash_bytes) == (3, 10, 4)


def test_replicas_round_their_share_up():
    """Tests that three replicas of 10 + 10 ns take 7 ns each, of 5 + 5 bytes 4 each, and the state as a whole."""
    layers = [make_layer(n, (10, 10, 10), stash_bytes=5, weight_stash_bytes=2, state_bytes=50) for n in "xy"]
    cost = CostModel(chain(*layers)).stage_cost(make_stage("x y @ a | b | c"), 1)
    assert (cost.forward_ns, cost.backward_ns) == (7, 14)
    assert (cost.stash_bytes, cost.weight_stash_bytes, cost.state_bytes) == (4, 2, 100)


def test_workspace_is_that_of_the_largest_layer():
    """Tests that workspaces of layers in a stage do not add up: they run one after the other."""
    problem = chain(make_layer("x", workspace_bytes=3), make_layer("y", workspace_bytes=8))
    assert CostModel(problem).stage_cost(make_stage("x y @ a"), 0).workspace_bytes == 8


def test_wider_groups_have_their_own_figures():
    """Tests that at width 2 the times and the bytes measured at width 2 are used."""
    layer = make_layer(
        "x",
        costs=(*measured((None, 8)), *measured((None, 5), width=2)),
        state_bytes=100,
        wider=(WidthBytes(width=2, state_bytes=60, stash_bytes=7),),
    )
    cost = CostModel(chain(layer, max_width=2)).stage_cost(make_stage("x @ a+b"), 0)
    assert (cost.forward_ns, cost.state_bytes, cost.stash_bytes) == (5, 60, 7)


def test_missing_measurements_are_errors():
    """Tests that a width without times or without bytes raises ValueError with the name of the layer."""
    timed = make_layer("x", costs=(*measured((None, 8)), *measured((None, 5), width=2)))
    untimed = make_layer("y", wider=(WidthBytes(width=2, state_bytes=1, stash_bytes=1),))
    costs = CostModel(chain(timed, untimed, max_width=2))
    with pytest.raises(ValueError, match="layer 'x' has no bytes at width 2"):
        costs.stage_cost(make_stage("x @ a+b"), 0)
    with pytest.raises(ValueError, match="layer 'y' has no cost on 'gpu' at width 2"):
        costs.stage_cost(make_stage("y @ a+b"), 0)


def test_groups_are_of_one_type():
    """Tests that a group of two device types raises ValueError that names both."""
    problem = chain(make_layer("x", costs=(*measured((None, 8)), *measured((None, 9), device_type="cpu"))))
    devices = tuple(replace(d, type="cpu") if d.name == "b" else d for d in problem.cluster.devices)
    costs = CostModel(replace(problem, cluster=replace(problem.cluster, devices=devices)))
    assert costs.group_type(("a", "c")) == "gpu"
    with pytest.raises(ValueError, match=r"mixes the types \['cpu', 'gpu'\]"):
        costs.group_type(("a", "b"))


def test_traffic_counts_an_output_once_per_consuming_stage():
    """Tests that w goes to the stage of x and y once, at its largest, and to that of z again; gradients likewise."""
    edges = [
        make_edge("w x", num_bytes=5, gradient_bytes=3),
        make_edge("w y", num_bytes=7, gradient_bytes=0),
        make_edge("w z", num_bytes=2, gradient_bytes=0),
        make_edge("x z", num_bytes=10),
        make_edge("y z", num_bytes=20),
    ]
    problem = chain(*(make_layer(n) for n in "wxyz"), edges=edges)
    traffic = CostModel(problem).traffic([make_stage("w @ a"), make_stage("x y @ b"), make_stage("z @ c")])
    assert traffic == {
        (0, 1): StageTraffic(forward_bytes=7, backward_bytes=3, has_gradient=True),
        (0, 2): StageTraffic(forward_bytes=2, backward_bytes=0, has_gradient=False),
        (1, 2): StageTraffic(forward_bytes=30, backward_bytes=30, has_gradient=True),
    }


def test_static_bytes_are_state_and_buffers():
    """Tests that b has its state, two buffers for 5 bytes of activations from a, and two for 4 of gradients from c."""
    edges = [make_edge("x y", num_bytes=5, gradient_bytes=0), make_edge("y z", num_bytes=6, gradient_bytes=4)]
    problem = chain(*(make_layer(n, state_bytes=100) for n in "xyz"), edges=edges)
    stages = [make_stage("x @ a"), make_stage("y @ b"), make_stage("z @ c")]
    assert CostModel(problem).static_bytes(stages) == {"a": 100, "b": 100 + 10 + 8, "c": 100 + 12}
    stages = [make_stage("x @ a"), make_stage("y @ b"), make_stage("z @ b")]
    assert CostModel(problem).static_bytes(stages) == {"a": 100, "b": 200 + 10}
    stages = [make_stage("x @ a"), make_stage("y @ b | c"), make_stage("z @ b")]
    assert CostModel(problem).static_bytes(stages) == {"a": 100, "b": 200 + 5 + 12, "c": 100 + 5 + 4}


def test_synchronisation_is_a_ring_all_reduce():
    """Tests that it is 2(r-1)/r x bytes / slowest link + 2(r-1) x largest latency; 0 for one replica or frozen ones."""
    links = [make_link("a b", latency=1), make_link("b c", latency=2, bandwidth=5 * 10**8), make_link("c a")]
    layers = [make_layer("x", parameter_bytes=6), make_layer("y", (1, 1, 0), parameter_bytes=100, frozen=True)]
    costs = CostModel(make_problem(layers, links))
    assert costs.synchronisation_ns(make_stage("x y @ a | b | c")) == 16 + 4 * 2
    assert costs.synchronisation_ns(make_stage("x y @ a | b")) == 6 + 2 * 1
    assert costs.synchronisation_ns(make_stage("x y @ a")) == 0
    assert costs.synchronisation_ns(make_stage("y @ a | b")) == 0
    assert costs.gradient_bytes(make_stage("x y @ a | b")) == 6
    assert costs.gradient_bytes(make_stage("x y @ a+b")) == 3


def with_profile(problem: Problem, **changes: object) -> Problem:
    """The problem with something else in its profile."""
    return replace(problem, profile=replace(problem.profile, **changes))


OVERHEAD = ActionOverhead(device_type="gpu", forward_ns=3, input_grad_ns=4, weight_grad_ns=5, backward_ns=6)


def test_an_action_costs_more_than_its_layers():
    """Tests that every action of a stage has its type's overhead once, however many layers or replicas there are."""
    problem = chain(make_layer("x", (10, 20, 30)), make_layer("y", (10, 20, 30)))
    problem = with_profile(problem, action_overhead_ns=(OVERHEAD,))
    costs = CostModel(problem)
    cost = costs.stage_cost(make_stage("x y @ a"), 0)
    assert [cost.duration_ns(kind) for kind in "FIWB"] == [20 + 3, 40 + 4, 60 + 5, 100 + 6]
    half = costs.stage_cost(make_stage("x y @ a | b"), 1)
    assert [half.duration_ns(kind) for kind in "FIWB"] == [10 + 3, 20 + 4, 30 + 5, 50 + 6]
    other = with_profile(problem, action_overhead_ns=(replace(OVERHEAD, device_type="other"),))
    assert CostModel(other).stage_cost(make_stage("x @ a"), 0).forward_ns == 10


def test_plans_of_several_stages_cost_more_than_one():
    """Tests that what stages add counts where a stage has not all layers, and at the end where there are several."""
    overhead = replace(OVERHEAD, stages_forward_ns=7, stages_input_grad_ns=1, stages_backward_ns=1)
    problem = chain(make_layer("x", (10, 20, 30)), make_layer("y", (10, 20, 30)))
    costs = CostModel(with_profile(problem, action_overhead_ns=(overhead,), optimizer_ns=2, stages_optimizer_ns=5))
    whole, first, second = (make_stage(text) for text in ("x y @ a", "x @ a", "y @ b"))
    assert [costs.stage_cost(whole, 0).duration_ns(kind) for kind in "FIWB"] == [23, 44, 65, 106]
    assert [costs.stage_cost(first, 0).duration_ns(kind) for kind in "FIWB"] == [10 + 10, 20 + 5, 30 + 5, 50 + 7]
    assert costs.optimizer_ns([whole]) == 2
    assert costs.optimizer_ns([first, second]) == 7


def test_replicas_wait_for_each_other():
    """Tests that exchanges are part of F, I and B where replicas share a microbatch, as long whatever their number."""
    layer = replace(make_layer("x", (10, 20, 30)), forward_exchanges=2, backward_exchanges=1)
    overhead = ActionOverhead(device_type="gpu", exchange_ns=7)
    problem = with_profile(chain(layer, make_layer("y", (10, 20, 30))), action_overhead_ns=(overhead,))
    costs = CostModel(problem)
    alone, half, third = (make_stage(f"x y @ {devices}") for devices in ("a", "a | b", "a | b | c"))
    assert [costs.stage_cost(alone, 0).duration_ns(kind) for kind in "FIWB"] == [20, 40, 60, 100]
    assert [costs.stage_cost(half, 1).duration_ns(kind) for kind in "FIWB"] == [10 + 14, 20 + 7, 30, 50 + 7]
    assert [costs.stage_cost(third, 2).duration_ns(kind) for kind in "FIWB"] == [7 + 14, 14 + 7, 20, 34 + 7]
    assert CostModel(with_profile(problem, action_overhead_ns=())).stage_cost(half, 0).forward_ns == 10


def test_half_of_an_input_gradient_has_its_whole_overhead():
    """Tests that with split placement layers are shared out and overheads are not."""
    problem = with_profile(chain(make_layer("x", (10, 20, 30))), action_overhead_ns=(OVERHEAD,))
    stage = make_split("x @ a", input_grad="a 1/2, b 1/2")
    costs = CostModel(problem)
    assert [costs.part_cost(stage, part).input_grad_ns for part in costs.parts(stage) if part.share] == [14, 14]


def test_how_times_were_taken_is_told():
    """Tests that the evidence repeats the conditions, and says which overheads were measured."""
    assert CostModel(chain(make_layer("x"))).describe_timings() == {
        "conditions": "not stated",
        "action_overhead": "not measured",
        "message_overhead": "not measured",
    }
    links = [replace(make_link("a b"), message_overhead_ns=0), make_link("b c")]
    problem = with_profile(make_problem([make_layer("x")], links), action_overhead_ns=(OVERHEAD,), conditions="busy")
    assert CostModel(problem).describe_timings() == {
        "conditions": "busy",
        "action_overhead": "measured",
        "message_overhead": "measured in part",
    }


def test_unmeasured_costs_are_told():
    """Tests that scaled and interpolated costs are counted per type, width and share, and measured ones are not."""
    layers = [make_layer("x", costs=measured((None, 80), (2, 30))), make_layer("y"), make_layer("z")]
    costs = CostModel(chain(*layers, microbatch_size=8, scaling="linear"))
    assert costs.unmeasured_costs([make_stage("x y @ a"), make_stage("z @ b")]) == ()
    assert costs.unmeasured_costs([make_stage("x y z @ a | b")]) == (
        "1 layers on gpu at width 1: interpolated to 1/2 of the microbatch",
        "2 layers on gpu at width 1: scaled to 1/2 of the microbatch",
    )


def test_overlap_of_two_and_three():
    """Tests that senders 0 0 0 1 1 1 and receivers 0 0 1 1 2 2 share sixths 2 1 0 and 0 1 2."""
    shares = [[overlap(i, j, num_senders=2, num_receivers=3) for j in range(3)] for i in range(2)]
    assert shares == [[(2, 6), (1, 6), (0, 6)], [(0, 6), (1, 6), (2, 6)]]


@given(counts=st.tuples(st.integers(1, 9), st.integers(1, 9)))
def test_overlaps_add_up(counts: tuple[int, int]):
    """Tests that the shares of every sender and of every receiver add up to what it holds."""
    a, b = counts
    shares = [[overlap(i, j, num_senders=a, num_receivers=b)[0] for j in range(b)] for i in range(a)]
    assert {sum(row) for row in shares} == {b}
    assert {sum(column) for column in zip(*shares, strict=True)} == {a}
