"""Timelines drawn by hand, rule by rule of docs/reference/contract.md, and properties of all timelines."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import PlanError
from planner.plan import Plan
from planner.problem import Problem
from planner.simulation.simulate import TimedSynchronisation, Timeline, simulate
from profiles.model_profile import Layer, LayerCost, WidthBytes
from tests.planner.builders import draw, make_edge, make_layer, make_link, make_plan, make_problem, make_stage, picture
from tests.planner.judged import judged
from tests.strategies import cases, scaled_overheads, with_reference


def play(problem: Problem, plan: Plan) -> Timeline:
    """The timeline, after the judge has agreed with it."""
    timeline = simulate(problem, plan)
    judged(problem, plan, timeline=timeline)
    return timeline


def drawn(problem: Problem, stages: list[str], words: dict[str, str]) -> str:
    """The picture of a plan."""
    return draw(problem, play(problem, make_plan(problem, stages, words)))


def two_layers(*, latency: int = 0, duplex: bool = True, bandwidth: int = 10**9, **fields: object) -> Problem:
    """Layers x and y, devices a and b with one link between them; every action takes one nanosecond, B two."""
    link = make_link("a b", latency=latency, duplex=duplex, bandwidth=bandwidth)
    return make_problem([make_layer("x"), make_layer("y")], [link], **fields)


# Section 3: actions.


def test_actions_run_in_order_and_as_early_as_they_can():
    """Tests that every device keeps the plan's order and waits no longer than for its inputs."""
    problem = two_layers(num_microbatches=3)
    words = {"a": "0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2", "b": "1F0 1I0 1W0 1F1 1I1 1W1 1F2 1I2 1W2"}
    timeline = play(problem, make_plan(problem, ["x @ a", "y @ b"], words))
    assert draw(problem, timeline) == picture("""
        a |0F0 0F1 .   0I0 0W0 0F2 0I1 0W1 .   0I2 0W2
        b |.   1F0 1I0 1W0 1F1 1I1 1W1 1F2 1I2 1W2
    """)
    assert (timeline.makespan_ns, timeline.span_ns) == (11, 11)
    assert timeline.bubble == pytest.approx(1 - 18 / 22)


def test_fused_backward_takes_its_own_time_and_sends_at_its_end():
    """Tests that B takes backward_ns rather than I + W, and that the gradient leaves at its end."""
    problem = make_problem([make_layer("x"), make_layer("y", (1, 2, 2, 3))], [make_link("a b")])
    assert drawn(problem, ["x @ a", "y @ b"], {"a": "0F0 0I0 0W0", "b": "1F0 1B0"}) == picture("""
        a |0F0 .   .   .   .   0I0 0W0
        b |.   1F0 1B0--------
    """)


def test_optimizer_comes_last_and_span_leaves_it_out():
    """Tests that the makespan ends with the optimizer step, and that the span is the longest of one device."""
    problem = two_layers(optimizer_ns=5)
    timeline = play(problem, make_plan(problem, ["x @ a", "y @ b"], {"a": "0F0 0B0", "b": "1F0 1B0"}))
    assert draw(problem, timeline) == picture("""
        a |0F0 .   .   .   0B0----
        b |.   1F0 1B0----
    """)
    assert (timeline.makespan_ns, timeline.span_ns) == (6 + 5, 6)
    assert timeline.objective_ns("makespan") == 11
    assert timeline.objective_ns("span") == 6


def test_several_stages_share_a_device():
    """Tests that a device with two stages runs one action at a time, and that nothing moves inside it."""
    layers = [make_layer(name) for name in "xyz"]
    problem = make_problem(layers, [make_link("a b")], edge_bytes=1)
    words = {"a": "0F0 2F0 2B0 0B0", "b": "1F0 1B0"}
    assert drawn(problem, ["x @ a", "y @ b", "z @ a"], words) == picture("""
        a   |0F0 .   .   .   2F0 2B0---- .   .   .   .   0B0----
        b   |.   .   1F0 .   .   .   .   .   1B0----
        a>b |.   0f0 .   .   .   .   .   2b0
        b>a |.   .   .   1f0 .   .   .   .   .   .   1b0
    """)
    words = {"a": "0F0 1F0 1B0 0B0", "b": "2F0 2B0"}
    assert drawn(problem, ["x @ a", "y @ a", "z @ b"], words) == picture("""
        a   |0F0 1F0 .   .   .   .   .   1B0---- 0B0----
        b   |.   .   .   2F0 2B0----
        a>b |.   .   1f0
        b>a |.   .   .   .   .   .   2b0
    """)


