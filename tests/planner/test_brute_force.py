"""Brute force on cases small enough for paper, and against all plans there are with nothing pruned."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product
from math import prod
from random import Random

from hypothesis import given, settings

from planner.actions import Action
from planner.errors import PlanError
from planner.judge.memory import usable_bytes
from planner.layout.costs import CostModel
from planner.plan import Plan, Stage
from planner.problem import PinnedLayer, Problem
from planner.simulation.simulate import simulate
from planner.verify import verify
from profiles.model_profile import WidthBytes
from tests.long_runs import examples
from tests.planner.brute_force import brute_force, brute_force_plan, every_group, every_mapping
from tests.planner.builders import make_edge, make_layer, make_link, make_problem
from tests.planner.judged import judged
from tests.strategies import chain_problems, random_chain, tiny_problems, with_memory


def two_layers(times: tuple[int, ...] = (1, 1, 1), **fields: object) -> Problem:
    layers = [make_layer(name, times, stash_bytes=1, state_bytes=10) for name in "xy"]
    options = {"receive_buffers": 0, "max_stages_per_device": 1, "max_replicas": 1}
    return make_problem(layers, [make_link("a b", latency=fields.pop("latency", 0))], **options | fields)


def test_one_device_does_all_the_work():
    """Tests that where transfers are too slow, everything runs on one device: 2 layers x 3 actions x 2 microbatches."""
    assert brute_force(two_layers(num_microbatches=2, latency=100)) == 12


def test_two_devices_fill_and_drain():
    """Tests that with one microbatch two devices take 1 + 3 + 1, and with two the later one of them 1 + 2 x 3."""
    assert brute_force(two_layers(num_microbatches=2)) == 7
    assert brute_force(two_layers(num_microbatches=1)) == 5


def test_latency_is_paid_where_it_pays():
    """Tests that one microbatch costs 5 + 2 x latency on two devices and 6 on one."""
    assert brute_force(two_layers(num_microbatches=1, latency=1)) == 6
    assert brute_force(two_layers(num_microbatches=3, latency=1)) == 3 * 3 + 1 + 1


def test_fused_backward_is_used_where_it_is_faster():
    """Tests that with B = 1 instead of I + W = 2 one device takes 2 x 2 and two devices 1 + 2 + 1."""
    assert brute_force(two_layers((1, 1, 1, 1), num_microbatches=1)) == 4
    assert brute_force(two_layers((1, 1, 1, 1), num_microbatches=3, split_backward=False)) == 1 + 3 * 2 + 1


def test_memory_decides():
    """Tests that without room for both layers, or for two microbatches, the best plan is another, or none.

    On two devices the link holds up the second microbatch: 1 + 200 + 2 + 100 + 2. One by one: 204 + 1 + 100 + 2 + 102.
    """
    problem = two_layers(num_microbatches=2, latency=100)
    assert brute_force(with_memory(problem, {"a": 22, "b": 22})) == 12
    assert brute_force(with_memory(problem, {"a": 21, "b": 21})) == 305
    assert brute_force(with_memory(problem, {"a": 11, "b": 11})) == 409
    assert brute_force(with_memory(problem, {"a": 10, "b": 21})) is None


def test_replicas_share_a_microbatch():
    """Tests that two replicas halve the work, and pay for the synchronisation of their gradients."""
    layers = [make_layer("x", (10, 10, 10), parameter_bytes=8)]
    problem = make_problem(layers, [make_link("a b")], max_stages_per_device=1)
    assert brute_force(problem) == 15 + 8
    assert brute_force(replace(problem, options=replace(problem.options, max_replicas=1))) == 30


def test_chunks_shorten_the_fill():
    """Tests that two stages per device can beat one: four layers of 1, 1, 1 on two devices."""
    layers = [make_layer(f"l{i}") for i in range(4)]
    one = make_problem(layers, [make_link("a b")], num_microbatches=2, max_replicas=1, max_stages_per_device=1)
    two = replace(one, options=replace(one.options, max_stages_per_device=2))
    assert (brute_force(one), brute_force(two)) == (14, 13)


def test_fixed_choices_are_kept():
    """Tests that pinned layers, a partition and a placement restrict the search."""
    problem = two_layers(num_microbatches=2, latency=100)
    for fields in (
        {"partition": (("x",), ("y",))},
        {"pinned": (PinnedLayer(layer="x", device="a"), PinnedLayer(layer="y", device="b"))},
        {"idle_devices": False},
    ):
        assert brute_force(replace(problem, options=replace(problem.options, **fields))) == 305


def test_groups_of_several_devices():
    """Tests that a measured width is tried, and that members hold what was measured on them."""
    layer = make_layer("x", (9, 9, 9), state_bytes=10, wider=(WidthBytes(width=2, state_bytes=7, stash_bytes=0),))
    wide = replace(layer.costs[0], width=2, forward_ns=2, input_grad_ns=2, weight_grad_ns=2, backward_ns=None)
    layer = replace(layer, costs=(*layer.costs, wide))
    problem = make_problem([layer], [make_link("a b", latency=1)], max_replicas=1, max_width=2)
    assert brute_force(problem) == 6 * problem.num_microbatches
    assert brute_force(replace(problem, options=replace(problem.options, max_width=1))) == 27 * problem.num_microbatches
    assert brute_force(with_memory(problem, {"a": 7, "b": 7})) == 6 * problem.num_microbatches
    assert brute_force(with_memory(problem, {"a": 7, "b": 6})) is None


def test_groups_of_all_orders_are_tried():
    """Tests that of four devices every two make a group with either one first, and that replicas share no device."""
    links = [make_link(f"{a} {b}") for a, b in combinations("abcd", 2)]
    problem = make_problem([make_layer("x")], links, max_replicas=2, max_width=2)
    found = list(every_group(problem))
    assert len(found) == len(set(found)) == 4 + 4 * 3 + 4 * 3 + 4 * 3 * 2


def test_every_mapping_is_tried():
    """Tests that the number of stage maps is right: a chain of 3 on 2 devices, and 3 layers without edges."""
    chain = make_problem([make_layer(n) for n in "xyz"], [make_link("a b", latency=1)], max_replicas=1)
    options = replace(chain.options, max_stages_per_device=1)
    assert len(list(every_mapping(replace(chain, options=options)))) == 1 + 2  # devices alike: a first
    unlike = with_memory(replace(chain, options=options), {"a": 999})
    assert len(list(every_mapping(unlike))) == 2 * (1 + 2)
    loose = replace(unlike, profile=replace(chain.profile, edges=()))
    assert len(list(every_mapping(loose))) == 2 * (1 + 6)
    branched = replace(loose, profile=replace(chain.profile, edges=(make_edge("x y"), make_edge("x z"))))
    assert len(list(every_mapping(branched))) == 2 * (1 + 3)


@given(problem=chain_problems())
@settings(max_examples=examples(30))
def test_best_plans_are_as_good_as_they_claim(problem: Problem):
    """Tests that the best plan passes the verifier, and that core and judge confirm its makespan."""
    best = brute_force_plan(problem)
    if best is not None:
        value, plan = best
        assert verify(problem, plan).violations == ()
        assert judged(problem, plan).makespan_ns == value


@given(problem=tiny_problems())
@settings(max_examples=examples(25))
def test_nothing_that_matters_is_pruned(problem: Problem):
    """Tests that tiny problems of every kind agree with all orders, each played by the core and judged."""
    expected = every_plan_played(problem, most=1000)
    if expected is not TOO_MANY:
        assert brute_force(problem) == expected


def test_size_that_is_promised():
    """Tests that six layers, three unlike devices and three microbatches are searched through within seconds."""
    problem = random_chain(Random(28), sizes=(6, 3, 3), tight=True)
    assert (len(problem.profile.layers), len(problem.cluster.devices)) == (6, 3)
    assert brute_force(replace(problem, num_microbatches=3)) is not None


TOO_MANY = object()


def every_plan_played(problem: Problem, *, most: int) -> object:
    """The least objective over all words (in the order of microbatches); TOO_MANY if there are more than `most`."""
    best, count, costs = None, 0, CostModel(problem)
    for stages in every_mapping(problem):
        held: dict[str, list[int]] = {}
        for number, stage in enumerate(stages):
            for group in stage.replicas:
                held.setdefault(group[0], []).append(number)
        words = [list(every_word(problem, stages, tuple(numbers))) for numbers in held.values()]
        count += prod(map(len, words))
        if count > most:
            return TOO_MANY
        for chosen in product(*words):
            plan = Plan(problem=problem.reference(), stages=stages, schedule=dict(zip(held, chosen, strict=True)))
            value = objective_of(problem, plan, costs=costs)
            best = value if best is None else best if value is None else min(best, value)
    return best


def objective_of(problem: Problem, plan: Plan, *, costs: CostModel) -> int | None:
    """What the judge finds that a plan of sound stages and lists takes; None if it deadlocks or does not fit."""
    try:
        figures = judged(problem, plan, timeline=simulate(problem, plan, costs=costs))
    except PlanError:
        return None
    if any(peak > usable_bytes(problem.cluster.by_name[device]) for device, peak in figures.peak_bytes.items()):
        return None
    return figures.span_ns if problem.options.objective == "span" else figures.makespan_ns


def every_word(problem: Problem, stages: tuple[Stage, ...], held: tuple[int, ...]) -> Iterator[tuple[Action, ...]]:
    """All orders in which a device may run the stages it holds."""
    layers, total = problem.profile.by_name, problem.num_microbatches
    trains = {s: any(layers[name].is_trainable for name in stages[s].layers) for s in held}

    def extend(word: tuple[Action, ...]) -> Iterator[tuple[Action, ...]]:
        is_done = True
        for s in held:
            done = {kind: [a.microbatch for a in word if (a.kind, a.stage) == (kind, s)] for kind in "FIWB"}
            backward = sorted(done["I"] + done["B"])
            pending = [m for m in done["I"] if m not in done["W"]] if trains[s] else []
            is_done = is_done and len(backward) == total and not pending
            if len(done["F"]) < total:
                yield from extend((*word, Action("F", s, len(done["F"]))))
            if len(backward) < len(done["F"]):
                kinds = "IB" if trains[s] and problem.options.split_backward else "B" if trains[s] else "I"
                for kind in kinds:
                    yield from extend((*word, Action(kind, s, len(backward))))
            if pending:
                yield from extend((*word, Action("W", s, pending[0])))
        if is_done:
            yield word

    yield from extend(())
