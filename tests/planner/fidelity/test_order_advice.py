"""Other orders of steps with several stages per device and backwards in halves."""

from dataclasses import replace
from random import Random

import pytest

from planner.fidelity.advice import advise
from planner.fidelity.order_advice import bound_orders, reorder
from planner.fidelity.run_replay import replay_ns
from planner.simulation.simulate import simulate
from profiles.importers.straggler import Key, ReplicaKey, RunAction, RunStep, last_stages, needed_by, product_of
from tests.long_runs import examples
from tests.profiles.importers.test_rank_steps import as_run_step, running


def ordered_at_random(step: RunStep, rng: Random) -> RunStep:
    """The same actions on the same devices, each some time after what it needs."""
    last, made = last_stages(step.actions), set[Key]()
    left, rows = [*step.keyed()], dict[ReplicaKey, list[RunAction]]()
    devices = step.of_stages()
    while left:
        needs = [needed_by(key, last=last[key[0]]) for key, _ in left]
        key, action = left.pop(rng.choice([n for n, need in enumerate(needs) if need is None or need in made]))
        made.add(product_of(key))
        rows.setdefault(devices[key[:2]], []).append(action)
    return replace(step, actions={seat: tuple(row) for seat, row in rows.items()})


def in_flight(row: tuple[RunAction, ...]) -> int:
    """The most (stage, microbatch) whose last action has not run."""
    ends = {(action.stage, action.microbatch): place for place, action in enumerate(row)}
    starts = {(action.stage, action.microbatch): place for place, action in reversed([*enumerate(row)])}
    return max(sum(starts[each] <= place < ends[each] for each in ends) for place in range(len(row)))


@pytest.mark.parametrize("seed", range(examples(60)))
def test_another_order_is_no_longer_and_no_order_is_below_the_bound(seed: int):
    """Tests that what is found runs the same in less or equal time and room, and that random orders keep the bound."""
    rng = Random(seed)
    problem, plan = running(seed)
    step = ordered_at_random(as_run_step(plan, simulate(problem, plan)), rng)
    other, bound = reorder(step), bound_orders(step)
    assert bound <= replay_ns(other) <= replay_ns(step)
    for seat, row in step.actions.items():
        assert sorted(map(repr, other.actions[seat])) == sorted(map(repr, row))
        assert in_flight(other.actions[seat]) <= in_flight(row)
    for _ in range(5):
        assert bound <= replay_ns(replace(ordered_at_random(step, rng), transfers_ns={}))


def drawn(*rows: str) -> RunStep:
    """A step from a row per device of actions, each with its stage, kind, microbatch and duration."""
    actions = {}
    for place, row in enumerate(rows):
        actions[0, place] = tuple(
            RunAction(kind=text[1], stage=int(text[0]), microbatch=int(text[2]), start_ns=0, duration_ns=int(text[4:]))
            for text in row.split()
        )
    return RunStep(number=0, actions=actions, transfers_ns={})


def test_the_best_order_of_a_small_step_is_found():
    """Tests that weights that ran before what others wait for run after it, and that the bound is reached."""
    step = drawn("0F0:1 0F1:1 0I0:1 0W0:5 0I1:1 0W1:5", "1F0:1 1F1:1 1I0:1 1W0:5 1I1:1 1W1:5")
    assert replay_ns(step) == 16
    assert replay_ns(reorder(step)) == bound_orders(step) == 15


def test_another_order_needs_no_more_room():
    """Tests that the same step is left as it is where its last device held one microbatch at a time."""
    step = drawn("0F0:1 0F1:1 0I0:1 0W0:5 0I1:1 0W1:5", "1F0:1 1I0:1 1W0:5 1F1:1 1I1:1 1W1:5")
    assert reorder(step) == step


def test_chunks_are_advised_on():
    """Tests that of a step with chunks the busiest stage and the slow one are named, and remedies with their bounds."""
    step = drawn("0F0:1 0F1:1 2F0:9 2B0:9 2F1:9 2B1:9 0B0:2 0B1:2", "1F0:1 1F1:1 1B0:2 1B1:2")
    advice = advise([step], blocks_per_stage=4)
    assert not advice.is_plain
    assert advice.busiest_stage == 2
    assert [slow.what for slow in advice.slow] == ["stage 2"]
    assert [remedy.what.split()[:2] for remedy in advice.remedies] == [
        ["another", "order"],
        ["whole", "microbatches"],
        ["divided", "again:"],
    ]
    for remedy in advice.remedies:
        assert remedy.lower_bound_ns <= remedy.makespan_ns <= advice.replayed_ns