def test_frozen_prefix_waits_for_no_gradient():
    """Tests that over an edge without gradient nothing comes back, so the I of a frozen stage follows its F."""
    layers = [make_layer("x", (1, 1, 0), parameter_bytes=3, frozen=True), make_layer("y")]
    problem = make_problem(layers, [make_link("a b")], edges=[make_edge("x y", num_bytes=2, gradient_bytes=0)])
    assert drawn(problem, ["x @ a", "y @ b"], {"a": "0F0 0I0", "b": "1F0 1I0 1W0"}) == picture("""
        a   |0F0 0I0
        b   |.   .   .   1F0 1I0 1W0
        a>b |.   0f0----
    """)


def wide_layer(name: str) -> Layer:
    """A layer that takes 1 ns on one device and 2 ns on two."""
    costs = [
        LayerCost(device_type="gpu", width=width, forward_ns=width, input_grad_ns=width, weight_grad_ns=width)
        for width in (1, 2)
    ]
    return make_layer(name, costs=tuple(costs), wider=(WidthBytes(width=2, state_bytes=3, stash_bytes=2),))


def test_a_group_works_as_one_device():
    """Tests that an action of a group starts once all its devices are free, at the cost of its width."""
    problem = make_problem([wide_layer("x"), wide_layer("y")], [make_link("a b")], num_microbatches=2, max_width=2)
    words = {"a": "0F0 0F1 0B0 0B1", "b": "0F0 1F0 1B0 0F1 1F1 1B1 0B0 0B1"}
    timeline = play(problem, make_plan(problem, ["x @ a+b", "y @ b"], words))
    assert draw(problem, timeline) == picture("""
        a |0F0---- .   .   .   0F1---- .   .   .   0B0------------ 0B1------------
        b |0F0---- 1F0 1B0---- 0F1---- 1F1 1B1---- 0B0------------ 0B1------------
    """)
    assert timeline.peak_bytes == {"a": 3 + 2 * 2, "b": 3 + 2 * 2}


# Section 1: transfers.


def test_transfers_take_latency_and_bytes_over_bandwidth_beside_the_work():
    """Tests that 2 bytes take 1 ns latency and 2 ns on the link, and that both devices work meanwhile."""
    problem = two_layers(num_microbatches=2, edge_bytes=2, latency=1)
    words = {"a": "0F0 0F1 0B0 0B1", "b": "1F0 1I0 1F1 1I1 1W0 1W1"}
    assert drawn(problem, ["x @ a", "y @ b"], words) == picture("""
        a   |0F0 0F1 .   .   .   .   .   .   .   0B0---- .   0B1----
        b   |.   .   .   .   1F0 1I0 .   1F1 1I1 1W0 1W1
        a>b |.   0f0-------- 0f1--------
        b>a |.   .   .   .   .   .   1b0-------- 1b1--------
    """)


def test_a_part_of_a_nanosecond_counts_whole():
    """Tests that durations are rounded up: a byte at 3 bytes per 10 ns takes 4 ns."""
    problem = two_layers(edge_bytes=1, bandwidth=3 * 10**8)
    timeline = play(problem, make_plan(problem, ["x @ a", "y @ b"], {"a": "0F0 0B0", "b": "1F0 1B0"}))
    assert [sent.end_ns - sent.start_ns for sent in timeline.transfers] == [4, 4]


def test_a_link_that_is_not_duplex_serves_one_direction_at_a_time():
    """Tests that 1b0 and 0f1, in opposite directions, take turns on such a link and not on a duplex one."""
    words = {"a": "0F0 0F1 0B0 0B1", "b": "1F0 1I0 1F1 1I1 1W0 1W1"}
    pictures = {
        duplex: drawn(two_layers(num_microbatches=2, edge_bytes=4, duplex=duplex), ["x @ a", "y @ b"], words)
        for duplex in (False, True)
    }
    assert pictures[False] == picture("""
        a   |0F0 0F1 .   .   .   .   .   .   .   .   .   .   .   0B0---- .   .   0B1----
        b   |.   .   .   .   .   1F0 1I0 .   .   1F1 1I1 1W0 1W1
        a-b |.   0f0------------ 0f1------------ 1b0------------ 1b1------------
    """)
    assert pictures[True] == picture("""
        a   |0F0 0F1 .   .   .   .   .   .   .   .   .   0B0---- .   .   0B1----
        b   |.   .   .   .   .   1F0 1I0 .   .   1F1 1I1 1W0 1W1
        a>b |.   0f0------------ 0f1------------
        b>a |.   .   .   .   .   .   .   1b0------------ 1b1------------
    """)


def test_transfers_ready_together_go_by_stage():
    """Tests that of two transfers ready at once the one of the lower stage goes first, whichever device it is on."""
    links = [make_link("a s"), make_link("b s"), make_link("s c")]
    edges = [make_edge("x z", num_bytes=2), make_edge("y z", num_bytes=2)]
    problem = make_problem([make_layer(n) for n in "xyz"], links, switches=("s",), edges=edges)
    words = {"a": "1F0 1B0", "b": "0F0 0B0", "c": "2F0 2B0"}
    assert drawn(problem, ["x @ b", "y @ a", "z @ c"], words) == picture("""
        a   |1F0 .   .   .   .   .   .   .   .   .   .   .   1B0----
        b   |0F0 .   .   .   .   .   .   .   .   .   0B0----
        c   |.   .   .   .   .   2F0 2B0----
        b>s |.   0f0----
        s>c |.   0f0---- 1f0----
        a>s |.   .   .   1f0----
        c>s |.   .   .   .   .   .   .   .   2b0---- 2b0----
        s>b |.   .   .   .   .   .   .   .   2b0----
        s>a |.   .   .   .   .   .   .   .   .   .   2b0----
    """)


def test_transfers_ready_together_go_by_microbatch_and_forward_first():
    """Tests that on one trunk, ready at 2, 1f0 of c goes before 1f1 of d; ready at 3, 1f0 of d before 1b0 of c."""
    ends = ["c l", "d l", "a r", "b r", "e r", "f r"]
    edges = [make_edge("w x", gradient_bytes=2), make_edge("x y", num_bytes=2, gradient_bytes=0)]
    problem = make_problem(
        [make_layer(n) for n in "wxy"],
        [make_link("l r", duplex=False), *map(make_link, ends)],
        switches=("l", "r"),
        num_microbatches=2,
        edges=edges,
    )
    words = {
        "a": "0F0 0F1 0B0 0B1",
        "b": "0F1 0F0 0B1 0B0",
        "c": "1F0 1I0 1W0 1F1 1B1",
        "d": "1F1 1F0 1B0 1B1",
        "e": "2F0 2B0 2F1 2B1",
        "f": "2F1 2B1 2F0 2B0",
    }
    rows = drawn(problem, ["w @ a | b", "x @ c | d", "y @ e | f"], words).splitlines()
    assert "\n".join(row for row in rows if row[:3] in ("c  ", "d  ", "l-r")) == picture("""
        c   |.   1F0 1I0 1W0 1F1 1B1
        d   |.   1F1 1F0 1B0 1B1
        l-r |.   .   1f0 1f1 1f0 1b0 1b0 1f1 1b1 1b1
    """)


def test_what_becomes_ready_inside_an_instant_keeps_its_place():
    """Tests that 1b0 goes before 2b0, although 1I0 takes no time and waits for 2I0 on the same device."""
    layers = [make_layer("x"), make_layer("y", (1, 0, 0)), make_layer("z")]
    edges = [make_edge("x y", num_bytes=1), make_edge("x z", num_bytes=1), make_edge("y z")]
    problem = make_problem(layers, [make_link("a b")], edges=edges)
    words = {"a": "0F0 0B0", "b": "1F0 2F0 2I0 1I0 2W0"}
    assert drawn(problem, ["x @ a", "y @ b", "z @ b"], words) == picture("""
        a   |0F0 .   .   .   .   .   .   0B0----
        b   |.   .   1F0 2F0 2I0 2W0
        a>b |.   0f0 0f0
        b>a |.   .   .   .   .   1b0 2b0
    """)


def test_what_takes_no_time_waits_for_no_link():
    """Tests that the empty tensor of stage 1 arrives at once, while its link is busy with that of stage 0."""
    edges = [make_edge("w y", num_bytes=4), make_edge("x z")]
    problem = make_problem([make_layer(n) for n in "wxyz"], [make_link("a b")], edges=edges)
    words = {"a": "0F0 1F0 1B0 0B0", "b": "3F0 3B0 2F0 2B0"}
    assert drawn(problem, ["w @ a", "x @ a", "y @ b", "z @ b"], words) == picture("""
        a   |0F0 1F0 .   .   .   1B0---- .   .   .   .   .   0B0----
        b   |.   .   3F0 3B0---- 2F0 2B0----
        a>b |.   0f0------------
        b>a |.   .   .   .   .   .   .   .   2b0------------
    """)


def test_a_direct_link_is_used_and_a_route_occupies_all_its_links():
    """Tests that a to b takes the slow direct link, and a to c the way over s with its latency and least bandwidth."""
    links = [
        make_link("a b", bandwidth=5 * 10**8),
        make_link("a s"),
        make_link("s b"),
        make_link("s c", bandwidth=5 * 10**8, latency=1),
    ]
    edges = [make_edge("x y", num_bytes=2), make_edge("x z", num_bytes=2)]
    problem = make_problem([make_layer(n) for n in "xyz"], links, switches=("s",), edges=edges)
    words = {"a": "0F0 0B0", "b": "1F0 1B0", "c": "2F0 2B0"}
    assert drawn(problem, ["x @ a", "y @ b", "z @ c"], words) == picture("""
        a   |0F0 .   .   .   .   .   .   .   .   .   .   .   .   .   0B0----
        b   |.   .   .   .   .   1F0 1B0----
        c   |.   .   .   .   .   .   2F0 2B0----
        a>b |.   0f0------------
        a>s |.   0f0----------------
        s>c |.   0f0----------------
        b>a |.   .   .   .   .   .   .   .   1b0------------
        c>s |.   .   .   .   .   .   .   .   .   2b0----------------
        s>a |.   .   .   .   .   .   .   .   .   2b0----------------
    """)


def test_an_output_travels_once_per_consuming_stage():
    """Tests that x is sent once to the stage of y and z, at its largest size, and its gradient comes back once."""
    edges = [make_edge("x y", num_bytes=2), make_edge("x z", num_bytes=3)]
    problem = make_problem([make_layer(n) for n in "xyz"], [make_link("a b")], edges=edges)
    timeline = play(problem, make_plan(problem, ["x @ a", "y z @ b"], {"a": "0F0 0B0", "b": "1F0 1B0"}))
    assert [(sent.direction, sent.num_bytes) for sent in timeline.transfers] == [("forward", 3), ("backward", 3)]


def test_without_overlap_a_device_does_not_work_while_it_sends_or_receives():
    """Tests that transfers wait for the actions that run, and go before the actions that could start with them."""
    words = {"a": "0F0 0F1 0I0 0W0 0I1 0W1", "b": "1F0 1I0 1W0 1F1 1I1 1W1"}
    problem = two_layers(num_microbatches=2, edge_bytes=2, overlap=False)
    assert drawn(problem, ["x @ a", "y @ b"], words) == picture("""
        a   |0F0 .   .   0F1 .   .   .   .   .   0I0 0W0 .   .   .   0I1 0W1
        b   |.   .   .   1F0 .   .   1I0 .   .   1W0 1F1 1I1 .   .   1W1
        a>b |.   0f0---- .   0f1----
        b>a |.   .   .   .   .   .   .   1b0---- .   .   .   1b1----
    """)
    problem = two_layers(num_microbatches=2, edge_bytes=2, overlap=True)
    assert drawn(problem, ["x @ a", "y @ b"], words) == picture("""
        a   |0F0 0F1 .   .   .   .   .   0I0 0W0 .   0I1 0W1
        b   |.   .   .   1F0 1I0 1W0 1F1 1I1 1W1
        a>b |.   0f0---- 0f1----
        b>a |.   .   .   .   .   1b0---- .   1b1----
    """)


# Section 2: replication.


def test_two_replicas_feed_three():
    """Tests that d needs a sixth of every microbatch from a and from b each, and that work is divided too."""
    ends = [f"{a} {b}" for a in "ab" for b in "cde"] + ["a b", "c d", "d e", "c e"]
    layers = [make_layer("x", (2, 2, 2)), make_layer("y", (3, 3, 3))]
    problem = make_problem(layers, list(map(make_link, ends)), edge_bytes=6)
    words = {**dict.fromkeys("ab", "0F0 0B0"), **dict.fromkeys("cde", "1F0 1B0")}
    timeline = play(problem, make_plan(problem, ["x @ a | b", "y @ c | d | e"], words))
    assert draw(problem, timeline) == picture("""
        a   |0F0 .   .   .   .   .   .   .   0B0----
        b   |0F0 .   .   .   .   .   .   .   0B0----
        c   |.   .   .   1F0 1B0----
        d   |.   .   1F0 1B0----
        e   |.   .   .   1F0 1B0----
        a>c |.   0f0----
        a>d |.   0f0
        b>d |.   0f0
        b>e |.   0f0----
        d>a |.   .   .   .   .   1b0
        d>b |.   .   .   .   .   1b0
        c>a |.   .   .   .   .   .   1b0----
        e>b |.   .   .   .   .   .   1b0----
    """)
    assert timeline.synchronisations == (TimedSynchronisation(1, 6, 8), TimedSynchronisation(0, 10, 11))
    assert timeline.makespan_ns == 11


@pytest.mark.parametrize(
    ("replicas", "duration"),
    [
        ("a | b | c | d", 18 + 18),  # 2 x 3/4 x 6 bytes at 0.5 bytes/ns, 6 x 3 ns
        ("a | c | b | d", 90 + 12),  # the same bytes at 0.1 bytes/ns, 6 x 2 ns
    ],
)
def test_all_reduce_goes_round_the_ring_as_listed(replicas: str, duration: int):
    """Tests that it takes 2(r-1)/r x bytes / slowest link + 2(r-1) x largest latency of listed neighbours."""
    links = [
        make_link("a b", latency=1),
        make_link("b c", latency=2, bandwidth=5 * 10**8),
        make_link("c d", latency=3),
        make_link("d a"),
        make_link("a c", bandwidth=10**8),
    ]
    problem = make_problem([make_layer("x", (4, 4, 4), parameter_bytes=6)], links)
    timeline = play(problem, make_plan(problem, [f"x @ {replicas}"], dict.fromkeys("abcd", "0F0 0I0 0W0")))
    assert timeline.synchronisations == (TimedSynchronisation(0, 3, 3 + duration),)
    assert (timeline.makespan_ns, timeline.span_ns) == (3 + duration, 3)


def test_frozen_stages_do_not_synchronise():
    """Tests that a replicated stage whose layers are all frozen ends with its last action."""
    layer = make_layer("x", (2, 2, 0), parameter_bytes=6, frozen=True)
    problem = make_problem([layer], [make_link("a b")])
    timeline = play(problem, make_plan(problem, ["x @ a | b"], dict.fromkeys("ab", "0F0 0I0")))
    assert (timeline.synchronisations, timeline.makespan_ns) == ((), 2)


@pytest.mark.parametrize(("option", "start"), [("after", 6), ("bucketed", 10)])
def test_synchronisations_queue_only_if_bucketed(option: str, start: int):
    """Tests that stage 0, done at 6, waits for the links that stage 1 uses from 4 to 10, if they queue."""
    layers = [make_layer("x", (2, 2, 2), parameter_bytes=4), make_layer("y", (2, 2, 2), parameter_bytes=6)]
    problem = make_problem(layers, [make_link("a b")], synchronisation=option)
    words = dict.fromkeys("ab", "0F0 1F0 1I0 1W0 0I0 0W0")
    timeline = play(problem, make_plan(problem, ["x @ a | b", "y @ a | b"], words))
    assert timeline.synchronisations == (TimedSynchronisation(1, 4, 10), TimedSynchronisation(0, start, start + 4))
    assert timeline.makespan_ns == start + 4


@pytest.mark.parametrize(("option", "start"), [("after", 6), ("bucketed", 7)])
def test_bucketed_synchronisation_queues_with_transfers(option: str, start: int):
    """Tests that stage 1, done at 6, waits for the gradients on the links of its ring until 7, if it queues."""
    layers = [make_layer("x"), make_layer("y", (2, 2, 2), parameter_bytes=6)]
    links = [make_link("b a"), make_link("a c")]
    problem = make_problem(layers, links, edge_bytes=4, synchronisation=option)
    words = {"a": "0F0 0B0", "b": "1F0 1I0 1W0", "c": "1F0 1I0 1W0"}
    timeline = play(problem, make_plan(problem, ["x @ a", "y @ b | c"], words))
    assert draw(problem, timeline) == picture("""
        a   |0F0 .   .   .   .   .   .   0B0----
        b   |.   .   .   1F0 1I0 1W0
        c   |.   .   .   1F0 1I0 1W0
        a>b |.   0f0----
        a>c |.   0f0----
        b>a |.   .   .   .   .   1b0----
        c>a |.   .   .   .   .   1b0----
    """)
    assert timeline.synchronisations == (TimedSynchronisation(1, start, start + 6),)


# Section 4: memory.


def held(layer: Layer, stage: str, word: str, **fields: object) -> list[tuple[int, int]]:
    """The memory trace of a single stage."""
    problem = make_problem([layer], [], more_devices="a", **fields)
    plan = make_plan(problem, [make_stage(stage, recompute=problem.options.recompute)], {"a": word})
    return [tuple(point) for point in play(problem, plan).memory["a"]]


HEAVY = make_layer("x", state_bytes=100, stash_bytes=10, weight_stash_bytes=4, checkpoint_bytes=2, workspace_bytes=1)


def test_stash_is_held_from_the_start_of_forward():
    """Tests that F takes the stash, I gives back all but the weight stash, W the rest; workspace while they run."""
    assert held(HEAVY, "x @ a", "0F0 0I0 0W0") == [
        (0, 100),
        *[(0, 111), (1, 110)],  # F
        *[(1, 111), (2, 104)],  # I
        *[(2, 105), (3, 100)],  # W
    ]


def test_workspace_may_be_kept_until_the_weight_gradient():
    """Tests that with `keep_workspace` W runs in what its I keeps, and that nothing else changes, B included."""
    assert held(HEAVY, "x @ a", "0F0 0I0 0W0", keep_workspace=True) == [
        (0, 100),
        *[(0, 111), (1, 110)],  # F
        *[(1, 111), (2, 105)],  # I keeps 4 of the stash and 1 of workspace
        *[(2, 105), (3, 100)],  # W needs nothing more
    ]
    assert held(HEAVY, "x @ a", "0F0 0B0", keep_workspace=True) == held(HEAVY, "x @ a", "0F0 0B0")


def test_fused_backward_gives_back_everything():
    """Tests that B holds the stash to its end and then gives back all of it."""
    assert held(HEAVY, "x @ a", "0F0 0B0") == [(0, 100), (0, 111), (1, 110), (1, 111), (3, 100)]


def test_recomputing_stage_holds_the_checkpoint():
    """Tests that with recomputation only the checkpoint is held, and the stash while I runs and, in part, until W."""
    assert held(HEAVY, "x @ a", "0F0 0I0 0W0", recompute=True) == [
        (0, 100),
        *[(0, 103), (1, 102)],
        *[(1, 111), (2, 104)],
        *[(2, 105), (3, 100)],
    ]


def test_frozen_stage_keeps_nothing_for_weights():
    """Tests that without a W the I gives back the whole stash, whatever the profile says of weight stash."""
    layer = replace(HEAVY, frozen=True, costs=(replace(HEAVY.costs[0], weight_grad_ns=0),))
    assert held(layer, "x @ a", "0F0 0I0") == [(0, 100), (0, 111), (1, 110), (1, 111), (2, 100)]


def test_microbatches_add_up():
    """Tests that the peak depends on the order: two microbatches in flight hold two stashes."""
    assert max(n for _, n in held(HEAVY, "x @ a", "0F0 0F1 0B0 0B1", num_microbatches=2)) == 121
    assert max(n for _, n in held(HEAVY, "x @ a", "0F0 0B0 0F1 0B1", num_microbatches=2)) == 111


@pytest.mark.parametrize(("buffers", "expected"), [(0, (7, 7, 0)), (2, (15, 17, 10))])
def test_receive_buffers_are_static(buffers: int, expected: tuple[int, int, int]):
    """Tests that every edge from another device counts `receive_buffers` times, gradients as well, and no other."""
    layers = [make_layer("w", state_bytes=7), make_layer("x"), make_layer("y", state_bytes=7), make_layer("z")]
    edges = [
        make_edge("w x", num_bytes=9),
        make_edge("x y", num_bytes=5, gradient_bytes=4),
        make_edge("y z", num_bytes=0),
    ]
    problem = make_problem(layers, [make_link("a b"), make_link("b c")], edges=edges, receive_buffers=buffers)
    words = {"a": "0F0 1F0 1B0 0B0", "b": "2F0 3F0 3B0 2B0"}
    timeline = play(problem, make_plan(problem, ["w @ a", "x @ a", "y @ b", "z @ b"], words))
    assert (timeline.peak_bytes["a"], timeline.peak_bytes["b"]) == expected[:2]
    assert timeline.peak_bytes["b"] - 7 == expected[2]


def test_replicas_divide_the_stash_but_not_the_state():
    """Tests that each of two replicas holds the state, half the stash (rounded up) and half the buffers."""
    layers = [make_layer("x", state_bytes=100, stash_bytes=5), make_layer("y")]
    problem = make_problem(layers, [make_link("a b"), make_link("b c")], edge_bytes=3, receive_buffers=1)
    words = {"a": "0F0 0B0", "b": "0F0 0B0", "c": "1F0 1B0"}
    timeline = play(problem, make_plan(problem, ["x @ a | b", "y @ c"], words))
    assert timeline.peak_bytes == {"a": 100 + 3 + 2, "b": 100 + 3 + 2, "c": 3}


# What cannot be played.


def test_deadlock_is_an_error():
    """Tests that a schedule in which each device waits for the other raises PlanError that names where they stand."""
    problem = two_layers(num_microbatches=2)
    plan = make_plan(problem, ["x @ a", "y @ b"], {"a": "0F0 0B0 0F1 0B1", "b": "1F1 1B1 1F0 1B0"})
    with pytest.raises(PlanError, match=r"deadlocks: a at 0B0; b at 1F1"):
        simulate(problem, plan)


@pytest.mark.parametrize("action", ["1F0", "2F0", "0F1"])
def test_foreign_action_is_an_error(action: str):
    """Tests that an action of a stage that the device does not hold, or of no microbatch, raises PlanError."""
    problem = two_layers()
    plan = make_plan(problem, ["x @ a", "y @ b"], {"a": f"0F0 0B0 {action}", "b": "1F0 1B0"})
    with pytest.raises(PlanError, match=f"a cannot run {action}"):
        simulate(problem, plan)


# All timelines.


@given(case=cases())
def test_three_evaluations_agree(case: tuple[Problem, Plan]):
    """Tests that event queue, checked equations and instant-by-instant play give the same figures."""
    play(*case)


def scaled(problem: Problem, factor: int, *, unit: int) -> Problem:
    """All times and latencies `factor` x as long; sizes in multiples of `unit`, so that nothing has to be rounded."""
    layers = tuple(
        replace(
            layer,
            parameter_bytes=layer.parameter_bytes * unit,
            costs=tuple(
                replace(
                    cost,
                    forward_ns=cost.forward_ns * unit * factor,
                    input_grad_ns=cost.input_grad_ns * unit * factor,
                    weight_grad_ns=cost.weight_grad_ns * unit * factor,
                    backward_ns=cost.fused_backward_ns * unit * factor,
                    recompute_ns=cost.recompute_ns * unit * factor,
                    optimizer_ns=cost.optimizer_ns * unit * factor,
                )
                for cost in layer.costs
                if cost.microbatch_size is None
            ),
        )
        for layer in problem.profile.layers
    )
    edges = tuple(
        replace(edge, bytes=edge.bytes * unit, gradient_bytes=edge.backward_bytes * unit)
        for edge in problem.profile.edges
    )
    links = tuple(
        replace(
            link,
            bandwidth_bytes_per_s=10**9 // factor,
            latency_ns=link.latency_ns * factor,
            message_overhead_ns=(link.message_overhead_ns or 0) * factor,
        )
        for link in problem.cluster.links
    )
    profile = replace(
        problem.profile,
        layers=layers,
        edges=edges,
        optimizer_ns=problem.profile.optimizer_ns * factor,
        action_overhead_ns=scaled_overheads(problem.profile, factor),
    )
    return replace(problem, profile=profile, cluster=replace(problem.cluster, links=links))


@given(case=cases(), factor=st.sampled_from([2, 5, 10]))
def test_scaling_all_times_scales_the_timeline(case: tuple[Problem, Plan], factor: int):
    """Tests that with all times and latencies k x as long, the makespan, the span and every start are k x as late."""
    problem, plan = case
    small, large = scaled(problem, 1, unit=720), scaled(problem, factor, unit=720)
    before = simulate(small, with_reference(small, plan))
    after = simulate(large, with_reference(large, plan))
    assert after.makespan_ns == factor * before.makespan_ns
    assert after.span_ns == factor * before.span_ns
    for device, word in before.actions.items():
        assert [timed.start_ns for timed in after.actions[device]] == [factor * timed.start_ns for timed in word]
